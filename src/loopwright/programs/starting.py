"""Before a program is started: whether it can be, and why not."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Protocol

from loopwright.programs.environment import CannotStart, StartProblem, resolve_program

# One argument or `NAME=value` entry, with its closing NUL; Linux refuses longer ones.
ARGUMENT_LIMIT = 128 * 1024


class Startable(Protocol):
    """What has to be known of a program to start it."""

    @property
    def argv(self) -> tuple[str, ...]: ...
    @property
    def cwd(self) -> str: ...
    @property
    def env(self) -> Mapping[str, str]: ...


def checked_command(program: Startable) -> list[str]:
    """Where, which file, and argv, as the supervisor wants them; raises CannotStart."""
    if not program.argv:
        raise CannotStart("program-not-found", "the command is empty")
    for name in program.env:
        if not name or "=" in name:
            raise CannotStart("not-startable", f"{name!r} is no name of a variable")
    entries = [f"{name}={value}" for name, value in program.env.items()]
    for text in (program.cwd, *program.argv, *entries):
        _check_text(text)
    cwd = os.path.abspath(program.cwd)
    if not os.path.isdir(cwd):
        raise CannotStart("workspace-gone", f"the directory {cwd} does not exist")
    file = resolve_program(program.argv[0], cwd, program.env.get("PATH"))
    # The path also as argv[0]: some programs look for themselves on PATH to find their library.
    return [cwd, file, file, *program.argv[1:]]


def _check_text(text: str) -> None:
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    if "\0" in text:
        raise CannotStart("nul-in-argument", f"{shown!r} contains a NUL character")
    try:
        size = len(os.fsencode(text))
    except UnicodeEncodeError:
        raise CannotStart("not-startable", f"{shown!r} has no form in bytes") from None
    if size >= ARGUMENT_LIMIT:
        raise CannotStart(
            "argument-too-long",
            f"{shown!r} has {size} bytes, a program takes at most {ARGUMENT_LIMIT - 1} in one "
            f"argument or variable; pass it on stdin or in a file",
        )


_PROBLEMS: dict[int, StartProblem] = {
    errno.E2BIG: "argument-too-long",
    errno.EACCES: "not-executable",
    errno.EISDIR: "is-a-directory",
    errno.ENOENT: "program-not-found",
    errno.ENOTDIR: "program-not-found",
    # These pass by: no processes, memory or descriptors left, or the file is being written.
    errno.EAGAIN: "resource",
    errno.EMFILE: "resource",
    errno.ENFILE: "resource",
    errno.ENOMEM: "resource",
    errno.ETXTBSY: "resource",
}
_SAYS: dict[int, str] = {
    errno.E2BIG: "all arguments and variables together are too long; pass less, or in a file",
    errno.ENOENT: "the file or the interpreter in its first line does not exist",
    errno.ENOEXEC: "the file is no program; a script needs a first line like #!/bin/sh",
}


# What the machine has none of, for the errors that mean so.
SHORTAGES: dict[int, str] = {
    errno.EAGAIN: "processes",
    errno.EMFILE: "file descriptors",
    errno.ENFILE: "file descriptors",
    errno.ENOMEM: "memory",
}


def cannot_start(number: int, file: str, *, stage: str = "exec") -> CannotStart:
    """What a number of the system means for somebody who wanted to start a program."""
    says = _SAYS.get(number, os.strerror(number))
    if stage == "chdir":
        return CannotStart("workspace-gone", f"cannot enter {file}: {os.strerror(number)}")
    waits = f"waiting for {SHORTAGES[number]}: " if number in SHORTAGES else ""
    problem = _PROBLEMS.get(number, "not-startable")
    return CannotStart(problem, f"{waits}cannot start {file}: {says}")
