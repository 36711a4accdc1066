"""Coordination: calling the coordinator, and calling ended steps again to answer a message.

The coordinator hears what happens in the run and is called when something wakes it: the start, a
message, a step that ended. What happens while it is called is told in its next call. Nothing that
it does or fails to do changes how a step ends.
"""

from typing import Literal

import msgspec

from loopwright.kernel.addresses import Over, locate
from loopwright.kernel.calls import AgentCall, SleepCall
from loopwright.kernel.checks import last_json_object
from loopwright.kernel.close import withdraw
from loopwright.kernel.facts import (
    AnyFact,
    CoordinatorNarrated,
    EffectDone,
    EffectFailed,
    EffectRequested,
    MessageSent,
)
from loopwright.kernel.limits import over_budget
from loopwright.kernel.mail import COORDINATOR, Message, Notice, Undeliverable
from loopwright.kernel.messages import closed_box, delivered, dropped, tell
from loopwright.kernel.reasons import DropReason
from loopwright.kernel.retry import after_failure
from loopwright.kernel.state import Pending, Senses, State
from loopwright.kernel.tools import Caller, Refused, use
from loopwright.model.actions import Action, CallAgent, Repeat, Step
from loopwright.model.ids import effect_id
from loopwright.model.policy import Retry
from loopwright.model.record import JsonValue

MOST_WAKES = 10
MOST_FAILURES = 3
PURPOSES = frozenset({"coordinator", "coordinator-backoff", "reply", "hold"})
"""What is asked for on behalf of the run itself, and not by a place in it."""
_RETRY = Retry(attempts=MOST_FAILURES)


# -- folding ---------------------------------------------------------------------------------------


def requested(state: State, pending: Pending) -> None:
    """Fold a request of these purposes."""
    mail = state.mail
    match pending.purpose:
        case "coordinator":
            mail.call, mail.calls = pending.effect, pending.attempt
            mail.shown, mail.notices = [*mail.shown, *mail.notices], []
            mail.woken, mail.spoke, mail.trouble = False, False, None
        case "coordinator-backoff":
            mail.backoff, mail.trouble = pending.effect, None
        case "reply":
            step = pending.effect.rpartition("/")[0]
            mail.waking[step] = pending.effect
            mail.wakes[step] = pending.attempt
            mail.asleep.pop(step, None)
        case _:
            mail.hold = pending.effect


def answered(state: State, pending: Pending, fact: EffectDone | EffectFailed) -> None:
    """Fold an answer to a request of these purposes."""
    mail = state.mail
    match pending.purpose:
        case "coordinator":
            mail.call = None
            _coordinator_answered(state, fact)
        case "coordinator-backoff":
            mail.backoff = None
        case "reply":
            step = pending.effect.rpartition("/")[0]
            mail.waking.pop(step, None)
            if isinstance(fact, EffectDone):
                mail.replies[fact.effect] = fact
            else:
                mail.heard.pop(fact.effect, None)
                words = f"could not answer ({fact.error.type}): {fact.error.detail}"
                tell(state, Notice("reply.failed", step, words), wakes=True)
        case _:
            mail.held = True


def _coordinator_answered(state: State, fact: EffectDone | EffectFailed) -> None:
    mail = state.mail
    mail.spoke = bool(mail.said.get(fact.effect))
    mail.session = fact.session or mail.session
    if isinstance(fact, EffectDone):
        mail.answer, mail.failures = fact, 0
        return
    mail.failures += 1
    mail.trouble, mail.woken = fact.error, True
    mail.notices, mail.shown = [*mail.shown, *mail.notices], []


# -- deciding --------------------------------------------------------------------------------------


def correspond(state: State, senses: Senses) -> list[AnyFact]:
    """What follows for the messages of a run; nothing, at once, where nobody writes."""
    mail = state.mail
    if not mail.active:
        return []
    facts: list[AnyFact] = [dropped(state, one) for one in mail.undeliverable.values()]
    facts += _heard_coordinator(state, senses) + _replied(state)
    if facts or state.paused:
        return facts  # what follows from these is looked at when they are folded
    return [*_wake_steps(state), *_call_coordinator(state)]


def _heard_coordinator(state: State, senses: Senses) -> list[AnyFact]:
    """Its messages were read; one that used no tool says in its answer what it wants."""
    mail, answer = state.mail, state.mail.answer
    if answer is None:
        return []
    read = [one.message for one in mail.shown if one.message is not None]
    heard = delivered(state, state.root, COORDINATOR, read, answer.effect)
    return [*_wishes(state, answer, senses), heard]


def _wishes(state: State, answer: EffectDone, senses: Senses) -> list[AnyFact]:
    mail = state.mail
    words = senses.read(answer.output).strip()
    if mail.spoke or mail.closed or not words:
        return []
    caller = Caller(effect=answer.effect, role="coordinator", sent=mail.sent)
    wanted = _tools_in(words)
    if wanted is None:
        narrates = state.plan.coordinator is not None and state.plan.coordinator.narrates
        told = CoordinatorNarrated(
            at=state.now, path="", text=senses.keep(words), effect=answer.effect
        )
        return [told] if narrates else []
    facts: list[AnyFact] = []
    for name, arguments in wanted:
        used = use(state, caller, name, arguments, senses)
        if not isinstance(used, Refused):
            facts += used
            caller.sent += sum(isinstance(fact, MessageSent) for fact in used)
    return facts


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


def _replied(state: State) -> list[AnyFact]:
    """The words of steps that were called again, to everybody who had written."""
    facts: list[AnyFact] = []
    number = state.mail.sent
    for effect, answer in state.mail.replies.items():
        for sender, message in _by_sender(state, effect).items():
            number += 1
            facts.append(
                MessageSent(
                    at=state.now,
                    path="",
                    to=sender,
                    text=answer.output,
                    sender=effect.rpartition("/")[0],
                    message=f"m{number}",
                    intent="reply",
                    effect=effect,
                    reply_to=message.id,
                )
            )
    return facts


