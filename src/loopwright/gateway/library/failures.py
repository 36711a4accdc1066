"""The library's exceptions as values, without a key in any of them."""

from collections.abc import Iterator, Mapping

import httpx2
from pydantic_ai import exceptions as told

from loopwright.gateway.speaking import without_keys
from loopwright.gateway.specs import Endpoint
from loopwright.model.exchange import ModelFailure, ModelFailureKind

# In this order: what stands further down is a more general kind of what stands above.
_KINDS: tuple[tuple[type[BaseException], ModelFailureKind], ...] = (
    (told.ModelContextWindowExceededError, "overflow"),
    (told.ModelAuthenticationError, "auth"),
    (told.ModelNotFoundError, "no_model"),
    (told.ModelQuotaExceededError, "quota"),
    (told.ModelRateLimitError, "rate_limited"),
    (told.ModelUnavailableError, "overloaded"),
    (told.ModelServerError, "server"),
    (told.ModelConnectionError, "network"),
    (told.ModelRequestTimeout, "network"),
    (told.ModelRequestRejectedError, "bad_request"),
    (told.ContentFilterError, "refused"),
    (told.UserError, "bad_request"),
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
"""A service that asks for more is not parked for: nobody would wait for it knowingly."""


def failure_of(error: Exception, at: Endpoint, now_ms: int) -> ModelFailure:
    """What an exception of the library means; one that nobody expects is a bad answer."""
    status = error.status_code if isinstance(error, told.ModelHTTPError) else None
    pause = getattr(error, "retry_after", None)
    timed = isinstance(pause, int | float) and 0 < pause <= LONGEST_PAUSE_S
    return ModelFailure(
        kind=_kind(error, status),
        model=at.spec,
        status=status,
        detail=without_keys(_told_where(error, at), [at.key]),
        retry_at_ms=now_ms + round(pause * 1000) if timed and pause is not None else None,
    )


def _told_where(error: Exception, at: Endpoint) -> str:
    """What went wrong; of a service that does not answer, where it was looked for."""
    if isinstance(error, told.ModelConnectionError) and error.phase in ("pool", "connect"):
        return f"nothing answers at {at.url}: is it running, and is that its address?"
    return _detail(error)


def reached_nothing(error: Exception) -> bool:
    """Whether the service was not reached, or turned the request away before it did any work."""
    if isinstance(error, told.ModelConnectionError):
        return error.phase in ("pool", "connect")
    if isinstance(error, told.UserError):
        return True
    return isinstance(error, told.ModelHTTPError) and not error.in_stream


def _kind(error: Exception, status: int | None) -> ModelFailureKind:
    for kind, ours in _KINDS:
        if isinstance(error, kind):
            return ours
    if status is None:
        return "bad_answer"
    return _STATUSES.get(status, "server" if status >= 500 else "bad_request")


def _detail(error: Exception) -> str:
    """The service's own words where it has any, else the library's."""
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
