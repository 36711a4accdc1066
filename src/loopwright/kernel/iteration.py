"""Checks of an iteration that need a program, an agent or a person, and the gate after it."""

from typing import Literal, NamedTuple, assert_never

import msgspec

from loopwright.kernel.bodies.conversation import inspect_cycle
from loopwright.kernel.checks import (
    CheckResult,
    ChecksDecision,
    DueCheck,
    check_name,
    command_result,
    goal_result,
    inspect,
    is_unfit,
    judge_result,
    match_result,
    person_result,
)
from loopwright.kernel.effects import parked_until
from loopwright.kernel.event_parts import AgentCall, CommandCall, Failure, MatchCall, SleepCall
from loopwright.kernel.events import (
    AnyEvent,
    CancelRequested,
    CheckVerdict,
    EffectDone,
    EffectFailed,
)
from loopwright.kernel.frames import (
    IterationOwner,
    RepeatBody,
    Result,
    StepsBody,
)
from loopwright.kernel.gates import open_gate
from loopwright.kernel.references import missing_value, request_text, scope_at
from loopwright.kernel.state import KernelServices, State, cap, has_to_wait, request_effect
from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    FailStep,
    LoopGate,
    ModelCycle,
    Repeat,
    RunCommand,
    RunScript,
    Steps,
    StopRun,
    Wait,
)
from loopwright.model.checks import (
    Approval,
    Cap,
    CommandCheck,
    Contains,
    Expr,
    Goal,
    Judge,
    Leaf,
    NoCalls,
    OutputSchema,
    PersonCheck,
    Regex,
    ResultField,
    ResultPath,
    ScriptCheck,
    Signal,
    SpendCheck,
    ToolResultCheck,
)
from loopwright.model.ids import CHECK_BACKOFF, CheckPurpose, judge_path
from loopwright.model.record import Template, Text

MATCH_MS = 5_000  # for one search with the JavaScript engine
JUDGE_TRIES = 2  # a judge whose answer is not valid is asked once more, with the problem


class IterationEnd(NamedTuple):
    """How an iteration ends: the result of its body, and what its checks or a person decided."""

    ended: Result
    settled: ChecksDecision


def run_check(
    state: State, owner: IterationOwner, ended: Result, due: DueCheck, services: KernelServices
) -> list[AnyEvent]:
    """The verdict of a check that is due, or what has to happen before it has one."""
    about = _reviewed(owner, due.leaf) or ended
    result = inspect_cycle(owner, due.leaf, services) or inspect(
        due.leaf,
        services,
        output=about.output,
        result=about.result,
        instructions=_instructions(state, owner, due.leaf, services),
    )
    if result is not None:
        return [_verdict(state, owner, due, result, services.keep(result.evidence))]
    return _ask(state, owner, ended, due, services)


def _reviewed(owner: IterationOwner, leaf: Leaf) -> Result | None:
    """The output of the stage that reviews, if it is named; else the result of the iteration."""
    body = owner.body
    if not isinstance(leaf, Approval) or leaf.stage is None or not isinstance(body, StepsBody):
        return None
    return body.results.get(leaf.stage)


# -- checks that need more than the texts of the iteration -----------------------------------------


def _ask(
    state: State, owner: IterationOwner, ended: Result, ask: DueCheck, services: KernelServices
) -> list[AnyEvent]:
    """A check that needs the state of the run, a program, an agent or a person."""
    match ask.leaf:
        case Expr() as leaf:
            result = _evaluated(state, owner, ended, leaf, services)
            return [_verdict(state, owner, ask, result, services.keep(result.evidence))]
        case CommandCheck() as leaf:
            call = CommandCall(argv=leaf.argv, timeout_ms=leaf.timeout_ms)
            return _ask_program(state, owner, ask, call)
        case ScriptCheck() as leaf:
            argv = (leaf.interpreter, "-c", leaf.text)
            return _ask_program(
                state, owner, ask, CommandCall(argv=argv, timeout_ms=leaf.timeout_ms)
            )
        case Regex() as leaf:
            return _ask_match(state, owner, ended, ask, leaf, services)
        case Judge() | Goal() as leaf:
            return _ask_judge(state, owner, ask, leaf, services)
        case PersonCheck() as leaf:
            return _ask_person(state, owner, ended, ask, leaf, services)
        case (
            Cap()
            | Contains()
            | Signal()
            | OutputSchema()
            | ResultField()
            | ResultPath()
            | Approval()
        ):
            raise AssertionError("a check of texts has its result already")
        case NoCalls() | SpendCheck() | ToolResultCheck():
            raise AssertionError("a check of a turn has its result already")
        case leaf:
            assert_never(leaf)


