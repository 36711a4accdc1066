"""The server under load: a process of its own with `loopwright serve`, and clients in this one.

    python contenders/server.py WORKLOAD --n N --dir DIR

Every workload is bounded and ends its server. Figures are what a client sees.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import protocol
from msgspec.structs import replace
from ours import Engine, Noop, gate_plan, loop_plan

from loopwright.kernel.events import AnyEvent, EffectDone, EffectRequested
from loopwright.operations.run_request import RunStart
from loopwright.ports import Append, Headline

RATE = 1_000_000
RUNS = 50
PEOPLE = 5
PASS_SECONDS = 1.0
SECONDS = 8.0
WARM_SECONDS = 2.0
CONNECTIONS = 8
LOOKS = 20
START_SECONDS = 150.0
AT_ONCE = 5_000  # passes in one commit, where only their number matters


class Server:
    """`loopwright serve` on a port of its own, on one core where that can be arranged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "loopwright", "--json", "--data-dir", str(folder / "home")]
        command += ["serve", "--port", "0", "--rate", str(RATE), "--workspace", str(folder)]
        if profile := os.environ.get("BENCH_PROFILE"):
            command[1:1] = ["-m", "cProfile", "-o", profile]
        self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        began = time.perf_counter()
        told = json.loads(self.process.stdout.readline())
        self.start_seconds = time.perf_counter() - began
        self.port = int(told["url"].rpartition(":")[2])
        kept = folder / "token"
        if told["token"]:
            kept.write_text(told["token"], encoding="ascii")
        self.token = kept.read_text(encoding="ascii")
        self.pid = self.process.pid
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > 1:
            for task in os.listdir(f"/proc/{self.pid}/task"):
                os.sched_setaffinity(int(task), {cores[0]})
            os.sched_setaffinity(0, set(cores[1:]))

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """One request on a connection of its own."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_SECONDS)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        line.request(method, path, None if body is None else json.dumps(body), headers)
        answer = line.getresponse()
        found = json.loads(answer.read() or b"null")
        line.close()
        assert answer.status < 300, found
        return found

    def new_token(self, label: str) -> str:
        """A token of somebody else: all that one token makes share the sockets of one person."""
        command = [sys.executable, "-m", "loopwright", "--data-dir", str(self.folder / "home")]
        command += ["token", "create", label, "--role", "viewer"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def timed(self, path: str) -> tuple[float, dict[str, Any]]:
        """Seconds of one request, and its answer."""
        began = time.perf_counter()
        found = self.ask("GET", path)
        return time.perf_counter() - began, found

    def until_ended(self, path: str) -> None:
        limit = time.monotonic() + START_SECONDS
        while self.ask("GET", path)["status"] == "running" and time.monotonic() < limit:
            time.sleep(0.05)

    @property
    def rss(self) -> int:
        pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    @property
    def cpu(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2]
        user, system = fields.split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    one = Server(folder)
    try:
        yield one
    finally:
        one.end()


def definition(folder: Path, *, passes: int, delay: float) -> str:
    """A loop of iterations that each take so long."""
    replies = folder / f"replies-{delay}.json"
    many = [{"text": protocol.RESULT, "delay": delay}]
    replies.write_text(json.dumps({"replies": many * passes}), encoding="utf-8")
    loop = {"name": "work", "agent": f"script:{replies}", "goal": "Do it."}
    return json.dumps({**loop, "repeat": {"max": passes}})


# -- requests --------------------------------------------------------------------------------------


class Line:
    """A connection that stays, for as many requests as it is asked for."""

    def __init__(self, server: Server, path: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = (
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
            f"Authorization: Bearer {server.token}\r\n\r\n"
        ).encode()

    async def ask(self, times: int) -> None:
        reader, writer = await asyncio.open_connection(sock=self._socket)
        for _ in range(times):
            writer.write(self._request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(size)
        writer.close()


async def lookups(options: argparse.Namespace) -> None:
    """`GET runs/{id}`, as many a second as one core answers, on connections that stay."""
    with serving(options.dir) as server:
        text = definition(options.dir, passes=10, delay=0.0)
        run = server.ask("POST", "/api/v1/runs", {"definition": text})["run"]
        path = f"/api/v1/runs/{run}"
        server.until_ended(path)
        await asyncio.gather(*(Line(server, path).ask(20) for _ in range(CONNECTIONS)))
        used = server.cpu
        lines = [Line(server, path) for _ in range(CONNECTIONS)]
        with protocol.Meter() as meter:
            await asyncio.gather(*(line.ask(options.n // CONNECTIONS) for line in lines))
        protocol.emit(
            "lookups",
            steps=options.n // CONNECTIONS * CONNECTIONS,
            meter=meter,
            cpu_seconds=server.cpu - used,
            max_rss=server.rss,
        )


# -- many runs -------------------------------------------------------------------------------------


async def crowd(options: argparse.Namespace) -> None:
    """Runs that wait for a person: memory of the server, and the first page of the list."""
    home = options.dir / "home"
    home.mkdir()
    engine = Engine(home, Noop())
    for _ in range(0, options.n, 100):
        await asyncio.gather(*(engine.run(gate_plan()) for _ in range(100)))
    await engine.close()
    with serving(options.dir) as server:
        await asyncio.sleep(1.0)
        idle = server.rss
        with protocol.Meter() as meter:
            first, page = server.timed("/api/v1/runs")
            again = [server.timed("/api/v1/runs")[0] for _ in range(LOOKS)]
        assert (len(page["runs"]), page["runs"][0]["gates"]) == (50, 1)
        used = server.cpu
        await asyncio.sleep(3.0)
        protocol.emit(
            "crowd",
            steps=options.n,
            meter=meter,
            idle_rss=idle,
            max_rss=server.rss,
            first_ms=first * 1e3,
            page_ms=statistics.median(again) * 1e3,
            start_ms=server.start_seconds * 1e3,
            idle_cpu=(server.cpu - used) / 3.0,
        )


# -- one run with many events
# -----------------------------------------------------------------------


async def long(options: argparse.Namespace) -> None:
    """The snapshot of a run with very many events: by the server that has seen it end, and by one
    that was started later.
    """
    home = options.dir / "home"
    home.mkdir()
    run = await written(home, options.n)
    path = f"/api/v1/runs/{run}/snapshot"
    with serving(options.dir) as server:
        folding, whole = server.timed(path)
        kept = [server.timed(path)[0] for _ in range(LOOKS)]
    with serving(options.dir) as server:  # one that has never seen the run
        with protocol.Meter() as meter:
            first, shown = server.timed(path)
            again = [server.timed(path)[0] for _ in range(LOOKS)]
        assert whole == shown
        assert shown["seq"] >= options.n, shown["seq"]
        protocol.emit(
            "long",
            steps=options.n,
            meter=meter,
            first_ms=first * 1e3,
            snapshot_ms=statistics.median(again) * 1e3,
            live_ms=statistics.median(kept) * 1e3,
            folding_ms=folding * 1e3,
            bytes_sent=len(json.dumps(shown)),
            max_rss=server.rss,
        )


async def written(home: Path, events: int) -> str:
    """A loop that has ended, with so many events: a real one whose middle pass is repeated."""
    engine = Engine(home, Noop())
    passes = events // 4
    sample = await engine.start(loop_plan(2))
    await engine.driver.rest(sample)
    made = [one.event for one in engine.log.read(sample)]
    run = await engine.service.start(
        RunStart(plan=loop_plan(passes), workspace=home, message="go", drive=False)
    )
    begun, one_pass, *end = made[1], made[2:6], made[-2], made[-1]
    end[0] = replace(end[0], iterations=passes)
    await append(engine, run, [begun])
    for first in range(1, passes + 1, AT_ONCE):
        several = range(first, min(first + AT_ONCE, passes + 1))
        version = engine.log.version(run)
        await asyncio.gather(
            *(
                engine.log.append(
                    Append(
                        run=run,
                        expected=version + 4 * (number - first),
                        events=[renamed(event, number) for event in one_pass],
                    )
                )
                for number in several
            )
        )
    row = engine.log.row(run).headline
    headline = dataclasses.replace(row, status="completed", reason="max_iterations")
    await append(engine, run, end, headline)
    await engine.close()
    return run


async def append(
    engine: Engine, run: str, events: list[AnyEvent], headline: Headline | None = None
) -> None:
    version = engine.log.version(run)
    await engine.log.append(Append(run=run, expected=version, events=events, headline=headline))


def renamed(event: AnyEvent, number: int) -> AnyEvent:
    """An event of one iteration, as it would be in another."""
    path = f"main.{number - 1}"
    if isinstance(event, EffectRequested | EffectDone):
        return replace(event, path=path, iteration=number, effect=f"{path}/agent#1")
    return replace(event, path=path, iteration=number)


# -- events to sockets
# ------------------------------------------------------------------------------


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


class Watcher:
    """A socket that follows runs, and how old each event was when it came."""

    def __init__(self) -> None:
        import socketio  # noqa: PLC0415 - the other workloads do without it

        self.client = socketio.AsyncClient(reconnection=False)
        self.client.on("run:events", self._take)
        self.client.on("resync", self._resync)
        self.ages: list[float] = []
        self.resyncs = 0
        self.counting = False

    async def _take(self, data: dict[str, Any]) -> None:
        if self.counting:
            now = time.time()
            self.ages += [now - moment(one["at"]) for one in data["events"]]

    async def _resync(self, _data: object) -> None:
        self.resyncs += 1

    async def come(self, server: Server, token: str, runs: list[str]) -> None:
        url = f"http://127.0.0.1:{server.port}"
        await self.client.connect(url, auth={"token": token}, transports=["websocket"])
        for run in runs:
            answer = await self.client.call("subscribe", {"run": run})
            assert answer["ok"], answer


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


async def live(options: argparse.Namespace) -> None:
    """Events of fifty runs, to sockets that follow one run each, or ten."""
    passes = int((SECONDS + WARM_SECONDS + 30) / PASS_SECONDS)
    with serving(options.dir) as server:
        text = definition(options.dir, passes=passes, delay=PASS_SECONDS)
        tokens = [server.new_token(f"w{n}") for n in range(PEOPLE)]
        runs = []
        for _ in range(RUNS):
            runs.append(server.ask("POST", "/api/v1/runs", {"definition": text})["run"])
            await asyncio.sleep(PASS_SECONDS / RUNS / 2)
        each = 10 if options.workload == "live-ten" else 1
        watchers = [Watcher() for _ in range(options.n)]
        for number, one in enumerate(watchers):
            followed = [runs[(number + step) % RUNS] for step in range(each)]
            await one.come(server, tokens[number % PEOPLE], followed)
        await asyncio.sleep(WARM_SECONDS)
        for one in watchers:
            one.counting = True
        used, before = server.cpu, events_in(options.dir)
        with protocol.Meter() as meter:
            await asyncio.sleep(SECONDS)
        made = events_in(options.dir) - before
        ages = [age for one in watchers for age in one.ages]
        cpu, rss = server.cpu - used, server.rss
        for one in watchers:
            await one.client.disconnect()
    assert len(ages) >= made * each / RUNS * options.n * 0.9, (len(ages), made)
    protocol.emit(
        options.workload,
        steps=len(ages),
        meter=meter,
        cpu_seconds=cpu,
        max_rss=rss,
        events_per_second=made / meter.seconds,
        p50_ms=percentile(ages, 0.5) * 1e3,
        p99_ms=percentile(ages, 0.99) * 1e3,
        worst_ms=max(ages) * 1e3,
        resyncs=sum(one.resyncs for one in watchers),
    )


def events_in(folder: Path) -> int:
    """How many events there are by now."""
    counted = "SELECT coalesce(sum(last - seq + 1), 0) FROM segment"
    return protocol.count_rows(folder / "home" / "loopwright.db", counted)


WORKLOADS = {
    "crowd": crowd,
    "live": live,
    "live-ten": live,
    "long": long,
    "lookups": lookups,
}


def main() -> None:
    options = protocol.arguments(list(WORKLOADS))
    asyncio.run(WORKLOADS[options.workload](options))


if __name__ == "__main__":
    main()
