"""A loop: its iterations one after the other, the rules that end it, and what it remembers.

`outcome`, `next_events` and `close` decide: they return a result or events. `note_request`,
`note_answer`, `note_iteration` and `resume` fold: they change the body.
"""

import re
from collections.abc import Iterator
from typing import assert_never

import msgspec

from loopwright.kernel.bodies import conversation
from loopwright.kernel.bodies.call import NO_ANSWER
from loopwright.kernel.bodies.history import keep_conversation
from loopwright.kernel.effects import close_gate, withdraw
from loopwright.kernel.event_parts import Failure, SleepCall
from loopwright.kernel.events import AnyEvent, EffectDone, EffectFailed, IterationStarted
from loopwright.kernel.frames import (
    CycleBody,
    GateState,
    IterationOwner,
    RepeatBody,
    Result,
    StepsBody,
    set_value,
)
from loopwright.kernel.gates import kept_gate, open_gate
from loopwright.kernel.limits import (
    is_cut_off,
    loop_over_budget,
    out_of_time,
    renew_spent,
    request_loop_deadline,
    with_time,
)
from loopwright.kernel.state import (
    KernelServices,
    PendingEffect,
    State,
    cap,
    head,
    iterations_made,
    opening,
    request_effect,
)
from loopwright.model.actions import CallAgent, LoopGate
from loopwright.model.checks import (
    Approval,
    Cap,
    CommandCheck,
    Contains,
    Expr,
    Goal,
    Judge,
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
    leaves,
)
from loopwright.model.ids import DELAY, LoopDeadlinePurpose, iteration_path
from loopwright.model.policy import ProgressLog, StageOutputs
from loopwright.model.record import Text

OUTCOME_CHARS = 200


_LINES = re.compile(r"[\r\n]+")


LEARNINGS_KEPT = 1_000
"""How many learnings a loop that shows only the most recent ones keeps at least."""


# -- deciding --------------------------------------------------------------------------------------


def outcome(state: State, body: RepeatBody, services: KernelServices) -> Result | None:
    """The stop rules of a loop in their order: the first that holds ends it.

    The result of the last iteration counts before any limit, so a loop that is done on its last
    allowed iteration is done.
    """
    last = body.progress.last
    if body.deadline_hit and is_cut_off(body) and (body.active or not _is_settled(body)):
        late = out_of_time(state.plan)
        return _ended(body, services, late.status, late.reason, late.error)
    if body.active or last is None:
        return None
    if body.progress.last_done and body.call is not None:
        return _call_ended(body, body.call, services)
    if body.progress.last_done:
        return _ended(body, services, "completed", last.reason)
    if last.status != "completed":
        return _ended(body, services, last.status, last.reason, last.error)
    spent = loop_over_budget(state, body) if state.plan_index.has_budget else None
    if body.action.broken_after and body.progress.broken >= body.action.broken_after:
        return _broken(body, services, spent)
    if _is_stalled(body):
        detail = f"{body.progress.identical} iterations in a row gave the same result"
        return _ended(body, services, "exhausted", "stalled", Failure("stalled", detail))
    most = cap(body)
    if most is not None and body.finished >= most:
        return _at_cap(body, services)
    if spent is not None:
        return _ended(body, services, "exhausted", "budget", Failure("budget", spent))
    return None


def _is_settled(body: RepeatBody) -> bool:
    """Whether the iteration that finished after the deadline itself decides how the loop ended."""
    last = body.progress.last
    if last is None or body.action.on_deadline == "stop":
        return False
    return body.progress.last_done or last.status in ("failed", "exhausted")


def _call_ended(body: RepeatBody, call: CallAgent, services: KernelServices) -> Result:
    """A conversation ended: that is the answer of a call, like any other."""
    assert body.progress.last is not None
    needed = call.on_empty == "fail" and body.progress.last.result is None
    if needed and not services.read(body.progress.last.output).strip():
        return _ended(body, services, "failed", "error", NO_ANSWER)
    return _ended(body, services, "completed", "done")


