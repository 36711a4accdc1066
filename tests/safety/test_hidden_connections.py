"""A program of a run cannot hide from a server on the same machine that a connection is its own."""

import asyncio
import json
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopwright.agents.processes import tcp_peer
from loopwright.agents.processes.process import ProgramStart, run_program
from loopwright.http.clients import Peer
from loopwright.operations.child_runs import UNKNOWN_PEER, find_tcp_peer
from tests.safety.connection_stage import BYSTANDER, WAYS
from tests.safety.hiding_attempts import READ
from tests.safety.hiding_attempts import WAYS as HIDING
from tests.safety.identities import BASE, IDENTITIES, folder_of, missing, run_as

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.item("bnd-p2"),
]


each_identity = pytest.mark.parametrize(
    "identity",
    [
        pytest.param(
            one, marks=pytest.mark.skipif(missing(one) is not None, reason=str(missing(one)))
        )
        for one in IDENTITIES
    ],
)


@each_identity
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


def try_to_hide(identity: str, counts: dict[str, int]) -> None:
    """Every attempt to approve a gate with a stolen token is refused and audited; requests of
    people are answered meanwhile, also through a tunnel that cannot be listed.
    """
    with folder_of(identity) as folder:
        order = {"folder": str(folder), "ways": counts, "curl": shutil.which("curl") is not None}
        env = {**BASE, "HOME": str(folder), "LOOPWRIGHT_SNAPSHOTS": "off"}
        done = run_as(
            identity, ["-m", "tests.safety.tunnel_stage"], env=env, text=json.dumps(order)
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    read = {one.__name__ for one in READ}
    assert isinstance(found["attempts"], dict), found["attempts"]
    for way, statuses in found["attempts"].items():
        assert set(statuses) <= {403, 0}, (way, statuses)
        assert 403 in statuses or way not in read, (way, statuses)
    assert found["refused"] == sum(counts.values()), found
    assert found["waiting"], "the gate was answered"
    people = {way: Counter(statuses) for way, statuses in found["people"].items() if statuses}
    assert people["direct"].keys() == {200}, people
    # A program that ends or begins at the wrong moment makes a tunnel repeat its request.
    assert all(set(one) <= {200, 403} and one[200] for one in people.values()), people
    if identity == "root":
        assert all(set(one) == {200} for one in people.values()), people


@each_identity
def test_requests_that_hide_their_sender_are_refused_and_audited(identity: str) -> None:
    """The connection is passed around, kept in a thread, a system call or a queue, read by a
    process that cannot be listed or that its data continues, or its ancestors end all the time.
    """
    try_to_hide(identity, {**dict.fromkeys(HIDING, 3), "passed_around": 10})


@pytest.mark.deep
@pytest.mark.parametrize("way", HIDING)
@each_identity
def test_hundreds_of_hidden_requests_are_refused_and_audited(identity: str, way: str) -> None:
    """Each way often, so that a rare moment would be found."""
    try_to_hide(identity, {way: 100})


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


LEAVE = """
import socket, sys
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
queue = socket.socket(socket.AF_UNIX)
queue.connect(sys.argv[2])
socket.send_fds(queue, [b"x"], [sock.fileno()])
"""


def test_a_connection_that_a_program_left_in_a_queue_is_refused_when_no_run_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it sent can arrive later: its system can be told to send slowly."""
    monkeypatch.setattr(tcp_peer, "list_descendants", set)
    queue = socket.socket(socket.AF_UNIX)
    with queue, socket.create_server(("127.0.0.1", 0)) as sock:
        queue.bind(str(tmp_path / "queue"))
        queue.listen(1)
        words = (str(sock.getsockname()[1]), str(tmp_path / "queue"))
        program = ProgramStart(argv=(sys.executable, "-c", LEAVE, *words), cwd="/", env={})
        assert asyncio.run(run_program(program)).code == 0
        connection, peer = sock.accept()
        with connection:
            assert find_tcp_peer(peer, connection.getsockname()) is not None


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
