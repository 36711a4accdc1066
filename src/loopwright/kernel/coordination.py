"""The coordinator, the tools of a run, and steps that are called again for a message.

The coordinator receives notices about the run and is called at the start, for a message, or
when a step ends. Notices that arrive during a call are part of its next call. The coordinator
cannot change how a step ends.

An agent uses the tools of the run during a call. A step writes to the coordinator and reads its
inbox. The coordinator writes to steps, reports to people, and gives the final summary. Each use
is recorded as an event at once, while the call is still open.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias, assert_never

import msgspec

from loopwright.kernel.addresses import EndedStep, locate
from loopwright.kernel.checks import last_json_object
from loopwright.kernel.effects import after_failure, withdraw
from loopwright.kernel.event_parts import (
    AgentCall,
    DropReason,
    Intent,
    SleepCall,
    ToolCall,
    mask_tokens,
)
from loopwright.kernel.events import (
    AnyEvent,
    CoordinatorFinalized,
    CoordinatorNarrated,
    EffectDone,
    EffectFailed,
    EffectRequested,
    MessageSent,
)
from loopwright.kernel.frames import (
    CoordinatorNotice,
    IterationOwner,
    QueuedMessage,
    UndeliverableMessage,
)
from loopwright.kernel.limits import over_budget
from loopwright.kernel.messages import closed_box, deliver, delivered, dropped, tell
from loopwright.kernel.state import COORDINATOR, KernelServices, PendingEffect, State
from loopwright.model.actions import Action, CallAgent, Repeat, Step
from loopwright.model.ids import (
    COORDINATOR_BACKOFF,
    COORDINATOR_CALL,
    HOLD,
    REPLY,
    CoordinatorBackoffPurpose,
    CoordinatorPurpose,
    HoldPurpose,
    MailPurpose,
    ReplyPurpose,
    effect_id,
    effect_path,
)
from loopwright.model.policy import Retry
from loopwright.model.record import JsonValue

STEP_TOOLS = ("send_message", "read_inbox")
COORDINATOR_TOOLS = ("forward_to_agent", "narrate", "finalize")
MAX_TEXT_BYTES = 256 * 1_024
INTENTS: dict[str, Intent] = {"cancel": "cancel", "context_update": "context_update"}

Role: TypeAlias = Literal["step", "coordinator"]


class RefusedToolUse(msgspec.Struct, frozen=True):
    """A tool that was not used as it has to be; nothing has happened."""

    why: str


@dataclass(slots=True)
class ToolCaller:
    """Who uses a tool: a step or the coordinator, in which call. `sent` numbers the messages."""

    effect: str
    role: Role
    sent: int
    path: str = ""
    iteration: int | None = None
    sender: str = COORDINATOR


def caller_of(state: State, pending: PendingEffect) -> ToolCaller | RefusedToolUse:
    """Who is behind a call that is under way."""
    call, owner = pending.call, pending.owner
    if isinstance(call, ToolCall):
        assert isinstance(owner, IterationOwner)
        return ToolCaller(
            effect=pending.effect,
            role="step",
            sent=state.mail.sent,
            path=owner.inside,
            iteration=owner.iteration,
            sender=owner.parent.owner.path,
        )
    role = call.role if isinstance(call, AgentCall) else ""
    if role == "coordinator":
        return ToolCaller(effect=pending.effect, role="coordinator", sent=state.mail.sent)
    if role not in ("worker", "reply"):
        return RefusedToolUse("a judge only judges: it neither receives nor sends messages")
    assert isinstance(call, AgentCall)
    return ToolCaller(
        effect=pending.effect,
        role="step",
        sent=state.mail.sent,
        path=owner.inside,
        iteration=owner.iteration,
        sender=call.step or owner.path,
    )


def tools_of(role: Role) -> tuple[str, ...]:
    return COORDINATOR_TOOLS if role == "coordinator" else STEP_TOOLS


def use(
    state: State, caller: ToolCaller, tool: str, arguments: JsonValue, services: KernelServices
) -> list[AnyEvent] | RefusedToolUse:
    """The events of a tool call that is made now, or why it cannot be made."""
    if tool not in tools_of(caller.role):
        return RefusedToolUse(f"there is no tool {tool!r} here; there are {_listed(caller.role)}")
    given = arguments if isinstance(arguments, dict) else {}
    match tool:
        case "send_message":
            return _message(state, caller, services, to=COORDINATOR, text=given.get("text"))
        case "forward_to_agent":
            return _forward(state, caller, services, given)
        case "narrate":
            return _narrate(state, caller, services, given)
        case "finalize":
            return _finalize(state, caller, services, given)
        case _:
            pending = state.pending[caller.effect]
            return deliver(state, pending.owner, caller.effect)


def _listed(role: Role) -> str:
    return ", ".join(tools_of(role))


def _forward(
    state: State, caller: ToolCaller, services: KernelServices, given: dict[str, JsonValue]
) -> list[AnyEvent] | RefusedToolUse:
    to, kind = given.get("target_step_id"), given.get("kind")
    if not isinstance(to, str) or not to.strip():
        return RefusedToolUse("target_step_id must name a step")
    intent = INTENTS.get(kind, "info") if isinstance(kind, str) else "info"
    text = given.get("text")
    if intent == "cancel" and not text:
        text = "cancel"
    return _message(state, caller, services, to=to.strip(), text=text, intent=intent)


def _message(
    state: State,
    caller: ToolCaller,
    services: KernelServices,
    *,
    to: str,
    text: JsonValue,
    intent: Intent = "info",
) -> list[AnyEvent] | RefusedToolUse:
    written = _written(text)
    if isinstance(written, RefusedToolUse):
        return written
    sent = MessageSent(
        at=state.now,
        path=caller.path,
        iteration=caller.iteration,
        to=to[:500],
        text=services.keep(written),
        sender=caller.sender,
        message=f"m{caller.sent + 1}",
        intent=intent,
        effect=caller.effect,
    )
    return [sent]


def _narrate(
    state: State, caller: ToolCaller, services: KernelServices, given: dict[str, JsonValue]
) -> list[AnyEvent] | RefusedToolUse:
    coordinator = state.plan.coordinator
    if coordinator is None or not coordinator.narrates:
        return RefusedToolUse("this coordinator does not narrate")
    written = _written(given.get("text"))
    if isinstance(written, RefusedToolUse):
        return written
    return [
        CoordinatorNarrated(
            at=state.now, path="", text=services.keep(written), effect=caller.effect
        )
    ]


def _finalize(
    state: State, caller: ToolCaller, services: KernelServices, given: dict[str, JsonValue]
) -> list[AnyEvent] | RefusedToolUse:
    if state.mail.coordinator.closed:
        return RefusedToolUse("finalize was already called")
    summary = given.get("summary")
    written = _written(summary) if summary else ""
    if isinstance(written, RefusedToolUse):
        return written
    return [
        CoordinatorFinalized(
            at=state.now, path="", summary=services.keep(written), effect=caller.effect
        )
    ]


def _written(text: JsonValue) -> str | RefusedToolUse:
    """A text that can be passed on; what looks like a key is masked."""
    if not isinstance(text, str) or not text.strip():
        return RefusedToolUse("text must say something")
    if len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
        return RefusedToolUse(f"text may have {MAX_TEXT_BYTES:,} bytes; put more into a file")
    return mask_tokens(text)


MOST_WAKES = 10
MOST_FAILURES = 3
_RETRY = Retry(attempts=MOST_FAILURES)


# -- folding ---------------------------------------------------------------------------------------


def requested(state: State, pending: PendingEffect, purpose: MailPurpose) -> None:
    """Fold a request of these purposes."""
    mail = state.mail
    match purpose:
        case CoordinatorPurpose():
            mail.coordinator.call, mail.coordinator.calls = pending.effect, pending.attempt
            mail.coordinator.shown, mail.coordinator.notices = (
                [*mail.coordinator.shown, *mail.coordinator.notices],
                [],
            )
            mail.coordinator.woken, mail.coordinator.spoke, mail.coordinator.trouble = (
                False,
                False,
                None,
            )
        case CoordinatorBackoffPurpose():
            mail.coordinator.backoff, mail.coordinator.trouble = pending.effect, None
        case ReplyPurpose():
            step = pending.path
            mail.replies.waking[step] = pending.effect
            mail.replies.wakes[step] = pending.attempt
            mail.replies.asleep.pop(step, None)
        case HoldPurpose():
            mail.coordinator.hold = pending.effect
        case _:
            assert_never(purpose)


def answered(
    state: State, pending: PendingEffect, purpose: MailPurpose, event: EffectDone | EffectFailed
) -> None:
    """Fold an answer to a request of these purposes."""
    mail = state.mail
    match purpose:
        case CoordinatorPurpose():
            mail.coordinator.call = None
            _coordinator_answered(state, event)
        case CoordinatorBackoffPurpose():
            mail.coordinator.backoff = None
        case ReplyPurpose():
            step = pending.path
            mail.replies.waking.pop(step, None)
            if isinstance(event, EffectDone):
                mail.replies.answers[event.effect] = event
            else:
                mail.delivered.pop(event.effect, None)
                words = f"could not answer ({event.error.type}): {event.error.detail}"
                tell(state, CoordinatorNotice("reply.failed", step, words), wakes=True)
        case HoldPurpose():
            mail.coordinator.held = True
        case _:
            assert_never(purpose)


def _coordinator_answered(state: State, event: EffectDone | EffectFailed) -> None:
    mail = state.mail
    mail.coordinator.spoke = bool(mail.sent_by.get(event.effect))
    mail.coordinator.session = event.session or mail.coordinator.session
    if isinstance(event, EffectDone):
        mail.coordinator.answer, mail.coordinator.failures = event, 0
        return
    mail.coordinator.failures += 1
    mail.coordinator.trouble, mail.coordinator.woken = event.error, True
    mail.coordinator.notices, mail.coordinator.shown = (
        [*mail.coordinator.shown, *mail.coordinator.notices],
        [],
    )


# -- deciding --------------------------------------------------------------------------------------


def correspond(state: State, services: KernelServices) -> list[AnyEvent]:
    """The next events about messages of a run; none if the run has no messages."""
    mail = state.mail
    if not mail.active:
        return []
    events: list[AnyEvent] = [dropped(state, one) for one in mail.undeliverable.values()]
    events += _heard_coordinator(state, services) + _replied(state)
    if events or state.control.paused:
        return events  # what follows from these is decided when they are folded
    return [*_wake_steps(state), *_call_coordinator(state)]


def _heard_coordinator(state: State, services: KernelServices) -> list[AnyEvent]:
    """Its messages were read; one that used no tool says in its answer what it wants."""
    mail, answer = state.mail, state.mail.coordinator.answer
    if answer is None:
        return []
    read = [one.message for one in mail.coordinator.shown if one.message is not None]
    delivered_messages = delivered(state, state.root, COORDINATOR, read, answer.effect)
    return [*_wishes(state, answer, services), delivered_messages]


def _wishes(state: State, answer: EffectDone, services: KernelServices) -> list[AnyEvent]:
    mail = state.mail
    words = services.read(answer.output).strip()
    if mail.coordinator.spoke or mail.coordinator.closed or not words:
        return []
    caller = ToolCaller(effect=answer.effect, role="coordinator", sent=mail.sent)
    wanted = _tools_in(words)
    if wanted is None:
        narrates = state.plan.coordinator is not None and state.plan.coordinator.narrates
        told = CoordinatorNarrated(
            at=state.now, path="", text=services.keep(words), effect=answer.effect
        )
        return [told] if narrates else []
    events: list[AnyEvent] = []
    for name, arguments in wanted:
        used = use(state, caller, name, arguments, services)
        if not isinstance(used, RefusedToolUse):
            events += used
            caller.sent += sum(isinstance(event, MessageSent) for event in used)
    return events


def _tools_in(words: str) -> list[tuple[str, JsonValue]] | None:
    """The tools that a plain answer asks for: `{"tools": [{"name", "args"}, …]}`."""
    found = last_json_object(words)
    if found is None:
        return None
    try:
        value: JsonValue = msgspec.json.decode(found)
    except (msgspec.DecodeError, RecursionError):
        return None
    tools = value.get("tools") if isinstance(value, dict) else None
    if not isinstance(tools, list):
        return None
    return [(str(tool.get("name")), tool.get("args")) for tool in tools if isinstance(tool, dict)]


def _replied(state: State) -> list[AnyEvent]:
    """The words of steps that were called again, to everybody who had written."""
    events: list[AnyEvent] = []
    number = state.mail.sent
    for effect, answer in state.mail.replies.answers.items():
        for sender, message in _by_sender(state, effect).items():
            number += 1
            events.append(
                MessageSent(
                    at=state.now,
                    path="",
                    to=sender,
                    text=answer.output,
                    sender=effect_path(effect),
                    message=f"m{number}",
                    intent="reply",
                    effect=effect,
                    reply_to=message.id,
                )
            )
    return events


def _by_sender(state: State, effect: str) -> dict[str, QueuedMessage]:
    return {message.sender: message for message in state.mail.delivered.get(effect, ())}


# -- calling ---------------------------------------------------------------------------------------


def _call_coordinator(state: State) -> list[AnyEvent]:
    mail, coordinator = state.mail, state.plan.coordinator
    if (
        coordinator is None
        or not mail.coordinator.woken
        or mail.coordinator.call
        or mail.coordinator.backoff
        or mail.coordinator.closed
    ):
        return []
    reason = _deaf(state)
    if reason is not None:
        left = [one.message for one in mail.coordinator.notices if one.message is not None]
        why = closed_box(reason)
        return [dropped(state, UndeliverableMessage(one, reason, why.detail)) for one in left]
    wait = (
        after_failure(_RETRY, mail.coordinator.failures, mail.coordinator.trouble)
        if mail.coordinator.trouble
        else None
    )
    if wait is not None and wait.ms:
        rest = SleepCall(until=state.now + wait.ms)
        return [_request(state, COORDINATOR_BACKOFF, mail.coordinator.calls, rest)]
    call = AgentCall(agent=coordinator.agent, role="coordinator")
    return [_request(state, COORDINATOR_CALL, mail.coordinator.calls + 1, call)]


def _deaf(state: State) -> DropReason | None:
    """Why the coordinator is not called any more, or None."""
    coordinator = state.plan.coordinator
    if coordinator is None or state.mail.coordinator.failures >= MOST_FAILURES:
        return "coordinator-failed"
    if state.mail.coordinator.calls >= coordinator.max_calls:
        return "max-wake-cycles"
    return "budget" if over_budget(state, state.root) is not None else None


def _wake_steps(state: State) -> list[AnyEvent]:
    """Call ended steps again that have something to read."""
    events: list[AnyEvent] = []
    most = state.plan.parallel
    room = len(state.mail.replies.asleep) if most is None else most - state.agents.calls
    for key in state.mail.replies.asleep:
        if key in state.mail.replies.waking:
            continue  # what came meanwhile waits for its next call
        where, waiting = locate(state, key), state.mail.inboxes.get(key, [])
        assert isinstance(where, EndedStep)
        assert where.step is not None
        reason = _not_woken(state, key)
        if reason is not None:
            events += [dropped(state, UndeliverableMessage(one, *reason)) for one in waiting]
        elif room > 0:
            events += _wake(state, key, where.step, waiting)
            room -= 1
    return events


def _not_woken(state: State, key: str) -> tuple[DropReason, str] | None:
    if state.mail.replies.wakes.get(key, 0) >= MOST_WAKES:
        return "max-wake-cycles", f"{key} was called again {MOST_WAKES} times"
    if over_budget(state, state.root) is not None:
        return "budget", "nothing is left in the budget for an answer"
    return None


def _wake(state: State, key: str, step: Step, waiting: list[QueuedMessage]) -> list[AnyEvent]:
    number = state.mail.replies.wakes.get(key, 0) + 1
    effect = effect_id(key, REPLY, number)
    handed = [delivered(state, state.root, key, waiting, effect)] if waiting else []
    call = AgentCall(agent=_agent_of(step.action), role="reply", step=key)
    return [*handed, EffectRequested(at=state.now, path="", effect=effect, call=call)]


def _agent_of(action: Action) -> str:
    while isinstance(action, Repeat):
        action = action.body
    assert isinstance(action, CallAgent), "only the output of an agent can be questioned"
    return action.agent


def _request(
    state: State,
    purpose: MailPurpose,
    number: int,
    call: AgentCall | SleepCall,
) -> EffectRequested:
    effect = effect_id("", purpose, number)
    return EffectRequested(at=state.now, path="", effect=effect, call=call)


# -- the end of the run ----------------------------------------------------------------------------


def last_words(state: State) -> list[AnyEvent] | None:
    """What is still talked about when all steps have ended: None when the run can end now."""
    mail, coordinator = state.mail, state.plan.coordinator
    if not mail.active or mail.coordinator.held or not _is_talking(state):
        return None
    if mail.coordinator.hold is not None or coordinator is None:
        return []
    return [
        _request(
            state,
            HOLD,
            1 + state.reopenings.count,
            SleepCall(until=state.now + coordinator.hold_ms),
        )
    ]


def _is_talking(state: State) -> bool:
    mail = state.mail
    under_way = (
        mail.coordinator.call
        or mail.coordinator.backoff
        or mail.replies.waking
        or mail.replies.answers
        or mail.coordinator.answer
    )
    if under_way or mail.undeliverable:
        return True
    if (
        state.plan.coordinator is not None
        and mail.coordinator.woken
        and not mail.coordinator.closed
    ):
        return _deaf(state) is None or any(
            one.message is not None for one in mail.coordinator.notices
        )
    return bool(mail.replies.asleep)


def close_mail(
    state: State, why: str, reason: DropReason, *, resumable: bool = False
) -> list[AnyEvent]:
    """End everything about messages: calls are withdrawn, and unread messages are dropped. In a run
    that can be resumed, what people wrote to its agents waits for that.
    """
    mail = state.mail
    if not mail.active:
        return []
    effects = [
        mail.coordinator.call,
        mail.coordinator.backoff,
        mail.coordinator.hold,
        *mail.replies.waking.values(),
    ]
    events = [event for effect in effects for event in withdraw(state, state.root, effect, why)]
    told = {one.message.id: one for one in mail.undeliverable.values()}
    for message in _unread(state):
        if resumable and message.intent == "tell" and message.id in mail.boxes:
            continue
        told.setdefault(
            message.id, UndeliverableMessage(message, reason, f"the run has ended ({why})")
        )
    events += [dropped(state, one) for one in told.values()]
    return events


def _unread(state: State) -> list[QueuedMessage]:
    mail = state.mail
    boxes = [message for waiting in mail.inboxes.values() for message in waiting]
    notices = [
        one.message
        for one in (*mail.coordinator.shown, *mail.coordinator.notices)
        if one.message is not None
    ]
    return [*boxes, *notices, *mail.stopped.values()]
