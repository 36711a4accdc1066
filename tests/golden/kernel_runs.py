"""Scripted runs of the kernel alone that reach the rarer kinds of events and purposes of effects.

The first edition of the golden logs is in `recording`; these complete it.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from loopwright.kernel.event_parts import (
    AgentCall,
    DiffStat,
    LookupCall,
    MatchCall,
    ModelCall,
    Snapshot,
    ToolCall,
)
from loopwright.kernel.events import (
    AgentChanged,
    BudgetReserved,
    BudgetSettled,
    EffectRepeated,
    EffectRequested,
    GateAnswered,
    RunEdited,
    RunForked,
    RunReopened,
    RunStarted,
    Usage,
)
from loopwright.kernel.reopened_runs import copied, end_of
from loopwright.model.actions import (
    AskPerson,
    CallAgent,
    Cel,
    Each,
    ModelCycle,
    Repeat,
    Rework,
    RunScript,
    Step,
    Steps,
    Wait,
)
from loopwright.model.chat import AssistantMessage, ModelTurn, RequestedCall, TextPart, encode_turn
from loopwright.model.checks import (
    AllOf,
    Cap,
    CommandCheck,
    Contains,
    Expr,
    Goal,
    Judge,
    NoCalls,
    Regex,
    ScriptCheck,
)
from loopwright.model.plan import Agent, Coordinator, Plan
from loopwright.model.policy import (
    ConversationHistory,
    Limits,
    ProgressLog,
    Retry,
    StageOutputs,
    WorkspacePolicy,
)
from loopwright.model.record import LiteralItems, Ref, literal
from tests.kernel.driving import (
    Driver,
    Fail,
    Reply,
    ScriptedAnswer,
    by_effect,
    by_iteration,
    decisions,
    drive,
    in_turn,
    plan_of,
    plan_of_steps,
)

WORK = CallAgent(agent="coder", prompt=literal("Make the tests pass."))
SPENT = Usage(input_tokens=100, output_tokens=20, usd=0.01)
BROKEN = Fail("agent", "broken")
LIMITED = Fail("rate_limited", "come back later", resets_at=5_000)


def reopen(run: Driver, **how: object) -> Driver:
    """Reopen a run that has ended, and drive it on."""
    run.clock += 1_000
    run.append(RunReopened(at=run.clock, by="ann", **how))  # type: ignore[arg-type]
    return run.run()


# -- runs that end and are taken up again ----------------------------------------------------------


def _stages(script: dict[str, ScriptedAnswer | str | int]) -> Driver:
    body = Steps(
        steps=(
            Step(id="plan", action=WORK),
            Step(id="code", action=WORK, needs=("plan",)),
            Step(id="review", action=WORK, needs=("code",)),
        )
    )
    loop = Repeat(body=body, max=2, until=Contains(text="APPROVED"), memory=StageOutputs())
    return drive(plan_of(loop), by_effect(script, "working"))


def resumed() -> Driver:
    """An iteration that failed half-way continues where it stopped."""
    run = _stages({"main.0.code/agent#1": BROKEN, "main.1.review/agent#1": "APPROVED"})
    return reopen(run, mode="continue", time_ms=60_000, limits=Limits(usd=3.0))


def restarted() -> Driver:
    """A run that reached its cap starts over, with one more iteration and another sandbox."""
    return reopen(_stages({}), mode="restart", passes=3, sandbox="workspace")


def stage_left_out() -> Driver:
    """A person leaves the failed step of a stopped iteration out, and says why."""
    run = _stages({"main.0.code/agent#1": BROKEN})
    return reopen(run, stage="skip", note="The code is there already.")


def retried_whole() -> Driver:
    """A step of several parts fails and begins again as a whole; another has no attempts left."""
    parts = Steps(steps=(Step(id="pack", action=WORK), Step(id="ship", action=WORK)))
    again = Retry(attempts=2, base_ms=10, on=("any",))
    plan = plan_of_steps(
        Step(id="deliver", action=parts, retry=again),
        Step(id="fetch", action=WORK, retry=again, on_error="continue"),
        Step(id="never", action=WORK, needs=("fetch",), when=Cel(text="1 / 0 > 1")),
    )
    answers = {"deliver.ship/agent#1": BROKEN, "fetch/agent#1": BROKEN, "fetch/agent#2": BROKEN}
    return drive(plan, by_effect(dict(answers)))


def forked() -> Driver:
    """The copy of a run after its first iteration, with a person's words for the next."""
    run = drive(
        plan_of(Repeat(body=WORK, max=3, until=Contains(text="DONE"), memory=ProgressLog())),
        by_iteration("one", "two", "three"),
    )
    first = run.events[0]
    assert isinstance(first, RunStarted)
    prefix = run.events[: end_of(run.events, "main.0")]
    now = prefix[-1].at + 1_000
    begins = replace(first, run="r_fork", parent=first.run)
    fork = RunForked(at=now, parent=first.run, place="main.0", text="Be brief.", by="ann", passes=2)
    events = [*copied(prefix, begins, now), fork]
    other = Driver(run.plan, by_iteration("one", "DONE"), texts=run.texts, events=events, clock=now)
    return other.start().run()


