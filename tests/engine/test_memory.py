"""The memory of a process does not depend on how many iterations its loops have made."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine import long_loop

MEGABYTE = 1_000_000


def peak(folder: Path, iterations: int, collector: str) -> int:
    """The most memory of a process that runs a loop of so many iterations, in bytes."""
    done = subprocess.run(
        [sys.executable, "-m", long_loop.__name__, str(folder), str(iterations), collector],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    status, found, unchanged = done.stdout.split()
    assert (status, unchanged) == ("completed", "True")
    return int(found)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.item("bnd-m2", "bnd-m3")
@pytest.mark.parametrize(
    ("iterations", "collector", "most"),
    [
        pytest.param(1_000, "on", 80, id="1,000 iterations"),
        pytest.param(1_000, "off", 80, id="1,000 iterations without the collector"),
        pytest.param(10_000, "on", 150, id="10,000 iterations"),
    ],
)
def test_a_long_loop_stays_small(
    tmp_path: Path, iterations: int, collector: str, most: int
) -> None:
    """Also where nothing but reference counts frees memory; the collector is as it was before."""
    assert peak(tmp_path, iterations, collector) < most * MEGABYTE


@pytest.mark.item("bnd-m2")
def test_importing_leaves_the_collector_as_it_is() -> None:
    """Every module of the package is imported; the settings are those of before."""
    code = (
        "import gc, pkgutil, importlib\n"
        "settings = lambda: (gc.get_threshold(), gc.isenabled(), gc.get_freeze_count())\n"
        "before = settings()\n"
        "import loopwright\n"
        "names = [m.name for m in pkgutil.walk_packages(loopwright.__path__, 'loopwright.')]\n"
        "for name in names:\n"
        "    if not name.endswith('__main__'):\n"
        "        importlib.import_module(name)\n"
        "print(len(names) > 300, settings() == before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_the_program_measures_itself() -> None:
    """The peak is at least what this process has now, and the settings are those of here."""
    held = bytearray(20 * MEGABYTE)
    assert long_loop.peak_bytes() > len(held)
    assert long_loop.collector()[0] == gc.get_threshold()
