"""Receivers that are slow, endless or deaf: they get their time and hold up nobody else."""

import asyncio
import contextlib
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loopwright.operations import outgoing_requests
from loopwright.operations.outgoing_requests import Target, send
from loopwright.operations.run_tail import EventFeed
from loopwright.workers import webhooks
from loopwright.workers.notifiers import COMMAND_SECONDS
from tests.http.served import SECONDS, wait_for
from tests.http.test_serving import is_alive, serving
from tests.http.test_webhooks import World, world

__all__ = ["world"]
OK = b"HTTP/1.1 200 OK\r\n"
PATIENCE_S = 40.0  # so that a test that fails comes to an end
IN_TIME_S = 10.0  # whoever waits for more than they may waits for longer
Say = Callable[[socket.socket, threading.Event], None]


def silent(_line: socket.socket, over: threading.Event) -> None:
    over.wait(PATIENCE_S)


def dripping(head: bytes, piece: bytes = b"x", every_s: float = 0.05) -> Say:
    """Says something, and then a little for longer than anybody may wait."""

    def say(line: socket.socket, over: threading.Event) -> None:
        line.sendall(head)
        end = time.monotonic() + PATIENCE_S
        while not over.wait(every_s) and time.monotonic() < end:
            line.sendall(piece)

    return say


@contextmanager
def receiver(say: Say, scheme: str = "http") -> Iterator[Target]:
    """Somebody on this machine who answers in a way of their own."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(SECONDS)

        def work() -> None:
            with contextlib.suppress(OSError):
                line, _ = door.accept()
                with line:
                    say(line, over)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        port = door.getsockname()[1]
        try:
            yield Target(
                scheme=scheme, host="slow.example", port=port, path="/", address="127.0.0.1"
            )
        finally:
            over.set()
            thread.join(SECONDS)


@pytest.mark.item("H6")
@pytest.mark.parametrize(
    ("say", "scheme"),
    [
        pytest.param(silent, "http", id="deaf"),
        pytest.param(silent, "https", id="no-handshake"),
        pytest.param(dripping(b"", b"\x16\x03\x01\x3f\xff" + b"x" * 9), "https", id="handshake"),
        pytest.param(dripping(b"HTTP/1.1 2"), "http", id="status"),
        pytest.param(dripping(OK + b"a: "), "http", id="header"),
        pytest.param(dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), "http", id="not-yet"),
    ],
)
def test_one_time_for_all_of_it(say: Say, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has not answered when the time is over has failed, whatever they said meanwhile."""
    assert outgoing_requests.SECONDS == 15
    monkeypatch.setattr(outgoing_requests, "SECONDS", 0.4)
    with receiver(say, scheme) as target:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            send(target, {}, b"{}")
        assert time.monotonic() - began < IN_TIME_S


def test_who_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time counts for sending, too."""
    monkeypatch.setattr(outgoing_requests, "SECONDS", 0.4)
    with receiver(silent) as target:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            send(target, {}, b"x" * 30_000_000)
        assert time.monotonic() - began < IN_TIME_S


def endless(line: socket.socket, over: threading.Event) -> None:
    line.sendall(OK + b"\r\n")
    end = time.monotonic() + PATIENCE_S
    while not over.is_set() and time.monotonic() < end:
        line.sendall(b"x" * 65_536)


@pytest.mark.parametrize(
    ("say", "rest"),
    [pytest.param(endless, 60.0, id="fast"), pytest.param(dripping(OK + b"\r\n"), 0.2, id="slow")],
)
def test_an_answer_that_never_ends(say: Say, rest: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status is the answer; of what follows a little is read, and for a moment."""
    assert outgoing_requests.REST_SECONDS <= 1
    monkeypatch.setattr(outgoing_requests, "REST_SECONDS", rest)
    with receiver(say) as target:
        began = time.monotonic()
        assert send(target, {}, b"{}") == 200
        assert time.monotonic() - began < IN_TIME_S


