"""Loopwright itself: the real service, driver and log; only the agent is a no-op, in-process."""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable
from pathlib import Path

import models
import protocol
import trees
import workflows

from loopwright.agents.performer import LocalPerformer
from loopwright.agents.processes.process_marks import Presence
from loopwright.engine.driver import LocalDriver
from loopwright.engine.services import SystemClock, schema_problem
from loopwright.kernel.events import EffectActivity
from loopwright.model.actions import AskPerson, CallAgent, Each, Repeat, Step
from loopwright.model.plan import Agent, Plan
from loopwright.model.record import LiteralItems, literal
from loopwright.operations.run_request import RunStart
from loopwright.operations.runs import Service
from loopwright.operations.wiring import this_owner
from loopwright.operations.workspace_rules import SandboxRules
from loopwright.ports import ActivityEntry, Answer, EffectJob, EffectSuccess, Performer
from loopwright.stores.sqlite.log import SqliteLog, open_sqlite_log

IDLE_SECONDS = 4.0
LOADS = 20
LIST_TIMES = 11
TOOL_CALL_SECONDS = 0.003  # far less than any tool of a real agent takes


class Noop:
    """Answers every call at once, or never after so many iterations."""

    def __init__(self, hang_after: int | None = None, loops: int = 0) -> None:
        self._hang_after = hang_after
        self._left = loops
        self.all_hang = asyncio.Event()

    def perform(self, job: EffectJob) -> Answer | Awaitable[Answer]:
        if self._hang_after is not None and job.iteration > self._hang_after:
            self._left -= 1
            if self._left == 0:
                self.all_hang.set()
            return asyncio.Event().wait()  # type: ignore[return-value]
        return EffectSuccess(output=protocol.RESULT)


class Engine:
    """The engine as a process would have it."""

    def __init__(self, folder: Path, performer: Performer) -> None:
        self.log: SqliteLog = open_sqlite_log(
            folder / "loopwright.db", alive=Presence(folder / "owners").alive
        )
        self.driver = LocalDriver(
            self.log,
            performer,
            clock=SystemClock(),
            owner=this_owner(),
            check_schema=schema_problem,
        )
        self.driver.open()
        self.service = Service(self.log, SystemClock(), self.driver, SandboxRules(default="off"))
        self._folder = folder

    async def start(self, plan: Plan) -> str:
        return await self.service.start(RunStart(plan=plan, workspace=self._folder, message="go"))

    async def run(self, plan: Plan) -> None:
        await self.driver.rest(await self.start(plan))

    async def close(self) -> None:
        await self.driver.close()
        self.log.close()


def loop_plan(passes: int) -> Plan:
    action = Repeat(body=CallAgent(agent="noop"), max=passes, at_cap="complete")
    return Plan(name="loop", steps=(Step(id="main", action=action),), agents={"noop": Agent()})


def each_plan(items: int) -> Plan:
    each = Each(items=LiteralItems(values=tuple(range(items))), max_items=items, parallel=10)
    action = Repeat(body=CallAgent(agent="noop"), each=each)
    return Plan(name="each", steps=(Step(id="main", action=action),), agents={"noop": Agent()})


PLANS = {
    "cycles": models.cycles_plan,
    "dag": workflows.dag_plan,
    "foreach": each_plan,
    "inner": workflows.inner_plan,
}


def gate_plan() -> Plan:
    return Plan(name="gate", steps=(Step(id="main", action=AskPerson(message=literal("go on?"))),))


async def throughput(options: argparse.Namespace) -> None:
    """``sequential``, ``concurrent``, ``passes``, ``foreach``, ``dag``, ``inner``."""
    engine = Engine(options.dir, models.Chatter() if options.workload == "cycles" else Noop())
    database = options.dir / "loopwright.db"
    await engine.run(models.cycles_plan(20) if options.workload == "cycles" else loop_plan(20))
    before = protocol.stored_bytes(database)
    counted = "SELECT count(*) FROM segment"
    rows = protocol.count_rows(database, counted)
    concurrent = options.workload == "concurrent"
    loops, passes = (options.n, options.passes) if concurrent else (1, options.n)
    make = PLANS.get(options.workload, loop_plan)
    plan = make(passes)
    if options.workload == "inner":
        passes *= 3
    with protocol.Meter() as meter:
        await asyncio.gather(*(engine.run(plan) for _ in range(loops)))
    await engine.close()
    done = _count_passes(database, before_rows=rows)
    protocol.emit(
        options.workload,
        steps=loops * passes,
        meter=meter,
        recorded=done,
        bytes=protocol.stored_bytes(database),
        bytes_before=before,
        fsyncs=protocol.count_rows(database, counted) - rows if not concurrent else None,
        journal_mode="wal",
        synchronous=2,
    )


