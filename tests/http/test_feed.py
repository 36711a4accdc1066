"""The feed wakes whoever has not seen what is new, and nobody else; the disk is asked once."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from loopwright.errors import NotFound
from loopwright.http.socket_transport import SocketServer
from loopwright.operations import run_tail
from loopwright.operations.run_tail import EventFeed
from loopwright.ports import EventLog
from tests.http.served import Served
from tests.http.talking import tab, talk
from tests.http.test_socket_follow import all_of, write

RUN = "run_1"


class Log:
    """A log of numbers, which counts how often it is asked."""

    def __init__(self) -> None:
        self.newest, self.asked, self.rows = 1, 0, [RUN]
        self.told: Callable[[str, int], None] = lambda run, version: None

    def subscribe(self, watcher: Callable[[str, int], None]) -> Callable[[], None]:
        self.told = watcher
        return lambda: None

    def version(self, run: str) -> int:
        self.asked += 1
        if run not in self.rows:
            raise NotFound(f"no run {run}")
        return self.newest

    def nudges(self, after: int) -> tuple[list[str], int]:
        return ([RUN] if 0 < after <= self.newest else []), self.newest + 1

    def append(self, *, tell: bool = True) -> None:
        self.newest += 1
        if tell:
            self.told(RUN, self.newest)


def waiting(feed: EventFeed, *seen: int, seconds: float = 10.0) -> list["asyncio.Task[bool]"]:
    return [asyncio.ensure_future(feed.moved(RUN, after, seconds)) for after in seen]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(work: Callable[[Log, EventFeed], Any]) -> Log:
    log = Log()

    async def go() -> None:
        feed = EventFeed(cast(EventLog, log))
        await asyncio.wait_for(work(log, feed), 10)
        feed.close()

    asyncio.run(go())
    return log


def test_the_disk_is_asked_once() -> None:
    """However many follow a run, how far it is was told when it was written to."""

    async def go(log: Log, feed: EventFeed) -> None:
        for number in range(1, 11):
            every = waiting(feed, *[number] * 100)
            await settle()
            log.append()
            assert await asyncio.gather(*every) == [True] * 100
            assert feed.version(RUN) == number + 1

    assert run(go).asked == 1


def test_who_has_seen_it_sleeps_on() -> None:
    """Those behind are woken at once or when it is written; those ahead are not."""

    async def go(log: Log, feed: EventFeed) -> None:
        behind, level, ahead = waiting(feed, 0, 1, 2)
        await settle()
        assert (behind.done(), level.done(), ahead.done()) == (True, False, False)
        log.append()
        assert await level is True
        assert not ahead.done()
        log.append()
        assert await ahead is True

    run(go)


def test_a_word_that_comes_late_changes_nothing() -> None:
    """A number that was told after a later one was read does not count back."""

    async def go(log: Log, feed: EventFeed) -> None:
        log.newest = 7
        assert feed.version(RUN) == 7
        log.told(RUN, 6)
        assert feed.version(RUN) == 7

    run(go)


def test_what_others_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody told is noticed; what was told already wakes nobody again."""
    monkeypatch.setattr(run_tail, "POLL_S", 0.0)

    async def go(log: Log, feed: EventFeed) -> None:
        (level,) = waiting(feed, 1)
        watch = asyncio.ensure_future(feed.watch_others())
        await settle()
        log.append(tell=False)
        assert await level is True
        (level,) = waiting(feed, 3)
        log.append()  # is told, and noticed a moment later as well
        await settle()
        assert not level.done()
        log.rows.clear()  # the run is forgotten: whoever waits finds out
        log.append(tell=False)
        assert await level is True
        with pytest.raises(NotFound):
            feed.version(RUN)
        watch.cancel()

    run(go)


def test_time_is_up_for_a_run_that_is_gone() -> None:
    """Who waited in vain asks anew, so that a run that is gone is noticed."""

    async def go(log: Log, feed: EventFeed) -> None:
        assert feed.version(RUN) == 1
        log.rows.clear()
        assert await feed.moved(RUN, 1, 0.0) is False
        with pytest.raises(NotFound):
            feed.version(RUN)

    run(go)


def test_events_are_written_down_once(own: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes to all who follow a run is made once for all of them."""
    run_id, _ = own.gated()
    made: list[str] = []
    packed = SocketServer.packed

    def counted(self: SocketServer, event: str, data: Any) -> Any:
        made.append(event)
        return packed(self, event, data)

    monkeypatch.setattr(SocketServer, "packed", counted)

    async def go() -> None:
        async with tab(own) as one, tab(own) as two, tab(own) as three:
            tabs = (one, two, three)
            version = own.context.here.log.version(run_id)
            for each in tabs:
                await each.say("subscribe", {"run": run_id, "after": version})
            await asyncio.wrap_future(
                asyncio.run_coroutine_threadsafe(write(own, run_id, 1), own.loop)
            )
            got = [await all_of(each, run_id, version + 100) for each in tabs]
            assert got[0] == got[1] == got[2]
            packets = [len(each.all("run:events")) for each in tabs]
            assert len(made) <= max(packets) + 1

    talk(go())
