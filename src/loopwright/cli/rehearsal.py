"""A rehearsal as a page of text: the steps, how a run can end, and what it can cost."""

import sys
from typing import TYPE_CHECKING

from loopwright.cli.cells import STATUS_TONES, duration, money, status_cell, table, tokens
from loopwright.cli.door import Door
from loopwright.cli.drawing import draw, node_of
from loopwright.cli.looking import terminal_width
from loopwright.cli.texts import cut, one_line

if TYPE_CHECKING:
    from loopwright.model.record import JsonValue

DRAWN_CELLS = 100


def put_rehearsal(door: Door, told: "dict[str, JsonValue]") -> None:
    """Print what a dry run found."""
    if door.as_json:
        door.put_json(told)
        return
    cells, signs = min(terminal_width(), DRAWN_CELLS), door.has_signs(sys.stdout)
    title = f"{one_line(str(told['name']))} ({told['dialect']}): a dry run, nothing is called"
    door.put(door.painted(cut(title, cells), "bold", sys.stdout))
    door.put("")
    for line in draw([node_of(one) for one in _list(told["graph"])], cells=cells, signs=signs):
        door.put(door.painted(line.text, line.tone, sys.stdout))
    door.put("")
    door.put("How it can end")
    endings = [_dict(one) for one in _list(told["endings"])]
    rows = [_row(one, signs=signs) for one in endings]
    for one, text in zip(endings, table(rows, cells), strict=True):
        tone = STATUS_TONES.get(str(one["outcome"]), "plain")
        door.put(door.painted(text, tone, sys.stdout))
    door.put("")
    limits = [str(one) for one in _list(told.get("limits") or [])]
    for text in _worst(_dict(told["worst"]), limits):
        door.put(cut(text, cells))
    door.put(cut(f"snapshots  {_snapshots(told.get('snapshots'))}", cells))
    if told.get("worktree"):
        door.put("worktree   a Git worktree of the workspace, on the branch loopwright/RUN")
    if told.get("sandbox"):
        door.put(f"sandbox    {told['sandbox']}, or stricter where a role or an agent asks for it")
    for limit in limits:
        door.put(f"limit      {one_line(limit)}")
    for assumed in _list(told["assumed"]):
        door.put(cut(f"assumed    {one_line(str(assumed))}", cells))


def _snapshots(told: "JsonValue") -> str:
    """Whether the files of the workspace are recorded."""
    if not isinstance(told, dict) or not told["taken"]:
        return "none are taken of the workspace"
    protect = ", ".join(str(one) for one in _list(told["protect"]))
    words = "of the workspace, before the first iteration and after each one"
    return f"{words}; protected: {protect}" if protect else words


def _row(one: "dict[str, JsonValue]", *, signs: bool) -> list[str]:
    outcome = status_cell(str(one["outcome"]), signs=signs)
    passes, calls = int(str(one["iterations"])), _total(one["calls"])
    made = f"{_count(passes, 'iteration')}, {_count(calls, 'call')}"
    return [f"  if {one_line(str(one['story']), 36)}", outcome, str(one["reason"]), made]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _worst(worst: "dict[str, JsonValue]", limits: list[str]) -> list[str]:
    calls = _dict(worst["calls"])
    more = "" if worst["complete"] else "more than "
    each = ", ".join(f"{one_line(name)} {count}" for name, count in sorted(calls.items()))
    counted = f"{more}{_count(_total(calls), 'call')} of agents, every retry counted"
    total = f"{more}{_count(int(str(worst['iterations'])), 'iteration')}, {counted}"
    spending = _spending(worst, limits)
    return [f"at worst   {total}{f' ({each})' if each else ''}", f"spending   {spending}"]


def _spending(worst: "dict[str, JsonValue]", limits: list[str]) -> str:
    """What the limits allow; one that is not enforced promises nothing."""
    loose = [one for one in limits if "not enforced" in one]
    no_usd = any("usd=" in one or "usd_" in one for one in loose)
    no_tokens = any(one.startswith("tokens=") for one in loose)
    usd, count, wall = worst["usd"], worst["tokens"], worst["wall_ms"]
    parts = [
        f"{money(float(str(usd)))}{_bound(loose=no_usd)}" if usd is not None else "",
        f"{tokens(int(str(count)))} tokens{_bound(loose=no_tokens)}" if count is not None else "",
        f"{duration(int(str(wall)))} at most" if wall is not None else "",
    ]
    said = ", ".join(part for part in parts if part)
    return said or "not limited; --budget usd=5,tokens=2M,time=2h limits it"


def _bound(*, loose: bool) -> str:
    return " (not enforced)" if loose else " at most"


def _total(calls: "JsonValue") -> int:
    return sum(int(str(count)) for count in _dict(calls).values())


def _dict(value: "JsonValue") -> "dict[str, JsonValue]":
    assert isinstance(value, dict)
    return value


def _list(value: "JsonValue") -> "list[JsonValue]":
    assert isinstance(value, list)
    return value
