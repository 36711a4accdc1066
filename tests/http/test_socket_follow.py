"""Follow a run over a socket: a snapshot, then events by number; none twice and none lost."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loopwright.http import socket_endpoint, socket_subscribers
from loopwright.http.socket_endpoint import Sockets
from loopwright.http.socket_subscribers import MOST_WAITING
from loopwright.kernel.events import AnyEvent, RunPaused, RunResumed
from loopwright.ports import Append
from loopwright.views.event_records import event_on_wire
from tests.http.served import SECONDS, Served, served
from tests.http.talking import Tab, tab, talk


def finished(own: Served, passes: int) -> str:
    """A run that has ended, with many events."""
    agent = own.script(*["some work"] * passes, name=f"{passes}.yaml")
    run = own.start(own.definition(agent, max=passes))
    own.until(run, "completed", "exhausted")
    return run


def truth(own: Served, run: str) -> list[dict[str, Any]]:
    """The events of a run as they travel."""
    events = own.context.here.log.read(run)
    return [json.loads(json.dumps(event_on_wire(run, one))) for one in events]


def seen(one: Tab, run: str) -> list[dict[str, Any]]:
    packets = [data for data in one.all("run:events") if data["run"] == run]
    return [event for data in packets for event in data["events"]]


async def all_of(one: Tab, run: str, last: int) -> list[dict[str, Any]]:
    await one.until(lambda: (found := seen(one, run)) and found[-1]["seq"] >= last)
    return seen(one, run)


def test_from_the_beginning(shared: Served) -> None:
    """After number 0 come all events, each once, in order."""
    run = finished(shared, 5)
    known = truth(shared, run)

    async def go() -> None:
        async with tab(shared) as one:
            answer = await one.say("subscribe", {"run": run, "after": 0})
            assert answer == {"ok": True, "run": run, "seq": len(known), "after": 0}
            assert await all_of(one, run, len(known)) == known

    talk(go())


def test_from_a_snapshot(shared: Served) -> None:
    """Without a number the answer is a snapshot, and what comes after it follows."""
    run, gate = shared.gated()

    async def go() -> None:
        async with tab(shared) as one:
            answer = await one.say("subscribe", {"run": run})
            shown = answer["snapshot"]
            assert shown["seq"] == answer["seq"]
            assert shown["gates"][0]["id"] == gate
            reply = await asyncio.to_thread(shared, "POST", f"/api/v1/gates/{gate}/approve", {})
            assert reply.status == 200
            await one.until(lambda: any(e["kind"] == "run.finished" for e in seen(one, run)))
            assert seen(one, run) == truth(shared, run)[shown["seq"] :]
            assert (await one.say("unsubscribe", {"run": run}))["was"] is True
            assert (await one.say("unsubscribe", {"run": run}))["was"] is False

    talk(go())


def test_no_longer(shared: Served) -> None:
    """Who follows no longer is told nothing more of that run; others go on."""
    run, gate = shared.gated()

    async def go() -> None:
        async with tab(shared) as leaves, tab(shared) as stays:
            for one in (leaves, stays):
                await one.say("subscribe", {"run": run})
            assert (await leaves.say("unsubscribe", {"run": run}))["was"] is True
            reply = await asyncio.to_thread(shared, "POST", f"/api/v1/gates/{gate}/approve", {})
            assert reply.status == 200
            await stays.until(lambda: any(e["kind"] == "run.finished" for e in seen(stays, run)))
            await leaves.say("unsubscribe", {"run": run})  # what was sent before has come by now
            assert seen(leaves, run) == []

    talk(go())


@pytest.mark.item("F11")
@pytest.mark.parametrize("after", [1_000, 10**9])
def test_a_number_from_elsewhere(shared: Served, after: int) -> None:
    """A client that is ahead of us has seen another log: it gets the whole picture."""
    run = finished(shared, 2)

    async def go() -> None:
        async with tab(shared) as one:
            answer = await one.say("subscribe", {"run": run, "after": after})
            assert answer["resync"] is True
            assert answer["snapshot"]["seq"] == answer["seq"] == len(truth(shared, run))

    talk(go())


def test_a_number_too_old(shared: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client too far behind gets the whole picture in the place of what it missed."""
    run = finished(shared, 5)
    monkeypatch.setattr(socket_subscribers, "FAR_BEHIND", 10)

    async def go() -> None:
        async with tab(shared) as one:
            answer = await one.say("subscribe", {"run": run, "after": 1})
            assert answer["resync"] is True
            near = answer["seq"] - 10
            assert "snapshot" not in await one.say("subscribe", {"run": run, "after": near})

    talk(go())


