"""The events of a run: a stream that goes on where it was cut, and pages of the same."""

import asyncio
import http.client
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote

import pytest

from loopwright.http.context import RequestLimits
from loopwright.http.events import KEEP_ALIVE, StreamOptions, stream
from loopwright.http.requests import RouteRequest
from loopwright.kernel.events import RunResumed
from loopwright.operations import run_tail
from loopwright.operations.data_directory import open_reader
from loopwright.ports import NumberedEvent
from tests.http.served import SECONDS, Served, served

JSON = {"Accept": "application/json"}


class Stream:
    """A reader of server-sent events, as a browser has it."""

    def __init__(
        self, server: Served, run: str, base: str = "/api/v1/runs", **headers: str
    ) -> None:
        self.line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SECONDS)
        sent = {"Authorization": f"Bearer {server.token}", "Accept": "text/event-stream"}
        self.line.request("GET", f"{base}/{run}/events", headers={**sent, **headers})
        self.reply = self.line.getresponse()

    def __iter__(self) -> Iterator[dict[str, str]]:
        """Events until the server ends the stream; a comment is an event too."""
        event: dict[str, str] = {}
        while line := self.reply.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if name:
                event[name] = value
            elif line.startswith(":"):
                event["comment"] = value
            elif event:
                yield event
                event = {}

    def events(self) -> Iterator[dict[str, Any]]:
        for event in self:
            if "id" in event:
                logged = json.loads(event["data"])
                assert int(event["id"]) == logged["seq"]
                yield logged

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.reply.close()
        self.line.close()


def pages(server: Served, run: str, limit: int) -> list[dict[str, Any]]:
    """All events, page by page."""
    found: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        path = f"/api/v1/runs/{run}/events?after={after}&limit={limit}"
        page = server("GET", path, headers=JSON).json
        found += page["events"]
        after = page["next"]
    return found


def test_a_stream_has_every_event_and_ends_with_the_run(own: Served) -> None:
    """Events come in order without a gap, also those of before; then the stream ends."""
    run, gate = own.gated()
    with Stream(own, run) as stream:
        assert stream.reply.getheader("Content-Type", "").startswith("text/event-stream")
        events = stream.events()
        seen = [next(events)]
        while seen[-1]["kind"] != "gate.opened":
            seen.append(next(events))
        own("POST", f"/api/v1/gates/{gate}/approve", {})
        seen += events
    assert [event["seq"] for event in seen] == list(range(1, len(seen) + 1))
    assert seen[-1]["kind"] == "run.finished"
    assert pages(own, run, 3) == seen
    with Stream(own, run, **{"Last-Event-ID": str(len(seen))}) as again:
        assert again.reply.status == 204


@pytest.mark.item("inv-1")
def test_a_stream_continues_wherever_it_was_cut(own: Served) -> None:
    """Whatever number a client saw last, it gets the rest and nothing twice."""
    run = own.start(own.definition(own.script("a", "b", "DONE"), until={"contains": "DONE"}))
    own.until(run, "completed")
    whole = pages(own, run, 1_000)
    assert len(whole) > 10
    for cut in range(len(whole)):
        with Stream(own, run, **{"Last-Event-ID": str(cut)}) as stream:
            assert list(stream.events()) == whole[cut:]


@pytest.mark.item("F11")
def test_a_cursor_from_elsewhere_is_advised_to_begin_anew(own: Served) -> None:
    """A number that this run has not reached is from another store: the client is told so."""
    run, _ = own.gated()
    with Stream(own, run, **{"Last-Event-ID": "999"}) as stream:
        events = list(stream)
    told = [event for event in events if event.get("event") == "resync"]
    snapshot = own("GET", f"/api/v1/runs/{run}/snapshot").json
    assert json.loads(told[0]["data"]) == {"run": run, "seq": snapshot["seq"]}
    assert not [event for event in events if "id" in event]


@pytest.mark.parametrize("cursor", ["x", "-1", "1" * 40, "1.5", "\u00b2"])
def test_bad_cursors(own: Served, cursor: str) -> None:
    """What is not a number is refused."""
    run, _ = own.gated()
    with Stream(own, run, **{"Last-Event-ID": cursor}) as stream:
        assert stream.reply.status == 400
    bad = own("GET", f"/api/v1/runs/{run}/events?after={quote(cursor)}", headers=JSON)
    assert bad.status == 422


