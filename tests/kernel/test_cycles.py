"""A cycle: a model's turn, its tools at once, people between them, and a conversation that fits."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from loopwright.kernel.event_parts import ModelCall, ToolCall
from loopwright.kernel.events import (
    AnyEvent,
    CheckVerdict,
    EffectRequested,
    GateAnswered,
    GateOpened,
    HistoryCompressed,
    TurnTaken,
    Usage,
)
from loopwright.kernel.frames import RepeatBody
from loopwright.model.actions import ModelCycle, Repeat
from loopwright.model.chat import AssistantMessage, ModelTurn, RequestedCall, TextPart, encode_turn
from loopwright.model.checks import (
    AnyOf,
    Cap,
    Check,
    Contains,
    NoCalls,
    SpendCheck,
    ToolResultCheck,
)
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import ConversationHistory, Limits, Retry
from tests.kernel.driving import Driver, Fail, Reply, ScriptedAnswer, nobody, plan_of
from tests.kernel.invariants import broken_laws

NEVER = Cap()
CYCLE = ModelCycle(agent="coder", nudge="Go on.")


def turn(text: str = "", *calls: RequestedCall, usage: Usage | None = None) -> Reply:
    """A model's answer: what it says, and the tools that it wants."""
    message = AssistantMessage(parts=(TextPart(text=text),) if text else ())
    return Reply(text, result=encode_turn(ModelTurn(message=message, calls=calls)), usage=usage)


def call(id: str, tool: str = "fs.read", **more: object) -> RequestedCall:
    return RequestedCall(id=id, tool=tool, **{"arguments": {"path": "a"}, "paths": ("a",), **more})


def plan(
    until: Check = NEVER,
    *,
    most: int = 5,
    memory: ConversationHistory | None = None,
    approvals: dict[str, str] | None = None,
    limits: Limits | None = None,
) -> Plan:
    made = plan_of(
        Repeat(
            body=CYCLE,
            max=most,
            until=until,
            memory=memory or ConversationHistory(window=100_000),
            limits=limits or Limits(),
        )
    )
    agents = {"coder": Agent(approvals=approvals or {})}
    return Plan(name=made.name, steps=made.steps, agents=agents)


def script(
    *turns: ScriptedAnswer, tools: Callable[[ToolCall], ScriptedAnswer] | None = None
) -> object:
    """The n-th cycle gets the n-th turn, the last one again and again."""

    def answer(request: EffectRequested) -> ScriptedAnswer:
        if isinstance(request.call, ToolCall):
            return tools(request.call) if tools else Reply(f"{request.call.call} said", code=0)
        assert isinstance(request.call, ModelCall)
        if request.call.role == "summary":
            return Reply("summed up", usage=Usage(usd=0.5))
        return turns[min((request.iteration or 1) - 1, len(turns) - 1)]

    return answer


def begun(plan: Plan, *turns: ScriptedAnswer, people: object = nobody, **more: object) -> Driver:
    return Driver(plan, script=script(*turns, **more), people=people).start()  # type: ignore[arg-type]


def loop_of(run: Driver) -> RepeatBody:
    body = run.state.owners["main"].body
    assert isinstance(body, RepeatBody)
    return body


def kinds(events: list[AnyEvent]) -> list[str]:
    return [str(type(event).__struct_config__.tag) for event in events]


def effects(run: Driver) -> list[str]:
    return [event.effect for event in run.events if isinstance(event, EffectRequested)]


def test_a_turn_and_its_tools() -> None:
    """The model is asked, all its tools are asked for in one append, and the next turn follows
    when each has answered, in whichever order.
    """
    run = begun(plan(most=2), turn("let me see", call("c1"), call("c2", "shell.exec")))
    assert effects(run) == ["main.0/model#1"]
    taken = run.answer("main.0/model#1", turn("let me see", call("c1"), call("c2", "shell.exec")))
    assert kinds(taken) == ["effect.done", "turn.taken", "effect.requested", "effect.requested"]
    assert run.answer("main.0/tool2#1", Reply("second", code=1))[1:] == []
    after = kinds(run.answer("main.0/tool1#1", Reply("first")))
    assert after == ["effect.done", "iteration.finished", "iteration.started", "effect.requested"]
    [said_by_model, said_by_tools] = loop_of(run).talk.history
    assert said_by_model.kind == "model"
    assert [(one.id, one.text, one.code) for one in said_by_tools.answers] == [
        ("c1", "first", None),
        ("c2", "second", 1),
    ]


