"""Who sends a request: by the token in a header, or by the cookie of a session."""

from starlette.requests import HTTPConnection
from starlette.responses import Response

from loopwright.app.access import Who
from loopwright.app.people import SESSION_MS
from loopwright.errors import NotSignedIn
from loopwright.server.context import Context, Serving
from loopwright.server.refusals import Refusal

COOKIE = "loopwright_session"
DEVICE_COOKIE = "loopwright_device"
DEVICE_SECONDS = 365 * 86_400
SAFE = ("GET", "HEAD")


def identify(context: Context, request: HTTPConnection) -> Who:
    """Whoever sends a request; a token counts before a cookie."""
    given = request.headers.getlist("authorization")
    secret = request.cookies.get(COOKIE, "")
    if not given and secret:
        who = context.people.by_session(secret)
        _check_own_page(request)
        return who
    scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not token.strip():
        raise NotSignedIn(
            "Authentication required",
            hint="send `Authorization: Bearer TOKEN`; `loopwright token create` makes one",
        )
    return context.access.by_token(token.strip())


def _check_own_page(request: HTTPConnection) -> None:
    """A cookie is sent by browsers whoever asks them to: what changes something with one must come
    from a page of ours. The Origin, where there is one, was looked at before.
    """
    if request.scope.get("method") in SAFE or "origin" in request.headers:
        return
    if request.headers.get("sec-fetch-site", "").lower() != "same-origin":
        raise Refusal(
            403,
            "foreign-origin",
            "a session is for pages of this server",
            hint="programs use a token: `loopwright token create LABEL --user NAME` makes one",
        )


def session_cookie(serving: Serving, response: Response, secret: str) -> None:
    """Set the cookie of a session."""
    response.set_cookie(
        COOKIE,
        secret,
        max_age=SESSION_MS // 1_000,
        httponly=True,
        samesite="strict",
        secure=serving.is_secure,
        path="/",
    )


def device_cookie(serving: Serving, response: Response, text: str) -> None:
    """Set the cookie by which a browser shows that it signed in before. It lets nobody in."""
    response.set_cookie(
        DEVICE_COOKIE,
        text,
        max_age=DEVICE_SECONDS,
        httponly=True,
        samesite="strict",
        secure=serving.is_secure,
        path="/",
    )


def expired_cookie(serving: Serving, response: Response) -> None:
    """Take the cookie away."""
    response.delete_cookie(
        COOKIE, httponly=True, samesite="strict", secure=serving.is_secure, path="/"
    )
