"""Background tasks continue after an error in one round."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from loopwright.errors import StorageError
from loopwright.http import server as room
from loopwright.operations import run_tail
from loopwright.operations.run_tail import EventFeed
from loopwright.workers import run_updates
from loopwright.workers.background_tasks import QUIET_SECONDS, BackgroundTask


def test_a_defect_is_logged_and_not_by_every_round(caplog: pytest.LogCaptureFixture) -> None:
    """Once, and again after a while; a disk that fails is told elsewhere."""
    work = BackgroundTask("the work")
    for _ in range(3):
        with work.round():
            raise KeyError("a defect")
    with work.round():
        raise StorageError("no disk", code="io")
    assert caplog.text.count("the work failed; it is started again") == 1
    assert "a defect" in caplog.text
    assert "no disk" not in caplog.text
    work._quiet_until -= QUIET_SECONDS
    with work.round():
        raise KeyError("a defect")
    assert caplog.text.count("the work failed; it is started again") == 2


def test_an_end_is_an_end() -> None:
    """What is no failure of a round, as being cancelled, goes through."""
    with pytest.raises(KeyboardInterrupt), BackgroundTask("the work").round():
        raise KeyboardInterrupt


class Broken:
    """Has everything, and all of it fails when it is used."""

    def __init__(self) -> None:
        self.calls = 0

    def __getattr__(self, _name: str) -> "Broken":
        return self

    def __call__(self, *_: object, **__: object) -> object:
        self.calls += 1
        raise KeyError("a defect")


def following(broken: Any) -> Coroutine[Any, Any, None]:
    one = run_updates.ViewCache(broken, broken)
    one._long = _Full()
    log = SimpleNamespace(subscribe=lambda _: lambda: None, version=lambda _: run_updates.LONG)
    return one.work(EventFeed(log))  # type: ignore[arg-type]


class _Full(set[str]):
    """Runs that are always left to be looked at."""

    def __init__(self) -> None:
        super().__init__({"run_a"})

    def discard(self, _run: str) -> None: ...


def noticing(broken: Any) -> Coroutine[Any, Any, None]:
    log = SimpleNamespace(subscribe=lambda _: lambda: None, nudges=broken)
    round_of_work = BackgroundTask("noticing what other processes write").round
    one = EventFeed(log, round_of_work)  # type: ignore[arg-type]
    one.listen(lambda _: None)
    return one.watch_others()


@pytest.mark.parametrize(
    ("job", "said"),
    [
        pytest.param(lambda it: room._beating(it), "beat", id="beating"),
        pytest.param(lambda it: room._rescuing(it), "left behind", id="rescuing"),
        pytest.param(lambda it: room._forgetting(it, it), "forgetting", id="forgetting"),
        pytest.param(lambda it: room.watch_clock(it, 0.001), "clock", id="clock"),
        pytest.param(noticing, "other processes", id="noticing"),
        pytest.param(following, "pictures", id="following"),
    ],
)
def test_no_job_ends_for_good(
    job: Callable[[Any], Coroutine[Any, Any, None]],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What nobody foresaw is logged once, and the work goes on."""
    for name in ("HEARTBEAT_SECONDS", "RESCUE_SECONDS", "FORGET_SECONDS"):
        monkeypatch.setattr(room, name, 0.001)
    monkeypatch.setattr(run_tail, "POLL_S", 0.001)
    monkeypatch.setattr(run_updates, "FOLLOW_SECONDS", 0.001)
    broken = Broken()

    async def go() -> None:
        task = asyncio.ensure_future(job(broken))
        for _ in range(30_000):
            if broken.calls >= 5 or task.done():
                break
            await asyncio.sleep(0.001)
        assert broken.calls >= 5
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(go(), 60))
    assert caplog.text.count("failed; it is started again") == 1
    assert said in caplog.text
