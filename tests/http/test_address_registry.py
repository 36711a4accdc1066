"""Addresses that a server may send to, by the registries of IANA."""

import ipaddress
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from loopwright.errors import LoopwrightError
from loopwright.operations import outgoing_requests
from loopwright.operations.outgoing_requests import check_url, read_blocks, resolve, why_not_public
from loopwright.operations.use_cases.notifications import StoredNotification
from loopwright.ports import NOTICE
from loopwright.workers.webhooks import DELIVERY, REFUSED_TRIES, TRIES_S
from tests.http.test_webhooks import World, world

__all__ = ["world"]
TABLES = Path(outgoing_requests.__file__).parent / "address_tables"

REFUSED = [
    "161.26.0.10",
    "166.9.0.1",
    "168.63.129.16",
    "::ffff:168.63.129.16",
    "64:ff9b::a83f:8110",
    "199.36.153.4",
    "199.36.153.11",
    "2600:2d00:2:1000::1",
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.127.255.255",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.7",
    "192.0.0.8",
    "192.0.0.11",
    "192.0.0.170",
    "192.0.0.171",
    "192.0.0.255",
    "192.0.2.1",
    "192.88.99.1",
    "192.88.99.2",
    "192.168.0.1",
    "192.168.255.255",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.254",
    "255.255.255.255",
    "::",
    "::1",
    "::2",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::10.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "64:ff9b:1:2::8.8.8.8",
    "100::1",
    "100:0:0:1::1",
    "100:0:0:2::1",
    "200::1",
    "2001::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:1::4",
    "2001:2::1",
    "2001:5::1",
    "2001:10::1",
    "2001:1ff::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "2002:a00:1::1",
    "2002:808:808::1",
    "3fff::1",
    "3fff:fff::1",
    "4000::1",
    "5f00::1",
    "8000::1",
    "e000::1",
    "fc00::1",
    "fd00::1",
    "fdff:ffff::1",
    "fe80::1",
    "fe80::1%eth0",
    "fe00::1",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
    "nonsense",
]
ACCEPTED = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.1",
    "93.184.215.14",
    "100.63.255.255",
    "100.128.0.1",
    "126.255.255.255",
    "128.0.0.1",
    "169.253.255.255",
    "169.255.0.1",
    "172.15.255.255",
    "172.32.0.1",
    "192.0.0.9",
    "192.0.0.10",
    "192.0.1.1",
    "192.31.196.1",
    "192.52.193.1",
    "192.88.100.1",
    "192.167.255.255",
    "192.169.0.1",
    "192.175.48.1",
    "198.17.255.255",
    "198.20.0.1",
    "223.255.255.255",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
    "2001:1::1",
    "2001:1::2",
    "2001:1::3",
    "2001:3::1",
    "2001:4:112::1",
    "2001:20::1",
    "2001:30::1",
    "2001:200::1",
    "2001:4860:4860::8888",
    "2003::1",
    "2606:4700::1111",
    "2620:4f:8000::1",
    "2a00::1",
    "3ffe::1",
]


@pytest.mark.item("bnd-srv-6")
@pytest.mark.parametrize("address", REFUSED)
def test_addresses_that_are_not_reachable_from_everywhere_are_refused(address: str) -> None:
    """The reason is given, and one such address among several is enough to refuse the name."""
    assert why_not_public(address)
    with pytest.raises(LoopwrightError) as error:
        check_url("https://hooks.example/x", lambda *_: ["8.8.8.8", address])
    assert error.value.code == "private-address"


@pytest.mark.item("bnd-srv-6")
@pytest.mark.parametrize("address", ACCEPTED)
def test_addresses_that_are_reachable_from_everywhere_are_accepted(address: str) -> None:
    """Also blocks of the registries that are marked as globally reachable."""
    assert why_not_public(address) == ""


@pytest.mark.parametrize("version", [4, 6])
def test_each_row_of_a_registry_is_applied(version: int) -> None:
    """The first and the last address of each block have its value, unless a block in it differs."""
    blocks = read_blocks(version)
    for block in blocks:
        for address in (block.network[0], block.network[-1]):
            most = next(one for one in blocks if address in one.network)
            refused = bool(why_not_public(str(address)))
            if address in ipaddress.ip_network("64:ff9b::/96"):
                continue  # the embedded address decides
            if address in ipaddress.ip_network("::ffff:0:0/96"):
                continue
            assert refused is not most.is_reachable, (address, most)


