"""JavaScript patterns for the linear-time engine."""

import pytest
import re2

from loopwright.dialects.rondoflow.patterns import translate


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


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        ("", "matches-everything"),
        ("x*", "matches-everything"),
        ("a(?=b)", "regex-feature"),
        ("(?<!a)b", "regex-feature"),
        (r"(a)\1", "regex-feature"),
        (r"(?<n>a)\k<n>", "regex-feature"),
        ("[a[](?=b)", "regex-feature"),
        ("a{1001}", "regex-too-big"),
        ("a{1,99999999999}", "regex-too-big"),
        ("(a{100}){100}", "regex-too-big"),
    ],
)
def test_what_the_engine_cannot_do_is_refused(pattern: str, code: str) -> None:
    """A pattern that would work elsewhere is refused here rather than never matching."""
    found = translate(pattern)
    assert (found.code, found.never) == (code, False)
    assert found.says


@pytest.mark.parametrize(
    "pattern", ["([", "a)", "*", "(?P<n>a)", "(?i)a", "(?>a)", "a{2,1}", "a**"]
)
def test_what_is_invalid_never_matches(pattern: str) -> None:
    """A pattern that JavaScript does not take either is kept as it is written."""
    found = translate(pattern)
    assert (found.text, found.code, found.never) == (pattern, None, True)
    assert found.says


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        pytest.param("a{1000}{1000}", "regex-too-big", id="too-many"),
        pytest.param("xa{2,3}{1001}", "regex-too-big", id="a-range"),
        pytest.param("a{2}{3}", None, id="few"),
    ],
)
def test_a_repeated_repetition_is_no_pattern(pattern: str, code: str | None) -> None:
    """JavaScript repeats no repetition: it is kept and never matches; a huge one is named so."""
    found = translate(pattern)
    assert (found.text, found.code, found.never) == (pattern, code, True)
    assert found.says == "a repetition cannot be repeated"


def test_a_class_that_is_too_big_is_refused() -> None:
    """A pattern whose program would be huge is refused, as in every other language."""
    found = translate(r"[\u0101-\u0850\u1001-\u5000]{900}x")
    assert (found.code, found.never) == ("regex-too-big", False)
