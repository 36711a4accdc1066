"""Messages: send them, deliver them to a call, and drop those that no step will read.

A message is delivered when a call begins, when the agent of an open call reads its inbox, or,
after its step has ended, by calling the step again. Each message ends in exactly one of two
events: it was delivered, or it was dropped with a reason.
"""

from loopwright.kernel.addresses import (
    EndedStep,
    FutureStep,
    RunningStep,
    UnreachableAddress,
    is_wakeable,
    locate,
    resolve_address,
)
from loopwright.kernel.event_parts import DropReason
from loopwright.kernel.events import (
    AnyEvent,
    CheckVerdict,
    CoordinatorFinalized,
    CoordinatorNarrated,
    EffectDone,
    EffectFailed,
    IterationFinished,
    MessageDelivered,
    MessageDropped,
    MessageSent,
    Outcome,
    RunStarted,
    StepFinished,
    StepSkipped,
    StepStarted,
)
from loopwright.kernel.frames import (
    AgentMessage,
    CoordinatorNotice,
    CycleBody,
    HistoryEntry,
    IterationOwner,
    LeafBody,
    Owner,
    QueuedMessage,
    Result,
    UndeliverableMessage,
)
from loopwright.kernel.state import ANY_AGENT, COORDINATOR, State
from loopwright.model.ids import AGENT_CALL, logical_path

MAILBOX_SIZE = 10_000
REOPENED: tuple[Outcome, ...] = ("failed", "exhausted", "cancelled")
"""How a run, or a step of it, must have ended to be resumed."""
MOST_NOTICES = 1_000
KEPT_NOTICES = 400
CANCELLED = "cancelled"


# -- posting ---------------------------------------------------------------------------------------


def message_sent(state: State, event: MessageSent) -> None:
    """Fold a message: into an inbox, or among those that cannot be delivered."""
    mail = state.mail
    mail.active = True
    mail.sent += 1
    if event.intent == "reply":
        mail.replies.answers.pop(event.effect, None)
        mail.delivered.pop(event.effect, None)
    _note_sent(state, event.effect, ("message", f"{event.intent} {event.to}", event.text))
    message = QueuedMessage(
        id=event.message, sender=event.sender, to=event.to, text=event.text, intent=event.intent
    )
    if event.to == COORDINATOR:
        _to_coordinator(state, message)
    elif event.to == ANY_AGENT:
        _to_any_agent(state, message)
    elif event.intent != "reply":  # a person reads replies in the log
        _to_step(state, message)
    state.touch(state.root)


def _note_sent(state: State, effect: str, said: AgentMessage) -> None:
    if effect in state.pending:
        state.mail.sent_by.setdefault(effect, []).append(said)


def _to_coordinator(state: State, message: QueuedMessage) -> None:
    mail = state.mail
    if state.plan.coordinator is None:
        detail = "this run has no coordinator that would read it"
        refuse(state, message, UnreachableAddress("no-coordinator", detail))
    elif mail.coordinator.closed:
        detail = "the coordinator has called finalize"
        refuse(state, message, UnreachableAddress("mailbox-closed-by-finalize", detail))
    elif len(mail.coordinator.notices) >= MAILBOX_SIZE:
        refuse(state, message, UnreachableAddress("mailbox-full", f"{MAILBOX_SIZE} messages wait"))
    else:
        tell(state, CoordinatorNotice("message", step=message.sender, message=message), wakes=True)


def _to_any_agent(state: State, message: QueuedMessage) -> None:
    """Keep a message for the next agent call of the run, or for an agent that asks meanwhile."""
    if len(state.mail.inboxes.get(ANY_AGENT, ())) >= MAILBOX_SIZE:
        refuse(state, message, UnreachableAddress("mailbox-full", f"{MAILBOX_SIZE} messages wait"))
        return
    state.mail.inboxes.setdefault(ANY_AGENT, []).append(message)
    state.mail.boxes[message.id] = ANY_AGENT


