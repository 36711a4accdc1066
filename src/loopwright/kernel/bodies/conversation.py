"""Conversations with a chat model: decide and fold a turn and the tool calls that it requests.

Every model call and every tool call is an effect of its own, so a crash between two results
repeats neither. A call that needs approval waits alone; the other calls of the turn continue.
`outcome`, `next_events` and `close` decide: they return a result or events. `note_request`,
`note_answer`, `note_turn` and `resume` fold: they change the body.

Approval rules are matched against the tool's own name, never the name that the model used. A
rule may use the long name (`server.tool`) or the short one; both mean the same tool, whichever
name the tool has; `SERVER.*` means all tools of a server. Of several matching rules the
strictest counts.
"""

from collections.abc import Mapping
from typing import assert_never

import msgspec

from loopwright.kernel.bodies.history import (
    HistoryCut,
    Strategy,
    cut,
    is_too_long,
    keep_conversation,
    shortened,
    size_of,
)
from loopwright.kernel.checks import CheckResult
from loopwright.kernel.effects import (
    close_gate,
    has_next_attempt,
    note_backoff_end,
    request_backoff,
    withdraw,
)
from loopwright.kernel.event_parts import HOME_BUDGET, CallNote, Failure, ModelCall, ToolCall
from loopwright.kernel.events import (
    AnyEvent,
    EffectDone,
    EffectFailed,
    EffectRequested,
    GateAnswered,
    GateOpened,
    HistoryCompressed,
    TurnTaken,
)
from loopwright.kernel.frames import (
    CycleBody,
    HistoryEntry,
    IterationOwner,
    RepeatBody,
    Result,
    ToolAnswer,
)
from loopwright.kernel.gates import about_call
from loopwright.kernel.limits import ended_by_budget, over_budget
from loopwright.kernel.messages import deliver
from loopwright.kernel.state import (
    KernelServices,
    PendingEffect,
    State,
    has_to_wait,
    is_full,
    request_effect,
)
from loopwright.model.access import is_rule_for
from loopwright.model.actions import ModelCycle
from loopwright.model.chat import ModelTurn, RequestedCall, decode_turn
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
from loopwright.model.ids import (
    SUMMARY,
    TURN,
    BackoffPurpose,
    SummaryPurpose,
    ToolPurpose,
    TurnPurpose,
)
from loopwright.model.plan import ApprovalRule
from loopwright.model.policy import ConversationHistory
from loopwright.model.record import Lit, Ref, Text

_STRICTNESS: dict[ApprovalRule, int] = {"never": 0, "protected_paths": 1, "always": 2}


def rule_for(tool: str, rules: Mapping[str, ApprovalRule]) -> ApprovalRule:
    """The strictest rule that speaks of a tool; `never` when none does."""
    found = [rule for name, rule in rules.items() if is_rule_for(name, tool)]
    return max(found, key=_STRICTNESS.__getitem__, default="never")


def approval_reason(call: RequestedCall, rules: Mapping[str, ApprovalRule]) -> str:
    """Why a call waits for a person, or nothing when it does not."""
    match rule_for(call.tool, rules):
        case "always":
            return "every call of this tool is approved by a person"
        case "protected_paths" if call.paths is None:
            return "the paths that this call would touch are not known"
        case "protected_paths" if call.protected:
            return "it would touch a protected path"
        case _:
            return ""


SUBMIT = "submit_result"
"""The tool by which a model hands in a structured result."""

ACCEPTED = "The result was taken."
ONCE = '{"error":"a result was already handed in; the first one counts"}'


# -- how it has ended ------------------------------------------------------------------------------


def outcome(state: State, body: CycleBody) -> Result | None:
    """How a cycle has ended, or None while something of it is under way."""
    if body.turn is not None:
        if len(body.answers) < len(body.turn.calls):
            return None
        assert body.answer is not None
        # The text of an agent that only submitted a result is that result.
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
    if is_full(state, body.owner) or not state.plan_index.has_budget:
        return None
    spent = over_budget(state, body.owner)
    if spent is None:
        return None
    return Result("exhausted", "budget", error=Failure(type="budget", detail=spent))


