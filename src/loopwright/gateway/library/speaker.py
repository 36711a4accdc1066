"""One request on the library's model layer: deltas while it runs, a value at the end.

The library's exceptions become values that never contain a key.

A hundred answers that arrive word by word all have data in the same iteration of the event loop,
and processing each costs a third of a millisecond. Processed at once, they would delay all other
tasks. So the data of many streams is processed in small portions.
"""

import asyncio
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import assert_never

import httpx2
from pydantic_ai import exceptions as parsed
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import (
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPartDelta,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.messages import TextPart as LibraryText
from pydantic_ai.messages import ThinkingPart as LibraryThought
from pydantic_ai.models import Model, StreamedResponse

from loopwright.gateway.library.messages import (
    library_messages,
    library_parameters,
    library_settings,
    our_finish,
    our_message,
    our_usage,
    tool_names,
)
from loopwright.gateway.models import (
    PROVIDERS,
    CompletedTurn,
    Delta,
    Endpoint,
    FailedTurn,
    OnDelta,
    WireNames,
    wire_names,
    without_keys,
)
from loopwright.model.chat import (
    NOTHING_USED,
    CallDelta,
    ModelFailure,
    ModelFailureKind,
    ModelRequest,
    ModelUsage,
    TextDelta,
    ThoughtDelta,
)
from loopwright.ports import Clock

SLICE_SECONDS = 0.005


class StreamPacer:
    """Lets tasks continue until the round has lasted long enough; the others continue in the next
    round. Belongs to one event loop.
    """

    def __init__(self, slice_seconds: float = SLICE_SECONDS) -> None:
        self._slice = slice_seconds
        self._until: float | None = None  # the end of this round's portion, once it has started
        self._next = asyncio.Event()
        self._door = asyncio.Lock()

    async def enter(self) -> None:
        """Enter alone: of requests that start at the same time, one starts per round, since
        building one takes milliseconds.
        """
        async with self._door:
            await asyncio.sleep(0)

    async def turn(self) -> None:
        """Continue when there is time in a round."""
        loop = asyncio.get_running_loop()
        while self._until is not None and loop.time() > self._until:
            await self._next.wait()
        if self._until is None:
            self._until = loop.time() + self._slice
            loop.call_soon(self._over)

    def _over(self) -> None:
        self._until = None
        self._next.set()
        self._next = asyncio.Event()

    async def pace(self, response: httpx2.Response) -> None:
        """Read the body of a response in rounds."""
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _PacedStream(response.stream, self)


class _PacedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, rounds: StreamPacer) -> None:
        self._stream = stream
        self._rounds = rounds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            await self._rounds.turn()
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


# In this order: later entries are more general than earlier ones.
_KINDS: tuple[tuple[type[BaseException], ModelFailureKind], ...] = (
    (parsed.ModelContextWindowExceededError, "overflow"),
    (parsed.ModelAuthenticationError, "auth"),
    (parsed.ModelNotFoundError, "no_model"),
    (parsed.ModelQuotaExceededError, "quota"),
    (parsed.ModelRateLimitError, "rate_limited"),
    (parsed.ModelUnavailableError, "overloaded"),
    (parsed.ModelServerError, "server"),
    (parsed.ModelConnectionError, "network"),
    (parsed.ModelRequestTimeout, "network"),
    (parsed.ModelRequestRejectedError, "bad_request"),
    (parsed.ContentFilterError, "refused"),
    (parsed.UserError, "bad_request"),
    (httpx2.TransportError, "network"),
    (httpx2.StreamError, "network"),
)
_STATUSES: dict[int, ModelFailureKind] = {
    401: "auth",
    402: "quota",
    403: "auth",
    404: "no_model",
    408: "network",
    413: "overflow",
    429: "rate_limited",
    503: "overloaded",
    529: "overloaded",
}


LONGEST_PAUSE_S = 7 * 86_400
"""If a service requests a longer pause, the run does not wait for it."""


