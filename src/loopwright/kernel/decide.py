"""Decide: what follows from the state. Facts in, facts out; never raises for what a run may do.

`settle` is the whole engine in one function: look at every owner that a fact has touched, let it
say what follows, fold that, and go on until nothing is left to say.
"""

from typing import assert_never

from loopwright.kernel.answers import free_slot
from loopwright.kernel.calls import CommandCall, SleepCall
from loopwright.kernel.checks import (
    Ask,
    Said,
    Settled,
    check_name,
    command_said,
    inspect,
    person_said,
    weigh,
)
from loopwright.kernel.close import close_inside
from loopwright.kernel.facts import (
    AnyFact,
    CheckVerdict,
    EffectDone,
    Failure,
    IterationFinished,
    RunFinished,
    StepFinished,
)
from loopwright.kernel.fold import apply
from loopwright.kernel.frames import LeafBody, Owner, PassOwner, Result, RunOwner, StepOwner
from loopwright.kernel.gates import open_gate
from loopwright.kernel.outcome import outcome
from loopwright.kernel.proceed import proceed, request
from loopwright.kernel.state import Senses, State, is_full, limits_of
from loopwright.kernel.texts import request_text
from loopwright.model.actions import Action, CallAgent, Gate, Repeat, Steps
from loopwright.model.checks import Command, Leaf, Person, Signal
from loopwright.model.record import Text
from loopwright.model.template import Template


def settle(state: State, senses: Senses, at: int = 0) -> list[AnyFact]:
    """Everything that follows now, already folded into the state; `at` is the time."""
    state.now = max(state.now, at)
    new: list[AnyFact] = []
    while state.agenda or _use_free_slot(state):
        owner = state.agenda.popleft()
        owner.queued = False
        if owner.closed:
            continue
        for fact in decide(state, owner, senses):
            apply(state, fact)
            new.append(fact)
    return new


def _use_free_slot(state: State) -> bool:
    """Let a call that waits for a place among the parallel ones be looked at when there is one.

    Whoever was looked at before may have had no use for the place.
    """
    if is_full(state):
        return False
    free_slot(state)
    return bool(state.agenda)


def decide(state: State, owner: Owner, senses: Senses) -> list[AnyFact]:
    """What follows for one owner; nothing when it waits."""
    if state.finished is not None or state.started is None:
        return []
    if state.cancel is not None:
        return _cancelled(state)
    match owner:
        case RunOwner():
            return _decide_run(state, owner, senses)
        case StepOwner():
            return _decide_step(state, owner, senses)
        case PassOwner():
            return _decide_pass(state, owner, senses)
        case _:
            assert_never(owner)


def _cancelled(state: State) -> list[AnyFact]:
    assert state.cancel is not None
    why = state.cancel.reason
    facts = close_inside(state, state.root, why)
    facts.append(RunFinished(at=state.now, outcome="cancelled", reason=why))
    return facts


def _decide_run(state: State, owner: RunOwner, senses: Senses) -> list[AnyFact]:
    ended = _deadline_result(owner) or outcome(state, owner.body, senses)
    if ended is None:
        return [*_deadline(state, owner), *proceed(state, owner.body, senses)]
    facts = close_inside(state, owner, ended.reason)
    facts.append(
        RunFinished(
            at=state.now,
            outcome="completed" if ended.status == "skipped" else ended.status,
            reason=ended.reason,
            output=ended.output,
            result=ended.result,
            error=ended.error,
        )
    )
    return facts


def _decide_step(state: State, owner: StepOwner, senses: Senses) -> list[AnyFact]:
    ended = _deadline_result(owner) or outcome(state, owner.body, senses)
    if ended is None:
        return [*_deadline(state, owner), *proceed(state, owner.body, senses)]
    facts = close_inside(state, owner, ended.reason)
    facts.append(
        StepFinished(
            at=state.now,
            path=owner.path,
            iteration=owner.iteration,
            status=ended.status,
            reason=ended.reason,
            output=ended.output,
            result=ended.result,
            error=ended.error,
            iterations=ended.iterations,
        )
    )
    return facts


def _deadline(state: State, owner: Owner) -> list[AnyFact]:
    """The timer of a place with a time limit, asked for once, when the place begins."""
    if owner.deadline is not None or not state.has_wall:
        return []
    if isinstance(owner, PassOwner):
        wall = owner.parent.action.limits.pass_wall_ms
    else:
        wall = limits_of(state, owner).wall_ms
    if wall is None:
        return []
    return [request(state, owner, "deadline", 1, SleepCall(until=state.now + wall))]


def _deadline_result(owner: Owner) -> Result | None:
    if not owner.deadline_hit:
        return None
    error = Failure(type="deadline", detail="the time limit was reached")
    return Result("exhausted", "deadline", error=error)


# -- a pass ----------------------------------------------------------------------------------------


def _decide_pass(state: State, owner: PassOwner, senses: Senses) -> list[AnyFact]:
    ended = _deadline_result(owner) or _pass_outcome(state, owner, senses)
    if ended is None:
        return [*_deadline(state, owner), *proceed(state, owner.body, senses)]
    if ended.status != "completed" or owner.parent.action.each is not None:
        return _finish_pass(state, owner, ended, Settled("fail", ended.reason))
    return _judge_pass(state, owner, ended, senses)