class Slow:
    """Hosts that are told; those that begin with `slow` do not answer until they may."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.now: Counter[str] = Counter()
        self.most = Counter[str]()
        self.free = threading.Event()
        self._lock = threading.Lock()

    def send(self, target: Target, headers: dict[str, str], _body: bytes) -> int:
        with self._lock:
            self.told.append((target.host, headers["webhook-id"]))
            for name in (target.host, "all"):
                self.now[name] += 1
                self.most[name] = max(self.most[name], self.now[name])
        if target.host.startswith("slow"):
            assert self.free.wait(SECONDS)
        with self._lock:
            self.now -= Counter([target.host, "all"])
        return 200

    def count(self, host: str) -> int:
        return sum(one == host for one, _ in self.told)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    monkeypatch.setattr(webhooks, "LOOK_S", 0.01)
    one = Slow()
    yield one
    one.free.set()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while True:
            if holds():
                return
            await asyncio.sleep(0.01)


@pytest.mark.item("H6")
def test_a_slow_receiver_delays_itself(world: World, slow: Slow) -> None:
    """Others are told while one does not answer, though that one has more to be told than is looked
    at in one go. It is told one thing at a time, in order, each once.
    """
    many = webhooks.AT_ONCE + 5
    world.hooks.add("https://slow.example/in", ["gate.opened", "run.finished"], by="ann")
    for number in range(many):
        world.finish(f"run_{number}")
        world.hooks.notice()
        world.clock.elapse(1)

    async def go() -> None:
        working = asyncio.ensure_future(world.hooks.working(EventFeed(world.log), slow.send))
        await until(lambda: slow.count("slow.example") == 1)
        world.hooks.add("https://quick.example/in", ["run.finished"], by="ann")
        for number in range(3):
            await asyncio.to_thread(world.finish, f"run_late_{number}")
            await until(lambda: slow.count("quick.example") == number + 1)  # noqa: B023
        assert slow.count("slow.example") == 1
        slow.free.set()
        await until(lambda: slow.count("slow.example") == 2 * many + 6)
        await until(lambda: world.log.records(webhooks.DELIVERY) == [])
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    due = [one.key for one in world.log.records(webhooks.DELIVERY, due_by=world.clock.now_ms())]
    asyncio.run(go())
    assert slow.most["slow.example"] == 1
    told = [name for host, name in slow.told if host == "slow.example"]
    assert told[: len(due)] == due
    assert len(set(told)) == len(told)


def test_so_many_side_by_side(world: World, slow: Slow) -> None:
    """There is a bound, and those for whom there was no room come next."""
    for number in range(webhooks.MOST + 4):
        world.hooks.add(f"https://slow{number}.example/in", ["run.finished"], by="ann")
    world.finish()
    world.hooks.notice()

    async def go() -> None:
        for _ in range(3):
            world.hooks.begin_due(slow.send)
            await until(lambda: slow.now["all"] == webhooks.MOST)
        slow.free.set()
        while world.log.records(webhooks.DELIVERY):
            await world.hooks.deliver_due(slow.send)

    asyncio.run(go())
    assert slow.most["all"] == webhooks.MOST
    assert sorted(host for host, _ in slow.told) == sorted(
        f"slow{number}.example" for number in range(webhooks.MOST + 4)
    )


def test_who_fails_makes_room(world: World) -> None:
    """As many as there is room for that always fail, with much to be told: another gets its turn
    with the next round.
    """
    for number in range(webhooks.MOST):
        world.hooks.add(f"https://dead{number}.example/in", ["run.finished"], by="ann")
    for number in range(5):
        world.finish(f"run_{number}")
    world.hooks.notice()
    world.hooks.add("https://quick.example/in", ["run.finished"], by="ann")
    world.finish("run_late")
    world.hooks.notice()
    told: list[str] = []

    def fail(target: Target, _headers: dict[str, str], _body: bytes) -> int:
        told.append(target.host)
        return 200 if target.host == "quick.example" else 500

    asyncio.run(world.hooks.deliver_due(fail))
    asyncio.run(world.hooks.deliver_due(fail))
    assert "quick.example" in told
    assert max(Counter(told).values()) == 2


def test_a_receiver_that_is_removed_meanwhile(world: World) -> None:
    """What comes of the last try brings neither the receiver nor its deliveries back."""
    for answer in (500, 410):
        hook = world.hooks.add("https://hooks.example/in", ["run.finished"], by="ann")
        world.finish(f"run_{answer}")
        world.hooks.notice()

        def removing(*_: object, hook: webhooks.Hook = hook, answer: int = answer) -> int:
            world.hooks.remove(hook.id, by="ann")
            return answer

        assert asyncio.run(world.hooks.deliver_due(removing)) == 1
        assert world.hooks.all() == []
        assert world.log.records(webhooks.DELIVERY) == []


@pytest.mark.item("J11")
def test_the_end_waits_for_no_receiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal ends the server at once, though a channel does not answer and a command does not
    end; the command goes with it.
    """
    (tmp_path / "tell.sh").write_text(f"#!/bin/sh\nsleep 300 &\necho $! > {tmp_path}/pid\nwait\n")
    (tmp_path / "tell.sh").chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        deaf.settimeout(SECONDS)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        (tmp_path / "config" / "loopwright").mkdir(parents=True)
        (tmp_path / "config" / "loopwright" / "config.toml").write_text(
            f'[notify.deaf]\nslack = "http://127.0.0.1:{deaf.getsockname()[1]}/"\n'
            "allow_private = true\n"
            f'[notify.hanging]\ncommand = ["{tmp_path / "tell.sh"}"]\n'
        )
        with serving(tmp_path) as one:
            one.ask.gated()
            line, _ = deaf.accept()
            wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
            pid = int((tmp_path / "pid").read_text())
            assert is_alive(pid)
            began = time.monotonic()
            assert one.end(signal.SIGTERM) == 0
            assert time.monotonic() - began < COMMAND_SECONDS
            line.close()
    wait_for(lambda: not is_alive(pid))
