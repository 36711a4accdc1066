"""Commands that read, held to reading."""

import pytest

from loopwright.tools.outcome import Refusal
from loopwright.tools.reading import check_reading

FINE = [
    ["grep", "-rn", "x", "."],
    ["grep", "--include=*.py", "-r", "x", "."],
    ["cat", "a", "b"],
    ["uniq", "-c", "a"],
    ["uniq", "--", "a"],
    ["diff", "-u", "a", "b"],
    ["diff", "-r", "--no-dereference", "a", "b"],
    ["/usr/bin/ls", "-la"],
]
REFUSED = [
    ["find", ".", "-delete"],
    ["grep", "-R", "x", "."],
    ["grep", "-nR", "x", "."],
    ["grep", "--dereference-r", "x", "."],
    ["diff", "-l", "a", "b"],
    ["diff", "--pag", "a", "b"],
    ["diff", "-r", "a", "b"],
    ["diff", "--recursive", "a", "b"],
    ["uniq", "a", "b"],
    ["uniq", "--", "a", "b"],
    ["uniq", "a", "--", "b"],
    ["uniq", "-", "b"],
    ["ls", "-L", "link"],
]


@pytest.mark.parametrize("argv", FINE, ids=" ".join)
def test_what_reads_is_let_through(argv: list[str]) -> None:
    """The eight commands with options that read."""
    check_reading(argv)


@pytest.mark.parametrize("argv", REFUSED, ids=" ".join)
def test_what_does_more_is_refused(argv: list[str]) -> None:
    """Other programs, and options that write, follow links or start something."""
    with pytest.raises(Refusal):
        check_reading(argv)
