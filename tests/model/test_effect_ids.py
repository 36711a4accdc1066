"""Ids of effects: what an id says, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.model.ids import (
    AGENT_CALL,
    PURPOSES,
    CheckPurpose,
    EffectId,
    EffectPurpose,
    ToolPurpose,
    effect_id,
    effect_path,
    effect_words,
    read_effect_id,
)

NUMBERS = st.integers(0, 10**6)
PURPOSE = (
    st.sampled_from(list(PURPOSES.values())) | NUMBERS.map(CheckPurpose) | NUMBERS.map(ToolPurpose)
)


@pytest.mark.parametrize(
    ("path", "purpose", "number", "effect"),
    [
        pytest.param("dev.0.review", AGENT_CALL, 2, "dev.0.review/agent#2", id="a step"),
        pytest.param("dev.0", CheckPurpose(3), 1, "dev.0/check3#1", id="a check"),
        pytest.param("each[7]", ToolPurpose(2), 1, "each[7]/tool2#1", id="a tool call"),
        pytest.param("", PURPOSES["hold"], 1, "/hold#1", id="the run itself"),
    ],
)
def test_effect_id_when_made_has_place_purpose_and_number(
    path: str, purpose: EffectPurpose, number: int, effect: str
) -> None:
    """The id of an effect is derived, so a resumed run names it as before."""
    assert effect_id(path, purpose, number) == effect
    assert (effect_path(effect), effect_words(effect)) == (path, purpose.word)


@given(path=st.sampled_from(["", "dev", "dev~2.0.review", "each[3]"]), purpose=PURPOSE, n=NUMBERS)
def test_effect_id_when_read_gives_what_it_was_made_of(
    path: str, purpose: EffectPurpose, n: int
) -> None:
    """Nothing of an id is lost."""
    assert read_effect_id(effect_id(path, purpose, n)) == EffectId(path, purpose, n)


@pytest.mark.parametrize(
    "effect", ["", "dev", "dev/agent", "dev/other#1", "dev/check#1", "a/toolx#1"]
)
def test_effect_id_when_nothing_has_made_it_is_refused(effect: str) -> None:
    """What is no id of ours has no purpose."""
    with pytest.raises(ValueError, match=r"unknown purpose|invalid literal"):
        read_effect_id(effect)
