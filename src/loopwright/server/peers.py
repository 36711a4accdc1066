"""Refuses requests that come from a program of a run on this machine, whatever token they carry.

Which process is at the other end of a connection is looked up once for each connection, when a
request needs to know it. Requests that everybody may make and that change nothing do not.
"""

import asyncio
from contextlib import suppress

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from loopwright.app.inside_run import (
    UNKNOWN_PEER,
    InsideRun,
    find_tcp_peer,
    inside_run_error,
    record_refusal,
)
from loopwright.errors import LoopwrightError
from loopwright.server.context import Context
from loopwright.server.identity import identify

_KEY = "loopwright.peer"
HINT = "people use the server from outside of runs"


class Peer:
    """The process at the other end of one connection."""

    def __init__(self) -> None:
        self._lookup: asyncio.Task[InsideRun | None] | None = None

    async def find(self, scope: Scope) -> InsideRun | None:
        """The run that it belongs to, or None."""
        client, server = scope.get("client"), scope.get("server")
        if not server or server[1] is None:
            return None
        if not client:  # the connection was reset; what it brought can still be read
            return UNKNOWN_PEER
        if self._lookup is None:
            own, other = (str(server[0]), int(server[1])), (str(client[0]), int(client[1]))
            self._lookup = asyncio.ensure_future(asyncio.to_thread(find_tcp_peer, other, own))
        return await asyncio.shield(self._lookup)


def with_peer(app: ASGIApp) -> ASGIApp:
    """The application as one connection calls it: all its requests share what is known of it."""
    peer = Peer()

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        scope[_KEY] = peer
        await app(scope, receive, send)

    return call


async def refuse_agents(context: Context, scope: Scope) -> None:
    """Refuse a request from a program of a run, and record it."""
    if context.service.inside is not None and context.service.rights is None:
        return  # this server runs in a data directory of the run's own
    inside = await scope.setdefault(_KEY, Peer()).find(scope)
    if inside is None:
        return
    what = f"{scope.get('method', 'GET')} {scope['path']}"
    at, who = context.clock.now_ms(), _named(context, scope)
    record_refusal(context.cards, inside, what, at=at, via="http", who=who)
    raise inside_run_error(inside, "use the server: it is for people", hint=HINT)


def _named(context: Context, scope: Scope) -> str:
    """Whose token the request carries; it is no longer a secret."""
    with suppress(LoopwrightError):
        return identify(context, HTTPConnection(scope)).name
    return ""