def _broken(body: RepeatBody, services: KernelServices, spent: str | None) -> Result:
    """How a loop ended whose check could not be asked. A judge that was cut off by the budget, or
    was not asked because of it, is not broken.
    """
    if spent is not None:
        return _ended(body, services, "exhausted", "budget", Failure("budget", spent))
    detail = _broken_words(body, services)
    return _ended(body, services, "failed", "check_broken", Failure("check_broken", detail))


def _broken_words(body: RepeatBody, services: KernelServices) -> str:
    times = "once" if body.progress.broken == 1 else f"{body.progress.broken} times in a row"
    texts = [note.evidence for note in body.progress.last_checks if note.verdict == "error"]
    return f"the check could not run {times}: {services.read(texts[-1] if texts else None)}"


def _at_cap(body: RepeatBody, services: KernelServices) -> Result | None:
    what = "turns" if body.talk.answers_call else "iterations"
    detail = f"{body.finished} of {cap(body)} {what} made and {_unmet(body)}"
    match body.action.at_cap:
        case "complete":
            return _ended(body, services, "completed", "max_iterations")
        case "fail":
            error = Failure("max_iterations", detail)
            return _ended(body, services, "failed", "max_iterations", error)
        case "exhaust":
            return _ended(body, services, "exhausted", "max_iterations")
        case "ask":
            return _result_at_cap(body, services)
        case never:
            assert_never(never)


def _unmet(body: RepeatBody) -> str:
    """What would have ended the loop, in words."""
    words: list[str] = []
    for leaf in leaves(body.action.until):
        match leaf:
            case Expr(text=text):
                words.append(f"until ({text}) was never true")
            case Signal(word=word):
                words.append(f"the signal {word} was not given")
            case Judge(agent=agent) | Goal(agent=agent):
                words.append(f"the judge {agent} never answered done")
            case Cap() | Regex() | Contains() | OutputSchema() | CommandCheck() | ScriptCheck():
                words.append("the check has not passed")
            case ResultField() | ResultPath() | Approval() | PersonCheck():
                words.append("the check has not passed")
            case ToolResultCheck() | NoCalls() | SpendCheck():
                words.append("the check has not passed")
            case _:
                assert_never(leaf)
    return ", ".join(dict.fromkeys(words))


def _result_at_cap(body: RepeatBody, services: KernelServices) -> Result | None:
    gate = body.cap_gate
    if gate is None or gate.decision is None:
        return None
    if gate.decision == "approve":
        return _ended(body, services, "completed", "approved")
    error = Failure("rejected", gate.text or "rejected by a person at the cap")
    return _ended(body, services, "failed", "rejected", error)


def _ended(
    body: RepeatBody,
    services: KernelServices,
    status: str,
    reason: str,
    error: Failure | None = None,
) -> Result:
    last = body.progress.last
    return msgspec.structs.replace(
        Result("completed", reason),
        status=status,
        output=_repeat_output(body, services, met=body.progress.last_done or reason == "approved"),
        result=last.result if last else None,
        error=error,
        iterations=iterations_made(body),
    )


def _repeat_output(body: RepeatBody, services: KernelServices, *, met: bool) -> Text | None:
    if body.progress.last is None:
        return None
    match body.action.output:
        case "all" if body.memory.outputs:
            return services.keep("\n\n".join(_everything(body, services)))
        case "learning" if body.memory.learnings and not met:
            return body.memory.learnings[-1]
        case "result":
            return body.progress.last.result
        case _:
            return body.progress.last.output


def _everything(body: RepeatBody, services: KernelServices) -> Iterator[str]:
    """All outputs, iteration by iteration, each part under the name of its author."""
    for number, texts in enumerate(body.memory.outputs, start=1):
        yield f"## Iteration {number}"
        for name, text in texts:
            heading = f"Judge Feedback (Iteration {number})" if name == "judge" else name
            yield f"### {heading}\n\n{services.read(text)}" if name else services.read(text)


