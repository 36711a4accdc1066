"""The performer of one machine: runs agents that are programs or scripts, and check commands.

The live text of every kind of agent passes through `FilteredBus`: signals that are meant for the
loop alone are removed from it, even if their tags arrive in several pieces.
"""

import os
import re
from codecs import getincrementaldecoder
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from functools import cached_property, partial
from typing import TYPE_CHECKING, assert_never

import msgspec
from msgspec.structs import replace

from loopwright.agents.acp_agents import AcpAgents
from loopwright.agents.calls import (
    TAIL_CHARS,
    UNKNOWN_COST,
    PriceUsage,
    as_failure,
    as_reported,
    as_variables,
    end_notes,
    failure_of,
    given_secrets,
    job_variables,
    limited,
    live_failure,
    open_value_files,
    passed_on_variables,
    python_variables,
    reading_files,
    record_stderr,
    record_warnings,
    seconds,
    with_key_hint,
    with_price,
    with_variables,
)
from loopwright.agents.clis.catalogue import CLIS, configuration_of
from loopwright.agents.coding_agents import CodingAgents, Stage
from loopwright.agents.files import with_files
from loopwright.agents.json_lines import JsonLinesAnswer, Submission, open_tool_uses
from loopwright.agents.live_activity import LiveCost, LiveLines
from loopwright.agents.pattern_search import SEARCHES, PatternSearch
from loopwright.agents.processes.process import (
    OnRunning,
    OnStdout,
    ProgramEnd,
    ProgramStart,
    RunningProgram,
)
from loopwright.agents.program_files import agent_environment
from loopwright.agents.sandbox.bubblewrap import Confinement, Sandbox, confinement_of
from loopwright.agents.snapshots import take_snapshot
from loopwright.agents.specs import BadSpec, Spec, parse_spec, unfit_agent
from loopwright.kernel.checks import last_json_object
from loopwright.kernel.event_parts import (
    AgentCall,
    CommandCall,
    Failure,
    LookupCall,
    MatchCall,
    ModelCall,
    SleepCall,
    SnapshotCall,
    ToolCall,
    ToolUse,
)
from loopwright.kernel.events import NO_USAGE, Usage
from loopwright.kernel.signal import hidden_tags
from loopwright.model.plan import Agent
from loopwright.model.record import JsonValue
from loopwright.model.sandbox import SandboxLevel
from loopwright.ports import (
    Answer,
    Ask,
    Bus,
    Delta,
    EffectFailure,
    EffectJob,
    EffectSuccess,
    Performer,
    Workspaces,
)

if TYPE_CHECKING:
    from loopwright.agents.script import ScriptedAgent

MADE_FILES = ("LOOPWRIGHT_SYSTEM_FILE", "LOOPWRIGHT_RESULT_SCHEMA", "LOOPWRIGHT_INBOX")
"""Variables that name files which were made for a call."""
CHECK_OUTPUT_BYTES = 1 << 20
DEFAULT_IDLE_MS = 300_000
_MOST_AGENTS = 1_000  # of runs, whose specs are remembered

MakeModels = Callable[[Bus], Performer]
"""Creates the performer of chat models, which publishes through this bus."""

