"""JSON lines of an agent program: text, tools, usage, session, result. Other lines are text.

A `tool` line is either a report or a request. A report becomes an entry of activity. A line
that names a tool of the run and has no result is a request: the answer is written as one JSON
line into the pipe named by `LOOPWRIGHT_INBOX`. Requests are answered one after the other, in
order.
"""

import asyncio
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec.structs import replace

from loopwright.agents.clis.loose_json import decode_object
from loopwright.agents.clis.transcript import LiveEntry, as_text, note, tool_line
from loopwright.agents.processes.process import PipeFeed
from loopwright.kernel.coordination import tools_of
from loopwright.kernel.event_parts import AgentCall, ToolUse, mask, mask_text
from loopwright.kernel.events import NO_USAGE, Usage
from loopwright.model.access import tool_target
from loopwright.model.record import JsonValue
from loopwright.ports import ActivityEntry, ActivityKind, EffectJob, ToolReply

KINDS: Mapping[str, ActivityKind] = {
    "tool": "tool",
    "command": "command",
    "edit": "edit",
    "read": "read",
    "fetch": "fetch",
    "status": "status",
    "denied": "denied",
}


class ReportedTool(msgspec.Struct, kw_only=True):
    """A tool call as an agent reports it, every field as it came."""

    name: str
    arguments: JsonValue = None
    result: JsonValue = None
    ok: JsonValue = None
    code: JsonValue = None
    ms: JsonValue = None
    target: JsonValue = None
    kind: JsonValue = None
    text: JsonValue = None


def entry_of(tool: ReportedTool) -> ActivityEntry:
    """The entry of a tool call. Missing fields are derived from name and arguments."""
    found = tool_target(tool.name, tool.arguments)
    code = _whole(tool.code)
    ok = tool.ok if isinstance(tool.ok, bool) else None
    if ok is None and code is not None:
        ok = code == 0
    return ActivityEntry(
        kind=KINDS.get(tool.kind, found.kind) if isinstance(tool.kind, str) else found.kind,
        tool=tool.name,
        target=tool.target if isinstance(tool.target, str) and tool.target else found.target,
        ok=ok,
        code=code,
        ms=_whole(tool.ms),
        text=tool.text if isinstance(tool.text, str) else "",
        arguments=as_text(tool.arguments),
        result=as_text(tool.result),
    )


def live_words(entry: ActivityEntry) -> LiveEntry:
    """An entry for the live view: a denied permission and a status as plain text, as for coding
    agents, and everything else as a tool with its target.
    """
    if entry.kind in ("denied", "status") and entry.text:
        return note(mask_text(entry.text))
    return tool_line(entry.tool, mask_text(entry.target))


def _whole(value: JsonValue) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if abs(value) < 1e15 else None


class JsonLine(msgspec.Struct):
    """One line, parsed leniently: fields of the wrong type make it plain text. Numbers are checked
    when they are counted, so that a usage line is never taken for text of the agent.
    """

    type: str
    text: str | None = None
    name: str | None = None
    args: JsonValue = None
    result: JsonValue = None
    input_tokens: JsonValue = None
    output_tokens: JsonValue = None
    usd: JsonValue = None
    cache_read_tokens: JsonValue = None
    model: str | None = None
    id: str | None = None
    data: JsonValue = None
    is_error: bool | None = None
    ok: JsonValue = None  # of a tool, like everything below
    code: JsonValue = None
    exit_code: JsonValue = None
    ms: JsonValue = None
    duration_ms: JsonValue = None
    target: JsonValue = None
    kind: JsonValue = None


MOST_TOOLS = 200  # that are written down of one call
TOOL_CHARS = 500
NAME_CHARS = 100
MOST = 10**15  # of tokens or dollars; larger numbers are errors
KNOWN = frozenset({"text", "tool", "usage", "session", "result"})
MAX_LINE_WARNINGS = 5  # of one call
_AMOUNTS = ("input_tokens", "output_tokens", "usd", "cache_read_tokens")
_PLAIN_NUMBER = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?")


def parse_line(raw: bytes) -> JsonLine | None:
    """A line of the protocol, or None when it is just text."""
    value = decode_object(raw)
    if value is None and b'"usage"' in raw:
        value = _decode_odd_numbers(raw)
    if not isinstance(value, dict):
        return None
    if value.get("type") == "usage":
        return _usage_line(value)
    try:
        line = msgspec.convert(value, JsonLine)
    except msgspec.ValidationError:
        return None
    return line if line.type in KNOWN else None


def _decode_odd_numbers(raw: bytes) -> JsonValue:
    """A line with numbers that are not JSON (NaN, Infinity) or too large for it. A usage line with
    such a number is reported as invalid, not taken for text.
    """
    try:
        value: JsonValue = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value.get("type") == "usage" else None