def output_of(body: CycleBody) -> tuple[Text | None, Text | None]:
    """Output and structured result of a turn, also of one that failed half-way."""
    turn = body.answer or body.failure
    return ((turn.output or body.submitted) if turn is not None else None), body.submitted


def close(state: State, body: CycleBody, why: str) -> list[AnyEvent]:
    """End what is open in a turn: the call of the model, its tool calls, and their gates."""
    events = withdraw(state, body.owner, body.pending, why)
    for effect in body.asked.values():
        events += withdraw(state, body.owner, effect, why)
    for gate in body.gates.values():
        events += close_gate(state, gate, why)
    return events


def _is_tried_again(state: State, body: CycleBody, failure: EffectFailed) -> bool:
    if _overflows(failure):
        return _cut_after(state, body, failure) is not None  # as it is, it would not fit again
    return has_next_attempt(body, failure.error)


def _overflows(failure: EffectFailed) -> bool:
    return failure.error.type == "overflow"


# -- what is next ----------------------------------------------------------------------------------


def next_events(state: State, body: CycleBody, services: KernelServices) -> list[AnyEvent]:
    """The next events of a cycle; none while it waits."""
    if body.turn is not None:
        return _calls_left(state, body, services)
    if body.answer is not None:
        return _decide_turn(state, body, body.answer, services)
    if body.pending is not None:
        return []
    if body.failure is not None and not _overflows(body.failure) and body.backoff < body.attempt:
        return [request_backoff(state, body)]
    if has_to_wait(state, body.owner):  # a summary is a call too
        return []
    shorter = _shorten(state, body)
    if shorter:
        return shorter
    asked = request_effect(
        state, body.owner, TURN, body.attempt + 1, ModelCall(agent=body.action.agent)
    )
    return [*deliver(state, body.owner, asked.effect), asked]


def _decide_turn(
    state: State, body: CycleBody, answer: EffectDone, services: KernelServices
) -> list[AnyEvent]:
    """Note which calls are run, held or turned away, and begin with those that may run."""
    turn = decode_turn(services.read(answer.result)) if answer.result is not None else None
    notes = tuple(_notes(state, body, turn, services)) if turn is not None else ()
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
    events: list[AnyEvent] = [taken]
    for number, note in enumerate(notes, start=1):
        if note.held:
            events.append(_ask(state, body, number, note, services))
        elif not note.problem and note.tool != SUBMIT:
            events.append(_run(state, body, number, note, note.arguments))
    return events


def _notes(
    state: State, body: CycleBody, turn: ModelTurn, services: KernelServices
) -> list[CallNote]:
    agent = state.plan.agents.get(body.action.agent)
    rules = agent.approvals if agent is not None else {}
    notes: list[CallNote] = []
    for call in turn.calls:
        free = call.problem or call.tool == SUBMIT or call.tool in state.agents.remembered
        notes.append(
            CallNote(
                id=call.id,
                tool=call.tool,
                arguments=services.keep(msgspec.json.encode(call.arguments).decode()),
                held="" if free else approval_reason(call, rules),
                problem=call.problem,
            )
        )
    return notes


def _run(
    state: State, body: CycleBody, number: int, note: CallNote, arguments: Text
) -> EffectRequested:
    call = ToolCall(agent=body.action.agent, tool=note.tool, arguments=arguments, call=note.id)
    return request_effect(
        state, body.owner, ToolPurpose(number), body.runs.get(number, 0) + 1, call
    )


def _ask(
    state: State, body: CycleBody, number: int, note: CallNote, services: KernelServices
) -> GateOpened:
    shown = services.read(note.arguments)
    message = f"Run {note.tool}? ({note.held})"
    return about_call(state, body.owner, number, message, shown, services)


