"""One request on the library's model layer: deltas while it speaks, a value at the end."""

import asyncio
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module

import httpx2
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

from loopwright.gateway.library.converting import (
    library_messages,
    library_parameters,
    library_settings,
    our_finish,
    our_message,
    our_usage,
    tool_names,
)
from loopwright.gateway.library.failures import failure_of, reached_nothing
from loopwright.gateway.library.rounds import Rounds
from loopwright.gateway.names import WireNames, wire_names
from loopwright.gateway.speaking import Delta, Fallen, Said, Spoken
from loopwright.gateway.specs import Endpoint, Wire
from loopwright.model.exchange import (
    NOTHING_USED,
    CallDelta,
    ModelFailure,
    ModelRequest,
    ModelUsage,
    TextDelta,
    ThoughtDelta,
)
from loopwright.ports import Clock

_MAKERS: dict[Wire, str] = {
    "anthropic": "loopwright.gateway.library.claude",
    "chat": "loopwright.gateway.library.chat",
    "google": "loopwright.gateway.library.gemini",
    "responses": "loopwright.gateway.library.chat",
}
_MOST_CONNECTIONS = 200


def speaker(clock: Clock) -> "LibrarySpeaker":
    """The speaker of a gateway. The library's warnings are for its programmers, not for users:
    what a model does not support is left out of its request.
    """
    warnings.filterwarnings("ignore", module=r"pydantic_ai\b")
    # Whatever a service counts is looked at by `our_usage`; on stderr it would only be in the way.
    warnings.filterwarnings("ignore", message="Pydantic serializer warnings", category=UserWarning)
    return LibrarySpeaker(clock)


class LibrarySpeaker:
    """Speaks to every endpoint over one pool of connections. Belongs to one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._models: dict[Endpoint, Model] = {}
        self._loading = asyncio.Lock()
        self._rounds = Rounds()
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
        """Load the wire of an endpoint; what is wrong with it is told by its first request."""
        with suppress(ImportError):
            await self._model(to)

    async def close(self) -> None:
        """Give back every connection."""
        self._models.clear()
        await self._http.aclose()

    async def speak(self, to: Endpoint, request: ModelRequest, said: Said) -> Spoken | Fallen:
        """One attempt. Cancelling it closes the connection."""
        try:
            model = await self._model(to)
        except ImportError as missing:
            detail = f"{to.provider} needs an extra: pip install 'loopwright[google]' ({missing})"
            failure = ModelFailure(kind="no_model", model=to.spec, detail=detail)
            return Fallen(failure=failure, usage=NOTHING_USED)
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
                        said(delta)
                        await self._rounds.turn()  # a full buffer holds hundreds
        except Exception as error:  # whatever a service or a library may bring is a value here
            return self._fallen(error, to, stream)
        return _spoken(stream, to, names)

    async def _model(self, to: Endpoint) -> Model:
        """The library's model for an endpoint; a wire is loaded, in a thread, when first used."""
        async with self._loading:
            if to not in self._models:
                self._models[to] = await asyncio.to_thread(self._made, to)
        return self._models[to]

    def _made(self, to: Endpoint) -> Model:
        make: Callable[[Endpoint, httpx2.AsyncClient], Model] = import_module(
            _MAKERS[to.wire]
        ).model
        return make(to, self._http)

    def _fallen(self, error: Exception, to: Endpoint, stream: StreamedResponse | None) -> Fallen:
        failure = failure_of(error, to, self._clock.now_ms())
        if stream is None and reached_nothing(error):
            return Fallen(failure=failure, usage=NOTHING_USED)
        return Fallen(failure=failure, usage=ModelUsage(measured=False))


def _spoken(stream: StreamedResponse, to: Endpoint, names: WireNames) -> Spoken | Fallen:
    response = stream.get()
    usage = our_usage(response)
    if response.state != "complete":
        detail = f"the answer broke off ({response.state})"
        failure = ModelFailure(kind="bad_answer", model=to.spec, detail=detail)
        return Fallen(failure=failure, usage=usage)
    message = our_message(response, names)
    return Spoken(
        message=message,
        finish=our_finish(response.finish_reason, message),
        model=response.model_name or to.model,
        usage=usage,
    )


def _delta(event: ModelResponseStreamEvent, names: WireNames) -> Delta | None:
    """A piece of the answer as we tell it; None for events that say nothing new."""
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
