"""What is mounted: an application of others below a path of its own. It gets requests as every
route here does, bounded in bytes and in time, and what it answers has the headers of every answer.
"""

from typing import Protocol, runtime_checkable

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loopwright.server.answers import as_problem, secured, secured_headers
from loopwright.server.bodies import read_body
from loopwright.server.context import Limits
from loopwright.server.refusals import Refusal, headers_of, problem_of


@runtime_checkable
class LimitsBodies(Protocol):
    """An application that has a limit of its own for some bodies."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""

    def body_limit(self, scope: Scope) -> int | None:
        """How many bytes the body of a request has at most; None for the usual limit."""

    async def refuse_body(self, scope: Scope) -> None:
        """Called when a body was too large or too slow."""


def bounded(app: ASGIApp, limits: Limits, request_id: str) -> ASGIApp:
    """The application for one request; a socket bounds its messages itself."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        try:
            limit = app.body_limit(scope) if isinstance(app, LimitsBodies) else None
            limit = min(limits.body_bytes, limit or limits.body_bytes)
            body = await read_body(Request(scope, receive), limits, limit)
        except Refusal as refusal:
            if isinstance(app, LimitsBodies):
                await app.refuse_body(scope)
            problem = problem_of(refusal)
            asked = scope["path"], request_id
            response = as_problem(problem, headers_of(refusal, problem.status), asked)
            await secured(response, request_id)(scope, receive, send)
            return
        await app(scope, _read_already(body, receive), _securing(send, request_id))

    return answer


def _read_already(body: bytes, receive: Receive) -> Receive:
    """The body first, whole; then whatever else comes."""
    left = [body]

    async def again() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return again


def _securing(send: Send, request_id: str) -> Send:
    async def secure(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = secured_headers(message.get("headers", ()), request_id)
            message = {**message, "headers": headers}
        await send(message)

    return secure
