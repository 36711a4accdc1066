"""The address of a server, as people write it, and of what has a name there."""

from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from loopwright.errors import LoopwrightError

DEFINITIONS = "/api/v1/definitions"
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is; the same for every way in which that can be written."""

    scheme: str
    host: str
    port: int | None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port in (None, _PORTS[self.scheme]) else f":{self.port}"
        return f"{self.scheme}://{host}{port}"


def address_of(url: str) -> Address:
    """What somebody wrote, if that is an address of a server."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        found = Address(scheme=parts.scheme, host=parts.hostname or "", port=parts.port)
        found.host.encode("idna")
    except ValueError:
        found = None
    if found is None or found.scheme not in _PORTS or not found.host or "@" in parts.netloc:
        raise LoopwrightError(
            f"{url!r} is no address of a server",
            code="bad-server",
            hint="write --server http://127.0.0.1:3001",
        )
    return found


def definition_path(name: str) -> str:
    """Where a server has the definition with this name; one that is a path of its own has none."""
    if "/" in name or name in ("", ".", ".."):
        raise LoopwrightError(
            f"{name[:80]!a} cannot be the name of a definition",
            code="bad-definition-name",
            hint="use a-z, 0-9, dots, dashes and underscores, at most 100 of them",
        )
    return f"{DEFINITIONS}/{quote(name, safe='')}"