@pytest.mark.parametrize(("version", "rows"), [(4, 26), (6, 25)])
def test_tables_are_whole_and_dated(version: int, rows: int) -> None:
    """A table names its source and its date, which the documentation repeats, and has every row
    once.
    """
    text = (TABLES / f"ipv{version}.csv").read_text(encoding="utf-8")
    dated = re.search(r"^# IANA .* last updated (\d{4}-\d{2}-\d{2})$", text, re.M)
    assert dated is not None
    page = Path(__file__).parents[2] / "docs" / "security.md"
    assert f"IPv{version} as of {dated[1]}" in page.read_text(encoding="utf-8")
    assert f"iana-ipv{version}-special-registry" in text
    networks = [block.network for block in read_blocks(version)]
    assert len(set(networks)) == len(networks) == rows


# Every way to write this machine that a resolver or a parser may accept.
NOTATIONS = [
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "0x7f.1",
    "0x7f000001",
    "2130706433",
    "017700000001",
    "0177.0.0.1",
    "0177.1",
    "0x7f.0x0.0x0.0x1",
    "127.0.0.1.",
    "localhost",
    "LOCALHOST",
    "localhost.",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[0:0:0:0:0:ffff:127.0.0.1]",
    "0",
    "0.0.0.0",
    "[::]",
    "0x0",
]


@pytest.mark.parametrize("host", NOTATIONS)
def test_this_machine_is_refused_in_every_notation(host: str) -> None:
    """What the resolver makes of a name is checked, not how it is written."""
    with pytest.raises(LoopwrightError):
        check_url(f"http://{host}/x")


# -- at send time ----------------------------------------------------------------------------------


class Rebound:
    """A name that has another address at each lookup."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)

    def __call__(self, _host: str, _port: int) -> Sequence[str]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.mark.item("bnd-srv-7", "H3")
def test_an_address_that_is_refused_when_it_is_sent_to_is_reported(world: World) -> None:
    """Nothing is sent; the webhook, the audit log and a notification say why; after three attempts
    it is given up.
    """
    world.hooks.resolve = Rebound(["93.184.215.14"], ["93.184.215.14", "169.254.169.254"])
    hook = world.hooks.add("https://hooks.example/in", ["run.finished"], by="ann")
    world.finish()
    for number in range(REFUSED_TRIES):
        assert world.deliver() == 1
        (kept,) = world.hooks.all()
        assert "169.254.0.0/16 is Link Local" in kept.problem
        assert bool(world.log.records(DELIVERY)) is (number < REFUSED_TRIES - 1)
        world.clock.elapse(TRIES_S[number + 1] * 1_000)
    assert world.got == []
    assert world.deliver() == 0
    rows = [(row.action, row.subject) for row in world.log.audited(limit=10)]
    assert ("webhook.refused", hook.id) in rows
    assert ("webhook.failed", hook.id) in rows
    notices = [
        msgspec.json.decode(record.body, type=StoredNotification)
        for record in world.log.records(NOTICE)
    ]
    assert {one.to for one in notices} == {"ann"}
    assert {one.kind for one in notices} == {"webhook.refused", "webhook.failed"}
    assert all("169.254.169.254" in one.title for one in notices)


def test_an_address_that_recovers_is_sent_to(world: World) -> None:
    """The delivery arrives, and the problem is cleared."""
    good = ["93.184.215.14"]
    world.hooks.resolve = Rebound(good, ["10.0.0.1"], good)
    world.hooks.add("https://hooks.example/in", ["run.finished"], by="ann")
    world.finish()
    world.deliver()
    world.clock.elapse(TRIES_S[1] * 1_000)
    assert world.deliver() == 1
    assert [target.address for target, _, _ in world.got] == good
    assert [one.problem for one in world.hooks.all()] == [""]


def test_a_lookup_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that does not answer holds up a delivery for a limited time."""
    end = threading.Event()
    monkeypatch.setattr(outgoing_requests, "RESOLVE_SECONDS", 0.1)
    monkeypatch.setattr(
        outgoing_requests.socket, "getaddrinfo", lambda *_, **__: end.wait(30) and []
    )
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        resolve("hooks.example", 443)
    assert time.monotonic() - began < 10
    with pytest.raises(LoopwrightError):
        check_url("https://hooks.example/x")
    end.set()
