"""What the commands that only look have in common."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from loopwright.cli.cells import table
from loopwright.cli.door import Door
from loopwright.cli.texts import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loopwright.app.service import Service


@contextmanager
def looking(door: Door) -> "Iterator[Service]":
    """A service that looks and does not drive, closed afterwards."""
    from loopwright.app.opening import open_reader  # noqa: PLC0415 - help stays quick

    service = open_reader(door.settings)
    try:
        yield service
    finally:
        service.log.close()


def put_rows(
    door: Door, heads: "Sequence[str]", rows: "Sequence[Sequence[object]]", empty: str
) -> None:
    """A table; where there is nothing to put into it, what to know instead."""
    if not rows:
        door.say(empty)
        return
    cells = [[one_line(str(cell)) for cell in row] for row in rows]
    for line in table([list(heads), *cells], terminal_width()):
        door.put(line)


def terminal_width() -> int:
    """How many cells a line of stdout has; many where nobody looks at columns."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 200
