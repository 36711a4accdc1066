"""The document of this system, sentence by sentence: its examples run as they are printed.

The text of the spec is the printed one with its indentation restored; `...` stands for the blocks
that the page leaves out. What the page says over HTTP is shown in `tests/http/test_approvals.py`,
what it says about programs and exit codes in `tests/cli/test_aldo_fidelity.py`.
"""

from typing import Any

import pytest

from loopwright.dialects.aldo.events import AldoEvent
from loopwright.dialects.aldo.results import result_of
from loopwright.kernel.event_parts import ToolCall
from loopwright.kernel.events import EffectRequested, GateOpened
from loopwright.model.actions import Decision, Repeat
from loopwright.model.chat import RequestedCall
from loopwright.model.plan import Plan
from loopwright.model.policy import ConversationHistory
from tests.dialects.aldo.cases import lowered
from tests.dialects.aldo.running import Stage, call, done, says, turn
from tests.kernel.driving import Fail, Reply

PRINTED = """\
identity:
  name: local-coder-iterative
  version: 0.1.0
  ...
iteration:
  max_cycles: 30
  context_window: 128000
  summary_strategy: rolling-window
  termination_conditions:
    - kind: tool-result
      tool: shell.exec
      match:
        exit_code: 0
        contains: tsc
    - kind: text-includes
      text: <task-complete>
    - kind: budget-exhausted
"""
LEFT_OUT = """\
apiVersion: aldo-ai/agent.v1
kind: Agent
role: {team: development, pattern: worker}
model_policy:
  privacy_tier: internal
  primary: {capability_class: reasoning-medium}
  budget: {usd_per_run: 0.5}
prompt: {system_file: prompt.md}
tools:
  mcp: [{server: aldo-fs, allow: [fs.read, fs.write]}, {server: aldo-shell, allow: [shell.exec]}]
  permissions: {network: none, filesystem: repo-readwrite}
APPROVALS"""
WHO = "description: Writes TypeScript.\n  owner: me"

pytestmark = pytest.mark.item("aldo-88")


def printed(approvals: str = "", **changes: str) -> str:
    """The spec of the page, whole; `changes` are other values for its fields."""
    text = PRINTED.replace("...", WHO) + LEFT_OUT.replace("APPROVALS", approvals)
    for name, value in changes.items():
        (line,) = [one for one in text.splitlines() if one.strip().startswith(f"{name}:")]
        text = text.replace(line, f"{line.partition(':')[0]}: {value}")
    return text


def plan_of(text: str) -> Plan:
    plan, problems = lowered(text)
    assert problems == []
    assert plan is not None
    return plan


def payloads(events: list[AldoEvent], kind: str) -> list[dict[str, Any]]:
    return [dict(one.payload) for one in events if one.type == kind]


COMPILES = turn("compiling", call("c1", argv=["tsc"]))


# -- what you declare ------------------------------------------------------------------------------


def test_the_printed_spec_loads_without_a_warning() -> None:
    """Every field arrives: the ceiling, the window, the strategy, the conditions in their order."""
    (step,) = plan_of(printed()).steps
    assert isinstance(step.action, Repeat)
    assert step.action.max == 30
    assert isinstance(step.action.memory, ConversationHistory)
    assert (step.action.memory.window, step.action.memory.strategy) == (128_000, "rolling-window")


@pytest.mark.parametrize(
    ("speak", "reason"),
    [
        pytest.param(COMPILES, "tool-result", id="tool-result"),
        pytest.param(turn("ok <task-complete>"), "text-includes", id="text-includes"),
        pytest.param(turn("hm", usd=0.5), "budget-exhausted", id="budget-exhausted"),
    ],
)
def test_each_printed_condition_fires_and_is_ok(speak: Reply, reason: str) -> None:
    """The first matching condition fires; the loop reports ok: true."""
    stage = Stage(plan_of(printed()), lambda *_: speak).run()
    events = stage.events()
    assert [one.type for one in events][-2:] == ["run.terminated_by", "run.completed"]
    (ended,) = payloads(events, "run.terminated_by")
    assert (ended["reason"], ended["ok"]) == (reason, True)
    assert payloads(events, "run.completed")[0]["ok"] is True
    status, why, output = stage.driver.ended
    assert result_of(status, reason=why, output=output)["ok"] is True  # type: ignore[arg-type]


def test_max_cycles_is_a_hard_ceiling() -> None:
    """After the Nth cycle it stops with `maxCycles`, whatever the model wants to do next."""
    wants_more = turn("more", call("c1", argv=["ls"]))
    stage = Stage(
        plan_of(printed(max_cycles="4")), lambda *_: wants_more, tool=lambda _: done("{}", code=1)
    ).run()
    (ended,) = payloads(stage.events(), "run.terminated_by")
    assert (ended["reason"], ended["ok"], ended["output"]) == ("maxCycles", True, "more")
    assert stage.driver.passes == 4


