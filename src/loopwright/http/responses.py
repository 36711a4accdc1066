"""Responses: JSON, files, problems as in RFC 9457, common headers, and refusals by the server.

Ranges and conditional requests for files follow RFC 9110, sections 13 and 14. A condition that
cannot be parsed is ignored: the response has the whole content.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response

from loopwright.errors import InputError, LoopwrightError, StorageError
from loopwright.operations.accounts.access import TooManyRequests
from loopwright.operations.problems import ProblemReport, known_problem, neutral
from loopwright.operations.use_cases.operation import BYTES, FileContent
from loopwright.workers.notifiers import LinkOver

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


def as_problem(
    problem: ProblemReport, headers: Mapping[str, str], request_id_path: tuple[str, str]
) -> Response:
    """A refusal in our own shape; `request_id_path` is the path and the id of the request."""
    about = {"instance": request_id_path[0][:LONGEST], "trace_id": request_id_path[1]}
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


DATA_DIRECTORY = "(data directory)"
ODD_PATH = "odd-path"
KEY_REUSED = "key-reused"
UNFIT = (
    "archive-too-big",
    "unsafe-archive",
    "bad-agent-name",
    "bad-definition-name",
    "bad-level",
    "indirect-agent",
    "relative-agent",
    "bad-hook-name",
    "bad-url",
    "private-address",
    "bad-user-name",
    "bad-password",
)
"""Understood, and not good enough: on the command line wrong usage, here 422."""

STATUS_OF = {
    "bad-json": 400,
    "busy": 503,
    "empty-upload": 422,
    "if-match-needed": 428,
    "queue-full": 429,
    "stale": 412,
    "too-many-requests": 429,
}
TITLES = {
    400: "The request cannot be understood",
    401: "Not signed in",
    403: "Not allowed",
    404: "Not found",
    405: "Not by this method",
    408: "The request took too long",
    409: "The state does not allow it",
    410: "It is gone",
    412: "It was changed meanwhile",
    413: "The request is too large",
    414: "The address is too long",
    416: "Not found: this part of the run",
    415: "This kind of content is not taken",
    422: "The request is not valid",
    428: "A condition is required",
    429: "Too many requests",
    431: "The headers are too large",
    500: "Something unexpected happened",
    503: "Not now",
}


class RequestRefusal(LoopwrightError):
    """A request that gets no further; `status` is of HTTP."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        headers: Mapping[str, str] | None = None,
        errors: list[dict[str, str | int | None]] | None = None,
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.status = status
        self.headers = dict(headers or {})
        self.errors = errors or []


def problem_of(error: LoopwrightError, *, flags: bool = False) -> ProblemReport:
    """The problem report of any error of the product, with its status. `flags`: parameters
    are written as options of the command line.
    """
    if isinstance(error, RequestRefusal):
        return ProblemReport(
            exit=1,
            status=error.status,
            code=error.code,
            title=TITLES.get(error.status, "Refused"),
            detail=error.message,
            hint=error.hint,
            errors=error.errors,
        )
    problem = known_problem(error) if flags else neutral(known_problem(error))
    if isinstance(error, InputError):
        place = {"pointer": error.pointer, "code": error.code, "message": error.message}
        return replace(problem, errors=[{**place}])
    if isinstance(error, LinkOver):
        return replace(problem, status=410, title=TITLES[410])
    if isinstance(error, StorageError):  # clients must not learn where the data is
        return replace(
            problem, detail=f"the data cannot be used just now ({error.code})", hint=None
        )
    status = STATUS_OF.get(error.code)
    if status is not None:
        return replace(problem, status=status, title=TITLES[status])
    return replace(problem, status=422) if error.code in UNFIT else problem


def without_paths(problem: ProblemReport, paths: Sequence[str]) -> ProblemReport:
    """The problem without these paths: clients must not learn where the data is."""

    def cleaned(text: str) -> str:
        for path in paths:
            text = text.replace(path, DATA_DIRECTORY)
        return text

    errors = [
        {key: cleaned(value) if isinstance(value, str) else value for key, value in one.items()}
        for one in problem.errors
    ]
    hint = None if problem.hint is None else cleaned(problem.hint)
    return replace(problem, detail=cleaned(problem.detail), hint=hint, errors=errors)


