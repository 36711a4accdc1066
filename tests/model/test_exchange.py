"""Messages and exchanges as records."""

import msgspec
import pytest

from loopwright.model.chat import (
    NOTHING_USED,
    AnyMessage,
    AssistantMessage,
    CallPart,
    CostSource,
    ModelAnswer,
    ModelAttempt,
    ModelEvent,
    ModelUsage,
    TextDelta,
    TextPart,
    ThoughtPart,
    ToolMessage,
    ToolResult,
    UserMessage,
    total_usage,
)

TURN = AssistantMessage(
    parts=(
        ThoughtPart(text="hm", extra={"signature": "s"}),
        TextPart(text="I "),
        CallPart(id="a", tool="fs.read", args='{"path": "x"}'),
        TextPart(text="look"),
    )
)


def test_a_turn_knows_its_words_and_calls() -> None:
    """Thoughts are no words, and calls stay in their order."""
    assert TURN.text == "I look"
    assert [call.id for call in TURN.calls] == ["a"]


def test_histories_survive_the_log() -> None:
    """A history is the same after it was written as JSON and read again."""
    history: tuple[AnyMessage, ...] = (
        UserMessage(text="hi"),
        TURN,
        ToolMessage(results=(ToolResult(id="a", tool="fs.read", text="x", error=True),)),
    )
    text = msgspec.json.encode(history)
    assert msgspec.json.decode(text, type=tuple[AnyMessage, ...]) == history


def test_events_survive_the_wire() -> None:
    """Events are told apart by their tag."""
    events: list[ModelEvent] = [
        TextDelta(part=0, text="x"),
        ModelAnswer(message=TURN, finish="tool_calls", model="m", attempts=()),
    ]
    assert msgspec.json.decode(msgspec.json.encode(events), type=list[ModelEvent]) == events


def used(usd: float | None, price: CostSource = "listed", *, measured: bool = True) -> ModelAttempt:
    usage = ModelUsage(input_tokens=10, output_tokens=2, usd=usd, price=price, measured=measured)
    return ModelAttempt(number=1, model="m", usage=usage)


@pytest.mark.parametrize(
    ("attempts", "usd", "price", "measured"),
    [
        pytest.param((used(1.0), used(2.0)), 3.0, "listed", True, id="known"),
        pytest.param((used(1.0), used(2.0, "assumed")), 3.0, "assumed", True, id="assumed"),
        pytest.param((used(1.0), used(None, "unknown")), None, "unknown", True, id="unknown"),
        pytest.param(
            (used(1.0), used(None, "unknown", measured=False)), None, "unknown", False, id="untold"
        ),
        pytest.param(
            (used(1.0), used(2.0, "configured")), 3.0, "configured", True, id="configured"
        ),
        pytest.param((used(1.0), used(0.0, "local")), 1.0, "listed", True, id="partly local"),
        pytest.param((used(0.0, "local"),), 0.0, "local", True, id="local"),
        pytest.param((), 0, "listed", True, id="nothing"),
    ],
)
def test_what_attempts_cost_together(
    attempts: tuple[ModelAttempt, ...], usd: float | None, price: CostSource, measured: bool
) -> None:
    """Known costs add up; one that is not known makes the sum unknown, not smaller."""
    total = total_usage(attempts)
    assert (total.usd, total.price, total.measured) == (usd, price, measured)
    assert total.input_tokens == 10 * len(attempts)


def test_an_attempt_that_was_turned_away_costs_nothing() -> None:
    """It is known to cost nothing, which is not the same as not being known."""
    turned_away = ModelAttempt(number=1, model="m", usage=NOTHING_USED)
    assert total_usage((turned_away, used(1.0))).usd == 1.0
