"""A stand-in for a coding agent: one prepared edit in each iteration, so the demo needs no key.

It obeys the same rules as any `command:` agent: the prompt comes on stdin, the answer goes to
stdout, the working directory is the workspace, and LOOPWRIGHT_ITERATION says which iteration it is.
The edits are real and the tests that judge them are real; only the thinking is prepared.
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import NamedTuple

PAUSE = 0.25


class Edit(NamedTuple):
    """One change of one file, with the words the agent has for it."""

    file: str
    before: str
    after: str
    why: str


EDITS = (
    Edit(
        "shop/money.py",
        "    return [cents // people] * people\n",
        "    share, left = divmod(cents, people)\n"
        "    return [share + 1] * left + [share] * (people - left)\n",
        "split() dropped the remainder of a bill.",
    ),
    Edit(
        "shop/basket.py",
        "self.subtotal > DISCOUNT_FROM",
        "self.subtotal >= DISCOUNT_FROM",
        "the discount began above 50.00, not at 50.00.",
    ),
    Edit(
        "shop/receipt.py",
        '    return f"{left:<{WIDTH - len(right)}}{right}"\n',
        '    room = WIDTH - len(right) - 1\n    return f"{left[:room]:<{room}} {right}"\n',
        "a long name pushed its amount off the paper.",
    ),
)


def main() -> int:
    prompt = sys.stdin.read()
    number = int(os.environ.get("LOOPWRIGHT_ITERATION", "1"))
    failing = re.findall(r"^\s*(?:FAIL|ERROR): (\w+)", prompt, flags=re.MULTILINE)
    if number > len(EDITS):
        say("I have nothing left to change.")
        return 0
    edit = EDITS[number - 1]
    say(f"Fixed {edit.file}: {edit.why}" if apply(edit) else f"{edit.file} is right already.")
    if failing:
        say(f"The check before this iteration named {', '.join(dict.fromkeys(failing))}.")
    say("Running the tests is not my job here: the loop does that.")
    if number == len(EDITS):
        say("Nothing else is left to fix.")
        say("DONE")
    return 0


def apply(edit: Edit) -> bool:
    """Make the edit; a second time changes nothing, so a repeated call does no harm."""
    file = Path(edit.file)
    text = file.read_text(encoding="utf-8")
    if edit.before not in text:
        return False
    file.write_text(text.replace(edit.before, edit.after), encoding="utf-8")
    return True


def say(line: str) -> None:
    """Speak as agents do: a line at a time, with a little time between."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    time.sleep(PAUSE)


if __name__ == "__main__":
    sys.exit(main())
