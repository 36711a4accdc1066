"""The environment of a program, the file that its name resolves to, and the files it consists of.

A sandbox that hides other files must show the files of a program. Programs that Loopwright itself
starts outside of sandboxes are found here too, with the folders that no agent may change, because
the programs in them run with the rights of the user. This module must stay two levels below the
folder that contains the package: `_PACKAGE` is computed from its path.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import site
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

from loopwright import host
from loopwright.model.sandbox import OWN_PREFIX, SYSTEM_PATH, is_reserved, is_variable_name

_MOST_LINKS = 40
_MOST_INTERPRETERS = 8
# Version managers, with what the files that name a version are called.
_MANAGERS = {
    "pyenv": "python",
    "rbenv": "ruby",
    "nodenv": "node",
    "goenv": "go",
    "plenv": "perl",
    "phpenv": "php",
    "jenv": "java",
}
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/-]{0,127}")
_MOST_BYTES = 4_096  # of a file that names versions
_SYSTEM_FOLDERS = ("/usr/", "/bin/", "/opt/")
_INTERPRETERS = (
    *("python", "pypy", "node", "nodejs", "bun", "deno", "ruby", "perl", "php", "lua", "Rscript"),
    *("sh", "bash", "dash", "zsh", "ksh", "fish", "java", "tclsh", "guile", "julia"),
)


def program_files(file: str, path: str | None = None) -> Iterator[str]:
    """The files that a program needs: its file with all links resolved, the package around it, and
    the interpreter in its first line, which may be a script itself.
    """
    for one in (file, *_all_interpreters(file, path)):
        for link in _links(one):
            yield link
            yield from _package(link)


def script_files(argv: Sequence[str], cwd: str, path: str | None = None) -> Iterator[str]:
    """The script that an interpreter is started with, which is as much the program as the
    interpreter: its first argument that is not an option, if it is a file.
    """
    if not is_interpreter(argv[0]):
        return
    for word in argv[1:]:
        if word in ("-c", "-e", "-m", "--"):
            return
        if not word.startswith("-"):
            file = os.path.normpath(os.path.join(cwd, word))
            if os.path.isfile(file):
                yield from program_files(file, path)
            return


def is_interpreter(program: str) -> bool:
    """Whether a program runs scripts: `python3.12` is a Python."""
    name = os.path.basename(program).rstrip("0123456789.")
    return name in _INTERPRETERS


def interpreters(file: str, path: str | None = None) -> list[str]:
    """The program in the first line of a script; after `env`, the program that it looks up."""
    words = first_line(file)
    if words and Path(words[0]).name == "env":
        named = next((w for w in words[1:] if not w.startswith("-") and "=" not in w), None)
        found = shutil.which(named, path=path) if named else None
        return [words[0], *([found] if found else [])]
    return words[:1]


def real_program(file: str, cwd: str, env: Mapping[str, str]) -> str:
    """The program behind a shim of a version manager (pyenv, rbenv, …), else the file itself. A
    shim would look for its manager, which is hidden together with its folder.

    Only files are read: nothing is started, as an agent may have written the shim, the manager and
    the files that name a version. Of these files, only installed versions count.
    """
    folder = Path(file).parent
    versions = folder.parent / "versions"
    if folder.name != "shims" or not versions.is_dir():
        return file
    manager = next((one for one in _MANAGERS if _is_managed_by(folder.parent, one)), None)
    if manager is None:
        return file
    inside = os.path.realpath(versions)
    for version in _chosen_versions(manager, folder.parent, cwd, env):
        found = _installed(versions, version) / "bin" / Path(file).name
        real = os.path.realpath(found)
        is_its_own = real.startswith((inside + os.sep, *_SYSTEM_FOLDERS))
        if is_its_own and os.path.isfile(real) and os.access(real, os.X_OK):
            return str(found)
    return file


def without_shims(file: str, cwd: str, env: dict[str, str]) -> tuple[str, dict[str, str]]:
    """The program and its environment, with the real programs instead of shims. The one that
    `#!/usr/bin/env` looks up comes first on the PATH.
    """
    file = real_program(file, cwd, env)
    folders = [
        os.path.dirname(real)
        for one in interpreters(file, env.get("PATH"))
        if (real := real_program(one, cwd, env)) != one
    ]
    if not folders:
        return file, env
    return file, {**env, "PATH": os.pathsep.join([*folders, env.get("PATH", os.defpath)])}


def _is_managed_by(root: Path, manager: str) -> bool:
    """Whether a folder belongs to a version manager, which may itself be installed in another
    place.
    """
    return root.name in (manager, f".{manager}") or (root / "bin" / manager).is_file()


def _chosen_versions(manager: str, root: Path, cwd: str, env: Mapping[str, str]) -> Iterator[str]:
    """The versions that a manager would use: of its variable, else of the nearest file that names
    some, from the working directory upwards, else of its global file.
    """
    words = env.get(f"{manager.upper()}_VERSION", "").split(":")
    name = f".{_MANAGERS[manager]}-version"
    files = [folder / name for folder in (Path(cwd), *Path(cwd).parents)]
    while not any(words) and files:
        words = _words(files.pop(0))
    for word in words if any(words) else _words(root / "version"):
        if _VERSION.fullmatch(word) and ".." not in word.split("/"):
            yield word


def _installed(versions: Path, version: str) -> Path:
    """The folder of a version. `3.12` means the newest installed `3.12.…`."""
    if (versions / version).is_dir() or "/" in version:
        return versions / version
    found = [one for one in versions.glob(f"{version}.*") if one.is_dir()]
    newest = max(found, key=lambda one: [*map(int, re.findall(r"\d+", one.name))], default=None)
    return newest or versions / version


def _words(file: Path) -> list[str]:
    """The words of a small file; none if it is missing or is not a regular file."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return []
            text = stream.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return []
    return [word for line in text.splitlines() for word in line.partition("#")[0].split()]


