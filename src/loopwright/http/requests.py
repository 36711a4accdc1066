"""Requests: the types that declare routes, and reading of bodies, queries, pages and files.

Bodies are limited in bytes and time, and JSON is read strictly. Control characters in texts are
refused: NUL cannot be passed to a program, and others control terminals and break log lines.
Tabs, line ends and page breaks are allowed. Files sent with a definition are never written to
disk; still each path must be one that could be read below a folder.
"""

import asyncio
import json
import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import (
    Annotated,
    ClassVar,
    TypeAlias,
    TypeVar,
    get_type_hints,
)

import msgspec
from starlette.datastructures import Headers, QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from loopwright.errors import InputError
from loopwright.http.context import Context, RequestLimits
from loopwright.http.responses import RequestRefusal, bad_json
from loopwright.operations.accounts.access import Principal
from loopwright.operations.problems import (
    NO_CONTROL,
    ProblemReport,
    control_character,
    query_problem,
    request_problem,
)
from loopwright.operations.use_cases.operation import (
    MOST,
    ListPage,
    Method,
    Need,
    WhileDraining,
    page_of,
)

Answer: TypeAlias = object
"""A response, or a value that is written as JSON; None is an answer without content."""

Handler: TypeAlias = Callable[["RouteRequest"], Awaitable[Answer]]
Refuse: TypeAlias = Callable[[ProblemReport, Mapping[str, str]], Response]

_Struct = TypeVar("_Struct", bound=msgspec.Struct)
_PARAMETER = re.compile(r"\{(\w+)\}")


class Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a request carries; a field that it does not have is refused, and so are control
    characters in texts, but for those of the fields that are `free`.
    """

    free: ClassVar[tuple[str, ...]] = ()


class Query(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query parameters; an unknown name is refused."""


class OptionalBody(Body):
    """What a request may carry, or not."""


class NoBody(OptionalBody):
    """Nothing, or an empty object."""


class NoQuery(Query):
    """No parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRequest:
    """A request that was let through: who asks, and for what."""

    context: Context
    request: Request
    route: "Route"
    params: Mapping[str, str]
    _who: Principal | None = None
    _body: Body = field(default_factory=NoBody)
    _query: Query = field(default_factory=NoQuery)
    raw: bytes = b""

    @property
    def who(self) -> Principal:
        """The caller; only if the route requires one."""
        assert self._who is not None, "the route is open to everybody"
        return self._who

    def body(self, kind: type[_Struct]) -> _Struct:
        assert isinstance(self._body, kind)
        return self._body

    def query(self, kind: type[_Struct]) -> _Struct:
        assert isinstance(self._query, kind)
        return self._query


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One row of the table."""

    method: Method
    path: str
    handle: Handler
    need: Need
    say: str
    body: type[Body] = NoBody
    query: type[Query] = NoQuery
    answer: object = None  # the type of what is answered, for the description of the API
    status: int = 200
    also: Sequence[int] = ()  # further statuses, with the same shape; 204 has none
    media: str = "application/json"
    streams: bool = False  # whether it is answered by server-sent events, instead or as well
    takes: str | None = None  # the media type of a body that the handler reads as it is
    body_bytes: int | None = None  # if it differs from other routes
    body_seconds: float | None = None
    repeatable: bool = True  # whether an Idempotency-Key counts
    draining: WhileDraining = "serve"  # whether it is refused by a server that is about to stop
    again: Callable[["RouteRequest", str], Awaitable[Answer]] | None = None
    """The answer for something that was made, by its name, where the first answer was lost."""
    pattern: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        template = _PARAMETER.sub(r"(?P<\1>[^/]+)", re.sub(r"[.]", r"\\.", self.path))
        object.__setattr__(self, "pattern", re.compile(template))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """An application of its own below a path. Host, Origin and sizes are seen to before it; who
    asks, and what they may do, it must see to itself with `Context.access`.
    """

    path: str
    make: Callable[[Context], ASGIApp]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteFamily:
    """Routes that belong together: they share how errors look and what lives with the server."""

    name: str
    prefix: str  # paths below it that no route has are refused in the shape of this family
    routes: Sequence[Route] = ()
    refuse: Refuse | None = None  # None: problem+json
    failure: type[msgspec.Struct] | None = None  # what `refuse` writes; None: problem details
    mounts: Sequence[Mount] = ()
    living: Callable[[Context], AbstractAsyncContextManager[None]] | None = None


_Entry = TypeVar("_Entry")