def test_an_unknown_run(shared: Served) -> None:
    """Only a run that is there can be followed."""

    async def go() -> None:
        async with tab(shared) as one:
            answer = await one.say("subscribe", {"run": "run_0"})
            assert (answer["ok"], answer["code"]) == (False, "not-found")

    talk(go())


async def write(own: Served, run: str, times: int) -> None:
    """Write many events to a run that waits."""
    log, now = own.context.here.log, own.context.clock.now_ms()
    for _ in range(times):
        events: list[AnyEvent] = [RunPaused(at=now, by="x" * 500), RunResumed(at=now)] * 50
        await log.append(Append(run=run, expected=log.version(run), events=events))
        await asyncio.sleep(0.01)


async def backlogs(own: Served) -> list[int]:
    found = own.context.part(Sockets)
    return [found.line.backlog(client.sid) for client in found.clients.all()]


@pytest.mark.item("F12")
def test_a_client_that_never_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for it stays below its bound, others get everything, and it is resynced."""
    monkeypatch.setattr(socket_subscribers, "FAR_BEHIND", 500)
    monkeypatch.setattr(socket_subscribers, "PACKET_BYTES", 8_000)
    with served(tmp_path, send_buffer=4_096) as own:
        run, _ = own.gated()
        with deaf(own, run) as sock:
            talk(_write_to_the_deaf(own, run))
            wanted = b'"seq":%d' % own.context.here.log.version(run)
            got = b""
            while wanted not in got:
                got = got[-1_000_000:] + sock.recv(65_536)
            assert b'"reason":"behind"' in got


async def _write_to_the_deaf(own: Served, run: str) -> None:
    most = 0
    async with tab(own) as good:
        await good.say("subscribe", {"run": run, "after": 0})
        for _ in range(20):
            here = asyncio.run_coroutine_threadsafe
            await asyncio.wrap_future(here(write(own, run, 1), own.loop))
            most = max(most, *await asyncio.wrap_future(here(backlogs(own), own.loop)))
        version = own.context.here.log.version(run)
        await good.until(lambda: last(good) == version)
    assert MOST_WAITING // 2 <= most <= MOST_WAITING + 1


def last(one: Tab) -> int:
    """The newest number that a client knows of."""
    numbers = [data.get("seq") for name in ("run:events", "resync") for data in one.all(name)]
    return max((number for number in numbers if number), default=0)


@contextmanager
def deaf(own: Served, run: str) -> Iterator[socket.socket]:
    """A client that subscribes and then reads nothing."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.settimeout(SECONDS)
        sock.connect(("127.0.0.1", own.port))
        key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        sock.sendall(
            f"GET /socket.io/?EIO=4&transport=websocket HTTP/1.1\r\nHost: 127.0.0.1:{own.port}\r\n"
            f"Connection: Upgrade\r\nUpgrade: websocket\r\n{key}\r\n".encode()
        )
        said = [
            "40" + json.dumps({"token": own.token}),
            "42" + json.dumps(["subscribe", {"run": run, "after": 0}]),
        ]
        for text, answer in zip(said, [b"0{", b"40{"], strict=True):
            got = b""
            while answer not in got:
                got += sock.recv(4_096)
            sock.sendall(frame(text.encode()))
        yield sock


def frame(data: bytes) -> bytes:
    """A text as a client sends it, masked with zeros."""
    length = bytes([128 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    return b"\x81" + length + bytes(4) + data


def test_nothing_comes_twice(shared: Served) -> None:
    """Whatever number is asked for, what comes begins with the next one, and has no gap; the same
    when a run is asked for again on the same line.
    """
    run = finished(shared, 5)
    known = truth(shared, run)

    async def go() -> None:
        async with tab(shared) as one:
            for after in [*range(len(known)), 3, 3]:
                one.got.clear()
                await one.say("subscribe", {"run": run, "after": after})
                assert await all_of(one, run, len(known)) == known[after:]

    talk(go())


def test_how_many_runs(shared: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection follows fifty runs at most; the same one again is none more, and another has
    its place when one is given up.
    """
    assert socket_endpoint.MOST_TAILS == 50
    monkeypatch.setattr(socket_endpoint, "MOST_TAILS", 2)
    one_run, other, third = [finished(shared, 1) for _ in range(3)]

    async def go() -> None:
        async with tab(shared) as one, tab(shared) as two:
            for run in (one_run, other, one_run):
                assert (await one.say("subscribe", {"run": run}))["ok"]
            answer = await one.say("subscribe", {"run": third})
            assert (answer["ok"], answer["code"]) == (False, "too-many-runs")
            assert (await two.say("subscribe", {"run": third}))["ok"]
            assert (await one.say("unsubscribe", {"run": other}))["was"] is True
            assert (await one.say("subscribe", {"run": third}))["ok"]

    talk(go())
