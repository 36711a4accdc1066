"""JavaScript patterns for the linear-time engine."""

import pytest
import re2

from loopwright.dialects.rondoflow.lower import Pattern, translate


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        pytest.param("DONE|COMPLETE", "DONE|COMPLETE", id="as-it-is"),
        pytest.param("(?<n>a)b", "(?<n>a)b", id="named-group"),
        pytest.param("(?i:a)b", "(?i:a)b", id="flags"),
        pytest.param(r"\u0041b", r"\x{0041}b", id="code-unit"),
        pytest.param(r"\x41b", r"\x41b", id="byte"),
        pytest.param(r"\cAb", r"\x01b", id="control"),
        pytest.param(r"\a\z\-b", r"az\-b", id="needless-escapes"),
        pytest.param("a[^]b", r"a[\s\S]b", id="any-character"),
        pytest.param("a[]b", r"a[^\s\S]b", id="no-character"),
        pytest.param(r"[\b[]x", r"[\x08\[]x", id="in-a-class"),
        pytest.param("[a[]]x", r"[a\[]]x", id="bracket-after-a-class"),
        pytest.param("[(?=]x", "[(?=]x", id="look-alike-in-a-class"),
    ],
)
def test_patterns_are_spelled_for_the_engine(pattern: str, text: str) -> None:
    """What both understand stays; what only JavaScript writes so is written anew."""
    found = translate(pattern)
    assert (found.text, found.code, found.never) == (text, None, False)
    re2.compile(found.text)


@pytest.mark.item("rondoflow-65")
@pytest.mark.parametrize(
    "pattern",
    [
        "a(?=b)",
        "(?<!a)b",
        r"(a)\1",
        r"(?<n>a)\k<n>",
        "[a[](?=b)",
        r"[\1]x",
        r"a\Bb",
        "a{1001}",
        "a{1,99999999999}",
        "(a{100}){100}",
        r"[\u0101-\u0850\u1001-\u5000]{900}x",
        r"(?<$x>a)b",
    ],
)
def test_what_the_linear_engine_cannot_do_runs_in_the_other(pattern: str) -> None:
    """Such a pattern is kept as it is written, for the JavaScript engine."""
    assert translate(pattern) == Pattern(pattern, "javascript")


@pytest.mark.parametrize("pattern", ["", "x*", ".*"])
def test_what_matches_any_output_is_kept_with_a_warning(pattern: str) -> None:
    """It ends the loop after one iteration, as its system does, and the author is warned."""
    found = translate(pattern)
    assert (found.text, found.code, found.never) == (pattern, "matches-everything", False)


@pytest.mark.parametrize(
    "pattern",
    ["([", "a)", "*", "(?P<n>a)", "(?i)a", "(?>a)", "a{2,1}", "a**", "a{2}{3}", "(?<n>a)(?<n>b)"],
)
def test_what_is_invalid_never_matches(pattern: str) -> None:
    """A pattern that JavaScript does not take either is kept as it is written."""
    found = translate(pattern)
    assert (found.text, found.code, found.never) == (pattern, "bad-regex", True)
    assert found.says


def test_a_pattern_that_no_engine_runs_is_refused() -> None:
    """The limit of nesting is the only one left."""
    found = translate("(" * 300 + "a" + ")" * 300)
    assert (found.code, found.refused) == ("regex-too-big", True)


@pytest.mark.parametrize("blank", [" ", "\t", "\x0b", "\xa0", "\u202f", "\ufeff"])
def test_white_space_is_that_of_javascript(blank: str) -> None:
    """Models write narrow and non-breaking blanks, which JavaScript takes for white space."""
    assert re2.search(translate(r"12\s+passed").text, f"12{blank}passed")
    assert re2.search(translate(r"12[\s-]passed").text, f"12{blank}passed")
    assert not re2.search(translate(r"12\Spassed").text, f"12{blank}passed")