def failure_of(error: Exception, at: Endpoint, now_ms: int) -> ModelFailure:
    """The failure for an exception of the library; an unexpected one is a bad answer."""
    status = error.status_code if isinstance(error, parsed.ModelHTTPError) else None
    pause = getattr(error, "retry_after", None)
    timed = isinstance(pause, int | float) and 0 < pause <= LONGEST_PAUSE_S
    return ModelFailure(
        kind=_kind(error, status),
        model=at.spec,
        status=status,
        detail=without_keys(_located(error, at), [at.key]),
        retry_at_ms=now_ms + round(pause * 1000) if timed and pause is not None else None,
    )


def _located(error: Exception, at: Endpoint) -> str:
    """The error message; if a service does not answer, with its address."""
    if isinstance(error, parsed.ModelConnectionError) and error.phase in ("pool", "connect"):
        return f"nothing answers at {at.url}: is it running, and is that its address?"
    return _detail(error)


def reached_nothing(error: Exception) -> bool:
    """Whether the service was not reached, or rejected the request before doing any work."""
    if isinstance(error, parsed.ModelConnectionError):
        return error.phase in ("pool", "connect")
    if isinstance(error, parsed.UserError):
        return True
    return isinstance(error, parsed.ModelHTTPError) and not error.in_stream


def _kind(error: Exception, status: int | None) -> ModelFailureKind:
    for kind, ours in _KINDS:
        if isinstance(error, kind):
            return ours
    if status is None:
        return "bad_answer"
    return _STATUSES.get(status, "server" if status >= 500 else "bad_request")


def _detail(error: Exception) -> str:
    """The service's message if there is one, else the library's."""
    body = getattr(error, "body", None)
    words = " ".join(dict.fromkeys(_messages(body))) if isinstance(body, Mapping) else ""
    return words or f"{type(error).__name__}: {error}"


def _messages(body: Mapping[object, object]) -> Iterator[str]:
    for name in ("error", "message", "code"):
        value = body.get(name)
        if isinstance(value, Mapping):
            yield from _messages(value)
        elif isinstance(value, str):
            yield value


_MOST_CONNECTIONS = 200


def speaker(clock: Clock) -> "LibrarySpeaker":
    """The speaker of a gateway. The library's warnings are for its programmers, not for users:
    options that a model does not support are left out of its request.
    """
    warnings.filterwarnings("ignore", module=r"pydantic_ai\b")
    # All counts of a service are checked by `our_usage`; warnings about them on stderr would only
    # be noise.
    warnings.filterwarnings("ignore", message="Pydantic serializer warnings", category=UserWarning)
    return LibrarySpeaker(clock)


