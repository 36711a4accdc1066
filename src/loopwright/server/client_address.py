"""The address that a request comes from. Only a proxy that the settings trust may name another one;
anybody else could write what they like into a header.
"""

import ipaddress
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import Scope

FORWARDED = "x-forwarded-for"
MAX_HOPS = 20
IPV6_PREFIX = 64  # one customer has a whole network of this size


def client_address(scope: Scope, proxies: Sequence[str]) -> str:
    """The nearest address that does not belong to a trusted proxy; empty if there is none."""
    client = scope.get("client")
    address = str(client[0]) if client else ""
    if not proxies:
        return address
    named = ",".join(Headers(scope=scope).getlist(FORWARDED)).split(",")
    for one in reversed(named[-MAX_HOPS:]):
        if not is_among(address, proxies) or not _is_address(one.strip()):
            break
        address = one.strip()
    return address


def is_among(address: str, networks: Sequence[str]) -> bool:
    """Whether an address lies in one of these networks."""
    if not _is_address(address):
        return False
    found = ipaddress.ip_address(address)
    return any(found in ipaddress.ip_network(one, strict=False) for one in networks)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def address_group(address: str) -> str:
    """What counts as one address: for IPv6 the network of a customer."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, IPV6_PREFIX), strict=False))