SchemaProblem = Callable[[dict[str, JsonValue], JsonValue], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedAgent:
    """What is the same in all calls of an agent in a run."""

    agent: Agent
    sandbox: SandboxLevel | None  # the level of the run
    spec: Spec | BadSpec
    # of a program:
    problem: str | None = None  # settings that it cannot enforce
    confinement: Confinement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramAnswer:
    """What a program answered, before it is known whether it succeeded."""

    text: str
    usage: Usage | None
    session: str | None = None
    tools: tuple[ToolUse, ...] = ()
    warnings: tuple[str, ...] = ()
    is_error: bool = False
    data: str | None = None  # the structured result, as JSON
    submitted: str | None = None  # the same with a tool of the run; it was accepted
    over: Failure | None = None  # a limit of costs that the call exceeded


class LiveProgramText:
    """Forwards the output of one program as text."""

    def __init__(self, bus: Bus, job: EffectJob) -> None:
        self._bus = bus
        self._job = job
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")

    def __call__(self, chunk: bytes) -> None:
        self._job.activity.keep_stream(chunk)
        text = self._decoder.decode(chunk)
        if text:
            self._bus.publish(_text_delta(self._job.run, self._job.effect, text))


class LocalPerformer:
    """Performs agent calls and commands as supervised processes in the workspace."""

    def __init__(
        self,
        bus: Bus,
        schema_problem: SchemaProblem,
        base: Mapping[str, str] | None = None,
        models: MakeModels | None = None,
        price: PriceUsage = as_reported,
        sandbox: Sandbox | None = None,
    ) -> None:
        self._price = price
        self._sandbox = sandbox or Sandbox()
        self._bus = FilteredBus(bus)
        self._make_models = models
        self._models: Performer | None = None  # made for the first call of a chat model
        self._schema_problem = schema_problem
        self._base = os.environ if base is None else base
        self._scripted: ScriptedAgent | None = None
        self._agents: dict[tuple[str, str], PreparedAgent] = {}
        # Where agents request decisions of a person; without it they are denied.
        self.ask: Ask | None = None
        # Creates the tracker servers of coding agents.
        self.stage: Stage = lambda job, agent: nullcontext()
        # Finds out which tracker items agents have created.
        self.look: Callable[[EffectJob], Answer] = lambda job: EffectSuccess(code=1)
        # The values of the variables that a run received with `--env`.
        self.variables: Callable[[str], Mapping[str, str]] = lambda run: {}
        self.workspaces: Workspaces | None = None  # where snapshots are stored

    @cached_property
    def _coding(self) -> CodingAgents:
        found = CodingAgents(self._bus, self._fitting, self._base, self._sandbox, price=self._price)
        found.stage = self.stage
        return found

    @cached_property
    def _acp(self) -> AcpAgents:
        found = AcpAgents(self._bus, self._fitting, self._base, self._sandbox)
        found.ask, found.stage = self.ask, self.stage
        return found

    def perform(self, job: EffectJob) -> Answer | Awaitable[Answer]:
        return self._bus.around(job, self._perform)

    def _perform(self, job: EffectJob) -> Answer | Awaitable[Answer]:
        self._sandbox.note_workspace(job.run, job.workspace)
        if job.origin.pass_env:
            job = with_variables(job, self._base, self.variables(job.run))
        agent = job.agent or Agent()
        # Not the job itself: that refers to its activity.
        job.activity.hide(
            partial(given_secrets, self._base, agent, job.confinement.env, job.origin.pass_env)
        )
        match job.call:
            case AgentCall() as call:
                answer = self._agent(job, agent, self._prepare(job, call.agent, agent))
                return with_key_hint(answer, job, self._base)
            case CommandCall() as call:
                return self._command(job, call)
            case ModelCall() | ToolCall():
                return self._call_model(with_files(job))
            case LookupCall():
                return self.look(job)
            case MatchCall() as call:
                return _search(job, call)
            case SnapshotCall() as call:
                return take_snapshot(self.workspaces, job, call)
            case SleepCall() as call:
                detail = f"this driver cannot perform {type(call).__name__}"
                return EffectFailure(error=Failure(type="internal", detail=detail))
            case _:
                assert_never(job.call)

    # -- agents

    def _call_model(self, job: EffectJob) -> Answer | Awaitable[Answer]:
        if self._models is None and self._make_models is not None:
            self._models = self._make_models(self._bus)
        if self._models is not None:
            return self._models.perform(job)
        detail = "there are no chat models here; use command:PROGRAM or a coding CLI"
        return EffectFailure(error=Failure(type="not_found", detail=detail))

    def _prepare(self, job: EffectJob, name: str, agent: Agent) -> PreparedAgent:
        """What is the same in all calls of an agent, made in the first one."""
        key, chosen = (job.run, name), job.confinement.sandbox
        found = self._agents.get(key)
        if found is not None and found.sandbox == chosen and found.agent == agent:
            return found
        if len(self._agents) >= _MOST_AGENTS:
            self._agents.clear()
        spec = parse_spec(agent.spec or "")
        found = PreparedAgent(agent=agent, sandbox=chosen, spec=spec)
        if isinstance(spec, Spec) and spec.kind in ("command", "jsonl"):
            found = replace_fields(
                found,
                problem=unfit_agent(spec, agent),
                confinement=confinement_of(
                    agent,
                    chosen,
                    default=self._sandbox.policy.default,
                    configuration=configuration_of(spec.argv, self._base),
                ),
            )
        self._agents[key] = found
        return found

    def _agent(
        self, job: EffectJob, agent: Agent, prepared: PreparedAgent
    ) -> Answer | Awaitable[Answer]:
        spec = prepared.spec
        if isinstance(spec, BadSpec):
            return EffectFailure(
                error=Failure(type="not_found", detail=f"{spec.message}; {spec.hint}")
            )
        if not job.prompt.text.strip():
            return EffectFailure(error=Failure(type="bad_input", detail="the prompt is empty"))
        if job.prompt.files:
            job = with_files(job)
        if spec.kind == "model":
            return self._call_model(job)
        if spec.kind == "script":
            return self._from_script(job, spec.file)
        if spec.kind in CLIS:
            return self._paid(job, agent, self._coding.perform(job, agent, spec))
        if spec.kind == "acp":
            return self._paid(job, agent, self._acp.perform(job, agent, spec))
        return self._paid(job, agent, self._program(job, agent, spec, prepared))

    async def _paid(self, job: EffectJob, agent: Agent, answer: Awaitable[Answer]) -> Answer:
        """An answer with its cost, under the limits of the call."""
        return limited(job, agent, with_price(self._price, agent, await answer))

    def _script(self) -> "ScriptedAgent":
        """The scripted agent, imported when first needed: reading scripts requires a parser that
        takes longer to load than everything else, and real agents never need it.
        """
        if self._scripted is None:
            from loopwright.agents.script import ScriptedAgent  # noqa: PLC0415 - see above

            agent = ScriptedAgent(self._bus, schema_problem=self._unfit)
            self._scripted = agent
        return self._scripted

    def _from_script(self, job: EffectJob, file: str) -> Answer | Awaitable[Answer]:
        answer = self._script().perform(job, file)
        if isinstance(answer, Awaitable):
            return self._fitting_later(job, answer)
        return limited(job, job.agent or Agent(), self._fitting(job, answer))

    async def _fitting_later(self, job: EffectJob, answer: Awaitable[Answer]) -> Answer:
        return limited(job, job.agent or Agent(), self._fitting(job, await answer))

    def _fitting(self, job: EffectJob, answer: Answer) -> Answer:
        """A scripted answer under the same rules for results as any other."""
        if job.prompt.schema is None or isinstance(answer, EffectFailure):
            return answer
        result = answer.result or last_json_object(answer.output)
        problem = self._unfit(job, result)
        if problem is None:
            return replace(answer, result=result)
        return as_failure(answer, Failure(type="bad_result", detail=problem))

    async def _program(
        self, job: EffectJob, agent: Agent, spec: Spec, prepared: PreparedAgent
    ) -> Answer:
        if prepared.problem is not None:
            return EffectFailure(error=Failure(type="bad_input", detail=prepared.problem))
        assert prepared.confinement is not None, "it is a program"
        start, confinement = self._start_of(job, agent, spec.argv), prepared.confinement
        if spec.kind == "jsonl":
            return await self._json_lines(job, agent, start, confinement)

        def begin(running: RunningProgram) -> None:
            running.end_input()
            live_failure(job, agent, UNKNOWN_COST)

        with open_value_files(job, agent) as own:
            live = LiveProgramText(self._bus, job)
            end = await self._start(start, confinement, own, live, begin)
        text = end.stdout.decode(errors="replace")
        usage = UNKNOWN_COST if _has_run(end) else None
        return self._judged(job, end, ProgramAnswer(text=text, usage=usage))

    def _start_of(self, job: EffectJob, agent: Agent, argv: tuple[str, ...]) -> ProgramStart:
        """The program of a call, without the variables that name files of the call."""
        given = {**passed_on_variables(self._base, agent), **agent.env}
        return ProgramStart(
            argv=argv,
            cwd=job.workspace,
            env=agent_environment(self._base, given, job_variables(job)),
            stdin=job.prompt.text.encode(),
            wall_s=seconds(job.limits.wall_ms),
            idle_s=seconds(job.limits.idle_ms or DEFAULT_IDLE_MS),
        )

    async def _start(
        self,
        start: ProgramStart,
        confinement: Confinement,
        variables: Mapping[str, str],
        on_stdout: OnStdout,
        on_running: OnRunning,
    ) -> ProgramEnd:
        """Run a program with further variables; the files that they name are visible to it."""
        made = tuple(variables[name] for name in MADE_FILES if name in variables)
        return await self._sandbox.run(
            replace_fields(start, env={**start.env, **variables}) if variables else start,
            replace_fields(confinement, shown=made) if made else confinement,
            on_stdout=on_stdout,
            on_running=on_running,
        )

    async def _json_lines(
        self, job: EffectJob, agent: Agent, start: ProgramStart, confinement: Confinement
    ) -> Answer:
        """A program whose output is JSON lines."""
        spoken = JsonLinesAnswer(lambda model, usage: self._price(agent, model, usage))
        cost = LiveCost(spoken.price, lambda usage: live_failure(job, agent, usage))
        submission = Submission(lambda text: self._unfit(job, text))
        with open_value_files(job, agent) as own, open_tool_uses(job, submission) as talk:
            live = LiveLines(self._bus, job, cost, talk)
            variables = {**own, **(talk.variables() if talk else {})}
            end = await self._start(start, confinement, variables, live, cost.begin)
            live.end()
            if talk is not None:
                await talk.finish()
        for raw in end.stdout.split(b"\n"):
            spoken.add_line(raw.rstrip(b"\r"))
        usage = cost.usage
        spoken.warnings += live.notes
        record_warnings(job, spoken.warnings)
        if usage is None and _has_run(end):
            usage = UNKNOWN_COST
        # Lines that were read after the limit was met count too: one amount is shown of them all.
        over = cost.failure and (live_failure(job, agent, usage or NO_USAGE) or cost.failure)
        data = msgspec.json.encode(spoken.data).decode() if spoken.has_data else None
        answer = ProgramAnswer(
            text=spoken.output,
            usage=usage,
            session=spoken.session,
            tools=tuple(spoken.tools),
            warnings=tuple(spoken.warnings),
            is_error=spoken.is_error,
            data=data,
            submitted=submission.accepted,
            over=over,
        )
        return self._judged(job, end, answer)

    def _judged(self, job: EffectJob, end: ProgramEnd, answer: ProgramAnswer) -> Answer:
        """An accepted result counts, however the program ended after it."""
        result = answer.submitted
        failure = answer.over or (failure_of(end) if result is None else None)
        if failure is None and answer.is_error:
            failure = Failure(
                type="agent", detail=answer.text[-TAIL_CHARS:] or "it reported a failure"
            )
        if failure is None and result is None:
            result = answer.data
            if result is None and job.prompt.schema is not None:
                result = last_json_object(answer.text)
            problem = self._unfit(job, result)
            failure = None if problem is None else Failure(type="bad_result", detail=problem)
        done = EffectSuccess(
            output=answer.text,
            usage=answer.usage,
            session=answer.session,
            code=end.code,
            tools=answer.tools,
        )
        if failure is not None:
            return as_failure(done, failure)
        record_stderr(job, end.stderr_tail.decode(errors="replace"))
        notes = "; ".join([*answer.warnings, *end_notes(end)])
        return replace(done, result=result, note=notes)

    def _unfit(self, job: EffectJob, result: str | None) -> str | None:
        if job.prompt.schema is None:
            return None
        if result is None:
            return "the agent gave no structured result although one is required"
        try:
            value: JsonValue = msgspec.json.decode(result)
        except (msgspec.DecodeError, RecursionError) as error:
            return f"the result is not JSON: {error}"
        return self._schema_problem(job.prompt.schema, value)

    # -- commands of the author

    async def _command(self, job: EffectJob, call: CommandCall) -> Answer:
        script = f"{' '.join(call.argv)} {call.stdin}"
        with as_variables(job.confinement.env, script) as values, python_variables(job) as python:
            end = await self._sandbox.run(
                ProgramStart(
                    argv=reading_files(call.argv, values),
                    cwd=job.workspace,
                    stdin=call.stdin.encode(errors="replace"),
                    env=agent_environment(
                        self._base, {**python, **call.env, **values.variables}, job_variables(job)
                    ),
                    wall_s=call.timeout_ms / 1_000,
                    stdout_cap=CHECK_OUTPUT_BYTES,
                ),
                Confinement(
                    level=job.confinement.sandbox or self._sandbox.policy.default,
                    # Not every NAME_FILE: an agent chooses the value of a field called `file`.
                    shown=tuple(values.files.values()),
                ),
                on_stdout=LiveProgramText(self._bus, job),
            )
        is_check = "/check" in job.effect
        output = _check_output(end) if is_check else _step_output(end)
        if end.how == "exited":
            notes = end_notes(end) if is_check else [*end_notes(end), *_complaints(end, output)]
            return EffectSuccess(output=output, code=end.code, note="; ".join(notes))
        failure = failure_of(end)
        assert failure is not None
        if end.how == "signalled":
            return EffectSuccess(output=output, code=128 + (end.signal or 0), note=failure.detail)
        return EffectFailure(error=failure, output=output)


async def _search(job: EffectJob, call: MatchCall) -> Answer:
    """Search the text of a job with the JavaScript engine."""
    wanted = PatternSearch(
        pattern=call.pattern,
        text=job.prompt.text,
        ignore_case=call.ignore_case,
        seconds=call.timeout_ms / 1_000,
    )
    answer = await SEARCHES.search_later(wanted)
    if answer.problem:
        kind = "wall_timeout" if answer.timed_out else "internal"
        return EffectFailure(error=Failure(type=kind, detail=answer.problem))
    return EffectSuccess(output=answer.found or "", code=1 if answer.found is None else 0)


def _step_output(end: ProgramEnd) -> str:
    """What a step's program printed on stdout, without the one newline that ends it."""
    return end.stdout.decode(errors="replace").removesuffix("\n")


def _complaints(end: ProgramEnd, output: str) -> list[str]:
    """The end of a step program's stderr; if it failed, also of its stdout. The errors come first:
    if there is space for one line only, it is about them.
    """
    errors_text = end.stderr_tail.decode(errors="replace").strip()
    printed = output.strip() if end.code else ""
    return [
        *([f"stderr: {errors_text[-TAIL_CHARS:]}"] if errors_text else []),
        *([f"stdout: {printed[-TAIL_CHARS:]}"] if printed else []),
    ]


def _check_output(end: ProgramEnd) -> str:
    """What a command printed: all of stdout for a step, stderr after it."""
    out = end.stdout.decode(errors="replace")
    err = end.stderr_tail.decode(errors="replace")
    return f"{out.rstrip()}\n{err}".strip() if err.strip() else out.rstrip("\n")


def _has_run(end: ProgramEnd) -> bool:
    """Whether a program was started, so that its call may have cost something."""
    return end.how != "not_started" or end.problem == "git-settings-changed"


# -- what is shown while an agent works ------------------------------------------------------------

HELD_CHARS = 2_000  # of what may become a tag; longer than that it is none

# The beginning of a tag, or a whole one with its content and maybe a part of its end.
_MAY_BECOME_TAG = re.compile(r"<(?:[A-Za-z][\w-]*(?:\s[^<>]*)?(?:>[^<>]*(?:</?[\w-]*\s*)?)?)?\Z")


class SignalFilter:
    """Removes the tags of a signal from a text that arrives in pieces."""

    def __init__(self, word: str) -> None:
        self._tags = hidden_tags(word)
        self._held = ""

    def filter(self, text: str) -> str:
        """What of the text so far may be shown now."""
        text = self._tags.sub("", self._held + text)
        found = _MAY_BECOME_TAG.search(text, max(0, len(text) - HELD_CHARS))
        cut = len(text) if found is None else found.start()
        self._held = text[cut:]
        return text[:cut]

    def rest(self) -> str:
        """The rest that turned out not to be a tag."""
        held, self._held = self._held, ""
        return held


class FilteredBus:
    """A bus that leaves out, of each call, what is for its loop alone."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._hiding: dict[tuple[str, str], SignalFilter] = {}
        self._redact: dict[tuple[str, str], Callable[[str], str]] = {}

    def publish(self, delta: Delta) -> None:
        hiding = self._hiding.get((delta.run, delta.effect)) if delta.kind == "text" else None
        redact = self._redact.get((delta.run, delta.effect), str)
        delta = replace_fields(delta, text=redact(delta.text))
        text = delta.text if hiding is None else hiding.filter(delta.text)
        if text == delta.text:
            self._bus.publish(delta)
        elif text:
            self._bus.publish(_text_delta(delta.run, delta.effect, text))

    def around(
        self, job: EffectJob, perform: Callable[[EffectJob], Answer | Awaitable[Answer]]
    ) -> Answer | Awaitable[Answer]:
        """Perform a job, and ensure that neither its signal nor the secrets of its agent are shown
        while it runs.
        """
        if job.confinement.hidden is not None:
            self._hiding[job.run, job.effect] = SignalFilter(job.confinement.hidden)
        self._redact[job.run, job.effect] = job.activity.redact
        answer = perform(job)
        if isinstance(answer, Awaitable):
            return self._later(job, answer)
        self._end(job)
        return answer

    async def _later(self, job: EffectJob, answer: Awaitable[Answer]) -> Answer:
        try:
            return await answer
        finally:
            self._end(job)

    def _end(self, job: EffectJob) -> None:
        hiding = self._hiding.pop((job.run, job.effect), None)
        rest = hiding.rest() if hiding is not None else ""
        if rest:
            self._bus.publish(_text_delta(job.run, job.effect, rest))
        self._redact.pop((job.run, job.effect), None)


def _text_delta(run: str, effect: str, text: str) -> Delta:
    return Delta(run=run, effect=effect, kind="text", text=text)
