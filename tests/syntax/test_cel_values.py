"""Values into the evaluator and out of it."""

import enum
import sys
from types import MappingProxyType
from typing import Any

import pytest

from loopwright.syntax.cel import (
    MAX_DEPTH,
    MAX_VALUES,
    Broken,
    Items,
    Program,
    Unfit,
    compile_cel,
    to_cel,
    type_name,
)


def program(text: str) -> Program:
    made = compile_cel(text, step_ids=[], wants="list")
    assert isinstance(made, Program)
    return made


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


class Number(enum.IntEnum):
    HUGE = 2**80


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -(2**63),
        2**63 - 1,
        1.5,
        "",
        "é😀\u2028",
        "x" * 100_000,
        [],
        {},
        [None, [None], {"a": None}],
        {"a": [1, {"b": "c"}], "": 1.5},
        nested(MAX_DEPTH - 1),
    ],
    ids=lambda value: str(value)[:30],
)
def test_values_come_back_unchanged(value: Any) -> None:
    """Any JSON value passes through an expression as it is, type included."""
    answer = program("[item]").evaluate({"item": value})
    assert answer == Items([value])
    assert isinstance(answer, Items)
    assert type(answer.values[0]) is type(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a\0b", "a�b"),
        ("é\0", "é�"),
        ("\ud800x\0", "�x�"),
        ({"\udfff": 1}, {"�": 1}),
        ((1, 2), [1, 2]),
        (MappingProxyType({"a": 1}), {"a": 1}),
    ],
    ids=ascii,
)
def test_values_that_are_made_to_fit(value: Any, expected: Any) -> None:
    """Characters the evaluator cannot hold are replaced, other containers become plain ones."""
    assert program("[item]").evaluate({"item": value}) == Items([expected])


def test_a_nul_does_not_hide_what_follows() -> None:
    """The evaluator alone would not see the text behind a NUL."""
    answer = program("content.contains('LGTM') ? [1] : [0]").evaluate({"content": "\0LGTM"})
    assert answer == Items([1])


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (2**63, "64"),
        (-(2**63) - 1, "64"),
        (10**5_000, "64"),
        (Number.HUGE, "64"),
        (nested(MAX_DEPTH + 1), "nested"),
        (nested(100_000), "nested"),
        (b"x", "bytes"),
        ({1: 2}, "key"),
        (object(), "object"),
    ],
    ids=["above", "below", "huge", "subclass", "deep", "very deep", "bytes", "key", "object"],
)
def test_values_that_stay_out(value: Any, why: str) -> None:
    """What is not a JSON value of 64 bits is said to be none."""
    answer = program("[item]").evaluate({"item": value})
    assert isinstance(answer, Broken)
    assert answer.code == "error"
    assert why in answer.message


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[18446744073709551615u]", "64"),
        ("[1.0 / 0.0]", "inf"),
        ("[{1: 2}]", "key"),
        ("[{'a': b'x'}]", "bytes"),
        ("[timestamp('2020-01-01T00:00:00Z')]", "a time"),
        ("[duration('1s')]", "a duration"),
        ("[type(1)]", "a type"),
        ("[optional.of(1)]", "an optional value"),
    ],
)
def test_results_that_are_no_json(text: str, why: str) -> None:
    """What JSON has no form for does not leave the expression."""
    answer = program(text).evaluate({})
    assert isinstance(answer, Broken)
    assert why in answer.message


def test_too_many_parts() -> None:
    """A list that is too large to take apart is refused."""
    answer = program("result.l").evaluate({"result": {"l": [0] * MAX_VALUES}})
    assert isinstance(answer, Broken)
    assert answer.code == "too-much-work"


def test_nulls_cost_no_reference() -> None:
    """Many nulls out of expressions leave the count of references to None where it was."""
    nulls = program("[null, item, {'a': null}]")
    before = sys.getrefcount(None)
    answers = [nulls.evaluate({"item": None}) for _ in range(5_000)]
    assert sys.getrefcount(None) > before - 1_000
    assert answers[-1] == Items([None, None, {"a": None}])


def test_long_texts_are_limited_on_demand() -> None:
    """The limit holds for texts and keys, at any depth."""
    assert to_cel({"ab": ["cd"]}, longest=2) == {"ab": ["cd"]}
    for value in ("abc", {"abc": 1}, [{"a": ["abc"]}]):
        with pytest.raises(Unfit):
            to_cel(value, longest=2)


@pytest.mark.parametrize(
    ("kind", "words"),
    [("LIST<DYN>", "a list"), ("optional_type<INT>", "an optional value"), ("odd", "odd")],
)
def test_types_in_words(kind: str, words: str) -> None:
    """Types are named as readers know them."""
    assert type_name(kind) == words
