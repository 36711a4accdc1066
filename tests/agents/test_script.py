"""The scripted agent: which reply is used, what it says, and what is told when none fits."""

import asyncio
from pathlib import Path

import pytest

from loopwright.agents.script import BadScript, ScriptedAgent, load_script
from loopwright.engine.activity import LiveBus
from loopwright.kernel.event_parts import ToolUse
from loopwright.kernel.events import Usage
from loopwright.ports import Answer, Delta, EffectFailure, EffectSuccess
from tests.agents.calls import AgentCall, job


class Recorder:
    """A script on disk and the agent that answers from it."""

    def __init__(self, folder: Path, text: str) -> None:
        self.folder = folder
        self.file = folder / "replies.yaml"
        self.file.write_text(text, encoding="utf-8")
        self.deltas: list[Delta] = []
        self.slept: list[float] = []
        bus = LiveBus()
        bus.listen(self.deltas.append)
        self.agent = ScriptedAgent(bus, self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def ask(self, effect: str = "dev.0/agent#1", **more: object) -> Answer:
        answer = self.agent.perform(job(self.folder, effect=effect, **more), str(self.file))
        assert isinstance(answer, EffectSuccess | EffectFailure)
        return answer


def test_replies_are_used_in_order_and_once(tmp_path: Path) -> None:
    """Each call gets the first reply that is not used up; its number is the bookmark."""
    recorder = Recorder(tmp_path, "replies: [{text: one}, {text: two}]")
    first = recorder.ask("a/agent#1")
    second = recorder.ask("b/agent#1", used=frozenset({0}))
    assert [(first.output, first.mark), (second.output, second.mark)] == [("one", 0), ("two", 1)]


def test_calls_side_by_side_get_different_replies(tmp_path: Path) -> None:
    """A reply that was handed out is not given to another call before it is recorded."""
    recorder = Recorder(tmp_path, "replies: [{text: one}, {text: two}]")
    assert [recorder.ask("a/agent#1").output, recorder.ask("b/agent#1").output] == [
        "one",
        "two",
    ]


def test_the_same_call_gets_the_same_reply(tmp_path: Path) -> None:
    """A call that is asked again, as after a conflict, does not use up a second reply."""
    recorder = Recorder(tmp_path, "replies: [{text: one}, {text: two}]")
    assert [recorder.ask("a/agent#1").output, recorder.ask("a/agent#1").output] == [
        "one",
        "one",
    ]


def test_another_run_starts_at_the_beginning(tmp_path: Path) -> None:
    """Runs do not use up each other's replies."""
    recorder = Recorder(tmp_path, "replies: [{text: one}]")
    assert [recorder.ask(run="run_1").output, recorder.ask(run="run_2").output] == [
        "one",
        "one",
    ]


@pytest.mark.parametrize(
    ("when", "fits"),
    [
        pytest.param("{}", True, id="nothing named"),
        pytest.param("{agent: worker}", True, id="agent"),
        pytest.param("{agent: judge}", False, id="other agent"),
        pytest.param("{step: dev}", True, id="step"),
        pytest.param("{step: dev.1}", True, id="path"),
        pytest.param("{step: build}", False, id="other step"),
        pytest.param("{iteration: 2}", True, id="iteration"),
        pytest.param("{iteration: 1}", False, id="other iteration"),
        pytest.param("{agent: worker, step: dev, iteration: 1}", False, id="all must fit"),
    ],
)
def test_when_chooses(tmp_path: Path, when: str, fits: bool) -> None:
    """A reply with conditions is used only where all of them hold."""
    recorder = Recorder(tmp_path, f"replies: [{{when: {when}, text: mine}}, {{text: fallback}}]")
    answer = recorder.ask(call=AgentCall(agent="worker"))
    assert answer.output == ("mine" if fits else "fallback")


def test_a_reply_says_everything(tmp_path: Path) -> None:
    """Text, data, usage and session of a reply are those of the answer; tools are heard."""
    recorder = Recorder(
        tmp_path,
        """
replies:
  - text: done
    data: {n: 1}
    session: s1
    usage: {input_tokens: 7, output_tokens: 3, usd: 0.5}
    tools: [{name: grep, args: {x: 1}, result: y}]
""",
    )
    assert recorder.ask() == EffectSuccess(
        output="done",
        result='{"n":1}',
        usage=Usage(input_tokens=7, output_tokens=3, usd=0.5),
        session="s1",
        mark=0,
        tools=(ToolUse(name="grep", input='{"x":1}'),),
    )
    assert [(delta.kind, delta.text) for delta in recorder.deltas] == [
        ("tool", "grep"),
        ("text", "done"),
    ]


@pytest.mark.parametrize(
    ("fail", "kind", "detail"),
    [
        pytest.param("it broke", "agent", "it broke", id="words"),
        pytest.param("{type: rate_limited, detail: slow}", "rate_limited", "slow", id="kind"),
        pytest.param("{type: overloaded}", "overloaded", "the script says so", id="kind alone"),
    ],
)
def test_a_reply_may_fail(tmp_path: Path, fail: str, kind: str, detail: str) -> None:
    """A failing reply is used up like any other, with what it said before."""
    recorder = Recorder(tmp_path, f"replies: [{{text: half, fail: {fail}, usage: {{usd: 1}}}}]")
    answer = recorder.ask()
    assert isinstance(answer, EffectFailure)
    assert (answer.error.type, answer.error.detail) == (kind, detail)
    assert (answer.output, answer.mark, answer.usage) == ("half", 0, Usage(usd=1.0))


def test_a_delay_is_slept(tmp_path: Path) -> None:
    """A reply with a delay answers after it, and says nothing before."""
    recorder = Recorder(tmp_path, "replies: [{text: late, delay: 2.5}]")

    async def whole() -> Answer:
        waiting = recorder.agent.perform(job(tmp_path), str(recorder.file))
        assert not isinstance(waiting, EffectSuccess | EffectFailure)
        assert recorder.deltas == []
        return await waiting

    assert asyncio.run(whole()).output == "late"
    assert recorder.slept == [2.5]


def test_a_list_that_runs_out_says_so(tmp_path: Path) -> None:
    """When no reply is left the failure names the file, the place and what to do."""
    recorder = Recorder(tmp_path, "replies: [{text: one}]")
    recorder.ask("a/agent#1")
    answer = recorder.ask("b/agent#1", used=frozenset({0}))
    assert isinstance(answer, EffectFailure)
    assert answer.error.type == "script"
    for part in (str(recorder.file), "dev.1", "iteration 2", "1 of 1 replies", "add one"):
        assert part in answer.error.detail


def test_an_edited_script_is_read_again(tmp_path: Path) -> None:
    """A script that changes while a loop runs counts from the next call on."""
    recorder = Recorder(tmp_path, "replies: [{text: old}]")
    recorder.ask("a/agent#1")
    recorder.file.write_text("replies: [{text: old}, {text: new and longer}]", encoding="utf-8")
    answer = recorder.ask("b/agent#1", used=frozenset({0}))
    assert answer.output == "new and longer"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        pytest.param("replies:\n  - txet: x\n", ("2:5", "unknown-field", "text"), id="typo"),
        pytest.param("replies: {}\n", ("1:10",), id="not a list"),
        pytest.param("", ("empty-definition",), id="empty"),
        pytest.param("replies:\n - usage: {usd: -1}\n", ("2:17",), id="negative usage"),
        pytest.param("replies:\n - usage: {input_tokens: 1e999}\n", ("not-finite",), id="infinite"),
        pytest.param("replies:\n - delay: -1\n", ("2:11",), id="negative delay"),
        pytest.param("replies:\n - when: {iteration: 0}\n", ("2:",), id="pass 0"),
        pytest.param("replies: [{text: a}\n", ("yaml-syntax",), id="not YAML"),
    ],
)
def test_a_bad_script_is_refused_with_its_place(
    tmp_path: Path, text: str, parts: tuple[str, ...]
) -> None:
    """What is wrong with a script is told with file, line and column."""
    file = tmp_path / "replies.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadScript) as bad:
        load_script(str(file))
    for part in (str(file), *parts):
        assert part in str(bad.value)


@pytest.mark.parametrize("name", ["missing.yaml", "."], ids=["missing", "a directory"])
def test_a_script_that_cannot_be_read_fails_the_call(tmp_path: Path, name: str) -> None:
    """A missing file is a failure of the call that names the file; nothing is raised."""
    recorder = Recorder(tmp_path, "replies: []")
    answer = recorder.agent.perform(job(tmp_path), str(tmp_path / name))
    assert isinstance(answer, EffectFailure)
    assert answer.error.type == "script"
    assert str(tmp_path / name) in answer.error.detail
