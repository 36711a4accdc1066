"""A server under load does not grow. SOAK_MINUTES says for how long (`make test-soak`)."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.server.test_serving import serving
from tests.soak.load import LOOPS, Load, children_of, growth, medians, wait_until

MINUTES = float(os.environ.get("SOAK_MINUTES", "0"))
MOST_GROWTH = 1.10
# How many agents work at the same moment depends on how busy the machine is. So descriptors and
# processes may also be as many as agents and clients need that all work at once; one that was left
# behind by every call would exceed that within a minute.
NEEDED_AT_ONCE = {"memory": 0, "descriptors": 30 + 5 * LOOPS, "threads": 10, "processes": 4 * LOOPS}


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


@pytest.mark.skipif(not MINUTES, reason="takes minutes: `make test-soak`")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.timeout(MINUTES * 60 + 360)
@pytest.mark.item("bnd-m4")
def test_a_server_under_load_does_not_grow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """30 loops whose agents answer, fail, fork, detach and hang, and clients that come and leave:
    memory, descriptors, threads and processes stay within 10 % of their value after the first
    tenth, and nothing is left when the server has ended.
    """
    with serving(tmp_path, "--rate", "10000") as server:
        load = Load(ask=server.ask, pid=server.process.pid, seconds=MINUTES * 60)
        asyncio.run(load.make())
        found = growth(load.samples)
        is_quiet = wait_until(lambda: not list(children_of(server.process.pid)), 30)
        code = server.end(signal.SIGTERM)
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
    assert {"completed", "failed"} <= load.outcomes.keys()
    grown = {
        name: (begin, most)
        for name, (begin, _, most) in found.items()
        if most > max(begin * MOST_GROWTH, NEEDED_AT_ONCE[name])
    }
    assert grown == {}