def next_events(state: State, body: RepeatBody, services: KernelServices) -> list[AnyEvent]:
    """The next iteration, or what comes before it: a timer, a pause, a question at the cap."""
    if body.active:
        return []
    owner, action = body.owner, body.action
    limits = action.limits
    is_timed = limits.wall_ms is not None or limits.ends_at is not None
    events = request_loop_deadline(state, body) if is_timed else []
    most = cap(body)
    if body.finished and most is not None and body.finished >= most:
        return [*events, *_ask_at_cap(state, body, services)]
    if state.control.paused or body.delay is not None:
        return events
    if action.delay_ms and body.finished and body.delayed < body.finished:
        call = SleepCall(until=state.now + action.delay_ms)
        return [*events, request_effect(state, owner, DELAY, body.finished, call)]
    number = -1 if action.check_first and not body.checked_first else body.started
    path = iteration_path(owner.inside, number)
    resumed = number in body.unfinished
    events.append(
        IterationStarted(at=state.now, path=path, iteration=number + 1, of=most, resumed=resumed)
    )
    return events


def _ask_at_cap(state: State, body: RepeatBody, services: KernelServices) -> list[AnyEvent]:
    if body.action.at_cap != "ask" or body.cap_gate is not None:
        return []
    output = body.progress.last.output if body.progress.last else None
    gate = LoopGate(answers=("approve", "reject", "continue"))
    return [open_gate(state, body.owner, "cap", gate, services, output=output)]


def close(state: State, body: RepeatBody, why: str) -> list[AnyEvent]:
    """End what is open in a loop itself, when its iterations have been closed."""
    return [
        *withdraw(state, body.owner, body.deadline, why),
        *withdraw(state, body.owner, body.delay, why),
        *close_gate(state, body.cap_gate, why),
    ]


# -- folding ---------------------------------------------------------------------------------------


def note_request(body: RepeatBody, pending: PendingEffect) -> None:
    if isinstance(pending.purpose, LoopDeadlinePurpose):
        body.deadline = pending.effect
    else:
        body.delay = pending.effect


def note_answer(body: RepeatBody, pending: PendingEffect, event: EffectDone | EffectFailed) -> None:
    if isinstance(pending.purpose, LoopDeadlinePurpose):
        body.deadline_hit = body.deadline_hit or type(event) is EffectDone
    else:
        body.delay, body.delayed = None, pending.attempt


def note_iteration(repeat: RepeatBody, owner: IterationOwner, ended: Result, *, done: bool) -> None:
    if ended.status == "cancelled":
        # Ended from outside, it has no result: that of the previous iteration remains the last one.
        kept = repeat.progress.last or Result("cancelled")
        repeat.progress.last = msgspec.structs.replace(
            ended, output=kept.output, result=kept.result
        )
        return
    same = repeat.progress.last is not None and ended.output == repeat.progress.last.output
    repeat.progress.identical = repeat.progress.identical + 1 if same else 1
    broken = bool(owner.checks.notes) and any(
        note.verdict == "error" for note in owner.checks.notes
    )
    repeat.progress.broken = repeat.progress.broken + 1 if broken else 0
    repeat.progress.last = ended
    repeat.progress.last_done = done
    repeat.progress.last_checks = owner.checks.notes
    gate = owner.gate or owner.answered_gate
    repeat.progress.unmet = 0 if gate is not None else repeat.progress.unmet + 1
    repeat.progress.feedback = gate.text if gate is not None and gate.decision else ""
    if owner.gate is not None:
        _note_gate(repeat, owner.gate, done=done)
    memory = repeat.action.memory
    if type(memory) is ProgressLog or repeat.action.output == "learning":
        size = memory.chars if type(memory) is ProgressLog else 300
        repeat.memory.learnings.append(learning_of(ended.output, owner.iteration, size))
        if type(memory) is ProgressLog and memory.total:
            _forget(repeat)
    elif type(memory) is StageOutputs:
        repeat.memory.learnings.append(outcome_line(ended.output, _decided(owner, done=done)))
        _forget(repeat)
    body = owner.body
    if type(body) is CycleBody:
        conversation.note_turn(repeat, body, done=done)
    repeat.progress.last_steps = dict(body.results) if type(body) is StepsBody else {}
    if repeat.action.output == "all":
        repeat.memory.outputs.append(_texts_in(owner, ended))


def _note_gate(repeat: RepeatBody, asked: GateState, *, done: bool) -> None:
    """What a decision after the iteration means for the next one."""
    rule = repeat.action.gate
    if rule is None or asked.decision is None or done:
        return
    if rule.approve_continues and asked.decision == "approve" and not asked.text:
        repeat.progress.feedback = "Approved"
    most = cap(repeat)
    raises = rule.grants and asked.decision == "continue"
    if raises and most is not None and repeat.finished >= most:
        repeat.progress.extra += 1


