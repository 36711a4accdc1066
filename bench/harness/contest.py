"""Who competes in what, and the rounds: every contender in turn, the order reversed each time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.environment import fsync_median, note

CONTENDERS_DIR = Path(__file__).resolve().parents[1] / "contenders"
LIMIT_SECONDS = 180
SYNCHRONOUS_FULL = 2

Home = Literal["project", "peers"]


@dataclass(frozen=True)
class Contender:
    """A script that speaks the protocol of ``bench/README.md``."""

    name: str
    script: str
    home: Home
    options: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return CONTENDERS_DIR / self.script


CONTENDERS = (
    Contender("ours", "ours.py", "project"),
    Contender("server", "server.py", "project"),
    Contender("bare", "bare.py", "project"),
    Contender("bare-group", "bare.py", "project", ("--variant", "group")),
    Contender("langgraph-sync", "langgraph_sync.py", "peers"),
    Contender("langgraph-async", "langgraph_async.py", "peers"),
    Contender("dbos-sqlite", "dbos_sqlite.py", "peers"),
)
PEERS = tuple(contender.name for contender in CONTENDERS if contender.home == "peers")


@dataclass(frozen=True)
class Workload:
    """One workload at one size; ``key`` names it in the results."""

    key: str
    name: str
    n: int
    passes: int | None = None
    contenders: tuple[str, ...] = ("ours",)
    rounds: dict[str, int] = field(default_factory=dict)  # a lower number of rounds for some
    turns: int = 1  # how often in a round; short turns side by side say more on an unsteady disk

    def arguments(self) -> list[str]:
        passes = [] if self.passes is None else ["--passes", str(self.passes)]
        return [self.name, "--n", str(self.n), *passes]


SERVER = ("server",)
EVERYBODY = tuple(contender.name for contender in CONTENDERS if contender.name not in SERVER)
RECOVERING = ("ours", "bare", "bare-group", "langgraph-async", "dbos-sqlite")

FULL = (
    Workload("sequential", "sequential", 500, contenders=EVERYBODY, turns=2),
    Workload("concurrent", "concurrent", 200, 20, contenders=EVERYBODY),
    Workload(
        "recovery",
        "recovery",
        1_000,
        contenders=RECOVERING,
        rounds={"langgraph-async": 2, "dbos-sqlite": 2},
    ),
    Workload("waiting", "waiting", 10_000, rounds={"ours": 2}),
    Workload("foreach-1000", "foreach", 1_000),
    Workload("foreach-10000", "foreach", 10_000),
    Workload("passes-1000", "passes", 1_000),
    Workload("passes-10000", "passes", 10_000),
    Workload("dag", "dag", 1_000),
    Workload("inner-100", "inner", 100),
    Workload("inner-1000", "inner", 1_000),
    Workload("load", "load", 100),
    Workload("cel", "cel", 20_000),
    Workload("cycles", "cycles", 500),
    Workload("tools", "tools", 10, rounds={"ours": 2}),
    Workload("requests", "requests", 300, rounds={"ours": 2}),
    Workload("streams", "streams", 100, rounds={"ours": 3}),
    Workload("snapshots", "snapshots", 50_000, rounds={"ours": 2}),
    Workload("activity", "activity", 1_000, rounds={"ours": 3}),
    Workload("help", "help", 1),
    Workload("lists", "lists", 20, 600, rounds={"ours": 1}),
    Workload("live", "live", 100, contenders=SERVER, rounds={"server": 2}),
    Workload("live-ten", "live-ten", 100, contenders=SERVER, rounds={"server": 1}),
    Workload("lookups", "lookups", 8_000, contenders=SERVER, rounds={"server": 3}),
    Workload("crowd", "crowd", 10_000, contenders=SERVER, rounds={"server": 1}),
    Workload("long", "long", 1_000_000, contenders=SERVER, rounds={"server": 1}),
)
"""The workloads the targets are about."""

QUICK = (
    Workload("sequential", "sequential", 200, contenders=EVERYBODY),
    Workload("concurrent", "concurrent", 200, 5, contenders=EVERYBODY),
    Workload("recovery", "recovery", 1_000, contenders=("ours", "bare", "bare-group")),
    Workload("waiting", "waiting", 2_000, rounds={"ours": 1}),
    Workload("foreach-1000", "foreach", 200),
    Workload("foreach-10000", "foreach", 2_000),
    Workload("passes-1000", "passes", 200),
    Workload("passes-10000", "passes", 2_000),
    Workload("dag", "dag", 200),
    Workload("inner-100", "inner", 20),
    Workload("inner-1000", "inner", 200),
    Workload("load", "load", 100),
    Workload("cel", "cel", 2_000),
    Workload("cycles", "cycles", 100),
    Workload("tools", "tools", 3, rounds={"ours": 1}),
    Workload("requests", "requests", 300, rounds={"ours": 1}),
    Workload("streams", "streams", 20, rounds={"ours": 1}),
    Workload("snapshots", "snapshots", 1_000, rounds={"ours": 1}),
    Workload("activity", "activity", 1_000, rounds={"ours": 1}),
    Workload("help", "help", 1),
    Workload("lists", "lists", 20, 20, rounds={"ours": 1}),
    Workload("live", "live", 20, contenders=SERVER, rounds={"server": 1}),
    Workload("live-ten", "live-ten", 20, contenders=SERVER, rounds={"server": 1}),
    Workload("lookups", "lookups", 1_000, contenders=SERVER, rounds={"server": 1}),
    Workload("crowd", "crowd", 500, contenders=SERVER, rounds={"server": 1}),
    Workload("long", "long", 20_000, contenders=SERVER, rounds={"server": 1}),
)
"""The same, small: to see that everything works, not to be quoted."""

Sample = dict[str, Any]


class ContenderFailedError(Exception):
    """A contender crashed, hung or did not do what it was asked."""


@dataclass
class Contest:
    """The rounds and what they brought."""

    contenders: list[Contender]
    workloads: list[Workload]
    pythons: dict[Home, str]
    directory: Path
    samples: dict[str, dict[str, list[Sample]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    rounds_done: int = 0
    _deadline: float = 0.0
    _took: dict[tuple[str, str], float] = field(default_factory=dict)

    def run(self, rounds: int, budget_seconds: float) -> None:
        """All rounds, or as many as fit into the budget; always at least one.

        A round that turns out slower than those before it is cut short at the budget: ratios are
        taken within a round, so what it has measured by then still counts.
        """
        begin = time.monotonic()
        self._deadline = begin + budget_seconds
        for number in range(rounds):
            used = time.monotonic() - begin
            if number and used + self._expected(number) > budget_seconds:
                note(f"bench: {number} of {rounds} rounds fit into {budget_seconds:.0f} s")
                return
            note(f"bench: round {number + 1} of {rounds}")
            self._round(number)
            self.rounds_done = number + 1

    def probes(self) -> list[float]:
        """How long one fsync took before each of the samples, in µs."""
        lists = [found for by_name in self.samples.values() for found in by_name.values()]
        return [sample["fsync_us"] for found in lists for sample in found]

    def _expected(self, number: int) -> float:
        """How long a round will take, by what each of its measurements took the last time."""
        return sum(
            workload.turns * self._took.get((workload.key, contender.name), 0.0)
            for workload in self.workloads
            for contender in self._entered(workload, number)
        )

    def _entered(self, workload: Workload, number: int) -> list[Contender]:
        return [
            contender
            for contender in self.contenders
            if contender.name in workload.contenders
            and number < workload.rounds.get(contender.name, number + 1)
        ]

    def _round(self, number: int) -> None:
        for workload in self.workloads:
            entered = self._entered(workload, number)
            for turn in range(number * workload.turns, (number + 1) * workload.turns):
                # What the disk does drifts; whoever went first goes last next time.
                for contender in reversed(entered) if turn % 2 else entered:
                    began = time.monotonic()
                    if number == 0 or began < self._deadline:
                        self._measure(workload, contender, turn)
                        took = time.monotonic() - began
                        self._took[workload.key, contender.name] = took

    def _measure(self, workload: Workload, contender: Contender, turn: int) -> None:
        # What the one before left to be written must not be charged to this one; how the disk
        # does at the moment is kept with the sample.
        os.sync()
        probe = fsync_median(self.directory, times=15)
        try:
            sample = self.run_once(workload, contender)
        except ContenderFailedError as failure:
            self.failures.append(f"{contender.name}, {workload.key}: {failure}")
            note(f"  {workload.key:14} {contender.name:16} FAILED: {failure}")
            return
        sample["round"] = turn
        sample["fsync_us"] = round(probe * 1e6, 1)
        self.samples.setdefault(workload.key, {}).setdefault(contender.name, []).append(sample)
        note(f"  {workload.key:14} {contender.name:16} {sample['seconds']:8.3f} s")

    def run_once(
        self, workload: Workload, contender: Contender, *, profile: Path | None = None
    ) -> Sample:
        """One process, one line of JSON, one fresh directory."""
        data = Path(tempfile.mkdtemp(prefix="run-", dir=self.directory))
        # A client that is profiled says nothing about its server: that one is told to do it.
        own = profile is not None and contender.name not in SERVER
        profiler = ["-m", "cProfile", "-o", str(profile)] if own else []
        command = [self.pythons[contender.home], *profiler, str(contender.path)]
        command += [*workload.arguments(), "--dir", str(data), *contender.options]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=LIMIT_SECONDS,
                env=_environment() | ({"BENCH_PROFILE": str(profile)} if profile else {}),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ContenderFailedError(f"no result within {LIMIT_SECONDS} s") from None
        finally:
            shutil.rmtree(data, ignore_errors=True)
        if done.returncode != 0:
            sys.stderr.write(done.stderr[-3_000:])
            raise ContenderFailedError(f"exit code {done.returncode}")
        return _checked(done.stdout, workload)


def _environment() -> dict[str, str]:
    """No settings of the caller that could change a contender, no tracing to anywhere."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false"}


def _checked(stdout: str, workload: Workload) -> Sample:
    """The sample, if it keeps the protocol and proves that the work was done and durable."""
    try:
        sample = json.loads(stdout.strip().splitlines()[-1])
        float(sample["seconds"])
        steps = int(sample["steps"])
    except (IndexError, KeyError, TypeError, ValueError):
        raise ContenderFailedError("its last line of output is not a sample") from None
    if sample.get("workload") != workload.name:
        raise ContenderFailedError(f"it answered for {sample.get('workload')!r}")
    if workload.name in ("sequential", "concurrent"):
        asked = workload.n * (workload.passes or 1)
        if steps != asked or int(sample.get("recorded", 0)) < asked:
            found = sample.get("recorded", 0)
            raise ContenderFailedError(f"{found} of {asked} passes are in its database")
        settings = (sample.get("journal_mode"), sample.get("synchronous"))
        if settings != ("wal", SYNCHRONOUS_FULL):
            raise ContenderFailedError(f"journal mode and synchronous are {settings}")
    return sample
