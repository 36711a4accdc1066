"""The head file: the newest hash of every run, kept beside the database.

A hash chain shows that an event was changed, but not that the last events are missing: a
shorter chain is a valid chain. So the newest number and hash of each run that was changed are
appended to this file, with a digest of the run's row. The write is not synced and comes after
the commit: after a crash the file may lag behind the database. A database that lags behind this
file has lost something.

Records have 64 bytes and a checksum. Their order does not matter: of two records of a run, the
one with the higher number is valid, whichever process was first to write it.
"""

import fcntl
import mmap
import os
import struct
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from errno import ENOSPC
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from loopwright.stores.appends import genesis

SIZE = 64
MAGIC = b"LH"
IDENTITY, HEAD, NAME, FORGOTTEN, AUDIT = b"IHNFA"
FORMAT = 1
UNKNOWN = bytes(8)  # instead of the digest of a row that was not read
AUDIT_KEY = genesis("audit")

_RECORD = struct.Struct("<2sBBIIQ16s16s8s")  # kind, length, version, revision, position, …
_NAME = struct.Struct("<2sBB16s40s")
_CHECKSUM = struct.Struct("<I")
_BODY = SIZE - _CHECKSUM.size
_KEY_AT = 20  # in every record but that of a name
_TAIL = 64  # records at the end of the file that show its length
_MOST_PENDING = 1024 * SIZE
_MASK = 2**32 - 1
COMPACT_AT = 4 * 2**20


class RecordedHead(NamedTuple):
    """The newest that was recorded of a run."""

    version: int
    chain: bytes
    position: int  # the row of the segment: grows with every append of the database
    revision: int  # how often the row of the run was changed
    digest: bytes  # of the row of the run; UNKNOWN if it was not recorded


class HeadGap(NamedTuple):
    """Bytes of the head file that are not a record."""

    offset: int
    length: int
    kind: str  # torn: an unfinished write; lost: zeros after a power failure; changed


@dataclass(slots=True)
class HeadTable:
    """The contents of a head file."""

    identity: bytes = b""
    heads: dict[bytes, RecordedHead] = field(default_factory=dict)
    names: dict[bytes, str] = field(default_factory=dict)
    forgotten: dict[bytes, int] = field(default_factory=dict)
    audit: RecordedHead | None = None
    gaps: list[HeadGap] = field(default_factory=list)
    conflicts: set[bytes] = field(default_factory=set)  # one number with two hashes
    reached: int = 0  # the newest append that had been recorded when the file was shortened

    @property
    def position(self) -> int:
        """The newest append that was recorded."""
        heads = (head.position for head in self.heads.values())
        return max((self.reached, *heads, *self.forgotten.values()))

    def name_of(self, key: bytes) -> str:
        """The id of a run, or the known part of it."""
        return self.names.get(key) or f"a run whose id is not recorded ({key.hex()[:8]})"

    def add(self, record: bytes) -> None:
        """Take one valid record."""
        kind = record[2]
        if kind == NAME:
            _, _, length, key, name = _NAME.unpack_from(record)
            self.names[key] = name[:length].decode("utf-8", "replace")
            return
        _, _, _, version, revision, position, key, chain, digest = _RECORD.unpack_from(record)
        if kind == IDENTITY:
            self.identity = self.identity or key
            self.reached = max(self.reached, position)
        elif kind == FORGOTTEN:
            self.forgotten[key] = max(position, self.forgotten.get(key, -1))
        elif kind == AUDIT:
            self.audit = _newer(self.audit, RecordedHead(version, chain, position, 0, UNKNOWN))
        elif kind == HEAD:
            self._add_head(key, RecordedHead(version, chain, position, revision, digest))

    def is_forgotten(self, key: bytes) -> bool:
        """Whether a run was deleted on purpose, or was about to be."""
        head = self.heads.get(key)
        return head is not None and head.position <= self.forgotten.get(key, -1)

    def head_of(self, key: bytes, position: int) -> RecordedHead | None:
        """The head of a run that is in the database, with its newest append at that position. A
        head that was written after a run of the same id was deleted is unrelated.
        """
        if self.is_forgotten(key) and position > self.forgotten[key]:
            return None
        return self.heads.get(key)

    def _add_head(self, key: bytes, new: RecordedHead) -> None:
        known = self.heads.get(key)
        border = self.forgotten.get(key, -1)
        if known is not None and (known.position > border) != (new.position > border):
            # The id was used again after its run was deleted: two runs without an order.
            self.conflicts.discard(key)
            self.heads[key] = new if new.position > border else known
            return
        if known is not None and known.version == new.version and known.chain != new.chain:
            self.conflicts.add(key)
        self.heads[key] = _newer(known, new)


