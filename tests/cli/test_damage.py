"""Damaged data and hostile surroundings: one thing that is broken is told, and hides no other."""

import os
import sqlite3
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.cli.terminal import COMMAND

LONG = "a line that is too long to stand in a fact\n" * 60


def change(lw: Place, statement: str, *values: object) -> None:
    """Change the database behind the product's back."""
    db = sqlite3.connect(Path(lw.env["LOOPWRIGHT_HOME"]) / "loopwright.db")
    db.execute(statement, values)
    db.commit()
    db.close()


DAMAGE = {
    "facts that are not JSON": "UPDATE segment SET body = x'00ff' WHERE run = 1 AND seq > 1",
    "facts of an unknown kind": (
        "UPDATE segment SET body = replace(body, 'iteration', 'iteratiom') WHERE run = 1"
    ),
    "no facts": "DELETE FROM segment WHERE run = 1",
}


@pytest.mark.parametrize("statement", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_run_hides_no_other(lw: Place, statement: str) -> None:
    """A list shows every run, and says which is damaged; asked for alone, the run says so."""
    damaged = lw("run", lw.loop(lw.script("x"), max=1), "--json").json["run"]
    change(lw, statement)
    whole = lw("run", lw.loop(lw.script("y"), max=2), "--json").json["run"]
    rows = {row["run"]: row for row in lw("ls", "--json").json["runs"]}
    assert rows[whole]["damaged"] is None
    assert rows[damaged]["damaged"]
    assert "(damaged)" in lw("ls").out
    told = lw("show", damaged)
    assert (told.code, "defect" in told.err) == (1, False)
    assert told.err.startswith("error: ")


def test_a_list_does_not_read_plans(lw: Place) -> None:
    """A run with a damaged plan is listed as its row says; asked for alone, the run says so."""
    run = lw("run", lw.loop(lw.script("x"), max=1), "--json").json["run"]
    change(lw, "UPDATE blob SET body = x'7b7d'")
    [row] = lw("ls", "--json").json["runs"]
    assert (row["run"], row["iterations"], row["max"], row["damaged"]) == (run, 1, 1, None)
    told = lw("show", run)
    assert (told.code, "defect" in told.err) == (1, False)
    assert told.err.startswith("error: ")


def test_damaged_content_is_not_shown_as_if_it_were_whole(lw: Place) -> None:
    """A text that a disk has changed is refused by name, whether it can be decoded or not."""
    for word, change_to in (("one", "replace(body, 'line', 'lime')"), ("two", "x'ff' || body")):
        said = lw.script(LONG + word)
        run = lw("run", lw.loop(said, max=1), "--json").json["run"]
        change(lw, f"UPDATE blob SET body = {change_to} WHERE CAST(body AS TEXT) LIKE '%{word}'")
        told = lw("show", run, "--json")
        assert told.code == 1
        assert told.json["type"].endswith("damaged")
        assert "doctor --deep" in told.json["hint"]


def test_content_that_comes_again_is_whole_again(lw: Place) -> None:
    """A text that a disk has changed is mended by the next run that says the same."""
    first = lw("run", lw.loop(lw.script(LONG), max=1), "--json").json["run"]
    change(lw, "UPDATE blob SET body = replace(body, 'line', 'lime')")
    second = lw("run", lw.loop(lw.script(LONG), max=1), "--json")
    assert (second.code, second.json["output"]) == (0, LONG)
    assert lw("show", first, "--json").json["output"] == LONG


def test_what_cannot_be_read_while_a_run_is_shown(lw: Place) -> None:
    """Content that is changed under a run that is under way is told once, without a trace."""
    lw("run", lw.loop(lw.script("x"), max=1))
    spoil = "UPDATE blob SET body = replace(body, 'line', 'lime') WHERE hash = new.hash"
    change(lw, f"CREATE TRIGGER spoil AFTER INSERT ON blob BEGIN {spoil}; END")
    told = lw.real("run", lw.loop(lw.script(LONG), max=1))
    assert told.code == 1
    assert "is damaged" in told.err
    assert "Traceback" not in told.err


def test_a_damaged_run_holds_up_no_other(lw: Place) -> None:
    """Of two paused runs the whole one is resumed and stopped, and the other one is named."""
    runs = []
    for _ in range(2):
        gated = lw.loop(lw.script("x"), max=2, gate={})
        runs.append(lw("run", gated, "--no-wait", "--json").json["run"])
        assert lw("pause", runs[-1]).code == 0
    change(lw, "UPDATE segment SET body = x'00' WHERE run = 1")
    told = lw("resume", "all", "--no-wait")
    assert "1 resumed" in told.err
    assert runs[0] in told.err
    told = lw("stop", "all")
    assert (told.code, runs[0] in told.err) == (1, True)
    assert lw("show", runs[1], "--json").json["status"] == "cancelled"


@pytest.mark.parametrize(
    "statement",
    ["UPDATE run SET started_at = 'soon'", "UPDATE segment SET last = 'x'"],
    ids=["a time", "a number"],
)
def test_columns_of_another_type_are_damage(lw: Place, statement: str) -> None:
    """What should be a number and is a text is told as damage, not as a defect."""
    lw("run", lw.loop(lw.script("x"), max=1))
    change(lw, statement)
    for command in (("ls",), ("events", "last")):
        told = lw(*command)
        assert "defect" not in told.err
        assert told.code == 0 or "damaged" in told.err


def test_doctor_takes_any_name_of_a_folder(lw: Place) -> None:
    """A data directory whose name means something in an address is looked at all the same."""
    home = str(lw.folder / "what? 100%25 #1")
    assert lw("run", lw.loop(lw.script("x"), max=1), "--data-dir", home).code == 0
    told = lw("doctor", "--json", "--data-dir", home)
    assert {c["check"]: c["state"] for c in told.json["checks"]}["schema"] == "ok"


# -- surroundings ----------------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("words", [["ls"], ["ls", "--json"], ["--help"], ["version"]])
def test_an_output_that_takes_nothing(lw: Place, words: list[str]) -> None:
    """A full disk behind stdout is told on stderr with the cure, exit 1, without a trace."""
    lw("run", lw.loop(lw.script("x"), max=1))
    with open("/dev/full", "w") as full:
        told = subprocess.run(
            [*COMMAND, *words], env=lw.env, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert told.returncode == 1
    assert "the output cannot be written" in told.stderr
    assert "Traceback" not in told.stderr
    assert "defect" not in told.stderr


def test_a_folder_that_is_gone(lw: Place) -> None:
    """Started in a folder that somebody removed, the command says so."""
    gone = lw.folder / "gone"
    gone.mkdir()
    told = subprocess.run(
        ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", *COMMAND, "loop", "x", "--max", "1"],
        cwd=gone,
        env={**lw.env, "PWD": str(gone)},
        capture_output=True,
        text=True,
    )
    assert told.returncode == 1
    assert "the current folder does not exist any more" in told.stderr
    assert "Traceback" not in told.stderr


@pytest.mark.item("J5")
def test_an_event_that_was_edited_by_hand(lw: Place) -> None:
    """The events can still be read, and the break of their chain is told; nothing else is done with
    the run, and the others go on.
    """
    said = lw.script(*["some work"] * 9)
    run = lw("run", lw.loop(said, until={"person": True}), "--json").json["run"]
    change(lw, "UPDATE segment SET body = replace(body, 'some work', 'fine work') WHERE run = 1")
    events = lw("events", run)
    assert (events.code, "fine work" in events.out) == (0, True)
    assert "the hash chain breaks there" in events.err
    for words in (
        ("approve", run),
        ("continue", run, "more"),
        ("pause", run),
        ("resume", run),
        ("stop", run),
        ("fork", run),
        ("show", run),
        ("logs", run),
    ):
        told = lw(*words)
        assert told.code == 1, (words, told)
        assert "the hash chain breaks there" in told.err
    assert lw("events", run).out == events.out, "something was written"
    [row] = lw("ls", "--json").json["runs"]
    assert "hash chain" in row["damaged"]
    other = lw("run", lw.loop(lw.script("y"), max=1), "--json")
    assert other.json["status"] == "completed"
