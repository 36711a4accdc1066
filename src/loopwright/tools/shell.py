"""The tool `shell.exec`: one program of an allow list, by its arguments, without a shell.

A command is judged by the file that would run, not by its spelling. The lists restrict an agent to
what its author has listed. They are not a sandbox: a program that runs code (an interpreter, a
build tool) does whatever that code does, with the rights of this user.

Commands that only read are checked for the few options with which they write, follow links out of
the workspace, or start other programs.
"""

import os
import re
import shlex
import unicodedata
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from loopwright.model.access import READ_COMMANDS
from loopwright.model.chat import ChatTool
from loopwright.model.record import JsonValue
from loopwright.tools.builtin import (
    ANY_PROGRAM,
    Arguments,
    Bench,
    BuiltinCall,
    BuiltinTool,
    ToolCommand,
    ToolCommandEnd,
    ToolLimit,
    schema,
    text,
)
from loopwright.tools.results import ToolCallResult, ToolRefusal, json_outcome
from loopwright.tools.workspace_tree import Parts

# By program: letters and long options that are refused, and why.
_REFUSED: dict[str, tuple[str, tuple[str, ...], str]] = {
    "grep": ("R", ("--dereference-recursive", "--devices"), "it would follow links; use -r"),
    "diff": ("l", ("--paginate",), "it would start another program"),
    "ls": ("L", ("--dereference",), "it would follow links"),
    "stat": ("L", ("--dereference",), "it would follow links"),
    "wc": ("", ("--files0-from",), "it would read files that are not named here"),
    "sort": (
        "oT",
        ("--output", "--compress-program", "--temporary-directory", "--files0-from"),
        "it would write a file, start another program or read files that are not named here",
    ),
}
_FIND_ACTIONS = (
    *("-exec", "-execdir", "-ok", "-okdir", "-delete"),
    *("-fprint", "-fprint0", "-fprintf", "-fls"),
)
_FIND_LINKS = ("-L", "-H", "-follow", "-files0-from")


def check_reading(argv: Sequence[str]) -> None:
    """Refusal if a command is not one of those that read, or would do more."""
    program, words = PurePath(argv[0]).name, argv[1:]
    if program not in READ_COMMANDS:
        may = ", ".join(READ_COMMANDS)
        raise ToolRefusal("not-allowed", f"{program!r} is not allowed here; allowed: {may}")
    letters, names, why = _REFUSED.get(program, ("", (), ""))
    for word in words:
        if _has_letter(word, letters) or any(_is_long(word, name) for name in names):
            raise ToolRefusal("denied", f"{program} {word} is refused: {why}")
    if program == "find":
        _check_find(words)
    if program == "diff" and _is_recursive(words) and "--no-dereference" not in words:
        raise ToolRefusal("denied", "diff -r would follow links; add --no-dereference")
    if program == "uniq" and _operands(words) > 1:
        raise ToolRefusal("denied", "uniq writes to a second file; name one file alone")


def _check_find(words: Sequence[str]) -> None:
    """Refusal for `find` with an action that starts programs, deletes or writes files. Its options
    are whole words, so they have no other spelling.
    """
    for word in words:
        if word in _FIND_ACTIONS:
            raise ToolRefusal("denied", f"find {word} is refused: find may search and print only")
        if word in _FIND_LINKS:
            raise ToolRefusal("denied", f"find {word} is refused: it would leave the workspace")


def _has_letter(word: str, letters: str) -> bool:
    is_cluster = word.startswith("-") and not word.startswith("--")
    return is_cluster and any(letter in word[1:] for letter in letters)


def _is_long(word: str, name: str) -> bool:
    """Long options can be abbreviated."""
    option = word.partition("=")[0]
    return len(option) > 2 and option.startswith("--") and name.startswith(option)


def _is_recursive(words: Sequence[str]) -> bool:
    return any(_has_letter(word, "r") or _is_long(word, "--recursive") for word in words)


def _operands(words: Sequence[str]) -> int:
    """The number of words that may be files; a value that looks like one counts as one."""
    plain = list(words)
    if "--" in plain:
        at = plain.index("--")
        return len(plain) - at - 1 + _operands(plain[:at])
    return sum(not word.startswith("-") or word == "-" for word in plain)


# Programs that only start others, so that an entry for them would mean nothing, or that affect more
# than this machine and its user.
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
"""Programs that affect more than this machine or its user: never started, not even in a sandbox."""
SHELLS: frozenset[str] = frozenset(
    {"ash", "bash", "csh", "dash", "fish", "ksh", "rbash", "sh", "tcsh", "zsh"}
)
_DELIMITERS = re.compile(r"[=@:,;]")
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")


