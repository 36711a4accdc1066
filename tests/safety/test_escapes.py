"""Programs in a sandbox: none of the known ways out of it works, at any level, also for root."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from loopwright.model.sandbox import SANDBOX_LEVELS, SandboxLevel
from loopwright.programs import sandbox
from loopwright.programs.process import Program, ProgramEnd
from loopwright.programs.sandbox import Confinement, Sandbox, SandboxPolicy

pytestmark = pytest.mark.skipif(
    sandbox.works() is not None, reason=f"bubblewrap cannot work here: {sandbox.works()}"
)
SCRIPT = Path(__file__).with_name("escapes.py")
PLACES = ("beside", "inside", "around")
"""Where the data directory is, seen from the workspace."""


def places(folder: Path, place: str) -> tuple[Path, Path]:
    """A workspace and a data directory with something in it."""
    data = {"beside": folder / "data", "inside": folder / "work" / ".data", "around": folder}[place]
    work = folder / "worktrees" / "run_1" if place == "around" else folder / "work"
    for one in (work, data):
        one.mkdir(parents=True, exist_ok=True)
    (data / "loopwright.db").write_text("secret")
    (work / "mine.txt").write_text("mine")
    return work, data


def run_inside(
    level: SandboxLevel, work: Path, data: Path, *argv: str, offline: bool = False
) -> ProgramEnd:
    """Run Python in a sandbox."""
    policy = SandboxPolicy(hidden=(str(data),), workspaces=(str(data / "worktrees"),))
    confinement = Confinement(level=level, shown=(str(SCRIPT),), offline=offline)
    env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "LOOPWRIGHT_HOME": str(data)}
    program = Program(argv=(sys.executable, *argv), cwd=str(work), env=env, wall_s=60)
    return asyncio.run(Sandbox(policy).run(program, confinement))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("level", SANDBOX_LEVELS[1:])
def test_no_way_out_works(tmp_path: Path, level: SandboxLevel, place: str) -> None:
    """Each way is closed by something, which the program is told."""
    work, data = places(tmp_path, place)
    link = tmp_path / "link"
    link.symlink_to(data)
    end = run_inside(level, work, data, str(SCRIPT), str(data), str(link), str(os.getpid()))
    assert end.code == 0, end.stderr_tail.decode()
    found = json.loads(end.stdout)
    assert len(found) >= 40
    assert [name for name, stopped in found.items() if not stopped] == []


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("level", ["guard", "workspace", "readonly"])
def test_the_workspace_is_seen_and_the_data_is_not(
    tmp_path: Path, level: SandboxLevel, place: str
) -> None:
    """Wherever the data directory is, also around the workspace."""
    work, data = places(tmp_path, place)
    code = (
        "import os, sys; print(open('mine.txt').read());"
        " print(os.path.exists(sys.argv[1] + '/loopwright.db'))"
    )
    end = run_inside(level, work, data, "-c", code, str(data))
    assert end.stdout.decode().split() == ["mine", "False"], end.stderr_tail.decode()
