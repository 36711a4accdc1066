"""Agents that use the Agent Client Protocol: one supervised process for each call.

An action that the agent may not perform by itself opens a gate in the log. The process waits for
the decision; without an answer, the request is denied.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext

import msgspec
from msgspec.structs import replace

from loopwright.agents.calls import (
    UNKNOWN_COST,
    end_notes,
    failure_of,
    job_variables,
    live_failure,
    passed_on_variables,
    record_stderr,
    resets_at,
    seconds,
)
from loopwright.agents.clis.acp import AcpConversation, Move, Permission, Send, policy
from loopwright.agents.clis.catalogue import Cli, configuration_of
from loopwright.agents.clis.command_line import StageServer
from loopwright.agents.clis.event_stream import LineSplitter, ProcessExit, find_failure
from loopwright.agents.clis.transcript import LiveEntry, status_in
from loopwright.agents.coding_agents import STATUS_BYTES, Stage
from loopwright.agents.live_activity import ActivityReport, monotonic_ms
from loopwright.agents.processes.process import ProgramEnd, ProgramStart, RunningProgram
from loopwright.agents.program_files import agent_environment
from loopwright.agents.sandbox.bubblewrap import Sandbox, confinement_of
from loopwright.agents.specs import Spec, unfit_agent
from loopwright.kernel.event_parts import Failure
from loopwright.kernel.events import Usage
from loopwright.model.plan import Agent
from loopwright.ports import Answer, Ask, Bus, EffectFailure, EffectJob, EffectSuccess, Question

DEFAULT_IDLE_MS = 600_000
GOODBYE_S = 3.0

Fitting = Callable[[EffectJob, Answer], Answer]


class AcpAgents:
    """Performs calls of agents that use the protocol."""

    def __init__(
        self, bus: Bus, fitting: Fitting, base: Mapping[str, str], sandbox: Sandbox
    ) -> None:
        self._sandbox = sandbox
        self._bus = bus
        self._fitting = fitting
        self._base = base
        self.ask: Ask | None = None
        self.stage: Stage = lambda job, agent: nullcontext()

    async def perform(self, job: EffectJob, agent: Agent, spec: Spec) -> Answer:
        problem = unfit_agent(spec, agent)
        if problem is not None:
            return EffectFailure(error=Failure(type="bad_input", detail=problem))
        prompt = "\n\n".join(part for part in (agent.system, job.prompt.text) if part)
        async with self.stage(job, agent) as server:
            servers = [] if server is None else [(server.name, server.argv)]
            talk = AcpConversation(
                prompt=prompt, cwd=job.workspace, session=job.prompt.session, servers=tuple(servers)
            )
            end, over = await self._run(job, agent, spec, talk, server)
        return self._judged(job, agent, talk, end, over)

    async def _run(
        self,
        job: EffectJob,
        agent: Agent,
        spec: Spec,
        talk: AcpConversation,
        server: StageServer | None,
    ) -> tuple[ProgramEnd, Failure | None]:
        report = ActivityReport(self._bus, job, agent, "acp")
        call = _Call(job, agent, talk, report, self.ask)
        extra = {**passed_on_variables(self._base, agent), **agent.env}
        try:
            end = await self._sandbox.run(
                ProgramStart(
                    argv=spec.argv,
                    cwd=job.workspace,
                    env=agent_environment(self._base, extra, job_variables(job)),
                    wall_s=seconds(job.limits.wall_ms),
                    idle_s=seconds(job.limits.idle_ms or DEFAULT_IDLE_MS),
                    stderr_counts=False,  # programs report their retries on it
                    stdout_cap=64 * 1024,
                ),
                confinement_of(
                    agent,
                    job.confinement.sandbox,
                    default=self._sandbox.policy.default,
                    configuration=configuration_of(spec.argv, self._base),
                    shown=server.shows if server is not None else (),
                ),
                on_stdout=call.read_stdout,
                on_stderr=call.read_stderr,
                on_running=call.begin,
            )
        finally:
            call.close()
        return end, call.over_budget

    def _judged(
        self,
        job: EffectJob,
        agent: Agent,
        talk: AcpConversation,
        end: ProgramEnd,
        over: Failure | None,
    ) -> Answer:
        transcript = talk.transcript
        usage = transcript.spent.usage or (Usage() if talk.cost is not None else None)
        if usage is not None and talk.cost is not None:
            usage = replace(usage, usd=_cost_of_call(talk, job, talk.cost), unpriced=0)
        if usage is None and (transcript.counts.tools or transcript.spoken.parts):
            usage = UNKNOWN_COST
        failure = over or _failure(talk, end)
        if failure is not None:
            return EffectFailure(
                error=failure,
                output=transcript.output,
                usage=usage,
                session=transcript.session,
                code=end.code,
                model=transcript.model,
            )
        notes = (
            [f"permission was denied: {', '.join(transcript.denied)}"] if transcript.denied else []
        )
        if talk.began_anew:
            notes.append(f"session {job.prompt.session} was gone and a new one was begun")
        if agent.model is not None:
            notes.append("an acp agent chooses its model by its own settings")
        notes += [note for note in end_notes(end) if "output" not in note]
        record_stderr(job, end.stderr_tail.decode(errors="replace"))
        done = EffectSuccess(
            output=transcript.output,
            usage=usage,
            session=transcript.session,
            note="; ".join(notes),
            model=transcript.model,
        )
        return self._fitting(job, done)


class _Call:
    """One running call: the pipe on one side, the conversation and people on the other."""

    def __init__(
        self,
        job: EffectJob,
        agent: Agent,
        talk: AcpConversation,
        report: ActivityReport,
        ask: Ask | None,
    ) -> None:
        self._job = job
        self._agent = agent
        self._talk = talk
        self._report = report
        self._ask = ask
        self._lines = LineSplitter()
        self._errors = LineSplitter(STATUS_BYTES)
        self._running: RunningProgram | None = None
        self.over_budget: Failure | None = None
        self._asked: Counter[tuple[str, str]] = Counter()
        self._questions: set[asyncio.Task[None]] = set()

    def begin(self, running: RunningProgram) -> None:
        self._running = running
        live_failure(self._job, self._agent, UNKNOWN_COST)  # until the agent reports it
        self._make(self._talk.begin())

    def read_stdout(self, chunk: bytes) -> None:
        self._report.keep_stream(chunk)
        lines = self._lines.feed(chunk)
        self._talk.transcript.progress = not lines  # a part of a long line is output, too
        for line in lines:
            self._make(self._talk.read_line(line, monotonic_ms()))
        self._report.record(self._talk.transcript)
        if self._running is None:
            return
        if not self._talk.transcript.progress:
            self._running.no_progress()
        if self._talk.phase == "over":
            self._running.end_input()
            self._running.finish(GOODBYE_S)
        elif self.over_budget is None and self._talk.cost is not None:
            self.over_budget = live_failure(self._job, self._agent, self._live(self._talk.cost))
            if self.over_budget is not None:
                self._running.finish(0.0)

    def _live(self, cost: float) -> Usage:
        """The cost of the call so far; the agent reports that of the session."""
        return Usage(usd=_cost_of_call(self._talk, self._job, cost))

    def read_stderr(self, chunk: bytes) -> None:
        """A line about a retry or a limit is a status; other output on stderr is not."""
        for line in self._errors.feed(chunk):
            for entry in self._talk.transcript.note_status(
                status_in(line.decode(errors="replace"))
            ):
                self._report.show(entry)
        self._report.record(self._talk.transcript)

    def close(self) -> None:
        for task in self._questions:
            task.cancel()
        self._talk.transcript.end_calls()
        self._report.record(self._talk.transcript)

    def _make(self, moves: list[Move]) -> None:
        for move in moves:
            match move:
                case Send():
                    self._send(move)
                case LiveEntry():
                    self._report.show(move)
                case Permission():
                    self._permit(move)

    def _send(self, move: Send) -> None:
        if self._running is not None:
            self._running.write(msgspec.json.encode(move.message) + b"\n")

    def _permit(self, wanted: Permission) -> None:
        decided = policy(self._agent, wanted, self._job.confinement.checks)
        if decided != "ask" or self._ask is None:
            self._send(self._talk.decide(wanted, allowed=decided == "allow"))
            return
        task = asyncio.ensure_future(self._ask_person(self._ask, wanted))
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)

    async def _ask_person(self, ask: Ask, wanted: Permission) -> None:
        alike = (wanted.title, wanted.about)
        number = self._asked[alike]
        self._asked[alike] += 1
        message = f"The agent wants to {wanted.kind or 'use a tool'}: {wanted.title}"
        question = Question(message=message, about=wanted.about, number=number)
        assert self._running is not None
        self._running.hold_idle(held=True)
        try:
            allowed = await ask(self._job, question)
        finally:
            self._running.hold_idle(held=len(self._questions) > 1)
        self._send(self._talk.decide(wanted, allowed=allowed, by_person=True))
        self._report.record(self._talk.transcript)


_AGENT = Cli(
    name="acp",
    title="the agent",
    install="install it, or write its path",
    sign_in="sign in with the agent's own command",
    credentials=(),
    permissions={},
)


def _cost_of_call(talk: AcpConversation, job: EffectJob, cost: float) -> float:
    """What a call has cost, of the cost that the agent reports for its whole session."""
    goes_on = not talk.began_anew and job.prompt.session is not None
    return max(0.0, round(cost - (job.prompt.session_used.usd if goes_on else 0.0), 9))


def _failure(talk: AcpConversation, end: ProgramEnd) -> Failure | None:
    if end.how == "not_started" or (
        end.how in ("idle_timeout", "wall_timeout") and talk.transcript.ending.ended != "well"
    ):
        return failure_of(end, talk.transcript.status_line)
    # How the process ends counts only when the turn has not ended before.
    errors_text = end.stderr_tail.decode(errors="replace")
    ours = talk.transcript.ending.ended == "well"
    how = ProcessExit(code=end.code, signal=end.signal, stderr=errors_text, ours=ours)
    refused = find_failure(_AGENT, talk.transcript, how)
    if refused is None:
        return None
    until = resets_at(refused.reset, time.time())
    return msgspec.structs.replace(refused.failure, resets_at=until)
