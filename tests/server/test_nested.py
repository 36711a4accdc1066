"""Runs that agents start, when whoever drove them is gone."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from loopwright.app.nesting import PARENT
from loopwright.app.preparing import Wish, prepare_file
from loopwright.server import serving
from tests.server.served import Served, served


def left_behind(server: Served, parent: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run that a program of another run started, and that nobody drives."""
    monkeypatch.setenv(PARENT, parent)
    definition = server.definition(server.script("a", "b", "c", name=f"{parent}.yaml"))
    wish = Wish(workspace=str(server.folder))
    start, _ = prepare_file("inner.yaml", wish, data=definition.encode(), dialect="native")

    async def begin() -> str:
        return await server.context.service.start(replace(start, drive=False))

    return asyncio.run_coroutine_threadsafe(begin(), server.loop).result(20)


def test_left_behind_by_a_program_of_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its parent has completed, it is taken up as any other. Where the parent is under way or
    was ended, it is stopped: the pass that had started it is made again, or nobody wants it.
    """
    monkeypatch.setattr(serving, "RESCUE_SECONDS", 0.05)
    with served(tmp_path) as server:
        whole = server.start(server.definition(server.script("x"), until={"contains": "x"}))
        server.until(whole, "completed")
        waiting, _ = server.gated()
        stopped, _ = server.gated()
        server("POST", f"/api/v1/runs/{stopped}/stop")
        ends = {
            parent: server.until(left_behind(server, parent, monkeypatch), "completed", "cancelled")
            for parent in (whole, waiting, stopped, "run_elsewhere")
        }
    told = {parent: (end["status"], end["reason"]) for parent, end in ends.items()}
    gone = ("cancelled", "parent_gone")
    kept = ("completed", "max_iterations")
    assert told == {whole: kept, waiting: gone, stopped: gone, "run_elsewhere": kept}
