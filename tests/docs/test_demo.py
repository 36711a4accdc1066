"""The demo, as `make demo` runs it: no key, no network, nothing of the person's."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def demo(
    tmp_path: Path, *, agent: str, path: str | None = None
) -> subprocess.CompletedProcess[str]:
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", str(ROOT / "scripts" / "demo.sh")],
        env={
            "PATH": path or programs,
            "HOME": str(tmp_path.parent),
            "TMPDIR": str(tmp_path),
            "LANG": "C.UTF-8",
            "AGENT": agent,
            "LOOPWRIGHT_SNAPSHOTS": "off",
        },
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_three_passes_repair_the_project(tmp_path: Path) -> None:
    """The scripted agent needs three passes, the tests pass, and one folder is left behind."""
    done = demo(tmp_path, agent="script")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Completed in 3 iterations" in done.stdout
    before, _, after = done.stdout.partition("== What has changed")
    assert "FAILED (failures=4)" in before
    assert re.search(r"^OK$", after, re.MULTILINE)
    assert len(re.findall(r"^diff --git", after, re.MULTILINE)) == 3
    (left,) = tmp_path.iterdir()
    assert left.name.startswith("loopwright-demo.")


def test_a_missing_agent_is_told(tmp_path: Path) -> None:
    """Without the real agent on PATH the demo says so before it does anything."""
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("bash", "dirname"):
        (bare / name).symlink_to(
            next(p for p in map(Path, ("/bin", "/usr/bin")) if (p / name).exists()) / name
        )
    done = demo(tmp_path, agent="claude", path=str(bare))
    assert done.returncode == 2
    assert "make demo" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


@pytest.mark.parametrize(
    ("agent", "code"),
    [
        pytest.param("command:false", 3, id="an agent that fails"),
        pytest.param("nonsense", 2, id="a spec that is none"),
    ],
)
def test_any_other_agent_is_passed_on(tmp_path: Path, agent: str, code: int) -> None:
    """A spec is handed to the run as it is, and the demo ends with the run's exit code."""
    assert demo(tmp_path, agent=agent).returncode == code
