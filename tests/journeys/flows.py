"""Whole workflows played in memory: a definition as written, agents that say what a test wants,
time that passes when nothing else is left to happen.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from loopwright.engine.services import schema_problem
from loopwright.kernel.checks import last_json_object
from loopwright.kernel.event_parts import AgentCall, Failure
from loopwright.kernel.events import (
    AnyEvent,
    EffectRequested,
    RunFinished,
    StepFinished,
    StepSkipped,
    Usage,
)
from loopwright.model.plan import Plan, decode_plan, encode_plan
from loopwright.operations.dialects import parse_definition, read_definition
from loopwright.ports import Answer, EffectFailure, EffectJob, EffectSuccess
from tests.engine.world import Process, World, quiet, run

Words: TypeAlias = str | dict[str, Any] | Answer | None
"""What an agent says: a text, a structured result, an answer, or None for never."""
Says: TypeAlias = Callable[[EffectJob], Words | Awaitable[Words]]

TURNS = 3  # of the event loop that a call takes, so that calls can be seen side by side
LONGEST_MS = 24 * 3_600_000
USED = Usage(input_tokens=10, output_tokens=1)

JUDGE = """
  judge:
    description: Says whether it is done.
    resultSchema:
      type: object
      required: [done]
      properties: {done: {type: boolean}, reason: {type: string}}
"""


NOTHING_SPECIAL: Mapping[str, "Words"] = {}


def failure(detail: str = "it broke", kind: str = "agent") -> EffectFailure:
    """An agent that could not do it."""
    return EffectFailure(error=Failure(type=kind, detail=detail), usage=USED)


def by_path(table: Mapping[str, Words], default: Words = "ok") -> Says:
    """Words by the place of a call; the judge of an iteration is `PASS/judge`."""
    return lambda job: table.get(named(job), default)


def named(job: EffectJob) -> str:
    """The place of a call, apart for workers and judges; of a tool, the place of its step."""
    if not isinstance(job.call, AgentCall):
        return job.path
    return job.path if job.call.role == "worker" else f"{job.path}/{job.call.role}"


class Cast:
    """All agents of a workflow. Counts how many are at work at once."""

    def __init__(self, says: Says) -> None:
        self.says = says
        self.jobs: list[EffectJob] = []
        self.spans: dict[str, tuple[int, int]] = {}
        self.under_way = 0
        self.peak = 0
        self._moment = 0

    async def perform(self, job: EffectJob) -> Answer:
        self.jobs.append(job)
        self.under_way += 1
        self.peak = max(self.peak, self.under_way)
        begun = self._tick()
        try:
            said = self.says(job)
            if isinstance(said, Awaitable):
                said = await said
            for _ in range(TURNS):
                await asyncio.sleep(0)
            if said is None:
                await asyncio.Event().wait()
        finally:
            self.under_way -= 1
            self.spans[job.path] = (begun, self._tick())
        return _answer(job, said)

    def _tick(self) -> int:
        self._moment += 1
        return self._moment


def _answer(job: EffectJob, said: Words) -> Answer:
    if isinstance(said, EffectSuccess | EffectFailure):
        return said
    if isinstance(said, dict):
        said = msgspec.json.encode(said).decode()
    text = said or ""
    if job.prompt.schema is None:
        return EffectSuccess(output=text, usage=USED)
    result = last_json_object(text)
    if result is None:
        problem: str | None = "the agent gave no structured result"
    else:
        problem = schema_problem(job.prompt.schema, msgspec.json.decode(result))
    if problem is not None:
        error = Failure(type="bad_result", detail=problem)
        return EffectFailure(error=error, output=text, usage=USED)
    return EffectSuccess(output=text, result=result, usage=USED)


@dataclass
class Played:
    """A run that came to rest, and all that can be asked about it."""

    process: Process
    run: str
    cast: Cast
    plan: Plan
    events: list[AnyEvent] = field(default_factory=list)

    @property
    def end(self) -> RunFinished:
        last = self.events[-1]
        assert isinstance(last, RunFinished), "the last fact of a run is its end"
        return last

    @property
    def ended(self) -> dict[str, str]:
        """How every step ended, by its path."""
        return {path: event.status for path, event in self.ends.items()}

    @property
    def ends(self) -> dict[str, StepFinished | StepSkipped]:
        return {f.path: f for f in self.events if isinstance(f, StepFinished | StepSkipped)}

    @property
    def top(self) -> dict[str, str]:
        """How the steps of the workflow itself ended."""
        return {path: status for path, status in self.ended.items() if not set(path) & set(".[")}

    def finished(self, path: str) -> StepFinished:
        event = self.ends[path]
        assert isinstance(event, StepFinished)
        return event

    def content(self, path: str) -> str:
        """What a step came to."""
        return self.process.service.read_text(self.finished(path).output)

    def result(self, path: str) -> Any:
        """The structured result of a step."""
        text = self.process.service.read_text(self.finished(path).result)
        return msgspec.json.decode(text) if text else None

    def error(self, path: str) -> str:
        error = self.ends[path].error
        return "" if error is None else error.detail

    @property
    def calls(self) -> list[str]:
        """The places at which agents were called, in order."""
        return [named(job) for job in self.cast.jobs]

    def prompt(self, place: str, number: int = 0) -> str:
        """What the agent at a place was shown, the n-th time."""
        return [job.prompt.text for job in self.cast.jobs if named(job) == place][number]

    @property
    def requested(self) -> list[EffectRequested]:
        return [event for event in self.events if isinstance(event, EffectRequested)]


def flow(steps: str, *, agents: str = "", options: str = "") -> str:
    """A workflow around its steps, with a worker `w`."""
    head = f"name: journey\nagents:\n  w: {{description: Works.}}\n{agents.strip(chr(10))}\n"
    return f"{head}{f'options: {options}' if options else ''}\nsteps:\n{steps.strip(chr(10))}\n"


def plan_of(text: str) -> Plan:
    """The plan of a workflow."""
    return parse_definition(text.encode(), file="flow.yaml", force="zenflow").plan


def plan_in(folder: Path, text: str) -> Plan:
    """The plan of a workflow that stands in a folder, with the files beside it."""
    file = folder / "flow.yaml"
    file.write_text(text, encoding="utf-8")
    return read_definition(file, force="zenflow").plan


def with_text(plan: Plan, old: str, new: str) -> Plan:
    """A plan with another text in it, past the reader: what a plan of another version may hold."""
    data = encode_plan(plan).decode()
    assert data.count(old) == 1
    return decode_plan(data.replace(old, new))


def play(definition: str | Plan, says: Says | Mapping[str, Words] = NOTHING_SPECIAL) -> Played:
    """Play a workflow to its end."""
    plan = plan_of(definition) if isinstance(definition, str) else definition
    cast = Cast(by_path(says) if isinstance(says, Mapping) else says)

    async def body() -> Played:
        process = World().process(performer=cast)
        name = await process.start(plan)
        played = Played(process, name, cast, plan)
        await to_the_end(played)
        return played

    return run(body())


async def to_the_end(played: Played) -> None:
    """Let everything happen; when nothing does any more, let time pass."""
    process, name = played.process, played.run
    passed = 0
    while process.driver.is_driving(name):
        before = process.log.version(name)
        await quiet()
        if process.log.version(name) == before and process.driver.is_driving(name):
            assert passed < LONGEST_MS, "it hangs"
            passed += 1_000
            process.clock.advance(1_000)
    played.events = process.events(name)
