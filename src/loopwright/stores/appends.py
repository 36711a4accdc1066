"""What every store does with an append: check it, chain its events by hashes, report the result.

An append that passes the checks cannot fail later for its content, so the invalid text of one
caller never fails a whole group of commits. Texts must be valid Unicode; ids must not contain NUL
either. A NUL inside an event is kept, since JSON escapes it. The errors for a well-formed append
that conflicts with the store are here too, so that every store has the same wording.

A segment is what one append added: the events `seq` to `last` as one body. Its chain value is the
hash of the previous value and the body, and the first follows from the id of the run, so an edited,
moved or missing segment is detected.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from operator import attrgetter
from typing import NamedTuple

import msgspec

from loopwright.errors import Conflict, LoopwrightError, NotFound, StorageError, VersionConflict
from loopwright.kernel.events import (
    AnyEvent,
    EffectActivity,
    RunStarted,
    decode_events,
    encode_events,
)
from loopwright.model.record import Blob
from loopwright.ports import Append, AuditRow, Headline, NumberedEvent, OpenGate, StoredRecord

Done = Callable[[Exception | None], None]

MAX_BYTES = 500_000_000  # half of the maximum size of a value in SQLite
_MAX_INT = 2**63 - 1


class PendingAppend(msgspec.Struct, gc=False):
    """An append on its way into a store: the request, its encoded events, and its callback."""

    append: Append
    done: Done
    count: int
    body: bytes


def validate_append(append: Append, done: Done) -> PendingAppend:
    """The entry of a valid append; StorageError names the problem."""
    if not is_id(append.run):
        _check_id(append.run, "the id of the run")
    if append.expected == 0 and (append.headline is None or not append.events):
        raise StorageError(
            f"the first append to {append.run} needs events and a headline", code="bad-append"
        )
    if append.headline is not None:
        _check_headline(append.headline)
    if append.blobs:
        _check_blobs(append.blobs.items())
    for gate in append.gates_opened:
        _check_gate(gate, append.run)
    for closed in append.gates_closed:
        _check_id(closed.gate, "the id of a gate")
        _check_text(closed.by, f"who answered gate {closed.gate}")
    for row in append.audit:
        check_audit(row)
    for record in append.records:
        check_record(record)
    count = len(append.events)
    return PendingAppend(append, done, count, encode_append(append) if count else b"")


def encode_append(append: Append) -> bytes:
    """The events of an append as stored on disk, verified to be readable again."""
    try:
        body = encode_events(append.events)
        if b":null" in body:
            # Optional fields are omitted when empty, so this is JSON data or a number that is not
            # finite. The latter would be written as null and could never be read back.
            decode_events(body)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise StorageError(
            f"an event of {append.run!a} cannot be stored: {error}", code="bad-fact"
        ) from error
    if len(body) > MAX_BYTES:
        _check_size(body, f"an append to {append.run}")
    return body


def is_id(text: str) -> bool:
    """Whether a store accepts this as an id; no other id can exist in one."""
    if "\0" in text or not text:
        return False
    return text.isascii() or _is_unicode(text)


def ids(texts: Iterable[str]) -> str:
    """A list of ids as JSON: one bound value, however many there are."""
    return msgspec.json.encode([text for text in texts if is_id(text)]).decode()


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_id(text: str, what: str) -> None:
    if not is_id(text):
        raise StorageError(
            f"{what} cannot be stored: {text!a}",
            code="bad-text",
            hint="an id is not empty and holds neither NUL nor half of a surrogate pair",
        )


def _check_text(text: str, what: str) -> None:
    if not (text.isascii() or _is_unicode(text)):
        raise StorageError(
            f"{what} cannot be stored: {text[:80]!a}",
            code="bad-text",
            hint="it holds half of a surrogate pair; decode it with errors='replace'",
        )


def check_audit(row: AuditRow) -> None:
    """Refuse a row that a store cannot store."""
    for field in ("who", "via", "action", "subject", "detail", "request"):
        _check_text(getattr(row, field), f"{field} of an audit row")
    _check_number(row.at, "the time of an audit row")


def check_record(record: StoredRecord) -> None:
    """Refuse a record that a store cannot store."""
    _check_id(record.kind, "the kind of a record")
    _check_id(record.key, "the key of a record")
    _check_text(record.owner, f"owner of {record.key}")
    _check_number(record.due, f"due of {record.key}")
    _check_size(record.body, f"the record {record.key}")


def _check_number(number: int | None, what: str) -> None:
    if number is not None and not -_MAX_INT <= number <= _MAX_INT:
        raise StorageError(f"{what} is out of range: {number}", code="bad-number")


def _check_size(body: bytes, what: str) -> None:
    if len(body) > MAX_BYTES:
        raise StorageError(
            f"{what} is too large: {len(body)} bytes, at most {MAX_BYTES}", code="too-large"
        )


_HEADLINE_TEXTS = ("name", "status", "reason", "dialect", "workspace", "session", "surface")
_HEADLINE_NUMBERS = ("started_at", "updated_at", "finished_at", "wake_at")
_texts_of = attrgetter(*_HEADLINE_TEXTS)
_numbers_of = attrgetter(*_HEADLINE_NUMBERS)


def _check_headline(headline: Headline) -> None:
    if not "".join((*_texts_of(headline), *headline.labels)).isascii():
        for field in _HEADLINE_TEXTS:
            _check_text(getattr(headline, field), f"{field} of the run")
        for label in headline.labels:
            _check_text(label, "a label of the run")
    for field, number in zip(_HEADLINE_NUMBERS, _numbers_of(headline), strict=True):
        if number is not None and not 0 <= number <= _MAX_INT:
            _check_number(number, f"{field} of the run")
    if headline.key is not None:
        _check_id(headline.key, "the key of the run")


def _check_blobs(blobs: Iterable[tuple[str, bytes]]) -> None:
    for digest, body in blobs:
        _check_id(digest, "the hash of a blob")
        _check_size(body, f"blob {digest}")


def _check_gate(gate: OpenGate, run: str) -> None:
    _check_id(gate.gate, "the id of a gate")
    for field in ("path", "digest", "message"):
        _check_text(getattr(gate, field), f"{field} of gate {gate.gate}")
    _check_number(gate.opened_at, f"opened_at of gate {gate.gate}")
    if gate.run != run:
        raise StorageError(
            f"gate {gate.gate} of {gate.run!a} is opened by an append to {run}", code="bad-append"
        )


def stale_error(append: Append, version: int) -> VersionConflict:
    """The run has another version than the writer expected."""
    if not version:
        return VersionConflict(
            f"{append.run} does not exist; the append expected version {append.expected}"
        )
    return VersionConflict(
        f"{append.run} is at version {version}; the append expected {append.expected}",
        hint="read the newer events and decide again",
    )


def fenced_error(run: str) -> Conflict:
    """The writer does not drive the run any more, or never did."""
    return Conflict(
        f"{run} is driven by another process now",
        code="fenced",
        hint="stop driving it; the row of the run names its owner",
    )


def key_in_use_error(key: str, holder: str) -> Conflict:
    """Another open run has the key."""
    return Conflict(
        f"{holder} is already open for {key}",
        code="key-taken",
        hint=f"wait for {holder} or stop it first",
    )


def gate_answered_error(gate: str, run: str) -> Conflict:
    """An open gate of another run has the same id."""
    return Conflict(f"gate {gate} is already open in {run}", code="gate-taken")


def no_run_error(run: str) -> NotFound:
    """No run has this id."""
    return NotFound(f"no run {run!r}", hint="`loopwright ls` lists them")


def no_blob_error(digest: str) -> NotFound:
    """No content has this hash."""
    return NotFound(f"no stored content {digest!a}")


def closed_error() -> StorageError:
    """The log was closed before the call."""
    return StorageError("the log is closed", code="closed")


_SIZE = 16

BlobOf = Callable[[str], bytes | None]
Digest = Callable[[bytes], str]


class Segment(NamedTuple):
    """One append as it is stored."""

    seq: int
    last: int
    body: bytes
    chain: bytes


def genesis(run: str) -> bytes:
    """The value before the first segment of a run."""
    return blake2b(run.encode(), digest_size=_SIZE).digest()


def link(before: bytes, body: bytes) -> bytes:
    """The chain value of a body that follows `before`."""
    return blake2b(before + body, digest_size=_SIZE).digest()


def numbered(run: str, seq: int, body: bytes) -> list[NumberedEvent]:
    """The events of one segment."""
    try:
        events = decode_events(body)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StorageError(
            f"events of {run} from number {seq} on cannot be read: {error}",
            code="damaged",
            hint="they are damaged or from a newer version; `doctor --deep` says which",
        ) from error
    return [NumberedEvent(number, event) for number, event in enumerate(events, start=seq)]


def followed(run: str, before: bytes, segment: Segment) -> list[NumberedEvent]:
    """The events of a segment that follows `before`; an error if it was changed afterwards."""
    if link(before, segment.body) != segment.chain:
        raise StorageError(
            f"events of {run} from number {segment.seq} on are not as they were recorded: the hash "
            "chain breaks there",
            code="damaged",
            hint="the run cannot be used any more; `loopwright events RUN` shows the events "
            "that can be read, `doctor --deep` lists the damage",
        )
    return numbered(run, segment.seq, segment.body)


def inspect(
    run: str, segments: Iterable[Segment], blob: BlobOf, digest: Digest | None
) -> list[str]:
    """The problems of a run: numbers, chain, unreadable events, missing blobs."""
    problems: list[str] = []
    before, after = genesis(run), 0
    for segment in segments:
        if segment.seq != after + 1:
            problems.append(
                f"{run}: event {segment.seq} found where event {after + 1} was expected"
            )
        if link(before, segment.body) != segment.chain:
            problems.append(f"{run}: the hash chain breaks at event {segment.seq}")
        problems += _inspect_body(run, segment, blob, digest)
        # Continues from the stored value, so that one edited segment is one problem and not a
        # hundred.
        before, after = segment.chain, segment.last
    return problems or ([] if after else [f"{run}: has no events"])


def _inspect_body(run: str, segment: Segment, blob: BlobOf, digest: Digest | None) -> list[str]:
    try:
        events = [one.event for one in numbered(run, segment.seq, segment.body)]
    except StorageError as error:
        return [error.message]
    problems = []
    if segment.last - segment.seq + 1 != len(events):
        problems.append(
            f"{run}: {len(events)} events found instead of events {segment.seq} to {segment.last}"
        )
    for event in events:
        for name, size in _named_blobs(event):
            problem = _inspect_blob(name, size, blob(name), digest)
            if problem:
                problems.append(f"{run}: {problem}")
    return problems


def _inspect_blob(
    name: str, size: int | None, body: bytes | None, digest: Digest | None
) -> str | None:
    if body is None:
        return f"content {name} is named by an event and not stored"
    if size is not None and size not in (len(body), len(body.decode("utf-8", "replace"))):
        return f"content {name} has {len(body)} bytes, the event says {size}"
    if digest is not None and digest(body) != name:
        return f"content {name} is not what its name says"
    return None


def _named_blobs(event: AnyEvent) -> Iterator[tuple[str, int | None]]:
    if isinstance(event, RunStarted):
        yield event.plan, None
    for field in event.__struct_fields__:
        value = getattr(event, field)
        if isinstance(value, Blob):
            yield value.blob, value.size
    if isinstance(event, EffectActivity):
        for note in event.entries:
            for text in (note.arguments, note.result):
                if isinstance(text, Blob):
                    yield text.blob, text.size


Answer = tuple[PendingAppend, LoopwrightError | None]
Watcher = Callable[[str, int], None]


async def submit_appends(submit: Callable[[Append, Done], None], append: Append) -> None:
    """Submit and wait for the answer. Being cancelled ends the waiting, not the append."""
    told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None) -> None:
        if told.done():
            return
        if error is None:
            told.set_result(None)
        else:
            told.set_exception(error)

    submit(append, done)
    await told


class Subscribers:
    """Belongs to the thread of the event loop."""

    def __init__(self) -> None:
        self._watchers: list[Watcher] = []

    def subscribe(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` with run and version after every append; the returned function
        ends that.
        """

        # Compared by identity of the entry, so that the same watcher may be added twice.
        def entry(run: str, version: int) -> None:
            watcher(run, version)

        self._watchers.append(entry)

        def unsubscribe() -> None:
            if entry in self._watchers:
                self._watchers.remove(entry)

        return unsubscribe

    def tell(self, answers: Sequence[Answer]) -> None:
        """Notify everyone; a callback that raises does not affect the others."""
        errors: list[Exception] = []
        for entry, refusal in answers:
            try:
                entry.done(refusal)
            except Exception as error:
                errors.append(error)
            if refusal is None and entry.count and self._watchers:
                errors += self._shown(entry.append.run, entry.append.expected + entry.count)
        if errors:
            _raise(errors)

    def moved(self, run: str, version: int) -> None:
        """Notify watchers of writes by other processes."""
        _raise(self._shown(run, version))

    def _shown(self, run: str, version: int) -> list[Exception]:
        errors: list[Exception] = []
        for watcher in tuple(self._watchers):
            try:
                watcher(run, version)
            except Exception as error:
                errors.append(error)
        return errors


def _raise(errors: list[Exception]) -> None:
    if errors:
        raise ExceptionGroup("callbacks of the log failed", errors)
