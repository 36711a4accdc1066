"""The guard at the door: what is wrong with a request before anybody looks at what it asks for.

A page of another site may make a browser send requests here, and a name of theirs may be made to
point here. So the Host must be one of ours, and the Origin, where there is one, too.
"""

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from loopwright.server.context import LOOPBACK, Limits, Serving
from loopwright.server.refusals import Refusal

PORTS = {"http": 80, "https": 443}
SAFE = ("GET", "HEAD", "OPTIONS")
FOREIGN = ("cross-site", "same-site")
SECRETS = ("token", "access_token", "auth_token", "api_key", "apikey", "authorization")


class Guard:
    """Knows by which names this server may be called."""

    def __init__(self, serving: Serving) -> None:
        self._limits = serving.limits
        named = [*LOOPBACK, serving.host_in_url, *serving.allowed_hosts]
        self.hosts = {host.lower() for host in named if host not in ("0.0.0.0", "[::]")}
        self.origins = {
            _origin(scheme, host, serving.port) for host in self.hosts for scheme in PORTS
        }
        if serving.public_url:
            public = urlsplit(serving.public_url)
            name = public.hostname or ""
            host = f"[{name}]" if ":" in name else name
            self.hosts.add(host)
            self.origins.add(_origin(public.scheme, host, public.port or PORTS[public.scheme]))

    def check(self, scope: Scope) -> None:
        """Refuse what must not come in."""
        headers = Headers(scope=scope)
        check_sizes(scope, self._limits)
        self._check_host(headers.getlist("host"))
        self._check_origin(scope, headers)
        _check_query(scope, self._limits)

    def _check_host(self, hosts: list[str]) -> None:
        if len(hosts) != 1 or _hostname(hosts[0]) not in self.hosts:
            raise Refusal(
                400,
                "bad-host",
                "this server is not called so",
                hint="use its address, or start it with --allow-host NAME",
            )

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        origins = headers.getlist("origin")
        if len(origins) > 1 or (origins and origins[0].lower() not in self.origins):
            raise Refusal(403, "foreign-origin", "pages of other sites may not ask here")
        method = scope.get("method", "GET")
        foreign = headers.get("sec-fetch-site", "").lower() in FOREIGN
        if foreign and (method not in SAFE or headers.get("sec-fetch-mode") == "websocket"):
            raise Refusal(403, "foreign-origin", "pages of other sites may not ask here")


def _origin(scheme: str, host: str, port: int) -> str:
    """As browsers write it: without the port that everybody knows."""
    return f"{scheme}://{host}" + ("" if port == PORTS[scheme] else f":{port}")


def check_sizes(scope: Scope, limits: Limits) -> None:
    """Addresses and headers have a limit, whatever they say."""
    target = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
    if target > limits.target_bytes:
        raise Refusal(
            414, "address-too-long", f"an address has at most {limits.target_bytes} bytes"
        )
    size = sum(len(name) + len(value) for name, value in scope["headers"])
    if size > limits.header_bytes:
        raise Refusal(
            431, "headers-too-large", f"headers have at most {limits.header_bytes} bytes in all"
        )
    if len(scope["headers"]) > limits.header_fields:
        raise Refusal(
            431, "headers-too-large", f"a request has at most {limits.header_fields} headers"
        )
    if not scope["path"].startswith("/"):
        raise Refusal(400, "bad-target", "the address must begin with /")


def _check_query(scope: Scope, limits: Limits) -> None:
    query = bytes(scope.get("query_string") or b"")
    if query.count(b"&") >= limits.query_fields:
        raise Refusal(400, "too-many-parameters", f"at most {limits.query_fields} parameters")
    names = {part.partition(b"=")[0].decode("latin-1").lower() for part in query.split(b"&")}
    if names.intersection(SECRETS):
        raise Refusal(
            400,
            "secret-in-address",
            "a token does not belong into an address, which is written into logs",
            hint="send it as `Authorization: Bearer TOKEN`",
        )


def _hostname(host: str) -> str:
    """The name in a Host header, without its port; empty where it is no name."""
    name, bracket, rest = host.partition("]") if host.startswith("[") else ("", "", host)
    if bracket:
        name, port = f"{name}]", rest.removeprefix(":") if rest else ""
        bad = bool(rest) and not rest.startswith(":")
    else:
        name, colon, port = rest.partition(":")
        bad = bool(colon) and not port
    if bad or (port and not port.isdigit()):
        return ""
    return name.lower()
