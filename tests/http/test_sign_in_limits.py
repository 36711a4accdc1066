"""Limits for attempts to sign in: nobody guesses for long, and nobody is locked out by others."""

import http.client
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from loopwright.http.context import (
    MAX_KNOWN,
    RequestLimits,
    SignInAttempt,
    SignInLimits,
    address_group,
    client_address,
)
from loopwright.operations.accounts.access import MOST_KNOWN, Rates, TooManyRequests
from loopwright.operations.accounts.people import hashed
from loopwright.stores.sqlite.log import open_sqlite_log
from loopwright.testing import FakeClock
from tests.http.served import SECONDS, UNHURRIED, Reply, Served, served

PASSWORD = "correct horse"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_000_000)


@pytest.fixture
def limits(tmp_path: Path, clock: FakeClock) -> Iterator[SignInLimits]:
    """Limits of five a minute."""
    log = open_sqlite_log(tmp_path / "log.db", alive=lambda _: True, durability="normal")
    yield SignInLimits(log, clock, 5)
    log.close()


def is_counted(limits: SignInLimits, address: str, name: str = "ann", device: str = "") -> bool:
    try:
        limits.count(SignInAttempt(address, name, device))
    except TooManyRequests:
        return False
    return True


@pytest.mark.item("bnd-srv-3")
def test_a_name_is_tried_five_times_a_minute_from_one_address(
    limits: SignInLimits, clock: FakeClock
) -> None:
    """The sixth attempt waits; after a minute there are five more."""
    assert [is_counted(limits, "192.0.2.1") for _ in range(6)] == [True] * 5 + [False]
    clock.elapse(60_000)
    assert [is_counted(limits, "192.0.2.1") for _ in range(6)] == [True] * 5 + [False]


@pytest.mark.item("bnd-srv-3")
def test_an_address_has_a_limit_for_all_names(limits: SignInLimits) -> None:
    """Many names from one address are twenty attempts a minute."""
    tried = [is_counted(limits, "192.0.2.1", f"name{number}") for number in range(40)]
    assert sum(tried) == 20


@pytest.mark.item("bnd-srv-3")
def test_a_name_has_a_limit_for_all_addresses(limits: SignInLimits) -> None:
    """Beyond their first two attempts, all addresses share sixty a minute for a name."""
    tried = [is_counted(limits, f"192.0.2.{number // 5}") for number in range(500)]
    assert sum(tried) == 100 * 2 + 60


@pytest.mark.item("bnd-srv-3")
def test_there_is_a_limit_in_total(limits: SignInLimits) -> None:
    """Beyond their first two attempts, all addresses share 200 a minute for all names."""
    tried = [
        is_counted(limits, f"192.0.{number // 2_000}.{number // 20 % 100}", f"name{number}")
        for number in range(4_000)
    ]
    assert sum(tried) == 200 * 2 + 200


@pytest.mark.item("bnd-srv-4")
def test_failures_elsewhere_lock_nobody_out(limits: SignInLimits) -> None:
    """Under attack from many addresses, a person at another address may try."""
    for number in range(5_000):
        is_counted(limits, f"192.0.{number // 250}.{number % 250}")
        is_counted(limits, f"192.0.{number // 250}.{number % 250}")
        is_counted(limits, f"192.0.{number // 250}.{number % 250}")
    assert not is_counted(limits, "192.0.0.1")
    assert is_counted(limits, "203.0.113.7")


@pytest.mark.item("bnd-srv-4")
def test_a_browser_that_signed_in_has_a_limit_of_its_own(limits: SignInLimits) -> None:
    """Failures from the same address, for example behind a proxy, do not lock it out."""
    cookie = limits.remember(SignInAttempt("192.0.2.1", "ann"))
    while is_counted(limits, "192.0.2.1"):
        pass
    tried = [is_counted(limits, "192.0.2.1", device=cookie) for _ in range(6)]
    assert tried == [True] * 5 + [False]


def test_an_address_that_signed_in_before_is_not_held_up_by_others(limits: SignInLimits) -> None:
    """Its attempts count neither for the address nor in total."""
    limits.remember(SignInAttempt("192.0.2.1", "ann"))
    while is_counted(limits, "192.0.2.1", "bob") or is_counted(limits, "192.0.2.1", "eve"):
        pass
    for number in range(30):
        is_counted(limits, "192.0.2.1", f"name{number}")
    assert not is_counted(limits, "192.0.2.1", "somebody")
    assert is_counted(limits, "192.0.2.1", "ann")


@pytest.mark.parametrize("change", ["name", "device", "mark", "empty"])
def test_a_forged_cookie_helps_nobody(limits: SignInLimits, change: str) -> None:
    """A cookie counts for the name that it was made for, as it was made."""
    device, _, mark = limits.remember(SignInAttempt("192.0.2.9", "bob")).partition(".")
    forged = {
        "name": f"{device}.{mark}",
        "device": f"{device}0.{mark}",
        "mark": f"{device}.{mark[:-1]}",
        "empty": f".{mark}",
    }[change]
    while is_counted(limits, "192.0.2.1"):
        pass
    assert not is_counted(limits, "192.0.2.1", device=forged)


def test_what_is_remembered_is_bounded(limits: SignInLimits) -> None:
    """Many addresses do not fill the memory, and nobody empties a bucket by filling others."""
    for number in range(MAX_KNOWN + 10):
        limits.remember(SignInAttempt(f"host{number}", "ann"))
    assert len(limits._known) == MAX_KNOWN
    rates = Rates(FakeClock(0), 1, 60_000)
    rates.count("victim")
    for number in range(MOST_KNOWN - 1):
        rates.count(str(number))
    with pytest.raises(TooManyRequests):
        rates.count("victim")
    rates.count("one more")
    assert len(rates._left) == MOST_KNOWN


