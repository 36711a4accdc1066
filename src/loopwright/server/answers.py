"""Answers: values as JSON, problems by RFC 9457, and the headers that every answer has."""

from collections.abc import Iterable, Mapping

import msgspec
from starlette.responses import Response

from loopwright.app.problems import Problem

JSON = "application/json"
LONGEST = 200  # of a path, in the record and in a refusal
PROBLEM = "application/problem+json"
SECURITY: dict[str, str] = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
        "connect-src 'self'; object-src 'none'; base-uri 'self'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_ID = b"x-request-id"
_EVERY = [
    (name.lower().encode(), value.encode())
    for name, value in {**SECURITY, "Cache-Control": "no-store"}.items()
]


def as_response(value: object, status: int) -> Response:
    """What a handler returned, as it is sent."""
    if isinstance(value, Response):
        return value
    if value is None:
        return Response(status_code=204)
    return Response(msgspec.json.encode(value), status, media_type=JSON)


def as_problem(problem: Problem, headers: Mapping[str, str], asked: tuple[str, str]) -> Response:
    """A refusal in our own shape; `asked` is the path and the id of the request."""
    about = {"instance": asked[0][:LONGEST], "trace_id": asked[1]}
    body = msgspec.json.encode({**problem.as_dict(), **about})
    return Response(body, problem.status, headers=dict(headers), media_type=PROBLEM)


def secured(response: Response, request_id: str) -> Response:
    """The response with what every one has."""
    response.raw_headers = secured_headers(response.raw_headers, request_id)
    return response


def secured_headers(
    headers: Iterable[tuple[bytes, bytes]], request_id: str
) -> list[tuple[bytes, bytes]]:
    """The headers of a response, and those that every one has."""
    found = [(name.lower(), value) for name, value in headers if name.lower() != _ID]
    there = {name for name, _ in found}
    return [*found, *(pair for pair in _EVERY if pair[0] not in there), (_ID, request_id.encode())]