def test_a_failing_tool_is_a_result() -> None:
    """The model sees what went wrong, and the loop goes on."""
    run = begun(
        plan(most=2),
        turn("", call("c1")),
        tools=lambda _: Fail("tool", "no such file"),
    ).run()
    assert run.ended[:2] == ("exhausted", "max_iterations")
    assert run.passes == 2


def test_a_call_with_a_problem_is_never_run() -> None:
    """An unknown tool or bad arguments: the model is told, nobody else is asked."""
    run = begun(
        plan(NoCalls()), turn("", call("c1", problem="there is no tool fs.reed")), turn("x")
    )
    run.answer("main.0/model#1", turn("", call("c1", problem="there is no tool fs.reed")))
    assert effects(run)[-1] == "main.1/model#1"
    [_, told] = loop_of(run).talk.history
    assert told.answers[0].error
    assert "no tool fs.reed" in str(told.answers[0].text)


@pytest.mark.item("aldo-14", "aldo-24", "aldo-25", "aldo-26")
@pytest.mark.parametrize(
    ("until", "ended"),
    [
        pytest.param(Contains(text="DONE"), ("completed", "contains"), id="text"),
        pytest.param(NoCalls(), ("completed", "no-calls"), id="no calls"),
        pytest.param(
            ToolResultCheck(tool="exec", exit_code=0, contains="ok"),
            ("completed", "tool-result"),
            id="short tool name, code and text",
        ),
        pytest.param(
            ToolResultCheck(tool="shell.exec", exit_code=3),
            ("exhausted", "max_iterations"),
            id="code",
        ),
        pytest.param(
            ToolResultCheck(tool="xec", contains="ok"),
            ("exhausted", "max_iterations"),
            id="part of a name",
        ),
        pytest.param(
            ToolResultCheck(tool="shell.exec", exit_code=0, contains="no"),
            ("exhausted", "max_iterations"),
            id="both must hold",
        ),
        pytest.param(
            AnyOf(parts=(SpendCheck(usd=0.2), Contains(text="DONE"))),
            ("exhausted", "budget"),
            id="money first",
        ),
        pytest.param(
            AnyOf(parts=(Contains(text="DONE"), SpendCheck(usd=0.2))),
            ("completed", "contains"),
            id="text first",
        ),
        pytest.param(SpendCheck(usd=0), ("exhausted", "budget"), id="a cap of 0 is met at once"),
    ],
)
def test_stop_rules(until: Check, ended: tuple[str, str]) -> None:
    """Rules are tried after the tools, in the order written; the first that holds ends the loop."""
    cost = Usage(usd=0.1)
    run = begun(
        plan(until, most=3),
        turn("work", call("c1", "shell.exec"), usage=cost),
        turn("DONE", usage=cost),
        tools=lambda _: Reply('{"stdout":"ok"}', code=0),
    ).run()
    assert run.ended[:2] == ended
    assert broken_laws(run.events) == []


def test_a_model_that_was_not_asked_is_not_silent() -> None:
    """A look at the rules before the first iteration finds no turn, so the model is asked."""
    made = plan(NoCalls())
    [step] = made.steps
    action = msgspec.structs.replace(step.action, check_first=True)
    step = msgspec.structs.replace(step, action=action)
    run = begun(msgspec.structs.replace(made, steps=(step,)), turn("fine")).run()
    assert [event.verdict for event in run.of(CheckVerdict)] == ["fail", "pass"]
    assert run.ended == ("completed", "no-calls", "fine")


def test_silence_is_answered() -> None:
    """A turn without a call that did not end the loop is followed by the nudge, and only then."""
    run = begun(plan(Contains(text="DONE"), most=3), turn("hm"))
    run.answer("main.0/model#1", turn("hm"))
    assert [(one.kind, one.text) for one in loop_of(run).talk.history[1:]] == [("user", "Go on.")]


