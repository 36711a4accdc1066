"""One connection of a client: HTTP/1.1 by h11, one request at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import h11
import msgspec

from loopwright.model.record import JsonValue
from loopwright.testing.wires.request import WireEnd, WireRequest

MAX_BODY = 64 * 1024 * 1024

Take: TypeAlias = Callable[[WireRequest], None]
Answering: TypeAlias = Callable[[WireRequest, "Connection"], Awaitable[None]]


class Connection(asyncio.Protocol):
    """Reads requests, has them answered one after the other, and notices when the client goes."""

    def __init__(self, take: Take, answer: Answering, open_ones: set["Connection"]) -> None:
        self._take = take
        self._answer = answer
        self._open_ones = open_ones
        self._http = h11.Connection(h11.SERVER)
        self._transport: asyncio.Transport | None = None
        self._request: WireRequest | None = None
        self._body = bytearray()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # a server of asyncio makes no other
        self._transport = transport
        self._open_ones.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._open_ones.discard(self)
        if self._task is not None:
            self._task.cancel()
            self._end("client left")

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        self._read()

    def abort(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    def cut(self) -> None:
        """Drop the connection in the middle of an answer, as a broken network does."""
        self._end("cut")
        self.abort()

    def whole(self, status: int, headers: dict[str, str], body: dict[str, JsonValue]) -> None:
        """Answer with one JSON object."""
        content = msgspec.json.encode(body)
        length = {"content-type": "application/json", "content-length": str(len(content))}
        self._head(status, {**length, **headers})
        if self._request is None or self._request.method != "HEAD":
            self.send(content)
        self.finish()

    def begin(self) -> None:
        """Begin an answer that comes in pieces."""
        self._head(200, {"content-type": "text/event-stream", "cache-control": "no-cache"})

    def send(self, content: bytes) -> None:
        """Send a piece of the answer."""
        self._write(h11.Data(data=content))

    def finish(self) -> None:
        """The answer is complete."""
        self._write(h11.EndOfMessage())
        self._end("answered")

    def _head(self, status: int, headers: dict[str, str]) -> None:
        if self._request is not None:
            self._request.status = status
        about = {"request-id": "req_fake", "x-request-id": "req_fake"}
        self._write(h11.Response(status_code=status, headers=list({**about, **headers}.items())))

    def _write(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        content = self._http.send(event)
        if content and self._transport is not None:
            self._transport.write(content)

    def _end(self, how: WireEnd) -> None:
        if self._request is not None and not self._request.end:
            self._request.end = how
            self._request.ended.set()

    def _read(self) -> None:
        """Take what has come, up to the end of a request."""
        while self._task is None:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError:
                self.abort()
                return
            match event:
                case h11.Request():
                    self._request, self._body = _opened(event), bytearray()
                    if self._http.they_are_waiting_for_100_continue:
                        self._continue()
                case h11.Data():
                    self._body += event.data
                    if len(self._body) > MAX_BODY:
                        self.abort()
                case h11.EndOfMessage():
                    self._start()
                case _:
                    return

    def _continue(self) -> None:
        go_on = h11.InformationalResponse(status_code=100, headers=[])
        content = self._http.send(go_on)
        if content and self._transport is not None:
            self._transport.write(content)

    def _start(self) -> None:
        request = self._request
        assert request is not None  # h11 tells of a request before its end
        request.raw = bytes(self._body)
        try:
            body = msgspec.json.decode(request.raw) if request.raw else {}
        except msgspec.DecodeError:
            body = {}
        request.body = body if isinstance(body, dict) else {}
        self._take(request)
        self._task = asyncio.get_running_loop().create_task(self._work(request))

    async def _work(self, request: WireRequest) -> None:
        await self._answer(request, self)
        self._task = None
        if self._http.our_state is h11.MUST_CLOSE and self._transport is not None:
            self._transport.close()
        elif self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self._read()


def _opened(event: h11.Request) -> WireRequest:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
    path = event.target.decode("latin-1").partition("?")[0]
    return WireRequest(number=0, method=event.method.decode(), path=path, headers=headers)
