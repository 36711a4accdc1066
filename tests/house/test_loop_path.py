"""The number of files that run for one more iteration of a loop, and for the whole command."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.house.source_tree import SRC

MOST_FOR_AN_ITERATION = 42
"""34 to 40 as measured; which files look at a timer or a lock depends on the moment."""
MOST_FOR_THE_COMMAND = 115
ROOT = SRC.parents[1]


def test_files_of_an_iteration_do_not_become_more() -> None:
    """A module that is added to the path of an iteration replaces another one there."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "loop_path.py")],
        capture_output=True,
        text=True,
        check=True,
    )
    iteration, command = (int(number) for number in re.findall(r": (\d+)$", done.stdout, re.M))
    assert 0 < iteration <= MOST_FOR_AN_ITERATION
    assert iteration < command <= MOST_FOR_THE_COMMAND