def _evaluated(
    state: State, owner: IterationOwner, ended: Result, leaf: Expr, services: KernelServices
) -> CheckResult:
    result = services.evaluate(leaf.text, scope_at(state, owner, services, ended), wants="bool")
    if result.problem:
        return CheckResult("error", result.problem)
    return CheckResult("pass" if result.value is True else "fail")


def _ask_program(
    state: State, owner: IterationOwner, ask: DueCheck, call: CommandCall
) -> list[AnyEvent]:
    if owner.checks.pending is not None:
        return []
    answer = owner.checks.answer
    if answer is None:
        return [request_effect(state, owner, CheckPurpose(ask.index), _next_try(owner, ask), call)]
    if isinstance(answer, EffectFailed):
        until = parked_until(answer.error, parks=owner.checks.parks, now=state.now)
        if until is not None:
            return [
                request_effect(
                    state, owner, CHECK_BACKOFF, owner.checks.tries, SleepCall(until=until)
                )
            ]
    assert isinstance(ask.leaf, CommandCheck | ScriptCheck)
    result = command_result(ask.leaf, answer)
    tail: Text = answer.output if isinstance(answer, EffectDone) else result.evidence
    return [_verdict(state, owner, ask, result, tail)]


def _ask_match(
    state: State,
    owner: IterationOwner,
    ended: Result,
    ask: DueCheck,
    leaf: Regex,
    services: KernelServices,
) -> list[AnyEvent]:
    if owner.checks.pending is not None:
        return []
    if owner.checks.answer is None:
        text = ended.output if ended.output is not None else ""
        call = MatchCall(
            pattern=leaf.pattern, text=text, ignore_case=leaf.ignore_case, timeout_ms=MATCH_MS
        )
        return [request_effect(state, owner, CheckPurpose(ask.index), _next_try(owner, ask), call)]
    result = match_result(owner.checks.answer, services)
    return [_verdict(state, owner, ask, result, services.keep(result.evidence))]


def _ask_judge(
    state: State, owner: IterationOwner, ask: DueCheck, leaf: Judge | Goal, services: KernelServices
) -> list[AnyEvent]:
    if owner.checks.pending is not None:
        return []
    answer = owner.checks.answer
    tries = owner.checks.tries
    if isinstance(answer, EffectFailed):
        until = parked_until(answer.error, parks=owner.checks.parks, now=state.now)
        if until is not None:
            return [request_effect(state, owner, CHECK_BACKOFF, tries, SleepCall(until=until))]
    if answer is None or _asks_again(owner, leaf, answer, services):
        if has_to_wait(state, owner):
            return []
        role: Literal["judge", "goal"] = "judge" if isinstance(leaf, Judge) else "goal"
        call = AgentCall(agent=leaf.agent, role=role, step=judge_path(owner.parent.owner.path))
        return [request_effect(state, owner, CheckPurpose(ask.index), _next_try(owner, ask), call)]
    result = (
        judge_result(answer, services) if isinstance(leaf, Judge) else goal_result(answer, services)
    )
    return [_verdict(state, owner, ask, result, services.keep(result.evidence))]


def _next_try(owner: IterationOwner, ask: DueCheck) -> int:
    """The number of the next effect that asks a check about an iteration."""
    if owner.checks.tries or ask.index not in owner.checks.numbers:
        return owner.checks.tries + 1
    return owner.checks.numbers[ask.index] + 1


def _asks_again(
    owner: IterationOwner,
    leaf: Judge | Goal,
    answer: EffectDone | EffectFailed,
    services: KernelServices,
) -> bool:
    """Whether a judge is asked once more for an answer that fits; an evaluator whose words can be
    read has answered.
    """
    tries = owner.checks.tries - owner.checks.parks - owner.checks.earlier
    if not is_unfit(answer) or tries >= JUDGE_TRIES:
        return False
    return isinstance(leaf, Judge) or goal_result(answer, services).verdict == "error"


def _ask_person(
    state: State,
    owner: IterationOwner,
    ended: Result,
    ask: DueCheck,
    leaf: PersonCheck,
    services: KernelServices,
) -> list[AnyEvent]:
    if owner.gate is None:
        gate = LoopGate(message=leaf.message, answers=leaf.answers)
        return [open_gate(state, owner, "pass", gate, services, output=ended.output)]
    if owner.gate.decision is None:
        return []
    result = person_result(leaf, owner.gate)
    return [_verdict(state, owner, ask, result, services.keep(result.evidence))]


