"""What a program is given: its environment, and the file its first word stands for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from loopwright.model.environment import OWN_PREFIX, is_reserved, is_variable_name

SWEEP_VARIABLE = "LOOPWRIGHT_SWEEP"

StartProblem = Literal[
    "argument-too-long",
    "is-a-directory",
    "agent-changed",
    "git-settings-changed",
    "no-sandbox",
    "not-executable",
    "not-startable",
    "nul-in-argument",
    "program-not-found",
    "resource",
    "workspace-gone",
]

# The data directory: what an agent starts with our own commands belongs to the run it works for.
_PASSED_ON = frozenset({"PATH", "HOME", "LANG", "TERM", "TMPDIR", "USER", "LOOPWRIGHT_HOME"})
_PASSED_ON_PREFIX = "LC_"


class CannotStart(Exception):
    """A program cannot be started as asked; `problem` says why in one word."""

    def __init__(self, problem: StartProblem, detail: str) -> None:
        super().__init__(f"{problem}: {detail}")
        self.problem = problem
        self.detail = detail


# -------------------------------------------------------------------------------- environment


def reserved_names(extra: Iterable[str]) -> list[str]:
    """Those of the given names that a definition may not set, sorted."""
    return sorted(name for name in extra if is_reserved(name))


def malformed_names(extra: Iterable[str]) -> list[str]:
    """Those of the given names that are no names of variables, sorted."""
    return sorted(name for name in extra if not is_variable_name(name))


def agent_environment(
    base: Mapping[str, str], extra: Mapping[str, str], own: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment of a program.

    Of `base` only what is on the allow-list, then what the definition names (`extra`), then the
    `LOOPWRIGHT_*` values of this call (`own`). Names that a definition may not set are to be
    refused when it is read; if one comes here nevertheless, that is a ValueError.
    """
    refused = reserved_names(extra) + malformed_names(extra)
    if refused:
        raise ValueError(f"a definition may not set these variables: {', '.join(refused)}")
    foreign = sorted(name for name in own if not name.startswith(OWN_PREFIX))
    if foreign:
        raise ValueError(f"own variables begin with {OWN_PREFIX}: {', '.join(foreign)}")
    passed_on = {
        name: value
        for name, value in base.items()
        if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIX)
    }
    return passed_on | dict(extra) | dict(own)


# --------------------------------------------------------------------------- finding the file


def resolve_program(argv0: str, cwd: str, path: str | None) -> str:
    """The absolute path of the file to run; raises CannotStart if there is none.

    A bare name is looked up on `path`, but never inside the workspace `cwd`: an agent that drops
    a `git` there must not get it run. A name with a slash is what its author says, relative to
    the workspace.
    """
    workspace = os.path.abspath(cwd)
    if "/" in argv0:
        return _runnable(os.path.join(workspace, argv0))
    if not argv0:
        raise CannotStart("program-not-found", "the command is empty")
    skipped: list[str] = []
    not_executable: list[str] = []
    for folder in _folders(path):
        candidate = os.path.join(folder, argv0)
        if not os.path.isfile(os.path.join(workspace, candidate)):
            continue
        if not os.path.isabs(folder) or _is_inside(folder, workspace):
            skipped.append(candidate)
        elif os.access(candidate, os.X_OK):
            return candidate
        else:
            not_executable.append(candidate)
    here = os.path.isfile(os.path.join(workspace, argv0))
    raise _not_on_path(argv0, skipped=skipped, not_executable=not_executable, here=here)


def find_shadowed(argv0: str, cwd: str, path: str | None) -> tuple[str, str] | None:
    """The program of the workspace that a shell would run for a bare name, and the one that is run
    instead of it; None where both are the same.
    """
    workspace = os.path.abspath(cwd)
    if "/" in argv0:
        return None
    try:
        taken = resolve_program(argv0, cwd, path)
    except CannotStart:
        return None
    for folder in _folders(path):
        file = os.path.normpath(os.path.join(workspace, folder, argv0))
        if file == os.path.normpath(taken):
            break
        if os.path.isfile(file) and os.access(file, os.X_OK):
            return file, taken
    return None


def _folders(path: str | None) -> Iterator[str]:
    """The entries of a search path; an empty one stands for the current directory."""
    for folder in (os.defpath if path is None else path).split(os.pathsep):
        yield folder or "."


def _is_inside(folder: str, workspace: str) -> bool:
    """Whether a folder lies in the workspace. Everything is inside `/`, so that says nothing."""
    root = os.path.realpath(workspace)
    real = os.path.realpath(folder)
    return root != os.sep and (real == root or real.startswith(root + os.sep))


def _runnable(file: str) -> str:
    if os.path.isdir(file):
        raise CannotStart("is-a-directory", f"{file} is a directory, name a program in it")
    if not os.path.exists(file):
        raise CannotStart("program-not-found", f"{file} does not exist")
    if not os.access(file, os.X_OK):
        raise CannotStart("not-executable", f"{file} is not executable, try: chmod +x {file}")
    return file


_SHELL_COMMANDS = frozenset(
    (".", "alias", "cd", "eval", "exec", "export", "set", "source", "unset")
)


def _not_on_path(
    argv0: str, *, skipped: list[str], not_executable: list[str], here: bool
) -> CannotStart:
    if not_executable:
        file = not_executable[0]
        return CannotStart("not-executable", f"{file} is not executable, try: chmod +x {file}")
    if skipped:
        return CannotStart(
            "program-not-found",
            f"{argv0} is on PATH only inside the workspace ({skipped[0]}), where bare names are "
            f"not looked up; write its path with a slash if it is meant",
        )
    if argv0 in _SHELL_COMMANDS:
        return CannotStart(
            "program-not-found",
            f"{argv0} is a command of shells, and no shell is used; put the line into a script",
        )
    fix = (
        f"write ./{argv0} for the one in the workspace" if here else "install it or write its path"
    )
    return CannotStart("program-not-found", f"{argv0} is not on PATH; {fix}")
