"""Live text between processes: what is sent, to whom, and what never grows."""

import asyncio
import contextlib
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loopwright import host
from loopwright.engine.activity import LiveBus
from loopwright.engine.live_text import (
    BEHIND_BYTES,
    FOLDER,
    MOST_TAILS,
    TAIL_CHARS,
    LiveText,
    read_live_text,
    serve_live_text,
)
from loopwright.ports import Delta

TOKEN = "0123456789abcdef"


def delta(text: str, run: str = "run_a", effect: str = "main.0/agent#1") -> Delta:
    return Delta(run=run, effect=effect, kind="text", text=text)


def play(home: Path, work: Callable[[LiveBus], Awaitable[None]]) -> None:
    async def main() -> None:
        bus = LiveBus()
        async with serve_live_text(bus, home, TOKEN):
            await work(bus)

    asyncio.run(main())


@asynccontextmanager
async def reading(home: Path, token: str = TOKEN) -> AsyncIterator[list[str]]:
    """The texts of a run as they come."""
    found: list[str] = []

    async def collect() -> None:
        async for one in read_live_text(home, token, "run_a", tail=True):
            found.append(one.text)

    task = asyncio.ensure_future(collect())
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def heard(found: list[str], count: int) -> list[str]:
    """So many texts, or what came in two seconds; they are taken."""
    for _ in range(200):
        if len(found) >= count:
            break
        await asyncio.sleep(0.01)
    taken = [*found]
    found.clear()
    return taken


@pytest.mark.item("rec-34")
def test_a_watcher_reads_what_is_written_in_its_run(tmp_path: Path) -> None:
    """Also what was written just before it came; nothing of other runs or of earlier calls."""

    async def work(bus: LiveBus) -> None:
        bus.publish(delta("an earlier call", effect="main.0/agent#0"))
        bus.publish(delta("a"))
        bus.publish(delta("b"))
        async with reading(tmp_path) as found:
            assert await heard(found, 1) == ["ab"]
            bus.publish(delta("other", run="run_b"))
            bus.publish(delta("c"))
            assert await heard(found, 1) == ["c"]

    play(tmp_path, work)


@pytest.mark.item("rec-34")
def test_only_the_user_of_the_process_can_connect(tmp_path: Path) -> None:
    """Folder and socket have owner-only permissions, and are removed at the end."""

    async def work(bus: LiveBus) -> None:
        assert stat.S_IMODE((tmp_path / FOLDER).stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / FOLDER / TOKEN).stat().st_mode) == 0o600

    play(tmp_path, work)
    assert list((tmp_path / FOLDER).iterdir()) == []


@pytest.mark.item("rec-34")
def test_a_watcher_that_does_not_read_costs_a_bounded_amount(tmp_path: Path) -> None:
    """Publishing neither waits nor keeps more for it than the limit."""

    async def work(bus: LiveBus) -> None:
        with host.socket_path(tmp_path / FOLDER, TOKEN) as path:
            slow, writer = await asyncio.open_unix_connection(path, limit=1)
        writer.write(b"run_a\n")
        async with reading(tmp_path) as quick:
            await asyncio.sleep(0.05)
            for number in range(600):
                bus.publish(delta(f"{number:04d}" + "x" * 5_000))
                await asyncio.sleep(0)
            got = sum(map(len, await heard(quick, 600)))
        left = 0
        with contextlib.suppress(TimeoutError):
            while data := await asyncio.wait_for(slow.read(100_000), 0.2):
                left += len(data)
        assert got > 2_000_000
        assert left < BEHIND_BYTES + 1_000_000  # what the system buffers comes on top
        writer.close()

    play(tmp_path, work)


def test_tails_are_bounded() -> None:
    """By length and by number of runs."""
    live = LiveText()
    for number in range(MOST_TAILS + 50):
        live.publish(delta("x" * 3 * TAIL_CHARS, run=f"run_{number}"))
    assert len(live._tails) == MOST_TAILS
    assert max(len(one.text) for one in live._tails.values()) == TAIL_CHARS


@pytest.mark.item("rec-34")
def test_a_socket_of_a_dead_process_is_removed(tmp_path: Path) -> None:
    """The next process that drives runs cleans up; a living one is left alone."""
    folder = tmp_path / FOLDER
    folder.mkdir()
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(folder / "dead"))
    dead.close()
    alive = socket.socket(socket.AF_UNIX)
    alive.bind(str(folder / "alive"))
    alive.listen()

    async def work(bus: LiveBus) -> None:
        assert {one.name for one in folder.iterdir()} == {"alive", TOKEN}

    play(tmp_path, work)
    alive.close()


def test_a_deep_data_directory_works(tmp_path: Path) -> None:
    """A path too long for a socket is reached through its folder."""
    home = tmp_path / ("d" * 60) / ("e" * 60)
    home.mkdir(parents=True)

    async def work(bus: LiveBus) -> None:
        bus.publish(delta("deep"))
        async with reading(home) as found:
            assert await heard(found, 1) == ["deep"]

    play(home, work)


@pytest.mark.parametrize("token", ["", "nobody"])
def test_without_a_driving_process_there_is_nothing_to_read(tmp_path: Path, token: str) -> None:
    """A reader without a socket ends at once."""

    async def read() -> list[Delta]:
        return [one async for one in read_live_text(tmp_path, token, "run_a", tail=True)]

    assert asyncio.run(read()) == []
