"""Runs as spans: one tree for each run, names that tools know, and nothing that anybody said."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from loopwright.kernel.event_parts import ModelCall
from loopwright.kernel.events import AnyEvent, EffectRequested, RunFinished, RunStarted, Usage
from loopwright.model.actions import CallAgent, Repeat
from loopwright.model.checks import Contains
from loopwright.model.plan import Agent, Plan
from loopwright.operations.traces import Span, Spans
from loopwright.ports import NumberedEvent
from tests.golden.recording import RECORDINGS
from tests.kernel.driving import Driver, Fail, Reply, by_iteration, drive, plan_of
from tests.kernel.test_cycles import call, turn
from tests.kernel.test_cycles import plan as cycle_plan

SPENT = Usage(input_tokens=100, output_tokens=20, usd=0.01)


def spans_of(plan: Plan, events: list[AnyEvent]) -> list[Span]:
    first = events[0]
    assert isinstance(first, RunStarted)
    spans = Spans(first.run, plan)
    numbered = [NumberedEvent(seq, event) for seq, event in enumerate(events, 1)]
    return [span for one in numbered for span in spans.take(one)]


@pytest.mark.parametrize("record", RECORDINGS.values(), ids=RECORDINGS.keys())
def test_a_run_is_one_tree(record: Callable[[], Driver]) -> None:
    """Every span has its own id and a parent inside of which it lies; the run is the root. When the
    run has ended nothing is open, and the same events make the same spans.
    """
    run = record()
    found = spans_of(run.plan, run.events)
    by_id = {span.id: span for span in found}
    assert len(by_id) == len(found)
    assert len({span.trace for span in found}) <= 1
    if isinstance(run.events[-1], RunFinished):
        [root] = [span for span in found if span.parent is None]
        assert root.values["gen_ai.operation.name"] == "invoke_workflow"
        for span in found:
            assert span.start <= span.end
            if span.parent is not None:
                around = by_id[span.parent]
                assert around.start <= span.start
                assert span.end <= around.end
    assert spans_of(run.plan, run.events) == found


def chat(*answers: Reply | Fail) -> list[Span]:
    made = cycle_plan(Contains(text="DONE"), most=4)
    plan = replace(made, agents={"coder": Agent(spec="model:google/gemini-x", system="SECRET")})
    turns = iter(answers)

    def script(asked: EffectRequested) -> Reply | Fail:
        return next(turns) if isinstance(asked.call, ModelCall) else Reply("SECRET")

    run = drive(plan, script)
    return spans_of(plan, run.events)


def test_turns_of_a_model_and_its_tools() -> None:
    """A turn is a `chat` with provider, models, tokens and why it ended; a tool is `execute_tool`
    inside of the same iteration.
    """
    wanted = call("c1", "fs.read")
    found = chat(turn("SECRET", wanted, usage=SPENT), turn("DONE", usage=SPENT))
    [first, _] = [span for span in found if span.name == "chat gemini-x"]
    assert first.kind == "client"
    assert first.values == {
        "gen_ai.operation.name": "chat",
        "gen_ai.agent.name": "coder",
        "gen_ai.provider.name": "gcp.gemini",
        "gen_ai.request.model": "gemini-x",
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.response.finish_reasons": ("stop",),
        "loopwright.usage.usd": 0.01,
        "loopwright.role": "turn",
    }
    [tool] = [span for span in found if span.name == "execute_tool fs.read"]
    assert tool.values["gen_ai.tool.call.id"] == "c1"
    assert tool.parent == first.parent
    assert "SECRET" not in repr(found)


def test_a_call_that_failed() -> None:
    """The kind of a failure is told, and not its words."""
    plan = plan_of(Repeat(body=CallAgent(agent="coder"), max=1))
    run = drive(plan, by_iteration(Fail("auth", "SECRET")))
    [called] = [s for s in spans_of(run.plan, run.events) if s.name.startswith("invoke_agent")]
    assert (called.error, called.values["error.type"]) == ("auth", "auth")
    assert "SECRET" not in repr(spans_of(run.plan, run.events))


def test_a_question_to_a_person_takes_time() -> None:
    """From the question to the answer is a span of its own, with the decision."""
    run = RECORDINGS["gate_approved"]()
    waits = [s for s in spans_of(run.plan, run.events) if s.name == "wait for a person"]
    decided = [span.values["loopwright.gate.decision"] for span in waits]
    assert decided == ["continue", "approve"]
