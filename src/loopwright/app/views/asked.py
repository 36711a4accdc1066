"""What a gate about a tool call is about: the tool, what it would be given, why it was held."""

from collections.abc import Callable

import msgspec

from loopwright.app.views.exposing import exposure
from loopwright.app.views.workspace_history import snapshot_json
from loopwright.kernel.frames import CycleBody, GateState
from loopwright.model.record import JsonValue, Text

Read = Callable[[Text | None], str]


def asked_call(gate: GateState, read: Read) -> dict[str, JsonValue] | None:
    """The tool call that an open gate asks about; None for every other gate. `reason` is what the
    model itself says about the call, where it does.
    """
    body = gate.owner.body
    if gate.call is None or not isinstance(body, CycleBody) or body.turn is None:
        return None
    note = body.turn.calls[gate.call - 1]
    arguments: JsonValue = msgspec.json.decode(read(note.arguments))
    reason = arguments.get("reason") if isinstance(arguments, dict) else None
    return {
        "id": note.id,
        "tool": note.tool,
        "arguments": arguments,
        "held": note.held,
        "reason": reason if isinstance(reason, str) else None,
    }


def gate_view(gate: GateState, read: Read) -> dict[str, JsonValue]:
    """An open gate as one object."""
    shown: dict[str, JsonValue] = {
        "id": gate.gate,
        "path": gate.path,
        "message": gate.message,
        "digest": gate.digest,
    }
    call = asked_call(gate, read)
    if gate.snapshot is not None:
        shown["snapshot"] = snapshot_json(gate.snapshot)
    return {**shown, **({"call": call} if call else {}), **exposure(gate.message, call)}