# -- checks ----------------------------------------------------------------------------------------


def _judged(request: EffectRequested) -> ScriptedAnswer:
    if isinstance(request.call, MatchCall):
        return Reply("ab", code=0)
    if not isinstance(request.call, AgentCall):
        return Reply("1 passed", code=0)
    if request.call.role == "judge":
        if request.effect == "main.0/check4#1":
            return Fail("bad_result", "not JSON")
        if request.effect == "main.1/check4#1":
            return LIMITED
        done = "true" if request.iteration == 2 else "false"
        return Reply("judged", result=f'{{"done":{done},"reason":"as I see it"}}', usage=SPENT)
    return Reply("a text with ab in it")


def judged() -> Driver:
    """Every check that needs an effect; a judge is asked again, and waits for a rate limit."""
    checks = AllOf(
        parts=(
            ScriptCheck(text="./check", env={"WHAT": (Ref(of="message"),)}),
            Regex(pattern="(?<=a)b", engine="javascript"),
            Expr(text="iteration >= 1"),
            CommandCheck(argv=("make", "test")),
            Judge(agent="judge"),
        )
    )
    return drive(plan_of(Repeat(body=WORK, max=3, until=checks)), _judged)


def goal_reached() -> Driver:
    """An evaluator of the goal of a loop of stages, which first has to wait."""

    def script(request: EffectRequested) -> ScriptedAnswer:
        if isinstance(request.call, AgentCall) and request.call.role == "goal":
            if request.effect.endswith("#1"):
                return LIMITED
            return Fail("bad_result", "not JSON", text="ACHIEVED\nIt works.")
        return Reply("Code.")

    body = Steps(steps=(Step(id="code", action=WORK), Step(id="read", action=WORK)))
    loop = Repeat(body=body, max=2, until=Goal(agent="judge"), memory=StageOutputs())
    return drive(plan_of(loop), script)


# -- people, scripts and waits ---------------------------------------------------------------------


def reworked() -> Driver:
    """A rejection is worked on, a script reads values, a wait ends by its timer."""
    plan = plan_of_steps(
        Step(id="gather", action=RunScript(text="list", env={"WHAT": (Ref(of="message"),)})),
        Step(id="rest", action=Wait(ms=500), needs=("gather",)),
        Step(
            id="ask",
            action=AskPerson(on_reject=Rework(agent="fixer", attempts=2)),
            needs=("rest",),
        ),
    )
    return drive(plan, people=in_turn("reject", "approve"))