class LibrarySpeaker:
    """Calls every endpoint over one pool of connections. Belongs to one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._models: dict[Endpoint, Model] = {}
        self._loading = asyncio.Lock()
        self._rounds = StreamPacer()
        # A redirect would carry the key to another host.
        self._http = httpx2.AsyncClient(
            timeout=None,
            follow_redirects=False,
            event_hooks={"response": [self._rounds.pace]},
            limits=httpx2.Limits(
                max_connections=_MOST_CONNECTIONS, max_keepalive_connections=_MOST_CONNECTIONS // 4
            ),
        )

    async def load(self, to: Endpoint) -> None:
        """Import the protocol of an endpoint; its first request reports errors."""
        with suppress(ImportError):
            await self._model(to)

    async def close(self) -> None:
        """Close every connection."""
        self._models.clear()
        await self._http.aclose()

    async def speak(
        self, to: Endpoint, request: ModelRequest, on_delta: OnDelta
    ) -> CompletedTurn | FailedTurn:
        """One attempt. Cancelling it closes the connection."""
        try:
            model = await self._model(to)
        except ImportError as missing:
            detail = f"{to.provider} needs an extra: pip install 'loopwright[google]' ({missing})"
            failure = ModelFailure(kind="no_model", model=to.spec, detail=detail)
            return FailedTurn(failure=failure, usage=NOTHING_USED)
        await self._rounds.enter()
        names = wire_names(tool_names(request.tools, request.messages))
        stream: StreamedResponse | None = None
        try:
            async with model_request_stream(
                model,
                library_messages(request, names, to.wire),
                model_settings=library_settings(request.decoding),
                model_request_parameters=library_parameters(request, names),
                instrument=False,
            ) as stream:
                async for event in stream:
                    delta = _delta(event, names)
                    if delta is not None:
                        on_delta(delta)
                        await self._rounds.turn()  # a full buffer holds hundreds
        except Exception as error:  # any failure of a service or a library becomes a value
            return self._fallen(error, to, stream)
        return _spoken(stream, to, names)

    async def _model(self, to: Endpoint) -> Model:
        """The library's model for an endpoint; a protocol is imported, in a thread, when first
        used.
        """
        async with self._loading:
            if to not in self._models:
                self._models[to] = await asyncio.to_thread(self._made, to)
        return self._models[to]

    def _made(self, to: Endpoint) -> Model:
        match to.wire:
            case "anthropic":
                from loopwright.gateway.library import claude  # noqa: PLC0415 - takes 0.5 s

                return claude.model(to, self._http)
            case "chat" | "responses":
                from loopwright.gateway.library import chat  # noqa: PLC0415 - takes 0.5 s

                return chat.model(to, self._http)
            case "google":
                return _google_model(to, self._http)
            case _:
                assert_never(to.wire)

    def _fallen(
        self, error: Exception, to: Endpoint, stream: StreamedResponse | None
    ) -> FailedTurn:
        failure = failure_of(error, to, self._clock.now_ms())
        if stream is None and reached_nothing(error):
            return FailedTurn(failure=failure, usage=NOTHING_USED)
        return FailedTurn(failure=failure, usage=ModelUsage(measured=False))


def _google_model(to: Endpoint, http: httpx2.AsyncClient) -> Model:
    """A model of Google, with the extra `loopwright[google]`."""
    from pydantic_ai.models.google import GoogleModel  # noqa: PLC0415 - an extra
    from pydantic_ai.providers.google import GoogleProvider  # noqa: PLC0415 - an extra

    other = None if to.url == PROVIDERS["google"].url else to.url
    provider = GoogleProvider(api_key=to.key, base_url=other, http_client=http)
    return GoogleModel(to.model, provider=provider)


def _spoken(stream: StreamedResponse, to: Endpoint, names: WireNames) -> CompletedTurn | FailedTurn:
    response = stream.get()
    usage = our_usage(response)
    if response.state != "complete":
        detail = f"the answer broke off ({response.state})"
        failure = ModelFailure(kind="bad_answer", model=to.spec, detail=detail)
        return FailedTurn(failure=failure, usage=usage)
    message = our_message(response, names)
    return CompletedTurn(
        message=message,
        finish=our_finish(response.finish_reason, message),
        model=response.model_name or to.model,
        usage=usage,
    )


def _delta(event: ModelResponseStreamEvent, names: WireNames) -> Delta | None:
    """A piece of the answer as our record; None for events without new content."""
    match event:
        case PartStartEvent(index=index, part=ToolCallPart(tool_name=name, args=args)):
            return CallDelta(part=index, tool=names.tool(name), args=_piece(args))
        case PartStartEvent(index=index, part=LibraryText(content=text)) if text:
            return TextDelta(part=index, text=text)
        case PartStartEvent(index=index, part=LibraryThought(content=text)) if text:
            return ThoughtDelta(part=index, text=text)
        case PartDeltaEvent(index=index, delta=TextPartDelta(content_delta=text)) if text:
            return TextDelta(part=index, text=text)
        case PartDeltaEvent(index=index, delta=ThinkingPartDelta(content_delta=text)) if text:
            return ThoughtDelta(part=index, text=text)
        case PartDeltaEvent(index=index, delta=ToolCallPartDelta(args_delta=args)) if args:
            return CallDelta(part=index, args=_piece(args))
        case _:
            return None


def _piece(args: object) -> str:
    return args if isinstance(args, str) else ""
