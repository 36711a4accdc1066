"""Cached views of runs: updated from any event, they equal the fold of all events."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loopwright.operations.backup import prune
from loopwright.operations.runs import Service
from loopwright.operations.use_cases.run_queries import detail, run_detail
from loopwright.ports import PICTURE
from loopwright.views.run_view import RunView
from loopwright.workers import run_updates as room
from loopwright.workers.run_updates import ViewCache
from tests.http.served import SECONDS, Served, served, wait_for


@pytest.mark.item("inv-25", "inv-5")
def test_a_picture_and_the_tail_are_the_whole(own: Served) -> None:
    """A snapshot of any moment, and what came after it, show the same as all events from the
    beginning.
    """
    run, gate = own.gated()
    early = own("GET", f"/api/v1/runs/{run}/snapshot").json
    own("POST", f"/api/v1/gates/{gate}/continue", {"text": "Again."})
    own.until(run, "waiting")
    own("POST", f"/api/v1/runs/{run}/stop")
    service = own.context.service
    version = own.context.here.log.version(run)
    whole = msgspec.to_builtins(own.call(lambda: run_detail(service, run)))
    assert early["seq"] < version

    def carried(cut: int) -> object:
        picture = RunView(service, run)
        picture.carry_on(cut)
        assert picture.seen == cut
        picture.carry_on()
        return msgspec.to_builtins(detail(service, picture))

    for cut in range(1, version + 1):
        assert own.call(lambda cut=cut: carried(cut)) == whole
    shown = own("GET", f"/api/v1/runs/{run}/snapshot").json
    assert (shown["seq"], shown) == (version, whole)


def test_the_gallery_has_a_limit(own: Served) -> None:
    """Only the newest pictures are kept; the others are made again."""
    runs = [own.gated()[0] for _ in range(3)]
    service: Service = own.context.service

    async def look() -> list[int]:
        gallery = ViewCache(service, own.context.records, most=1)
        pictures = [await gallery.picture(run) for run in (*runs, runs[0])]
        assert pictures[0] is not pictures[3]
        return [picture.seen for picture in pictures]

    seen = asyncio.run_coroutine_threadsafe(look(), own.loop).result(SECONDS)
    assert seen[0] == seen[3] > 0


def ended(own: Served, passes: int) -> str:
    run = own.start(own.definition(own.script(*["some work"] * passes), max=passes))
    own.until(run, "completed")
    return run


def test_pictures_of_long_loops_make_room_for_each_other(
    own: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pictures together have a limited number of iterations; the newest is always kept."""
    monkeypatch.setattr("loopwright.workers.run_updates.MOST_ITERATIONS", 10)
    runs = [ended(own, 4) for _ in range(4)]

    async def look() -> int:
        gallery = ViewCache(own.context.service, own.context.records)
        first = [await gallery.picture(run) for run in runs]
        again = [await gallery.picture(run) for run in reversed(runs)]
        return sum(one is other for one, other in zip(first, reversed(again), strict=True))

    kept = asyncio.run_coroutine_threadsafe(look(), own.loop).result(SECONDS)
    assert 1 <= kept < len(runs)


def test_the_newest_iterations_are_shown(own: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long loop a picture has the newest passes, says how many there were before, and keeps no
    more than it shows, wherever it was carried on from.
    """
    run = ended(own, 30)
    service = own.context.service
    monkeypatch.setattr("loopwright.views.run_view.ITERATIONS_SHOWN", 4)
    for cut in (1, 20, 40, 500):
        picture = own.call(lambda: RunView(service, run))
        while own.call(lambda picture=picture, cut=cut: picture.carry_on(cut)):
            assert len(picture.progress.passes) <= max(8, cut)
        assert [seen.number for seen in picture.passes] == [27, 28, 29, 30]
        assert picture.iterations_before == 26
    shown = own("GET", f"/api/v1/runs/{run}/snapshot").json
    assert [one["iteration"] for one in shown["passes"]] == [27, 28, 29, 30]
    assert (shown["passes_before"], shown["iterations"]) == (26, 30)


def test_a_long_run_is_kept_as_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last picture of a long run outlives the server: the next one shows it, in lists too,
    without reading its events, until the run goes on or is forgotten.
    """
    monkeypatch.setattr(room, "LONG", 20)
    monkeypatch.setattr(room, "FOLLOW_SECONDS", 0.05)
    with served(tmp_path) as own:
        run, token = ended(own, 9), own.token
        # nobody looks at it, and yet it is kept
        wait_for(lambda: own.call(lambda: own.context.records.record(PICTURE, run)))
        shown = own("GET", f"/api/v1/runs/{run}/snapshot").json
        [line] = own("GET", "/api/v1/runs").json["runs"]
    with served(tmp_path) as own, monkeypatch.context() as blind:
        own.token = token
        blind.setattr(room, "RunView", no_picture)
        assert own("GET", f"/api/v1/runs/{run}/snapshot").json == shown
        assert own("GET", "/api/v1/runs").json["runs"] == [line]
        blind.setattr(room, "MADE_BY", "a newer version")
        assert own("GET", f"/api/v1/runs/{run}/snapshot").status == 500
    with served(tmp_path) as own:
        own.token = token
        context = own.context
        own.call(lambda: prune(context.service, context.settings, [run]))
        assert own.call(lambda: context.records.record(PICTURE, run)) is None
        assert own("GET", f"/api/v1/runs/{run}/snapshot").status == 404


def test_long_runs_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was made before a server started is folded before somebody asks."""
    monkeypatch.setattr(room, "FOLLOW_SECONDS", 0.05)
    with served(tmp_path) as own:
        run, token = ended(own, 9), own.token
        short = ended(own, 1)
        assert own.call(lambda: own.context.records.record(PICTURE, run)) is None
    monkeypatch.setattr(room, "LONG", 20)
    with served(tmp_path) as own, monkeypatch.context() as blind:
        own.token = token
        wait_for(lambda: own.call(lambda: own.context.records.record(PICTURE, run)))
        assert own.call(lambda: own.context.records.record(PICTURE, short)) is None
        blind.setattr(room, "RunView", no_picture)
        assert own("GET", f"/api/v1/runs/{run}/snapshot").json["iterations"] == 9


def no_picture(*_: Any) -> RunView:
    raise AssertionError("the log is read")


def test_no_client_reads_what_was_read(own: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many look at a run at the same time, and again later, its events are read once."""
    run = ended(own, 12)
    monkeypatch.setattr(room, "AT_ONCE", 5)
    read: list[int] = []
    log = own.context.here.log

    class Counting(RunView):
        def carry_on(self, most: int | None = None) -> bool:
            before = self.seen
            more = super().carry_on(most)
            read.extend(range(before + 1, self.seen + 1))
            return more

    monkeypatch.setattr(room, "RunView", Counting)

    async def look() -> None:
        gallery = ViewCache(own.context.service, own.context.records)
        for _ in range(3):
            pictures = await asyncio.gather(*(gallery.picture(run) for _ in range(8)))
            assert {picture.seen for picture in pictures} == {log.version(run)}
        assert read == list(range(1, log.version(run) + 1))

    asyncio.run_coroutine_threadsafe(look(), own.loop).result(SECONDS)