def _to_step(state: State, message: QueuedMessage) -> None:
    key = resolve_address(state, message.to)
    if isinstance(key, UnreachableAddress):
        refuse(state, message, key)
        return
    where = locate(state, key)
    waiting = state.mail.inboxes.get(key, ())
    if isinstance(where, UnreachableAddress):
        refuse(state, message, where)
    elif message.intent == "cancel":
        _stop(state, message, where)
    elif isinstance(where, EndedStep) and not _is_called_again(message, where):
        refuse(state, message, _over(key, where))
    elif len(waiting) >= MAILBOX_SIZE:
        refuse(
            state,
            message,
            UnreachableAddress("mailbox-full", f"{MAILBOX_SIZE} messages wait for {key}"),
        )
    else:
        state.mail.inboxes.setdefault(key, []).append(message)
        state.mail.boxes[message.id] = key
        if isinstance(where, EndedStep):
            state.mail.replies.asleep[key] = None


def _is_called_again(message: QueuedMessage, where: EndedStep) -> bool:
    """Whether an ended step is called again to read a message; a person who steers a run wants
    other work, and not an answer.
    """
    return message.intent != "tell" and is_wakeable(where)


def _is_for_resume(message: QueuedMessage, where: EndedStep) -> bool:
    """Whether a step that did not complete reads a message of a person when the run is resumed."""
    return message.intent == "tell" and where.status in REOPENED


def _stop(
    state: State, message: QueuedMessage, where: RunningStep | FutureStep | EndedStep
) -> None:
    if isinstance(where, RunningStep):
        state.mail.stopped[where.owner.path] = message
        state.touch(where.owner)
    else:
        detail = f"{message.to} is not under way, so there is nothing to stop"
        refuse(state, message, UnreachableAddress("not-running", detail))


def _over(key: str, where: EndedStep) -> UnreachableAddress:
    if where.status == "skipped":
        return UnreachableAddress("no-transcript", f"{key} was skipped and has no transcript")
    return UnreachableAddress(
        "target-terminal", f"{key} has ended ({where.status}) and is not called again"
    )


def refuse(state: State, message: QueuedMessage, why: UnreachableAddress) -> None:
    """Note that a message will not be read; the decision records it as an event."""
    state.mail.undeliverable[message.id] = UndeliverableMessage(
        message, why.reason, why.detail, why.known
    )
    state.touch(state.root)


# -- delegation -----------------------------------------------------------------------------------


def deliver(state: State, owner: Owner, effect: str) -> list[AnyEvent]:
    """What waits for a place is handed to a call there; nothing when nothing waits."""
    inboxes = state.mail.inboxes
    if not inboxes:
        return []
    keys = (logical_path(owner.path), ANY_AGENT)
    return [delivered(state, owner, key, inboxes[key], effect) for key in keys if key in inboxes]


def delivered(
    state: State, owner: Owner, key: str, messages: list[QueuedMessage], effect: str
) -> MessageDelivered:
    return MessageDelivered(
        at=state.now,
        path=owner.inside,
        iteration=owner.iteration,
        to=key,
        messages=tuple(message.id for message in messages),
        effect=effect,
    )


def message_delivered(state: State, event: MessageDelivered) -> None:
    """Fold a delivery. The message is in the prompt of its reader for as long as its path is
    open.
    """
    mail = state.mail
    if event.to == COORDINATOR:
        mail.coordinator.answer, mail.coordinator.shown = None, []
        state.touch(state.root)
        return
    taken = set(event.messages)
    heard = [message for message in mail.inboxes.get(event.to, ()) if message.id in taken]
    _remove_message(state, event.to, taken)
    for place in [path for path, one in mail.stopped.items() if one.id in taken]:
        del mail.stopped[place]
    reader = state.owners.get(event.path)
    if reader is not None and isinstance(reader.body, CycleBody):
        note_messages(reader, heard)
    elif heard:
        mail.delivered.setdefault(event.path or event.effect, []).extend(heard)
    if not event.path and event.to != ANY_AGENT:
        mail.replies.asleep[event.to] = None  # until it is called


