"""Tools of the run: what an agent under way may ask of the run itself, as facts.

A step writes to the coordinator and reads its inbox. The coordinator writes to steps, tells people
what happens, and says its last word. Each use is a fact as soon as it is made, while the call that
made it is still under way.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from loopwright.kernel.calls import AgentCall, ToolCall
from loopwright.kernel.facts import (
    AnyFact,
    CoordinatorFinalized,
    CoordinatorNarrated,
    MessageSent,
)
from loopwright.kernel.frames import PassOwner
from loopwright.kernel.mail import COORDINATOR
from loopwright.kernel.masking import mask_tokens
from loopwright.kernel.messages import deliver
from loopwright.kernel.reasons import Intent
from loopwright.kernel.state import Pending, Senses, State
from loopwright.model.record import JsonValue

STEP_TOOLS = ("send_message", "read_inbox")
COORDINATOR_TOOLS = ("forward_to_agent", "narrate", "finalize")
MAX_TEXT_BYTES = 256 * 1_024
INTENTS: dict[str, Intent] = {"cancel": "cancel", "context_update": "context_update"}

Role: TypeAlias = Literal["step", "coordinator"]


class Refused(msgspec.Struct, frozen=True):
    """A tool that was not used as it has to be; nothing has happened."""

    why: str


@dataclass(slots=True)
class Caller:
    """Who uses a tool: a step or the coordinator, in which call. `sent` numbers the messages."""

    effect: str
    role: Role
    sent: int
    path: str = ""
    iteration: int | None = None
    sender: str = COORDINATOR


def caller_of(state: State, pending: Pending) -> Caller | Refused:
    """Who is behind a call that is under way."""
    call, owner = pending.call, pending.owner
    if isinstance(call, ToolCall):
        assert isinstance(owner, PassOwner)
        return Caller(
            effect=pending.effect,
            role="step",
            sent=state.mail.sent,
            path=owner.inside,
            iteration=owner.iteration,
            sender=owner.parent.owner.path,
        )
    role = call.role if isinstance(call, AgentCall) else ""
    if role == "coordinator":
        return Caller(effect=pending.effect, role="coordinator", sent=state.mail.sent)
    if role not in ("worker", "reply"):
        return Refused("a judge judges: it has no inbox and writes to nobody")
    assert isinstance(call, AgentCall)
    return Caller(
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
    state: State, caller: Caller, tool: str, arguments: JsonValue, senses: Senses
) -> list[AnyFact] | Refused:
    """The facts of a tool that is used now, or why it cannot be."""
    if tool not in tools_of(caller.role):
        return Refused(f"there is no tool {tool!r} here; there are {_listed(caller.role)}")
    given = arguments if isinstance(arguments, dict) else {}
    match tool:
        case "send_message":
            return _message(state, caller, senses, to=COORDINATOR, text=given.get("text"))
        case "forward_to_agent":
            return _forward(state, caller, senses, given)
        case "narrate":
            return _narrate(state, caller, senses, given)
        case "finalize":
            return _finalize(state, caller, senses, given)
        case _:
            pending = state.pending[caller.effect]
            return deliver(state, pending.owner, caller.effect)


def _listed(role: Role) -> str:
    return ", ".join(tools_of(role))


def _forward(
    state: State, caller: Caller, senses: Senses, given: dict[str, JsonValue]
) -> list[AnyFact] | Refused:
    to, kind = given.get("target_step_id"), given.get("kind")
    if not isinstance(to, str) or not to.strip():
        return Refused("target_step_id must name a step")
    intent = INTENTS.get(kind, "info") if isinstance(kind, str) else "info"
    text = given.get("text")
    if intent == "cancel" and not text:
        text = "cancel"
    return _message(state, caller, senses, to=to.strip(), text=text, intent=intent)


def _message(
    state: State,
    caller: Caller,
    senses: Senses,
    *,
    to: str,
    text: JsonValue,
    intent: Intent = "info",
) -> list[AnyFact] | Refused:
    written = _written(text)
    if isinstance(written, Refused):
        return written
    sent = MessageSent(
        at=state.now,
        path=caller.path,
        iteration=caller.iteration,
        to=to[:500],
        text=senses.keep(written),
        sender=caller.sender,
        message=f"m{caller.sent + 1}",
        intent=intent,
        effect=caller.effect,
    )
    return [sent]


def _narrate(
    state: State, caller: Caller, senses: Senses, given: dict[str, JsonValue]
) -> list[AnyFact] | Refused:
    coordinator = state.plan.coordinator
    if coordinator is None or not coordinator.narrates:
        return Refused("this coordinator does not narrate")
    written = _written(given.get("text"))
    if isinstance(written, Refused):
        return written
    return [
        CoordinatorNarrated(at=state.now, path="", text=senses.keep(written), effect=caller.effect)
    ]


def _finalize(
    state: State, caller: Caller, senses: Senses, given: dict[str, JsonValue]
) -> list[AnyFact] | Refused:
    if state.mail.closed:
        return Refused("the last word is already said")
    summary = given.get("summary")
    written = _written(summary) if summary else ""
    if isinstance(written, Refused):
        return written
    return [
        CoordinatorFinalized(
            at=state.now, path="", summary=senses.keep(written), effect=caller.effect
        )
    ]


def _written(text: JsonValue) -> str | Refused:
    """A text that can be passed on; what looks like a key is masked."""
    if not isinstance(text, str) or not text.strip():
        return Refused("text must say something")
    if len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
        return Refused(f"text may have {MAX_TEXT_BYTES:,} bytes; put more into a file")
    return mask_tokens(text)
