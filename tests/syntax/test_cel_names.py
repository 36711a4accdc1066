"""What an expression names, and ids made readable for CEL."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.syntax.cel_source import (
    StepReference,
    apply,
    edits,
    free_names,
    growth,
    loop_variables,
    loops,
    original_offset,
    references,
    rewrite_ids,
    tokens,
)

IDS = ["a", "a-b", "a-b-c", "list-services", "1st", "in"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("steps.list-services.result.x", "steps['list-services'].result.x"),
        ("has(steps.list-services.result)", "has(steps['list-services'].result)"),
        ("has(steps.list-services)", "has(steps.`list-services`)"),
        ("steps.?a-b.?content", "steps[?'a-b'].?content"),
        ("steps.a-b == steps.a-b-c", "steps['a-b'] == steps['a-b-c']"),
        ("steps.a-b.result.n-1", "steps['a-b'].result.n-1"),
        ("steps.1st.content", "steps['1st'].content"),
        ("steps.in.content", "steps['in'].content"),
        ("steps . a-b", "steps ['a-b']"),
        # These stay as they are.
        ("steps.a.result.n-1", "steps.a.result.n-1"),
        ("steps.a - 1", "steps.a - 1"),
        ("steps['a-b'].content", "steps['a-b'].content"),
        ("steps.unknown-id.content", "steps.unknown-id.content"),
        ("steps.a-b-x", "steps.a-b-x"),
        ("item.steps.a-b", "item.steps.a-b"),
        ("'steps.a-b' + \"steps.a-b\"", "'steps.a-b' + \"steps.a-b\""),
        ("r'\\' + 'steps.a-b'", "r'\\' + 'steps.a-b'"),
        ("'''\nsteps.a-b'''", "'''\nsteps.a-b'''"),
        ("true // steps.a-b", "true // steps.a-b"),
    ],
)
def test_rewriting(text: str, expected: str) -> None:
    """Known ids that CEL cannot read after a dot become indexes; everything else is left alone."""
    assert rewrite_ids(text, IDS) == expected


def test_the_longest_id_is_meant() -> None:
    """Where one id is the beginning of another, the longer one is read; a subtraction of steps
    does not exist."""
    assert rewrite_ids("steps.a-b-c.content", ["a", "a-b", "a-b-c"]) == "steps['a-b-c'].content"
    assert rewrite_ids("steps.a-b.content", ["a", "b", "a-b"]) == "steps['a-b'].content"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("steps.a.content", [StepReference("a", 6, "content", 8)]),
        ("steps.?a.?content", [StepReference("a", 7, "content", 10)]),
        ("steps['a-b']['status']", [StepReference("a-b", 6, "status", 13)]),
        ("steps[?'a'].status", [StepReference("a", 7, "status", 12)]),
        ("steps.`a-b`.status", [StepReference("a-b", 6, "status", 12)]),
        ("steps.a", [StepReference("a", 6, whole=True)]),
        ("steps.a.size()", [StepReference("a", 6, whole=True)]),
        ("steps.a[x]", [StepReference("a", 6, whole=True)]),
        ("'a' in steps", [StepReference("a", 0)]),
        ("true && ('a' in steps)", [StepReference("a", 9)]),
        (
            "steps.a.x == steps.b.y",
            [StepReference("a", 6, "x", 8), StepReference("b", 19, "y", 21)],
        ),
        ("steps", [None]),
        ("steps[item]", [None]),
        ("steps['a' + 'b']", [None]),
        ("steps['\\x61']", [None]),
        ("steps.all(s, true)", [None]),
        ("'x' + 'a' in steps", [None]),
        ("'\\x61' in steps", [None]),
        ("item in steps", [None]),
        ("'a' == steps", [None]),
        ("item.steps.a", []),
        ("'steps.a'", []),
    ],
)
def test_references(text: str, expected: list[StepReference | None]) -> None:
    """Each use of steps says which step and field it looks at, or that it may be any."""
    assert list(references(tokens(text))) == expected


def test_free_names_are_no_fields() -> None:
    """Names behind a dot, in texts and in comments do not count."""
    assert free_names(tokens("a.b + c(d) + 'e' // f")) == {"a", "c", "d"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1].map(a, a)", 1),
        ("[1].map(a, 1)", 1),
        ("[1].map(a, a + a)", 2),
        ("[1].map(a, a + a).map(b, [b, b, b])", 6),
        ("[1].map(a, a.a + item.a)", 1),
        ("optional.of(1).optMap(a, a + a).value()", 2),
        ("[1].all(a, a + a > a)", 1),
        ("map(a, a + a)", 1),
        ("[1].map(a, a + a", 2),
        ("[1].map(", 1),
    ],
)
def test_growth(text: str, expected: int) -> None:
    """Loops that build values multiply; loops that decide do not."""
    assert growth(tokens(text)) == expected


@pytest.mark.parametrize(
    ("text", "looping", "names"),
    [
        ("x.all(a, true) && y.exists_one(b, b)", True, ["a", "b"]),
        ("x.filter(a, true)", True, ["a"]),
        ("x.optMap(a, a)", False, ["a"]),
        ("x.map(1, a)", True, []),
        ("x.size()", False, []),
        ("all(a, b)", False, []),
    ],
)
def test_loops(text: str, looping: bool, names: list[str]) -> None:
    """Loops are calls of the macros on a value, and each names its item."""
    found = tokens(text)
    assert loops(found) is looping
    assert [token.text for token in loop_variables(found)] == names


@pytest.mark.parametrize(
    ("text", "rewritten", "before"),
    [
        pytest.param("1 + x", "1 + x", "1 + x", id="nothing rewritten"),
        pytest.param("1 + steps.a-b + 1", "1 + ", "1 + ", id="before an id"),
        pytest.param("steps.a-b == x", "steps['a", "steps", id="inside of an id"),
        pytest.param("steps.a-b == x", "steps['a-b'] == ", "steps.a-b == ", id="behind an id"),
        pytest.param(
            "steps.a-b + steps.c-d + x",
            "steps['a-b'] + steps['c-d'] + ",
            "steps.a-b + steps.c-d + ",
            id="behind two",
        ),
    ],
)
def test_where_a_character_stood(text: str, rewritten: str, before: str) -> None:
    """So much of the rewritten text was so much of the original; an id is its beginning."""
    changes = edits(tokens(text))
    assert apply(text, changes).startswith(rewritten)
    assert original_offset(changes, len(rewritten)) == len(before)


@given(st.lists(st.sampled_from(["steps.a-b", "steps.list-services", " + ", "'x'", "é"])))
def test_offsets_lead_back(parts: list[str]) -> None:
    """What was not rewritten is found again at its place, what was at the beginning of its id."""
    text = " ".join(parts)
    changes = edits(tokens(text))
    rewritten = apply(text, changes)
    for offset, character in enumerate(rewritten):
        before = original_offset(changes, offset)
        assert text[before] == character or text[before] == "."
    assert original_offset(changes, len(rewritten)) == len(text)