def _calls_left(state: State, body: CycleBody, services: KernelServices) -> list[AnyEvent]:
    """Calls that a person has let through since, with the arguments that the person wants; in a
    resumed run, also those that were ended from outside, and gates that were closed then.
    """
    assert body.turn is not None
    events: list[AnyEvent] = []
    for number, note in enumerate(body.turn.calls, start=1):
        if number in body.asked or number in body.answers:
            continue
        if not note.held or number in body.approved:
            arguments = body.approved.get(number, note.arguments)
            events.append(_run(state, body, number, note, arguments))
        elif number not in body.gates:
            events.append(_ask(state, body, number, note, services))
    return events


# -- making the conversation shorter ---------------------------------------------------------------


def _conversation(body: CycleBody) -> tuple[RepeatBody, ConversationHistory] | None:
    owner = body.owner
    if not isinstance(owner, IterationOwner) or not owner.parent.talk.history:
        return None
    memory = owner.parent.action.memory
    return (owner.parent, memory) if isinstance(memory, ConversationHistory) else None


def _cut_after(state: State, body: CycleBody, failure: EffectFailed | None) -> HistoryCut | None:
    """How the conversation is made shorter before the next call: once when it fills up, if that is
    possible, and once more when the provider found it too long, whatever there is to cut.
    """
    found = _conversation(body)
    if found is None:
        return None
    repeat, memory = found
    overflow = failure is not None and _overflows(failure)
    task = _task_chars(state, body)
    is_full_now = not body.shortening.shortened and is_too_long(repeat, memory, task)
    due = not body.shortening.overflowed if overflow else is_full_now
    one = cut(repeat, memory, keep_middle=not overflow, task_chars=task) if due else None
    return one if one is not None and (one.dropped or one.trimmed or overflow) else None


def _task_chars(state: State, body: CycleBody) -> int:
    """The size of the text before the conversation: the system prompt and the task. Values that a
    template refers to are not read for this.
    """
    agent = state.plan.agents.get(body.action.agent)
    system = len(agent.system or "") if agent is not None else 0
    prompt = body.action.prompt
    written = sum(len(part.text) for part in prompt if isinstance(part, Lit))
    asks = not prompt or any(isinstance(part, Ref) and part.of == "message" for part in prompt)
    asked = size_of(state.started.message) if asks and state.started is not None else 0
    return system + written + asked


def _shorten(state: State, body: CycleBody) -> list[AnyEvent]:
    """What makes the conversation fit before the model is asked; nothing when it does."""
    found, one = _conversation(body), _cut_after(state, body, body.failure)
    if found is None or one is None:
        return []
    repeat, memory = found
    overflow = body.failure is not None and _overflows(body.failure)
    wants_summary = (
        memory.strategy == "periodic-summary" and repeat.talk.summaries < memory.summaries
    )
    if one.dropped and wants_summary and body.shortening.summary is None and not overflow:
        call = ModelCall(agent=body.action.agent, role="summary")
        number = max(repeat.talk.summaries, body.shortening.summaries) + 1
        return [request_effect(state, body.owner, SUMMARY, number, call)]
    said = body.shortening.summary
    summary = said.output if isinstance(said, EffectDone) and said.output else None
    lost = said.error.detail if isinstance(said, EffectFailed) else ""
    strategy: Strategy = "periodic-summary" if summary is not None else "rolling-window"
    return [
        HistoryCompressed(
            at=state.now,
            path=body.owner.inside,
            iteration=body.owner.iteration,
            dropped=one.dropped,
            kept=len(repeat.talk.history) - one.dropped,
            trimmed=one.trimmed,
            strategy=strategy if one.dropped else "trim",
            summary=summary if one.dropped else None,
            note=f"no summary: {lost}" if lost else "",
        )
    ]


# -- stop rules of a cycle -------------------------------------------------------------------------