@pytest.mark.parametrize(
    ("result", "fires"),
    [
        (done('{"stdout":"tsc"}', code=0), True),
        (done('{"stdout":"tsc"}', code=2), False),
        (done('{"stdout":"eslint"}', code=0), False),
    ],
    ids=["both", "contains only", "exit_code only"],
)
def test_exit_code_and_contains_are_and(result: Reply, *, fires: bool) -> None:
    """AND, not OR, when both are set."""
    stage = Stage(plan_of(printed(max_cycles="1")), lambda *_: COMPILES, tool=lambda _: result)
    (ended,) = payloads(stage.run().events(), "run.terminated_by")
    assert ended["reason"] == ("tool-result" if fires else "maxCycles")


def test_the_budget_is_cumulative() -> None:
    """Cumulative USD at or above `usd_per_run`: what all cycles have cost counts."""
    stage = Stage(plan_of(printed()), lambda *_: turn("hm", usd=0.2)).run()
    (ended,) = payloads(stage.events(), "run.terminated_by")
    assert (ended["reason"], ended["detail"]) == ("budget-exhausted", {"usd": 0.6, "cap": 0.5})


@pytest.mark.parametrize("strategy", ["rolling-window", "periodic-summary"])
def test_history_is_compressed_at_80_percent_of_the_window(strategy: str) -> None:
    """The configured strategy runs before the next cycle; at most three summaries, then rolling."""
    reads = turn("reading", call("c", "fs.read", path="a"))
    plan = plan_of(printed(context_window="4000", summary_strategy=strategy, max_cycles="9"))
    stage = Stage(plan, lambda *_: reads, tool=lambda _: Reply("x" * 5_000)).run()
    cuts = payloads(stage.events(), "history.compressed")
    used = [one["strategy"] for one in cuts]
    if strategy == "rolling-window":
        assert set(used) == {"rolling-window"}
    else:
        assert used[:4] == [*["periodic-summary"] * 3, "rolling-window"]
        assert all(one["summarisedTo"] for one in cuts[:3])
    assert all(one["keptMessages"] >= 4 for one in cuts)  # system, the task, the last two turns


# -- what the engine enforces ----------------------------------------------------------------------


def test_a_cycle_in_its_order() -> None:
    """Start, response, tool calls, results, their sum, and then the condition that ended it."""
    events = Stage(plan_of(printed()), lambda *_: COMPILES).run().events()
    order = [
        "cycle.start", "model.response", "message", "tool_call", "tool_result", "tool.results",
        "run.terminated_by", "run.completed",
    ]  # fmt: skip
    assert [one.type for one in events if one.type in order] == order
    (start,) = payloads(events, "cycle.start")
    assert (start["cycle"], start["maxCycles"]) == (1, 30)
    (response,) = payloads(events, "model.response")
    assert {"cycle", "textLength", "toolCalls", "finishReason"} <= set(response)
    assert payloads(events, "tool.results")[0]["cycle"] == 1


def test_tools_are_dispatched_in_parallel_and_seen_together() -> None:
    """All calls of a turn are begun before any result is in; the next turn waits for all."""
    both = turn("both", call("c1", "fs.read", path="a"), call("c2", "fs.read", path="b"))
    turns = iter([both, turn("<task-complete>")])
    stage = Stage(plan_of(printed()), lambda *_: next(turns))
    stage.run()
    begun = [
        (number, one.call)
        for number, one in enumerate(stage.driver.events)
        if isinstance(one, EffectRequested) and isinstance(one.call, ToolCall)
    ]
    (first, _), (second, _) = begun
    between = stage.driver.events[first + 1 : second]
    assert [type(one).__name__ for one in between if "Effect" in type(one).__name__] == []
    assert len(payloads(stage.events(), "tool.results")[0]["results"]) == 2


def test_a_cycle_without_calls_is_followed_by_a_nudge() -> None:
    """A user message gives the next cycle a chance to end it."""
    stage = Stage(plan_of(printed()), says("hm", "<task-complete>")).run()
    starts = payloads(stage.events(), "cycle.start")
    assert [one["messages"] for one in starts] == [2, 4]  # what it said, and the nudge


# -- tool failures, approvals ----------------------------------------------------------------------


