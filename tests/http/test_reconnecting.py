"""Coming back to a run that is under way: whatever number a client has seen when its line breaks or
the server goes, what it makes of the events that it got is what the server makes of the log.
"""

import asyncio
import json
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loopwright.kernel.events import AnyEvent
from loopwright.kernel.fold import fold
from tests.http.served import SECONDS, Served, served, wait_for
from tests.http.talking import Tab, tab, talk
from tests.http.test_assistants import people
from tests.http.test_serving import serving
from tests.support.laws.state_picture import picture

EVENTS = 300
PASSES = 100  # which are some more events, so that a run is under way at each of these
_KINDS: dict[str, Any] = {
    str(kind.__struct_config__.tag): kind
    for kind in AnyEvent.__args__  # type: ignore[attr-defined]
}


def from_wire(event: dict[str, Any]) -> AnyEvent:
    """An event as it was before it was sent."""
    known = ("kind", *_KINDS[event["kind"]].__struct_fields__)  # run and seq are of the wire
    body = {name: value for name, value in event.items() if name in known}
    body["at"] = round(datetime.fromisoformat(body["at"]).timestamp() * 1_000)
    if "result" in body and not isinstance(body["result"], str):
        body["result"] = json.dumps(body["result"])
    logged: AnyEvent = msgspec.convert(body, AnyEvent)  # type: ignore[arg-type]
    return logged


@dataclass
class Follower:
    """A client that keeps the events of a run, each when it comes; it knows nothing else of it."""

    run: str
    events: list[dict[str, Any]] = field(default_factory=list)
    back_at: int = 0  # how far the run was when it came back
    came: int = 0  # how often it did

    @property
    def seq(self) -> int:
        return len(self.events)

    @property
    def ended(self) -> bool:
        return bool(self.events) and self.events[-1]["kind"] == "run.finished"

    async def follow(self, one: Tab, upto: int | None = None) -> None:
        """Take what comes until a number is reached, or the end; what came with it in the same
        packet and after it is lost with the line.
        """
        answer = await one.say("subscribe", {"run": self.run, "after": self.seq})
        assert answer["ok"], answer
        assert answer["after"] == self.seq
        self.back_at, taken = answer["seq"], 0
        self.came += 1

        def enough() -> bool:
            nonlocal taken
            packets = [data for data in one.all("run:events") if data["run"] == self.run]
            for packet in packets[taken:]:
                self._take(packet["events"], upto)
            taken = len(packets)
            assert one.all("resync") == []
            return self.ended or (upto is not None and self.seq >= upto)

        await one.until(enough)

    def _take(self, events: Iterable[dict[str, Any]], upto: int | None) -> None:
        for event in events:
            if upto is not None and self.seq >= upto:
                return
            assert event["seq"] == self.seq + 1, "twice, or left out"
            self.events.append(event)

    def state(self, own: Served) -> object:
        """What it makes of the events, by the rules of the product."""
        events = [from_wire(event) for event in self.events]
        plan = own.call(lambda: own.context.service.plan(events[0]))
        return picture(fold(plan, events))


def begun(own: Served, pause: float = 0.01, *more: dict[str, Any]) -> str:
    """A run that is under way for a while."""
    file = own.folder / "paced.yaml"
    if not file.exists():  # others may be reading it
        paced = [{"text": "some work", "delay": pause}] * PASSES
        own.script(*paced, *more, name=file.name)
    return own.start(own.definition(f"script:{file}", max=PASSES + len(more)))


def lasting(own: Served) -> str:
    """One that is under way until somebody ends it."""
    return begun(own, 0.01, {"text": "never said", "delay": 600})


async def ended_when_back(own: Served, followers: Sequence[Follower]) -> None:
    """End the runs when all who follow them are there again, and there was enough to follow."""
    runs, version = {one.run for one in followers}, own.context.here.log.version
    await asyncio.to_thread(wait_for, lambda: all(one.came == 2 for one in followers))
    await asyncio.to_thread(wait_for, lambda: all(version(run) > EVENTS for run in runs))
    for run in runs:
        reply = await asyncio.to_thread(own, "POST", f"/api/v1/runs/{run}/stop")
        assert reply.status == 200


def truth(own: Served, run: str) -> object:
    return picture(own.call(lambda: own.context.service.state(run)))


