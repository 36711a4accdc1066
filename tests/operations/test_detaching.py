"""A run is handed over: the command leaves when the process in the background has it."""

from contextlib import closing
from pathlib import Path

import pytest

from loopwright.errors import StorageError
from loopwright.model.actions import AskPerson, Step
from loopwright.model.plan import Plan
from loopwright.operations import background_runs as room
from loopwright.operations.data_directory import HANDED, open_log, this_owner
from loopwright.operations.run_lists import presence_of
from loopwright.operations.run_request import RunStart
from loopwright.operations.settings import Settings
from loopwright.ports import Owner

PLAN = Plan(name="asks", steps=(Step(id="a", action=AskPerson()),))


class Quick:
    """A process that has ended when it is first looked at, and before that had its run or not."""

    pid = 7

    def __init__(self, settings: Settings, run: str, heir_of: Owner, *, takes: bool) -> None:
        self._settings, self._run, self._heir_of, self._takes = settings, run, heir_of, takes

    def poll(self) -> int:
        if self._takes:
            with closing(open_log(self._settings)) as log:
                log.release([self._run], self._heir_of)
        return 0


@pytest.mark.parametrize("takes", [True, False], ids=["has done all", "has done nothing"])
def test_a_process_that_ends_at_once(
    takes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has had the run is as good as one that still has it; only the other is told."""
    settings = Settings(home=tmp_path / "home")

    def driving(settings: Settings, run: str, *, alone: bool, heir_of: Owner) -> Quick:
        assert alone
        return Quick(settings, run, heir_of, takes=takes)

    monkeypatch.setattr(room, "_driving", driving)
    start = RunStart(plan=PLAN, workspace=tmp_path, message="Go.")
    if takes:
        assert room.start_in_background(settings, start, alone=True).pid == Quick.pid
    else:
        with pytest.raises(StorageError, match="ended with 0"):
            room.start_in_background(settings, start, alone=True)


@pytest.mark.parametrize(
    "handed", ["../loopwright.db", "../../elsewhere", "", "x", "0123456789ABCDEF", "0" * 15]
)
def test_what_is_no_token_is_not_taken_for_one(
    handed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names a file that is locked, and taken away at the end: never one outside its folder."""
    settings = Settings(home=tmp_path / "home")
    monkeypatch.setenv(HANDED, handed)
    with closing(open_log(settings)):
        pass
    with presence_of(settings).held(this_owner().token):
        pass
    assert settings.database.exists()
    assert [one.name for one in tmp_path.iterdir()] == ["home"]


def test_a_token_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is handed a run has its token; the programs that it starts have not."""
    monkeypatch.setenv(HANDED, "0123456789abcdef")
    assert this_owner().token == "0123456789abcdef"
    assert this_owner().token != "0123456789abcdef"