HELD = {"shell.exec": "always"}


@pytest.mark.parametrize(
    ("rules", "wanted", "held"),
    [
        pytest.param({"shell.exec": "always"}, call("c", "shell.exec"), True, id="same name"),
        pytest.param({"sh.shell.exec": "always"}, call("c", "shell.exec"), True, id="long rule"),
        pytest.param({"shell.exec": "always"}, call("c", "sh.shell.exec"), True, id="long tool"),
        pytest.param({"exec": "always"}, call("c", "shell.exec"), True, id="short rule"),
        pytest.param({"xec": "always"}, call("c", "shell.exec"), False, id="part of a name"),
        pytest.param({"shell.exec": "never"}, call("c", "shell.exec"), False, id="never"),
        pytest.param({}, call("c", "shell.exec"), False, id="unlisted"),
        pytest.param(
            {"exec": "never", "shell.exec": "always"}, call("c", "shell.exec"), True, id="strictest"
        ),
        pytest.param({"fs.write": "protected_paths"}, call("c", "fs.write"), False, id="free path"),
        pytest.param(
            {"fs.write": "protected_paths"}, call("c", "fs.write", protected=True), True, id="held"
        ),
        pytest.param(
            {"fs.write": "protected_paths"}, call("c", "fs.write", paths=None), True, id="unknown"
        ),
    ],
)
def test_which_calls_wait_for_a_person(
    rules: dict[str, str], wanted: RequestedCall, held: bool
) -> None:
    """The tool's own name counts, long or short; what cannot be told is held."""
    run = begun(plan(approvals=rules), turn("", wanted))
    run.answer("main.0/model#1", turn("", wanted))
    assert bool(run.state.gates) is held
    assert ("main.0/tool1#1" in run.state.pending) is not held


@pytest.mark.item("aldo-33", "W29")
def test_each_held_call_is_its_own_gate() -> None:
    """Two held calls need two decisions; a free sibling runs meanwhile; edited arguments count."""
    wanted = turn("", call("c1", "shell.exec"), call("c2"), call("c3", "shell.exec"))
    run = begun(plan(approvals=HELD, most=1), wanted)
    run.answer("main.0/model#1", wanted)
    gates = {event.call: event for event in run.events if isinstance(event, GateOpened)}
    assert sorted(gates) == [1, 3]
    assert gates[1].gate != gates[3].gate
    assert sorted(run.state.pending) == ["main.0/tool2#1"]
    run.answer("main.0/tool2#1", Reply("read"))
    run.append(answer(gates[3], "approve", arguments='{"argv":["ls"]}'))
    [asked] = run.requests()
    assert isinstance(asked.call, ToolCall)
    assert asked.call.arguments == '{"argv":["ls"]}'
    run.append(answer(gates[1], "reject", text="not now"))
    run.answer("main.0/tool3#1", Reply("listed", code=0))
    assert run.state.finished is not None
    assert broken_laws(run.events) == []