def _by_sender(state: State, effect: str) -> dict[str, Message]:
    return {message.sender: message for message in state.mail.heard.get(effect, ())}


# -- calling ---------------------------------------------------------------------------------------


def _call_coordinator(state: State) -> list[AnyFact]:
    mail, coordinator = state.mail, state.plan.coordinator
    if coordinator is None or not mail.woken or mail.call or mail.backoff or mail.closed:
        return []
    reason = _deaf(state)
    if reason is not None:
        left = [one.message for one in mail.notices if one.message is not None]
        why = closed_box(reason)
        return [dropped(state, Undeliverable(one, reason, why.detail)) for one in left]
    wait = after_failure(_RETRY, mail.failures, mail.trouble) if mail.trouble else None
    if wait is not None and wait.ms:
        rest = SleepCall(until=state.now + wait.ms)
        return [_request(state, "coordinator-backoff", mail.calls, rest)]
    call = AgentCall(agent=coordinator.agent, role="coordinator")
    return [_request(state, "coordinator", mail.calls + 1, call)]


def _deaf(state: State) -> DropReason | None:
    """Why the coordinator is not called any more, or None."""
    coordinator = state.plan.coordinator
    if coordinator is None or state.mail.failures >= MOST_FAILURES:
        return "coordinator-failed"
    if state.mail.calls >= coordinator.max_calls:
        return "max-wake-cycles"
    return "budget" if over_budget(state, state.root) is not None else None


def _wake_steps(state: State) -> list[AnyFact]:
    """Call ended steps again that have something to read."""
    facts: list[AnyFact] = []
    most = state.plan.parallel
    room = len(state.mail.asleep) if most is None else most - state.calls
    for key in state.mail.asleep:
        if key in state.mail.waking:
            continue  # what came meanwhile waits for its next call
        where, waiting = locate(state, key), state.mail.inboxes.get(key, [])
        assert isinstance(where, Over)
        assert where.step is not None
        reason = _not_woken(state, key)
        if reason is not None:
            facts += [dropped(state, Undeliverable(one, *reason)) for one in waiting]
        elif room > 0:
            facts += _wake(state, key, where.step, waiting)
            room -= 1
    return facts


def _not_woken(state: State, key: str) -> tuple[DropReason, str] | None:
    if state.mail.wakes.get(key, 0) >= MOST_WAKES:
        return "max-wake-cycles", f"{key} was called again {MOST_WAKES} times"
    if over_budget(state, state.root) is not None:
        return "budget", "nothing is left in the budget for an answer"
    return None


def _wake(state: State, key: str, step: Step, waiting: list[Message]) -> list[AnyFact]:
    number = state.mail.wakes.get(key, 0) + 1
    effect = effect_id(key, "reply", number)
    handed = [delivered(state, state.root, key, waiting, effect)] if waiting else []
    call = AgentCall(agent=_agent_of(step.action), role="reply", step=key)
    return [*handed, EffectRequested(at=state.now, path="", effect=effect, call=call)]


def _agent_of(action: Action) -> str:
    while isinstance(action, Repeat):
        action = action.body
    assert isinstance(action, CallAgent), "only what an agent has said can be asked about"
    return action.agent


def _request(
    state: State,
    purpose: Literal["coordinator", "coordinator-backoff", "hold"],
    number: int,
    call: AgentCall | SleepCall,
) -> EffectRequested:
    effect = effect_id("", purpose, number)
    return EffectRequested(at=state.now, path="", effect=effect, call=call)


# -- the end of the run ----------------------------------------------------------------------------


def last_words(state: State) -> list[AnyFact] | None:
    """What is still talked about when all steps have ended: None when the run can end now."""
    mail, coordinator = state.mail, state.plan.coordinator
    if not mail.active or mail.held or not _is_talking(state):
        return None
    if mail.hold is not None or coordinator is None:
        return []
    return [
        _request(
            state, "hold", 1 + state.reopened, SleepCall(until=state.now + coordinator.hold_ms)
        )
    ]


def _is_talking(state: State) -> bool:
    mail = state.mail
    under_way = mail.call or mail.backoff or mail.waking or mail.replies or mail.answer
    if under_way or mail.undeliverable:
        return True
    if state.plan.coordinator is not None and mail.woken and not mail.closed:
        return _deaf(state) is None or any(one.message is not None for one in mail.notices)
    return bool(mail.asleep)


def close_mail(
    state: State, why: str, reason: DropReason, *, resumable: bool = False
) -> list[AnyFact]:
    """End everything about messages: calls are withdrawn, and what nobody read is dropped. In a run
    that can be resumed, what people wrote to its agents waits for that.
    """
    mail = state.mail
    if not mail.active:
        return []
    effects = [mail.call, mail.backoff, mail.hold, *mail.waking.values()]
    facts = [fact for effect in effects for fact in withdraw(state, state.root, effect, why)]
    told = {one.message.id: one for one in mail.undeliverable.values()}
    for message in _unread(state):
        if resumable and message.intent == "tell" and message.id in mail.boxes:
            continue
        told.setdefault(message.id, Undeliverable(message, reason, f"the run has ended ({why})"))
    facts += [dropped(state, one) for one in told.values()]
    return facts


def _unread(state: State) -> list[Message]:
    mail = state.mail
    boxes = [message for waiting in mail.inboxes.values() for message in waiting]
    notices = [one.message for one in (*mail.shown, *mail.notices) if one.message is not None]
    return [*boxes, *notices, *mail.stopped.values()]