def inspect_cycle(
    owner: IterationOwner, leaf: Leaf, services: KernelServices
) -> CheckResult | None:
    """What a rule about turns, tools or money says of an iteration; None for every other rule."""
    body = owner.body
    match leaf:
        case NoCalls():
            return CheckResult(
                "pass" if isinstance(body, CycleBody) and _is_silent(body) else "fail"
            )
        case SpendCheck(usd=most):
            used = owner.parent.spent.usd
            spent = used >= most
            return CheckResult(
                "pass" if spent else "fail", f"{used:.4f} of {most:g} USD" if spent else ""
            )
        case ToolResultCheck():
            found = isinstance(body, CycleBody) and _matching(body, leaf, services)
            return CheckResult("pass", found) if found else CheckResult("fail")
        case Cap() | Regex() | Contains() | Signal() | OutputSchema() | CommandCheck():
            return None
        case ScriptCheck() | Expr() | ResultField() | ResultPath() | Judge() | Goal():
            return None
        case Approval() | PersonCheck():
            return None
        case _:
            assert_never(leaf)


def _is_silent(body: CycleBody) -> bool:
    """Whether the model asks for nothing more."""
    if body.turn is None:
        return False
    return not body.turn.calls or body.submitted is not None


def _matching(body: CycleBody, rule: ToolResultCheck, services: KernelServices) -> str:
    for number in sorted(body.answers):
        answer = body.answers[number]
        if not is_rule_for(rule.tool, answer.tool):
            continue
        if rule.exit_code is not None and answer.code != rule.exit_code:
            continue
        if rule.contains is not None and rule.contains not in services.read(answer.text):
            continue
        return f"{answer.tool} ({answer.id})"
    return ""


def turned_away(note: CallNote) -> ToolAnswer:
    """The answer to the model about a call that cannot be run."""
    text = msgspec.json.encode({"error": note.problem}).decode()
    return ToolAnswer(id=note.id, tool=note.tool, text=text, error=True)


def rejected(note: CallNote, reason: str, by: str) -> ToolAnswer:
    """The answer to the model about a call that a person rejected."""
    told = {"rejected": True, "reason": reason, "approver": by}
    text = msgspec.json.encode(told).decode()
    return ToolAnswer(id=note.id, tool=note.tool, text=text, error=True)


NOT_APPROVED = "a person did not approve it"


def note_request(body: CycleBody, pending: PendingEffect) -> None:
    """Note what is under way for a turn."""
    purpose = pending.purpose
    if isinstance(purpose, ToolPurpose):
        body.asked[purpose.call], body.runs[purpose.call] = pending.effect, pending.attempt
        return
    body.pending = pending.effect
    if isinstance(purpose, TurnPurpose):
        body.attempt = pending.attempt
    elif isinstance(purpose, SummaryPurpose):
        body.shortening.summaries = pending.attempt


def note_answer(body: CycleBody, pending: PendingEffect, event: EffectDone | EffectFailed) -> None:
    """Note what came of it."""
    purpose = pending.purpose
    if isinstance(purpose, ToolPurpose):
        body.answers[purpose.call] = _tool_answer(pending, event)
        if isinstance(event, EffectFailed) and event.error.type == "cancelled":
            body.withdrawn.add(purpose.call)
        return
    body.pending = None
    if isinstance(purpose, BackoffPurpose):
        note_backoff_end(body, pending.attempt, event.at)
    elif isinstance(purpose, SummaryPurpose):
        body.shortening.summary = event
    elif isinstance(event, EffectFailed):
        body.failure = event
    else:
        body.answer = event
        _count(body, event)


def _tool_answer(pending: PendingEffect, event: EffectDone | EffectFailed) -> ToolAnswer:
    assert isinstance(pending.call, ToolCall)
    error = isinstance(event, EffectFailed)
    text: Text = event.output
    if isinstance(event, EffectFailed) and not text:
        text = msgspec.json.encode({"error": event.error.detail or event.error.type}).decode()
    call, tool = pending.call.call, pending.call.tool
    return ToolAnswer(id=call, tool=tool, text=text, error=error, code=event.code)


def _count(body: CycleBody, event: EffectDone) -> None:
    """What the provider counted for the conversation up to and with this turn."""
    owner = body.owner
    if isinstance(owner, IterationOwner) and event.usage is not None and event.usage.input_tokens:
        owner.parent.talk.counted = event.usage.input_tokens + event.usage.output_tokens
        owner.parent.talk.counted_entries = len(owner.parent.talk.history) + 1