def test_tool_failures_do_not_crash_the_loop() -> None:
    """`{ error: ... }` with `isError: true` is a result, and the loop progresses."""
    turns = iter([COMPILES, turn("I see. <task-complete>")])
    stage = Stage(plan_of(printed()), lambda *_: next(turns), tool=lambda _: Fail("tool", "boom"))
    events = stage.run().events()
    (result,) = payloads(events, "tool_result")
    assert (result["result"], result["isError"]) == ({"error": "boom"}, True)
    assert payloads(events, "run.completed")[0]["terminatedBy"] == "text-includes"


@pytest.mark.parametrize(
    "word", ["always", "{shell.exec: always}", "{shell.exec: protected_paths}"]
)
def test_a_gated_call_suspends_the_loop_until_it_is_resolved(word: str) -> None:
    """Each of two parallel calls has an approval of its own; a rejection is a result."""
    # Which paths a program touches nobody can say, so that the rule about paths holds it as well.
    wanted = (
        RequestedCall(
            id="c1", tool="shell.exec", arguments={"argv": ["tsc"], "reason": "to compile"}
        ),
        RequestedCall(id="c2", tool="shell.exec", arguments={"argv": ["rm"]}),
    )
    turns = iter([turn("both", *wanted), turn("<task-complete>")])

    def people(gate: GateOpened) -> tuple[Decision, str]:
        opened = [one.gate for one in stage.driver.events if isinstance(one, GateOpened)]
        return ("approve", "") if gate.gate == opened[0] else ("reject", "too risky")

    text = printed(f"  approvals: {word}\n", max_cycles="2")
    text = text.replace("contains: tsc", "contains: no")
    stage = Stage(plan_of(text), lambda *_: next(turns), people=people)
    events = stage.run().events()
    pending = payloads(events, "tool.pending_approval")
    assert [(one["callId"], one["reason"]) for one in pending] == [
        ("c1", "to compile"),
        ("c2", None),
    ]
    results = {one["callId"]: one for one in payloads(events, "tool_result")}
    assert results["c1"]["isError"] is False
    rejected = results["c2"]["result"]
    assert (rejected["rejected"], rejected["reason"]) == (True, "too risky")
    assert results["c2"]["isError"] is True
    assert payloads(events, "run.completed")[0]["terminatedBy"] == "text-includes"


# -- replay, composites ----------------------------------------------------------------------------


def test_every_cycle_is_in_the_log() -> None:
    """Per cycle: the text, the calls and results, and what ended it, from the events alone."""
    turns = iter([COMPILES, turn("done <task-complete>")])
    stage = Stage(plan_of(printed()), lambda *_: next(turns), tool=lambda _: done("{}", code=1))
    events = stage.run().events()
    texts = [
        part["text"]
        for one in payloads(events, "message")
        for part in one["content"]
        if part["type"] == "text"
    ]
    assert texts == ["compiling", "done <task-complete>"]
    assert [one["cycle"] for one in payloads(events, "cycle.start")] == [1, 2]
    (completed,) = payloads(events, "run.completed")
    assert (completed["cycles"], completed["terminatedBy"]) == (2, "text-includes")


@pytest.mark.parametrize("strategy", ["sequential", "parallel", "debate", "iterative"])
def test_iteration_and_composite_exclude_each_other(strategy: str) -> None:
    """A spec with both is rejected when it is read, and the message says what to write."""
    both = f"composite: {{strategy: {strategy}, subagents: [{{agent: other}}]}}\n"
    plan, problems = lowered(printed() + both)
    assert plan is None
    (one,) = [one for one in problems if one.code == "mutually-exclusive"]
    assert "composite.strategy: iterative" in (one.hint or "")


def test_a_subagent_of_an_iterative_composite_may_itself_be_iteration_based() -> None:
    """The two compose: each round of the composite is a loop of its subagent."""
    team = printed().split("iteration:")[0].replace("local-coder-iterative", "team")
    team += LEFT_OUT.replace("APPROVALS", "").split("tools:")[0]
    team += (
        "composite:\n  strategy: iterative\n  subagents: [{agent: local-coder-iterative}]\n"
        "  iteration: {max_rounds: 3, terminate: $.ready}\n"
    )
    plan, problems = lowered(team, {"local-coder-iterative.yaml": printed().encode()})
    assert problems == []
    assert plan is not None
    spoken = iter(["hm", '{"ready": false} <task-complete>', '{"ready": true} <task-complete>'])
    stage = Stage(plan, lambda *_: turn(next(spoken))).run()
    assert stage.driver.ended[0] == "completed"
    events = stage.events()
    assert [one["round"] for one in payloads(events, "composite.iteration")] == [1, 2]
    assert len(payloads(events, "cycle.start")) == 3