def headers_of(error: LoopwrightError, status: int) -> dict[str, str]:
    """Headers that belong to a refusal."""
    if isinstance(error, RequestRefusal | TooManyRequests):
        return error.headers
    if status == 401:
        return {"WWW-Authenticate": "Bearer"}
    return {"Retry-After": "5"} if status == 503 else {}


def unfit_is_bad(problem: ProblemReport) -> int:
    """The status of a refusal in families where what does not fit is 400. That a key was used for
    other states do not depend on the request, and stay 422.
    """
    return 400 if problem.status == 422 and problem.code != KEY_REUSED else problem.status


def assistant_refusal(problem: ProblemReport) -> str:
    """The text of a refusal about assistants, with its remedy if the caller can use it: the same
    over HTTP and the socket.
    """
    hint = problem.hint if unfit_is_bad(problem) in (400, 409) else None
    return f"{problem.detail} ({hint})" if hint else problem.detail


def bad_json(why: str) -> RequestRefusal:
    return RequestRefusal(400, "bad-json", f"the body is not JSON: {why}")


def no_route(path: str) -> RequestRefusal:
    hint = "/openapi.json lists every route"
    return RequestRefusal(404, "not-found", f"nothing is served at {path[:200]!a}", hint=hint)


def odd_path(path: str) -> RequestRefusal:
    """A path that could be taken for another one."""
    return RequestRefusal(404, "odd-path", f"nothing is served at {path[:200]!a}")


def answer_lost(action: str, subject: str) -> RequestRefusal:
    """A repeated request that was done, and whose answer was not stored."""
    return RequestRefusal(
        409,
        "answer-lost",
        f"this was done ({action} {subject}), and the server ended before it could answer",
        hint="look at it; there is no need to ask again",
    )


MOST_TAGS = 10  # entity tags that are compared
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_TAG = re.compile(r'(?:W/)?"[^"\x00-\x20\x7f-\xff]*"')


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a request says about the content that it wants."""

    range: str | None
    if_range: str | None
    if_none_match: str | None


def part_of(data: bytes, tag: str, wanted: Conditions) -> Response:
    """The content, a part of it, or nothing new."""
    etag = f'"{tag}"'
    headers = {"ETag": etag, "Accept-Ranges": "bytes"}
    if wanted.if_none_match is not None and _matches(wanted.if_none_match, etag):
        return Response(status_code=304, headers=headers)
    if wanted.range is None or wanted.if_range not in (None, etag):
        return Response(data, 200, headers)
    request_id_path = _RANGE.fullmatch(wanted.range.strip())
    if request_id_path is None or request_id_path[0] == "bytes=-":
        return Response(data, 200, headers)
    first, last = _places(request_id_path[1], request_id_path[2], len(data))
    if first > last or first >= len(data):
        raise RequestRefusal(
            416,
            "no-such-range",
            f"the content has {len(data)} bytes",
            headers={"Content-Range": f"bytes */{len(data)}", "ETag": etag},
        )
    headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
    return Response(data[first : last + 1], 206, headers)


def _places(first: str, last: str, size: int) -> tuple[int, int]:
    if not first:  # so many from the end
        count = int(last)
        return (max(size - count, 0), size - 1) if count else (0, -1)
    return int(first), min(int(last), size - 1) if last else size - 1


def _matches(given: str, etag: str) -> bool:
    if given.strip() == "*":
        return True
    return any(tag.removeprefix("W/") == etag for tag in _TAG.findall(given)[:MOST_TAGS])


def file_response(content: FileContent, headers: Headers) -> Response:
    """A file, or the part of it that is asked for; no browser opens it by itself."""
    wanted = Conditions(headers.get("range"), headers.get("if-range"), headers.get("if-none-match"))
    response = part_of(content.data, content.digest, wanted)
    response.headers["Content-Type"] = BYTES
    response.headers["Content-Disposition"] = f'attachment; filename="{content.name}"'
    response.headers["Content-Security-Policy"] = "sandbox; default-src 'none'"
    return response
