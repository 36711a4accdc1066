"""The files of a program that an admin approved: where they are, and what is in them.

A file in a folder of the system is known by its path: agents cannot change it, and updates of the
system do. Every other file is known by its SHA-256 digest as well, since an agent that can write
there could put another program in its place.
"""

import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from loopwright.agents.program_files import CannotStart, first_line, is_interpreter, resolve_program
from loopwright.agents.specs import Spec
from loopwright.errors import LoopwrightError, NotFound
from loopwright.model.sandbox import is_loading

PROGRAM_KINDS = ("command", "jsonl", "acp")
SYSTEM_FOLDERS: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
    *("/nix/store", "/gnu/store", "/snap"),
)
_MOST_INTERPRETERS = 8  # one script as the interpreter of another; Linux follows 5 of them
_WRITE_A_FILE = "write a program file that agents cannot change, and name it with its whole path"

# Programs that start the program after their options: the options with a value of their own, and
# how many operands come before the program.
_WRAPPERS: Final[dict[str, tuple[tuple[str, ...], int]]] = {
    "env": (("-u", "--unset"), 0),
    "ionice": (("-c", "--class", "-n", "--classdata"), 0),
    "nice": (("-n", "--adjustment"), 0),
    "nohup": ((), 0),
    "setsid": ((), 0),
    "stdbuf": (("-i", "-o", "-e", "--input", "--output", "--error"), 0),
    "timeout": (("-k", "--kill-after", "-s", "--signal"), 1),
}
# Programs that look for another one in the workspace or in a text, or start one in another place.
_RUNNERS = frozenset(
    {
        *("bunx", "busybox", "chroot", "doas", "find", "flock", "make", "npm", "npx", "parallel"),
        *("pipx", "pnpm", "pnpx", "script", "setpriv", "ssh", "strace", "su", "sudo", "taskset"),
        *("time", "uv", "uvx", "watch", "xargs", "yarn"),
    }
)
_SPLITS_OR_MOVES = re.compile(r"-[i0v]*[SC]|--split-string|--chdir")
_INLINE_OF_SHELLS = re.compile(r"-[A-Za-z]*c[A-Za-z]*|--command(=.*)?")
_INLINE_OF_OTHERS = re.compile(
    r"-[a-z]*[eEpr]|--(eval|print|require|import|loader|experimental-loader|run)(=.*)?"
)
_INLINE: Final[dict[str, "re.Pattern[str]"]] = {
    **dict.fromkeys(("sh", "bash", "dash", "zsh", "ksh", "fish"), _INLINE_OF_SHELLS),
    **dict.fromkeys(("python", "pypy"), re.compile(r"-[bBdEhiIOPqRsSuvx]*[cm].*", re.DOTALL)),
    **dict.fromkeys(("java", "tclsh"), re.compile(r"-(cp|classpath)|--(class|module)-path(=.*)?")),
}
_VALUED: Final = {
    **dict.fromkeys(("sh", "bash", "dash", "zsh", "ksh"), ("-o", "+o", "-O", "+O")),
    **dict.fromkeys(("python", "pypy"), ("-W", "-X")),
    "perl": ("-I",),
    "ruby": ("-I",),
}
_CHUNK_BYTES = 1_048_576
_SETTLED_NS = 2_000_000_000  # a file that changed later than this before it was read is read again
_DIGESTS: dict[tuple[object, ...], str] = {}
_MOST_DIGESTS = 4_096


class ApprovedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of an approved program. `path` is how the agent or PATH names it, `real` has no links;
    `sha256` is empty for a file of the system.
    """

    path: str
    real: str
    sha256: str = ""


def files_in_workspace(spec: Spec) -> list[str]:
    """The programs, scripts and paths of a spec that are looked up in the workspace."""
    if spec.kind not in PROGRAM_KINDS:
        named = [spec.file] if "/" in spec.file and not spec.file.startswith("/") else []
        return [*named, *_relative_arguments(spec.argv)]
    named = [one.word for one in _named(spec.argv) if not one.problem and one.is_relative]
    return [*dict.fromkeys((*named, *_relative_arguments(spec.argv[1:])))]


def find_indirect(spec: Spec) -> str | None:
    """Why it is not known which files a program runs, in words; None if it is known."""
    if spec.kind not in PROGRAM_KINDS:
        return None
    return next((one.problem for one in _named(spec.argv) if one.problem), None)


def check_named_files(spec: Spec) -> None:
    """Refuse a program that could be replaced by writing to the workspace."""
    for word in files_in_workspace(spec):
        raise LoopwrightError(
            f"{word!r} is a path in the workspace, where agents can replace the program",
            code="relative-agent",
            hint="write the whole path of the program, or a name that is found on PATH",
        )
    problem = find_indirect(spec)
    if problem is not None:
        raise LoopwrightError(problem, code="indirect-agent", hint=_WRITE_A_FILE)


def approve_files(spec: Spec) -> tuple[ApprovedFile, ...]:
    """The files of a program as they are now. NotFound if the program is not there."""
    if spec.kind not in PROGRAM_KINDS:
        return ()
    _check_chain(spec.argv)
    found = tuple(_files(spec))
    try:
        return tuple(
            msgspec.structs.replace(one, sha256=_digest(one.real)) if _is_pinned(one) else one
            for one in found
        )
    except OSError as error:
        raise LoopwrightError(
            f"{error.filename} cannot be read: {error.strerror}", code="no-program"
        ) from error


def find_change(spec: Spec, approved: tuple[ApprovedFile, ...]) -> str | None:
    """What is different about the files of a program since they were approved, in words."""
    before = {one.path: one for one in approved}
    now = {one.path: one for one in _files(spec)}
    for path, one in before.items():
        found = now.get(path)
        if found is None:
            instead = [other for other in now if other not in before]
            return f"{path} is gone" + (f", and {instead[0]} is found instead" if instead else "")
        if found.real != one.real:
            return f"{path} is {found.real} now, and was {one.real}"
        try:
            if one.sha256 and _digest(one.real) != one.sha256:
                return f"{path} has other contents"
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}"
    return next((f"{path} is new" for path in now if path not in before), None)


def _files(spec: Spec) -> Iterator[ApprovedFile]:
    """The program behind all wrappers, its script, every interpreter that a first line names, and
    each file that an argument names by its whole path.
    """
    known: set[str] = set()
    named = [word.partition("=")[2] if word.startswith("-") else word for word in spec.argv[1:]]
    arguments = [word for word in named if os.path.isabs(word) and os.path.isfile(word)]
    for path in (*_chain(spec.argv), *(file for one in arguments for file in _chain((one,)))):
        if path not in known:
            known.add(path)
            yield ApprovedFile(path=path, real=os.path.realpath(path))


def _chain(argv: Sequence[str], depth: int = 0) -> Iterator[str]:
    """The files that a command line runs, and those that their first lines run in turn."""
    for one in _named(argv):
        file = _found(one)
        if file is None or one.problem:
            continue
        yield file
        words = first_line(file)
        if words and depth < _MOST_INTERPRETERS:
            yield from _chain((*words, file), depth + 1)


def _found(named: "_Named") -> str | None:
    """The file that a word of a command line names, by its whole path."""
    if not named.is_program:
        return named.word if os.path.isabs(named.word) else None
    try:
        found = resolve_program(named.word, os.sep, os.environ.get("PATH"))
    except CannotStart:
        found = named.word if _is_of_system(named.word) or _is_file(named.word) else ""
    return found if os.path.isabs(found) else None


def _is_file(word: str) -> bool:
    return os.path.isabs(word) and os.path.isfile(word)


def _check_chain(argv: Sequence[str], depth: int = 0) -> None:
    """Refuse a command line whose first lines lead to a file that is not known, or not there."""
    for one in _named(argv):
        file = _found(one)
        if depth and (one.problem or one.is_relative):
            why = one.problem or f"{one.word!r} is a path in the workspace"
            message = f"the first line of {argv[-1]} is not followed: {why}"
            raise LoopwrightError(message, code="indirect-agent", hint=_WRITE_A_FILE)
        if file is None:
            raise NotFound(
                f"there is no program {one.word!r} here",
                code="no-program",
                hint="install it first, and write its whole path if it is not on PATH",
            )
        words = first_line(file)
        if words and depth < _MOST_INTERPRETERS:
            _check_chain((*words, file), depth + 1)


# -- which words of a command line are programs


@dataclass(frozen=True, slots=True)
class _Named:
    """A program or a script that a command line names, or why the next one is not known."""

    word: str
    is_program: bool = True  # looked up on PATH, unlike a script
    problem: str = ""

    @property
    def is_relative(self) -> bool:
        return not self.word.startswith("/") and ("/" in self.word or not self.is_program)


def _named(argv: Sequence[str]) -> Iterator[_Named]:
    """The program, behind each wrapper the next one, and the script of an interpreter."""
    words = [*argv]
    while words:
        program = words.pop(0)
        yield _Named(program)
        name = os.path.basename(program)
        if name not in _WRAPPERS:
            yield from _after_program(name, words)
            return
        problem = _drop_options(name, words)
        if problem or not words:
            why = problem or f"{name!r} is given no program"
            yield _Named(program, problem=why)
            return


def _after_program(name: str, words: list[str]) -> Iterator[_Named]:
    if name == "uv" and words[:2] == ["run", "--script"]:
        yield from (_Named(word, is_program=False) for word in words[2:3])
    elif name in _RUNNERS:
        yield _Named(name, problem=f"{name!r} chooses a program by itself")
    elif is_interpreter(name):
        yield from _script(name, words)


def _drop_options(name: str, words: list[str]) -> str:
    """Take the options and operands of a wrapper from the words; why that cannot be done."""
    valued, operands = _WRAPPERS[name]
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--":
            break
        if name == "env" and word == "-S" and words:
            words[:1] = words[0].split()
        elif name == "env" and _SPLITS_OR_MOVES.match(word) is not None:
            return f"the option {word!r} of env changes what is started"
        elif word in valued and words:
            words.pop(0)
    while name == "env" and words and "=" in words[0]:
        variable = words.pop(0).partition("=")[0]
        if is_loading(variable):
            return f"env sets {variable}, which decides what a program loads"
    del words[:operands]
    return ""


def _script(name: str, words: Sequence[str]) -> Iterator[_Named]:
    """The script that an interpreter is started with."""
    kind = name.rstrip("0123456789.")
    pattern = _INLINE.get(kind, _INLINE_OF_OTHERS)
    skip = False
    for word in words:
        if skip:
            skip = False
        elif pattern.fullmatch(word) is not None:
            problem = f"{name} {word[:20]} runs code that is not a file with a whole path"
            yield _Named(name, problem=problem)
            return
        elif not word.startswith("-") or word == "-":
            yield _Named(word, is_program=False)
            return
        skip = word in _VALUED.get(kind, ())


def _relative_arguments(argv: Sequence[str]) -> list[str]:
    """Arguments that begin like a path in the workspace, also as values of options."""
    values = [word.partition("=")[2] if word.startswith("-") else word for word in argv]
    return [one for one in values if one.startswith(("./", "../"))]


def _is_pinned(file: ApprovedFile) -> bool:
    return not _is_of_system(file.real) or not _is_of_system(file.path)


def _is_of_system(path: str) -> bool:
    return any(Path(os.path.normpath(path)).is_relative_to(one) for one in SYSTEM_FOLDERS)


def _digest(path: str) -> str:
    """The digest of a file. It is kept while the file stays the same: its time of change is set by
    the kernel, and an agent cannot set the clock.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(handle, "rb") as stream:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise IsADirectoryError(0, "not a regular file", path)
        key = (path, found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)
        if key in _DIGESTS:
            return _DIGESTS[key]
        total = hashlib.sha256()
        while chunk := stream.read(_CHUNK_BYTES):
            total.update(chunk)
        is_settled = time.time_ns() - found.st_ctime_ns > _SETTLED_NS
        if is_settled and os.fstat(handle).st_ctime_ns == found.st_ctime_ns:
            if len(_DIGESTS) >= _MOST_DIGESTS:
                _DIGESTS.clear()
            _DIGESTS[key] = total.hexdigest()
        return total.hexdigest()
