"""Who can reach the server: what has to be there before anybody but this machine may."""

import ipaddress
import re
import ssl
from urllib.parse import SplitResult, urlsplit

import msgspec

from loopwright.app.people import LINK, Link, People
from loopwright.errors import CannotServe, LoopwrightError, NotAllowed
from loopwright.server.context import Serving

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")


def check_options(serving: Serving) -> None:
    """What can be seen to be wrong before anything is touched."""
    if serving.public_url is not None:
        _check_public_url(serving.public_url)
    for one in serving.trusted_proxies:
        _check_proxy(one)
    if serving.tls_cert is not None:
        _check_tls(serving)


def _check_proxy(text: str) -> None:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise LoopwrightError(
            f"--trusted-proxy {text[:200]!a} is not an address",
            code="bad-proxy",
            hint="write an address or a network, as 10.0.0.5 or 10.0.0.0/24",
        ) from error


def check_reach(serving: Serving, people: People) -> None:
    """A server that other machines reach needs an admin and an encrypted connection."""
    if is_loopback(serving.address):
        return
    missing = []
    if not _has_admin(people):
        missing.append("an admin who can sign in (`loopwright user add NAME --role admin`)")
    if serving.tls_cert is None and not (serving.public_url or "").lower().startswith("https://"):
        missing.append(
            "TLS (--tls-cert and --tls-key, or --public-url https://NAME of a proxy that has it)"
        )
    if missing:
        raise NotAllowed(
            f"other machines can reach {serving.host}, so the server needs "
            + " and ".join(missing),
            code="unsafe-address",
            hint="without --host, only this machine can reach the server",
        )


def _has_admin(people: People) -> bool:
    """Whether an admin could come in: by a password, or by a link that is still good."""
    now = people.clock.now_ms()
    links = [msgspec.json.decode(card.body, type=Link) for card in people.cards.cards(LINK)]
    good = [one for one in links if one.used_at is None and one.expires_at > now]
    if any(one.role == "admin" and not one.person for one in good):
        return True
    linked = {one.person for one in good}
    return any(
        one.role == "admin" and one.active and (one.password or one.name in linked)
        for one in people.all()
    )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# -- options ---------------------------------------------------------------------------------------


def _check_public_url(url: str) -> None:
    """An address as browsers show it: links are made of it, and requests from it are let in."""
    why = _flaw(url)
    if why:
        raise LoopwrightError(
            f"--public-url {url[:200]!a} cannot be used: {why}",
            code="bad-public-url",
            hint="write the address of the proxy, as https://loops.example.org",
        )


def _flaw(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "it cannot be read"
    if parts.scheme not in ("http", "https") or any(ord(sign) <= 32 for sign in url):
        return "it is no address of a web site"
    if port == 0 or parts.netloc.endswith(":") or not _is_host(parts.hostname or ""):
        return "it names no host"
    if parts.username is not None or _has_more(parts, url):
        return "it has more than a name and a port"
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        return "passwords and tokens would go over an open line"
    return ""


def _has_more(parts: SplitResult, url: str) -> bool:
    return parts.path not in ("", "/") or "?" in url or "#" in url


def _is_host(name: str) -> bool:
    try:
        return not ipaddress.ip_address(name).is_unspecified
    except ValueError:
        labels = name.removesuffix(".").split(".")
        plain = all(_LABEL.fullmatch(one) for one in labels) and not labels[-1].isdigit()
        return plain and len(name) <= 253


def _check_tls(serving: Serving) -> None:
    """Read the files as the server will; a key with a password would be asked for at a terminal."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(str(serving.tls_cert), str(serving.tls_key), password=str)
    except (OSError, ValueError) as error:
        why = (getattr(error, "strerror", None) or str(error)).lower()
        raise CannotServe(
            f"TLS cannot be served with {serving.tls_cert} and {serving.tls_key}: {why}",
            code="bad-tls",
            hint="both must be PEM files that can be read, of the same key, without a password",
        ) from error
