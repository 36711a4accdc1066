"""Results of tool calls. Failures are data for the model, never exceptions for the loop.

A result that is too long to show is stored by its hash, and its head is shown.
"""

import hashlib
import os
import re
from pathlib import Path
from secrets import token_hex
from typing import Protocol

import msgspec

from loopwright.model.record import JsonValue


class ToolCallResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result for the model, whether it is an error, and the exit code if there is one."""

    text: str
    error: bool = False
    code: int | None = None


class ToolRefusal(Exception):
    """A tool refuses or fails: a slug for programs and a sentence for the model."""

    def __init__(self, problem: str, message: str) -> None:
        super().__init__(f"{problem}: {message}")
        self.problem = problem
        self.message = message


def as_json(value: JsonValue) -> str:
    """JSON text. Text without a UTF-8 form is replaced, as events and protocols cannot carry it."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(_clean(value)).decode()


def _clean(value: JsonValue) -> JsonValue:
    match value:
        case str():
            return value.encode(errors="replace").decode()
        case list():
            return [_clean(one) for one in value]
        case dict():
            return {str(_clean(name)): _clean(one) for name, one in value.items()}
        case _:
            return value


def json_outcome(
    value: JsonValue, *, error: bool = False, code: int | None = None
) -> ToolCallResult:
    """An outcome whose text is JSON."""
    return ToolCallResult(text=as_json(value), error=error, code=code)


def failed_outcome(problem: str, message: str) -> ToolCallResult:
    """An outcome that reports an error to the model."""
    return json_outcome({"error": message, "type": problem}, error=True)


_HANDLE = re.compile(r"result:([0-9a-f]{64})")


class ResultStore(Protocol):
    """Stores long results of one run."""

    def put(self, data: bytes) -> str:
        """Store it; returns its handle, the same for the same content."""

    def get(self, handle: str) -> bytes:
        """A stored result; Refusal if the handle is unknown."""


class FolderResultStore:
    """A shelf in a folder, created when it is first needed. Outlives the process."""

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
            raise ToolRefusal("damaged", "the stored result is not what its handle says")
        return data


def _unknown() -> bytes:
    raise ToolRefusal("not-found", "no result is kept under this handle")
