"""Files that people give to a run or a session, as artifacts of it.

The bytes lie in the data directory under their own hash and nowhere else; a name is only shown. A
file of the same name is the next version of the artifact, and the ones before it stay. Bytes that
nothing names any more are taken away in the transaction that sees so; whoever has kept bytes and
entered them looks afterwards whether they are still there.
"""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from loopwright.app.archives import entries_of
from loopwright.app.places import unusable
from loopwright.app.views.exposing import seen
from loopwright.errors import Conflict, NotFound, StorageError
from loopwright.model.plan import content_hash
from loopwright.model.record import JsonValue
from loopwright.model.trackers import Book, Item, Values
from loopwright.ports import AuditRow, Clock
from loopwright.stores.faults import LOOK_CLOSER
from loopwright.stores.trackers import SqliteTrackers

FOLDER = "uploads"
LONGEST_NAME = 200
TEXT_BYTES = 200_000  # a text up to here is also given to agents
KIND = "document"
AT_ONCE = 8  # files that are written side by side: the disk joins what it is asked for
STRAY_SECONDS = 3_600.0  # of bytes that nobody has entered
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
    """The files of a home."""

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
        """Whether the bytes of files are where they were put: nobody has taken them away."""
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

    def enter(self, scope: str, files: list[File], added: AuditRow) -> list[Item]:
        """Make artifacts of files, all of them or none; `added` says by whom."""
        made: dict[str, Item] = {}
        self.trackers.change(_key("upload"), self._entering(scope, files, added, made), [added])
        return list(made.values())

    async def enter_aside(self, scope: str, files: list[File], added: AuditRow) -> list[Item]:
        """The same for many files: the event loop goes on meanwhile."""
        made: dict[str, Item] = {}
        work = self._entering(scope, files, added, made)
        await self.trackers.change_aside(_key("upload"), work, [added])
        return list(made.values())

    def _entering(
        self, scope: str, files: list[File], added: AuditRow, made: dict[str, Item]
    ) -> Callable[[Book], str]:
        now = self.clock.now_ms()

        def work(book: Book) -> str:
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
        """The same; the event loop goes on meanwhile."""
        await self.trackers.change_aside(_key("forget"), self._forgetting(set(places)), audit)

    def _forgetting(self, gone: Collection[tuple[str, str]]) -> Callable[[Book], str]:
        def work(book: Book) -> str:
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
        """Take away bytes that came in long ago and that nobody has entered; how many."""
        last = self.clock.now_ms() / 1_000 - STRAY_SECONDS
        found: list[Path] = []

        def work(book: Book) -> str:
            named = {one.text for one in book.having("artifact", "file")}
            for place in (self.home / FOLDER).glob("??/*"):
                with contextlib.suppress(OSError):  # somebody was quicker
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
    """Only what somebody gave can be taken away."""
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
    """A name for a file on somebody's disk, good on every system."""
    plain = _UNSAFE.sub("_", item.text("title").replace("\\", "/").rpartition("/")[2])
    plain = plain.strip("._-")[:100]
    return item.id if not plain or _RESERVED.fullmatch(plain) else plain


def artifact_item(item: Item) -> dict[str, JsonValue]:
    """An artifact without its content."""
    size = item.number("size", -1)
    return {
        "id": item.id,
        "version": item.version,
        "name": item.text("title") or item.id,
        "type": item.text("type"),
        "size": size if size >= 0 else len(item.text("content").encode()),
        "by": item.text("by") or None,
    }


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
