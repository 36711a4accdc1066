"""`prune`: runs that ended long ago are forgotten, and nothing else."""

import json
from datetime import timedelta

import pytest

from loopwright.engine.services import SystemClock
from tests.cli.conftest import Place


def ended(lw: Place) -> str:
    lw.loop(lw.script("x" * 5_000, "DONE"), until={"signal": "DONE"})
    run: str = lw("run", "loop.yaml", "--json").json["run"]
    return run


def waiting(lw: Place) -> str:
    name = lw.loop(lw.script("a"), name="gate.yaml", until={"person": True})
    run: str = lw("run", name, "--json", "--no-wait").json["run"]
    return run


def names(lw: Place) -> list[str]:
    return [str(one["run"]) for one in lw("ls", "--all", "--json").json["runs"]]


@pytest.mark.item("inv-27")
def test_what_ended_long_ago_goes(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended runs go with their texts; one that waits stays, can be answered and is whole."""
    gone, kept = ended(lw), waiting(lw)
    now, ahead = SystemClock.now_ms, int(timedelta(days=40).total_seconds() * 1_000)
    monkeypatch.setattr(SystemClock, "now_ms", lambda self: now(self) + ahead)
    told = lw("prune", "--json").json
    contents = told["contents"]
    assert told == {"forgotten": [gone], "count": 1, "contents": contents, "uploads": 0}
    assert told["contents"] >= 2  # its plan and its long text
    assert names(lw) == [kept]
    assert lw("show", gone).code == 2
    assert lw("doctor", "--deep", "--json").code == 0
    assert lw("approve", kept).code == 0
    assert lw("show", kept, "--json").json["status"] == "completed"


@pytest.mark.parametrize(
    ("args", "left"),
    [
        pytest.param(("--dry-run", "--older", "1ms"), 2, id="only said"),
        pytest.param((), 2, id="not old enough"),
        pytest.param(("--older", "1ms", "--keep", "1"), 1, id="the newest is kept"),
        pytest.param(("--older", "1ms"), 0, id="all"),
    ],
)
def test_how_much_goes(lw: Place, args: tuple[str, ...], left: int) -> None:
    """Age and number say what goes; a dry run only says it."""
    first, second = ended(lw), ended(lw)
    told = lw("prune", *args)
    assert told.code == 0
    assert len(names(lw)) == left
    assert (first in told.out) is (left < 2 or "--dry-run" in args)
    assert (second in names(lw)) is (left > 0)


def test_an_age_that_is_none(lw: Place) -> None:
    """What is no length of time is told with how one is written, and nothing goes."""
    ended(lw)
    told = lw("prune", "--older", "soon", "--json")
    assert told.code == 2
    assert "30d" in json.dumps(told.json)
    assert len(names(lw)) == 1


def test_files_that_were_given_go_with_their_run(lw: Place) -> None:
    """With a run that is forgotten; those of one that waits stay, however old."""
    gone, kept = ended(lw), waiting(lw)
    lw.write("a.txt", "of one")
    lw.write("b.txt", "of another")
    assert lw("artifact", "put", gone, "a.txt").code == 0
    assert lw("artifact", "put", kept, "b.txt").code == 0
    said = lw("prune", "--older", "1ms", "--dry-run")
    assert said.err.strip() == "1 run would be deleted, and 1 uploaded file"
    assert lw("prune", "--older", "1ms", "--json").json["uploads"] == 1
    left = lw("artifact", "ls", kept, "--json").json["artifacts"]
    assert [one["name"] for one in left] == ["b.txt"]
    files = [one for one in (lw.folder.parent / "home" / "uploads").rglob("*") if one.is_file()]
    assert [one.read_text(encoding="utf-8") for one in files] == ["of another"]