def note_messages(reader: Owner, heard: list[QueuedMessage]) -> None:
    """A conversation keeps the messages to it, like all its other texts."""
    assert isinstance(reader, IterationOwner)
    reader.parent.talk.history += [
        HistoryEntry(
            kind="user", text=message.text, by=message.sender, told=message.intent == "tell"
        )
        for message in heard
    ]


def _remove_message(state: State, key: str, taken: set[str]) -> None:
    mail = state.mail
    left = [message for message in mail.inboxes.pop(key, ()) if message.id not in taken]
    for name in taken:
        mail.boxes.pop(name, None)
    if left:
        mail.inboxes[key] = left
    else:
        mail.replies.asleep.pop(key, None)


def dropped(state: State, one: UndeliverableMessage) -> MessageDropped:
    message = one.message
    return MessageDropped(
        at=state.now,
        path="",
        message=message.id,
        to=message.to,
        reason=one.reason,
        detail=one.detail,
        text=message.text,
        sender=message.sender,
        known=one.known,
    )


def message_dropped(state: State, event: MessageDropped) -> None:
    """Fold a drop: the message is removed, and the coordinator that sent it is notified."""
    mail = state.mail
    key = mail.boxes.get(event.message)
    if key is not None:
        _remove_message(state, key, {event.message})
    elif mail.undeliverable.pop(event.message, None) is None:
        _take_from_coordinator(state, event.message)
    if event.sender == COORDINATOR:
        words = f"your message to {event.to} was dropped ({event.reason}): {event.detail}"
        tell(state, CoordinatorNotice("message.dropped", words=words, text=event.text))
    state.touch(state.root)


def _take_from_coordinator(state: State, message: str) -> None:
    """It is not called any more, so earlier messages are not delivered either."""
    notices = state.mail.coordinator.notices
    found = (n for n, one in enumerate(notices) if one.message and one.message.id == message)
    del notices[: next(found, -1) + 1]


# -- a message that stops its reader ---------------------------------------------------------------


def stopped(state: State, owner: Owner) -> Result | None:
    """How a place ended that a message stops: completed, and its content says what happened."""
    if not state.mail.stopped or owner.path not in state.mail.stopped:
        return None
    return Result("completed", CANCELLED, output=CANCELLED)


def stop_delivered(state: State, owner: Owner) -> list[AnyEvent]:
    """The event that such a message has reached its reader."""
    message = state.mail.stopped.get(owner.path) if state.mail.stopped else None
    if message is None:
        return []
    effect = owner.body.pending if isinstance(owner.body, LeafBody) else None
    return [delivered(state, owner, logical_path(owner.path), [message], effect or "")]


# -- what else happens -----------------------------------------------------------------------------


def note(state: State, event: AnyEvent) -> None:
    """Handle an event that was just folded, in a run with messages."""
    match event:
        case RunStarted():
            tell(state, CoordinatorNotice("run.started", text=event.message), wakes=True)
        case StepStarted():
            tell(state, CoordinatorNotice("step.started", step=event.path))
        case StepFinished():
            words = f"{event.status} ({event.reason})" if event.reason else event.status
            tell(
                state,
                CoordinatorNotice("step.finished", event.path, words, event.output),
                wakes=True,
            )
            _place_ended(state, event.path, event.status)
        case StepSkipped():
            words = f"{event.status} ({event.reason})"
            tell(state, CoordinatorNotice("step.skipped", event.path, words), wakes=True)
            _place_ended(state, event.path)
        case IterationFinished():
            _place_ended(state, event.path, event.status)
        case CheckVerdict() if event.by:
            tell(state, CoordinatorNotice("check.verdict", event.by, event.verdict, event.evidence))
        case EffectDone() | EffectFailed():
            _call_ended(state, event)
        case CoordinatorNarrated():
            _note_sent(state, event.effect, ("narrate", "", event.text))
        case CoordinatorFinalized():
            _note_sent(state, event.effect, ("finalize", "", event.summary))
        case _:
            pass


