"""`doctor`: at least fifteen looks, each with a reason, and a cure where one is needed."""

import re
import sqlite3
from pathlib import Path

import pytest

from tests.cli.conftest import Place


def test_a_healthy_place(lw: Place) -> None:
    """Everything is looked at and in order; the exit code is 0."""
    lw("run", lw.loop(lw.script("x"), max=1))
    told = lw("doctor", "--deep", "--json")
    assert told.code == 0
    checks = told.json["checks"]
    assert len(checks) >= 15
    assert all(check["why"] for check in checks)
    assert [c for c in checks if c["state"] != "ok" and not c["fix"]] == []
    assert {c["check"]: c["state"] for c in checks}["invariants"] == "ok"
    text = lw("doctor")
    assert len(text.out.splitlines()) >= 15
    assert "invariants" not in text.out


def test_what_is_not_here_is_not_in_order(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coding CLI that is not installed has a mark of its own; --quiet shows problems alone."""
    monkeypatch.setenv("PATH", str(lw.folder))
    told = lw("doctor")
    assert re.search(r"^· none  agent codex +not installed$", told.out, re.MULTILINE)
    quiet = [line for line in lw("doctor", "-q").out.splitlines() if "fix: " not in line]
    assert quiet
    assert {line.split()[1] for line in quiet} <= {"warn", "fail"}
    assert any("git" in line for line in quiet)


def test_looking_changes_nothing(lw: Place) -> None:
    """A place where nothing ever ran is left as it is."""
    assert lw("doctor").code == 0
    assert not (lw.folder.parent / "home").exists()


def test_damage_is_found(lw: Place) -> None:
    """An event that was edited by hand is found by --deep, which leaves with 1."""
    run = lw("run", lw.loop(lw.script("x"), max=1), "--json").json["run"]
    db = sqlite3.connect(lw.folder.parent / "home" / "loopwright.db")
    db.execute("UPDATE segment SET body = replace(body, 'work', 'wark')")
    db.commit()
    db.close()
    told = lw("doctor", "--deep", "--json")
    assert told.code == 1
    [broken] = [c for c in told.json["checks"] if c["state"] == "fail"]
    assert run in broken["why"]


@pytest.mark.parametrize("what", ["file", "empty", "rubbish"])
def test_a_data_directory_that_cannot_be_used(lw: Place, what: str) -> None:
    """A home that is a file, and a database that is none, are failures with a cure."""
    home = Path(lw.env["LOOPWRIGHT_HOME"])
    if what == "file":
        home.write_text("x")
    else:
        home.mkdir()
        (home / "loopwright.db").write_text("" if what == "empty" else "no database at all\n" * 99)
    told = lw("doctor", "--json")
    assert told.code == 1
    failed = [check for check in told.json["checks"] if check["state"] == "fail"]
    assert failed
    assert all(check["fix"] for check in failed)