def _count_passes(database: Path, *, before_rows: int) -> int:
    """Finished passes in the log itself: events are JSON, so they can be counted by their kind."""
    query = (
        "SELECT coalesce(sum((length(body) - length(replace(CAST(body AS TEXT),"
        " '\"kind\":\"iteration.finished\"', ''))) / 27), 0) FROM segment"
        f" WHERE rowid > {before_rows}"
    )
    return protocol.count_rows(database, query)


async def victim(options: argparse.Namespace) -> None:
    performer = Noop(hang_after=protocol.PASSES_BEFORE_KILL, loops=options.n)
    engine = Engine(options.dir, performer)
    await asyncio.gather(*(engine.start(loop_plan(10)) for _ in range(options.n)))
    await performer.all_hang.wait()
    protocol.say("ready")
    await asyncio.sleep(protocol.RECOVERY_LIMIT_SECONDS)


async def survivor(options: argparse.Namespace) -> None:
    performer = Noop(hang_after=protocol.PASSES_BEFORE_KILL + 1, loops=options.n)
    engine = Engine(options.dir, performer)
    engine.service.recover()
    await performer.all_hang.wait()
    protocol.say("resumed")


async def waiting(options: argparse.Namespace) -> None:
    engine = Engine(options.dir, Noop())
    await engine.run(gate_plan())
    before = _rss()
    with protocol.Meter() as meter:
        for _ in range(0, options.n, 100):
            await asyncio.gather(*(engine.run(gate_plan()) for _ in range(100)))
    assert len(engine.service.gates()) >= options.n
    after = _rss()
    used, began = time.process_time(), time.perf_counter()
    await asyncio.sleep(IDLE_SECONDS)
    idle = (time.process_time() - used) / (time.perf_counter() - began)
    await engine.close()
    protocol.emit(
        "waiting", steps=options.n, meter=meter, rss_growth=max(0, after - before), idle_cpu=idle
    )


def load(options: argparse.Namespace) -> None:
    workflows.load(options.n, 1)
    with protocol.Meter() as meter:
        each = workflows.load(options.n, LOADS)
    protocol.emit("load", steps=LOADS, meter=meter, each=each)


def cel(options: argparse.Namespace) -> None:
    workflows.evaluations(100)
    with protocol.Meter() as meter:
        workflows.evaluations(options.n)
    protocol.emit("cel", steps=options.n, meter=meter)


async def tools(options: argparse.Namespace) -> None:
    """Turns with two tools of 200 ms each."""
    engine = Engine(options.dir, models.Chatter(models.TOOL_SECONDS))
    await engine.run(models.cycles_plan(1))
    with protocol.Meter() as meter:
        await engine.run(models.cycles_plan(options.n))
    await engine.close()
    protocol.emit("tools", steps=options.n, meter=meter)


def requests(options: argparse.Namespace) -> None:
    with protocol.Meter() as meter:
        cost = models.request_cost()
    protocol.emit("requests", steps=options.n, meter=meter, cost_ms=cost)


async def streams(options: argparse.Namespace) -> None:
    """Runs with a model that streams, all at once, and how long the event loop was away."""
    from loopwright.engine.activity import LiveBus  # noqa: PLC0415 - as above
    from loopwright.operations.agents.tools import Chats  # noqa: PLC0415 - the others are measured without it

    with models.server(options.dir, characters=800) as url:
        environment = {**os.environ, "LOOPWRIGHT_MODEL_BASE_URL": f"{url}/v1"}
        chats = Chats(
            environment=environment, clock=SystemClock(), token="bench", results=options.dir
        )
        engine = Engine(
            options.dir,
            LocalPerformer(LiveBus(), schema_problem, models=chats.performer),
        )
        await engine.run(models.talk_plan())
        with protocol.Meter() as meter, models.Lag() as lag:
            await asyncio.gather(*(engine.run(models.talk_plan()) for _ in range(options.n)))
        done = [row.headline.status for row in engine.log.rows()]
        await engine.close()
        await chats.close()
    assert done == ["completed"] * (options.n + 1), done
    protocol.emit("streams", steps=options.n, meter=meter, worst_ms=lag.worst)


