"""Expressions in tokens: texts and comments are no names, ids with hyphens are one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.syntax.cel_source import at, is_free, literal, tokens


def kinds(text: str) -> list[str]:
    return [f"{token.kind}:{token.text}" for token in tokens(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b", ["name:a", "sign:.", "name:b"]),
        ("1.5 + .5e-3 - 0xFFu", ["number:1.5", "sign:+", "number:.5e-3", "sign:-", "number:0xFFu"]),
        ("2u 1e9", ["number:2u", "number:1e9"]),
        ("a in b", ["name:a", "sign:in", "name:b"]),
        ("index", ["name:index"]),
        ("'a\\'b' \"c'd\"", ["text:'a\\'b'", 'text:"c\'d"']),
        ("r'\\' + 1", ["text:r'\\'", "sign:+", "number:1"]),
        ("bR\"x\" B'y' rb'z'", ['text:bR"x"', "text:B'y'", "text:rb'z'"]),
        ("'''a'\nb''' r\"\"\"c\"d\"\"\"", ["text:'''a'\nb'''", 'text:r"""c"d"""']),
        ("a // 'b\nc", ["name:a", "name:c"]),
        ("'open", ["other:'", "name:open"]),
        ("`a-b`.c", ["name:`a-b`", "sign:.", "name:c"]),
        (
            "a<=b&&!c||d",
            ["name:a", "sign:<=", "name:b", "sign:&&", "sign:!", "name:c", "sign:||", "name:d"],
        ),
        ("é", ["other:é"]),
        ("", []),
    ],
)
def test_tokens(text: str, expected: list[str]) -> None:
    """Every token has its kind; blanks and comments leave none."""
    assert kinds(text) == expected


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("steps.a-b.content", "a-b"),
        ("steps.?a-b.?content", "a-b"),
        ("steps . // why\n a-b", "a-b"),
        (".steps.a-b", "a-b"),
        ("x ? .steps.a-b : y", "a-b"),
        ("x in .steps.a-b", "a-b"),
        ("steps.1st", "1st"),
        ("steps.5", "5"),
        ("steps.in.content", "in"),
        ("steps.a--b-", "a--b-"),
        ("steps.a-size(b)", "a-size"),
        ("steps.a - b", "a"),
        ("steps.a.result.n-1", "a"),
        ("steps.size() - 1", None),
        ("steps.all (s, true)", None),
        ("item.steps.a-b", None),
        ("item.?steps.a-b", None),
        ("f(x).steps.a-b", None),
        ("steps.`a-b`", None),
        ("steps['a-b']", None),
        ("steps.", None),
        ("'steps.a-b'", None),
        ("other.a-b", None),
    ],
)
def test_step_ids(text: str, step: str | None) -> None:
    """What stands behind `steps.` is read as one id, unless it is called or steps is a field."""
    assert [token.text for token in tokens(text) if token.kind == "step"] == (
        [step] if step else []
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("'a-b'", "a-b"),
        ('"a"', "a"),
        ("'''a\nb'''", "a\nb"),
        ('""', ""),
        ("r'a\\b'", "a\\b"),
        ("'a\\x62'", None),
        ("b'a'", None),
        ("rb'a'", None),
    ],
)
def test_literals(text: str, expected: str | None) -> None:
    """A text without escapes says what it stands for; others may stand for anything."""
    [token] = tokens(text)
    assert literal(token) == expected


@pytest.mark.parametrize(
    ("text", "free"),
    [("a", True), ("b.a", False), ("b.?a", False), (".a", True), ("b ? .a", True), ("b ? a", True)],
)
def test_free_names(text: str, free: bool) -> None:
    """A name is free unless it is a field of what stands before it."""
    found = tokens(text)
    assert is_free(found, len(found) - 1) is free


@given(st.text(alphabet="steps.?a-b()[]'\"`\\/\n r1x{},", max_size=40))
def test_tokens_cover_the_text(text: str) -> None:
    """Tokens stand in order where they say; between them are only blanks and comments."""
    position = 0
    for token in tokens(text):
        skipped = text[position : token.start]
        assert not skipped.strip() or "//" in skipped
        assert text[token.start : token.end] == token.text != ""
        position = token.end
    assert at(tokens(text), 1_000).kind == at(tokens(text), -1).kind == "end"
