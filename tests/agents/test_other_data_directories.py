"""Hundreds of other data directories of the same user are hidden, and cost little at each start."""

import json
import os
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from loopwright.agents.processes.process import ProgramStart
from loopwright.agents.sandbox import bubblewrap
from loopwright.agents.sandbox.bubblewrap import Confinement, Sandbox, SandboxPolicy
from loopwright.host import find_program
from loopwright.model.sandbox import SandboxLevel
from tests.agents.test_sandbox import every_level, needs_sandbox, python

pytestmark = [pytest.mark.item("bnd-l3"), needs_sandbox]


def make_policy(folder: Path, count: int) -> tuple[SandboxPolicy, list[Path]]:
    """A policy with a list of this many data directories, and where these are."""
    records, own = folder / "records", folder / "own"
    others = [folder / f"project-{number}" / ".loopwright" for number in range(count)]
    for one in (records, own, *others):
        one.mkdir(parents=True)
    for one in others:
        (one / "loopwright.db").touch()
    listed = {"paths": [str(one) for one in others]}
    (records / "data-directories.json").write_text(json.dumps(listed))
    policy = SandboxPolicy(hidden=(str(own), str(records)), records=str(records))
    return policy, others


def argv_of(folder: Path, policy: SandboxPolicy) -> tuple[str, ...]:
    """How a program is started in the workspace `work` at `guard`."""
    work = folder / "work"
    work.mkdir()
    program = ProgramStart(argv=("true",), cwd=str(work), env={"PATH": os.environ["PATH"]})
    with Sandbox(policy).confined(program, Confinement(level="guard")) as confined:
        return tuple(confined.argv)


@every_level
def test_nothing_is_seen_or_made_in_any_of_them(tmp_path: Path, level: SandboxLevel) -> None:
    policy, others = make_policy(tmp_path, 40)
    work = tmp_path / "work"
    work.mkdir()
    code = """
import os, sys
for path in sys.argv[1:]:
    assert not os.path.exists(os.path.join(path, "loopwright.db")), path
    try:
        open(os.path.join(path, "made"), "w")
    except OSError:
        continue
    raise AssertionError(path)
print("all hidden")
"""
    end = python(
        work,
        f"import sys; sys.argv[1:] = {[*map(str, others)]!r}\n{code}",
        level=level,
        policy=policy,
    )
    assert (end.code, end.stdout) == (0, b"all hidden\n"), end.stderr_tail
    assert all([*one.iterdir()] == [one / "loopwright.db"] for one in others)


def test_the_folders_above_them_cannot_be_renamed(tmp_path: Path) -> None:
    """Otherwise a data directory would have a path that is not on the list."""
    policy, others = make_policy(tmp_path, 3)
    work = tmp_path / "work"
    work.mkdir()
    for one in others:
        end = python(
            work,
            f"import os; os.rename({str(one.parent)!r}, {str(work / 'moved')!r})",
            policy=policy,
        )
        assert end.code == 1, end.stdout
        assert b"OSError" in end.stderr_tail
        assert (one / "loopwright.db").exists()


@pytest.mark.skipif(
    not bubblewrap.sets_modes(find_program("bwrap") or ""),
    reason="this bubblewrap is older than 0.5",
)
def test_more_of_them_make_no_more_mounts_read_only(tmp_path: Path) -> None:
    """bubblewrap reads the list of all mounts again for each mount that it makes read-only: 480
    directories took seconds at each start.
    """
    few, many = tmp_path / "few", tmp_path / "many"
    counts = []
    for folder, count in ((few, 1), (many, 300)):
        folder.mkdir()
        policy, others = make_policy(folder, count)
        argv = argv_of(folder, policy)
        assert all(str(one) in argv for one in others)
        counts.append(argv.count("--remount-ro"))
    assert counts[0] == counts[1]


def test_the_list_of_mounts_is_read_a_fixed_number_of_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, _ = make_policy(tmp_path, 100)
    read: list[str] = []
    original = Path.read_text

    def count(path: Path, *args: str, **more: str) -> str:
        read.append(str(path))
        return original(path, *args, **more)

    monkeypatch.setattr(Path, "read_text", count)
    argv_of(tmp_path, policy)
    assert 1 <= read.count("/proc/self/mountinfo") <= 3


def test_an_old_bubblewrap_makes_each_of_them_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that cannot set modes would end with an error about its arguments."""
    policy, others = make_policy(tmp_path, 5)
    monkeypatch.setattr(bubblewrap, "sets_modes", lambda file: False)
    argv = argv_of(tmp_path, policy)
    assert "--perms" not in argv
    pairs = list(pairwise(argv))
    assert all(("--remount-ro", str(one)) in pairs for one in others)


def test_what_cannot_be_started_sets_no_modes() -> None:
    assert not bubblewrap.sets_modes("/nonexistent/bwrap")
    assert not bubblewrap.sets_modes(sys.executable)
