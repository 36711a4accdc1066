"""Writing to a step of a run that is under way, for people and for programs outside it."""

from collections.abc import Mapping
from dataclasses import replace

from loopwright.app.auditing import audit_rows
from loopwright.app.service import CAS_TRIES, Service, row_ended
from loopwright.errors import Conflict, LoopwrightError, VersionConflict
from loopwright.kernel.addresses import Refusal, resolve_address
from loopwright.kernel.facts import MessageSent
from loopwright.kernel.mail import COORDINATOR, PERSON
from loopwright.kernel.masking import mask_tokens
from loopwright.kernel.tools import MAX_TEXT_BYTES
from loopwright.ports import Append
from loopwright.runtime.senses import stored_text


async def send_message(service: Service, run: str, to: str, text: str, *, by: str = "") -> str:
    """Write to a step, or to the coordinator; answers the id of the message.

    An address that means nobody, or more than one, is refused and nothing is written. What becomes
    of the message later is told by the facts.
    """
    if not text.strip() or len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
        hint = f"a message has 1 to {MAX_TEXT_BYTES:,} bytes"
        raise LoopwrightError("the message cannot be that", code="bad-message", hint=hint)
    kept, blobs = stored_text(mask_tokens(text))
    for _ in range(CAS_TRIES):
        version = service.log.version(run)
        state = service.state(run)
        if to != COORDINATOR:
            found = resolve_address(state, to)
            if isinstance(found, Refusal):
                hint = f"there are: {', '.join(found.known)}" if found.known else ""
                raise LoopwrightError(found.detail, code=found.reason, hint=hint)
        fact = MessageSent(
            at=service.clock.now_ms(),
            path="",
            to=to,
            text=kept,
            sender=by or PERSON,
            message=f"m{state.mail.sent + 1}",
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
        raise Conflict(f"{run} has ended", code="ended")
    headline = replace(row.headline, updated_at=fact.at)
    return Append(
        run=run,
        expected=version,
        facts=[fact],
        blobs=blobs,
        headline=headline,
        audit=audit_rows(run, [fact], service.via),
    )
