"""Where one is signed in: the token for each server, in a file that nobody else can read.

A token that the environment names counts before one that is kept here.
"""

import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from loopwright.errors import LoopwrightError, NotAllowed

TOKEN, TOKEN_FILE = "LOOPWRIGHT_TOKEN", "LOOPWRIGHT_TOKEN_FILE"
FILE = "servers.json"
Kept = dict[str, str]
"""The token for a server, its id there, whose it is, and until when it counts."""
_NOTHING: Kept = dict.fromkeys(("token", "id", "name", "until"), "")


def token_for(url: str) -> str:
    """The token of whoever asks a server; empty where there is none."""
    given = os.environ.get(TOKEN, "").strip()
    file = os.environ.get(TOKEN_FILE, "").strip()
    if given:
        return _sendable(given, TOKEN)
    if file:
        return _sendable(_private(Path(file), TOKEN_FILE).strip(), TOKEN_FILE)
    return _sendable(all_kept().get(url, {}).get("token", ""), "the sign-in")


def named_instead() -> str:
    """Where the environment names a token, which counts before what is kept; empty if nowhere."""
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


def all_kept() -> dict[str, Kept]:
    """What is kept, by server."""
    file = _file()
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError:
        pass  # told below
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


def keep(url: str, one: Kept) -> Kept | None:
    """Remember the token for a server; the one that was kept until now."""
    with _changing() as known:
        before = known.pop(url, None)
        known[url] = one
    return before


def forget(url: str) -> None:
    """Keep nothing for a server any more."""
    with _changing() as known:
        known.pop(url, None)


def _file() -> Path:
    from platformdirs import user_config_path  # noqa: PLC0415 - help stays quick

    return user_config_path("loopwright") / FILE


@contextmanager
def _changing() -> Iterator[dict[str, Kept]]:
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
        known = all_kept()
        yield known
        _write(file, known)
    finally:
        os.close(folder)


def _write(file: Path, all_of_them: dict[str, Kept]) -> None:
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
    """What is in a file that nobody else may read."""
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
