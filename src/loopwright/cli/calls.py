"""A tool call as a person reads it before deciding: nothing hidden, nothing too long."""

import json
from typing import TYPE_CHECKING

from loopwright.cli.texts import cut, exact_lines, one_line

if TYPE_CHECKING:
    from loopwright.model.record import JsonValue

LINE_CELLS = 300
MOST_LINES = 30
VALUE_CELLS = 1_000
COMMANDS = ("argv", "command")


def arguments_line(arguments: "JsonValue") -> str:
    """Arguments on one line, cut where they are long."""
    return cut(" ".join(exact_lines(_json(arguments))), LINE_CELLS)


def exposed_lines(gate: "dict[str, JsonValue]") -> list[str]:
    """What a question could hide, and every line of it; nothing for one that hides nothing."""
    marks, shown = gate.get("marks"), gate.get("shown")
    if not isinstance(marks, list) or not isinstance(shown, list):
        return []
    head = f"CAREFUL: {gate['id']} has {', '.join(map(str, marks))}. This is all of it:"
    return [head, *(f"  | {line}" for line in shown)]


def call_lines(call: "dict[str, JsonValue]") -> list[str]:
    """Tool, why it was held, what the model says about it, and its arguments one below the other.

    What is left out is told, so that nobody takes a part for the whole.
    """
    lines = [f"tool       {one_line(str(call['tool']))}"]
    lines += [f"held       {one_line(str(call['held']))}"] if call["held"] else []
    lines += [f"its words  {one_line(str(call['reason']), VALUE_CELLS)}"] if call["reason"] else []
    return [*lines, *arguments_lines(call["arguments"])]


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
    """A line; of one that is too long its beginning, and how much there is."""
    short = cut(line, VALUE_CELLS)
    return short if short == line else f"{short} ({len(line)} characters in all)"


def _json(value: "JsonValue") -> str:
    return json.dumps(value, ensure_ascii=False)


def changed_line(gate: "dict[str, JsonValue]") -> str:
    """`3 files changed (+12 −4): src/a.py …`, of the iteration that a gate asks about."""
    snapshot = gate.get("snapshot")
    if not isinstance(snapshot, dict):
        return ""
    changed, paths = snapshot["changed"], snapshot["paths"]
    assert isinstance(changed, dict)
    assert isinstance(paths, list)
    if not changed["files"]:
        return "no files changed"
    plural = "" if changed["files"] == 1 else "s"
    named = ", ".join(str(one) for one in paths[:3])
    more = " …" if len(paths) > 3 else ""
    lines = f"(+{changed['insertions']} −{changed['deletions']})"
    return f"{changed['files']} file{plural} changed {lines}: {named}{more}"
