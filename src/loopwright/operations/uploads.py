"""Files that people upload to a run or a session, as artifacts, also in archives.

The bytes are stored in the data directory under their hash; names are only for display. A file
of the same name is the next version of the artifact. Unreferenced bytes are removed in the
transaction that finds them unreferenced; after storing and recording bytes, the writer checks
that they still exist.

An archive is checked completely before anything of it is stored, and never unpacked to its own
names. Refused are names outside the target folder, entries that are not plain files or folders,
and archives with too many entries, too many bytes or too high a compression ratio, including
those nested in the archive.
"""

import contextlib
import errno
import gzip
import hashlib
import io
import os
import re
import secrets
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from loopwright.errors import Conflict, LoopwrightError, NotFound, StorageError
from loopwright.model.plan import content_hash
from loopwright.model.trackers import Item, TrackerChange, Values
from loopwright.operations.settings_files import unusable
from loopwright.ports import AuditRow, Clock
from loopwright.stores.sqlite.connection import LOOK_CLOSER
from loopwright.stores.trackers import SqliteTrackers
from loopwright.views.formats import seen

MOST_ENTRIES = 10_000
MOST_BYTES = 256_000_000
RATIO = 100
FREE_BYTES = 1_000_000  # a little may be packed as tightly as it likes
DEEPEST = 3
PIECE = 1 << 20
_DIRECTORY_BYTES = MOST_ENTRIES * 512  # of a zip: the list of what it has
_ZIP, _GZIP, _TAR = b"PK\x03\x04", b"\x1f\x8b", b"ustar"
_EMPTY_ZIP = b"PK\x05\x06"
_TAR_AT = 257
# What other packings hold comes out of the module at once, however much it is.
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_END, _END_64 = b"PK\x05\x06", b"PK\x06\x07"
_BROKEN = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile)


OnEntry = Callable[[str, bytes], None]


@dataclass(slots=True)
class _UnpackLimits:
    """What may still come, for an archive and all that are inside of it."""

    packed: int
    entries: int = 0
    size: int = 0

    def entry(self) -> None:
        self.entries += 1
        if self.entries > MOST_ENTRIES:
            raise _too_big(f"it has more than {MOST_ENTRIES:,} entries")

    def bytes(self, count: int) -> None:
        self.size += count
        if self.size > MOST_BYTES:
            raise _too_big(f"it unpacks to more than {MOST_BYTES // 1_000_000} MB")
        if self.size > max(FREE_BYTES, RATIO * self.packed):
            raise _too_big(f"it unpacks to more than {RATIO} times its size")