def learning_of(output: Text | None, iteration: int, chars: int) -> str:
    """The head of an output on one line; cut first and cleaned after, so it is never longer."""
    line = _LINES.sub(" ", head(output, chars)).strip()
    return line or f"(iteration {iteration} produced no output)"


def outcome_line(output: Text | None, verdict: str) -> str:
    """How an iteration ended, on one line: what was decided, and how its last words begin."""
    lines = [line.strip() for line in head(output, 4 * OUTCOME_CHARS).splitlines()]
    first = next((line for line in lines if line), "(no output)")[:OUTCOME_CHARS]
    return f"{verdict}: {first}" if verdict else first


def _forget(repeat: RepeatBody) -> None:
    """Drop learnings that no prompt shows any more; a new list, since a kept loop may share it."""
    if len(repeat.memory.learnings) >= 2 * LEARNINGS_KEPT:
        repeat.memory.learnings = repeat.memory.learnings[LEARNINGS_KEPT:]
        repeat.memory.forgotten += LEARNINGS_KEPT


def _decided(owner: IterationOwner, *, done: bool) -> str:
    """What the checks made of an iteration, in a word."""
    names = {note.check for note in owner.checks.notes}
    if "approval" in names:
        return "approved" if done else "not approved"
    return ("goal reached" if done else "goal not reached") if "goal" in names else ""


def _texts_in(owner: IterationOwner, ended: Result) -> list[tuple[str, Text]]:
    """All texts of an iteration, each with its step or judge."""
    if isinstance(owner.body, StepsBody):
        results = owner.body.results
        order = [step.id for step in owner.body.index.action.steps]
        texts = [(name, results[name].output) for name in order if name in results]
    else:
        texts = [("", ended.output)]
    judged = [("judge", note.evidence) for note in owner.checks.notes if note.check == "judge"]
    return [(name, text) for name, text in [*texts, *judged] if text]


def renew(state: State, body: RepeatBody) -> None:
    """Begin the timers, the question at the cap, and a used-up budget of a loop again."""
    last = opening(state)
    if body.deadline_hit and last.time_ms is not None:
        limits = with_time(body.action.limits, last.time_ms)
        body.action = msgspec.structs.replace(body.action, limits=limits)
    body.deadline = body.delay = body.items.missing = None
    body.deadline_hit = False
    body.cap_gate = kept_gate(body.cap_gate)
    renew_spent(last, body, body.action.limits)


def resume(state: State, body: RepeatBody) -> None:
    """Let the iteration that did not complete be made again, as the loop was before it ended."""
    renew(state, body)
    last = opening(state)
    for number, kept in body.unfinished.items():
        for name, value in kept.values.items():
            set_value(body, name, value)
        if body.talk.thread is not None:
            keep_conversation(body)
        if number < 0:
            body.checked_first = False
        else:
            body.started = body.finished = number
    _renew_patience(body)
    if last.passes is not None and is_at_cap(body):
        body.progress.extra += max(0, last.passes - (cap(body) or 0))


def _renew_patience(body: RepeatBody) -> None:
    """A loop that ended because it was stalled, or because its check was broken, is given as many
    iterations as it had at first. One that ended with an empty answer takes another turn.
    """
    identical, broken = body.action.limits.identical, body.action.broken_after
    if identical is not None and body.progress.identical >= identical:
        body.progress.identical = 0
    if broken and body.progress.broken >= broken:
        body.progress.broken = 0
    body.progress.last_done = False


def is_at_cap(body: RepeatBody) -> bool:
    """Whether a loop that ended has made all its iterations, without a person who could be asked
    for more.
    """
    most = cap(body)
    if most is None or body.action.each is not None or body.action.at_cap == "ask":
        return False
    return not body.unfinished and body.finished >= most and not body.progress.last_done


def _is_stalled(body: RepeatBody) -> bool:
    """Whether the last results were all the same for as long as the limit allows."""
    limit = body.action.limits.identical
    return limit is not None and body.finished >= limit and body.progress.identical >= limit