def _all_interpreters(file: str, path: str | None) -> list[str]:
    """The interpreters of a script, and theirs, as far as the system follows them."""
    found = interpreters(file, path)
    for one in found:
        if len(found) < _MOST_INTERPRETERS:
            found += [inner for inner in interpreters(one, path) if inner not in found]
    return found


def first_line(file: str) -> list[str]:
    """The words after `#!` in the first line of a script; none for any other file."""
    try:
        with open(file, "rb") as stream:
            first = stream.readline(4_096)
    except OSError:
        return []
    return first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []


def is_startable(file: str) -> bool:
    """Whether the system itself starts a file. A text without `#!` would be read by a shell, which
    was not requested.
    """
    try:
        with open(file, "rb") as stream:
            start = stream.read(4)
    except OSError:
        return True  # it can be started and not read, or the start reports the error
    return start.startswith(b"#!") or b"\0" in start or not start.isascii() or start == b"\x7fELF"


def _links(file: str) -> Iterator[str]:
    """A file, and the targets of each of its links."""
    for _ in range(_MOST_LINKS):
        yield file
        try:
            file = os.path.normpath(os.path.join(os.path.dirname(file), os.readlink(file)))
        except OSError:
            break
    yield os.path.realpath(file)


def _package(file: str) -> Iterator[str]:
    """The package that a file belongs to, as npm and Python lay them out."""
    parts = Path(file).parts
    if "node_modules" in parts:
        last = len(parts) - 1 - parts[::-1].index("node_modules")
        yield str(Path(*parts[: last + 1]))
    folder = Path(file).parent
    if folder.name == "bin":
        # Of a Python and of its environments; other files beside it stay hidden.
        yield from (str(folder.parent / name) for name in ("pyvenv.cfg", "lib", "lib64"))


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
    """A program cannot be started; `problem` says why in one word."""

    def __init__(self, problem: StartProblem, detail: str) -> None:
        super().__init__(f"{problem}: {detail}")
        self.problem = problem
        self.detail = detail


# -------------------------------------------------------------------------------- environment


def reserved_names(extra: Iterable[str]) -> list[str]:
    """Those of the given names that a definition may not set, sorted."""
    return sorted(name for name in extra if is_reserved(name))


def malformed_names(extra: Iterable[str]) -> list[str]:
    """Those of the given names that are not names of variables, sorted."""
    return sorted(name for name in extra if not is_variable_name(name))


