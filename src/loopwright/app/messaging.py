"""Messages to a run that has not ended, from people and from programs outside it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

from loopwright.app.auditing import audit_rows
from loopwright.app.service import CAS_TRIES, Service, row_ended
from loopwright.errors import Conflict, LoopwrightError, VersionConflict
from loopwright.kernel.addresses import Over, Refusal, directory, locate, resolve_address
from loopwright.kernel.calls import AgentCall
from loopwright.kernel.facts import MessageSent
from loopwright.kernel.frames import CycleBody
from loopwright.kernel.mail import ANY_AGENT, COORDINATOR, PERSON
from loopwright.kernel.masking import mask_tokens
from loopwright.kernel.messages import REOPENED
from loopwright.kernel.reasons import Intent
from loopwright.kernel.state import State
from loopwright.kernel.tools import MAX_TEXT_BYTES
from loopwright.model.ids import logical_path
from loopwright.ports import Append
from loopwright.runtime.senses import stored_text

INBOX_AGENTS = ("jsonl:", "claude")  # programs that read messages while they work
When = Literal["now", "next-turn", "next-call"]
"""When an agent reads a message: claude and programs that read their inbox now, a chat model before
its next turn, every other agent at its next call."""
WHEN_WORDS: Mapping[When, str] = {
    "now": "delivered now if the agent reads it while it works, otherwise at its next call",
    "next-turn": "will be read before the model's next turn",
    "next-call": "will be read at the next iteration or agent call",
}


class Sent(NamedTuple):
    """A message that was recorded."""

    run: str
    message: str
    to: str
    when: When = "next-call"


def check_message(text: str) -> None:
    """Refuse an empty message and one that is too long, in the same words everywhere."""
    size = len(text.encode(errors="replace"))
    if not text.strip():
        raise LoopwrightError("the message is empty", code="bad-message", hint="write a text")
    if size > MAX_TEXT_BYTES:
        what = f"the message has {size:,} bytes; at most {MAX_TEXT_BYTES:,} are accepted"
        hint = "write the text to a file of the workspace and send its path"
        raise LoopwrightError(what, code="bad-message", hint=hint)


async def tell(service: Service, run: str, text: str, *, to: str = "", by: str = "") -> Sent:
    """Record a message for an agent of a run: for the next call of any agent, unless a step is
    named. Where a coordinator reads what people write, it gets the message.
    """
    check_message(text)
    run = service.find(run)
    state = service.state(run)
    if state.finished is not None:
        raise _ended(service, run)
    address = to or (COORDINATOR if state.plan.coordinator is not None else ANY_AGENT)
    if address == ANY_AGENT and "agent" not in directory(state).kinds.values():
        raise LoopwrightError(f"{run} has no agent that reads messages", code="not-an-agent")
    name = await send_message(service, run, address, text, by=by, intent="tell")
    return Sent(run, name, address, _read_when(state, address))


def _read_when(state: State, to: str) -> When:
    """When the agent that is called now reads a message; without one, the next call does."""
    for pending in state.pending.values():
        call, owner = pending.call, pending.owner
        if to != ANY_AGENT and logical_path(owner.path) != to:
            continue
        if isinstance(owner.body, CycleBody):
            return "next-turn"
        agent = state.plan.agents.get(call.agent) if isinstance(call, AgentCall) else None
        if agent is not None and (agent.spec or "").startswith(INBOX_AGENTS):
            return "now"
    return "next-call"


def _ended(service: Service, run: str) -> Conflict:
    status = service.log.row(run).headline.status
    hint = "start a new run"
    if status in REOPENED:
        hint = f"`loopwright resume {run}` continues it; send the message while it runs"
    return Conflict(f"{run} has ended ({status}) and reads no messages", code="ended", hint=hint)


async def send_message(
    service: Service, run: str, to: str, text: str, *, by: str = "", intent: Intent = "info"
) -> str:
    """Write to a step, or to the coordinator; answers the id of the message.

    An address that names no step, or more than one, is refused and nothing is written. The events
    of the run say what becomes of the message.
    """
    check_message(text)
    if service.rights is not None:
        service.rights.refuse("send a message to the agents of a run", run)
    kept, blobs = stored_text(mask_tokens(text))
    for _ in range(CAS_TRIES):
        version = service.log.version(run)
        state = service.state(run)
        if to not in (COORDINATOR, ANY_AGENT):
            found = resolve_address(state, to)
            if isinstance(found, Refusal):
                hint = f"there are: {', '.join(found.known)}" if found.known else ""
                raise LoopwrightError(found.detail, code=found.reason, hint=hint)
            if intent == "tell" and isinstance(over := locate(state, found), Over):
                detail = f"{found} has ended ({over.status}) and is not called again"
                raise Conflict(detail, code="target-terminal")
        fact = MessageSent(
            at=service.clock.now_ms(),
            path="",
            to=to,
            text=kept,
            sender=by or PERSON,
            message=f"m{state.mail.sent + 1}",
            intent=intent,
        )
        try:
            await service.log.append(_addition(service, run, fact, version, blobs))
        except VersionConflict:
            continue
        if service.driver is not None:
            service.look(run)
        return fact.message
    raise Conflict("the run changes too fast; try again", code="busy")


def _addition(
    service: Service, run: str, fact: MessageSent, version: int, blobs: Mapping[str, bytes]
) -> Append:
    """The append of a message; what lists show of the run stays."""
    row = service.log.row(run)
    if row_ended(row):
        raise _ended(service, run)
    headline = replace(row.headline, updated_at=fact.at)
    return Append(
        run=run,
        expected=version,
        facts=[fact],
        blobs=blobs,
        headline=headline,
        audit=audit_rows(run, [fact], service.via),
    )
