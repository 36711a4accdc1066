"""A chat model without a service: it answers by the same scripts as the fake servers, in memory."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import assert_never

from loopwright.gateway.client import Exchange, Gateway
from loopwright.gateway.models import (
    BASE_URL,
    CompletedTurn,
    Delta,
    Endpoint,
    FailedTurn,
    OnDelta,
    WireNames,
    wire_names,
)
from loopwright.model.chat import (
    NOTHING_USED,
    AnyMessage,
    AnyPart,
    AssistantMessage,
    CallDelta,
    CallPart,
    Finish,
    ModelEvent,
    ModelFailure,
    ModelFailureKind,
    ModelRequest,
    ModelUsage,
    SystemMessage,
    TextDelta,
    TextPart,
    ThoughtDelta,
    ThoughtPart,
    ToolMessage,
    UserMessage,
)
from loopwright.model.record import JsonValue
from loopwright.testing.fakes import FakeClock
from loopwright.testing.wires.script import (
    Answer,
    Chooser,
    ScriptedFault,
    WireRequest,
    WireScript,
    in_order,
    last_call,
    pieces,
)

_KINDS: dict[int, ModelFailureKind] = {
    401: "auth",
    402: "quota",
    403: "auth",
    404: "no_model",
    429: "rate_limited",
    503: "overloaded",
    529: "overloaded",
}
_FINISHES: dict[str, Finish] = {
    "stop": "stop",
    "tool_use": "tool_calls",
    "length": "length",
    "refusal": "refused",
}


class ScriptedModel(Gateway):
    """The port `ModelClient` without a service. `requests` has every request, in order.

    A stalled turn continues after `release`. Pauses between two attempts take no time; deadlines
    run on `clock`, which only the test moves.
    """

    def __init__(self, script: WireScript | None = None, *, choose: Chooser | None = None) -> None:
        self.clock = FakeClock()
        self.requests: list[ModelRequest] = []
        self._scripted = ScriptedSpeaker(script or WireScript(), choose)
        super().__init__(
            env={BASE_URL: "memory"}, clock=self.clock, dice=lambda: 0.0, speaker=self._scripted
        )

    @property
    def given_up(self) -> int:
        """The number of attempts that were ended from outside, by a stop or a deadline."""
        return self._scripted.given_up

    def release(self) -> None:
        """Continue everything that stalls, now and from now on."""
        self._scripted.released.set()

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the models; see the port."""
        self.requests.append(request)
        return super().stream(request)

    async def pause(self, exchange: Exchange, ms: int) -> None:
        """No time passes between two attempts."""


class ScriptedSpeaker:
    """One attempt after the other, by a script."""

    def __init__(self, script: WireScript, choose: Chooser | None = None) -> None:
        self.script = script
        self.released = asyncio.Event()
        self.given_up = 0
        self._choose = choose or in_order(script)
        self._requests = 0
        self._calls = 0

    async def load(self, to: Endpoint) -> None:
        """Nothing to import."""

    async def close(self) -> None:
        """Nothing to close."""

    async def speak(
        self, to: Endpoint, request: ModelRequest, on_delta: OnDelta
    ) -> CompletedTurn | FailedTurn:
        """Answer with the next turn that matches."""
        self._requests += 1
        names = wire_names(tool.name for tool in request.tools)
        asked = seen(to.model, request, names, self._requests)
        turn = self._choose(asked)
        if turn is None:
            return fallen(
                ScriptedFault(status=400, message="the script has no turn for this request")
            )
        complaints = asked.complaints() if self.script.strict else []
        if complaints:
            return fallen(ScriptedFault(status=400, message="; ".join(complaints)))
        if turn.overflow:
            return _as_kind("overflow", 400, "the prompt is too long")
        if turn.fault is not None and turn.fault.after is None:
            return fallen(turn.fault)
        self._calls = max(self._calls, last_call(asked.calls))
        first = self._calls + 1
        self._calls += len(turn.calls)
        answer = Answer(turn=turn, request=asked, number=self._requests, first_call=first)
        try:
            return await self._stream(answer, names, on_delta)
        except asyncio.CancelledError:
            self.given_up += 1
            raise

    async def _stream(
        self, answer: Answer, names: WireNames, on_delta: OnDelta
    ) -> CompletedTurn | FailedTurn:
        turn = answer.turn
        for number, delta in enumerate(_deltas(answer, names)):
            if turn.stall_after == number:
                await self.released.wait()
            if turn.cut_after == number:
                return _as_kind("network", None, "the connection broke")
            if turn.fault is not None and turn.fault.after == number:
                return FailedTurn(
                    failure=fallen(turn.fault).failure, usage=ModelUsage(measured=False)
                )
            on_delta(delta)
            await asyncio.sleep(0)
        usage = answer.usage
        return CompletedTurn(
            message=AssistantMessage(parts=tuple(_parts(answer, names))),
            finish=_FINISHES[turn.ending],
            model=answer.request.model,
            usage=ModelUsage(
                input_tokens=usage.input,
                output_tokens=usage.output,
                cache_read_tokens=usage.cached,
                cache_write_tokens=usage.written,
            )
            if turn.report_usage
            else ModelUsage(measured=False),
        )


