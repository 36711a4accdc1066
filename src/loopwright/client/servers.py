"""Addresses of servers, and the token that is stored for each of them.

Tokens are in a file that only its owner can read. A token in the environment takes precedence
over a stored one.
"""

import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from loopwright.errors import LoopwrightError, NotAllowed

DEFINITIONS = "/api/v1/definitions"
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of a server in a canonical form."""

    scheme: str
    host: str
    port: int | None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port in (None, _PORTS[self.scheme]) else f":{self.port}"
        return f"{self.scheme}://{host}{port}"


@dataclass(frozen=True, slots=True)
class Account:
    """The account of a person at a server."""

    name: str
    password: str = field(repr=False)


def parse_address(url: str) -> ServerAddress:
    """An argument, if it is the address of a server."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        found = ServerAddress(scheme=parts.scheme, host=parts.hostname or "", port=parts.port)
        found.host.encode("idna")
    except ValueError:
        found = None
    if found is None or found.scheme not in _PORTS or not found.host or "@" in parts.netloc:
        raise LoopwrightError(
            f"{url!r} is not an address of a server",
            code="bad-server",
            hint="write --server http://127.0.0.1:3001",
        )
    return found


def definition_path(name: str) -> str:
    """The address of the definition with this name on a server; None if it is a path."""
    if "/" in name or name in ("", ".", ".."):
        raise LoopwrightError(
            f"{name[:80]!a} cannot be the name of a definition",
            code="bad-definition-name",
            hint="use a-z, 0-9, dots, dashes and underscores, at most 100 of them",
        )
    return f"{DEFINITIONS}/{quote(name, safe='')}"


TOKEN, TOKEN_FILE = "LOOPWRIGHT_TOKEN", "LOOPWRIGHT_TOKEN_FILE"
FILE = "servers.json"
StoredToken = dict[str, str]
"""The token for a server, its id there, whose it is, and until when it counts."""
_NOTHING: StoredToken = dict.fromkeys(("token", "id", "name", "until"), "")


def token_for(url: str) -> str:
    """The token for a server; empty if there is none."""
    given = os.environ.get(TOKEN, "").strip()
    file = os.environ.get(TOKEN_FILE, "").strip()
    if given:
        return _sendable(given, TOKEN)
    if file:
        return _sendable(_private(Path(file), TOKEN_FILE).strip(), TOKEN_FILE)
    return _sendable(stored_tokens().get(url, {}).get("token", ""), "the sign-in")


def token_variable() -> str:
    """The variable with a token, which takes precedence over the stored one; empty if there is
    none.
    """
    return next((name for name in (TOKEN, TOKEN_FILE) if os.environ.get(name, "").strip()), "")


def is_token(text: object) -> bool:
    """Whether this can be sent as one."""
    return isinstance(text, str) and text.isascii() and text.isprintable() and " " not in text


def _sendable(text: str, named: str) -> str:
    if not is_token(text):
        raise LoopwrightError(
            f"{named} has no token: there are signs in it that none has",
            code="bad-token",
            hint="give the token alone, as it was shown: it begins with lwt_",
        )
    return text


def stored_tokens() -> dict[str, StoredToken]:
    """What is kept, by server."""
    file = _file()
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError:
        pass  # reported below
    try:
        found = json.loads(_private(file, "sign-ins"))
        return {
            str(url): _NOTHING | {k: str(v) for k, v in one.items()} for url, one in found.items()
        }
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise LoopwrightError(
            f"{file} cannot be used",
            code="bad-token-file",
            hint=f"sign in again after: rm {file}",
        ) from error


def store_token(url: str, one: StoredToken) -> StoredToken | None:
    """Remember the token for a server; the one that was kept until now."""
    with _changing() as known:
        before = known.pop(url, None)
        known[url] = one
    return before


def remove_token(url: str) -> None:
    """Keep nothing for a server any more."""
    with _changing() as known:
        known.pop(url, None)


def _file() -> Path:
    from platformdirs import user_config_path  # noqa: PLC0415 - help stays quick

    return user_config_path("loopwright") / FILE


@contextmanager
def _changing() -> Iterator[dict[str, StoredToken]]:
    """What is kept, to be changed by one process at a time; a link to the file stays one."""
    file = Path(os.path.realpath(_file()))
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _unwritten(file, error) from error
    try:
        with suppress(OSError):  # a disk without locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        known = stored_tokens()
        yield known
        _write(file, known)
    finally:
        os.close(folder)


def _write(file: Path, all_of_them: dict[str, StoredToken]) -> None:
    """In one go, and never readable for others, not even for a moment."""
    part = None
    try:
        handle, part = tempfile.mkstemp(prefix=f".{FILE}.", dir=file.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(all_of_them, out, indent=2)
        Path(part).replace(file)
    except OSError as error:
        if part is not None:
            with suppress(OSError):
                Path(part).unlink()
        raise _unwritten(file, error) from error


def _unwritten(file: Path, error: OSError) -> LoopwrightError:
    why = (error.strerror or type(error).__name__).lower()
    return LoopwrightError(
        f"{file} cannot be written: {why}",
        code="bad-token-file",
        hint=f"the token can also be given in {TOKEN}",
    )


def _private(path: Path, named: str) -> str:
    """The contents of a file that only its owner can read."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoopwrightError(
            f"{named}: {path} cannot be read", code="bad-token-file", hint="name a file"
        ) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise NotAllowed(
            f"{named}: others can read {path}", code="open-secret", hint=f"chmod 600 {path}"
        )
    return text
