"""Commands that read, held to reading."""

import pytest

from loopwright.tools.results import ToolRefusal
from loopwright.tools.shell import check_reading

FINE = [
    ["grep", "-rn", "x", "."],
    ["grep", "--include=*.py", "-r", "x", "."],
    ["cat", "a", "b"],
    ["uniq", "-c", "a"],
    ["uniq", "--", "a"],
    ["diff", "-u", "a", "b"],
    ["diff", "-r", "--no-dereference", "a", "b"],
    ["/usr/bin/ls", "-la"],
    ["find", ".", "-name", "*.py", "-newer", "a", "-print0"],
    ["find", "src", "-type", "f", "-size", "+10k", "-printf", "%p\n"],
    ["sort", "-rn", "-k", "2", "a"],
    ["head", "-n", "5", "a"],
    ["tail", "-n", "5", "a"],
    ["wc", "-l", "a"],
    ["cut", "-d", ",", "-f", "1", "a"],
    ["nl", "a"],
    ["stat", "a"],
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
    ["find", ".", "-exec", "rm", "{}", ";"],
    ["find", ".", "-execdir", "rm", "{}", "+"],
    ["find", ".", "-ok", "rm", "{}", ";"],
    ["find", ".", "-okdir", "rm", "{}", ";"],
    ["find", ".", "-name", "x", "-delete"],
    ["find", ".", "-fprint", "out"],
    ["find", ".", "-fprint0", "out"],
    ["find", ".", "-fprintf", "out", "%p"],
    ["find", ".", "-fls", "out"],
    ["find", "-L", "."],
    ["find", ".", "-follow"],
    ["find", "-files0-from", "list"],
    ["sort", "-o", "out", "a"],
    ["sort", "-ro", "out", "a"],
    ["sort", "-oout", "a"],
    ["sort", "--output=out", "a"],
    ["sort", "--outp", "out", "a"],
    ["sort", "--compress-program=sh", "a"],
    ["sort", "-T", "folder", "a"],
    ["sort", "--files0-from=list"],
    ["wc", "--files0-from=list"],
    ["stat", "-L", "link"],
    ["sed", "-n", "1p", "a"],
    ["awk", "{print}", "a"],
    ["tee", "a"],
]


@pytest.mark.item("coqui-78")
@pytest.mark.parametrize("argv", FINE, ids=" ".join)
def test_what_reads_is_let_through(argv: list[str]) -> None:
    """The commands of a restricted shell, with options that read."""
    check_reading(argv)


@pytest.mark.item("coqui-78")
@pytest.mark.parametrize("argv", REFUSED, ids=" ".join)
def test_what_does_more_is_refused(argv: list[str]) -> None:
    """Other programs, and options that write, follow links or start something."""
    with pytest.raises(ToolRefusal):
        check_reading(argv)
