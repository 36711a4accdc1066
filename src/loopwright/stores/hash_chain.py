"""Segments, the hash chain over them, and the inspection of the whole chain of a run.

A segment is what one append added: the events `seq` to `last` as one body. Its chain value is
the hash of the previous value and the body, and the first follows from the id of the run, so an
edited, moved or missing segment is detected.
"""

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from loopwright.errors import StorageError
from loopwright.kernel.events import AnyEvent, EffectActivity, RunStarted, decode_events
from loopwright.model.record import Blob
from loopwright.ports import NumberedEvent

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
        return f"content {name}is named by an event and not stored"
    if size is not None and size not in (len(body), len(body.decode("utf-8", "replace"))):
        return f"content {name} has {len(body)}bytes, the event says {size}"
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