def tell(state: State, notice: CoordinatorNotice, *, wakes: bool = False) -> None:
    """Something that the coordinator is to hear; what wakes it has it called."""
    mail = state.mail
    if state.plan.coordinator is None or mail.coordinator.closed:
        return
    mail.coordinator.notices.append(notice)
    if len(mail.coordinator.notices) > MOST_NOTICES and notice.message is None:
        recent = mail.coordinator.notices[-KEPT_NOTICES:]
        older = mail.coordinator.notices[:-KEPT_NOTICES]
        mail.coordinator.notices = [one for one in older if one.message is not None] + recent
    if wakes:
        mail.coordinator.woken = True
        state.touch(state.root)


def _place_ended(state: State, path: str, status: str = "skipped") -> None:
    """A path has ended: messages to it are removed, and calls that wait for it may wait in vain.
    A step that did not complete may be resumed: its call is then repeated with the same messages.
    """
    mail = state.mail
    if status not in REOPENED:
        for place in [
            one for one in mail.delivered if one.partition("~")[0] == path or one == path
        ]:
            del mail.delivered[place]  # a step that started again has another name inside
    too_late = mail.stopped.pop(path, None)
    if too_late is not None:
        refuse(
            state,
            too_late,
            UnreachableAddress("target-terminal", f"{path} ended before it received the message"),
        )
    if not mail.inboxes:
        return
    key = logical_path(path)
    for name in [n for n in mail.inboxes if n == key or n.startswith((f"{key}.", f"{key}["))]:
        where = locate(state, name)
        if not isinstance(where, EndedStep):
            continue
        waiting = mail.inboxes.pop(name)
        _sort_unread(state, name, waiting, where)


def _sort_unread(state: State, name: str, waiting: list[QueuedMessage], where: EndedStep) -> None:
    """Keep what an ended step will still read, and refuse the rest."""
    mail = state.mail
    woken = [message for message in waiting if _is_called_again(message, where)]
    kept = [one for one in waiting if one in woken or _is_for_resume(one, where)]
    for message in waiting:
        if message not in kept:
            del mail.boxes[message.id]
            refuse(state, message, _over(name, where))
    if kept:
        mail.inboxes[name] = kept
    if woken:
        mail.replies.asleep[name] = None
        state.touch(state.root)


def _call_ended(state: State, event: EffectDone | EffectFailed) -> None:
    mail = state.mail
    mail.sent_by.pop(event.effect, None)
    if event.session and event.purpose == AGENT_CALL:
        key = logical_path(event.path)
        if "." not in key and "[" not in key:  # only steps of the plan itself are called again
            mail.sessions[key] = event.session
    if mail.replies.asleep:
        state.touch(state.root)  # a place among the parallel calls may be free for an answer


def finalized(state: State, event: CoordinatorFinalized) -> None:
    """The coordinator is not called again."""
    mail = state.mail
    mail.coordinator.closed = True
    mail.coordinator.summary = event.summary or None
    left = [one.message for one in mail.coordinator.notices if one.message is not None]
    mail.coordinator.notices, mail.coordinator.woken = [], False
    for message in left:
        refuse(state, message, closed_box("mailbox-closed-by-finalize"))


def mail_reopened(state: State) -> None:
    """The coordinator of a resumed run is called again, whatever it answered before."""
    mail = state.mail
    mail.coordinator.closed = mail.coordinator.held = False
    mail.coordinator.hold = mail.coordinator.summary = mail.coordinator.trouble = None
    mail.coordinator.failures = 0
    tell(state, CoordinatorNotice("run.reopened"), wakes=True)


def closed_box(reason: DropReason) -> UnreachableAddress:
    """Why the coordinator does not read what was sent to it."""
    words: dict[str, str] = {
        "mailbox-closed-by-finalize": "the coordinator has called finalize",
        "max-wake-cycles": "the coordinator was called as often as it may be",
        "coordinator-failed": "the coordinator could not be called",
        "budget": "nothing is left in the budget for the coordinator",
    }
    return UnreachableAddress(reason, words.get(reason, ""))