def answer(gate: GateOpened, decision: str, **more: object) -> GateAnswered:
    return GateAnswered(
        at=gate.at + 1,
        path=gate.path,
        iteration=gate.iteration,
        gate=gate.gate,
        decision=decision,  # type: ignore[arg-type]
        by="ann",
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.item("aldo-35", "W29")
def test_a_rejection_is_reported_to_the_model() -> None:
    """It is an error result with the reason and who gave it, and the loop goes on."""
    run = begun(plan(approvals=HELD), turn("", call("c1", "shell.exec")))
    run.answer("main.0/model#1", turn("", call("c1", "shell.exec")))
    [gate] = [event for event in run.events if isinstance(event, GateOpened)]
    run.append(answer(gate, "reject", text="too risky"))
    [_, told] = loop_of(run).talk.history
    assert told.answers[0].error
    assert told.answers[0].text == '{"rejected":true,"reason":"too risky","approver":"ann"}'
    assert effects(run)[-1] == "main.1/model#1"


@pytest.mark.item("W29")
def test_an_approval_may_be_remembered() -> None:
    """The tool is not asked about again in this run."""
    wanted = turn("", call("c1", "shell.exec"))
    run = begun(plan(approvals=HELD), wanted)
    run.answer("main.0/model#1", wanted)
    [gate] = [event for event in run.events if isinstance(event, GateOpened)]
    run.append(answer(gate, "approve", remember=True))
    run.answer("main.0/tool1#1", Reply("ok"))
    run.answer("main.1/model#1", wanted)
    assert "main.1/tool1#1" in run.state.pending
    assert not run.state.gates


@pytest.mark.item("aldo-38")
def test_a_stop_while_a_person_is_asked() -> None:
    """The question is withdrawn, the running sibling ended, the held tool never run."""
    wanted = turn("", call("c1", "shell.exec"), call("c2"))
    run = begun(plan(approvals=HELD), wanted)
    run.answer("main.0/model#1", wanted)
    run.cancel()
    assert run.ended[0] == "cancelled"
    assert "main.0/tool1#1" not in effects(run)
    assert broken_laws(run.events) == []


# -- the conversation ------------------------------------------------------------------------------

LONG = "x" * 3_000


def compressed(run: Driver) -> list[HistoryCompressed]:
    return [event for event in run.events if isinstance(event, HistoryCompressed)]


@pytest.mark.item("aldo-42")
def test_nothing_is_cut_below_the_mark() -> None:
    """A conversation that fits is left alone."""
    run = begun(plan(most=4), turn("short", call("c1"))).run()
    assert compressed(run) == []


@pytest.mark.item("aldo-42", "aldo-43", "aldo-44")
@pytest.mark.parametrize("strategy", ["rolling-window", "periodic-summary"])
def test_old_turns_go_and_the_last_two_stay(strategy: str) -> None:
    """At the mark it is cut once before the next turn: the last two turns stay with their results,
    and a summary stands for the rest where one is wanted, three times at most.
    """
    memory = ConversationHistory(window=2_000, strategy=strategy)  # type: ignore[arg-type]
    run = begun(
        plan(most=30, memory=memory),
        turn("y" * 1_500, call("c1")),
        tools=lambda _: Reply("z" * 900),
    ).run()
    cuts = compressed(run)
    assert cuts
    for one in cuts:
        assert one.kept >= 4 or one.dropped == 0
    summed = [one for one in cuts if one.strategy == "periodic-summary"]
    assert len(summed) == (3 if strategy == "periodic-summary" else 0)
    assert all(one.summary == "summed up" for one in summed)
    assert run.state.usage.usd == pytest.approx(0.5 * len(summed))
    assert broken_laws(run.events) == []


def test_long_old_results_are_cut_before_turns_are_dropped() -> None:
    """When that is enough, nothing else goes."""
    memory = ConversationHistory(window=3_000)
    run = begun(
        plan(most=4, memory=memory), turn("look", call("c1")), tools=lambda _: Reply(LONG)
    ).run()
    [first, *_] = compressed(run)
    assert (first.strategy, first.dropped) == ("trim", 0)
    assert first.trimmed


def test_short_results_stay_whole_beside_a_long_one() -> None:
    """Of the results of one turn only those are cut that are long."""
    run = begun(
        plan(most=4, memory=ConversationHistory(window=3_000)), turn("look", call("c1"), call("c2"))
    )
    for number in range(3):
        run.answer(f"main.{number}/model#1", turn("look", call("c1"), call("c2")))
        run.answer(f"main.{number}/tool1#1", Reply("short"))
        run.answer(f"main.{number}/tool2#1", Reply(LONG))
    [first, *_] = compressed(run)
    assert (first.strategy, first.trimmed) == ("trim", (1, 3))
    short, long = loop_of(run).talk.history[1].answers
    assert short.text == "short"
    assert str(long.text).startswith("x" * 200)
    assert "[3000 characters" in str(long.text)


@pytest.mark.item("aldo-46")
def test_a_summary_that_fails_costs_nobody_the_run() -> None:
    """The middle is dropped instead, and the event says why there is no summary."""

    def answer(request: EffectRequested) -> ScriptedAnswer:
        if isinstance(request.call, ModelCall) and request.call.role == "summary":
            return Fail("overloaded", "busy")
        if isinstance(request.call, ToolCall):
            return Reply("z" * 900)
        return turn("y" * 1_500, call("c1"))

    memory = ConversationHistory(window=2_000, strategy="periodic-summary")
    run = Driver(plan(most=8, memory=memory), script=answer).run()
    assert compressed(run)[0].strategy == "rolling-window"
    assert "busy" in compressed(run)[0].note
    assert run.ended[1] == "max_iterations"


def test_a_provider_that_finds_it_too_long_is_asked_once_more() -> None:
    """Its overflow is answered by a cut and another try; a second one ends the run."""
    run = begun(plan(most=3), turn("hm", call("c1")))
    run.answer("main.0/model#1", turn("hm", call("c1")))
    run.answer("main.0/tool1#1", Reply("ok"))
    run.answer("main.1/model#1", Fail("overflow", "200001 tokens"))
    assert effects(run)[-1] == "main.1/model#2"
    assert len(compressed(run)) == 1
    run.answer("main.1/model#2", Fail("overflow", "200001 tokens"))
    assert run.ended[0] == "failed"


@pytest.mark.item("W30")
def test_the_providers_count_is_believed() -> None:
    """What it says it has read counts for more than an estimate."""
    memory = ConversationHistory(window=1_000)
    said = turn("hm", call("c1"), usage=Usage(input_tokens=900, output_tokens=10))
    run = begun(plan(most=4, memory=memory), said).run()
    assert compressed(run)


# -- failures --------------------------------------------------------------------------------------


def test_a_model_that_cannot_answer_ends_the_run() -> None:
    """It failed, and says why."""
    run = begun(plan(), Fail("auth", "no key")).run()
    assert run.ended[0] == "failed"
    assert run.end.error is not None
    assert run.end.error.detail == "no key"


def test_a_model_that_was_ended_from_outside() -> None:
    """A call that the world cancelled makes a cancelled run, with its words."""
    run = begun(plan(), Fail("cancelled", "killed")).run()
    assert run.ended == ("cancelled", "killed", "")


def test_a_retry_waits_and_asks_again() -> None:
    """Tries are counted apart from cycles."""
    made = plan(NoCalls())
    step = made.steps[0]
    retried = type(step)(id=step.id, action=step.action, retry=Retry(attempts=2))
    run = begun(Plan(name="x", steps=(retried,), agents=made.agents), turn("fine"))
    run.answer("main.0/model#1", Fail("overloaded", "busy"))
    assert effects(run)[-1] == "main.0/backoff#1"
    run.fire("main.0/backoff#1")
    assert effects(run)[-1] == "main.0/model#2"
    run.answer("main.0/model#2", turn("fine"))
    assert run.ended[:2] == ("completed", "no-calls")


def test_the_budget_is_looked_at_before_the_model_is_asked() -> None:
    """What is used up is not spent again."""
    run = begun(plan(limits=Limits(usd=0.1)), turn("hm", call("c1"), usage=Usage(usd=0.2))).run()
    assert run.ended[:2] == ("exhausted", "budget")
    assert run.passes == 1


def test_a_result_is_submitted_once() -> None:
    """The first one counts; a second in the same turn is told so."""
    wanted = turn(
        "",
        RequestedCall(id="c1", tool="submit_result", arguments={"n": 1}),
        RequestedCall(id="c2", tool="submit_result", arguments={"n": 2}),
    )
    run = begun(plan(most=1), wanted).run()
    assert run.end.result == '{"n":1}'
    [taken] = [event for event in run.events if isinstance(event, TurnTaken)]
    assert len(taken.calls) == 2


def test_cut_anywhere_and_taken_up_again() -> None:
    """A run that is folded from any prefix of its events goes on to the same events."""
    wanted = turn("y" * 300, call("c1"), call("c2", "shell.exec"))
    made = plan(Contains(text="DONE"), most=6, memory=ConversationHistory(window=450))
    whole = begun(made, wanted, wanted, wanted, turn("DONE")).run()
    assert compressed(whole)
    for end in whole.ends:
        again = Driver(
            made,
            script=whole.script,
            texts=whole.texts,
            events=list(whole.events[:end]),
        )
        again.start().run()
        assert kinds(again.events) == kinds(whole.events)


# -- decisions -------------------------------------------------------------------------------------


@pytest.mark.item("aldo-35", "aldo-36", "aldo-37")
@pytest.mark.parametrize(
    ("decision", "more", "runs_with"),
    [
        pytest.param("approve", {}, '{"path":"a"}', id="approve"),
        pytest.param("approve", {"text": "fine"}, '{"path":"a"}', id="approve with words"),
        pytest.param("approve", {"arguments": '{"path":"b"}'}, '{"path":"b"}', id="edited"),
        pytest.param("approve", {"remember": True}, '{"path":"a"}', id="remembered"),
        pytest.param("reject", {"text": "no"}, None, id="reject"),
        pytest.param("reject", {}, None, id="reject without words"),
        pytest.param("reject", {"arguments": '{"path":"b"}'}, None, id="reject with arguments"),
        pytest.param("reject", {"remember": True, "text": "no"}, None, id="reject and remember"),
        pytest.param("continue", {}, None, id="continue"),
        pytest.param("continue", {"text": "go on", "remember": True}, None, id="continue, words"),
        pytest.param("yes", {"text": "approve"}, None, id="a word that is none"),
        pytest.param("", {}, None, id="no word"),
    ],
)
def test_an_approval_alone_runs_a_held_call(
    decision: str, more: dict[str, object], runs_with: str | None
) -> None:
    """Any other word is a rejection that the model is told about, and nothing is remembered."""
    wanted = turn("", call("c1", "shell.exec"))
    run = begun(plan(approvals=HELD), wanted)
    run.answer("main.0/model#1", wanted)
    [gate] = [event for event in run.events if isinstance(event, GateOpened)]
    run.append(answer(gate, decision, **more))
    asked = {request.effect: request.call for request in run.requests()}
    assert bool(run.state.agents.remembered) is (runs_with is not None and "remember" in more)
    if runs_with is None:
        assert list(asked) == ["main.1/model#1"]
        [_, told] = loop_of(run).talk.history
        assert told.answers[0].error
        assert '"rejected":true' in str(told.answers[0].text)
        assert '"reason":""' not in str(told.answers[0].text)
    else:
        tool = asked["main.0/tool1#1"]
        assert isinstance(tool, ToolCall)
        assert tool.arguments == runs_with


@pytest.mark.item("aldo-36")
@pytest.mark.parametrize("second", ["approve", "reject", "continue"])
def test_a_second_word_changes_nothing(second: str) -> None:
    """The first decision counts: a call that was rejected is not run by a later approval."""
    wanted = turn("", call("c1", "shell.exec"))
    run = begun(plan(approvals=HELD), wanted)
    run.answer("main.0/model#1", wanted)
    [gate] = [event for event in run.events if isinstance(event, GateOpened)]
    run.append(answer(gate, "reject", text="no"))
    before = len(effects(run))
    run.append(answer(gate, second, arguments='{"path":"b"}', remember=True))
    assert "main.0/tool1#1" not in effects(run)
    assert len(effects(run)) == before
    assert not run.state.agents.remembered


@pytest.mark.item("W7", "W13")
def test_an_overflow_is_believed_over_the_estimate() -> None:
    """Where all seems to fit and the provider says that it does not, something really goes."""

    def answer(request: EffectRequested) -> ScriptedAnswer:
        if isinstance(request.call, ToolCall):
            return Reply("x" * 5_000)
        if request.iteration == 1:
            return turn("looking", call("c1"))
        return Fail("overflow", "too long") if request.effect.endswith("#1") else turn("done")

    run = Driver(plan(NoCalls(), memory=ConversationHistory(window=100_000)), script=answer).run()
    [shorter] = [event for event in run.events if isinstance(event, HistoryCompressed)]
    assert (shorter.strategy, shorter.dropped, shorter.trimmed) == ("trim", 0, (1,))
    assert run.ended == ("completed", "no-calls", "done")
