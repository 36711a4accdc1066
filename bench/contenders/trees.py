"""Snapshots of a large and a small folder, beside `git status` in the same repository."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from pathlib import Path

from loopwright.workspaces.snapshots import GitWorkspaces

RUN = "run_bench"
IN_A_FOLDER = 25
TIMES = 7


def make_repository(folder: Path, files: int) -> Path:
    """A repository with files of twenty lines, and `git status` warmed up."""
    for number in range(files):
        inside = folder / f"d{number // 500}" / f"e{number // IN_A_FOLDER % 20}"
        if number % IN_A_FOLDER == 0:
            inside.mkdir(parents=True, exist_ok=True)
        (inside / f"f{number}.py").write_text(f"# file {number}\n" + "x = 1\n" * 20)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=b", "-c", "user.email=b@localhost", "commit", "-q", "-m", "all")
    git(folder, "status")
    return folder / "d0" / "e0" / "f1.py"


def git(folder: Path, *arguments: str) -> float:
    """Run Git as a user would; how long it took."""
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull}
    began = time.perf_counter()
    subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, check=True, capture_output=True
    )
    return time.perf_counter() - began


class Trees:
    """One folder and its snapshots."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder = folder
        self.workspaces = GitWorkspaces(data)
        self.first = self.last = ""

    async def snapshot(self) -> float:
        """Take the next one; how long it took."""
        began = time.perf_counter()
        taken = await self.workspaces.snapshot(
            RUN, str(self.folder), previous=self.last, first=self.first
        )
        took = time.perf_counter() - began
        self.last = taken.tree
        self.first = self.first or taken.tree
        return took

    async def changes(self, file: Path) -> tuple[float, float]:
        """The median of a snapshot after one more line in a file, and of `git status` beside it."""
        snapshots, statuses = [], []
        for number in range(TIMES):
            with file.open("a") as text:
                text.write(f"y = {number}\n")
            snapshots.append(await self.snapshot())
            statuses.append(git(self.folder, "status"))
        return statistics.median(snapshots), statistics.median(statuses)


async def measure(directory: Path, files: int) -> dict[str, float]:
    """All figures of the workload."""
    file = make_repository(directory / "large", files)
    large = Trees(directory / "large", directory / "data")
    first = await large.snapshot()
    changed, status = await large.changes(file)
    small_file = make_repository(directory / "small", 50)
    small = Trees(directory / "small", directory / "small-data")
    await small.snapshot()
    small_changed, _ = await small.changes(small_file)
    return {
        "first_seconds": first,
        "changed_seconds": changed,
        "status_seconds": status,
        "small_seconds": small_changed,
    }
