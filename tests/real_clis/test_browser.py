"""A real browser: the page of the first admin, a session by cookie, and `EventSource`."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.http.served import Served, served
from tests.http.test_socket_follow import finished, truth
from tests.real_clis.browser import Page, browser, browsing

PASSWORD = "correct horse"
FOLLOW = """
window.got = [];
window.source = new EventSource("/api/v1/runs/%s/events");
source.onmessage = (event) => got.push([event.lastEventId, JSON.parse(event.data)]);
true
"""
SET_UP = """
const form = document.getElementById("form");
form.elements.name.value = "ann";
form.elements.password.value = "correct horse";
form.requestSubmit();
"""


async def signed_in(page: Page, own: Served) -> None:
    """The first admin, by the one-time link; then a session."""
    link = own.call(lambda: own.context.people.first_link())
    await page.go(f"http://127.0.0.1:{own.port}/setup#{link}")
    await page.run(SET_UP)
    result = await page.until("document.getElementById('result').textContent")
    assert result == "Done: ann is admin."
    body = json.dumps({"name": "ann", "password": PASSWORD})
    how = f"{{method: 'POST', headers: {{'Content-Type': 'application/json'}}, body: `{body}`}}"
    assert await page.run(f"fetch('/api/v1/session', {how}).then((reply) => reply.status)") == 200
    assert await page.run("document.cookie") == ""  # pages cannot read it


async def followed(page: Page) -> list[dict[str, Any]]:
    """What came, once the run has ended and the browser has understood that nothing follows."""
    await page.until("window.source.readyState === EventSource.CLOSED")
    got = await page.run("window.got")
    assert [int(number) for number, _ in got] == [event["seq"] for _, event in got]
    return [event for _, event in got]


@pytest.mark.real_cli
def test_a_browser_follows_a_run(tmp_path: Path) -> None:
    """With the cookie of a session an `EventSource` gets every event once, in order; after the end
    of the run it does not come back. Without one it gets nothing.
    """

    async def go(own: Served, run: str, address: str) -> None:
        async with browsing(address) as page:
            await page.go(f"http://127.0.0.1:{own.port}/setup")
            await page.run(FOLLOW % run)
            assert await followed(page) == []
            await signed_in(page, own)
            await page.run(FOLLOW % run)
            assert await followed(page) == truth(own, run)

    with browser(tmp_path) as address, served(tmp_path) as own:
        asyncio.run(go(own, finished(own, 12), address))


@pytest.mark.real_cli
@pytest.mark.item("inv-25")
def test_a_browser_outlives_a_server(tmp_path: Path) -> None:
    """A browser that follows a run while the server is restarted goes on where it was, with the
    same session: nothing is lost, nothing comes twice.
    """

    async def go(address: str) -> None:
        async with browsing(address) as page:
            with served(tmp_path) as own:
                run, gate = await asyncio.to_thread(own.gated)
                await signed_in(page, own)
                await page.run(FOLLOW % run)
                before = len(truth(own, run))
                await page.until(f"window.got.length === {before}")
                port, token = own.port, own.token
            with served(tmp_path, at=port) as own:
                own.token = token
                reply = await asyncio.to_thread(own, "POST", f"/api/v1/gates/{gate}/approve", {})
                assert reply.status == 200
                events = await followed(page)
                assert events == truth(own, run)
                assert len(events) > before

    with browser(tmp_path) as address:
        asyncio.run(go(address))
