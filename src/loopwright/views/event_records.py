"""Events as JSON objects, the audit rows that events leave, and times and ids in text form.

Every event that comes from outside leaves an audit row, written in the same transaction. The
row has the idempotency key of the request, so that a repeated request can see what was already
done.
"""

import hashlib
import secrets
from base64 import b32encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

import msgspec

from loopwright.kernel.events import (
    AgentChanged,
    AnyEvent,
    CancelRequested,
    EffectActivity,
    GateAnswered,
    MessageSent,
    RunEdited,
    RunForked,
    RunPaused,
    RunReopened,
    RunResumed,
    RunStarted,
)
from loopwright.model.record import Blob, JsonValue
from loopwright.ports import AuditRow, NumberedEvent

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_DIGITS = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", ALPHABET.encode())


def timestamp(ms: int) -> str:
    """A time as RFC 3339 in UTC, with milliseconds."""
    moment = datetime.fromtimestamp(ms / 1_000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def sortable_id(now_ms: int) -> str:
    """48 bits of time and 80 of chance, so that ids sort by age and never meet."""
    data = now_ms.to_bytes(10, "big") + secrets.token_bytes(10)
    return b32encode(data).translate(_DIGITS)[-26:].decode()


_EMPTY: tuple[object, ...] = (None, "", (), {})


def event_on_wire(run: str, numbered: NumberedEvent) -> dict[str, JsonValue]:
    """`{"run", "seq", "at", "kind", "path", …body}`; the path of the run itself is empty."""
    body = event_body(numbered.event)
    first: dict[str, JsonValue] = {
        "run": run,
        "seq": numbered.seq,
        "at": timestamp(numbered.event.at),
        "kind": body.pop("kind"),
        "path": body.pop("path", ""),
    }
    return first | {name: value for name, value in body.items() if name not in first}


def event_body(event: AnyEvent) -> dict[str, JsonValue]:
    """An event as plain JSON; structured results are objects here, not text.

    On disk a value that equals the default is omitted. Here only an empty one is: external readers
    do not know our defaults.
    """
    body: dict[str, JsonValue] = msgspec.to_builtins(event)
    for name in event.__struct_fields__:
        if name not in body and getattr(event, name) not in _EMPTY:
            body[name] = getattr(event, name)
    if isinstance(event, AgentChanged):  # values of variables are never shown outside
        body["becomes"] = msgspec.to_builtins(
            msgspec.structs.replace(event.becomes, env=dict.fromkeys(event.becomes.env, "…"))
        )
    if isinstance(event, EffectActivity):
        body["entries"] = [
            {**msgspec.to_builtins(note), "at": timestamp(note.at)} for note in event.entries
        ]
    result = getattr(event, "result", None)
    if isinstance(result, str):
        body["result"] = msgspec.json.decode(result)
    return body


def event_from_wire(record: Mapping[str, JsonValue]) -> NumberedEvent:
    """The inverse of `event_on_wire`. Raises `msgspec.ValidationError` for an event of a kind that
    this version does not know.
    """
    body = {**record, "at": _ms_of(record["at"])}
    entries = record.get("entries")
    if isinstance(entries, list):
        body["entries"] = [
            {**note, "at": _ms_of(note["at"])} for note in entries if isinstance(note, dict)
        ]
    result = record.get("result")
    if result is not None and not _is_stored(result):
        body["result"] = msgspec.json.encode(result).decode()
    return NumberedEvent(int(str(record["seq"])), msgspec.convert(body, AnyEvent))


def _ms_of(at: JsonValue) -> int:
    return round(datetime.fromisoformat(str(at)).timestamp() * 1_000)


def _is_stored(result: JsonValue) -> bool:
    """Whether a result is the reference to a text that is too long for an event."""
    return isinstance(result, dict) and {"blob", "size"} <= result.keys() <= {
        "blob",
        "size",
        "head",
    }


def text_of(text: str | Blob | None) -> str:
    """The part of a text in the event itself."""
    if text is None:
        return ""
    return text if isinstance(text, str) else text.head


_REQUEST: ContextVar[str] = ContextVar("request", default="")
SHOWN = 200  # characters of a text that are in the row; the event has all of it


def request_name(who: str, key: str) -> str:
    """The name under which a request with an idempotency key is recorded."""
    return hashlib.sha256(f"{who}\0{key}".encode()).hexdigest()


@contextmanager
def under(request: str) -> Iterator[None]:
    """Actions inside have this key of a request in their audit rows: a repeated request with the
    key finds out that it was processed.
    """
    token = _REQUEST.set(request)
    try:
        yield
    finally:
        _REQUEST.reset(token)


def request_key() -> str:
    """The key of the current request; empty if it has none."""
    return _REQUEST.get()


def audit_rows(run: str, events: Iterable[AnyEvent], via: str) -> list[AuditRow]:
    """A row for each event that a person caused, on any interface."""
    return [row for event in events if (row := _row(run, event, via)) is not None]


def forgotten(runs: Iterable[str], *, at: int, by: str, via: str) -> list[AuditRow]:
    """Rows for runs that a person deletes; they outlive the runs."""
    what, key = "run.forgotten", request_key()
    return [AuditRow(at=at, who=by, via=via, action=what, subject=run, request=key) for run in runs]


def _row(run: str, event: AnyEvent, via: str) -> AuditRow | None:
    match event:
        case GateAnswered():
            text = f": {event.text[:SHOWN]}" if event.text else ""
            who, detail = event.by, f"{event.decision} {event.gate}{text}"
        case CancelRequested():
            who, detail = event.by, event.reason
        case RunForked():
            who, detail = event.by, f"from {event.parent} after {event.place}"
        case AgentChanged():
            who, detail = event.by, event.agent
        case MessageSent():
            who, detail = event.sender, f"to {event.to}"
        case RunStarted():
            who, detail = event.by, event.name
        case RunReopened():
            who, detail = event.by, _reopened(event)
        case RunEdited():
            who, detail = event.by, ", ".join(edited(event))
        case RunPaused() | RunResumed():
            who, detail = event.by, ""
        case _:
            return None
    action = str(event.__struct_config__.tag)
    return AuditRow(
        at=event.at,
        who=who,
        action=action,
        subject=run,
        via=via,
        detail=detail,
        request=request_key(),
    )


def _reopened(event: RunReopened) -> str:
    if event.stage is not None:
        return f"{event.stage}{f': {event.note[:SHOWN]}' if event.note else ''}"
    return event.mode if event.mode == "restart" else ""


def edited(event: RunEdited) -> list[str]:
    """What an edit changes, by name."""
    names = {
        "goal": event.message,
        "max_iterations": event.passes,
        "metadata": event.metadata,
        "labels": event.labels,
    }
    return [name for name, value in names.items() if value is not None]