# -- a person after the iteration ------------------------------------------------------------------


def is_gated(owner: IterationOwner, settled: ChecksDecision) -> bool:
    """Whether a person is asked after this iteration: not about a look before the first one, and
    not when one of the checks has just asked.
    """
    gate = owner.parent.action.gate
    if gate is None or owner.number < 0 or owner.answered_gate is not None:
        return False
    if gate.after:
        return settled.verdict == "fail" and _is_stuck(owner.parent, gate)
    return settled.verdict == "fail" or (gate.first_always and owner.number == 0)


def _is_stuck(repeat: RepeatBody, gate: LoopGate) -> bool:
    """Whether so many iterations in a row have not ended the loop, and there may be others."""
    most = cap(repeat)
    is_last = most is not None and repeat.finished + 1 >= most
    return repeat.progress.unmet + 1 >= gate.after and not is_last


def gate_after_iteration(
    state: State,
    owner: IterationOwner,
    ended: Result,
    settled: ChecksDecision,
    services: KernelServices,
) -> list[AnyEvent] | IterationEnd:
    """The question to a person after an iteration; when it is answered, how the iteration ends."""
    gate = owner.parent.action.gate
    assert gate is not None
    if owner.gate is None:
        unfit = missing_value(state, owner, gate.message, services)
        if unfit is not None:
            return IterationEnd(_unshown(ended, unfit), ChecksDecision("fail", "error"))
        return [open_gate(state, owner, "pass", gate, services, output=ended.output)]
    match owner.gate.decision:
        case None:
            return []
        case "approve":
            return IterationEnd(ended, _approved(owner, gate, settled))
        case "reject":
            words = owner.gate.text or "rejected by a person"
            if gate.reject == "cancel":
                return (
                    []
                    if state.control.cancel
                    else [CancelRequested(at=state.now, reason="rejected")]
                )
            return IterationEnd(ended, ChecksDecision("rejected", words))
        case "continue":
            return IterationEnd(ended, ChecksDecision("fail"))
        case never:
            assert_never(never)


def _unshown(ended: Result, why: str) -> Result:
    """An iteration that needs a review but cannot open a gate has failed: no answer could
    arrive.
    """
    error = Failure(type="bad_input", detail=f"the question cannot be put: {why}")
    return msgspec.structs.replace(ended, status="failed", error=error)


def _approved(owner: IterationOwner, gate: LoopGate, settled: ChecksDecision) -> ChecksDecision:
    """An approval ends the loop; where approvals continue, only one without text of an iteration
    whose check has passed does.
    """
    assert owner.gate is not None
    if not gate.approve_continues:
        return ChecksDecision("pass", "approved")
    if settled.verdict == "pass" and not owner.gate.text:
        return settled
    return ChecksDecision("fail")


def _verdict(
    state: State, owner: IterationOwner, ask: DueCheck, result: CheckResult, evidence: Text
) -> AnyEvent:
    return CheckVerdict(
        at=state.now,
        path=owner.path,
        iteration=owner.iteration,
        index=ask.index,
        check=check_name(ask.leaf),
        verdict=result.verdict,
        evidence=evidence,
        by=judge_path(owner.parent.owner.path) if isinstance(ask.leaf, Judge | Goal) else "",
        tree=state.snapshots.last,
    )


def _instructions(state: State, owner: IterationOwner, leaf: Leaf, services: KernelServices) -> str:
    """What the agents of an iteration were asked, for telling a signal from an echo of the
    request.
    """
    return requests_of(state, owner, services) if isinstance(leaf, Signal | Approval) else ""


def requests_of(state: State, owner: IterationOwner, services: KernelServices) -> str:
    """What the agents of an iteration are asked, as the author of the definition wrote it."""
    prompts = _prompts(owner.parent.action.body) or [()]
    return "\n".join(request_text(state, owner, prompt, services) for prompt in prompts)


def _prompts(action: Action) -> list[Template]:
    match action:
        case CallAgent(prompt=prompt):
            return [prompt]
        case Repeat(body=body):
            return _prompts(body)
        case Steps(steps=steps):
            return [prompt for step in steps for prompt in _prompts(step.action)]
        case RunCommand() | RunScript() | AskPerson() | Wait() | StopRun() | FailStep():
            return []
        case ModelCycle():
            return []
        case _:
            assert_never(action)
