"""The table of what is served: families of routes, and what a handler is given."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from loopwright.app.access import Role, Who
from loopwright.app.problems import Problem
from loopwright.server.context import Context

Need: TypeAlias = Literal["open", "signed"] | Role
"""Who may use a route: everybody, whoever signs with a secret that the handler knows, or somebody
with at least this role.
"""

Method: TypeAlias = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Answer: TypeAlias = object
"""A response, or a value that is written as JSON; None is an answer without content."""

Handler: TypeAlias = Callable[["Asked"], Awaitable[Answer]]
Refuse: TypeAlias = Callable[[Problem, Mapping[str, str]], Response]

_Struct = TypeVar("_Struct", bound=msgspec.Struct)
_PARAMETER = re.compile(r"\{(\w+)\}")


class Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a request carries; a field that it does not have is refused, and so are control
    characters in texts, but for those of the fields that are `free`.
    """

    free: ClassVar[tuple[str, ...]] = ()


class Query(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What stands behind the question mark; a name that it does not have is refused."""


class OptionalBody(Body):
    """What a request may carry, or not."""


class NoBody(OptionalBody):
    """Nothing, or an empty object."""


class NoQuery(Query):
    """No parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request that was let through: who asks, and for what."""

    context: Context
    request: Request
    route: "Route"
    params: Mapping[str, str]
    _who: Who | None = None
    _body: Body = field(default_factory=NoBody)
    _query: Query = field(default_factory=NoQuery)
    raw: bytes = b""

    @property
    def who(self) -> Who:
        """Whoever asks; only where the route needs somebody."""
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
    body_bytes: int | None = None  # where it is less or more than elsewhere
    body_seconds: float | None = None
    repeatable: bool = True  # whether an Idempotency-Key counts
    again: Callable[["Asked", str], Awaitable[Answer]] | None = None
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
class Family:
    """Routes that belong together: they share how errors look and what lives with the server."""

    name: str
    prefix: str  # paths below it that no route has are refused in the shape of this family
    routes: Sequence[Route] = ()
    refuse: Refuse | None = None  # None: problem+json
    failure: type[msgspec.Struct] | None = None  # what `refuse` writes; None: problem details
    mounts: Sequence[Mount] = ()
    living: Callable[[Context], AbstractAsyncContextManager[None]] | None = None