def blocked() -> Driver:
    """A step that says that it is blocked, and one that leaves no artifact: a person decides."""
    body = Steps(
        steps=(
            Step(id="code", action=WORK, on_blocked="ask", needs_artifact=True),
            Step(id="review", action=WORK, needs=("code",)),
        )
    )

    def script(request: EffectRequested) -> ScriptedAnswer:
        if isinstance(request.call, LookupCall):
            return Reply("plan.md", code=0) if request.effect.endswith("#2") else Reply(code=1)
        if request.effect == "main.0.code/agent#1":
            return Reply("STATUS: BLOCKED\nno access")
        return Reply("APPROVED")

    loop = Repeat(body=body, max=2, until=Contains(text="APPROVED"), memory=StageOutputs())
    return drive(plan_of(loop), script, in_turn("continue", "continue", "approve"))


def stopped_at_gate() -> Driver:
    """A stop closes the question that was open."""
    run = drive(plan_of_steps(Step(id="ask", action=AskPerson()), Step(id="work", action=WORK)))
    run.cancel("stopped by ann")
    return run


def steered() -> Driver:
    """A run that is paused, edited and resumed, whose agent is changed and whose driver died."""
    loop = Repeat(body=WORK, max=3, until=Contains(text="DONE"))
    run = Driver(
        replace(plan_of(loop), agents={"coder": Agent(system="You write code.")}),
        by_iteration("one", "DONE"),
    ).start()
    run.pause()
    run.append(
        RunEdited(
            at=run.clock,
            message="Make the tests pass quickly.",
            passes=5,
            metadata={"ticket": "A-1"},
            labels=("nightly",),
            by="ann",
        )
    )
    run.append(
        AgentChanged(at=run.clock, agent="coder", becomes=Agent(system="You are brief."), by="ann")
    )
    run.append(EffectRepeated(at=run.clock, path="main.0", iteration=1, effect="main.0/agent#1"))
    run.answer("main.0/agent#1", "one")
    run.resume()
    return run.run()


def budgets() -> Driver:
    """The two kinds of events that are reserved for budgets: they fold and change nothing."""
    run = Driver(plan_of(Repeat(body=WORK, max=1)), by_iteration("one")).start()
    about = {"path": "main.0", "iteration": 1, "effect": "main.0/agent#1"}
    run.append(BudgetReserved(at=run.clock, usd=0.5, tokens=1_000, **about))  # type: ignore[arg-type]
    run.append(BudgetSettled(at=run.clock, usd=0.25, tokens=120, **about))  # type: ignore[arg-type]
    return run.run()


# -- a coordinator ---------------------------------------------------------------------------------


def coordinator_waits() -> Driver:
    """A coordinator whose model is overloaded at first, and which narrates and finalizes."""
    plan = plan_of_steps(
        Step(id="plan", action=WORK),
        Step(id="do", action=WORK, needs=("plan",)),
        coordinator=Coordinator(agent="lead"),
    )
    answers: dict[str, ScriptedAnswer | str | int] = {
        "/coordinator#1": Fail("overloaded", "busy"),
        "/coordinator#2": '{"tools": [{"name": "narrate", "args": {"text": "It begins."}}]}',
        "/coordinator#3": '{"tools": [{"name": "finalize", "args": {"summary": "Done."}}]}',
    }
    return drive(plan, by_effect(answers))


# -- chat models -----------------------------------------------------------------------------------


def _turn(text: str, *calls: RequestedCall) -> Reply:
    message = AssistantMessage(parts=(TextPart(text=text),) if text else ())
    turn = ModelTurn(message=message, calls=calls, model="fake")
    return Reply(text, result=encode_turn(turn), usage=Usage(900, 40, 0.02))


def _call(id: str, tool: str) -> RequestedCall:
    return RequestedCall(id=id, tool=tool, arguments={"path": "a"}, paths=("a",))


_TURNS = (
    _turn("I look.", _call("c1", "fs.read"), _call("c2", "fs.write")),
    _turn("I write. " * 20, _call("c3", "fs.read"), _call("c4", "fs.reed")),
    _turn("I go on. " * 20, _call("c5", "fs.read")),
    _turn("I read. " * 20, _call("c6", "fs.read")),
    _turn("That is all."),
)