def is_archive(data: bytes) -> bool:
    """Whether these bytes are a zip, a tar or a packed tar."""
    if data.startswith((_ZIP, _EMPTY_ZIP, _GZIP)):
        return True
    return data[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR


def entries_of(data: bytes) -> list[tuple[str, bytes]]:
    """Every file of an archive by its name; `unsafe-archive` or `archive-too-big`, and nothing."""
    if not is_archive(data):
        raise _unsafe("it is not a zip, tar or tar.gz file")
    limits, found = _UnpackLimits(len(data)), list[tuple[str, bytes]]()
    _read_archive(data, limits, 1, lambda name, body: found.append((name, body)))
    return found


def _read_archive(data: bytes, limits: _UnpackLimits, depth: int, on_entry: OnEntry) -> None:
    if depth > DEEPEST:
        raise _too_big(f"archives are inside of one another more than {DEEPEST} deep")
    read = _zip if data.startswith((_ZIP, _EMPTY_ZIP)) else _tar
    try:
        for name, body in read(data, limits):
            on_entry(name, body)
            if is_archive(body):
                _read_nested(body, limits, depth + 1)
    except _BROKEN as error:
        raise _unsafe("it cannot be read to its end") from error
    # All that zipfile and tarfile raise for what they cannot read, an encrypted entry among it.
    except (OSError, ValueError, NotImplementedError, RuntimeError) as error:
        raise _unsafe(f"it cannot be read: {type(error).__name__}") from error


def _read_nested(data: bytes, limits: _UnpackLimits, depth: int) -> None:
    """An archive inside of another one is a file like any other, but for how large it would be."""
    try:
        _read_archive(data, limits, depth, _ignore_entry)
    except LoopwrightError as error:
        if error.code != "unsafe-archive":
            raise


def _ignore_entry(_name: str, _body: bytes) -> None:
    """What is inside of an inner archive is only counted."""


def _zip(data: bytes, limits: _UnpackLimits) -> Iterator[tuple[str, bytes]]:
    _check_directory(data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            limits.entry()
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _unsafe(f"{_shown(info.filename)} is a link or a device")
            if info.compress_type not in _PACKINGS:
                raise _unsafe(f"{_shown(info.filename)} is packed in a way that is not read here")
            # The module cuts a name at NUL and turns separators around; this one does neither.
            name = _checked(info.orig_filename)
            if not info.is_dir():
                with archive.open(info) as file:
                    yield name, _read_all(file, limits)


def _check_directory(data: bytes) -> None:
    """The list of a zip is read at once, so its size is checked first."""
    at = data.rfind(_END)
    if at < 0 or len(data) < at + 22:
        raise _unsafe("it cannot be read to its end")
    count = int.from_bytes(data[at + 10 : at + 12], "little")
    size = int.from_bytes(data[at + 12 : at + 16], "little")
    if data[at - 20 : at - 16] == _END_64 or size > _DIRECTORY_BYTES or count > MOST_ENTRIES:
        raise _too_big(f"it has more than {MOST_ENTRIES:,} entries")


def _tar(data: bytes, limits: _UnpackLimits) -> Iterator[tuple[str, bytes]]:
    plain: io.BufferedIOBase = io.BytesIO(data)
    if data.startswith(_GZIP):
        plain = gzip.GzipFile(fileobj=plain)
    with tarfile.open(fileobj=_Bounded(plain, len(data)), mode="r|") as archive:
        for info in archive:
            limits.entry()
            name = _checked(info.name)
            if info.isdir():
                continue
            if not info.isreg() or info.issparse():
                raise _unsafe(f"{_shown(name)} is a link or a device")
            file = archive.extractfile(info)
            assert file is not None, "it is a plain file"
            yield name, _read_all(file, limits)


class _Bounded(io.RawIOBase):
    """A stream that ends in a refusal where more comes out of it than may: what describes the
    entries of a tar can be a bomb too.
    """

    def __init__(self, inner: io.BufferedIOBase, packed: int) -> None:
        super().__init__()
        self._inner = inner
        most = MOST_BYTES + MOST_ENTRIES * 1_024
        self._left = min(most, max(FREE_BYTES * 10, RATIO * packed * 2))

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        wanted = self._left + 1 if size < 0 else min(size, self._left + 1)
        data = self._inner.read(wanted)
        self._left -= len(data)
        if self._left < 0:
            raise _too_big(f"it unpacks to more than {RATIO} times its size")
        return data


def _read_all(file: IO[bytes], limits: _UnpackLimits) -> bytes:
    pieces = []
    while piece := file.read(PIECE):
        limits.bytes(len(piece))
        pieces.append(piece)
    return b"".join(pieces)


def _checked(name: str) -> str:
    """A name that leads nowhere else, on any system."""
    parts = name.replace("\\", "/").split("/")
    if "\0" in name or name.startswith(("/", "\\", "~")) or ".." in parts or ":" in parts[0]:
        raise _unsafe(f"{_shown(name)} leads out of it")
    if not name.strip("./ "):
        if name.rstrip("/") in (".", ""):
            return name  # the folder itself
        raise _unsafe(f"{_shown(name)} is not a name")
    return name.removeprefix("./")


def _shown(name: str) -> str:
    return ascii(name[:80])


def _unsafe(why: str) -> LoopwrightError:
    return LoopwrightError(
        f"the archive is not taken: {why}",
        code="unsafe-archive",
        hint="nothing of it was kept; pack plain files and folders under relative names",
    )


def _too_big(why: str) -> LoopwrightError:
    return LoopwrightError(
        f"the archive is not taken: {why}",
        code="archive-too-big",
        hint="nothing of it was kept; send less at a time",
    )


FOLDER = "uploads"
LONGEST_NAME = 200
TEXT_BYTES = 200_000  # a text up to here is also given to agents
KIND = "document"
AT_ONCE = 8  # files that are written side by side: the disk joins what it is asked for
STRAY_SECONDS = 3_600.0  # of unreferenced content
_DIGEST = re.compile(r"[0-9a-f]{64}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?")


@dataclass(frozen=True, slots=True)
class File:
    """One file on its way in."""

    name: str
    digest: str
    size: int
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploads:
    """The files of a data directory."""

    home: Path
    trackers: SqliteTrackers
    clock: Clock

    def keep(self, name: str, data: bytes) -> File:
        """Put bytes in their place, to stay; may be called from any thread."""
        file = self._written(name, data)
        self._settle([file])
        return file

    def keep_all(self, data: bytes) -> list[File]:
        """The files of an archive, which is looked through before the first is kept. For a thread
        of its own: this may take a while.
        """
        entries = entries_of(data)
        with ThreadPoolExecutor(AT_ONCE) as several:
            files = list(several.map(lambda one: self._written(*one), entries))
        self._settle(files)
        return files

    def are_there(self, files: Iterable[File]) -> bool:
        """Whether the content of files still exists."""
        return all(self._place(file.digest).is_file() for file in files)

    def _written(self, name: str, data: bytes) -> File:
        digest = hashlib.sha256(data).hexdigest()
        place = self._place(digest)
        if not place.is_file():
            try:
                _put(place, data)
            except OSError as error:
                raise unusable(place.parent, error) from error
        return File(shown_name(name), digest, len(data), _as_text(data))

    def _settle(self, files: Iterable[File]) -> None:
        """Names are on the disk when their folder is: each once."""
        for folder in dict.fromkeys(self._place(file.digest).parent for file in files):
            try:
                _sync(folder)
            except OSError as error:
                raise unusable(folder, error) from error

    async def enter_aside(self, scope: str, files: list[File], added: AuditRow) -> list[Item]:
        """Store files as artifacts; the event loop continues in the meantime."""
        made: dict[str, Item] = {}
        work = self._entering(scope, files, added, made)
        await self.trackers.change_aside(_key("upload"), work, [added])
        return list(made.values())

    def _entering(
        self, scope: str, files: list[File], added: AuditRow, made: dict[str, Item]
    ) -> Callable[[TrackerChange], str]:
        now = self.clock.now_ms()

        def work(book: TrackerChange) -> str:
            known = {one.text("title"): one for one in book.all(scope, "artifact") if is_file(one)}
            items: list[Item] = []
            for file in files:
                before = known.get(file.name)
                name = before.id if before is not None else f"art_{secrets.token_hex(8)}"
                values: Values = {
                    "type": KIND,
                    "title": file.name,
                    "content": file.text or "",
                    "file": file.digest,
                    "size": file.size,
                    "by": added.who,
                }
                number = before.version + 1 if before is not None else 1
                item = Item(
                    scope=scope, kind="artifact", id=name, version=number, at=now, values=values
                )
                items.append(item)
                known[file.name] = made[name] = item
            book.put_all(items)
            return ""

        return work

    # -- taking away -----------------------------------------------------------------------------

    def old(self, before_ms: int, used: Collection[str]) -> list[tuple[str, str]]:
        """Files whose newest version is that old, by scope and id; none of the scopes in use."""
        newest: dict[tuple[str, str], int] = {}
        for one in self.trackers.having("artifact", "file"):
            place = one.scope, one.id
            newest[place] = max(one.at, newest.get(place, 0))
        return [place for place, at in newest.items() if at <= before_ms and place[0] not in used]

    def forget(self, places: Collection[tuple[str, str]], audit: Sequence[AuditRow]) -> None:
        """Take away these artifacts with all their versions, and the bytes that nothing names any
        more.
        """
        self.trackers.change(_key("forget"), self._forgetting(set(places)), audit)

    async def forget_aside(
        self, places: Collection[tuple[str, str]], audit: Sequence[AuditRow]
    ) -> None:
        """The same; the event loop continues in the meantime."""
        await self.trackers.change_aside(_key("forget"), self._forgetting(set(places)), audit)

    def _forgetting(self, gone: Collection[tuple[str, str]]) -> Callable[[TrackerChange], str]:
        def work(book: TrackerChange) -> str:
            held = book.having("artifact", "file")
            for scope, name in gone:
                book.drop(scope, "artifact", name)
            wanted = {one.text for one in held if (one.scope, one.id) not in gone}
            superfluous = {one.text for one in held} - wanted
            for digest in filter(_DIGEST.fullmatch, superfluous):
                self._place(digest).unlink(missing_ok=True)
            return ""

        return work

    def sweep(self) -> int:
        """Delete old unreferenced content; returns the number of deleted pieces."""
        last = self.clock.now_ms() / 1_000 - STRAY_SECONDS
        found: list[Path] = []

        def work(book: TrackerChange) -> str:
            named = {one.text for one in book.having("artifact", "file")}
            for place in (self.home / FOLDER).glob("??/*"):
                with contextlib.suppress(OSError):  # another process was quicker
                    if place.name not in named and place.stat().st_mtime < last:
                        place.unlink()
                        found.append(place)
            return ""

        if (self.home / FOLDER).is_dir():
            self.trackers.change(_key("sweep"), work)
        return len(found)

    def content(self, item: Item) -> tuple[bytes, str]:
        """The bytes of an artifact, and their hash."""
        digest = item.text("file")
        if not digest:
            data = item.text("content").encode()
            return data, content_hash(data)
        if _DIGEST.fullmatch(digest) is None:
            raise NotFound(f"{item.id} has no content")
        problem = self.problem(digest)
        if problem:
            raise StorageError(f"artifact {item.id}: {problem}", code="damaged", hint=LOOK_CLOSER)
        return self._place(digest).read_bytes(), digest

    def problem(self, digest: str) -> str:
        """What is wrong with the file of this hash; empty when it is whole."""
        try:
            with self._place(digest).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            return f"its file {digest[:16]}… cannot be read ({(error.strerror or '').lower()})"
        return "" if found == digest else f"its file {digest[:16]}… is not what its name says"

    def _place(self, digest: str) -> Path:
        return self.home / FOLDER / digest[:2] / digest


def _key(what: str) -> str:
    """Each change is one of its own."""
    return f"{what} {secrets.token_hex(16)}"


def digests(trackers: SqliteTrackers) -> set[str]:
    """The hashes of all files that are named, in whatever version."""
    named = {one.text for one in trackers.having("artifact", "file")}
    return {one for one in named if _DIGEST.fullmatch(one)}


def not_given(name: str) -> Conflict:
    """Only uploaded files can be deleted."""
    return Conflict(
        f"{name[:80]!a} was made by a run: it goes when that is forgotten", code="not-given"
    )


def is_file(item: Item) -> bool:
    """Whether an artifact came in as a file."""
    return bool(item.text("file"))


def shown_name(name: str) -> str:
    """A name as it may be shown anywhere: on one line, nothing hidden in it, not too long."""
    escaped = "".join("\\n" if sign == "\n" else seen(sign) for sign in name).strip()
    return (escaped[: LONGEST_NAME - 1] + "…" if len(escaped) > LONGEST_NAME else escaped) or "file"


def saved_name(item: Item) -> str:
    """A file name that is valid on every system."""
    plain = _UNSAFE.sub("_", item.text("title").replace("\\", "/").rpartition("/")[2])
    plain = plain.strip("._-")[:100]
    return item.id if not plain or _RESERVED.fullmatch(plain) else plain


def _as_text(data: bytes) -> str | None:
    if len(data) > TEXT_BYTES or b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _put(place: Path, data: bytes) -> None:
    """Write beside the place, then move there: a crash leaves all of it or nothing."""
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(prefix=".", dir=place.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, place)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(handle)