def decided(state: State, body: CycleBody, number: int, event: GateAnswered) -> None:
    """A person has decided about one call of a turn. An approval runs it, and nothing else does."""
    assert body.turn is not None
    note = body.turn.calls[number - 1]
    if event.decision != "approve":
        body.answers[number] = rejected(note, event.text or NOT_APPROVED, event.by)
        return
    body.approved[number] = note.arguments if event.arguments is None else event.arguments
    if event.remember:
        state.agents.remembered.add(note.tool)


def granted(repeat: RepeatBody, text: str) -> None:
    """A person lets a loop continue beyond its cap; their text becomes part of the conversation."""
    if text and isinstance(repeat.action.body, ModelCycle):
        repeat.talk.history.append(HistoryEntry(kind="user", text=text))


def turn_taken(state: State, event: TurnTaken) -> None:
    owner = state.owners[event.path]
    body = owner.body
    assert isinstance(body, CycleBody)
    body.turn = event
    for number, note in enumerate(event.calls, start=1):
        if note.problem:
            body.answers[number] = turned_away(note)
        elif note.tool == SUBMIT and body.submitted is None:
            body.submitted = note.arguments
            body.answers[number] = ToolAnswer(id=note.id, tool=note.tool, text=ACCEPTED)
        elif note.tool == SUBMIT:
            body.answers[number] = ToolAnswer(id=note.id, tool=note.tool, text=ONCE, error=True)
    state.touch(owner)


def history_compressed(state: State, event: HistoryCompressed) -> None:
    owner = state.owners[event.path]
    body = owner.body
    assert isinstance(body, CycleBody)
    assert isinstance(owner, IterationOwner)
    repeat = owner.parent
    repeat.talk.history = shortened(repeat.talk.history, event.dropped, event.trimmed)
    repeat.talk.carried = max(0, repeat.talk.carried - event.dropped)
    if event.summary is not None:
        repeat.talk.history.insert(0, HistoryEntry(kind="summary", text=event.summary))
        repeat.talk.carried += repeat.talk.carried > 0
    repeat.talk.summaries += body.shortening.summary is not None
    repeat.talk.counted = 0  # the provider has not seen it like this
    body.shortening.shortened, body.shortening.summary = True, None
    if body.failure is not None and body.failure.error.type == "overflow":
        body.shortening.overflowed, body.failure = True, None
    state.touch(owner)


def note_turn(repeat: RepeatBody, body: CycleBody, *, done: bool) -> None:
    """The turn and its results enter the conversation; a turn that asked for nothing and did not
    end the loop is answered, so that the model does not wait for a message.
    """
    if body.answer is None or body.turn is None:
        return
    repeat.talk.turns = repeat.finished
    if body.answer.result is not None and (body.answer.output or body.turn.calls):
        repeat.talk.history.append(HistoryEntry(kind="model", text=body.answer.result))
    # A result without an id was the text of the turn: the model waits for no result of a call.
    answers = tuple(
        body.answers[number] for number in sorted(body.answers) if body.answers[number].id
    )
    if answers:
        repeat.talk.history.append(HistoryEntry(kind="tools", answers=answers))
    elif not done and body.action.nudge:
        repeat.talk.history.append(HistoryEntry(kind="user", text=body.action.nudge))
    if repeat.progress.feedback:
        repeat.talk.history.append(HistoryEntry(kind="user", text=repeat.progress.feedback))
    keep_conversation(repeat)


def resume(body: CycleBody) -> None:
    """The turn that has an answer is kept, with the tool calls that have one."""
    body.pending = body.failure = None
    body.earlier = body.attempt - body.parks
    body.shortening.overflowed = False
    if isinstance(body.shortening.summary, EffectFailed):
        body.shortening.summary = None
    for number in body.withdrawn:
        body.answers.pop(number, None)
        body.asked.pop(number, None)
    body.withdrawn.clear()
    body.gates = {number: gate for number, gate in body.gates.items() if gate.decision is not None}
