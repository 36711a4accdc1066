"""Revoked access ends within five seconds, on every interface."""

import asyncio
import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from loopwright.http.context import RequestLimits, ServerOptions
from tests.http.served import SECONDS, Served, served
from tests.http.test_people import add, cookie, sign_in

WITHIN_S = 5.0
WATCH = {"Accept": "text/event-stream"}
BASES = ("/api/v1/runs", "/api/v1/loops", "/v1/runs")


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    """A server with the limits that it has by itself, and a run that waits for a person."""
    with served(tmp_path_factory.mktemp("usual"), limits=RequestLimits()) as one:
        add(one)
        yield one, one.gated()[0]


def revoked(server: Served) -> tuple[dict[str, str], Callable[[], object]]:
    """Somebody who comes in with a token, and what shuts them out."""
    access = server.context.access
    made = server.call(lambda: access.new_token("watcher", "viewer", by="t"))
    return {"Authorization": f"Bearer {made.text}"}, lambda: access.revoke(made.token.id, by="t")


def closed(server: Served) -> tuple[dict[str, str], Callable[[], object]]:
    """The same with a session whose account is closed."""
    people = server.context.people
    server.call(lambda: people.change("ann", by="t", active=True))
    held = cookie(sign_in(server))
    return {"Cookie": held}, lambda: people.change("ann", by="t", active=False)


@pytest.mark.item("G4")
@pytest.mark.parametrize("how", [revoked, closed])
@pytest.mark.parametrize("base", BASES)
def test_streams_look_again_in_time(
    usual: tuple[Served, str], monkeypatch: pytest.MonkeyPatch, base: str, how: Any
) -> None:
    """With the usual limits no stream waits five seconds before it asks whether its reader may
    still read; once they may not, it ends.
    """
    server, run = usual
    waits, after = list[float](), list[float]()

    async def moved(_run: str, _seen: int, seconds: float, _woken: object) -> bool:
        waits.append(seconds)
        if is_out.is_set():
            after.append(seconds)
        assert len(after) < 200, "it goes on for somebody who was shut out"
        await asyncio.sleep(0.01)
        return False

    is_out = threading.Event()
    monkeypatch.setattr(server.context.feed, "moved", moved)
    headers, shut_out = how(server)
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SECONDS)
    with closing(line):
        line.request("GET", f"{base}/{run}/events", headers={**headers, **WATCH})
        reply = line.getresponse()
        assert reply.status == 200
        reply.readline()
        server.call(shut_out)
        is_out.set()
        reply.read()  # until it ends
    assert waits
    assert max(waits) < WITHIN_S


@pytest.mark.item("F9")
def test_sockets_look_again_in_time() -> None:
    """Sockets are looked through as often as streams, and by themselves both are in time."""
    assert RequestLimits().recheck_seconds <= WITHIN_S - 1
    assert ServerOptions().limits == RequestLimits()
