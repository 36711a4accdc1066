"""Agents that speak the Agent Client Protocol: the process, and whom it asks."""

import asyncio
import sys
import time
from pathlib import Path

import pytest

from loopwright.kernel.events import Usage
from loopwright.model.plan import Agent
from loopwright.ports import Answer, EffectFailure, EffectJob, EffectSuccess, Question
from tests.agents.calls import RecordedActivity, Stage, agent, job
from tests.agents.leaping import HOUR_S, leap

AGENT = Path(__file__).with_name("acp_agent.py")
SPEC = f"acp:{sys.executable} -I {AGENT}"


def ask(
    workspace: Path,
    prompt: str = "write",
    *,
    says: bool | None = None,
    worker: Agent | None = None,
    **more: object,
) -> tuple[Answer, list[Question], Stage]:
    """Call the agent; the person, if there is one, says always the same."""
    here, asked = Stage(), list[Question]()

    async def person(_: EffectJob, question: Question) -> bool:
        asked.append(question)
        assert says is not None
        return says

    if says is not None:
        here.performer.ask = person
    call = job(workspace, agent=worker or agent(SPEC), prompt=prompt, **more)
    return here.perform(call), asked, here


@pytest.mark.parametrize("says", [True, False], ids=["yes", "no"])
def test_a_person_decides(tmp_path: Path, says: bool) -> None:
    """The agent waits for the decision and does what was decided."""
    answer, asked, here = ask(tmp_path, says=says)
    assert isinstance(answer, EffectSuccess), answer
    assert answer.output == f"written: {says}"
    assert (tmp_path / "a.txt").exists() is says
    (question,) = asked
    assert question.message == "The agent wants to edit: Write a.txt"
    assert question.about == '{"n":"hi"}'
    assert (answer.usage, answer.session) == (Usage(10, 2, 0.5), "s-1")
    assert ("permission was denied" in answer.note) is not says
    assert here.said("tool") == "edit Write a.txt"


def test_with_nobody_to_ask_nothing_is_allowed(tmp_path: Path) -> None:
    """Without a person there is no permission."""
    answer, _, _ = ask(tmp_path)
    assert isinstance(answer, EffectSuccess)
    assert not (tmp_path / "a.txt").exists()


def test_questions_that_are_alike_are_distinguished(tmp_path: Path) -> None:
    """The same wish again is another question."""
    _, asked, _ = ask(tmp_path, "write twice", says=True)
    assert [question.number for question in asked] == [0, 1]
    assert (tmp_path / "a.txt").read_text() == "hi\nhi\n"


@pytest.mark.parametrize(("permission", "written"), [("acceptEdits", True), ("read-only", False)])
def test_a_definition_decides_before_anybody_is_asked(
    tmp_path: Path, permission: str, written: bool
) -> None:
    """What the definition allows or forbids is no question."""
    worker = agent(SPEC, permission=permission)
    _, asked, _ = ask(tmp_path, says=True, worker=worker)
    assert asked == []
    assert (tmp_path / "a.txt").exists() is written


def test_a_session_continues(tmp_path: Path) -> None:
    """A loaded session is the same, its replay is no answer, and its cost is taken off."""
    used = Usage(0, 0, 0.2)
    answer, _, _ = ask(tmp_path, says=True, session="s-0", session_used=used)
    assert isinstance(answer, EffectSuccess), answer
    assert (answer.output, answer.session) == ("written: True", "s-0")
    assert answer.usage == Usage(10, 2, 0.3)


@pytest.mark.parametrize(
    ("prompt", "kind", "wall_ms"),
    [
        ("die", "crashed", None),
        ("refuse", "rate_limited", None),
        ("hang", "wall_timeout", 1_500),
    ],
)
def test_each_trouble_has_its_kind(
    tmp_path: Path, prompt: str, kind: str, wall_ms: int | None
) -> None:
    """An agent that dies, refuses or says nothing is a failure of its own kind."""
    answer, _, _ = ask(tmp_path, prompt, says=True, wall_ms=wall_ms)
    assert isinstance(answer, EffectFailure)
    assert answer.error.type == kind


def test_an_agent_that_stays_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that does not leave after its turn does not keep the call open."""
    monkeypatch.setattr("loopwright.agents.acp_agents.GOODBYE_S", 0.2)
    began = time.monotonic()
    answer, _, _ = ask(tmp_path, "write and stay", says=True)
    assert isinstance(answer, EffectSuccess), answer
    assert time.monotonic() - began < 60  # as long as the agent would stay


@pytest.mark.parametrize(
    ("worker", "kind"),
    [
        (agent(SPEC, tools=("x",)), "bad_input"),
        (agent("acp:no-such-agent-anywhere"), "not_found"),
    ],
    ids=["rights", "missing"],
)
def test_what_cannot_be_started(tmp_path: Path, worker: Agent, kind: str) -> None:
    """A right that cannot be held and a missing program are told apart."""
    answer, _, _ = ask(tmp_path, says=True, worker=worker)
    assert isinstance(answer, EffectFailure)
    assert answer.error.type == kind


def test_silence_while_a_person_thinks_is_not_idle(tmp_path: Path) -> None:
    """The agent's limit of silence does not run while it waits for us."""
    here = Stage()

    async def slow(_: EffectJob, __: Question) -> bool:
        leap(HOUR_S)
        await asyncio.sleep(0.05)  # the limit is looked at
        return True

    here.performer.ask = slow
    answer = here.perform(job(tmp_path, agent=agent(SPEC), prompt="write", idle_ms=600_000))
    assert isinstance(answer, EffectSuccess), answer


@pytest.mark.item("rec-6", "rec-31")
@pytest.mark.parametrize(
    ("says", "expected"),
    [
        (True, ("edit", None, "")),
        (False, ("denied", False, "Write a.txt was denied by a person")),
        (None, ("denied", False, "edit was denied; allow it with --permission edit")),
    ],
    ids=["allowed", "rejected", "nobody-to-ask"],
)
def test_activity_of_an_acp_agent(
    tmp_path: Path, says: bool | None, expected: tuple[str, bool | None, str]
) -> None:
    """A call is recorded when it ends, or as denied; this agent never reports the end."""
    kept = RecordedActivity()
    _, _, here = ask(tmp_path, says=says, activity=kept)
    (entry,) = kept.entries
    assert (entry.kind, entry.ok, entry.text) == expected
    assert here.said("note") == expected[2]
    assert b'"sessionUpdate": "tool_call"' in kept.stream
