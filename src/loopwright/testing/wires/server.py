"""The server of the fake protocols: HTTP/1.1 on loopback in its own thread, with scripted turns.

Every request is recorded. A connection (by h11) handles one request at a time.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeAlias

import h11
import msgspec

from loopwright.model.record import JsonValue
from loopwright.testing.wires import anthropic, chat, gemini, responses
from loopwright.testing.wires.script import (
    CREATED,
    GEMINI_PATH,
    Answer,
    Chooser,
    ScriptedFault,
    ScriptedTurn,
    Wire,
    WireEnd,
    WireName,
    WireRequest,
    WireScript,
    in_order,
    last_call,
    prompt_tokens,
)

MAX_BODY = 64 * 1024 * 1024

OnRequest: TypeAlias = Callable[[WireRequest], None]
Answering: TypeAlias = Callable[[WireRequest, "WireConnection"], Awaitable[None]]


class WireConnection(asyncio.Protocol):
    """Reads requests, answers them one after the other, and notices when the client disconnects."""

    def __init__(
        self, take: OnRequest, answer: Answering, open_ones: set["WireConnection"]
    ) -> None:
        self._on_request = take
        self._answer = answer
        self._open_ones = open_ones
        self._http = h11.Connection(h11.SERVER)
        self._transport: asyncio.Transport | None = None
        self._request: WireRequest | None = None
        self._body = bytearray()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # a server of asyncio creates no other kind
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
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    def cut(self) -> None:
        """Close the connection in the middle of an answer, as a broken network does."""
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
        """Start an answer that is sent in pieces."""
        self._write(h11.Data(data=content))

    def finish(self) -> None:
        """The end of the answer."""
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
        """Process the received bytes, up to the end of a request."""
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
        assert request is not None  # h11 reports a request before its end
        request.raw = bytes(self._body)
        try:
            body = msgspec.json.decode(request.raw) if request.raw else {}
        except msgspec.DecodeError:
            body = {}
        request.body = body if isinstance(body, dict) else {}
        self._on_request(request)
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


ROUTES: dict[str, WireName] = {
    "/v1/messages": "anthropic",
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
}
WIRES: dict[WireName, Wire] = {
    "anthropic": anthropic,
    "chat": chat,
    "responses": responses,
    "gemini": gemini,
}
DEFAULT_WINDOW = 200_000

Reply: TypeAlias = tuple[int, dict[str, str], dict[str, JsonValue]]


class WireServer:
    """Speaks the Anthropic Messages, OpenAI Chat, OpenAI Responses and Gemini wires on loopback.

        with WireServer(Script(turns=(Turn(text="hello"),))) as wires:
            ...                       # point a client at wires.url (OpenAI: wires.url + "/v1")
            assert wires.requests[0].user_text == "hi"

    Paths are served with and without the leading `/v1`, so a base URL of either kind works.
    `requests` is everything that was asked, in order; `refused` says why requests were refused
    by the server itself, without the script: it should be empty at the end of a test.
    """

    def __init__(
        self, script: WireScript | None = None, *, choose: Chooser | None = None, port: int = 0
    ) -> None:
        self.script = script or WireScript()
        self.requests: list[WireRequest] = []
        self.refused: list[str] = []
        self.port = port
        self._choose = choose or in_order(self.script)
        self._answers = 0
        self._calls = 0
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._released = asyncio.Event()
        self._connections: set[WireConnection] = set()
        self._stop = asyncio.Event()
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="fake-wires", daemon=True)

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def asked(self) -> list[WireRequest]:
        """The requests for an answer of a model, without requests for lists and counts."""
        return [request for request in self.requests if request.wire is not None]

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection and end the thread."""
        if self._thread.is_alive():
            self._call_in_loop(self._stop.set)
        self._thread.join()

    def choose_by(self, choose: Chooser) -> None:
        """From now on, answer with the result of this function."""
        self._choose = choose

    def release(self) -> None:
        """Continue everything that stalls, now and from now on."""
        self._call_in_loop(self._released.set)

    def hold(self) -> None:
        """From now on, stall again."""
        self._call_in_loop(self._released.clear)

    def _call_in_loop(self, action: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(action)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        try:
            server = await self._loop.create_server(self._connect, "127.0.0.1", self.port)
        except OSError as failure:
            self._failure = failure
            self._ready.set()
            return
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for connection in list(self._connections):
            connection.abort()

    def _connect(self) -> WireConnection:
        return WireConnection(self._on_request, self._answer, self._connections)

    def _on_request(self, request: WireRequest) -> None:
        """Number and record a request."""
        path = request.path.rstrip("/")
        request.path = path if path.startswith("/v1") or not path else f"/v1{path}"
        request.number = len(self.requests) + 1
        if request.method == "POST":
            is_gemini = GEMINI_PATH.fullmatch(request.path) is not None
            request.wire = "gemini" if is_gemini else ROUTES.get(request.path)
        self.requests.append(request)

    async def _answer(self, request: WireRequest, connection: WireConnection) -> None:
        """Answer a request; an exception of the chooser is reported, and its client is not left
        waiting.
        """
        try:
            await self._reply(request, connection)
        except Exception as wrong:  # any exception of a chooser or a script
            self.refused.append(f"request {request.number} ({request.wire}): {wrong!r}")
            connection.cut()

    async def _reply(self, request: WireRequest, connection: WireConnection) -> None:
        if request.wire is None:
            connection.whole(*self._side(request))
            return
        wire = WIRES[request.wire]
        fault = self._refusal(request)
        turn = None if fault else self._choose(request)
        if turn is None:
            fault = fault or self._refuse(request, "the script has no turn for this request")
        elif turn.overflow:
            fault = wire.too_long(request, self.script.window or DEFAULT_WINDOW)
        elif turn.fault is not None and turn.fault.after is None:
            fault = turn.fault
        if fault is not None:
            await self._pause(turn.header_ms if turn else 0)
            connection.whole(fault.status, _headers(fault), wire.error(fault))
        elif turn is not None:
            await self._stream_turn(turn, request, connection)

    async def _stream_turn(
        self, turn: ScriptedTurn, request: WireRequest, connection: WireConnection
    ) -> None:
        assert request.wire is not None  # decided by the caller
        wire = WIRES[request.wire]
        self._answers += 1
        self._calls = max(self._calls, last_call(request.calls))
        answer = Answer(
            turn=turn, request=request, number=self._answers, first_call=self._calls + 1
        )
        self._calls += len(turn.calls)
        await self._pause(turn.header_ms)
        if not request.stream:
            await self._pause(turn.first_token_ms)
            await self._meet(turn, 0, connection)
            connection.whole(200, {}, wire.whole(answer))
            return
        connection.begin()
        sent = 0
        for piece in wire.stream(answer):
            if piece.delta:
                await self._pause(turn.first_token_ms if sent == 0 else turn.delta_ms)
                if not await self._meet(turn, sent, connection):
                    return
                if turn.fault is not None and turn.fault.after == sent:
                    connection.send(wire.broken(turn.fault).encoded())
                    connection.finish()
                    return
                sent += 1
            connection.send(piece.encoded())
        connection.finish()

    async def _meet(self, turn: ScriptedTurn, sent: int, connection: WireConnection) -> bool:
        """Stall or cut if the turn says so; False if the connection is closed."""
        if turn.stall_after == sent:
            await self._released.wait()
        if turn.cut_after == sent:
            connection.cut()
            return False
        return True

    async def _pause(self, ms: int) -> None:
        if ms:
            await asyncio.sleep(ms / 1000)

    def _refusal(self, request: WireRequest) -> ScriptedFault | None:
        """The server's own objections to a request, in the order in which services check them."""
        if not request.key:
            return ScriptedFault(status=401, message="no key was given")
        if self.script.keys and request.key not in self.script.keys:
            return ScriptedFault(status=401, message="the key is not valid")
        if not request.body:
            return self._refuse(request, "the body is not a JSON object")
        if request.wire == "anthropic" and "max_tokens" not in request.body:
            return self._refuse(request, "max_tokens: Field required")
        window = self.script.window
        if request.wire and window is not None and prompt_tokens(request) > window:
            return WIRES[request.wire].too_long(request, window)
        complaints = request.complaints() if self.script.strict else []
        return self._refuse(request, "; ".join(complaints)) if complaints else None

    def _refuse(self, request: WireRequest, why: str) -> ScriptedFault:
        self.refused.append(f"request {request.number} ({request.wire}): {why}")
        return ScriptedFault(status=400, message=why)

    def _side(self, request: WireRequest) -> Reply:
        """Answers to the other requests of clients."""
        path = request.path
        if path == "/v1/messages/count_tokens":
            return 200, {}, {"input_tokens": prompt_tokens(request)}
        if path == "/v1/models":
            models: list[JsonValue] = [_model(name) for name in self.script.models]
            return 200, {}, {"object": "list", "data": models, "has_more": False}
        if path.startswith("/v1/models/"):
            return 200, {}, _model(path.removeprefix("/v1/models/"))
        if path == "":
            return 200, {}, {"wires": list(WIRES)}
        return (
            404,
            {},
            chat.error(ScriptedFault(status=404, message=f"nothing is served at {path}")),
        )


def _model(name: str) -> dict[str, JsonValue]:
    """A model in the format of both families."""
    openai: dict[str, JsonValue] = {"object": "model", "created": CREATED, "owned_by": "fake"}
    made = "2023-11-14T22:13:20Z"
    return {"id": name, **openai, "type": "model", "display_name": name, "created_at": made}


def _headers(fault: ScriptedFault) -> dict[str, str]:
    after = {} if fault.retry_after is None else {"retry-after": str(fault.retry_after)}
    return {**after, **fault.headers}
