"""Histories that every wire accepts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.model.chat import (
    AnyMessage,
    AssistantMessage,
    CallPart,
    SystemMessage,
    TextPart,
    ThoughtPart,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from loopwright.prompts.conversation import NO_RESULT, call_ids, is_paired, pair_calls, unique_ids

TASK = UserMessage(text="the task")


def turn(*ids: str, text: str = "") -> AssistantMessage:
    calls = tuple(CallPart(id=one, tool="fs.read") for one in ids)
    return AssistantMessage(parts=(TextPart(text=text), *calls) if text else calls)


def results(*ids: str, text: str = "ok") -> ToolMessage:
    return ToolMessage(results=tuple(ToolResult(id=i, tool="fs.read", text=text) for i in ids))


@pytest.mark.parametrize(
    ("history", "right"),
    [
        pytest.param((), True, id="nothing"),
        pytest.param((TASK, turn("a", "b"), results("b", "a"), TASK), True, id="in any order"),
        pytest.param((TASK, turn(text="hi"), SystemMessage(text="x"), TASK), True, id="words"),
        pytest.param((TASK, turn("a")), False, id="no result"),
        pytest.param((TASK, turn("a", "b"), results("a")), False, id="one result of two"),
        pytest.param((TASK, turn("a"), TASK, results("a")), False, id="parted"),
        pytest.param((TASK, results("a")), False, id="result without a call"),
        pytest.param((TASK, turn("a"), results("a", "a")), False, id="two results"),
        pytest.param((TASK, turn("a", "a"), results("a", "a")), False, id="id twice in a turn"),
        pytest.param(
            (TASK, turn("a"), results("a"), turn("a"), results("a")), False, id="id used again"
        ),
        pytest.param((TASK, turn(""), results("")), False, id="no id"),
        pytest.param((TASK, turn()), False, id="empty turn"),
        pytest.param((UserMessage(text=""),), False, id="empty word"),
    ],
)
def test_what_may_be_sent_as_it_is(history: tuple[AnyMessage, ...], right: bool) -> None:
    """A history is right when each call has its one result right after its turn."""
    assert is_paired(history) is right
    assert (pair_calls(history) == history) is right
    assert is_paired(pair_calls(history))


def test_a_missing_result_is_reported_as_missing() -> None:
    """The model learns that the call was interrupted; the other result stays with its call."""
    mended = pair_calls((TASK, turn("a", "b"), results("b", text="mine"), TASK))
    answers = mended[2]
    assert isinstance(answers, ToolMessage)
    assert [(r.id, r.text, r.error) for r in answers.results] == [
        ("a", NO_RESULT, True),
        ("b", "mine", False),
    ]
    assert mended[3:] == (TASK,)


def test_results_are_brought_back_to_their_turn() -> None:
    """Words between a call and its result come after the result; a second result is left out."""
    mended = pair_calls((turn("a"), TASK, results("a", text="first"), results("a", text="second")))
    assert mended == (turn("a"), results("a", text="first"), TASK)


def test_a_used_id_gets_a_new_name_in_call_and_result() -> None:
    """Both turns keep their own result."""
    mended = pair_calls((turn("a"), results("a", text="1"), turn("a"), results("a", text="2")))
    assert list(call_ids(mended)) == ["a", "a-2"]
    assert mended[3] == results("a-2", text="2")


def test_fresh_ids_of_a_new_turn() -> None:
    """Ids that are free stay, others are changed, and every other part stays as it is."""
    said = AssistantMessage(parts=(ThoughtPart(text="hm"), *turn("a", "a", "").parts))
    renamed = unique_ids(said, ["call"])
    assert [call.id for call in renamed.calls] == ["a", "a-2", "call-2"]
    assert renamed.parts[0] == ThoughtPart(text="hm")
    assert unique_ids(renamed, []) is renamed


IDS = st.sampled_from(["", "a", "b"])
PARTS = st.one_of(
    st.builds(CallPart, id=IDS, tool=st.just("t")),
    st.builds(TextPart, text=st.sampled_from(["", "w"])),
)
MESSAGES = st.one_of(
    st.builds(UserMessage, text=st.sampled_from(["", "w"])),
    st.builds(AssistantMessage, parts=st.lists(PARTS, max_size=3).map(tuple)),
    st.builds(
        ToolMessage,
        results=st.lists(
            st.builds(ToolResult, id=IDS, tool=st.just("t"), text=st.just("r")), max_size=3
        ).map(tuple),
    ),
)


@given(st.lists(MESSAGES, max_size=8))
def test_every_history_can_be_mended(history: list[AnyMessage]) -> None:
    """The result is right, keeps every word, and mending it again changes nothing."""
    mended = pair_calls(history)
    assert is_paired(mended)
    assert pair_calls(mended) == mended
    words = [m.text for m in history if isinstance(m, UserMessage) and m.text]
    assert [m.text for m in mended if isinstance(m, UserMessage)] == words
