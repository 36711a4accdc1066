"""Which commands `shell.exec` may start. Judged by the file that would run, not by its spelling.

The lists keep an agent to what its author has thought of. They are no wall: a program that runs
code (an interpreter, a build tool) does whatever that code says, with the rights of this user.
"""

import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from loopwright.tools.native import ANY_PROGRAM, Bench
from loopwright.tools.outcome import Refusal
from loopwright.tools.reading import check_reading
from loopwright.tools.tree import Parts

# Programs that only start others, so that an entry about those would say nothing, or that reach
# beyond this machine and its user.
DENIED: frozenset[str] = frozenset(
    {
        "ash",
        "bash",
        "busybox",
        "chroot",
        "csh",
        "dash",
        "doas",
        "env",
        "exec",
        "fish",
        "ionice",
        "ksh",
        "nice",
        "nohup",
        "nsenter",
        "pkexec",
        "rbash",
        "scp",
        "script",
        "setsid",
        "sftp",
        "sh",
        "ssh",
        "stdbuf",
        "su",
        "sudo",
        "tcsh",
        "time",
        "timeout",
        "tmux",
        "toybox",
        "unshare",
        "watch",
        "xargs",
        "zsh",
    }
)
OUTWARD: frozenset[str] = frozenset(
    {"chroot", "doas", "nsenter", "pkexec", "scp", "sftp", "ssh", "su", "sudo", "unshare"}
)
"""Those that reach beyond this machine or its user: never started, not even in a sandbox."""
SHELLS: frozenset[str] = frozenset(
    {"ash", "bash", "csh", "dash", "fish", "ksh", "rbash", "sh", "tcsh", "zsh"}
)
_DELIMITERS = re.compile(r"[=@:,;]")
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")


def permitted(argv: Sequence[str], *, where: Parts, bench: Bench, env: Mapping[str, str]) -> str:
    """The file to start; Refusal if the lists or the workspace speak against it."""
    cwd = str(PurePath(bench.tree.root, *where))
    file = _found(argv[0], cwd, bench, env)
    names = set(_names(file)) | {PurePath(argv[0]).name.casefold()}
    # In a sandbox where any program may run, a shell can do no more than the others.
    is_confined = bench.commands.wall == "writing" and ANY_PROGRAM in bench.commands.allow
    _check_denied(argv, names, bench.commands.deny, OUTWARD if is_confined else DENIED)
    entry = _allowing(argv, file, cwd, bench, env)
    if entry is None:
        may = ", ".join(bench.commands.allow) or "nothing"
        raise Refusal("not-allowed", f"{_shown(argv[0])} is not allowed here; allowed: {may}")
    if bench.commands.wall == "reading":
        check_reading(argv)
    if not (is_confined and names & SHELLS):
        for word in argv[1:]:
            _check_inside(word, where, bench)
    return file


def _found(argv0: str, cwd: str, bench: Bench, env: Mapping[str, str]) -> str:
    # Bare names are looked up nowhere in the whole workspace, wherever in it a command starts.
    base = cwd if "/" in argv0 else bench.tree.root
    try:
        return bench.programs.find(argv0, base, env.get("PATH"))
    except LookupError as error:
        raise Refusal("cannot-start", str(error.args[0])) from None


def _names(file: str) -> Iterator[str]:
    """What the file is called, and what it is called behind each of its links."""
    for _ in range(40):
        yield PurePath(file).name.casefold()
        try:
            file = os.path.join(os.path.dirname(file), os.readlink(file))
        except OSError:
            break
    yield PurePath(os.path.realpath(file)).name.casefold()


# -- the allow list


def _allowing(
    argv: Sequence[str], file: str, cwd: str, bench: Bench, env: Mapping[str, str]
) -> str | None:
    """The entry that allows a command."""
    for entry in bench.commands.allow:
        if entry == ANY_PROGRAM:
            return entry
        program, *first = entry.split()
        if list(argv[1 : 1 + len(first)]) != first:
            continue
        if _is_same(program, argv[0], file, cwd, bench, env):
            return entry
    return None


def _is_same(
    program: str, argv0: str, file: str, cwd: str, bench: Bench, env: Mapping[str, str]
) -> bool:
    """Whether a command starts the very file that an entry means."""
    if "/" not in program and "/" not in argv0 and program != argv0:
        return False
    try:
        meant = bench.programs.find(program, bench.tree.root, env.get("PATH"))
    except LookupError:
        return False
    return os.path.realpath(meant) == os.path.realpath(file)


# -- the deny list


def _check_denied(
    argv: Sequence[str], names: set[str], entries: Sequence[str], never: frozenset[str]
) -> None:
    denied = sorted(names & never)
    if denied:
        raise Refusal("denied", f"{denied[0]} is never started by a tool: name the program itself")
    for entry in entries:
        program, *words = entry.casefold().split()
        if program.startswith("-"):
            words = [program, *words]
        elif program not in names:
            continue
        if _has_all(argv[1:], words):
            raise Refusal("denied", f"{entry!r} is denied here")


def _has_all(arguments: Sequence[str], words: Sequence[str]) -> bool:
    return all(
        any(_means(one.casefold(), word) for one in arguments) or _in_clusters(arguments, word)
        for word in words
    )


def _means(argument: str, word: str) -> bool:
    """Whether an argument is the word; long options may be shortened and may have a value."""
    name = argument.partition("=")[0]
    if word.startswith("--"):
        return name == word or (len(name) > 3 and name.startswith("--") and word.startswith(name))
    return argument == word


def _in_clusters(arguments: Sequence[str], word: str) -> bool:
    """`-rf` is also `-fr`, `-r -f` and `-rvf`."""
    if not word.startswith("-") or word.startswith("--"):
        return False
    clusters = [a[1:].casefold() for a in arguments if a.startswith("-") and a[1:2] != "-"]
    return all(letter in "".join(clusters) for letter in word[1:])


# -- arguments that are paths


def _check_inside(word: str, where: Parts, bench: Bench) -> None:
    """Refusal when an argument, or a part of it, names a place outside the workspace."""
    if _URL.match(word) and not word.casefold().startswith("file:"):
        return
    pieces = {word, *_DELIMITERS.split(word)}
    if re.match(r"-[a-zA-Z]", word):
        pieces |= {word[2:], *_DELIMITERS.split(word[2:])}
    for piece in pieces:
        if piece and _leads_out(piece, where, bench):
            raise Refusal(
                "outside-workspace",
                f"the argument {_shown(word)} leads out of the workspace; use paths inside it",
            )


def _leads_out(piece: str, where: Parts, bench: Bench) -> bool:
    if piece.startswith("~"):
        return True
    # The dot keeps a word like `a:b` from being taken for a drive of another system.
    name = piece if piece.startswith("/") else "/".join((".", *where, piece))
    try:
        bench.tree.locate(name)
    except Refusal as refusal:
        return refusal.problem == "outside-workspace"
    return False


def _shown(text: str) -> str:
    clipped = text if len(text) <= 100 else f"{text[:100]}…"
    return repr("".join("�" if unicodedata.category(c)[0] == "C" else c for c in clipped))