def status(own: Served, run: str) -> str:
    return str(own.context.here.log.row(run).headline.status)


async def dropped(own: Served, follower: Follower, place: int, token: str) -> None:
    """Follow up to a place, lose the line without a word, come back, and follow to the end."""
    one = Tab()
    auth = {"token": token}
    where = f"http://127.0.0.1:{own.port}"
    await one.client.connect(where, auth=auth, transports=["websocket"], wait_timeout=SECONDS)
    await follower.follow(one, place)
    assert follower.seq == place
    one.client.eio.ws._response.connection.transport.abort()
    async with tab(own, token) as again:
        await follower.follow(again)
    await one.leave()


def dropping(own: Served, places: Sequence[int]) -> None:
    """Clients whose lines break at these numbers, all of one run and at the same time."""
    tokens = [people(own, "viewer", str(number)) for number in range(len(places) // 15 + 1)]
    run = lasting(own)
    followers = [Follower(run) for _ in places]

    async def go() -> None:
        every = zip(followers, places, strict=True)
        await asyncio.gather(
            *(dropped(own, one, place, tokens[n // 15]) for n, (one, place) in enumerate(every)),
            ended_when_back(own, followers),
        )

    talk(go())
    wanted = truth(own, run)
    for one, place in zip(followers, places, strict=True):
        assert one.ended, place
        assert one.state(own) == wanted, place
    check_under_way(followers)


def check_under_way(followers: Sequence[Follower]) -> None:
    """The runs are long, and had not ended when their followers came back."""
    assert all(one.seq > EVENTS for one in followers)
    assert all(one.back_at < one.seq for one in followers)


def test_lines_that_break(own: Served) -> None:
    """At every tenth number of a run of three hundred events."""
    dropping(own, range(1, EVENTS, 10))


def restarting(folder: Path, places: Sequence[int]) -> None:
    """The server ends when a client of each of these runs has come to its place, and the runs have
    not; then both go on.
    """
    followers: list[Follower] = []
    folder.mkdir()
    with served(folder) as own:
        token = own.token
        followers += [Follower(lasting(own)) for _ in places]

        async def before() -> None:
            async with tab(own) as one:
                every = zip(followers, places, strict=True)
                await asyncio.gather(*(each.follow(one, place) for each, place in every))
                assert {status(own, each.run) for each in followers} == {"running"}
                assert [each.seq for each in followers] == list(places)

        talk(before())
    with served(folder) as own:
        own.token = token

        async def after() -> None:
            async with tab(own) as one:
                every = (each.follow(one) for each in followers)
                await asyncio.gather(*every, ended_when_back(own, followers))

        talk(after())
        for each, place in zip(followers, places, strict=True):
            assert each.ended
            assert each.state(own) == truth(own, each.run), place
        check_under_way(followers)


def test_servers_that_end(tmp_path: Path) -> None:
    """In the beginning and in the middle of runs of three hundred events."""
    restarting(tmp_path / "early", [2, 5])
    restarting(tmp_path / "late", [148, 151])


@pytest.mark.deep
@pytest.mark.timeout(1_800)
def test_lines_that_break_everywhere(own: Served) -> None:
    """The same at every number."""
    for first in range(1, 11):
        dropping(own, range(first, EVENTS, 10))


@pytest.mark.deep
@pytest.mark.timeout(1_800)
def test_servers_that_end_everywhere(tmp_path: Path) -> None:
    """The same at every number."""
    for first in range(1, EVENTS, 10):
        restarting(tmp_path / str(first), range(first, first + 10))


@pytest.mark.deep
def test_servers_that_are_killed(tmp_path: Path) -> None:
    """The process of the server is killed again and again, at every thirtieth event."""
    follower, token, kills = Follower(""), "", 0
    while not follower.ended:
        with serving(tmp_path, token=token) as one:
            token = one.ask.token
            follower.run = follower.run or begun(one.ask, pause=0.05)
            place = follower.seq + 30

            async def watch(client: Served = one.ask, place: int = place) -> None:
                async with tab(client) as line:
                    await follower.follow(line, place)

            talk(watch())
            if not follower.ended:
                one.end(signal.SIGKILL)
                kills += 1
    assert (kills >= 9, follower.seq >= EVENTS) == (True, True)
    with served(tmp_path) as own:
        assert follower.state(own) == truth(own, follower.run)
