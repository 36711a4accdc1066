"""HTTP client of a Loopwright server, for commands with `--server`.

The token comes from the environment, from a file or from `loopwright login`, never from the
command line, where other users could see it.
"""

import http.client
import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from loopwright import __version__
from loopwright.client.http_transport import read_refusal
from loopwright.client.servers import parse_address, token_for
from loopwright.errors import (
    LoopwrightError,
    ServerFailed,
    Unreachable,
)

if TYPE_CHECKING:
    from loopwright.model.record import JsonValue

API = 1  # what this version of the command line speaks
SESSION = "/api/v1/session"
SECONDS = 30.0
_LOST = (OSError, http.client.HTTPException)


class RemoteClient:
    """One server, as a command sees it."""

    def __init__(self, url: str, say: Callable[[str], None], token: str | None = None) -> None:
        self._at = parse_address(url)
        self.url = self._at.url
        self._say = say
        self._token = token_for(self.url) if token is None else token
        self._cookie = ""
        self._greeted = False

    # -- asking --------------------------------------------------------------------------------

    def get(self, path: str, /, **query: object) -> Any:  # noqa: ANN401 - unchecked JSON
        given = {name: value for name, value in query.items() if value is not None}
        address = f"{path}?{urlencode(given, doseq=True)}" if given else path
        return self._ask("GET", address)

    def post(self, path: str, body: "dict[str, JsonValue] | None" = None) -> Any:  # noqa: ANN401 - unchecked JSON
        return self._ask("POST", path, {} if body is None else body)

    def patch(self, path: str, body: "dict[str, JsonValue]") -> Any:  # noqa: ANN401 - unchecked JSON
        return self._ask("PATCH", path, body)

    def delete(self, path: str) -> None:
        self._ask("DELETE", path)

    def _ask(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - unchecked JSON
        data = self._answer(method, path, body)
        try:
            return json.loads(data) if data else None
        except (ValueError, RecursionError) as error:
            raise ServerFailed(
                f"{self.url} answered with what is not JSON", code="not-loopwright"
            ) from error

    def _answer(self, method: str, path: str, body: object = None) -> bytes:
        self._check_server()
        status, data = self._send(method, path, body)
        if status >= 300:
            raise read_refusal(self.url, status, data)
        return data

    def _check_server(self) -> None:
        """See once that we speak the same language."""
        if self._greeted:
            return
        status, data = self._send("GET", "/api/version", None)
        try:
            answer = json.loads(data) if status == 200 else {}
            spoken, version = int(answer["api"]), str(answer["version"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ServerFailed(
                f"{self.url} is not a Loopwright server",
                code="not-loopwright",
                hint="it sends to another address: name that one" if 300 <= status < 400 else None,
            ) from error
        if spoken != API:
            raise ServerFailed(
                f"{self.url} is version {version} and speaks API {spoken}; this command is "
                f"version {__version__} and speaks API {API}",
                code="other-version",
                hint="use versions that fit together",
            )
        self._greeted = True

    def _send(self, method: str, path: str, body: object) -> tuple[int, bytes]:
        line = self._line()
        try:
            headers = self._headers(has_body=body is not None)
            data = None if body is None else _as_bytes(body)
            # it may have reported the reason already
            with suppress(BrokenPipeError, ConnectionResetError):
                line.request(method, path, data, headers)
            reply = line.getresponse()
            if path == SESSION:
                self._cookie = _cookies(reply.headers.get_all("Set-Cookie") or [])
            return reply.status, reply.read()
        except _LOST as error:
            raise self._unreachable(error) from error
        finally:
            line.close()

    def _line(self) -> http.client.HTTPConnection:
        host, port = self._at.host, self._at.port
        if self._at.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=SECONDS)
        return http.client.HTTPConnection(host, port, timeout=SECONDS)

    def _headers(self, *, has_body: bool) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": f"loopwright/{__version__}"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if self._cookie:
            headers |= {"Cookie": self._cookie, "Origin": self.url}
        if has_body:
            headers["Content-Type"] = "application/json"
        return headers

    def _unreachable(self, error: Exception) -> Unreachable:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, ssl.SSLCertVerificationError):
            return Unreachable(
                f"the certificate of {self.url} is not trusted here: {error.verify_message}",
                code="bad-certificate",
                hint="name a PEM file with the one to trust in SSL_CERT_FILE",
            )
        return Unreachable(
            f"{self.url} does not answer: {why.lower()}",
            hint="see whether it runs there: `loopwright serve`",
        )

    @contextmanager
    def session(self, name: str, password: str) -> Iterator[None]:
        """Signed in by name and password, for a moment."""
        self._answer("POST", SESSION, {"name": name, "password": password})
        try:
            yield
        finally:
            try:
                self._answer("DELETE", SESSION)
            except LoopwrightError as error:  # it ends by itself, later
                self._say(f"warning: the session was not ended: {error.message}")
            self._cookie = ""

    # -- runs and gates ------------------------------------------------------------------------

    def run(self, reference: str) -> str:
        """A run by its id, by the beginning or end of one, or `last`."""
        return str(self.get("/api/v1/runs", match=reference)["runs"][0]["run"])


def _cookies(given: list[str]) -> str:
    """All cookies that were set: a proxy before a server may have its own."""
    pairs = [" ".join(one.partition(";")[0].split()) for one in given]
    return "; ".join(pair for pair in pairs if pair)


def _as_bytes(body: object) -> bytes:
    """JSON; half a sign, as arguments that are not text have it, is replaced as it is here."""
    return json.dumps(body, ensure_ascii=False).encode(errors="replace")
