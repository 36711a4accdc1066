"""Size limits that ruff has no rule for, and reasons for what its rules are told to overlook."""

import re

from tests.house.source_tree import shown, source_files

MAX_LINES = 600

MOST_MODULES = 396
MOST_LINES = 125_701
"""The size of the package. These numbers are lowered with each reduction, and never raised: a use
case that is added is paid for with code that it replaces.
"""


def line_counts() -> dict[str, int]:
    return {shown(p): len(p.read_text(encoding="utf-8").splitlines()) for p in source_files()}


def test_source_files_stay_small() -> None:
    """No source file is longer than 600 lines."""
    counts = line_counts()
    assert counts, "no source file was found: this gate looks in the wrong place"
    too_long = {f: n for f, n in counts.items() if n > MAX_LINES}
    assert too_long == {}, "split these files"


def test_package_does_not_grow() -> None:
    """The package has no more modules and lines than it had before."""
    counts = line_counts()
    assert len(counts) <= MOST_MODULES, "merge modules that have one importer"
    assert sum(counts.values()) <= MOST_LINES, "delete what the change replaces"


_EXEMPTION = re.compile(r"#\s*(noqa\b|type:\s*ignore)(?P<rest>.*)")
_WITH_REASON = re.compile(r"(: [A-Z]+[0-9]+(, [A-Z]+[0-9]+)*|\[[a-z-]+\]) +(-|#) +\w.*")


def test_every_exemption_says_why() -> None:
    """Whoever silences a rule names it and writes the reason beside it."""
    found = [
        (f"{shown(path)}:{number}", exemption["rest"])
        for path in source_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (exemption := _EXEMPTION.search(line))
    ]
    assert found, "no exemption was found: this gate looks for something else"
    assert [place for place, rest in found if not _WITH_REASON.fullmatch(rest)] == []
