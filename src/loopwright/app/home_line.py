"""The line between the commands of a home and its server: a socket in the home, lines of JSON.

Whoever may open the data there may use the line, and nobody else: the socket has the rights of the
data. Commands read and write the log themselves; over the line they ask the server to drive a run,
and hear what its agents say and that it moved. Whatever is lost on the line stands in the log.
"""

import contextlib
import fcntl
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from loopwright.app.settings import Settings

RECORD = "server.json"
SOCKET = "server.sock"
PROTOCOL = 1
LONGEST_PATH = 100  # of a socket, in bytes; systems take a few more
LINE_BYTES = 4_000_000
_KEY = re.compile(r"_(API_KEY|AUTH_TOKEN|OAUTH_TOKEN)$|^LOOPWRIGHT_MODEL_BASE_URL$")
TEXT_CHARS = 100_000  # of what an agent said, in one line


class Held(msgspec.Struct):
    """The server of a home, as others find it."""

    pid: int
    url: str
    version: str
    public: str = ""  # how others call it, where that is something else
    has_line: bool = True  # commands can reach it


# -- what is said ----------------------------------------------------------------------------------


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """The first line: who serves here."""

    protocol: int
    version: str
    pid: int
    path: str = ""  # the hash of where it looks for programs
    keys: tuple[str, ...] = ()  # names of keys that it has
    limits: str = ""  # the hash of its budget and its servers of tools


class Drive(msgspec.Struct, tag="drive", frozen=True):
    """Asked by a command: take a run up, or look at what is new in it; tell of it from now on."""

    run: str


class Driven(msgspec.Struct, tag="driven", frozen=True):
    """It was taken up."""

    run: str


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """It cannot be taken up."""

    run: str
    kind: str  # of the error
    code: str
    message: str
    hint: str | None = None


class Moved(msgspec.Struct, tag="moved", frozen=True):
    """A run has facts up to this number now."""

    run: str
    seq: int


class Said(msgspec.Struct, tag="said", frozen=True):
    """An agent said something just now."""

    run: str
    effect: str
    kind: Literal["text", "tool", "note"]
    text: str


class Beat(msgspec.Struct, tag="beat", frozen=True):
    """It is still there."""


class Troubled(msgspec.Struct, tag="troubled", frozen=True):
    """Something keeps the server from driving a run on; it is tried again."""

    run: str
    message: str


FromServer: TypeAlias = Hello | Driven | Refused | Moved | Said | Beat | Troubled


def keys_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the variables that hold keys of models and agents; never what is in them."""
    return tuple(sorted(name for name, text in environment.items() if text and _KEY.search(name)))


def path_of(environment: Mapping[str, str]) -> str:
    """What tells two PATHs apart."""
    return _hashed(os.fsencode(environment.get("PATH", "")))


def limits_of(settings: Settings) -> str:
    """What tells two budgets, and two sets of servers of tools, apart."""
    prices = {name: asdict(price) for name, price in settings.prices.items()}
    limits = [asdict(settings.budget), settings.mcp, *([prices] if prices else [])]
    return _hashed(msgspec.json.encode(limits, order="sorted"))


def _hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def as_line(message: FromServer | Drive) -> bytes:
    return msgspec.json.encode(message) + b"\n"


# -- finding it ------------------------------------------------------------------------------------


def held_by(home: Path) -> Held | None:
    """The server of a home, if there is one right now; its pid is 0 while it is just starting."""
    try:
        handle = os.open(home / RECORD, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(os.pread(handle, 4_096, 0), type=Held)
        return Held(pid=0, url="", version="")
    finally:
        os.close(handle)
    return None


def address_of(home: Path) -> str | None:
    """Where the server of this home is reached, if there is one right now."""
    held = held_by(home)
    return (held.public or held.url).rstrip("/") or None if held is not None else None


@contextmanager
def socket_path(home: Path) -> Iterator[str]:
    """The path of the socket, short enough to be one: where the home lies too deep, by a handle of
    its folder, which only Linux has names for.
    """
    path = str(home / SOCKET)
    if len(os.fsencode(path)) <= LONGEST_PATH:
        yield path
        return
    handle = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{SOCKET}"
    finally:
        os.close(handle)
