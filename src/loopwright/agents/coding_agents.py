"""Coding CLIs as agents: one supervised process for each call, its events read as they arrive.

Messages for a program that is at work are sent as further lines on its standard input. A
message is read from the inbox of the call, so its delivery is recorded before it is sent. A
call that fails or is repeated after a crash has the delivered messages in its prompt.
"""

import asyncio
import dataclasses
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from pathlib import Path
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from loopwright.agents.calls import (
    UNKNOWN_COST,
    PriceUsage,
    as_reported,
    call_budget,
    codex_model,
    end_notes,
    failure_of,
    is_outer_limit,
    job_variables,
    live_failure,
    passed_on_variables,
    record_stderr,
    resets_at,
    seconds,
    text_file,
)
from loopwright.agents.clis.catalogue import CLIS, Cli, own_places
from loopwright.agents.clis.claude import input_line
from loopwright.agents.clis.command_line import (
    CLAUDE_SETTINGS,
    OWN_SANDBOX,
    CommandLine,
    CommandLineRequest,
    StageServer,
    command_line,
    command_policy,
    is_read_only,
    named_model,
    needs_system_file,
    own_variables,
)
from loopwright.agents.clis.event_stream import EventStream, LineSplitter, ProcessExit, find_failure
from loopwright.agents.clis.loose_json import minus
from loopwright.agents.clis.transcript import LiveEntry, Transcript, status_in, without_log
from loopwright.agents.files import FileProblem, read_regular
from loopwright.agents.json_lines import run_tool_names, use_run_tool
from loopwright.agents.live_activity import (
    ActivityReport,
    MonotonicMs,
    local_time,
    monotonic_ms,
)
from loopwright.agents.processes.process import ProgramEnd, ProgramStart, RunningProgram
from loopwright.agents.program_files import agent_environment
from loopwright.agents.sandbox.bubblewrap import Confinement, Sandbox, confinement_of, works
from loopwright.agents.specs import Spec, parse_spec, unfit_agent
from loopwright.kernel.event_parts import Failure
from loopwright.kernel.events import Usage
from loopwright.model.plan import Agent
from loopwright.model.sandbox import SandboxLevel, strictest
from loopwright.ports import Answer, Bus, EffectFailure, EffectJob, EffectSuccess
from loopwright.prompts.sections import render_sender

WAIT_S = 600

Encode = Callable[[str, str], str]
"""A message and its id as the program reads them: one line."""