def _chatting(request: EffectRequested) -> ScriptedAnswer:
    if isinstance(request.call, ToolCall):
        if request.call.call == "c3":
            return Fail("tool", "no such file")
        return Reply(f"{request.call.call} said " + "a line\n" * 20, code=0)
    assert isinstance(request.call, ModelCall)
    if request.call.role == "summary":
        return Reply("Files were read.", usage=SPENT)
    if request.effect == "main.1/model#1":
        return Fail("overloaded", "busy", retry_after_ms=100)
    return _TURNS[min((request.iteration or 1) - 1, len(_TURNS) - 1)]


def _chat(strategy: str) -> Driver:
    loop = Repeat(
        body=ModelCycle(agent="coder", prompt=literal("Tidy up."), nudge="Go on."),
        max=6,
        until=NoCalls(),
        memory=ConversationHistory(window=200, strategy=strategy, summaries=2),  # type: ignore[arg-type]
    )
    coder = Agent(spec="model:fake", approvals={"fs.write": "always"})
    retry = Retry(attempts=2, base_ms=50)
    run = Driver(replace(plan_of(loop, retry=retry), agents={"coder": coder}), _chatting).run()
    (gate,) = run.open_gates()
    run.clock += 1
    run.append(
        GateAnswered(
            at=run.clock,
            path=gate.path,
            iteration=gate.iteration,
            gate=gate.gate,
            decision="approve",
            by="ann",
            arguments='{"path":"b"}',
            remember=True,
        )
    )
    return run.run()


def conversation_summed_up() -> Driver:
    """Turns, tools, an approval with other arguments, and a history that is summarised."""
    return _chat("periodic-summary")


def conversation_cut() -> Driver:
    """The same with a history whose oldest entries are left out."""
    return _chat("rolling-window")


# -- snapshots -------------------------------------------------------------------------------------


def snapshots() -> Driver:
    """Snapshots before, between and after iterations; a protected file is changed in the first."""

    def script(request: EffectRequested) -> ScriptedAnswer:
        number = int(request.effect.rpartition("#")[2])
        if "/snapshot#" in request.effect:
            touched = ("tests/test_a.py",) if number == 2 else ()
            stat = DiffStat(files=number, insertions=10 * number, deletions=1)
            shot = Snapshot(tree=f"t{number}", changed=stat, total=stat, paths=touched)
            return Reply(snapshot=shot)
        return Reply("worked", code=0 if request.iteration == 2 else 1)

    policy = WorkspacePolicy(snapshots=True, protect=("tests/**",))
    loop = Repeat(body=WORK, max=3, until=CommandCheck(argv=("./test.sh", "-q")))
    plan = Plan(name="t", steps=(Step(id="main", action=loop),), workspace=policy)
    return drive(plan, script)


def items_in_parallel() -> Driver:
    """A list in parallel, one call at a time, with an iteration that is stopped by its time."""
    each = Each(items=LiteralItems(values=("a", "b", "c")), parallel=3, on_item_error="continue")
    inner = Repeat(body=WORK, max=2, until=Cap(), limits=Limits(pass_wall_ms=400), delay_ms=20)
    plan = replace(plan_of(Repeat(body=inner, each=each, output="list")), parallel=1)
    return drive(plan, by_effect({"main[1].0/agent#1": None}), decisions("approve"))


KERNEL_RUNS: dict[str, Callable[[], Driver]] = {
    "blocked": blocked,
    "budgets": budgets,
    "conversation_cut": conversation_cut,
    "conversation_summed_up": conversation_summed_up,
    "coordinator_waits": coordinator_waits,
    "forked": forked,
    "goal_reached": goal_reached,
    "items_in_parallel": items_in_parallel,
    "judged": judged,
    "restarted": restarted,
    "resumed": resumed,
    "retried_whole": retried_whole,
    "reworked": reworked,
    "snapshots": snapshots,
    "stage_left_out": stage_left_out,
    "steered": steered,
    "stopped_at_gate": stopped_at_gate,
}