def agent_environment(
    base: Mapping[str, str], extra: Mapping[str, str], own: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment of a program.

    Of `base` only the allow-list, then the variables that the definition names (`extra`), then the
    `LOOPWRIGHT_*` values of this call (`own`). Names that a definition may not set have to be
    refused when it is read; here they raise ValueError.
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

    A bare name is looked up on `path`, but never inside the workspace `cwd`: a `git` that an agent
    puts there must not run. A name with a slash is resolved relative to the workspace.
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
        chosen = resolve_program(argv0, cwd, path)
    except CannotStart:
        return None
    for folder in _folders(path):
        file = os.path.normpath(os.path.join(workspace, folder, argv0))
        if file == os.path.normpath(chosen):
            break
        if os.path.isfile(file) and os.access(file, os.X_OK):
            return file, chosen
    return None


def _folders(path: str | None) -> Iterator[str]:
    """The entries of a search path; an empty one means the current directory."""
    for folder in (os.defpath if path is None else path).split(os.pathsep):
        yield folder or "."


def _is_inside(folder: str, workspace: str) -> bool:
    """Whether a folder is in the workspace. Everything is inside `/`, so that does not count."""
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


# ------------------------------------------------------------------- whether it can be started

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
    """Working directory, file and argv, as the supervisor needs them; raises CannotStart."""
    if not program.argv:
        raise CannotStart("program-not-found", "the command is empty")
    for name in program.env:
        if not name or "=" in name:
            raise CannotStart("not-startable", f"{name!r} is not a name of a variable")
    entries = [f"{name}={value}" for name, value in program.env.items()]
    for text in (program.cwd, *program.argv, *entries):
        _check_text(text)
    cwd = os.path.abspath(program.cwd)
    if not os.path.isdir(cwd):
        raise CannotStart("workspace-gone", f"the directory {cwd} does not exist")
    file = resolve_program(program.argv[0], cwd, program.env.get("PATH"))
    # The path also as argv[0]: some programs search PATH for themselves to find their library.
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
    # These are temporary: no processes, memory or descriptors left, or the file is being written.
    errno.EAGAIN: "resource",
    errno.EMFILE: "resource",
    errno.ENFILE: "resource",
    errno.ENOMEM: "resource",
    errno.ETXTBSY: "resource",
}
_SAYS: dict[int, str] = {
    errno.E2BIG: "all arguments and variables together are too long; pass less, or in a file",
    errno.ENOENT: "the file or the interpreter in its first line does not exist",
    errno.ENOEXEC: "the file is not a program; a script needs a first line like #!/bin/sh",
}


# What the machine has none of, for the errors that mean so.
SHORTAGES: dict[int, str] = {
    errno.EAGAIN: "processes",
    errno.EMFILE: "file descriptors",
    errno.ENFILE: "file descriptors",
    errno.ENOMEM: "memory",
}


def cannot_start(number: int, file: str, *, stage: str = "exec") -> CannotStart:
    """The meaning of an error number of the system for the start of a program."""
    says = _SAYS.get(number, os.strerror(number))
    if stage == "chdir":
        return CannotStart("workspace-gone", f"cannot enter {file}: {os.strerror(number)}")
    waits = f"waiting for {SHORTAGES[number]}: " if number in SHORTAGES else ""
    problem = _PROBLEMS.get(number, "not-startable")
    return CannotStart(problem, f"{waits}cannot start {file}: {says}")


_PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
_SYSTEM_PREFIXES = ("/usr", "/usr/local")


@cache
def own_program_folders() -> tuple[str, ...]:
    """The folders of Loopwright, of its Python, and of the programs it starts, as far as they are
    not folders of the system, which ordinary users cannot change.
    """
    found = [_PACKAGE, sys.prefix, sys.base_prefix]
    found += [
        os.path.dirname(file) for name in ("bwrap", "git") if (file := host.find_program(name))
    ]
    found = [one for one in found if os.path.isdir(one)]
    if site.ENABLE_USER_SITE:  # Python reads it at each start, so no agent may create it
        found.append(site.getusersitepackages())
    real = dict.fromkeys(map(os.path.realpath, found))
    return tuple(one for one in real if not _is_of_system(one))


def is_own_checkout(workspace: str) -> bool:
    """Whether a workspace is the checkout that this Loopwright runs from: an agent that works on
    Loopwright itself can change it.
    """
    real = os.path.realpath(workspace)
    inside = _PACKAGE.startswith(f"{real}{os.sep}")
    return inside and not {"site-packages", "dist-packages"} & set(Path(_PACKAGE).parts)


def _is_of_system(folder: str) -> bool:
    return folder in _SYSTEM_PREFIXES or folder in SYSTEM_PATH or folder == os.sep
