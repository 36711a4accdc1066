"""A cycle: one turn of a chat model, then all the tools that it asks for at once.

Every model call and every tool call is an effect of its own, so a crash between two results repeats
neither. A call that a person has to see waits alone; its siblings go on.
"""

import msgspec

from loopwright.kernel.approvals import held_for
from loopwright.kernel.calls import CallNote, ModelCall, ToolCall
from loopwright.kernel.checks import Said
from loopwright.kernel.facts import (
    AnyFact,
    EffectDone,
    EffectFailed,
    EffectRequested,
    Failure,
    GateOpened,
    HistoryCompressed,
    TurnTaken,
)
from loopwright.kernel.frames import CycleBody, PassOwner, RepeatBody, Result, ToolSaid
from loopwright.kernel.gates import about_call
from loopwright.kernel.histories import Cut, Strategy, cut, is_too_long, size_of
from loopwright.kernel.limits import ended_by_budget, over_budget
from loopwright.kernel.messages import deliver
from loopwright.kernel.reasons import HOME_BUDGET
from loopwright.kernel.state import Senses, State, has_to_wait, is_full
from loopwright.kernel.trying import back_off, goes_on, request
from loopwright.model.checks import Leaf, NoCalls, Spend, ToolResult
from loopwright.model.memory import History
from loopwright.model.record import Text
from loopwright.model.template import Lit, Ref
from loopwright.model.toolnames import speaks_of
from loopwright.model.turns import Turn, decode_turn

SUBMIT = "submit_result"
"""The tool by which a model hands in a structured result."""

ACCEPTED = "The result was taken."
ONCE = '{"error":"a result was already handed in; the first one counts"}'


# -- how it has ended ------------------------------------------------------------------------------


def cycle_outcome(state: State, body: CycleBody) -> Result | None:
    """How a cycle has ended, or None while something of it is under way."""
    if body.turn is not None:
        if len(body.said) < len(body.turn.calls):
            return None
        assert body.answer is not None
        # Who has only handed in a result has said that.
        said = body.answer.output or body.submitted
        return Result("completed", "done", output=said, result=body.submitted)
    if body.pending is not None or body.answer is not None:
        return None
    failure = body.failure
    if failure is not None and failure.error.outer:
        return ended_by_budget(failure)
    if failure is not None and not _is_tried_again(state, body, failure):
        if failure.error.type == "cancelled":
            return Result("cancelled", failure.error.detail)
        if failure.error.type == HOME_BUDGET:
            return Result("exhausted", HOME_BUDGET, error=failure.error)
        return Result("failed", "error", output=failure.output or None, error=failure.error)
    if is_full(state, body.owner) or not state.has_budget:
        return None
    spent = over_budget(state, body.owner)
    if spent is None:
        return None
    return Result("exhausted", "budget", error=Failure(type="budget", detail=spent))


def _is_tried_again(state: State, body: CycleBody, failure: EffectFailed) -> bool:
    if _overflows(failure):
        return _cut_after(state, body, failure) is not None  # as it is, it would not fit again
    return goes_on(body, failure.error)


def _overflows(failure: EffectFailed) -> bool:
    return failure.error.type == "overflow"


# -- what is next ----------------------------------------------------------------------------------


def proceed_cycle(state: State, body: CycleBody, senses: Senses) -> list[AnyFact]:
    """The next facts of a cycle; none while it waits."""
    if body.turn is not None:
        return _calls_left(state, body, senses)
    if body.answer is not None:
        return _take_turn(state, body, body.answer, senses)
    if body.pending is not None:
        return []
    if body.failure is not None and not _overflows(body.failure) and body.backoff < body.attempt:
        return [back_off(state, body)]
    if has_to_wait(state, body.owner):  # a summary is a call too
        return []
    shorter = _shorten(state, body)
    if shorter:
        return shorter
    asked = request(
        state, body.owner, "model", body.attempt + 1, ModelCall(agent=body.action.agent)
    )
    return [*deliver(state, body.owner, asked.effect), asked]


