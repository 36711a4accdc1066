"""Which addresses are reachable from everywhere, by the registries of IANA.

The tables in `address_tables` are the IPv4 and IPv6 Special-Purpose Address Registries, with their
dates. Blocks of cloud providers that lead to services inside their networks (`providers.csv`) are
refused first. Otherwise the most specific block decides. Beyond the tables, multicast is never
reachable as a receiver, and IPv6 has public addresses only in 2000::/3 and for IPv4 addresses that
it embeds.
"""

import csv
import ipaddress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_LOW_BITS = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Block:
    """A row of a registry."""

    network: Network
    name: str
    rfc: str
    is_reachable: bool  # the value "n/a" counts as false


@cache
def read_blocks(version: int) -> tuple[Block, ...]:
    """The rows of the registry for IPv4 or IPv6, the most specific first."""
    return tuple(sorted(_read_table(f"ipv{version}"), key=lambda one: -one.network.prefixlen))


@cache
def read_provider_blocks() -> tuple[Block, ...]:
    """Blocks of cloud providers that lead to services inside their networks."""
    return _read_table("providers")


def _read_table(name: str) -> tuple[Block, ...]:
    text = files(__package__).joinpath("address_tables", f"{name}.csv").read_text("utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return tuple(
        Block(
            ipaddress.ip_network(row["block"]),
            row["name"],
            row["rfc"] if "rfc" in row else row["source"],
            row["globally_reachable"] == "true",
        )
        for row in rows
    )


def embedded_address(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address to which an IPv6 address leads: mapped, NAT64, 6to4 or Teredo."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & _LOW_BITS)
    if address.sixtofour is not None:
        return address.sixtofour
    return address.teredo[1] if address.teredo is not None else None


def why_not_public(text: str) -> str:
    """Why an address is not reachable from everywhere; empty when it is."""
    try:
        address: Address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return "not an address"
    if isinstance(address, ipaddress.IPv6Address):
        inner = embedded_address(address)
        why = why_not_public(str(inner)) if inner is not None else ""
        if why:
            return f"it leads to {inner}: {why}"
        if address.ipv4_mapped is not None:
            return ""
    if address.is_multicast:
        return "multicast"
    for block in (*read_provider_blocks(), *read_blocks(address.version)):
        if address in block.network:
            return "" if block.is_reachable else f"{block.network} is {block.name} ({block.rfc})"
    if isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_UNICAST:
        return "it is not in 2000::/3, where public IPv6 addresses are"
    return ""
