"""Files that people give to a run or a session, as artifacts of it.

The bytes lie in the data directory under their own hash and nowhere else; a name is only shown. A
file of the same name is the next version of the artifact, and the ones before it stay.
"""

import errno
import hashlib
import os
import re
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path

from loopwright.app.archives import entries_of
from loopwright.app.places import unusable
from loopwright.app.views.exposing import seen
from loopwright.errors import NotFound
from loopwright.model.record import JsonValue
from loopwright.model.trackers import Book, Item, Trackers, Values
from loopwright.ports import Clock
from loopwright.runtime.senses import content_hash

FOLDER = "uploads"
LONGEST_NAME = 200
TEXT_BYTES = 200_000  # a text up to here is also given to agents
KIND = "document"
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
    trackers: Trackers
    clock: Clock

    def keep(self, name: str, data: bytes) -> File:
        """Put bytes in their place, to stay; may be called from any thread."""
        digest = hashlib.sha256(data).hexdigest()
        place = self._place(digest)
        if not place.is_file():
            try:
                _put(place, data)
            except OSError as error:
                raise unusable(place.parent, error) from error
        return File(shown_name(name), digest, len(data), _as_text(data))

    def keep_all(self, data: bytes) -> list[File]:
        """The files of an archive, which is looked through before the first is kept."""
        return [self.keep(name, body) for name, body in entries_of(data)]

    def enter(self, scope: str, files: list[File], *, by: str) -> list[Item]:
        """Make artifacts of files, all of them or none."""
        names: list[str] = []

        def work(book: Book) -> str:
            known = {one.text("title"): one for one in book.all(scope, "artifact") if is_file(one)}
            for file in files:
                before = known.get(file.name)
                name = before.id if before is not None else f"art_{secrets.token_hex(8)}"
                values: Values = {
                    "type": KIND,
                    "title": file.name,
                    "content": file.text or "",
                    "file": file.digest,
                    "size": file.size,
                    "by": by,
                }
                now = self.clock.now_ms()
                book.put(Item(scope=scope, kind="artifact", id=name, at=now, values=values))
                known[file.name] = Item(scope=scope, kind="artifact", id=name, values=values)
                names.append(name)
            return ""

        self.trackers.change(f"upload {secrets.token_hex(16)}", work)
        found = [self.trackers.get(scope, "artifact", name) for name in dict.fromkeys(names)]
        return [one for one in found if one is not None]

    def content(self, item: Item) -> tuple[bytes, str]:
        """The bytes of an artifact, and their hash."""
        digest = item.text("file")
        if not digest:
            data = item.text("content").encode()
            return data, content_hash(data)
        if _DIGEST.fullmatch(digest) is None:
            raise NotFound(f"{item.id} has no content")
        try:
            return self._place(digest).read_bytes(), digest
        except OSError as error:
            raise NotFound(f"the content of {item.id} is not there any more") from error

    def _place(self, digest: str) -> Path:
        return self.home / FOLDER / digest[:2] / digest


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
    _sync(place.parent)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(handle)
