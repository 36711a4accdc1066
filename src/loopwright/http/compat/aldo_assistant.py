"""The page assistant: its answer as a stream of words and tool calls, and the price."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
from starlette.responses import StreamingResponse

from loopwright.errors import LoopwrightError
from loopwright.http.compat.aldo_approvals import ApprovalFailure, refuse
from loopwright.http.context import Context
from loopwright.http.operation_routes import app_of, caller_of
from loopwright.http.requests import Answer, Body, Route, RouteFamily, RouteRequest
from loopwright.http.responses import RequestRefusal
from loopwright.kernel.event_parts import ToolCall
from loopwright.kernel.events import (
    AnyEvent,
    EffectDone,
    EffectFailed,
    EffectRequested,
    RunFinished,
    TurnTaken,
    Usage,
)
from loopwright.model.record import JsonValue
from loopwright.operations.messages import ConversationMessage
from loopwright.operations.run_tail import RunTail
from loopwright.operations.use_cases.assistants import AnswerConversation, answer
from loopwright.ports import Delta
from loopwright.views.formats import known_usd

STREAM = "text/event-stream"
RESULT_CHARS = 4_096
MOST_WAITING = 1_000  # pieces of text that a slow page has not taken yet; more of them are left out
WAIT_SECONDS = 5.0
NOBODY = "page"
_STOPPING: set[asyncio.Task[bool]] = set()


class ConversationItem(msgspec.Struct, forbid_unknown_fields=True):
    """One message of the conversation."""

    role: Literal["user", "assistant"]
    content: Annotated[str, msgspec.Meta(min_length=1, max_length=100_000)]


class StreamBody(Body):
    """The whole conversation; its last message is the one that is answered."""

    messages: Annotated[list[ConversationItem], msgspec.Meta(min_length=1, max_length=50)]
    threadId: Annotated[str, msgspec.Meta(max_length=200)] | None = None


async def streamed(request: RouteRequest) -> Answer:
    context, body = request.context, request.body(StreamBody)
    if body.messages[-1].role != "user":
        raise RequestRefusal(400, "bad-value", "the last message must be the user's")
    run = await _started(request, body)
    reply = _Answer(context, run, body.threadId, context.clock.now_ms())
    headers = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
    return StreamingResponse(reply.frames(), media_type=STREAM, headers=headers)


async def _started(request: RouteRequest, body: StreamBody) -> str:
    messages = tuple(ConversationMessage(one.role, one.content) for one in body.messages)
    app, caller = request.context.part(app_of), caller_of(request.who)
    try:
        return await answer(app, caller, AnswerConversation(messages=messages))
    except LoopwrightError as error:
        if error.code == "unknown-cost":  # a page has no option that would allow it
            error.hint = (
                "set a price for its model in the settings of the server "
                '(`[prices."PROVIDER/NAME"]`), or choose a model with a listed price'
            )
        raise


@dataclass(slots=True)
class _Answer:
    """One answer on its way to a page."""

    context: Context
    run: str
    thread: str | None
    began_ms: int
    model: str = ""
    request: dict[str, ToolCall] = field(default_factory=dict)
    used: list[Usage] = field(default_factory=list)

    async def frames(self) -> AsyncIterator[bytes]:
        """Everything until the end. If the client disconnects, the run is ended."""
        pieces: deque[str] = deque()
        tail = RunTail(self.context.feed, self.run, self.context.here.log.read)

        def hear(delta: Delta) -> None:
            if delta.run == self.run and delta.kind == "text" and len(pieces) < MOST_WAITING:
                pieces.append(delta.text)
                tail.wake()

        end, ended = self.context.here.bus.listen(hear), False
        try:
            async for events in tail.batches(lambda: WAIT_SECONDS):
                while pieces:
                    yield _frame("delta", {"text": pieces.popleft()})
                for numbered in events:
                    frame = self._frame(numbered.event)
                    if frame is not None:
                        yield frame
                    ended = ended or isinstance(numbered.event, RunFinished)
                if ended:
                    return
            yield _frame("error", {"message": "the server is about to stop"})
        finally:
            end()
            if not ended:
                self._stop()

    def _stop(self) -> None:
        """A disconnected client cannot wait for the end of the run, so a separate task ends it."""
        task = asyncio.ensure_future(self.context.service.stop(self.run, by=NOBODY))
        _STOPPING.add(task)
        task.add_done_callback(_STOPPING.discard)

    def _frame(self, event: AnyEvent) -> bytes | None:
        match event:
            case EffectRequested(call=ToolCall() as call):
                self.request[event.effect] = call
            case TurnTaken():
                self.model = event.model or self.model
            case EffectDone() | EffectFailed():
                if event.usage is not None:
                    self.used.append(event.usage)
                if event.effect in self.request:
                    return self._tool(self.request.pop(event.effect), event)
            case RunFinished():
                return self._done(event)
            case _:
                pass
        return None

    def _tool(self, call: ToolCall, event: EffectDone | EffectFailed) -> bytes:
        read = self.context.service.read_text
        failed = isinstance(event, EffectFailed)
        result = read(event.output) or (
            event.error.detail if isinstance(event, EffectFailed) else ""
        )
        payload: dict[str, JsonValue] = {
            "name": call.tool,
            "callId": call.call,
            "args": msgspec.json.decode(read(call.arguments)),
            "result": result[:RESULT_CHARS],
            "isError": failed,
        }
        return _frame("tool", payload)

    def _done(self, event: RunFinished) -> bytes:
        if event.outcome in ("failed", "cancelled"):
            detail = event.error.detail if event.error is not None else event.reason
            return _frame("error", {"message": detail, "reason": event.reason, "runId": self.run})
        payload: dict[str, JsonValue] = {
            "tokensIn": sum(one.input_tokens for one in self.used),
            "tokensOut": sum(one.output_tokens for one in self.used),
            "usd": known_usd(
                sum(one.usd for one in self.used), sum(one.unpriced for one in self.used)
            ),
            "latencyMs": max(0, self.context.clock.now_ms() - self.began_ms),
            "model": self.model,
            "runId": self.run,
        }
        return _frame("done", payload | ({"threadId": self.thread} if self.thread else {}))


def _frame(kind: str, value: dict[str, JsonValue]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"


FAMILY = RouteFamily(
    name="assistant",
    prefix="/v1/assistant",
    refuse=refuse,
    failure=ApprovalFailure,
    routes=(
        Route(
            method="POST",
            path="/v1/assistant/stream",
            handle=streamed,
            need="editor",
            say="An answer of the assistant as it is written: delta, tool, done, error",
            body=StreamBody,
            media=STREAM,
            repeatable=False,
            draining="refuse",
        ),
    ),
)
