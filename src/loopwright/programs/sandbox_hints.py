"""Why a program failed in a sandbox: which file it asked for, and which level hides it."""

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping

from loopwright.model.sandbox import SandboxLevel

_LAST_BYTES = 4_000
_NAME = r"(?P<name>[^\s:'\"‘’`]+)"
_MISSING = (
    re.compile(rf"{_NAME}['\"’`]?: (?:No such file or directory|(?:command )?not found)"),
    re.compile(r"No such file or directory: ['\"](?P<name>[^'\"]+)"),
    re.compile(r"(?:can't open file|Cannot find module) ['\"](?P<name>[^'\"]+)"),
)
_LOCKED = (
    re.compile(rf"{_NAME}['\"’`]?: Read-only file system"),
    re.compile(r"Read-only file system: ['\"](?P<name>[^'\"]+)"),
)
# The next level at which more can be changed.
_WEAKER = {
    "none": "workspace",
    "readonly": "workspace",
    "workspace": "guard",
    "guard": "off",
    "off": "off",
}


def explain_failure(
    level: SandboxLevel,
    stderr: bytes,
    *,
    cwd: str,
    env: Mapping[str, str],
    hidden: Iterable[str],
) -> str | None:
    """One line about the last file that a program missed, if its sandbox hides or locks it. Files
    in `hidden` are never named: an agent could find out which of them exist.
    """
    secret = [os.path.realpath(one) for one in hidden]
    text = stderr[-_LAST_BYTES:].decode(errors="replace")
    for name in _named(text, _MISSING) if level != "guard" else ():
        path = _existing(name, cwd, env)
        if path and not _any(path, secret):
            weaker = "readonly" if level == "none" else "guard"
            return f"{path} exists, but sandbox level `{level}` hides it; use `--sandbox {weaker}`"
    for name in _named(text, _LOCKED):
        path = os.path.normpath(os.path.join(cwd, name))
        if not _any(path, secret) and (level != "guard" or _can_change(path)):
            weaker = _WEAKER[level]
            return f"{path} cannot be changed at sandbox level `{level}`; use `--sandbox {weaker}`"
    return None


def _can_change(path: str) -> bool:
    """Whether the user can change or create a file outside of the sandbox."""
    return os.access(path if os.path.exists(path) else os.path.dirname(path), os.W_OK)


def _named(text: str, patterns: Iterable[re.Pattern[str]]) -> Iterator[str]:
    """The names in such messages, the last one first."""
    found = [one for pattern in patterns for one in pattern.finditer(text)]
    return (one["name"] for one in sorted(found, key=lambda one: one.start(), reverse=True))


def _existing(name: str, cwd: str, env: Mapping[str, str]) -> str | None:
    """The file that is meant, if it exists outside of the sandbox."""
    path = os.path.normpath(os.path.join(cwd, name))
    if os.path.exists(path):
        return path
    return shutil.which(name, path=env.get("PATH")) if "/" not in name else None


def _any(path: str, folders: Iterable[str]) -> bool:
    real = os.path.realpath(path)
    return any(real == one or real.startswith(f"{one}{os.sep}") for one in folders)
