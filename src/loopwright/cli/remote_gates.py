"""Ask a person here about a gate of a run on a remote server."""

import asyncio
import json
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from loopwright.app.views.iteration_names import iteration_of
from loopwright.cli.asking import Reply, ask
from loopwright.cli.door import Door
from loopwright.cli.workspace_history import show_paged
from loopwright.errors import Conflict, LoopwrightError, NotAllowed, NotFound
from loopwright.kernel.facts import GateOpened
from loopwright.model.record import Blob

if TYPE_CHECKING:
    from typing import Any

    from loopwright.cli.remote import Remote
    from loopwright.model.record import JsonValue

RUNS = "/api/v1/runs"
POLL_S = 1.0


def ask_remote(door: Door, run: str) -> bool:
    """Ask about the oldest open gate of a run and send the answer; False when nothing is asked, or
    the person decides later.
    """
    remote = door.remote
    assert remote is not None
    item = next((one for one in remote.gates() if one["run"] == run), None)
    gate = _opened(remote, run, str(item["id"])) if item is not None else None
    if item is None or gate is None:
        return False
    reply = asyncio.run(_asked(door, remote, run, gate, _output(remote, run, gate, item)))
    if reply is None:
        return False
    if isinstance(reply, str):
        door.tell(reply)
        return True
    body: dict[str, JsonValue] = {"text": reply.text, "digest": gate.digest}
    if reply.call.arguments is not None:
        body["arguments"] = json.loads(reply.call.arguments)
    if reply.call.remember:
        body["remember"] = True
    try:
        remote.post(f"/api/v1/gates/{quote(gate.gate)}/{reply.decision}", body)
    except Conflict as conflict:
        door.tell(str(conflict), tone="warn")
    except NotAllowed as refusal:  # the gate stays open for somebody else
        door.tell(str(refusal), tone="warn")
        return False
    return True


async def _asked(
    door: Door, remote: "Remote", run: str, gate: GateOpened, output: str
) -> Reply | str | None:
    """The answer of the person here; a text says that the gate was answered elsewhere."""

    async def show_diff() -> None:
        _show_diff(door, remote, run, gate)

    question = asyncio.ensure_future(ask(door, gate, output, show_diff=show_diff))
    elsewhere = asyncio.ensure_future(_answered_elsewhere(remote, gate.gate))
    try:
        await asyncio.wait({question, elsewhere}, return_when=asyncio.FIRST_COMPLETED)
        return question.result() if question.done() else "answered elsewhere"
    finally:
        question.cancel()
        elsewhere.cancel()
        await asyncio.gather(question, elsewhere, return_exceptions=True)


async def _answered_elsewhere(remote: "Remote", gate: str) -> None:
    while True:
        await asyncio.sleep(POLL_S)
        try:
            gates = await asyncio.to_thread(remote.gates)
        except LoopwrightError:  # the server may come back before the person has answered
            continue
        if all(one["id"] != gate for one in gates):
            return


def _opened(remote: "Remote", run: str, gate: str) -> GateOpened | None:
    """What a gate asks, from the event that opened it."""
    for event in remote.events(run, 0):
        if event["kind"] == "gate.opened" and event["gate"] == gate:
            known = {name: event[name] for name in GateOpened.__struct_fields__ if name in event}
            return msgspec.convert({**known, "kind": "gate.opened", "at": 0}, GateOpened)
    return None


def _output(remote: "Remote", run: str, gate: GateOpened, item: "dict[str, Any]") -> str:
    """The text that is decided about; for a tool call, its arguments."""
    if gate.call is not None:
        return json.dumps(item["call"]["arguments"])
    if not isinstance(gate.output, Blob):
        return gate.output or ""
    try:
        return str(remote.get(f"{RUNS}/{quote(run)}/output", path=gate.path)["output"])
    except NotFound:
        return gate.output.head


def _show_diff(door: Door, remote: "Remote", run: str, gate: GateOpened) -> None:
    """What was changed in the iteration that the gate asks about, else in the whole run."""
    number = iteration_of(gate.path, gate.iteration)
    wanted = {"from": number} if number is not None else {}
    try:
        text = str(remote.get(f"{RUNS}/{quote(run)}/diff", **wanted)["diff"])
    except LoopwrightError as error:
        door.tell(str(error), tone="warn")
        return
    if text.strip():
        show_paged(door, text)
    else:
        door.tell("no files changed")
