"""Resume: each way of ending, each kind of body, each interface.

The events of a run that ended are made by the kernel with a clock of its own, so that deadlines and
crashes take no time, and are written to the SQLite log of a server. Then the run is resumed through
an interface. Only what agents, models and tools answer is replaced.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from loopwright.agents.performer import LocalPerformer
from loopwright.cli.main import main
from loopwright.http import server as http_server
from loopwright.kernel.events import (
    AnyEvent,
    EffectDone,
    EffectFailed,
    EffectRequested,
    IterationFinished,
    RunReopened,
    RunStarted,
)
from loopwright.kernel.fold import fold
from loopwright.model.plan import Agent, Plan, content_hash, encode_plan
from loopwright.model.policy import Limits
from loopwright.operations.mcp.loop_tools import LoopTools
from loopwright.operations.use_cases.role_loops import RoleLoops
from loopwright.ports import Answer, Append, EffectJob, EffectSuccess, Owner
from loopwright.ports.headline import headline_of
from loopwright.views.event_records import sortable_id
from tests.http.served import SECONDS, Served, served
from tests.http.talking import tab, talk
from tests.kernel.driving import Driver, Reply, Texts
from tests.kernel.test_resumption import (
    BODIES,
    Body,
    by_deadline,
    by_failure,
    by_stop,
    good,
    until,
)
from tests.support.laws.log import check_invariants

DEAD = Owner(pid=2**22 + 1, start=1, boot="gone", token="gone")
TOKENS = 20  # of each call
EXHAUSTED = 4  # the exit code of a run that reaches its new cap, too


# -- ways of ending --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ending:
    """A run that ended, what it needs to be resumed, and the effects that follow."""

    driver: Driver
    options: dict[str, Any]
    effects: list[str]
    status: str


def following(body: Body, number: str) -> list[str]:
    first = body.effects.index(body.at)
    return [body.at.removesuffix("#1") + number, *body.effects[first + 1 :]]


def failure(body: Body) -> Ending:
    """The other agent counts from the resume on; a conversation stays with its model."""
    other = {} if "/model#" in body.at else {"agent": "command:true"}
    return Ending(by_failure(body), other, following(body, "#2"), "failed")


def stop(body: Body) -> Ending:
    return Ending(by_stop(body), {}, following(body, "#2"), "cancelled")


def deadline(body: Body) -> Ending:
    return Ending(by_deadline(body), {"time": "1h"}, following(body, "#2"), "exhausted")


def budget(body: Body) -> Ending:
    paid = [name for name in body.effects[: body.effects.index(body.at)] if "/tool" not in name]
    plan = msgspec.structs.replace(body.plan, limits=Limits(tokens=TOKENS * len(paid)))
    driver = Driver(plan, script=good).run()
    return Ending(driver, {"budget": "tokens=10000"}, following(body, "#1"), "exhausted")


CAPS = {"single-call": (2, 4), "nested": (1, 2), "stages": (1, 2), "chat": (1, 3)}


def cap(body: Body) -> Ending:
    kind = next(name for name, one in BODIES.items() if one is body)
    few, more = CAPS[kind]
    driver = Driver(capped(body.plan, few), script=good).run()
    done = {f.effect for f in driver.events if isinstance(f, EffectDone)}
    rest = [name for name in body.effects if name not in done]
    return Ending(driver, {"max": more}, rest, driver.end.outcome)


def capped(plan: Plan, most: int) -> Plan:
    """The same plan with fewer iterations, at whose end it is exhausted; turns of a model too."""
    [step] = plan.steps
    if plan.agents:
        agents = {
            name: msgspec.structs.replace(one, max_turns=most) for name, one in AGENTS.items()
        }
        return msgspec.structs.replace(plan, agents=agents)
    action = msgspec.structs.replace(step.action, max=most, at_cap="exhaust")
    return msgspec.structs.replace(plan, steps=(msgspec.structs.replace(step, action=action),))


def kill(body: Body) -> Ending:
    """The process is gone while the effect is pending: it is performed again under its id."""
    driver = until(body, lambda _: None)
    length = next(n for n, f in enumerate(driver.events) if getattr(f, "effect", "") == body.at)
    end = next(one for one in driver.ends if one > length)
    return Ending(driver.cut(end), {}, following(body, "#1"), "running")


ENDINGS: dict[str, Callable[[Body], Ending]] = {
    "failure": failure,
    "budget": budget,
    "cap": cap,
    "deadline": deadline,
    "stop": stop,
    "kill": kill,
}
IMPOSSIBLE = {
    ("cap", "graph"): "the steps of a graph are made once: it has no number of iterations",
    ("cap", "for-each"): "a loop over a list makes as many iterations as the list has items",
}
AGENTS = {"worker": Agent(spec="model:openai/gpt-5")}


# -- what the outside answers ----------------------------------------------------------------------


@dataclass
class World:
    """The server, and every effect that was performed."""

    server: Served
    jobs: list[EffectJob]

    def write(self, ending: Ending) -> str:
        """Write a run that ended so into the log of the server; its id."""
        driver, run = ending.driver, f"run_{sortable_id(1_000)}"
        spec = {"worker": Agent(spec="command:cat")}
        plan = msgspec.structs.replace(driver.plan, agents=driver.plan.agents or spec)
        stored = encode_plan(plan)
        begun = driver.events[0]
        assert isinstance(begun, RunStarted)
        first = msgspec.structs.replace(
            begun, run=run, plan=content_hash(stored), workspace=str(self.server.folder)
        )
        events = [first, *driver.events[1:]]
        append = Append(
            run=run,
            expected=0,
            events=events,
            blobs={content_hash(stored): stored},
            headline=headline_of(fold(plan, events)),
            owner=DEAD,
        )
        log = self.server.context.here.log
        asyncio.run_coroutine_threadsafe(log.append(append), self.server.loop).result(SECONDS)
        assert log.row(run).headline.status == ending.status
        return run

    def events(self, run: str) -> list[AnyEvent]:
        return [one.event for one in self.server.context.here.log.read(run)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One server for all; each effect is answered at once, as the kernel's script does."""
    jobs: list[EffectJob] = []

    def perform(_: LocalPerformer, job: EffectJob) -> Answer:
        jobs.append(job)
        asked = EffectRequested(
            at=0, path=job.path, iteration=job.iteration, effect=job.effect, call=job.call
        )
        said = good(asked)
        assert isinstance(said, Reply)
        return EffectSuccess(output=said.text, result=said.result, usage=said.usage, code=said.code)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalPerformer, "perform", perform)
        patch.setenv("LOOPWRIGHT_SNAPSHOTS", "off")
        # The server itself would resume a run that was killed, on a slow machine before the test.
        patch.setattr(http_server, "RESCUE_SECONDS", 3_600.0)
        patch.setattr(Texts.__init__, "__defaults__", (100_000,))  # all texts stand in the events
        with served(tmp_path_factory.mktemp("served")) as server:
            yield World(server, jobs)


