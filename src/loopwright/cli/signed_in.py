"""Where one is signed in: the token for each server, in a file that nobody else can read.

A token that the environment names counts before one that is kept here.
"""

import json
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from loopwright.errors import LoopwrightError, NotAllowed

TOKEN, TOKEN_FILE = "LOOPWRIGHT_TOKEN", "LOOPWRIGHT_TOKEN_FILE"
FILE = "servers.json"
Kept = dict[str, str]
"""The token for a server, its id there, whose it is, and until when it counts."""


def token_for(url: str) -> str:
    """The token of whoever asks a server; empty where there is none."""
    given = os.environ.get(TOKEN, "").strip()
    file = os.environ.get(TOKEN_FILE, "").strip()
    if given:
        return given
    if file:
        return _private(Path(file), TOKEN_FILE).strip()
    return all_kept().get(url, {}).get("token", "")


def all_kept() -> dict[str, Kept]:
    """What is kept, by server."""
    file = _file()
    if not file.exists():
        return {}
    try:
        found = json.loads(_private(file, "sign-ins"))
        return {str(url): {str(k): str(v) for k, v in one.items()} for url, one in found.items()}
    except (ValueError, AttributeError) as error:
        raise LoopwrightError(
            f"{file} cannot be used",
            code="bad-token-file",
            hint=f"sign in again after: rm {file}",
        ) from error


def keep(url: str, one: Kept) -> None:
    """Remember the token for a server."""
    _write({**all_kept(), url: one})


def forget(url: str) -> None:
    """Keep nothing for a server any more."""
    _write({known: one for known, one in all_kept().items() if known != url})


def _file() -> Path:
    from platformdirs import user_config_path  # noqa: PLC0415 - help stays quick

    return user_config_path("loopwright") / FILE


def _write(all_of_them: dict[str, Kept]) -> None:
    """In one go, and never readable for others, not even for a moment."""
    file = _file()
    part = None
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(prefix=f".{FILE}.", dir=file.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(all_of_them, out, indent=2)
        Path(part).replace(file)
    except OSError as error:
        if part is not None:
            with suppress(OSError):
                Path(part).unlink()
        why = (error.strerror or type(error).__name__).lower()
        raise LoopwrightError(
            f"{file} cannot be written: {why}",
            code="bad-token-file",
            hint=f"the token can also be given in {TOKEN}",
        ) from error


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