def permitted(argv: Sequence[str], *, where: Parts, bench: Bench, env: Mapping[str, str]) -> str:
    """The file to start; Refusal if the lists or the workspace forbid it."""
    cwd = str(PurePath(bench.tree.root, *where))
    file = _found(argv[0], cwd, bench, env)
    names = set(_names(file)) | {PurePath(argv[0]).name.casefold()}
    # In a sandbox where any program may run, a shell can do no more than the others.
    is_confined = bench.commands.wall == "writing" and ANY_PROGRAM in bench.commands.allow
    _check_denied(argv, names, bench.commands.deny, OUTWARD if is_confined else DENIED)
    entry = _allowing(argv, file, cwd, bench, env)
    if entry is None:
        may = ", ".join(bench.commands.allow) or "nothing"
        raise ToolRefusal("not-allowed", f"{_shown(argv[0])} is not allowed here; allowed: {may}")
    if bench.commands.wall == "reading":
        check_reading(argv)
    if not (is_confined and names & SHELLS):
        for word in argv[1:]:
            _check_inside(word, where, bench)
    return file


def _found(argv0: str, cwd: str, bench: Bench, env: Mapping[str, str]) -> str:
    # Bare names are never looked up in the workspace, wherever in it a command starts.
    base = cwd if "/" in argv0 else bench.tree.root
    try:
        return bench.programs.find(argv0, base, env.get("PATH"))
    except LookupError as error:
        raise ToolRefusal("cannot-start", str(error.args[0])) from None


def _names(file: str) -> Iterator[str]:
    """The name of the file, and the name of each link to it."""
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
    """Whether a command starts the file that an entry names."""
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
        raise ToolRefusal(
            "denied", f"{denied[0]} is never started by a tool: name the program itself"
        )
    for entry in entries:
        program, *words = entry.casefold().split()
        if program.startswith("-"):
            words = [program, *words]
        elif program not in names:
            continue
        if _has_all(argv[1:], words):
            raise ToolRefusal("denied", f"{entry!r} is denied here")


def _has_all(arguments: Sequence[str], words: Sequence[str]) -> bool:
    return all(
        any(_means(one.casefold(), word) for one in arguments) or _in_clusters(arguments, word)
        for word in words
    )


def _means(argument: str, word: str) -> bool:
    """Whether an argument is the option; long options can be abbreviated and have a value."""
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
    """Refusal if an argument, or a part of it, names a path outside the workspace."""
    if _URL.match(word) and not word.casefold().startswith("file:"):
        return
    pieces = {word, *_DELIMITERS.split(word)}
    if re.match(r"-[a-zA-Z]", word):
        pieces |= {word[2:], *_DELIMITERS.split(word[2:])}
    for piece in pieces:
        if piece and _leads_out(piece, where, bench):
            raise ToolRefusal(
                "outside-workspace",
                f"the argument {_shown(word)} leads out of the workspace; use paths inside it",
            )


def _leads_out(piece: str, where: Parts, bench: Bench) -> bool:
    if piece.startswith("~"):
        return True
    # With the dot, a word like `a:b` is not taken for a drive of another system.
    name = piece if piece.startswith("/") else "/".join((".", *where, piece))
    try:
        bench.tree.locate(name)
    except ToolRefusal as refusal:
        return refusal.problem == "outside-workspace"
    return False


def _shown(text: str) -> str:
    clipped = text if len(text) <= 100 else f"{text[:100]}…"
    return repr("".join("�" if unicodedata.category(c)[0] == "C" else c for c in clipped))


TAIL_BYTES = 8 * 1024
SECONDS = 300
_OTHER_WORDS = frozenset({"cmd", "command", "args", "timeoutMs"})
_OPERATOR = re.compile(r"[();<>|&]+")


class Tail:
    """Keeps the last bytes of a stream and counts all of them."""

    def __init__(self, cap: int) -> None:
        self.total = 0
        self._cap = cap
        self._kept = 0
        self._chunks: deque[bytes] = deque()

    def add(self, data: bytes) -> None:
        self.total += len(data)
        data = data[-self._cap :]
        self._chunks.append(data)
        self._kept += len(data)
        while self._kept - len(self._chunks[0]) >= self._cap:
            self._kept -= len(self._chunks.popleft())

    def value(self) -> bytes:
        return b"".join(self._chunks)[-self._cap :]


