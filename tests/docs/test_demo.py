"""`loopwright demo`: no key, no network, nothing of the person's own runs and settings."""

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def demo(
    tmp_path: Path, *args: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loopwright", "demo", *args],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path.parent),
            "TMPDIR": str(tmp_path),
            "LANG": "C.UTF-8",
            **(environment or {}),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_three_iterations_repair_the_project(tmp_path: Path) -> None:
    """The scripted agent needs three iterations, the tests pass, and one folder is left behind."""
    done = demo(tmp_path, environment={"LOOPWRIGHT_SERVER": "http://127.0.0.1:9"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Completed in 3 iterations" in done.stdout
    before, _, after = done.stdout.partition("== What changed")
    assert "FAILED (failures=4)" in before
    assert re.search(r"^OK$", after, re.MULTILINE)
    assert len(re.findall(r"^diff --git", after, re.MULTILINE)) == 3
    (left,) = tmp_path.iterdir()
    assert left.name.startswith("loopwright-demo.")
    assert sorted(one.name for one in left.iterdir()) == ["agent.py", "data", "project"]
    for command in re.findall(r"^  (loopwright .* --data-dir .*)", done.stderr, re.MULTILINE):
        words = command.split()[1:]
        shown = subprocess.run(
            [sys.executable, "-m", "loopwright", *words], capture_output=True, check=False
        )
        assert (shown.returncode, bool(shown.stdout)) == (0, True), command


def test_the_outcome_as_json(tmp_path: Path) -> None:
    """With --json there is one object: where everything is, and the outcome of the run."""
    done = demo(tmp_path, "here", "--json")
    told = json.loads(done.stdout)
    assert told["folder"] == str(tmp_path / "here")
    assert told["data_dir"] == str(tmp_path / "here" / "data")
    assert (told["outcome"]["status"], told["outcome"]["iterations"]) == ("completed", 3)


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    """Nothing of the person's is overwritten."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "agent.py").write_text("mine")
    done = demo(tmp_path, "mine")
    assert (done.returncode, "mine is not empty" in done.stderr) == (8, True), done.stderr
    assert (tmp_path / "mine" / "agent.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("agent", "code", "says", "left"),
    [
        pytest.param("command:false", 3, "exited with code 1", 3, id="an agent that fails"),
        pytest.param("nonsense", 2, "nonsense", 0, id="an unknown spec"),
        pytest.param("claude", 2, "claude is not on PATH", 0, id="an agent that is not installed"),
    ],
)
def test_any_other_agent(tmp_path: Path, agent: str, code: int, says: str, left: int) -> None:
    """The exit code is that of the run; an agent that cannot start leaves no files behind."""
    place = tmp_path / "here"
    place.mkdir()
    done = demo(tmp_path, "here", "--agent", agent, environment={"PATH": "/usr/bin:/bin"})
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert len(list(place.iterdir())) == left


def test_the_wheel_contains_the_demo(tmp_path: Path) -> None:
    """An installed wheel has the files of the demo, and uses them."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    assert (tmp_path / "installed" / "loopwright" / "demo_files" / "agent.py").is_file()
    assert not (tmp_path / "installed" / "examples").exists()
    # An environment of its own: the wheel comes before the checkout on its path.
    venv.create(tmp_path / "venv", with_pip=False, system_site_packages=False, symlinks=True)
    place = next((tmp_path / "venv" / "lib").glob("python*")) / "site-packages"
    packages = [one for one in sys.path if one.endswith("site-packages")]
    (place / "a.pth").write_text("\n".join([str(tmp_path / "installed"), *packages]))
    done = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", "-m", "loopwright", "demo", "out", "--json"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outcome"]["iterations"] == 3