def fallen(fault: ScriptedFault) -> FailedTurn:
    """The failure for a service's error; its delay counts from the beginning of the clock."""
    kind = _KINDS.get(fault.status, "server" if fault.status >= 500 else "bad_request")
    after = fault.retry_after
    wait = round(after * 1000) if isinstance(after, int | float) else None
    failure = ModelFailure(
        kind=kind,
        status=fault.status,
        detail=fault.message or kind,
        retry_at_ms=None if wait is None else FakeClock().now + wait,
    )
    return FailedTurn(failure=failure, usage=NOTHING_USED)


def _as_kind(kind: ModelFailureKind, status: int | None, detail: str) -> FailedTurn:
    used = NOTHING_USED if status else ModelUsage(measured=False)
    return FailedTurn(failure=ModelFailure(kind=kind, status=status, detail=detail), usage=used)


def _parts(answer: Answer, names: WireNames) -> Iterator[AnyPart]:
    if answer.turn.thinking:
        yield ThoughtPart(text=answer.turn.thinking)
    if answer.turn.text:
        yield TextPart(text=answer.turn.text)
    for name, call in answer.calls("call"):
        yield CallPart(id=name, tool=names.tool(call.name), args=call.arguments)


def _deltas(answer: Answer, names: WireNames) -> Iterator[Delta]:
    size = answer.turn.chunk
    for index, part in enumerate(_parts(answer, names)):
        match part:
            case ThoughtPart(text=text):
                yield from (ThoughtDelta(part=index, text=bit) for bit in pieces(text, size))
            case TextPart(text=text):
                yield from (TextDelta(part=index, text=bit) for bit in pieces(text, size))
            case CallPart(tool=tool, args=args):
                yield CallDelta(part=index, tool=tool)
                yield from (CallDelta(part=index, args=bit) for bit in pieces(args, size))
            case _:
                assert_never(part)


def seen(model: str, request: ModelRequest, names: WireNames, number: int) -> WireRequest:
    """A request as a server would see it, for scripts that match on it."""
    system = (SystemMessage(text=request.system),) if request.system else ()
    body: dict[str, JsonValue] = {
        "model": model,
        "messages": [one for each in (*system, *request.messages) for one in _wired(each)],
        "tools": [{"function": {"name": names.wire(tool.name)}} for tool in request.tools],
    }
    return WireRequest(
        number=number, method="POST", path="/memory", headers={}, body=body, wire="chat"
    )


def _wired(message: AnyMessage) -> Iterator[dict[str, JsonValue]]:
    match message:
        case SystemMessage(text=text):
            yield {"role": "system", "content": text}
        case UserMessage(text=text):
            yield {"role": "user", "content": text}
        case AssistantMessage():
            calls: list[JsonValue] = [{"id": call.id} for call in message.calls]
            yield {"role": "assistant", "content": message.text, "tool_calls": calls}
        case ToolMessage(results=results):
            for result in results:
                yield {"role": "tool", "tool_call_id": result.id, "content": result.text}
        case _:
            assert_never(message)