class PageQuery(Query):
    """Which page of a list, and how much of it."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST)] = MOST
    cursor: str | None = None


def paged(
    request: RouteRequest, kind: str, found: Iterable[_Entry], place: Callable[[_Entry], str]
) -> ListPage[_Entry]:
    """The page of a list that is asked for, in the order of its places."""
    query, cursors = request.query(PageQuery), request.context.cursors
    return page_of(lambda: cursors, kind, found, place, limit=query.limit, cursor=query.cursor)


BAD = "bad-character"


def check_texts(value: object, free: Collection[str] = ()) -> None:
    """Refuse a control character anywhere in a value, but for the fields that are `free`."""
    for pointer, text in _texts(value, free):
        said = control_character(text)
        if said is not None:
            raise RequestRefusal(
                422,
                BAD,
                f"{pointer or 'the text'}: {said}",
                hint=NO_CONTROL,
                errors=[{"pointer": pointer, "code": BAD, "message": said}],
            )


def _texts(value: object, free: Collection[str]) -> Iterator[tuple[str, str]]:
    """Every text in a value with its position; nesting needs no recursion."""
    left: list[tuple[str, object]] = [("", value)]
    while left:
        pointer, one = left.pop()
        if isinstance(one, str):
            yield pointer, one
        elif isinstance(one, dict):
            for name, inner in one.items():
                yield pointer, name
                if pointer or name not in free:
                    left.append((f"{pointer}/{name[:80]}", inner))
        elif isinstance(one, list):
            left += [(f"{pointer}/{n}", inner) for n, inner in enumerate(one)]


_B = TypeVar("_B", bound=Body)
_Q = TypeVar("_Q", bound=Query)
LONGEST_INT = 1_000


async def read_body(request: Request, limits: RequestLimits, most: int) -> bytes:
    """The body, whole; refused when it is too large, too slow or packed."""
    headers = request.headers
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestRefusal(
            415, "packed-body", "a packed body is not taken", hint="send it as it is"
        )
    declared = headers.get("content-length", "0")
    if not declared.isdigit() or int(declared) > most:
        raise _too_large(most)
    try:
        async with asyncio.timeout(limits.body_seconds):
            return await _collect(request, most)
    except TimeoutError as error:
        raise RequestRefusal(
            408,
            "too-slow",
            f"the body was not there within {limits.body_seconds:g} seconds",
            headers={"Connection": "close"},
        ) from error
    except ClientDisconnect as error:
        raise RequestRefusal(400, "cut-off", "the body ended too early") from error


async def _collect(request: Request, most: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > most:
            raise _too_large(most)
        pieces.append(piece)
    return b"".join(pieces)


def _too_large(most: int) -> RequestRefusal:
    return RequestRefusal(
        413,
        "too-large",
        f"a body has at most {most:,} bytes here",
        headers={"Connection": "close"},
    )


def parse_body(raw: bytes, headers: Headers, kind: type[_B]) -> _B:
    """The body as the route wants it."""
    if not raw and issubclass(kind, OptionalBody):
        return kind()
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise RequestRefusal(
            415, "not-json", "the body must be JSON", hint="send Content-Type: application/json"
        )
    value = strict_json(raw)
    if not isinstance(value, dict):
        raise InputError("the body must be a JSON object", code="wrong-type")
    try:
        body = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise request_problem(kind, value, str(error)) from error
    check_texts(value, kind.free)
    return body


def strict_json(raw: bytes) -> object:
    """JSON as its standard has it: no key twice, no NaN, no number without end."""
    if not raw.strip():
        raise bad_json("it is empty")
    try:
        text = raw.decode("utf-8")
        value: object = json.loads(
            text,
            object_pairs_hook=_once,
            parse_constant=_no_constant,
            parse_float=_float,
            parse_int=_int,
        )
        if "\\ud" in text.lower():  # half of a pair is not text, and could be kept nowhere
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeDecodeError as error:
        raise bad_json("it is not UTF-8") from error
    except UnicodeEncodeError as error:
        raise bad_json("a sign in it is only half there") from error
    except RecursionError as error:
        raise bad_json("it is nested too deep") from error
    except ValueError as error:
        raise bad_json(str(error)[:200]) from error


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{twice[:80]!a} occurs twice")
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number")


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):  # it would be kept as null
        raise ValueError(f"the number {digits[:20]} is too large")
    return value


def _int(digits: str) -> int:
    if len(digits) > LONGEST_INT:
        raise ValueError(f"a number in it has more than {LONGEST_INT} digits")
    return int(digits)


def parse_query(params: QueryParams, kind: type[_Q]) -> _Q:
    """The parameters as the route wants them."""
    many = {name for name, hint in get_type_hints(kind).items() if "tuple" in str(hint)}
    given: dict[str, object] = {}
    for name in params:
        values = params.getlist(name)
        if name in many:
            given[name] = [one for value in values for one in value.split(",")]
        elif len(values) > 1:
            raise InputError(f"{name[:80]!a} is given twice", code="given-twice")
        else:
            given[name] = values[0]
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise query_problem(kind, given, str(error), unknown="unknown-filter") from error