def _usage_line(value: dict[str, JsonValue]) -> JsonLine:
    """A usage line; only its numbers matter, so no other field can make it plain text."""
    model = value.get("model")
    return JsonLine(
        type="usage",
        model=model if isinstance(model, str) else None,
        input_tokens=value.get("input_tokens"),
        output_tokens=value.get("output_tokens"),
        usd=value.get("usd"),
        cache_read_tokens=value.get("cache_read_tokens"),
    )


def tool_of(line: JsonLine) -> ReportedTool:
    """The tool call that a line of the type `tool` reports."""
    return ReportedTool(
        name=line.name or "",
        arguments=line.args,
        result=line.result,
        ok=line.ok,
        code=line.code if line.code is not None else line.exit_code,
        ms=line.ms if line.ms is not None else line.duration_ms,
        target=line.target,
        kind=line.kind,
        text=line.text,
    )


@dataclass(slots=True)
class JsonLinesAnswer:
    """The output of an agent, collected line by line."""

    price: Callable[[str, Usage], Usage] = lambda model, usage: usage
    texts: list[str] = field(default_factory=list)
    usage: Usage | None = None
    session: str | None = None
    final: str | None = None
    data: JsonValue = None
    has_data: bool = False
    is_error: bool = False
    warnings: list[str] = field(default_factory=list)
    tools: list[ToolUse] = field(default_factory=list)
    _reported: float | None = None
    _priced: Usage = NO_USAGE
    _unknown: int = 0  # 1: a report was not an amount

    def add_line(self, raw: bytes) -> JsonLine | None:
        """Process one line; returns its protocol line, if it is one."""
        line = parse_line(raw)
        if line is None:
            if raw:
                self.texts.append(raw.decode(errors="replace") + "\n")
            return None
        match line.type:
            case "text":
                self.texts.append(line.text or "")
            case "tool":
                note_tool(self.tools, line.name or "", line.args)
            case "usage":
                self._count(line)
            case "session":
                self.session = line.id or self.session
            case "result":
                self.final = line.text if line.text is not None else self.final
                self.data, self.has_data = line.data, line.data is not None
                self.is_error = bool(line.is_error)
        return line

    def _count(self, line: JsonLine) -> None:
        amounts = {name: _amount(getattr(line, name)) for name in _AMOUNTS}
        wrong = [f"{name} {found}" for name, found in amounts.items() if isinstance(found, str)]
        if wrong:
            self._warn(f"ignored usage line: {', '.join(wrong)}")
            self._unknown = 1
            self.usage = replace(self.usage or Usage(), unpriced=1)
            return
        read, written, usd, cached = (float(found) for found in amounts.values())
        used = Usage(int(read), int(written), usd, cache_read_tokens=int(cached))
        if line.usd is not None:
            self._reported = round((self._reported or 0.0) + usd, 9)
        elif used.tokens:
            self._priced = self._priced + self.price(line.model or "", replace(used, unpriced=1))
        total = (self.usage or Usage()) + used
        usd = round((self._reported or 0.0) + self._priced.usd, 9)
        unknown = min(self._priced.unpriced + self._unknown, 1)
        self.usage = replace(total, usd=usd, unpriced=unknown)

    def _warn(self, text: str) -> None:
        """Note something about a line, each once."""
        if text not in self.warnings and len(self.warnings) < MAX_LINE_WARNINGS:
            self.warnings.append(text)

    @property
    def output(self) -> str:
        """The answer: the result's own text, else the whole text."""
        return self.final if self.final is not None else "".join(self.texts)


def note_tool(tools: list[ToolUse], name: str, arguments: JsonValue) -> None:
    """Write down that a tool was used and with what; secrets are masked and length is bounded."""
    if len(tools) >= MOST_TOOLS:
        return
    given = "" if arguments is None else msgspec.json.encode(mask(arguments)).decode()
    shown = given if len(given) <= TOOL_CHARS else f"{given[:TOOL_CHARS]}…"
    tools.append(ToolUse(name=name[:NAME_CHARS], input=shown))


def _amount(value: JsonValue) -> float | str:
    """A number that can be added up, also written as text; a missing one counts as 0. For anything
    else, an error message.
    """
    if value is None:
        return 0
    if isinstance(value, str) and _PLAIN_NUMBER.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "must be a number"
    if not math.isfinite(value):
        return "must be a finite number"
    if value < 0:
        return "must not be negative"
    return value if value <= MOST else "is too large"


MOST_UNREAD_BYTES = 16 * 1024 * 1024  # of answers that the program has not read
SUBMIT = "submit_result"
ACCEPTED = ToolReply(text="accepted: the result is taken, and the talk is over")
LATE = ToolReply(text="not taken: a result was accepted before", ok=False)


