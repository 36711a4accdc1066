"""How a run's end becomes an exit code and a result.

0 completed · 3 failed, or stopped by somebody · 4 a limit stopped it · 5 waits for a person, or is
paused · 130 and 143 signals.
"""

import sys
from typing import TYPE_CHECKING

from loopwright.cli.door import Door, Tone
from loopwright.cli.texts import cleaned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loopwright.model.record import JsonValue

EXIT = {
    "completed": 0,
    "failed": 3,
    "cancelled": 3,
    "exhausted": 4,
    "waiting": 5,
    "paused": 5,
    "running": 0,
}
_WORST_FIRST = (3, 4, 5)
_ENDED_BADLY = ("failed", "exhausted")
_NOT_COMPLETED = (*_ENDED_BADLY, "cancelled")
_OPEN = ("running", "waiting", "paused")
_TONES: "dict[str, Tone]" = {"completed": "good", "failed": "bad", "exhausted": "warn"}


def exit_code(summary: "dict[str, JsonValue]", other: "Mapping[str, int] | None" = None) -> int:
    """The exit code of a run that rests; `other` has those of another system."""
    codes = {**EXIT, **(other or {})}
    status, reason = str(summary["status"]), str(summary["reason"])
    return codes.get(reason, codes[status]) if status in _ENDED_BADLY else codes[status]


def worst(codes: list[int]) -> int:
    """One exit code for several runs."""
    return next((code for code in _WORST_FIRST if code in codes), max(codes, default=0))


def put_result(door: Door, summary: "dict[str, JsonValue]") -> None:
    """The run's output on stdout, as text that cannot drive a terminal."""
    if door.as_json:
        door.put_json(summary)
        return
    output = cleaned(str(summary["output"]))
    if output.strip():
        sys.stdout.write(output if output.endswith("\n") else f"{output}\n")
        sys.stdout.flush()


def say_final_line(door: Door, run: str, line: str, status: str, *, several: bool = False) -> None:
    """Print the final line of a run, and where to read more about one that has ended. With --quiet,
    only the line of a run that did not complete; as JSON, the result has the error.
    """
    is_needed = status in _NOT_COMPLETED and not door.as_json
    speak = door.tell if is_needed else door.say
    speak(f"{run}: {line}" if several else line, tone=_TONES.get(status, "plain"))
    if not several and status not in _OPEN:
        server = f" --server {door.remote.url}" if door.remote is not None else ""
        door.say(f"  loopwright show {run}{server}", tone="dim")
