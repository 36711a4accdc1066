"""Learnings: the one line that a pass leaves behind for the passes after it."""

import re

from loopwright.kernel.state import head
from loopwright.model.record import Text

OUTCOME_CHARS = 200
_LINES = re.compile(r"[\r\n]+")


def learning_of(output: Text | None, iteration: int, chars: int) -> str:
    """The head of an output on one line; cut first and cleaned after, so it is never longer."""
    line = _LINES.sub(" ", head(output, chars)).strip()
    return line or f"(iteration {iteration} produced no output)"


def outcome_line(output: Text | None, verdict: str) -> str:
    """How an iteration ended, on one line: what was decided, and how its last words begin."""
    lines = [line.strip() for line in head(output, 4 * OUTCOME_CHARS).splitlines()]
    first = next((line for line in lines if line), "(no output)")[:OUTCOME_CHARS]
    return f"{verdict}: {first}" if verdict else first
