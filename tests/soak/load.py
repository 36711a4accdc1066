"""Load for a server: loops whose agents answer, fail, fork, detach and hang, and clients that come
and leave. Everything is measured from outside, in `/proc`.
"""

import asyncio
import contextlib
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.http.served import Served
from tests.http.talking import tab

LOOPS = 30
ROUND_SECONDS = 3.0  # a round takes at least so long
LOOKS = 400  # ten in a second; then it is not waited for loops that have no agent just now
FEWEST_SAMPLES = 20
MARK = "at-work"  # a file of an agent that works
ALL_BUT = 1  # of the loops must have an agent when a round is measured
WINDOWS = 10
MOST_SECONDS_AFTER = 120.0  # for runs to end that were stopped when the time was over
FOLLOWERS = 4  # of each kind, at once

# What an agent does follows from the round and its loop: mostly it answers with 2.7 kB. Of the 30
# loops about as many fork, fail or hang in each round, so that a difference between rounds is one
# of the server. Before it answers, an agent waits for the others: agents work in rounds, so that a
# round can be measured while every loop has one, however busy the machine is. One that hangs is
# killed after a while and holds nobody up.
AGENT = """#!/bin/sh
cat > /dev/null
chance=$(((97 * $(cat ../number) + 8 * ${PWD##*-}) % 256))
if [ $chance -lt 45 ]; then sleep 300 & fi
if [ $chance -lt 70 ]; then setsid sleep 300 > /dev/null 2>&1 < /dev/null & fi
if [ $chance -lt 3 ]; then echo hangs > at-work; sleep 300; fi
echo waits > at-work
read go < ../round
if [ $chance -lt 10 ]; then echo "this did not work" >&2; exit 1; fi
od -An -N900 -tx1 /dev/urandom | head -c 2700
exit 0
"""


@dataclass(frozen=True)
class Sample:
    """A server at one moment."""

    memory: float  # resident, in MB
    descriptors: float
    threads: float
    processes: float  # below it

    NAMES = ("memory", "descriptors", "threads", "processes")


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def children_of(pid: int) -> Iterator[int]:
    """Every descendant of a process."""
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            found = Path(f"/proc/{pid}/task/{task}/children").read_text(encoding="ascii").split()
            for child in map(int, found):
                yield child
                with contextlib.suppress(OSError):
                    yield from children_of(child)


def sample(pid: int) -> Sample:
    status = status_of(pid)
    return Sample(
        memory=int(status["VmRSS"].split()[0]) / 1_000,
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
        threads=int(status["Threads"]),
        processes=len(list(children_of(pid))),
    )


def medians(samples: list[Sample], name: str) -> list[float]:
    """The median of each tenth of the time."""
    size = len(samples) // WINDOWS
    parts = [samples[size * n : size * (n + 1)] for n in range(WINDOWS)]
    return [statistics.median(getattr(one, name) for one in part) for part in parts]