async def _exec(bench: Bench, call: BuiltinCall) -> ToolCallResult:
    argv = _argv(call)
    where = bench.tree.locate(call.text("cwd", "."))
    cwd = _entered(bench, where)
    env = bench.programs.environment(bench.commands.pass_env)
    file = permitted(argv, where=where, bench=bench, env=env)
    seconds = min(call.seconds, float(call.number("timeout_s", SECONDS)))
    out = Tail(TAIL_BYTES)
    end = await bench.programs.run(
        ToolCommand(
            argv=(file, *argv[1:]),
            cwd=cwd,
            env=env,
            wall_s=seconds,
            stderr_cap=TAIL_BYTES,
            root=bench.tree.root,
            wall=bench.commands.wall,
            offline=bench.commands.offline,
            sandbox=bench.commands.sandbox,
        ),
        out.add,
    )
    if end.how == "not_started":
        raise ToolRefusal("cannot-start", end.error or "the program cannot be started")
    return _report(argv, end, out, seconds, offline=bench.commands.offline)


def adapt(arguments: Arguments) -> Arguments:
    """The arguments in the form of this tool, for a call that names a command as other systems do:
    `command` with `args`, or a whole line as `cmd` or `command`. There is no shell, so a line is
    split into words; a line with operators is unchanged and is refused.
    """
    line = arguments.get("cmd", arguments.get("command"))
    if "argv" in arguments or not isinstance(line, str):
        return arguments
    rest = arguments.get("args", [])
    words = _words(line) if not rest else [line]
    if words is None or not isinstance(rest, list):
        return arguments
    kept = {key: value for key, value in arguments.items() if key not in _OTHER_WORDS}
    ms = arguments.get("timeoutMs")
    if isinstance(ms, int | float) and not isinstance(ms, bool) and ms > 0:
        kept["timeout_s"] = max(1, int(ms // 1_000))
    return {"argv": [*words, *rest], **kept}


def _words(line: str) -> list[JsonValue] | None:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:
        return None
    return None if any(_OPERATOR.fullmatch(word) for word in words) else [*words]


def _argv(call: BuiltinCall) -> tuple[str, ...]:
    given = call.arguments.get("argv")
    words = (
        tuple(word for word in given if isinstance(word, str)) if isinstance(given, list) else ()
    )
    if not words or not words[0]:
        raise ToolRefusal("bad-arguments", "argv must name a program")
    return words


def _entered(bench: Bench, where: Parts) -> str:
    """The folder to start in. Just before the start it is checked once more to be inside."""
    with bench.tree.folder(where):
        return str(PurePath(bench.tree.root, *where))


def _report(
    argv: tuple[str, ...], end: ToolCommandEnd, out: Tail, seconds: float, *, offline: bool
) -> ToolCallResult:
    timed_out = end.how == "wall_timeout"
    code = None if timed_out else end.code
    report: dict[str, JsonValue] = {
        "argv": list(argv),
        "exit_code": code,
        "stdout": out.value().decode(errors="replace"),
        "stderr": end.stderr_tail.decode(errors="replace"),
        "stdout_bytes": out.total,
        "stderr_bytes": end.stderr_bytes,
        "stdout_truncated": out.total > TAIL_BYTES,
        "stderr_truncated": end.stderr_bytes > TAIL_BYTES,
        "seconds": round(end.seconds, 3),
    }
    if end.signal is not None and not timed_out:
        report["signal"] = end.signal
    if timed_out:
        report["error"] = f"the time limit of {seconds:g} s was reached; everything was ended"
        report["type"] = "timeout"
    if offline and code:  # it may have failed without one, which would be hard to guess
        report["note"] = "programs of this agent have no network"
    return json_outcome(report, error=timed_out, code=code)


SHELL_TOOL = BuiltinTool(
    spec=ChatTool(
        name="shell.exec",
        description=(
            "Run one program with its arguments: no pipes, no globs, no variables. Agents with "
            "full access in a sandbox can start a shell: bash, -c, SCRIPT. Only allowed programs "
            "can be started."
        ),
        schema=schema(
            ("argv",),
            argv={
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "maxItems": 1_000,
                "description": "The program and its arguments, one word each",
            },
            cwd=text("Folder of the workspace to start in"),
            timeout_s={"type": "integer", "minimum": 1, "maximum": 86_400},
            reason=text("Why this is to be run, for the person who may be asked"),
        ),
    ),
    limit=ToolLimit(seconds=SECONDS, at_once=4),
    repeatable=False,
    slack_s=15.0,
    async_work=_exec,
    adapt=adapt,
)
