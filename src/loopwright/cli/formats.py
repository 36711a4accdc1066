"""Formats for lines and tables: amounts, times, statuses and tool calls.

A tool call is formatted for a person who decides about it: nothing is hidden, and cuts are marked.
`open_service` opens the local log for commands that only read.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from loopwright.cli.terminal import Terminal, Tone, cut, exact_lines, one_line, padded, width
from loopwright.model.record import JsonValue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loopwright.operations.api_types import SpendAmount
    from loopwright.operations.runs import Service
    from loopwright.views.formats import UsageAmounts
    from loopwright.views.run_responses import GateCall, GateItem, InboxGate

STATUS_SIGNS = {
    "running": ("▶", ">"),
    "waiting": ("?", "?"),
    "paused": ("‖", "="),
    "completed": ("✓", "+"),
    "exhausted": ("◼", "#"),
    "failed": ("✗", "x"),
    "cancelled": ("–", "-"),
}
STATUS_TONES: dict[str, Tone] = {
    "running": "bold",
    "waiting": "warn",
    "paused": "dim",
    "completed": "good",
    "exhausted": "warn",
    "failed": "bad",
    "cancelled": "dim",
}


def status_cell(status: str, *, signs: bool) -> str:
    """A status as sign and word."""
    sign = STATUS_SIGNS.get(status, ("·", "."))[0 if signs else 1]
    return f"{sign} {status}"


def duration(ms: int) -> str:
    """A length of time, short."""
    seconds = max(0, ms) // 1_000
    if seconds < 60:
        return f"{seconds}s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{minutes:02d}m"
    return f"{hours // 24}d{hours % 24:02d}h"


def fine_duration(ms: int) -> str:
    """The same with fractions of a second: short durations are not shown as zero."""
    if ms < 1_000:
        return f"{max(ms, 0)} ms"
    return f"{ms // 100 / 10:.1f}s" if ms < 10_000 else duration(ms)


def tokens(count: int) -> str:
    """A number of tokens, short."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.1f}".removesuffix(".0") + unit
    return str(count)


def used_tokens(usage: "UsageAmounts | SpendAmount") -> str:
    """The number of tokens of calls, short; empty if calls of unknown cost reported none."""
    used = usage.input_tokens + usage.output_tokens
    return "" if not used and usage.unpriced_calls else tokens(used)


def table(rows: list[list[str]], most: int) -> list[str]:
    """Rows in columns; the last column is free text and takes what is left of `most` cells."""
    count = len(rows[0])
    widths = [max(width(row[n]) for row in rows) for n in range(count - 1)]
    room = max(10, most - sum(widths) - 2 * (count - 1))
    lines = []
    for row in rows:
        cells = [padded(cell, size) for cell, size in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, padded(row[-1], room).rstrip()]).rstrip())
    return lines


@contextmanager
def open_service(terminal: Terminal) -> "Iterator[Service]":
    """A service that looks and does not drive, closed afterwards."""
    from loopwright.operations.data_directory import open_reader  # noqa: PLC0415 - help stays quick

    service = open_reader(terminal.settings)
    try:
        yield service
    finally:
        service.log.close()


def put_rows(
    terminal: Terminal, heads: "Sequence[str]", rows: "Sequence[Sequence[object]]", empty: str
) -> None:
    """A table; if it is empty, a message instead."""
    if not rows:
        terminal.say(empty)
        return
    cells = [[one_line(str(cell)) for cell in row] for row in rows]
    for line in table([list(heads), *cells], terminal_width()):
        terminal.put(line)


def terminal_width() -> int:
    """The width of stdout in cells; a large number if it is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 200


LINE_CELLS = 300
MOST_LINES = 30
VALUE_CELLS = 1_000
COMMANDS = ("argv", "command")


def arguments_line(arguments: "JsonValue") -> str:
    """Arguments on one line, cut if they are long."""
    return cut(" ".join(exact_lines(_json(arguments))), LINE_CELLS)


def exposed_lines(gate: str, marks: "list[str] | None", shown: "list[str] | None") -> list[str]:
    """What a question could hide, and every line of it; nothing for one that hides nothing."""
    if not marks or not shown:
        return []
    head = f"CAREFUL: {gate} has {', '.join(marks)}. This is all of it:"
    return [head, *(f"  | {line}" for line in shown)]


def call_lines(call: "GateCall") -> list[str]:
    """Tool, why it was held, the model's text about it, and its arguments one below the other.

    Omissions are marked, so that a part is not taken for the whole.
    """
    lines = [f"tool       {one_line(call.tool)}"]
    lines += [f"held       {one_line(call.held)}"] if call.held else []
    lines += [f"its words  {one_line(call.reason, VALUE_CELLS)}"] if call.reason else []
    return [*lines, *arguments_lines(call.arguments)]


def arguments_lines(arguments: "JsonValue") -> list[str]:
    """Arguments one below the other."""
    if not isinstance(arguments, dict) or not arguments:
        return [f"arguments  {arguments_line(arguments)}"]
    lines = ["arguments"]
    commands = {name: value for name, value in arguments.items() if name in COMMANDS}
    lines += [f"  {line}" for name, value in commands.items() for line in _command(name, value)]
    others = [(name, value) for name, value in arguments.items() if name not in COMMANDS]
    shown = [line for name, value in others for line in _argument(name, value)]
    lines += [f"  {line}" for line in shown[:MOST_LINES]]
    if len(shown) > MOST_LINES:
        lines.append(f"  … {len(shown) - MOST_LINES} more lines; --json shows all of them")
    return lines


def _command(name: str, value: "JsonValue") -> list[str]:
    """What would be started, whole: no word of it may be out of sight."""
    first, *more = exact_lines(value if isinstance(value, str) else _json(value))
    return [f"{name}: {first}", *(f"  {line}" for line in more)]


def _argument(name: str, value: "JsonValue") -> list[str]:
    """A text keeps its lines; everything else is JSON."""
    label = one_line(name)
    first, *more = exact_lines(value if isinstance(value, str) else _json(value))
    if not more:
        return [f"{label}: {_kept(first)}"]
    return [f"{label}:", *(f"  {_kept(line)}" for line in (first, *more))]


def _kept(line: str) -> str:
    """A line; if it is too long its beginning, and its full length."""
    short = cut(line, VALUE_CELLS)
    return short if short == line else f"{short} ({len(line)} characters in all)"


def _json(value: "JsonValue") -> str:
    return json.dumps(value, ensure_ascii=False)


def changed_line(gate: "GateItem | InboxGate") -> str:
    """`3 files changed (+12 −4): src/a.py …`, of the iteration that a gate asks about."""
    if gate.snapshot is None:
        return ""
    changed, paths = gate.snapshot.changed, gate.snapshot.paths
    if not changed.files:
        return "no files changed"
    plural = "" if changed.files == 1 else "s"
    more = " …" if len(paths) > 3 else ""
    lines = f"(+{changed.insertions} −{changed.deletions})"
    return f"{changed.files} file{plural} changed {lines}: {', '.join(paths[:3])}{more}"
