"""Results that are too long to be shown: kept by their hash, shown by their head."""

import hashlib
import os
import re
from pathlib import Path
from secrets import token_hex
from typing import Protocol

from loopwright.tools.outcome import Refusal

_HANDLE = re.compile(r"result:([0-9a-f]{64})")


class Shelf(Protocol):
    """Keeps long results of one run."""

    def put(self, data: bytes) -> str:
        """Keep it; the answer is its handle, the same for the same content."""

    def get(self, handle: str) -> bytes:
        """What was kept; Refusal if nothing is known under this handle."""


class FolderShelf:
    """A shelf in a folder, made when it is first needed. Outlives the process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        place = self._folder / digest
        if not place.exists():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            part = self._folder / f".{digest[:16]}-{token_hex(4)}"
            part.write_bytes(data)
            os.replace(part, place)
        return f"result:{digest}"

    def get(self, handle: str) -> bytes:
        match = _HANDLE.fullmatch(handle)
        if match is None:
            return _unknown()
        try:
            data = (self._folder / match[1]).read_bytes()
        except OSError:
            return _unknown()
        if hashlib.sha256(data).hexdigest() != match[1]:
            raise Refusal("damaged", "the stored result is not what its handle says")
        return data


def _unknown() -> bytes:
    raise Refusal("not-found", "no result is kept under this handle")