class Submission:
    """The structured result of a call: the first one that fits counts."""

    def __init__(self, problem: Callable[[str | None], str | None]) -> None:
        self._problem = problem
        self.accepted: str | None = None

    def check(self, arguments: JsonValue) -> ToolReply:
        """Check a result; an invalid one is explained, and may be submitted again."""
        if self.accepted is not None:
            return LATE
        text = msgspec.json.encode(arguments).decode()
        problem = self._problem(text)
        if problem is not None:
            return ToolReply(text=f"not taken: {problem}", ok=False)
        self.accepted = text
        return ACCEPTED


def run_tool_names(job: EffectJob) -> tuple[str, ...]:
    """The tools of the run that the agent of a call has."""
    call = job.call
    role = call.role if isinstance(call, AgentCall) else ""
    found: tuple[str, ...] = ()
    if job.talk is not None and role in ("worker", "reply"):
        found = tools_of("step")
    elif job.talk is not None and role == "coordinator":
        found = tools_of("coordinator")
    return (*found, SUBMIT) if job.prompt.schema is not None else found


class ToolUses:
    """The uses of one program, in order, and their answers."""

    def __init__(self, job: EffectJob, submission: Submission) -> None:
        self._job = job
        self._submission = submission
        self._tools = frozenset(run_tool_names(job))
        self._uses: asyncio.Queue[JsonLine | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[ToolReply] | None = None
        self._ended = False
        self._folder = tempfile.mkdtemp(prefix="loopwright-")
        self.pipe = str(Path(self._folder, "inbox"))
        try:
            os.mkfifo(self.pipe, 0o600)
            # Also for reading: so it opens at once, and keeps unread data.
            fd = os.open(self.pipe, os.O_RDWR | os.O_NONBLOCK)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._answers = PipeFeed(fd, b"", keep_open=True, most=MOST_UNREAD_BYTES)

    def variables(self) -> dict[str, str]:
        """The variables about it for the program."""
        return {
            "LOOPWRIGHT_INBOX": self.pipe,
            "LOOPWRIGHT_RUN_TOOLS": ",".join(run_tool_names(self._job)),
        }

    def handle(self, line: JsonLine) -> bool:
        """A line of the program; one that uses a tool of the run is answered. True if a result was
        accepted, which ends the call.
        """
        if line.type != "tool" or line.name not in self._tools or line.result is not None:
            return False
        if line.name == SUBMIT:
            reply = self._submission.check(line.args)
            self._send_reply(line, reply)
            return reply is ACCEPTED
        self._uses.put_nowait(line)
        if self._task is None:
            self._task = asyncio.ensure_future(self._answer())
        return False

    async def _answer(self) -> None:
        while (line := await self._uses.get()) is not None:
            if line.name == "read_inbox":
                await self._read(line)
            else:
                self._send_reply(line, await use_run_tool(self._job, line.name or "", line.args))

    async def _read(self, line: JsonLine) -> None:
        """A reader that has disconnected receives nothing: its messages wait for another one."""
        if self._ended:
            return
        self._reading = asyncio.ensure_future(use_run_tool(self._job, "read_inbox", line.args))
        await asyncio.wait([self._reading])
        if not self._reading.cancelled():
            self._send_reply(line, self._reading.result())
        self._reading = None

    def _send_reply(self, line: JsonLine, reply: ToolReply) -> None:
        answer: dict[str, JsonValue] = {
            "type": "tool_result",
            "name": line.name,
            "result": reply.text,
        }
        if line.id is not None:
            answer["id"] = line.id
        if not reply.ok:
            answer["is_error"] = True
        if reply.messages:
            answer["messages"] = [
                {"from": one.sender, "text": one.text, "kind": one.kind} for one in reply.messages
            ]
        self._answers.write(msgspec.json.encode(answer) + b"\n")

    async def finish(self) -> None:
        """The program has ended: its pending requests are still processed, but nothing reads the
        answers.
        """
        self._ended = True
        if self._reading is not None:
            self._reading.cancel()
        if self._task is not None:
            self._uses.put_nowait(None)
            await self._task

    def close(self) -> None:
        """Remove everything that was created."""
        for task in (self._reading, self._task):
            if task is not None:
                task.cancel()
        self._answers.close()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def open_tool_uses(job: EffectJob, submission: Submission) -> Iterator[ToolUses | None]:
    """The talk of a program that uses JSON lines, if the run has tools."""
    if not run_tool_names(job):
        yield None
        return
    talk = ToolUses(job, submission)
    try:
        yield talk
    finally:
        talk.close()


async def use_run_tool(job: EffectJob, name: str, arguments: JsonValue) -> ToolReply:
    """Use a tool of the run."""
    if job.talk is None:
        return ToolReply(text=f"there is no tool {name!r} here", ok=False)
    return await job.talk.use(name, arguments)