@dataclass
class Load:
    """Loops and clients of one server, measured for so many seconds from the start on."""

    ask: Served
    pid: int
    seconds: float
    samples: list[Sample] = field(default_factory=list)
    started: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    followed: int = 0
    _runs: set[str] = field(default_factory=set)
    _until: float = 0.0
    _rounds: int = 0
    _begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def make(self) -> None:
        """Everything at once, until the time is over or something goes wrong."""
        self._until = time.monotonic() + self.seconds
        (self.ask.folder / "agent.sh").write_text(AGENT, encoding="utf-8")
        (self.ask.folder / "agent.sh").chmod(0o755)
        os.mkfifo(self.ask.folder / "round")
        (self.ask.folder / "number").write_text("0", encoding="ascii")
        for number in range(LOOPS):
            (self.ask.folder / f"workspace-{number}").mkdir()
        work = [
            self._measure(),
            *(self._loop(number) for number in range(LOOPS)),
            *(self._follow_stream() for _ in range(FOLLOWERS)),
            *(self._follow_socket() for _ in range(FOLLOWERS)),
        ]
        async with (
            asyncio.timeout(3 * self.seconds + MOST_SECONDS_AFTER),
            asyncio.TaskGroup() as group,
        ):
            for one in work:
                group.create_task(one)

    def _is_over(self) -> bool:
        """Whether the time is over; a busy machine gets more of it for as many rounds."""
        late = time.monotonic() - self._until
        return late >= 0 and (len(self.samples) >= FEWEST_SAMPLES or late >= 2 * self.seconds)

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(0.0 if self._is_over() else seconds)

    async def _request(self, *words: Any) -> Any:
        reply = await asyncio.to_thread(self.ask, *words)
        if reply.status >= 400:
            raise RuntimeError(f"{words[:2]}: {reply.status} {reply.body[:500]!r}")
        return reply.json

    async def _measure(self) -> None:
        """Measure when every loop has an agent at work, then let them answer."""
        while not self._is_over():
            await self._pause(ROUND_SECONDS)
            for _ in range(LOOKS):
                if len(self._at_work()) >= LOOPS:
                    break
                await asyncio.sleep(0.1)
            if len(self._at_work()) >= LOOPS - ALL_BUT:
                self.samples.append(sample(self.pid))
            self._end_round()
        while self._runs:  # so that no agent waits for a round that does not come
            self._end_round()
            await asyncio.sleep(0.5)

    def _at_work(self) -> list[Path]:
        """What agents that began in this round have left, and those that hang."""
        return list(self.ask.folder.glob(f"workspace-*/{MARK}"))

    def _end_round(self) -> None:
        for one in self._at_work():
            with contextlib.suppress(OSError):
                if one.read_text(encoding="utf-8") != "hangs\n":
                    one.unlink()
        self._rounds += 1
        (self.ask.folder / "next").write_text(str(self._rounds), encoding="ascii")
        (self.ask.folder / "next").rename(self.ask.folder / "number")
        with contextlib.suppress(OSError):  # nobody reads
            gate = os.open(self.ask.folder / "round", os.O_WRONLY | os.O_NONBLOCK)
            os.write(gate, b"go\n" * LOOPS)
            os.close(gate)

    async def _loop(self, number: int) -> None:
        """One loop after another, each of a few iterations; a person stops some of them."""
        folder = self.ask.folder / f"workspace-{number}"
        definition = {
            "name": "soak",
            "agent": f"command:{self.ask.folder / 'agent.sh'}",
            "goal": f"Write number {number}.",
            "budget": {"idle": "45s"},
            "repeat": {"max": random.randint(3, 60)},  # some complete on a busy machine, too
        }
        while not self._is_over():
            body = {"definition": json.dumps(definition), "workspace": str(folder)}
            run = str((await self._request("POST", "/api/v1/runs", body))["run"])
            self.started += 1
            self._runs.add(run)
            self._begun.set()
            await self._watch(run, random.uniform(20, 240), folder / MARK)
            self._runs.discard(run)

    async def _watch(self, run: str, patience: float, mark: Path) -> None:
        """Wait until a run has ended; stop it after a while, or at the end of the time."""
        stop_at, stopped = time.monotonic() + patience, False
        while True:
            found = await self._request("GET", f"/api/v1/runs/{run}")
            if found["status"] not in ("running", "waiting"):
                self.outcomes[found["status"]] = self.outcomes.get(found["status"], 0) + 1
                _remove(mark)
                return
            if not stopped and (time.monotonic() >= stop_at or self._is_over()):
                _remove(mark)
                await self._request("POST", f"/api/v1/runs/{run}/stop", {})
                stopped = True
            await asyncio.sleep(1.0)

    async def _chosen(self) -> str:
        await self._begun.wait()
        return random.choice(sorted(self._runs) or ["r_none"])

    async def _follow_stream(self) -> None:
        """Follow the events of a run over HTTP for a while, then leave without a word."""
        while not self._is_over():
            run = await self._chosen()
            reader, writer = await asyncio.open_connection("127.0.0.1", self.ask.port)
            lines = (
                f"GET /api/v1/runs/{run}/events?text=true HTTP/1.1",
                f"Host: 127.0.0.1:{self.ask.port}",
                f"Authorization: Bearer {self.ask.token}",
                "Accept: text/event-stream",
            )
            writer.write("\r\n".join((*lines, "", "")).encode())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(random.uniform(1, 8)):
                    while await reader.read(65_536):
                        pass
            writer.transport.abort()
            self.followed += 1
            await self._pause(0.2)

    async def _follow_socket(self) -> None:
        """Follow a run over Socket.IO for a while, then leave."""
        while not self._is_over():
            async with tab(self.ask) as client:
                await client.say("subscribe", {"run": await self._chosen()})
                await self._pause(random.uniform(1, 8))
            self.followed += 1
            await self._pause(0.2)


def _remove(mark: Path) -> None:
    mark.unlink(missing_ok=True)


def growth(samples: list[Sample]) -> dict[str, tuple[float, float, float]]:
    """For each measure: its value after the first tenth, the lowest and the highest after that."""
    found = {name: medians(samples, name) for name in Sample.NAMES}
    return {name: (rows[1], min(rows[2:]), max(rows[2:])) for name, rows in found.items()}


def wait_until(is_so: Callable[[], bool], seconds: float) -> bool:
    """Whether something is so within that time."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
