"""The server: HTTP on loopback in a thread of its own, scripted turns, every request recorded."""

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeAlias

from loopwright.model.record import JsonValue
from loopwright.testing.wires import anthropic, chat, gemini, responses
from loopwright.testing.wires.connection import Connection
from loopwright.testing.wires.rendering import CREATED, Answer, Wire, last_call, prompt_tokens
from loopwright.testing.wires.request import GEMINI_PATH, WireName, WireRequest
from loopwright.testing.wires.script import Chooser, Fault, Script, Turn, in_order

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
        self, script: Script | None = None, *, choose: Chooser | None = None, port: int = 0
    ) -> None:
        self.script = script or Script()
        self.requests: list[WireRequest] = []
        self.refused: list[str] = []
        self.port = port
        self._choose = choose or in_order(self.script)
        self._answers = 0
        self._calls = 0
        self._came = threading.Condition()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._released = asyncio.Event()
        self._connections: set[Connection] = set()
        self._stop = asyncio.Event()
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="fake-wires", daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def asked(self) -> list[WireRequest]:
        """The requests for an answer of a model, without the lists and counts that clients ask."""
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
        """End every connection and the thread."""
        if self._thread.is_alive():
            self._tell(self._stop.set)
        self._thread.join()

    def choose_by(self, choose: Chooser) -> None:
        """Answer with what this function chooses, from now on."""
        self._choose = choose

    def release(self) -> None:
        """Let everything that stalls go on, now and from now on."""
        self._tell(self._released.set)

    def hold(self) -> None:
        """Let what stalls from now on stall again."""
        self._tell(self._released.clear)

    def wait_asked(self, count: int, timeout: float = 10) -> bool:
        """Wait until so many answers of a model were asked for."""
        with self._came:
            return self._came.wait_for(lambda: len(self.asked) >= count, timeout)

    def _tell(self, action: Callable[[], None]) -> None:
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

    def _connect(self) -> Connection:
        return Connection(self._take, self._answer, self._connections)

    def _take(self, request: WireRequest) -> None:
        """Number and record a request."""
        path = request.path.rstrip("/")
        request.path = path if path.startswith("/v1") or not path else f"/v1{path}"
        with self._came:
            request.number = len(self.requests) + 1
            if request.method == "POST":
                is_gemini = GEMINI_PATH.fullmatch(request.path) is not None
                request.wire = "gemini" if is_gemini else ROUTES.get(request.path)
            self.requests.append(request)
            self._came.notify_all()

    async def _answer(self, request: WireRequest, connection: Connection) -> None:
        """Answer a request; a chooser that raises is told, and its client is not left waiting."""
        try:
            await self._reply(request, connection)
        except Exception as wrong:  # whatever a chooser or a script may bring
            self.refused.append(f"request {request.number} ({request.wire}): {wrong!r}")
            connection.cut()

    async def _reply(self, request: WireRequest, connection: Connection) -> None:
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
            await self._say(turn, request, connection)

    async def _say(self, turn: Turn, request: WireRequest, connection: Connection) -> None:
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
        said = 0
        for piece in wire.stream(answer):
            if piece.delta:
                await self._pause(turn.first_token_ms if said == 0 else turn.delta_ms)
                if not await self._meet(turn, said, connection):
                    return
                if turn.fault is not None and turn.fault.after == said:
                    connection.send(wire.broken(turn.fault).encoded())
                    connection.finish()
                    return
                said += 1
            connection.send(piece.encoded())
        connection.finish()

    async def _meet(self, turn: Turn, said: int, connection: Connection) -> bool:
        """Stall or cut where the turn says so; False when the connection is gone."""
        if turn.stall_after == said:
            await self._released.wait()
        if turn.cut_after == said:
            connection.cut()
            return False
        return True

    async def _pause(self, ms: int) -> None:
        if ms:
            await asyncio.sleep(ms / 1000)

    def _refusal(self, request: WireRequest) -> Fault | None:
        """What the server itself has against a request, in the order services check it."""
        if not request.key:
            return Fault(status=401, message="no key was given")
        if self.script.keys and request.key not in self.script.keys:
            return Fault(status=401, message="the key is not valid")
        if not request.body:
            return self._refuse(request, "the body is no JSON object")
        if request.wire == "anthropic" and "max_tokens" not in request.body:
            return self._refuse(request, "max_tokens: Field required")
        window = self.script.window
        if request.wire and window is not None and prompt_tokens(request) > window:
            return WIRES[request.wire].too_long(request, window)
        complaints = request.complaints() if self.script.strict else []
        return self._refuse(request, "; ".join(complaints)) if complaints else None

    def _refuse(self, request: WireRequest, why: str) -> Fault:
        self.refused.append(f"request {request.number} ({request.wire}): {why}")
        return Fault(status=400, message=why)

    def _side(self, request: WireRequest) -> Reply:
        """Answers to what clients ask beside their questions."""
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
        return 404, {}, chat.error(Fault(status=404, message=f"nothing is served at {path}"))


def _model(name: str) -> dict[str, JsonValue]:
    """A model in the words of both families."""
    openai: dict[str, JsonValue] = {"object": "model", "created": CREATED, "owned_by": "fake"}
    made = "2023-11-14T22:13:20Z"
    return {"id": name, **openai, "type": "model", "display_name": name, "created_at": made}


def _headers(fault: Fault) -> dict[str, str]:
    after = {} if fault.retry_after is None else {"retry-after": str(fault.retry_after)}
    return {**after, **fault.headers}