def _take_turn(state: State, body: CycleBody, answer: EffectDone, senses: Senses) -> list[AnyFact]:
    """Note which calls are run, held or turned away, and begin with those that may run."""
    turn = decode_turn(senses.read(answer.result)) if answer.result is not None else None
    notes = tuple(_notes(state, body, turn, senses)) if turn is not None else ()
    owner = body.owner
    taken = TurnTaken(
        at=state.now,
        path=owner.inside,
        iteration=owner.iteration,
        effect=answer.effect,
        calls=notes,
        finish=turn.finish if turn is not None else "stop",
        model=turn.model if turn is not None else "",
    )
    facts: list[AnyFact] = [taken]
    for number, note in enumerate(notes, start=1):
        if note.held:
            facts.append(_ask(state, body, number, note, senses))
        elif not note.problem and note.tool != SUBMIT:
            facts.append(_run(state, body, number, note, note.arguments))
    return facts


def _notes(state: State, body: CycleBody, turn: Turn, senses: Senses) -> list[CallNote]:
    agent = state.plan.agents.get(body.action.agent)
    rules = agent.approvals if agent is not None else {}
    notes: list[CallNote] = []
    for call in turn.calls:
        free = call.problem or call.tool == SUBMIT or call.tool in state.remembered
        notes.append(
            CallNote(
                id=call.id,
                tool=call.tool,
                arguments=senses.keep(msgspec.json.encode(call.arguments).decode()),
                held="" if free else held_for(call, rules),
                problem=call.problem,
            )
        )
    return notes


def _run(
    state: State, body: CycleBody, number: int, note: CallNote, arguments: Text
) -> EffectRequested:
    call = ToolCall(agent=body.action.agent, tool=note.tool, arguments=arguments, call=note.id)
    return request(state, body.owner, f"tool{number}", body.runs.get(number, 0) + 1, call)


def _ask(state: State, body: CycleBody, number: int, note: CallNote, senses: Senses) -> GateOpened:
    shown = senses.read(note.arguments)
    message = f"Run {note.tool}? ({note.held})"
    return about_call(state, body.owner, number, message, shown, senses)


def _calls_left(state: State, body: CycleBody, senses: Senses) -> list[AnyFact]:
    """Calls that a person has let through since, with the arguments that the person wants; in a
    resumed run, also those that were ended from outside, and gates that were closed then.
    """
    assert body.turn is not None
    facts: list[AnyFact] = []
    for number, note in enumerate(body.turn.calls, start=1):
        if number in body.asked or number in body.said:
            continue
        if not note.held or number in body.approved:
            arguments = body.approved.get(number, note.arguments)
            facts.append(_run(state, body, number, note, arguments))
        elif number not in body.gates:
            facts.append(_ask(state, body, number, note, senses))
    return facts


# -- making the conversation shorter ---------------------------------------------------------------


def _conversation(body: CycleBody) -> tuple[RepeatBody, History] | None:
    owner = body.owner
    if not isinstance(owner, PassOwner) or not owner.parent.history:
        return None
    memory = owner.parent.action.memory
    return (owner.parent, memory) if isinstance(memory, History) else None


def _cut_after(state: State, body: CycleBody, failure: EffectFailed | None) -> Cut | None:
    """How the conversation is made shorter before the next call: once when it fills up, if that is
    possible, and once more when the provider found it too long, whatever there is to cut.
    """
    found = _conversation(body)
    if found is None:
        return None
    repeat, memory = found
    overflow = failure is not None and _overflows(failure)
    task = _task_chars(state, body)
    is_full_now = not body.shortened and is_too_long(repeat, memory, task)
    due = not body.overflowed if overflow else is_full_now
    one = cut(repeat, memory, keep_middle=not overflow, task_chars=task) if due else None
    return one if one is not None and (one.dropped or one.trimmed or overflow) else None