# -- where a request comes from --------------------------------------------------------------------


@pytest.mark.item("bnd-srv-5")
@pytest.mark.parametrize(
    ("peer", "forwarded", "proxies", "address"),
    [
        ("192.0.2.1", None, (), "192.0.2.1"),
        ("192.0.2.1", "203.0.113.7", (), "192.0.2.1"),
        ("192.0.2.1", "203.0.113.7", ("10.0.0.5",), "192.0.2.1"),
        ("10.0.0.5", "203.0.113.7", ("10.0.0.5",), "203.0.113.7"),
        ("10.0.0.5", "127.0.0.1, 203.0.113.7", ("10.0.0.5",), "203.0.113.7"),
        ("10.0.0.5", "203.0.113.7, 10.0.0.6", ("10.0.0.0/24",), "203.0.113.7"),
        ("10.0.0.5", "nonsense", ("10.0.0.5",), "10.0.0.5"),
        ("10.0.0.5", "", ("10.0.0.5",), "10.0.0.5"),
        ("10.0.0.5", None, ("10.0.0.5",), "10.0.0.5"),
        ("::1", "2001:db8::7", ("::1",), "2001:db8::7"),
    ],
)
def test_only_a_trusted_proxy_names_the_client(
    peer: str, forwarded: str | None, proxies: tuple[str, ...], address: str
) -> None:
    """Of the addresses in the header, the nearest that is not a trusted proxy counts."""
    headers = [] if forwarded is None else [(b"x-forwarded-for", forwarded.encode())]
    scope = {"type": "http", "client": (peer, 1), "headers": headers}
    assert client_address(scope, proxies) == address


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("nonsense", "nonsense"),
    ],
)
def test_one_customer_counts_as_one_address(address: str, group: str) -> None:
    """With IPv6 everybody has very many addresses in one network."""
    assert address_group(address) == group


# -- at a server -----------------------------------------------------------------------------------


def sign_in(
    server: Served, name: str, password: str, near: str = "127.0.0.1", cookie: str = ""
) -> Reply:
    line = http.client.HTTPConnection(
        "127.0.0.1", server.port, timeout=SECONDS, source_address=(near, 0)
    )
    headers = {"Content-Type": "application/json"} | ({"Cookie": cookie} if cookie else {})
    body = json.dumps({"name": name, "password": password})
    line.request("POST", "/api/v1/session", body, headers)
    found = line.getresponse()
    told = {key.lower(): value for key, value in found.getheaders() if key != "set-cookie"}
    cookies = [value for key, value in found.getheaders() if key.lower() == "set-cookie"]
    told["cookies"] = "; ".join(one.partition(";")[0] for one in cookies)
    reply = Reply(found.status, told, found.read())
    line.close()
    return reply


@pytest.fixture
def guessed(tmp_path: Path) -> Iterator[Served]:
    """A server with an account."""
    with served(
        tmp_path, limits=replace(UNHURRIED, sign_ins_per_minute=RequestLimits().sign_ins_per_minute)
    ) as own:
        add = own.context.people.add
        own.call(lambda: add("ann", "editor", by="test", password=hashed(PASSWORD)))
        yield own


@pytest.mark.item("bnd-srv-4")
@pytest.mark.usefixtures("full_once")
def test_a_person_signs_in_while_others_guess(guessed: Served) -> None:
    """From another address at once; from the same address with the cookie of their browser."""
    cookie = sign_in(guessed, "ann", PASSWORD).headers["cookies"]
    assert "loopwright_device=" in cookie
    replies = [sign_in(guessed, "ann", f"guess {n}", "127.0.0.2").status for n in range(12)]
    assert replies == [401] * 5 + [429] * 7
    assert sign_in(guessed, "ann", PASSWORD, "127.0.0.3").status == 200
    while sign_in(guessed, "ann", "guess", "127.0.0.1").status != 429:
        pass
    assert sign_in(guessed, "ann", PASSWORD, "127.0.0.1").status == 429
    device = "; ".join(one for one in cookie.split("; ") if "device" in one)
    assert sign_in(guessed, "ann", PASSWORD, "127.0.0.1", device).status == 200


@pytest.mark.item("bnd-srv-4")
@pytest.mark.usefixtures("full_once")
def test_unknown_names_are_limited_alike(guessed: Served) -> None:
    """The answers for a name that does not exist are the same, one by one."""
    known, unknown = (
        [sign_in(guessed, name, "guess", near) for _ in range(7)]
        for name, near in (("ann", "127.0.0.4"), ("nobody", "127.0.0.5"))
    )

    def words(replies: list[Reply]) -> list[tuple[int, dict[str, object]]]:
        return [(one.status, {**one.json, "trace_id": ""}) for one in replies]

    assert words(known) == words(unknown)


def test_unknown_names_take_as_long(tmp_path: Path) -> None:
    """A name that does not exist costs the same hash as a wrong password. Processor time is
    compared: other programs of a busy machine do not count.
    """
    with served(tmp_path, limits=replace(UNHURRIED, sign_ins_per_minute=1_000)) as own:
        add = own.context.people.add
        own.call(lambda: add("ann", "editor", by="test", password=hashed(PASSWORD)))
        took: dict[str, list[float]] = {"ann": [], "nobody": []}
        for _ in range(15):
            for name, times in took.items():
                began = time.process_time()
                assert sign_in(own, name, "guess").status == 401
                times.append(time.process_time() - began)
    known, unknown = (min(times) for times in took.values())
    assert 0.5 < known / unknown < 2, (known, unknown, statistics.median(took["ann"]))
