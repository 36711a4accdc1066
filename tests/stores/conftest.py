"""Fixtures of this folder: a log in a file, and other processes that use the same file."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from loopwright.ports import Owner
from loopwright.stores.sqlite.log import open_sqlite_log
from tests.contracts.event_log_suite import World

PROGRAM = Path(__file__).with_name("other_process.py")


class Spawn(Protocol):
    """Starts `other_process.py` with a job, on the database of the test."""

    def __call__(self, what: str, *arguments: str) -> subprocess.Popen[str]: ...


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def dead() -> set[str]:
    """Tokens of owners that no longer live."""
    return set()


@pytest.fixture
def world(path: Path, dead: set[str]) -> Iterator[World]:
    """A world whose logs all open the file at `path`, durably."""

    def alive(owner: Owner) -> bool:
        return owner.token not in dead

    world = World(lambda _: open_sqlite_log(path, alive=alive))
    yield world
    world.close()


@pytest.fixture
def spawn(path: Path) -> Iterator[Spawn]:
    started: list[subprocess.Popen[str]] = []

    def start(what: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), what, str(path), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
