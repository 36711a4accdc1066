"""What the commands that only look have in common."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from loopwright.cli.door import Door

if TYPE_CHECKING:
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


def terminal_width() -> int:
    """How many cells a line of stdout has; many where nobody looks at columns."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 200
