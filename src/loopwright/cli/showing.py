"""Which view a run gets: live on a terminal, plain lines elsewhere, nothing when quiet."""

import os
import sys

from loopwright.cli.door import Door
from loopwright.cli.watching import Careful, JsonLines, Plain, PlainText, Silent, View


def choose_view(
    door: Door, run: str, *, jsonl: bool, several: bool = False, text: bool = False
) -> View:
    """The view for a run. With `text` plain lines have what agents write, too."""
    view = _view(door, run, jsonl=jsonl, several=several)
    return Careful(PlainText(door) if text and type(view) is Plain else view)


def _view(door: Door, run: str, *, jsonl: bool, several: bool) -> View:
    if jsonl:
        return JsonLines(door, run)
    if door.quiet:
        return Silent()
    if several:
        return Plain(door, run)
    if _may_move(door):
        from loopwright.cli.live import Live  # noqa: PLC0415 - rich is needed here alone

        return Live(door)
    return Plain(door)


def _may_move(door: Door) -> bool:
    """Whether stderr is a terminal on which lines may be drawn again."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return not (door.as_json and sys.stdout.isatty())