def test_a_quiet_stream_beats(tmp_path: Path) -> None:
    """Where nothing happens a comment says that the line is alive."""
    limits = RequestLimits(heartbeat_seconds=0.05, recheck_seconds=0.05)
    with served(tmp_path, limits=limits) as one:
        run, _ = one.gated()
        with Stream(one, run) as stream:
            assert any("comment" in event for event in stream)


class Meanwhile:
    """Everything a stream uses, where time passes only while it waits, and every wait is in vain
    but for events at these moments, of which nothing is told.
    """

    def __init__(self, limits: RequestLimits, news: tuple[float, ...] = ()) -> None:
        self.at, self.news = 0.0, list(news)
        self.events: list[NumberedEvent] = []
        self.serving = SimpleNamespace(limits=limits)
        self.closing = asyncio.Event()
        self.here = SimpleNamespace(log=self)
        self.feed = self.people = self
        self.closed = False
        self.who: Any = "somebody"
        self.context = self

    def still(self, _: Any) -> bool:
        return True

    def version(self, _: str) -> int:
        return len(self.events)

    def read(self, _: str, *, after: int, limit: int) -> list[NumberedEvent]:
        return self.events[after : after + limit]

    def row(self, _: str) -> Any:
        return SimpleNamespace(headline=SimpleNamespace(status="waiting"))

    async def moved(self, _run: str, _after: int, seconds: float, _woken: object) -> bool:
        if self.news and self.at + seconds >= self.news[0]:
            self.at = max(self.at, self.news.pop(0))
            self.events.append(NumberedEvent(len(self.events) + 1, RunResumed(at=0)))
            return True
        self.at += seconds
        return False


@pytest.mark.parametrize("news", [(), tuple(range(5, 100, 5))], ids=["quiet", "untold"])
@pytest.mark.parametrize(
    ("beat", "recheck"), [(15.0, 4.0), (15.0, 7.0), (15.0, 15.0), (15.0, 99.0), (0.3, 0.2)]
)
def test_a_quiet_stream_beats_in_time(beat: float, recheck: float, news: tuple[float, ...]) -> None:
    """However often it looks around, and whatever happens that is not told, a stream is never
    silent for longer than was promised; nor does it speak all the time.
    """
    scene = Meanwhile(RequestLimits(heartbeat_seconds=beat, recheck_seconds=recheck), news)
    telling = StreamOptions(after=0, records=lambda _: [], now=lambda: scene.at)
    told: list[float] = []

    async def listen() -> None:
        async for frame in stream(cast("RouteRequest", scene), "run", telling):
            told.append(scene.at)
            assert (frame == KEEP_ALIVE) is (len(told) > 1)
            if len(told) == 6:
                return

    asyncio.run(asyncio.wait_for(listen(), SECONDS))
    gaps = [later - earlier for earlier, later in pairwise(told)]
    assert all(0.9 * beat <= gap <= beat for gap in gaps), gaps


@pytest.mark.item("G4")
def test_a_stream_ends_for_who_is_shut_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that is revoked stops a stream that is open, within seconds."""
    monkeypatch.setattr(run_tail, "POLL_S", 60.0)  # nothing else wakes it
    limits = RequestLimits(recheck_seconds=0.05, heartbeat_seconds=60.0)
    with served(tmp_path, limits=limits) as one:
        run, _ = one.gated()
        with Stream(one, run) as stream:
            events = iter(stream)
            while "gate.opened" not in next(events).get("data", ""):
                pass
            done = one.loop.call_soon_threadsafe
            done(lambda: one.context.access.revoke(one.token.split("_")[1], by="tester"))
            assert all("comment" in event or "id" in event for event in events)
        assert one("GET", f"/api/v1/runs/{run}").status == 401


def test_what_another_process_writes_is_seen(own: Served) -> None:
    """Events that the command line writes into the same home come through the stream."""

    run, gate = own.gated()
    with Stream(own, run) as stream:
        events = stream.events()
        while next(events)["kind"] != "gate.opened":
            pass

        other = open_reader(own.context.settings)
        try:
            asyncio.run(other.answer(gate, "approve", by="elsewhere"))
        finally:
            other.log.close()
        rest = list(events)
    assert rest[0]["kind"] == "gate.answered"
    assert rest[0]["by"] == "elsewhere"
    assert rest[-1]["kind"] == "run.finished"
