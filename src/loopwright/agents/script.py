"""The scripted agent: replies from a file. For dry runs, demos and tests, without any key."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from loopwright.agents.files import FileProblem, read_regular
from loopwright.agents.json_lines import (
    SUBMIT,
    ReportedTool,
    Submission,
    entry_of,
    live_words,
    note_tool,
    run_tool_names,
    use_run_tool,
)
from loopwright.kernel.event_parts import Failure, ToolUse
from loopwright.kernel.events import Usage
from loopwright.model.record import JsonValue
from loopwright.ports import Answer, Bus, Delta, EffectFailure, EffectJob, EffectSuccess
from loopwright.syntax.document import Diagnostic
from loopwright.syntax.readers import read
from loopwright.syntax.validation import validate

MAX_SCRIPT_BYTES = 16 * 1024 * 1024

MOST = 10**15
Tokens = Annotated[int, Field(ge=0, le=MOST)]


class _Written(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ReplyFilter(_Written):
    """Which call a reply is for; an absent field fits every call."""

    agent: str | None = None
    step: str | None = None
    iteration: int | None = Field(default=None, ge=1)


class ToolLine(_Written):
    """A tool that the scripted agent uses: one of the run, or one that it only claims to have."""

    name: str
    args: JsonValue = None
    result: JsonValue = None
    delay: float = Field(default=0.0, ge=0)
    ok: bool | None = None
    code: int | None = Field(default=None, ge=-MOST, le=MOST)
    ms: int | None = Field(default=None, ge=0, le=MOST)


class UsageLine(_Written):
    """The usage that the script states for the call."""

    input_tokens: Tokens = 0
    output_tokens: Tokens = 0
    usd: float = Field(default=0.0, ge=0, le=MOST)


class FailLine(_Written):
    """A failure with its kind, so that retries can be tried out."""

    type: str = "agent"
    detail: str = "the script says so"


class ScriptedReply(_Written):
    """One answer."""

    when: ReplyFilter = ReplyFilter()
    text: str = ""
    data: JsonValue = None
    tools: list[ToolLine] = []
    usage: UsageLine | None = None
    delay: float = Field(default=0.0, ge=0)
    fail: str | FailLine | None = None
    session: str | None = None


class ScriptFile(_Written):
    """The whole file."""

    replies: list[ScriptedReply]


class BadScript(Exception):
    """The file cannot be used; the message names file, line and fix."""


def load_script(file: str) -> ScriptFile:
    """Read a script or report exactly what is wrong with it."""
    data = read_regular(Path(file), MAX_SCRIPT_BYTES)
    if isinstance(data, FileProblem):
        raise BadScript(f"{file}: {data.message}")
    document, found = read(data, file=file, limit=MAX_SCRIPT_BYTES)
    script: ScriptFile | None = None
    if document is not None:
        script, more = validate(ScriptFile, document)
        found = [*found, *more]
    if script is None:
        raise BadScript(_problems_text(found) or f"{file}: no replies")
    return script


def _problems_text(found: list[Diagnostic]) -> str:
    return "; ".join(diagnostic.render() for diagnostic in found if diagnostic.severity == "error")


class ScriptedAgent:
    """Selects replies: for each call the first unused one that matches.

    Used replies are recorded in the run's own log, so a resumed run continues where it stopped.
    """

    def __init__(
        self,
        bus: Bus,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        schema_problem: Callable[[EffectJob, str | None], str | None] = lambda job, text: None,
    ) -> None:
        self._bus = bus
        self._sleep = sleep
        self._schema_problem = schema_problem
        self._files: dict[str, tuple[int, ScriptFile]] = {}
        self._handed_out: dict[tuple[str, str], dict[str, int]] = {}

    def perform(self, job: EffectJob, file: str) -> Answer | Awaitable[Answer]:
        try:
            script = self._script(file)
        except BadScript as error:
            return EffectFailure(error=Failure(type="script", detail=str(error)))
        number = self._choose(job, file, script)
        if number is None:
            return EffectFailure(error=Failure(type="script", detail=_ran_out(job, file, script)))
        reply = script.replies[number]
        used = frozenset(run_tool_names(job))
        if reply.delay or any(tool.delay or tool.name in used for tool in reply.tools):
            return self._later(job, reply, number)
        for tool in reply.tools:
            self._note(job, tool)
        return self._answered(job, reply, number)

    def _script(self, file: str) -> ScriptFile:
        try:
            stamp = Path(file).stat().st_mtime_ns
        except OSError as error:
            raise BadScript(f"{file}: {error.strerror or error}") from error
        known = self._files.get(file)
        if known is None or known[0] != stamp:
            known = (stamp, load_script(file))
            self._files[file] = known
        return known[1]

    def _choose(self, job: EffectJob, file: str, script: ScriptFile) -> int | None:
        handed_out = self._handed_out.setdefault((job.run, file), {})
        for effect in [e for e, number in handed_out.items() if number in job.used]:
            del handed_out[effect]
        if job.effect in handed_out:
            return handed_out[job.effect]
        others = set(handed_out.values())
        for number, reply in enumerate(script.replies):
            if number not in job.used and number not in others and _fits(reply.when, job):
                handed_out[job.effect] = number
                return number
        return None

    async def _later(self, job: EffectJob, reply: ScriptedReply, number: int) -> Answer:
        await self._sleep(reply.delay)
        submission = Submission(lambda text: self._schema_problem(job, text))
        tools = frozenset(run_tool_names(job))
        for tool in reply.tools:
            await self._sleep(tool.delay)
            self._note(job, tool)
            if tool.name not in tools or tool.result is not None:
                continue
            if tool.name == SUBMIT:
                submission.check(tool.args)
            else:
                await use_run_tool(job, tool.name, tool.args)
        return self._answered(job, reply, number, submission.accepted)

    def _note(self, job: EffectJob, tool: ToolLine) -> None:
        """Show and record a tool at the moment when it is used."""
        entry = entry_of(_reported(tool))
        words = live_words(entry)
        self._publish(job, words.kind, words.text)
        job.activity.record(entry)

    def _answered(
        self, job: EffectJob, reply: ScriptedReply, number: int, submitted: str | None = None
    ) -> Answer:
        noted: list[ToolUse] = []
        for tool in reply.tools:
            note_tool(noted, tool.name, tool.args)
        if reply.text:
            self._publish(job, "text", reply.text)
        usage = Usage(**reply.usage.model_dump()) if reply.usage else None
        tools = tuple(noted)
        if reply.fail is not None:
            fail = reply.fail if isinstance(reply.fail, FailLine) else FailLine(detail=reply.fail)
            error = Failure(type=fail.type, detail=fail.detail)
            return EffectFailure(
                error=error, output=reply.text, usage=usage, mark=number, tools=tools
            )
        written = None if reply.data is None else msgspec.json.encode(reply.data).decode()
        return EffectSuccess(
            output=reply.text,
            result=submitted or written,
            usage=usage,
            mark=number,
            session=reply.session,
            tools=tools,
        )

    def _publish(self, job: EffectJob, kind: Literal["text", "tool", "note"], text: str) -> None:
        self._bus.publish(Delta(run=job.run, effect=job.effect, kind=kind, text=text))


def _reported(tool: ToolLine) -> ReportedTool:
    return ReportedTool(
        name=tool.name,
        arguments=tool.args,
        result=tool.result,
        ok=tool.ok,
        code=tool.code,
        ms=tool.ms,
    )


def _fits(when: ReplyFilter, job: EffectJob) -> bool:
    agent = job.call.agent if hasattr(job.call, "agent") else ""
    step = job.call.step if hasattr(job.call, "step") else ""
    return (
        when.agent in (None, agent)
        and when.step in (None, job.step, job.path, step or job.path)
        and when.iteration in (None, job.iteration)
    )


def _ran_out(job: EffectJob, file: str, script: ScriptFile) -> str:
    used = len(job.used)
    return (
        f"{file} has no unused reply for {job.path} (iteration {job.iteration}); "
        f"{used} of {len(script.replies)} replies are used: add one"
    )
