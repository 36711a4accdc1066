"""Patterns are judged when a definition is loaded."""

import pytest
import re2

from loopwright.syntax.patterns import PatternFault, compiled, pattern_engine, pattern_fault


@pytest.mark.parametrize(
    ("pattern", "code", "column"),
    [
        pytest.param("(", "bad-regex", 1, id="open-group"),
        pytest.param("a(b)(c", "bad-regex", 5, id="second-group-open"),
        pytest.param("a)b(", "bad-regex", 2, id="closes-nothing"),
        pytest.param("ab[", "bad-regex", 3, id="open-class"),
        pytest.param("a[z-b]", "bad-regex", 3, id="class-backwards"),
        pytest.param("x\\", "bad-regex", 1, id="slash-at-the-end"),
        pytest.param("ab**", "bad-regex", 3, id="nothing-to-repeat"),
        pytest.param("a{3,2}", "bad-regex", 2, id="repetition-backwards"),
        pytest.param("a(?=b)", "regex-feature", 2, id="look-ahead"),
        pytest.param("a(?!b)", "regex-feature", 2, id="negative-look-ahead"),
        pytest.param("(?<=a)b", "regex-feature", 1, id="look-behind"),
        pytest.param("(?<!a)b", "regex-feature", 1, id="negative-look-behind"),
        pytest.param("(?>a)b", "regex-feature", 1, id="atomic"),
        pytest.param("(?#note)a", "regex-feature", 1, id="comment"),
        pytest.param("(a)?(?(1)b|c)", "regex-feature", 5, id="conditional"),
        pytest.param(r"(a)\1", "regex-feature", 4, id="back-reference"),
        pytest.param(r"(?P<n>a)(?P=n)", "regex-feature", 9, id="named-back-reference"),
        pytest.param(r"(?<n>a)\k<n>", "regex-feature", 8, id="named-back-reference-k"),
        pytest.param("a++", "regex-feature", 2, id="possessive"),
        pytest.param(r"a\Z", "regex-feature", 2, id="end-anchor"),
        pytest.param(r"a\K", "regex-feature", 2, id="keep-out"),
        pytest.param("a" * 1001, "regex-too-big", 0, id="long"),
        pytest.param("a{99999999999}", "regex-too-big", 2, id="huge-repetition"),
        pytest.param("a{2,1001}", "regex-too-big", 2, id="long-range"),
        pytest.param("a{1000}{1000}", "regex-too-big", 2, id="repeated-repetition"),
        pytest.param("a{2,}{1000,}", "regex-too-big", 2, id="open-repeated-repetition"),
        pytest.param("ab{2}{3}c", "bad-regex", 3, id="small-repeated-repetition"),
        pytest.param("(a{100}){100}", "regex-too-big", 9, id="nested-repetition"),
        pytest.param(r"\pL{50}", "regex-too-big", 0, id="big-program"),
        pytest.param(r"\pL{1000}", "regex-too-big", 1, id="huge-program"),
        pytest.param("", "matches-everything", 0, id="empty"),
        pytest.param(".*", "matches-everything", 0, id="anything"),
        pytest.param(".", "matches-everything", 0, id="any-character"),
        pytest.param(r"\s*|x", "matches-everything", 0, id="perhaps-blank"),
    ],
)
def test_bad_patterns_have_a_code_and_a_column(pattern: str, code: str, column: int) -> None:
    """What is wrong is told by a code, and where by a column of the pattern."""
    found = pattern_fault(pattern)
    assert found is not None
    assert (found.code, found.column) == (code, column)
    assert (f"column {column}" in found.sentence()) == bool(column)


@pytest.mark.parametrize(
    "pattern",
    [
        "DONE|COMPLETE",
        r"^\s*result: (ok|fine)\s*$",
        "(?i)done",
        "(?P<n>a)b",
        "[(?=]",
        r"\(\?=",
        r"[\]1]\\1",
        r"\Qa(b\E",
        "^$",
        r"\bdone\b",
        "[[:alpha:]]x",
        "a{2,}",
        r"\p{Greek}",
    ],
)
def test_good_patterns_pass(pattern: str) -> None:
    """What only looks like a lacking feature is no fault."""
    assert pattern_fault(pattern) is None
    assert pattern_fault(pattern, ignore_case=True) is None


@pytest.mark.parametrize(
    ("pattern", "engine"),
    [
        pytest.param("DONE|COMPLETE", "linear", id="plain"),
        pytest.param("(?i)done", "linear", id="flag-of-re2"),
        pytest.param("a(?=b)", "javascript", id="look-ahead"),
        pytest.param("(?<!not )done", "javascript", id="look-behind"),
        pytest.param(r"(['\"])ok\1", "javascript", id="back-reference"),
        pytest.param(r"(?<q>a)\k<q>", "javascript", id="named-back-reference"),
        pytest.param("a{2,1001}", "javascript", id="long-range"),
        pytest.param("(a{100}){100}", "javascript", id="nested-repetition"),
        pytest.param(r"(?=x)a\z", "regex-feature", id="anchor-that-javascript-lacks"),
        pytest.param(r"(?=x)\pL", "regex-feature", id="class-that-javascript-lacks"),
        pytest.param("(?=x)[[:alpha:]]", "regex-feature", id="posix-class"),
        pytest.param("(?i)(?=x)a", "regex-feature", id="flags-with-look-ahead"),
        pytest.param("(?>a)b", "regex-feature", id="atomic"),
        pytest.param("a++", "regex-feature", id="possessive"),
        pytest.param("(", "bad-regex", id="invalid"),
        pytest.param(".*", "matches-everything", id="any-output"),
        pytest.param("(?=a)" * 300, "regex-too-big", id="too-long"),
    ],
)
@pytest.mark.item("rondoflow-65")
def test_patterns_that_need_backtracking_run_in_the_javascript_engine(
    pattern: str, engine: str
) -> None:
    """RE2 runs what it can, JavaScript's engine the rest; words of a third language are refused."""
    found = pattern_engine(pattern)
    assert (found.code if isinstance(found, PatternFault) else found) == engine


def test_the_engine_stays_silent(capfd: pytest.CaptureFixture[str]) -> None:
    """A pattern that does not compile raises, and nothing is written to the terminal."""
    with pytest.raises(re2.error):
        compiled("(", ignore_case=False)
    assert capfd.readouterr() == ("", "")


def test_case_is_the_callers_choice() -> None:
    """A pattern matches in other case only where that was asked for."""
    assert compiled("done", ignore_case=True).search("DONE")
    assert not compiled("done", ignore_case=False).search("DONE")


@pytest.mark.item("B2")
def test_no_pattern_explodes() -> None:
    """The classic explosive pattern is a good one here: a megabyte is searched in linear time."""
    assert pattern_fault("(a+)+$") is None
    assert compiled("(a+)+$", ignore_case=False).search("a" * 1_000_000 + "b") is None