def _pass_outcome(state: State, owner: PassOwner, senses: Senses) -> Result | None:
    """How the body of a pass ended; a look before the first pass has no body to wait for."""
    if owner.number < 0:
        return Result("completed")
    return outcome(state, owner.body, senses)


def _finish_pass(state: State, owner: PassOwner, ended: Result, settled: Settled) -> list[AnyFact]:
    facts = close_inside(state, owner, settled.reason or ended.reason)
    status, error = ended.status, ended.error
    if settled.verdict == "rejected":
        status, error = "failed", Failure(type="rejected", detail=settled.reason)
    leaf = isinstance(owner.body, LeafBody)
    facts.append(
        IterationFinished(
            at=state.now,
            path=owner.path,
            iteration=owner.iteration,
            status=status,
            done=settled.verdict == "pass",
            reason="rejected" if settled.verdict == "rejected" else settled.reason,
            output=None if leaf else ended.output,
            result=None if leaf else ended.result,
            error=error,
        )
    )
    return facts


def _judge_pass(state: State, owner: PassOwner, ended: Result, senses: Senses) -> list[AnyFact]:
    """Ask the checks one after the other until they have come to a decision."""
    weighed = weigh(owner.parent.action.until, owner.verdicts)
    if isinstance(weighed, Settled):
        if weighed.verdict == "rejected":
            words = next((n.evidence for n in owner.notes if n.verdict == "rejected"), "")
            weighed = Settled("rejected", senses.read(words))
        if weighed.verdict == "fail" and _is_gated(owner):
            return _gate_after_pass(state, owner, ended, senses)
        return _finish_pass(state, owner, ended, weighed)
    said = inspect(
        weighed.leaf,
        senses,
        output=ended.output,
        result=ended.result,
        instructions=_instructions(state, owner, weighed.leaf, senses),
    )
    if said is not None:
        return [_verdict(state, owner, weighed, said, senses.keep(said.evidence))]
    return _ask(state, owner, ended, weighed, senses)


def _ask(state: State, owner: PassOwner, ended: Result, ask: Ask, senses: Senses) -> list[AnyFact]:
    """A check that needs the world: a program or a person."""
    match ask.leaf:
        case Command() as leaf:
            if owner.check_pending is not None:
                return []
            answer = owner.check_answer
            if answer is None:
                call = CommandCall(argv=leaf.argv, timeout_ms=leaf.timeout_ms)
                return [request(state, owner, f"check{ask.index}", 1, call)]
            said = command_said(leaf, answer)
            tail: Text = answer.output if isinstance(answer, EffectDone) else said.evidence
            return [_verdict(state, owner, ask, said, tail)]
        case Person() as leaf:
            if owner.gate is None:
                gate = Gate(message=leaf.message, answers=leaf.answers)
                return [open_gate(state, owner, "pass", gate, senses, output=ended.output)]
            if owner.gate.decision is None:
                return []
            said = person_said(leaf, owner.gate)
            return [_verdict(state, owner, ask, said, senses.keep(said.evidence))]
        case other:
            raise AssertionError(f"no decider for the check {check_name(other)}")


def _is_gated(owner: PassOwner) -> bool:
    """Whether a person is asked after this pass: not about a look before the first one, and not
    when one of the checks has just asked.
    """
    return owner.parent.action.gate is not None and owner.number >= 0 and owner.heard is None


def _gate_after_pass(
    state: State, owner: PassOwner, ended: Result, senses: Senses
) -> list[AnyFact]:
    gate = owner.parent.action.gate
    assert gate is not None
    if owner.gate is None:
        return [open_gate(state, owner, "pass", gate, senses, output=ended.output)]
    match owner.gate.decision:
        case None:
            return []
        case "approve":
            return _finish_pass(state, owner, ended, Settled("pass", "approved"))
        case "reject":
            words = owner.gate.text or "rejected by a person"
            return _finish_pass(state, owner, ended, Settled("rejected", words))
        case "continue":
            return _finish_pass(state, owner, ended, Settled("fail"))
        case never:
            assert_never(never)


def _verdict(state: State, owner: PassOwner, ask: Ask, said: Said, evidence: Text) -> AnyFact:
    return CheckVerdict(
        at=state.now,
        path=owner.path,
        iteration=owner.iteration,
        index=ask.index,
        check=check_name(ask.leaf),
        verdict=said.verdict,
        evidence=evidence,
    )


def _instructions(state: State, owner: PassOwner, leaf: Leaf, senses: Senses) -> str:
    """What the agents of a pass were asked, for telling a signal from an echo of the request."""
    if not isinstance(leaf, Signal):
        return ""
    prompts = _prompts(owner.parent.action.body) or [()]
    return "\n".join(request_text(state, owner, prompt, senses) for prompt in prompts)


def _prompts(action: Action) -> list[Template]:
    match action:
        case CallAgent(prompt=prompt):
            return [prompt]
        case Repeat(body=body):
            return _prompts(body)
        case Steps(steps=steps):
            return [prompt for step in steps for prompt in _prompts(step.action)]
        case _:
            return []