def _task_chars(state: State, body: CycleBody) -> int:
    """The size of what stands before the conversation: the system prompt and the task. What a
    template takes from elsewhere is not read for this.
    """
    agent = state.plan.agents.get(body.action.agent)
    system = len(agent.system or "") if agent is not None else 0
    prompt = body.action.prompt
    written = sum(len(part.text) for part in prompt if isinstance(part, Lit))
    asks = not prompt or any(isinstance(part, Ref) and part.of == "message" for part in prompt)
    asked = size_of(state.started.message) if asks and state.started is not None else 0
    return system + written + asked


def _shorten(state: State, body: CycleBody) -> list[AnyFact]:
    """What makes the conversation fit before the model is asked; nothing when it does."""
    found, one = _conversation(body), _cut_after(state, body, body.failure)
    if found is None or one is None:
        return []
    repeat, memory = found
    overflow = body.failure is not None and _overflows(body.failure)
    wants_summary = memory.strategy == "periodic-summary" and repeat.summaries < memory.summaries
    if one.dropped and wants_summary and body.summary is None and not overflow:
        call = ModelCall(agent=body.action.agent, role="summary")
        number = max(repeat.summaries, body.summaries) + 1
        return [request(state, body.owner, "summary", number, call)]
    said = body.summary
    summary = said.output if isinstance(said, EffectDone) and said.output else None
    lost = said.error.detail if isinstance(said, EffectFailed) else ""
    strategy: Strategy = "periodic-summary" if summary is not None else "rolling-window"
    return [
        HistoryCompressed(
            at=state.now,
            path=body.owner.inside,
            iteration=body.owner.iteration,
            dropped=one.dropped,
            kept=len(repeat.history) - one.dropped,
            trimmed=one.trimmed,
            strategy=strategy if one.dropped else "trim",
            summary=summary if one.dropped else None,
            note=f"no summary: {lost}" if lost else "",
        )
    ]


# -- stop rules of a cycle -------------------------------------------------------------------------


def inspect_cycle(owner: PassOwner, leaf: Leaf, senses: Senses) -> Said | None:
    """What a rule about turns, tools or money says of a pass; None for every other rule."""
    body = owner.body
    match leaf:
        case NoCalls():
            return Said("pass" if isinstance(body, CycleBody) and _is_silent(body) else "fail")
        case Spend(usd=most):
            used = owner.parent.spent.usd
            spent = used >= most
            return Said("pass" if spent else "fail", f"{used:.4f} of {most:g} USD" if spent else "")
        case ToolResult():
            found = isinstance(body, CycleBody) and _matching(body, leaf, senses)
            return Said("pass", found) if found else Said("fail")
        case _:
            return None


def _is_silent(body: CycleBody) -> bool:
    """Whether the model asks for nothing more."""
    if body.turn is None:
        return False
    return not body.turn.calls or body.submitted is not None


def _matching(body: CycleBody, rule: ToolResult, senses: Senses) -> str:
    for number in sorted(body.said):
        said = body.said[number]
        if not speaks_of(rule.tool, said.tool):
            continue
        if rule.exit_code is not None and said.code != rule.exit_code:
            continue
        if rule.contains is not None and rule.contains not in senses.read(said.text):
            continue
        return f"{said.tool} ({said.id})"
    return ""


def turned_away(note: CallNote) -> ToolSaid:
    """What the model is told about a call that cannot be run."""
    text = msgspec.json.encode({"error": note.problem}).decode()
    return ToolSaid(id=note.id, tool=note.tool, text=text, error=True)


def rejected(note: CallNote, reason: str, by: str) -> ToolSaid:
    """What the model is told about a call that a person does not want."""
    told = {"rejected": True, "reason": reason, "approver": by}
    text = msgspec.json.encode(told).decode()
    return ToolSaid(id=note.id, tool=note.tool, text=text, error=True)