def _newer(known: RecordedHead | None, new: RecordedHead) -> RecordedHead:
    """Both in one: the newer events, and the newer known row."""
    if known is None:
        return new
    events = new if new.version > known.version else known
    row = known
    if new.digest != UNKNOWN and (known.digest == UNKNOWN or new.revision > known.revision):
        row = new
    return RecordedHead(events.version, events.chain, events.position, row.revision, row.digest)


# -- records ---------------------------------------------------------------------------------------


def _sealed(body: bytes) -> bytes:
    return body + _CHECKSUM.pack(zlib.crc32(body))


def head_record(key: bytes, head: RecordedHead) -> bytes:
    """A record of the newest event of a run."""
    version, chain, position, revision, digest = head
    return _sealed(
        _RECORD.pack(
            MAGIC, HEAD, 0, version & _MASK, revision & _MASK, position, key, chain, digest
        )
    )


def name_record(key: bytes, run: str) -> bytes:
    """A record of the id of a run; only the beginning of a very long one."""
    name = run.encode()[:40]
    return _sealed(_NAME.pack(MAGIC, NAME, len(name), key, name))


def forgotten_record(run: str, position: int) -> bytes:
    """A record that a run was deleted on purpose, with the newest append at that time."""
    return _sealed(_RECORD.pack(MAGIC, FORGOTTEN, 0, 0, 0, position, genesis(run), b"", b""))


def audit_record(number: int, chain: bytes) -> bytes:
    """A record of the newest row of the audit log."""
    return _sealed(
        _RECORD.pack(MAGIC, AUDIT, 0, number & _MASK, 0, number, AUDIT_KEY, chain, UNKNOWN)
    )


def identity_record(identity: bytes, position: int = 0) -> bytes:
    """The first record: the identity of the database, and the length of the file."""
    return _sealed(_RECORD.pack(MAGIC, IDENTITY, 0, FORMAT, 0, position, identity, b"", b""))


def row_digest(columns: Iterable[str | int | None]) -> bytes:
    """The digest of the row of a run in lists."""
    return blake2b(repr(tuple(columns)).encode("utf-8", "replace"), digest_size=8).digest()


# -- reading ---------------------------------------------------------------------------------------


def _is_record(data: bytes | mmap.mmap, at: int) -> bool:
    record = data[at : at + SIZE]
    if len(record) != SIZE or record[:2] != MAGIC:
        return False
    return _CHECKSUM.pack(zlib.crc32(record[:_BODY])) == record[_BODY:]


def scan(data: bytes) -> Iterator[bytes | HeadGap]:
    """The records of a file, and the bytes between them."""
    at = 0
    while at < len(data):
        if _is_record(data, at):
            yield data[at : at + SIZE]
            at += SIZE
            continue
        start, at = at, data.find(MAGIC, at + 1)
        while at >= 0 and not _is_record(data, at):
            at = data.find(MAGIC, at + 1)
        at = at if at >= 0 else len(data)
        yield HeadGap(start, at - start, _gap_kind(data[start:at]))


def _gap_kind(gap: bytes) -> str:
    if not gap.strip(b"\0"):
        return "lost"
    if len(gap) < SIZE and gap.startswith(MAGIC):
        return "torn"
    return "changed"


