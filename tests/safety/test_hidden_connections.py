"""A program of a run cannot hide from a server on the same machine that a connection is its own."""

import asyncio
import json
import socket
import sys
from collections.abc import Iterator

import pytest

from loopwright.http.clients import Peer
from loopwright.operations.child_runs import UNKNOWN_PEER, find_tcp_peer
from tests.safety.connection_stage import BYSTANDER, WAYS
from tests.safety.identities import BASE, IDENTITIES, missing, run_as

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.item("bnd-p2"),
]


@pytest.mark.parametrize(
    "identity",
    [
        pytest.param(
            one, marks=pytest.mark.skipif(missing(one) is not None, reason=str(missing(one)))
        )
        for one in IDENTITIES
    ],
)
def test_a_connection_that_is_hidden_is_not_taken_for_that_of_a_person(identity: str) -> None:
    """Also where another process, whose open files cannot be listed, could be at its other end;
    the connection of that process is still taken for that of a person.
    """
    done = run_as(identity, ["-m", "tests.safety.connection_stage"], env=BASE)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found.pop(BYSTANDER) == "person"
    assert found.pop("openly") == "agent:coder of run_1"
    assert found.keys() == WAYS.keys() - {"openly"}
    assert {way: one for way, one in found.items() if one == "person"} == {}


def own_addresses() -> Iterator[str]:
    """Addresses of this machine."""
    yield "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        try:
            trial.connect(("198.51.100.1", 9))  # nothing is sent
        except OSError:
            return
        yield trial.getsockname()[0]


def test_a_connection_of_this_machine_that_was_reset_is_not_taken_for_that_of_a_person() -> None:
    """The kernel has no entry for it any more; what it brought can still be read."""
    for address in own_addresses():
        assert find_tcp_peer((address, 1), (address, 2)) is UNKNOWN_PEER
    assert find_tcp_peer(("198.51.100.1", 1), ("127.0.0.1", 2)) is None


@pytest.mark.parametrize(
    ("server", "expected"),
    [(("127.0.0.1", 3001), UNKNOWN_PEER), (("/run/socket", None), None)],
    ids=["tcp", "unix"],
)
def test_a_request_whose_sender_is_not_known_is_that_of_an_agent(
    server: tuple[str, int | None], expected: object
) -> None:
    """It was reset before anybody asked who sent it. A Unix socket has no such address at all; who
    connects to it is asked there.
    """
    scope = {"type": "http", "client": None, "server": server}
    assert asyncio.run(Peer().find(scope)) is expected
