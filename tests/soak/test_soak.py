"""A server under load does not grow. SOAK_MINUTES says for how long (`make test-soak`)."""

import asyncio
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.http.test_serving import Process, serving
from tests.soak.load import FEWEST_SAMPLES, LOOPS, Load, children_of, growth, medians, wait_until

MINUTES = float(os.environ.get("SOAK_MINUTES", "0"))
MOST_GROWTH = 1.10


def remaining(folder: Path) -> list[str]:
    """Processes that still run an agent of this folder."""
    found = []
    for one in Path("/proc").iterdir():
        if one.name.isdigit():
            try:
                line = (one / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder / "agent.sh") in line:
                found.append(line)
    return found


@contextmanager
def shown_on_failure(server: Process, capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Read what the server reports, so that it never waits for a reader, and show the end of it
    when the test fails.
    """
    lines: deque[str] = deque(maxlen=200)
    assert server.process.stderr is not None
    reading = threading.Thread(target=lines.extend, args=(server.process.stderr,), daemon=True)
    reading.start()
    try:
        yield
    except BaseException:
        server.process.kill()
        reading.join(10)
        with capsys.disabled():
            sys.stderr.writelines(["\n", *lines])
        raise


@pytest.mark.skipif(not MINUTES, reason="takes minutes: `make test-soak`")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.timeout(3 * MINUTES * 60 + 300)
@pytest.mark.item("bnd-m4")
def test_a_server_under_load_does_not_grow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """30 loops whose agents answer, fail, fork, detach and hang, and clients that come and leave:
    memory, descriptors, threads and processes stay within 10 % of their value after the first
    tenth, however long it takes, and nothing is left when the server has ended.
    """
    with (
        serving(tmp_path, "--rate", "10000", own_interpreter=True) as server,
        shown_on_failure(server, capsys),
    ):
        load = Load(ask=server.ask, pid=server.process.pid, seconds=MINUTES * 60)
        asyncio.run(load.make())
        found = growth(load.samples)
        is_quiet = wait_until(lambda: not list(children_of(server.process.pid)), 30)
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(60)
    with capsys.disabled():
        sys.stderr.write(
            f"\n{LOOPS} loops, {MINUTES:g} minutes: {load.started} runs {load.outcomes},"
            f" {load.followed} connections\n"
        )
        for name, (begin, least, most) in found.items():
            tenths = ", ".join(f"{one:.1f}" for one in medians(load.samples, name))
            sys.stderr.write(f"{name}: {begin:.1f} then {least:.1f} to {most:.1f} ({tenths})\n")
    assert is_quiet
    assert code == 0
    assert remaining(tmp_path) == []
    assert load.started > LOOPS
    assert len(load.samples) >= FEWEST_SAMPLES
    assert {"completed", "failed"} <= load.outcomes.keys()
    grown = {
        name: (begin, most)
        for name, (begin, _, most) in found.items()
        if most > begin * MOST_GROWTH
    }
    assert grown == {}
