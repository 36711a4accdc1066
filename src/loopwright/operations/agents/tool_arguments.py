"""Arguments that a person gives to a tool call, against the tool's own form.

Loaded when somebody gives some: the tools cost more to load than all else that an answer needs.
"""

from collections.abc import Iterable

import msgspec

from loopwright.engine.json_schema import schema_problem
from loopwright.kernel.events import GateOpened, TurnTaken
from loopwright.model.record import JsonValue
from loopwright.operations.gates import unfit
from loopwright.ports import NumberedEvent
from loopwright.tools.toolbox import NATIVE


def check_arguments(events: Iterable[NumberedEvent], opened: GateOpened, arguments: str) -> None:
    """Refuse arguments that do not fit a built-in tool; the gate stays open then. Those of a
    server's tool are looked at when it is run.
    """
    tool = next(
        (
            one.event.calls[opened.call - 1].tool
            for one in events
            if isinstance(one.event, TurnTaken)
            and one.event.path == opened.path
            and opened.call is not None
        ),
        "",
    )
    if tool not in NATIVE:
        return
    value: JsonValue = msgspec.json.decode(arguments)
    problem = schema_problem(NATIVE[tool].spec.schema, value)
    if problem is not None:
        raise unfit(f"they do not fit {tool}: {problem}")
