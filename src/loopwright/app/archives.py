"""Archives from elsewhere: looked through from end to end before anything of them is kept.

Nothing is ever unpacked to the names that stand in an archive. What is refused: names that lead
out, anything that is no plain file or folder, and more than fits by count, by size or by how much
it was packed, also where that is hidden in an archive inside of the archive.
"""

import gzip
import io
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

from loopwright.errors import LoopwrightError

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


Take = Callable[[str, bytes], None]


@dataclass(slots=True)
class _Room:
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
        raise _unsafe("it is no zip, no tar and no tar.gz")
    room, found = _Room(len(data)), list[tuple[str, bytes]]()
    _look(data, room, 1, lambda name, body: found.append((name, body)))
    return found


def _look(data: bytes, room: _Room, depth: int, take: Take) -> None:
    if depth > DEEPEST:
        raise _too_big(f"archives are inside of one another more than {DEEPEST} deep")
    read = _zip if data.startswith((_ZIP, _EMPTY_ZIP)) else _tar
    try:
        for name, body in read(data, room):
            take(name, body)
            if is_archive(body):
                _look_inside(body, room, depth + 1)
    except _BROKEN as error:
        raise _unsafe("it cannot be read to its end") from error
    # All that zipfile and tarfile raise for what they cannot read, an encrypted entry among it.
    except (OSError, ValueError, NotImplementedError, RuntimeError) as error:
        raise _unsafe(f"it cannot be read: {type(error).__name__}") from error


def _look_inside(data: bytes, room: _Room, depth: int) -> None:
    """An archive inside of another one is a file like any other, but for how large it would be."""
    try:
        _look(data, room, depth, _nobody)
    except LoopwrightError as error:
        if error.code != "unsafe-archive":
            raise


def _nobody(_name: str, _body: bytes) -> None:
    """What is inside of an inner archive is only counted."""


def _zip(data: bytes, room: _Room) -> Iterator[tuple[str, bytes]]:
    _check_directory(data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            room.entry()
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _unsafe(f"{_shown(info.filename)} is a link or a device")
            if info.compress_type not in _PACKINGS:
                raise _unsafe(f"{_shown(info.filename)} is packed in a way that is not read here")
            # The module cuts a name at NUL and turns separators around; this one does neither.
            name = _checked(info.orig_filename)
            if not info.is_dir():
                with archive.open(info) as file:
                    yield name, _all_of(file, room)


def _check_directory(data: bytes) -> None:
    """The list of a zip is read at once, so its size is looked at first."""
    at = data.rfind(_END)
    if at < 0 or len(data) < at + 22:
        raise _unsafe("it cannot be read to its end")
    count = int.from_bytes(data[at + 10 : at + 12], "little")
    size = int.from_bytes(data[at + 12 : at + 16], "little")
    if data[at - 20 : at - 16] == _END_64 or size > _DIRECTORY_BYTES or count > MOST_ENTRIES:
        raise _too_big(f"it has more than {MOST_ENTRIES:,} entries")


def _tar(data: bytes, room: _Room) -> Iterator[tuple[str, bytes]]:
    plain: io.BufferedIOBase = io.BytesIO(data)
    if data.startswith(_GZIP):
        plain = gzip.GzipFile(fileobj=plain)
    with tarfile.open(fileobj=_Bounded(plain, len(data)), mode="r|") as archive:
        for info in archive:
            room.entry()
            name = _checked(info.name)
            if info.isdir():
                continue
            if not info.isreg() or info.issparse():
                raise _unsafe(f"{_shown(name)} is a link or a device")
            file = archive.extractfile(info)
            assert file is not None, "it is a plain file"
            yield name, _all_of(file, room)


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


def _all_of(file: IO[bytes], room: _Room) -> bytes:
    pieces = []
    while piece := file.read(PIECE):
        room.bytes(len(piece))
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
        raise _unsafe(f"{_shown(name)} is no name")
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