# -- interfaces ------------------------------------------------------------------------------------


def over_http(world: World, run: str, options: dict[str, Any]) -> str:
    reply = world.server("POST", f"/api/v1/runs/{run}/resume", options)
    assert reply.status == 200, reply.body
    return str(reply.json["message"])


def over_socket(world: World, run: str, options: dict[str, Any]) -> str:
    said: list[str] = []

    async def resume() -> None:
        async with tab(world.server) as one:
            answer = await one.say("run:resume", {"run": run, **options})
            said.append(answer["message"])

    talk(resume())
    return said[0]


def as_tool(world: World, run: str, options: dict[str, Any]) -> str:
    server, context = world.server, world.server.context
    loops = RoleLoops(here=context.here, settings=context.settings, cwd=server.folder, by="agent")
    given = {"action": "resume", "id": run, **options}
    work = LoopTools(loops=loops).answer("loop_control", given)
    said = server.as_admin(work)
    assert not said.error, said.text
    return said.text


def flags(options: dict[str, Any]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def leave_with(args: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(args)
    assert left.value.code in (0, EXHAUSTED)


def from_command_line(world: World, run: str, options: dict[str, Any]) -> str:
    leave_with(["resume", run, *flags(options)])
    return ""


def at_prompt(world: World, run: str, options: dict[str, Any]) -> str:
    lines = world.server.folder / "lines"
    lines.write_text(f"/loops resume {run} {' '.join(flags(options))}\n")
    with pytest.MonkeyPatch.context() as patch, lines.open() as stdin:
        patch.setattr(sys, "stdin", stdin)
        leave_with(["repl"])
    return ""


INTERFACES: dict[str, Callable[[World, str, dict[str, Any]], str]] = {
    "cli": from_command_line,
    "http": over_http,
    "socket.io": over_socket,
    "mcp": as_tool,
    "repl": at_prompt,
}

CASES = [
    pytest.param(interface, ending, kind, id=f"{interface}-{ending}-{kind}")
    for interface in INTERFACES
    for ending in ENDINGS
    for kind in BODIES
    if (ending, kind) not in IMPOSSIBLE
]


def completed_iterations(events: list[AnyEvent]) -> list[str]:
    ends = [one for one in events if isinstance(one, IterationFinished)]
    return [one.path for one in ends if one.status == "completed"]


@pytest.mark.item("rec-1", "rec-2", "rec-3", "rec-5")
@pytest.mark.parametrize(("interface", "ending", "kind"), CASES)
def test_a_run_resumes_where_it_stopped(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    interface: str,
    ending: str,
    kind: str,
) -> None:
    """Only what has no answer is performed, under its own iteration; spend and memory are kept."""
    server = world.server
    monkeypatch.setenv("LOOPWRIGHT_HOME", str(server.context.settings.home))
    monkeypatch.setenv("LOOPWRIGHT_DURABILITY", "normal")
    monkeypatch.chdir(server.folder)
    made = ENDINGS[ending](BODIES[kind])
    run = world.write(made)
    before = len(world.events(run))
    said = INTERFACES[interface](world, run, made.options)
    told = capsys.readouterr()
    words = said or told.out + told.err
    server.until(run, "completed", "exhausted", "failed")
    events = world.events(run)

    performed = [job.effect for job in world.jobs if job.run == run]
    assert performed == made.effects
    done = [one.effect for one in events if isinstance(one, EffectDone) and one.path]
    assert sorted(name.rpartition("#")[0] for name in done) == sorted(
        name.rpartition("#")[0] for name in BODIES[kind].effects
    )
    ends = completed_iterations(events)
    assert len(ends) == len(set(ends))

    state = server.context.service.state(run)
    paid = [
        one
        for one in events
        if isinstance(one, EffectDone | EffectFailed) and one.usage and one.usage.usd
    ]
    assert state.usage.usd == pytest.approx(len(paid))
    assert state.usage.usd >= sum("/tool" not in name for name in BODIES[kind].effects)

    reopened = [one for one in events[before:] if isinstance(one, RunReopened)]
    assert len(reopened) == (ending != "kill")
    if ending != "kill":
        assert f"{run} resumed at " in words
        assert state.finished is not None
        assert state.finished.outcome in ("completed", "exhausted")
    check_override(world, run, made)
    if kind == "single-call":
        [*_, last] = [job for job in world.jobs if job.run == run]
        assert all(f"ok main.{number}/agent#" in last.prompt.text for number in range(3))


def check_override(world: World, run: str, made: Ending) -> None:
    """The options count from the resume on."""
    state = world.server.context.service.state(run)
    match made.options:
        case {"agent": spec}:
            agents = [job.agent for job in world.jobs if job.run == run and job.agent]
            assert {agent.spec for agent in agents} == {spec}
        case {"budget": _}:
            assert state.plan.limits.tokens == 10_000
        case {"time": _}:
            assert state.plan.limits.wall_ms == 3_600_000
        case {"max": most}:
            assert state.control.passes == most
        case _:
            pass


def test_the_log_of_all_these_runs_is_sound(world: World) -> None:
    """Every run of the table keeps the invariants of the log."""
    assert check_invariants(world.server.context.here.log) == []


def test_each_impossible_case_has_its_reason() -> None:
    """Nothing else is left out of the table."""
    count = len(INTERFACES) * (len(ENDINGS) * len(BODIES) - len(IMPOSSIBLE))
    assert len(CASES) == count
    assert all(IMPOSSIBLE.values())