def read_table(path: Path) -> HeadTable | None:
    """The contents of the file; None if it does not exist."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    table = HeadTable()
    for found in scan(data):
        if isinstance(found, HeadGap):
            table.gaps.append(found)
        else:
            table.add(found)
    return table


def read_identity(path: Path) -> bytes:
    """The identity of the database; None if the file has none."""
    with path.open("rb") as file:
        first = file.read(SIZE)
    if not _is_record(first, 0) or first[2] != IDENTITY:
        return b""
    return bytes(_RECORD.unpack_from(first)[6])


def find_run(path: Path, run: str) -> HeadTable:
    """The records of one run, without reading those of others."""
    key, table = genesis(run), HeadTable()
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            at = data.find(key)
            while at >= 0:
                start = at - _KEY_AT
                if start >= 0 and _is_record(data, start) and data[start + 2] != NAME:
                    table.add(data[start : start + SIZE])
                at = data.find(key, at + 1)
    except (FileNotFoundError, ValueError):  # missing, or empty
        return HeadTable()
    return table


def newest_position(path: Path) -> int:
    """An estimate of the newest recorded append: the highest of the first and last records."""
    with path.open("rb") as file:
        data = file.read(SIZE)
        end = file.seek(0, os.SEEK_END)
        file.seek(max(SIZE, end - _TAIL * SIZE))
        data += file.read()
    records = [found for found in scan(data) if isinstance(found, bytes)]
    heads = (_RECORD.unpack_from(one) for one in records if one[2] in (IDENTITY, HEAD, FORGOTTEN))
    return max((int(head[5]) for head in heads), default=0)


# -- writing ---------------------------------------------------------------------------------------


def write_new(path: Path, records: Iterable[bytes], *, replace: bool, mode: int = 0o600) -> bool:
    """Write a whole head file durably and put it in place; without `replace`, only if there is
    none. Returns whether it was put in place.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
    new = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(records)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            new.rename(path)
            return True
        os.link(new, path)
    except FileExistsError:
        return False
    finally:
        new.unlink(missing_ok=True)
    return True


def records_of(table: HeadTable) -> Iterator[bytes]:
    """A table as the shortest file with the same contents."""
    yield identity_record(table.identity, table.position)
    for key, head in table.heads.items():
        if table.is_forgotten(key):
            continue
        if key in table.names:
            yield name_record(key, table.names[key])
        yield head_record(key, head)
    if table.audit is not None:
        yield audit_record(table.audit.version, table.audit.chain)


class HeadFile:
    """A head file that is appended to. Belongs to one thread at a time.

    Appending requires a shared lock on the file, and replacing it by a shorter one an exclusive
    lock: so nothing is appended to a file that has been replaced.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None
        self._pending = b""  # records that could not be written yet
        self._size = 0
        self._compact_at = COMPACT_AT

    @property
    def is_long(self) -> bool:
        """Whether most records of the file are superseded."""
        return self._size >= self._compact_at

    def append(self, records: bytes) -> None:
        """Add records. A failure is not reported: they are written with the next ones, and until
        then the file lags behind the database, as after a crash.
        """
        if self._pending:
            records = self._pending + records
        written = 0
        try:
            handle = self._handle
            if handle is None:
                handle = self._open()
            written = os.write(handle, records)
        except OSError:
            pass
        if written == len(records):
            self._pending = b""
        else:  # a part of a record stays in the file and readers skip it
            self._pending = records[written // SIZE * SIZE :][-_MOST_PENDING:]
        self._size += written

    def open(self) -> None:
        """Before a commit: hold the file, so that it is not replaced before it is appended to."""
        if self._handle is None:
            with suppress(OSError):
                self._open()

    def append_durably(self, records: bytes) -> None:
        """Add records and wait until they are on the disk; a failure is reported."""
        handle = self._handle if self._handle is not None else self._open()
        if os.write(handle, records) != len(records):
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        os.fsync(handle)

    def compact(self) -> None:
        """Remove superseded records, if no other process has the file open."""
        self._compact_at = self._size + COMPACT_AT  # the next attempt, if this one fails
        handle = self._handle
        if handle is None:
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._close()  # the shared lock may be lost; the next append takes it again
            return
        try:
            table = read_table(self.path)
            whole = table is not None and not any(gap.kind == "changed" for gap in table.gaps)
            if table is not None and table.identity and whole and not table.conflicts:
                records = list(records_of(table))
                mode = os.fstat(handle).st_mode & 0o777
                write_new(self.path, records, replace=True, mode=mode)
                self._compact_at = len(records) * SIZE * 2 + COMPACT_AT
        except OSError:
            pass
        self._close()

    def sync(self) -> bool:
        """Sync what was appended; returns whether that was possible."""
        if self._handle is None or self._pending:
            return False
        try:
            os.fsync(self._handle)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Write waiting records and close."""
        if self._pending:
            self.append(b"")
        self._close()

    def _open(self) -> int:
        while True:
            handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_SH)
                held, there = os.fstat(handle), os.stat(self.path)
                if (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino):
                    self._handle, self._size = handle, held.st_size
                    return handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)  # replaced by a shorter one in the meantime

    def _close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)