class TurnMessages:
    """The messages of one call. Each has an id that the program repeats when it has read it."""

    def __init__(self, job: EffectJob, encode: Encode) -> None:
        self._job = job
        self._encode = encode
        self._sent: dict[str, bytes] = {}
        self._running: RunningProgram | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_ending = False

    def begin(self, running: RunningProgram) -> None:
        """The program has started; what an earlier attempt of the call was sent is sent again."""
        self._running, self._is_ending = running, False
        for line in self._sent.values():
            running.write(line)
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while not self._is_ending:
            reply = await use_run_tool(self._job, "read_inbox", {"wait": WAIT_S})
            if not reply.ok:
                return
            for one in reply.messages:
                name, text = (
                    str(uuid4()),
                    render_sender(one.sender, one.text, told=one.kind == "tell"),
                )
                self._sent[name] = f"{self._encode(text, name)}\n".encode()
                if self._running is not None:
                    self._running.write(self._sent[name])

    def end_turn(self, read: AbstractSet[str], finish: Callable[[], None]) -> None:
        """The program has ended its turn. A message whose delivery is being recorded is still sent,
        then no more. `finish` is called when the program has read everything; a message that it has
        not read starts another turn.
        """
        if self._reading is None:
            self._end_input(read, finish)
        elif not self._is_ending:
            self._is_ending = True
            self._reading.add_done_callback(lambda task: self._ended(task, read, finish))
            if self._job.talk is not None:
                self._job.talk.end_waiting()

    def _ended(
        self, task: asyncio.Task[None], read: AbstractSet[str], finish: Callable[[], None]
    ) -> None:
        if task is self._reading:  # else the call has been closed
            self._reading = None
            self._end_input(read, finish)

    def _end_input(self, read: AbstractSet[str], finish: Callable[[], None]) -> None:
        if self._running is not None:
            self._running.end_input()
        if self._sent.keys() <= read:
            finish()

    def close(self) -> None:
        """Read no more messages: they wait for the next call."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None


DEFAULT_IDLE_MS = 600_000
"""Longer than for other programs: a CLI is silent while a tool of its own runs."""
GOODBYE_S = 10.0
"""How long a CLI may take to exit after the end of its turn."""

STATUS_BYTES = 16 * 1024
"""The longest line on stderr that is searched for a status."""

_GEMINI_FOLDERS = ("tmp", "history")  # sessions and checkpoints
_GEMINI_SETTINGS = "settings.json"
_GEMINI_SETTINGS_BYTES = 1_000_000
_JSON_COMMENT = re.compile(rb'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)

TAKES_MESSAGES: Mapping[str, Encode] = {"claude": input_line}
"""Programs that read further messages while they work, and how a message is written."""

Fitting = Callable[[EffectJob, Answer], Answer]
Stage = Callable[[EffectJob, Agent], AbstractAsyncContextManager[StageServer | None]]
"""Makes the server of a call, which is gone when the call has ended."""


class CodingAgents:
    """Performs calls of the CLIs in the catalogue."""

    def __init__(
        self,
        bus: Bus,
        fitting: Fitting,
        base: Mapping[str, str],
        sandbox: Sandbox | None = None,
        monotonic: MonotonicMs = monotonic_ms,
        price: PriceUsage = as_reported,
    ) -> None:
        self._price = price
        self._sandbox = sandbox or Sandbox()
        self._bus = bus
        self._fitting = fitting
        self._base = base
        self._now = time.time
        self._monotonic = monotonic
        self.stage: Stage = lambda job, agent: nullcontext()

    async def perform(self, job: EffectJob, agent: Agent, spec: Spec) -> Answer:
        """One call. If its session does not exist any more, it starts a new one, and the answer
        says so.
        """
        problem = unfit_agent(spec, agent)
        if problem is not None:
            return EffectFailure(error=Failure(type="bad_input", detail=problem))
        messages = _turn_messages(job, spec)
        answer = await self._once(job, agent, spec, messages)
        gone = isinstance(answer, EffectFailure) and answer.error.type == "session_gone"
        if not gone or job.prompt.session is None:
            return answer
        report = ActivityReport(self._bus, job, agent, spec.kind)
        report.show(LiveEntry("note", f"session {job.prompt.session} is gone, a new one begins"))
        anew = replace(job, prompt=replace(job.prompt, session=None, session_used=Usage()))
        again = await self._once(anew, agent, spec, messages)
        if isinstance(again, EffectFailure):
            return again
        reply = f"session {job.prompt.session} was gone and a new one was begun"
        return replace(again, note="; ".join(part for part in (reply, again.note) if part))

    async def _once(
        self, job: EffectJob, agent: Agent, spec: Spec, messages: TurnMessages | None
    ) -> Answer:
        async with AsyncExitStack() as files:
            if messages is not None:
                files.callback(messages.close)
            server = await files.enter_async_context(self.stage(job, agent))
            confinement = self._confinement(job, agent, spec.kind)
            has_own = has_own_sandbox(spec.kind, self._base.get("HOME", ""), job.workspace)
            wanted = CommandLineRequest(
                prompt=job.prompt.text,
                agent=replace(agent, max_usd=call_budget(job, agent)),
                extra=spec.argv,
                session=job.prompt.session,
                schema=job.prompt.schema,
                system_file=files.enter_context(text_file(agent.system))
                if needs_system_file(agent)
                else None,
                session_usd=job.prompt.session_used.usd,
                server=server,
                checks=job.confinement.checks,
                as_root=os.geteuid() == 0,
                own_sandbox=not _replaces_own_sandbox(confinement.level, has_own=has_own),
                takes_messages=messages is not None,
            )
            rules = command_policy(spec.kind, wanted)
            if rules:
                file = files.enter_context(text_file(rules, suffix=".toml"))
                wanted = dataclasses.replace(wanted, policy_file=file)
            line = command_line(spec.kind, wanted)
            report = ActivityReport(self._bus, job, agent, spec.kind)
            talk = _Talk(
                EventStream(spec.kind),
                report,
                lambda transcript: live_failure(job, agent, self._live(job, agent, transcript)),
                self._monotonic,
                messages,
            )
            env = self._environment(CLIS[spec.kind], job, agent, line)
            confinement = _with_files(confinement, spec.kind, env, wanted)
            if spec.kind == "gemini" and server is not None:
                hidden = self._sandbox.hidden_paths(job.workspace)
                folder = make_gemini_settings(env, server.config, hidden)
                env["GEMINI_CLI_HOME"] = folder
                own = (*confinement.configuration, folder)
                confinement = dataclasses.replace(confinement, configuration=own)
            end = await self._sandbox.run(
                ProgramStart(
                    argv=line.argv,
                    cwd=job.workspace,
                    env=env,
                    stdin=line.stdin.encode(errors="replace"),
                    wall_s=seconds(job.limits.wall_ms),
                    idle_s=seconds(job.limits.idle_ms or DEFAULT_IDLE_MS),
                    stderr_counts=False,  # programs report their retries on it
                    stdout_cap=64 * 1024,  # it is read without checks
                ),
                confinement,
                on_stdout=talk.read_stdout,
                on_stderr=talk.read_stderr,
                on_running=talk.begin,
            )
        talk.close()
        return self._judged(job, CLIS[spec.kind], talk, end, line.notes)

    def _confinement(self, job: EffectJob, agent: Agent, name: str) -> Confinement:
        """How the program is confined. One that starts without its own sandbox is confined by ours
        at least as far as its own would have done.
        """
        found = confinement_of(agent, job.confinement.sandbox, default=self._sandbox.policy.default)
        has_own = has_own_sandbox(name, self._base.get("HOME", ""), job.workspace)
        level = level_of_cli(name, agent, found.level, has_own=has_own)
        return dataclasses.replace(found, level=level)

    def _environment(
        self, cli: Cli, job: EffectJob, agent: Agent, line: CommandLine
    ) -> dict[str, str]:
        named = {**passed_on_variables(self._base, agent), **agent.env}
        own = own_variables(cli.name, self._base)
        if any(name in named for name in cli.credentials):  # the definition has chosen
            own = {name: own[name] for name in own if name not in cli.credentials}
        return agent_environment(self._base, {**own, **line.env, **named}, job_variables(job))

    def _judged(
        self, job: EffectJob, cli: Cli, talk: "_Talk", end: ProgramEnd, notes: tuple[str, ...]
    ) -> Answer:
        transcript = talk.transcript
        usage = _usage(transcript, job)
        if usage is None and (
            transcript.spent.turns or transcript.counts.tools or transcript.spoken.parts
        ):
            usage = self._live(job, job.agent or Agent(), transcript)
        model = transcript.model or self._named_model(cli, job, transcript.session)
        failure = self._failure(job, cli, talk, end)
        if failure is not None:
            return EffectFailure(
                error=failure,
                output=transcript.output,
                usage=usage,
                session=transcript.session,
                code=end.code,
                model=model,
            )
        result = None if transcript.data is None else msgspec.json.encode(transcript.data).decode()
        reply = [
            *notes,
            *_notes(transcript),
            *(note for note in end_notes(end) if "output" not in note),
        ]
        record_stderr(job, without_log(end.stderr_tail.decode(errors="replace")))
        done = EffectSuccess(
            output=transcript.output,
            result=result,
            usage=usage,
            session=transcript.session,
            code=None if end.finished else end.code,
            note="; ".join(reply),
            model=model,
        )
        return self._fitting(job, done)

    def _live(self, job: EffectJob, agent: Agent, transcript: Transcript) -> Usage:
        """The usage of a running call so far, from its events."""
        if transcript.spent.turns:
            turns = (
                self._price(agent, model, used) for model, used in transcript.spent.turns.values()
            )
            return sum(turns, Usage())
        used = _usage(transcript, job) or Usage()
        return self._price(agent, transcript.model, used) if used != Usage() else UNKNOWN_COST

    def _named_model(self, cli: Cli, job: EffectJob, session: str | None) -> str:
        """The model that the agent was started with, for programs that do not report it."""
        agent = job.agent or Agent()
        spec = parse_spec(agent.spec or "")
        extra = spec.argv if isinstance(spec, Spec) else ()
        named = agent.model or named_model(extra)
        if named or cli.name != "codex":
            return named
        env = {**self._base, **passed_on_variables(self._base, agent), **agent.env}
        return codex_model(env, session)

    def _failure(self, job: EffectJob, cli: Cli, talk: "_Talk", end: ProgramEnd) -> Failure | None:
        if talk.over_budget is not None:
            return talk.over_budget
        if end.how == "not_started":
            failure = failure_of(end)
            assert failure is not None
            missing = end.problem == "program-not-found"
            detail = f"{failure.detail}; {cli.install}" if missing else failure.detail
            return msgspec.structs.replace(failure, detail=detail)
        if end.how in ("idle_timeout", "wall_timeout") and talk.transcript.ending.ended != "well":
            return failure_of(end, talk.transcript.status_line)
        errors_text = without_log(end.stderr_tail.decode(errors="replace"))
        ours = end.finished or end.how in ("idle_timeout", "wall_timeout")
        how = ProcessExit(code=end.code, signal=end.signal, stderr=errors_text, ours=ours)
        refused = find_failure(cli, talk.transcript, how)
        if refused is None:
            return None
        if refused.failure.type == "budget_limit":
            return replace(refused.failure, outer=is_outer_limit(job, job.agent or Agent()))
        until = resets_at(refused.reset, self._now())
        return msgspec.structs.replace(refused.failure, resets_at=until)


def _turn_messages(job: EffectJob, spec: Spec) -> TurnMessages | None:
    """The messages of a call whose program reads them while it works; None for other programs."""
    encode = TAKES_MESSAGES.get(spec.kind)
    if encode is None or "read_inbox" not in run_tool_names(job) or "--input-format" in spec.argv:
        return None
    return TurnMessages(job, encode)


def has_own_sandbox(name: str, *folders: str) -> bool:
    """Whether a program runs its commands in its own sandbox. That of Claude Code is off unless its
    settings, in the home directory or in the workspace, enable it.
    """
    if name != "claude":
        return name in OWN_SANDBOX
    files = [Path(folder, file) for folder in folders if folder for file in CLAUDE_SETTINGS]
    return any(_switches_sandbox_on(file) for file in files)


def _switches_sandbox_on(settings: Path) -> bool:
    try:
        found = msgspec.json.decode(settings.read_bytes())
    except (OSError, ValueError):
        return False
    sandbox = found.get("sandbox") if isinstance(found, dict) else None
    return isinstance(sandbox, dict) and sandbox.get("enabled") is True


def level_of_cli(
    name: str, agent: Agent, level: SandboxLevel, *, has_own: bool | None = None
) -> SandboxLevel:
    """The level that a coding CLI is started at, where a level was decided for its agent."""
    has_own = name in OWN_SANDBOX if has_own is None else has_own
    if not _replaces_own_sandbox(level, has_own=has_own):
        return level
    is_reading = name in OWN_SANDBOX and is_read_only(name, agent)
    return strictest(level, "readonly" if is_reading else "workspace")


def _replaces_own_sandbox(level: SandboxLevel, *, has_own: bool) -> bool:
    """Whether the sandbox of a program is replaced by ours: as root it cannot start a sandbox
    inside another one.
    """
    return has_own and os.geteuid() == 0 and level != "off" and works() is None


def _with_files(
    confinement: Confinement, name: str, env: Mapping[str, str], wanted: CommandLineRequest
) -> Confinement:
    files = [file for file in (wanted.system_file, wanted.policy_file) if file is not None]
    shown = (*files, *wanted.server.shows) if wanted.server is not None else tuple(files)
    return dataclasses.replace(confinement, configuration=own_places(name, env), shown=shown)


def make_gemini_settings(env: Mapping[str, str], config: str, hidden: Sequence[str]) -> str:
    """A folder for GEMINI_CLI_HOME beside a settings file with a server: Gemini CLI reads a file
    for the whole system only if root owns it and every folder around it. The folder has the
    settings of the user with that server added, and links to everything else of the user.
    """
    made = Path(config).parent / "home"
    inner = made / ".gemini"
    inner.mkdir(parents=True, mode=0o700)
    own = Path(
        os.path.realpath(Path(env.get("GEMINI_CLI_HOME") or env.get("HOME", "/"), ".gemini"))
    )
    settings: object = {}
    if not any(own.is_relative_to(os.path.realpath(one)) for one in hidden):
        for name in _GEMINI_FOLDERS:  # files created there outlive the call
            with suppress(OSError):
                (own / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(OSError):
            for one in own.iterdir():
                if one.name != _GEMINI_SETTINGS:
                    (inner / one.name).symlink_to(one)
        settings = _read_commented_json(own / _GEMINI_SETTINGS)
    server = msgspec.json.decode(Path(config).read_bytes())["mcpServers"]
    known = settings if isinstance(settings, dict) else {}
    others = known.get("mcpServers")
    servers = {**(others if isinstance(others, dict) else {}), **server}
    merged = {**known, "mcpServers": servers}
    (inner / _GEMINI_SETTINGS).write_bytes(msgspec.json.encode(merged))
    return str(made)


def _read_commented_json(file: Path) -> object:
    """The value in a JSON file that may have comments; {} if it cannot be read."""
    content = read_regular(file, _GEMINI_SETTINGS_BYTES)
    if isinstance(content, FileProblem):
        return {}
    plain = _JSON_COMMENT.sub(lambda found: found[1] or b"", content)
    try:
        return msgspec.json.decode(plain)
    except ValueError:
        return {}


class _Talk:
    """One running call: its events, its reports, and its end."""

    def __init__(
        self,
        stream: EventStream,
        report: ActivityReport,
        over: Callable[[Transcript], Failure | None],
        monotonic: MonotonicMs,
        messages: TurnMessages | None,
    ) -> None:
        self._messages = messages
        self._stream = stream
        self._stream.transcript.time_text = local_time
        self._report = report
        self._over = over
        self._monotonic = monotonic
        self._running: RunningProgram | None = None
        self._errors = LineSplitter(STATUS_BYTES)
        self._ended = False
        self.over_budget: Failure | None = None

    @property
    def transcript(self) -> Transcript:
        return self._stream.transcript

    def begin(self, running: RunningProgram) -> None:
        self._running = running
        if self._messages is not None:
            self._messages.begin(running)
        else:
            running.end_input()
        self._over(self.transcript)

    def read_stdout(self, chunk: bytes) -> None:
        self._report.keep_stream(chunk)
        self._show(self._stream.feed(chunk, self._monotonic()))
        if not self.transcript.progress and self._running is not None:
            self._running.no_progress()
        if self.transcript.ending.ended:
            if self._messages is None:
                self._finish(GOODBYE_S)
            else:
                self._messages.end_turn(self.transcript.read_messages, self._finish_turn)
            return
        self.over_budget = self.over_budget or self._over(self.transcript)
        if self.over_budget is not None:
            self._finish(0.0)

    def read_stderr(self, chunk: bytes) -> None:
        """A line about a retry or a limit is a status; other output on stderr is not."""
        for line in self._errors.feed(chunk):
            self._show(self.transcript.note_status(status_in(line.decode(errors="replace"))))

    def close(self) -> None:
        self._show(self._stream.close(self._monotonic()))

    def _show(self, entries: list[LiveEntry]) -> None:
        self._report.record(
            self.transcript
        )  # first, as a newer status replaces a denial on the screen
        for one in entries:
            self._report.show(one)

    def _finish_turn(self) -> None:
        """There are no more messages; unless one that was read in the meantime has started another
        turn, end.
        """
        if self.transcript.ending.ended:
            self._finish(GOODBYE_S)

    def _finish(self, within_s: float) -> None:
        """The turn is over; a background task may not keep the program alive."""
        if not self._ended and self._running is not None:
            self._ended = True
            self._running.finish(within_s)


def _usage(transcript: Transcript, job: EffectJob) -> Usage | None:
    """The usage of this call; for a program that reports the sum of its session, the difference."""
    if transcript.spent.usage is not None or transcript.spent.total is None:
        return transcript.spent.usage
    goes_on = job.prompt.session is not None and transcript.session == job.prompt.session
    return (
        minus(transcript.spent.total, job.prompt.session_used)
        if goes_on
        else transcript.spent.total
    )


def _notes(transcript: Transcript) -> list[str]:
    notes: list[str] = []
    if transcript.denied:
        names = ", ".join(dict.fromkeys(transcript.denied))
        notes.append(f"permission was denied: {names}; `logs --tools` shows what allows it")
    if transcript.counts.cut:
        notes.append(f"{transcript.counts.cut} lines of events were too long and left out")
    return notes
