"""Pictures of runs: carried on from any fact, they are what all facts together say."""

import asyncio

import pytest

from loopwright.app.service import Service
from loopwright.app.views.listing import detail, run_detail
from loopwright.app.views.pictures import Picture
from loopwright.server.gallery import Gallery
from tests.server.served import Served


@pytest.mark.item("inv-25", "inv-5")
def test_a_picture_and_the_tail_are_the_whole(own: Served) -> None:
    """A snapshot of any moment, and what came after it, show the same as all facts from the
    beginning.
    """
    run, gate = own.gated()
    early = own("GET", f"/api/v1/runs/{run}/snapshot").json
    own("POST", f"/api/v1/gates/{gate}/continue", {"text": "Again."})
    own.until(run, "waiting")
    own("POST", f"/api/v1/runs/{run}/stop")
    service = own.context.service
    version = own.context.here.log.version(run)
    whole = own.call(lambda: run_detail(service, run))
    assert early["seq"] < version

    def carried(cut: int) -> object:
        picture = Picture(service, run)
        picture.carry_on(cut)
        assert picture.seen == cut
        picture.carry_on()
        return detail(service, picture)

    for cut in range(1, version + 1):
        assert own.call(lambda cut=cut: carried(cut)) == whole
    shown = own("GET", f"/api/v1/runs/{run}/snapshot").json
    assert (shown.pop("seq"), shown) == (version, whole)


def test_the_gallery_has_a_limit(own: Served) -> None:
    """Only the newest pictures are kept; the others are made again."""
    runs = [own.gated()[0] for _ in range(3)]
    service: Service = own.context.service

    async def look() -> list[int]:
        gallery = Gallery(service, most=1)
        pictures = [await gallery.picture(run) for run in (*runs, runs[0])]
        assert pictures[0] is not pictures[3]
        return [picture.seen for picture in pictures]

    seen = asyncio.run_coroutine_threadsafe(look(), own.loop).result(10)
    assert seen[0] == seen[3] > 0
