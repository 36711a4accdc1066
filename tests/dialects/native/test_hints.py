"""Hints for natural mistakes name the right form, at the place of the mistake."""

import pytest

from loopwright.dialects.native.export import write_check
from loopwright.errors import LoopwrightError
from loopwright.model.checks import AllOf, Check, CommandCheck, Signal
from tests.dialects.reading import lowered


def problems(text: str) -> list[tuple[str, str, str | None]]:
    _, found = lowered(text)
    return [(f"{one.line}:{one.column}", one.code, one.hint) for one in found]


@pytest.mark.item("rec-40")
@pytest.mark.parametrize(
    ("line", "place", "hint"),
    [
        pytest.param("budget: 5", "4:9", "write budget: {usd: 5}", id="usd"),
        pytest.param("budget: $2.50", "4:9", "write budget: {usd: 2.50}", id="dollars"),
        pytest.param("budget: 2h", "4:9", "write budget: {time: 2h}", id="time"),
        pytest.param("budget: 2M", "4:9", "write budget: {tokens: 2M}", id="tokens"),
        pytest.param("budget: true", "4:9", None, id="yes"),
        pytest.param("budget: much", "4:9", None, id="a-word"),
        pytest.param("repeat: 10", "4:9", "write repeat: {max: 10}", id="repeat"),
        pytest.param("repeat: often", "4:9", None, id="repeat-a-word"),
        pytest.param("agents: {}", None, None, id="no-agents"),
        pytest.param(
            "agents: claude",
            "4:9",
            "write agent: claude, or agents: {worker: {use: claude}}",
            id="agents",
        ),
        pytest.param("agents: {a: claude}", "4:13", "write {use: claude}", id="an-agent"),
        pytest.param("agents: {a: 5}", "4:13", None, id="a-number"),
        pytest.param("agents: [5]", "4:9", None, id="a-list"),
        pytest.param("max: 3", "4:6", "it belongs to a loop: write repeat: {max: 3}", id="max"),
        pytest.param(
            "repeat: {max: 3, until: pytest -q}",
            "4:25",
            "write until: {command: pytest -q}",
            id="until",
        ),
        pytest.param(
            "repeat: {max: 3, until: DONE}", "4:25", "write until: {signal: DONE}", id="signal"
        ),
        pytest.param(
            "repeat: {max: 3, until: 'echo \"x\"'}",
            "4:25",
            'write until: {command: "echo \\"x\\""}',
            id="quoted",
        ),
        pytest.param("repeat: {max: 3, until: 5}", "4:25", None, id="until-a-number"),
        pytest.param("repeat: {max: '3'}", "4:15", "write max: 3 without quotes", id="max-text"),
        pytest.param("repeat: {max: x}", "4:15", None, id="max-a-word"),
        pytest.param(
            "repeat: {max: 3, until: {judge: Is it good?}}",
            "4:33",
            'write judge: {prompt: "Is it good?"}',
            id="judge",
        ),
        pytest.param("repeat: {max: 3, until: {judge: 5}}", "4:33", None, id="judge-a-number"),
        pytest.param(
            "repeat: {max: 3, memory: {stages: 5}}",
            "4:26",
            "write memory: {kind: stages}",
            id="memory",
        ),
        pytest.param("repeat: {max: 3, memory: {nothing: 5}}", "4:26", None, id="no-memory"),
        pytest.param(
            "steps: [{id: a, agent: gpt-5}]",
            "4:24",
            "write model:openai/gpt-5 for a chat model",
            id="model",
        ),
    ],
)
def test_a_hint_names_the_right_form(line: str, place: str | None, hint: str | None) -> None:
    """The first finding is at the value, and its hint can be written as it is."""
    found = problems(f"name: x\ngoal: g\nagent: claude\n{line}\n")
    if place is None:
        assert found == []
        return
    assert found[0][0] == place, found
    if hint is not None:
        assert found[0][2] == hint


@pytest.mark.item("rec-38")
@pytest.mark.parametrize(
    "second", [CommandCheck(argv=("b",), timeout_ms=1), Signal(word="X")], ids=["time", "kind"]
)
def test_other_checks_in_order_have_no_words(second: Check) -> None:
    """Only programs that are run alike can be joined by `&&`."""
    both = AllOf(parts=(CommandCheck(argv=("a",)), second), order="until_decided")
    with pytest.raises(LoopwrightError, match="not alike"):
        write_check(both)
