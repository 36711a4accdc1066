"""Learnings: the one line that a pass leaves behind for the passes after it."""

import re

from loopwright.kernel.state import head
from loopwright.model.record import Text

_LINES = re.compile(r"[\r\n]+")


def learning_of(output: Text | None, iteration: int, chars: int) -> str:
    """The head of an output on one line; cut first and cleaned after, so it is never longer."""
    line = _LINES.sub(" ", head(output, chars)).strip()
    return line or f"(iteration {iteration} produced no output)"
