"""The tool `shell.exec`: one program of an allow list, by its arguments, without a shell."""

import re
import shlex
from collections import deque
from pathlib import PurePath

from loopwright.model.messages import ToolSpec
from loopwright.model.record import JsonValue
from loopwright.tools.commanding import permitted
from loopwright.tools.gate import Limit
from loopwright.tools.native import Arguments, Bench, Call, Native, schema, text
from loopwright.tools.outcome import Refusal, ToolOutcome, said
from loopwright.tools.processes import Command, End
from loopwright.tools.tree import Parts

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


async def _exec(bench: Bench, call: Call) -> ToolOutcome:
    argv = _argv(call)
    where = bench.tree.locate(call.text("cwd", "."))
    cwd = _entered(bench, where)
    env = bench.programs.environment(bench.commands.pass_env)
    file = permitted(argv, where=where, bench=bench, env=env)
    seconds = min(call.seconds, float(call.number("timeout_s", SECONDS)))
    out = Tail(TAIL_BYTES)
    end = await bench.programs.run(
        Command(
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
        raise Refusal("cannot-start", end.error or "the program cannot be started")
    return _told(argv, end, out, seconds, offline=bench.commands.offline)


def adapt(arguments: Arguments) -> Arguments:
    """The arguments as this tool has them, of a call that names a command as other systems do:
    `command` with `args`, or a whole line as `cmd` or `command`. There is no shell, so a line is
    split into words; one with operators stays as it is and is refused.
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


def _argv(call: Call) -> tuple[str, ...]:
    given = call.arguments.get("argv")
    words = (
        tuple(word for word in given if isinstance(word, str)) if isinstance(given, list) else ()
    )
    if not words or not words[0]:
        raise Refusal("bad-arguments", "argv must name a program")
    return words


def _entered(bench: Bench, where: Parts) -> str:
    """The folder to start in. That nothing leads out of it is looked at once more just before."""
    with bench.tree.folder(where):
        return str(PurePath(bench.tree.root, *where))


def _told(
    argv: tuple[str, ...], end: End, out: Tail, seconds: float, *, offline: bool
) -> ToolOutcome:
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
    if offline and code:  # it may have failed for want of one, which nobody would guess
        report["note"] = "programs of this agent have no network"
    return said(report, error=timed_out, code=code)


SHELL_TOOL = Native(
    spec=ToolSpec(
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
    limit=Limit(seconds=SECONDS, at_once=4),
    repeatable=False,
    slack_s=15.0,
    async_work=_exec,
    adapt=adapt,
)