async def snapshots(options: argparse.Namespace) -> None:
    """Snapshots of a folder with this many files."""
    with protocol.Meter() as meter:
        figures = await trees.measure(options.dir, options.n)
    protocol.emit("snapshots", steps=options.n, meter=meter, **figures)


class Busy:
    """An agent that does so many things, one every few milliseconds, and reports them or not."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self.reports = False

    async def perform(self, job: EffectJob) -> Answer:
        for number in range(self._entries):
            await asyncio.sleep(TOOL_CALL_SECONDS)
            if self.reports:
                job.activity.record(
                    ActivityEntry(
                        kind="command",
                        tool="Bash",
                        target=f"make target-{number}",
                        ok=True,
                        code=0,
                        ms=3,
                        arguments=f'{{"command":"make target-{number}"}}',
                        result=f"{number} " + "built a file\n" * 150,
                    )
                )
        return EffectSuccess(output=protocol.RESULT)


async def activity(options: argparse.Namespace) -> None:
    """One call with this many entries of activity, beside the same call without."""
    busy = Busy(options.n)
    engine = Engine(options.dir, busy)
    await engine.run(loop_plan(1))
    with protocol.Meter() as silent:
        await engine.run(loop_plan(1))
    busy.reports = True
    with protocol.Meter() as meter:
        run = await engine.start(loop_plan(1))
        await engine.driver.rest(run)
    found = [one.event for one in engine.log.read(run)]
    events = [logged for logged in found if isinstance(logged, EffectActivity)]
    recorded = sum(len(event.entries) for event in events)
    await engine.close()
    assert recorded == options.n, recorded
    protocol.emit(
        "activity",
        steps=options.n,
        meter=meter,
        recorded=recorded,
        commits=len(events),
        overhead=max(0.0, meter.cpu_seconds - silent.cpu_seconds) / meter.seconds,
    )


def _rss() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def help_cost(options: argparse.Namespace) -> None:
    trace = (
        "import sys\n"
        "opened = []\n"
        "sys.addaudithook(lambda e, a: opened.append(str(a[0])) if e == 'open' else None)\n"
        "import loopwright\n"
        "own = [o for o in opened if not o.endswith(('.py', '.pyc', '.so'))"
        " and '__pycache__' not in o and not o.isdigit()]\n"
        "sys.stderr.write(str(len(own)))\n"
    )
    probe = subprocess.run(
        [sys.executable, "-c", trace], capture_output=True, text=True, check=True
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with protocol.Meter() as meter:
        subprocess.run(
            [sys.executable, "-m", "loopwright", "--help"], capture_output=True, check=True
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    protocol.emit(
        "help",
        steps=1,
        meter=meter,
        cpu_seconds=used,
        import_opens=int(probe.stderr or 0),
        import_prints=len(probe.stdout),
    )


async def lists(options: argparse.Namespace) -> None:
    """CPU of `loopwright ls` with `n` runs of `passes` iterations, and of an empty `inbox`."""
    engine = Engine(options.dir, Noop())
    with protocol.Meter() as meter:
        for _ in range(options.n):
            await engine.run(loop_plan(options.passes))
    await engine.close()
    protocol.emit(
        "lists",
        steps=options.n,
        meter=meter,
        ls_seconds=_command_cpu("ls", options.dir),
        inbox_seconds=_command_cpu("inbox", options.dir),
    )


def _command_cpu(name: str, folder: Path) -> float:
    """The median CPU of a command, after one that reads the modules into the cache of the disk."""
    found = []
    for _ in range(LIST_TIMES + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        words = [sys.executable, "-m", "loopwright", name, "--data-dir", str(folder)]
        subprocess.run(words, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return statistics.median(found[1:])


def main() -> None:
    own = ["waiting", "foreach", "passes", "dag", "inner", "load", "cel", "help", "lists"]
    own += ["cycles", "tools", "requests", "streams", "snapshots", "activity"]
    options = protocol.arguments(["sequential", "concurrent", "recovery", *own])
    if options.workload == "recovery":
        protocol.recovery(__file__, options)
    elif options.workload in PLAIN:
        PLAIN[options.workload](options)
    else:
        asyncio.run(PLAYED.get(options.workload, throughput)(options))


PLAIN = {"cel": cel, "help": help_cost, "load": load, "requests": requests}
PLAYED = {
    "activity": activity,
    "lists": lists,
    "recovery-survivor": survivor,
    "recovery-victim": victim,
    "snapshots": snapshots,
    "streams": streams,
    "tools": tools,
    "waiting": waiting,
}


if __name__ == "__main__":
    main()
