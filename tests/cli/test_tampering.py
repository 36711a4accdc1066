"""Tamper evidence: every change behind the product's back is found, and none is shown as whole."""

import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from loopwright.operations.backup import check_files
from loopwright.stores.appends import genesis, link
from loopwright.stores.sqlite.log import open_sqlite_log
from tests.cli.conftest import Place, Told

LONG = "a line that is too long to stand in an event\n" * 60
DATABASE = "loopwright.db"
HEADS = "loopwright.db-heads"


@dataclass
class Home:
    """A copy of a data directory with four runs, to be tampered with."""

    lw: Place
    path: Path
    done: str  # completed, with a long text
    gated: str  # waits at a gate
    other: str  # completed
    newest: str  # completed

    def __call__(self, *words: str) -> Told:
        return self.lw(*words, "--data-dir", str(self.path))

    def sql(self, *statements: str) -> None:
        db = sqlite3.connect(self.path / DATABASE)
        for statement in statements:
            db.execute(statement)
        db.commit()
        db.close()

    def failures(self, *words: str) -> list[dict[str, Any]]:
        told = self("doctor", *words, "--json")
        found = [one for one in told.json["checks"] if one["state"] == "fail"]
        assert told.code == (1 if found else 0)
        return found


@pytest.fixture
def home(lw: Place) -> Home:
    """Three completed runs and one that waits, made by the product itself."""
    agent = (
        'jsonl:sh -c \'echo "{\\"type\\":\\"usage\\",\\"input_tokens\\":5,\\"usd\\":0.5}"; echo x\''
    )
    done = lw("run", lw.loop(lw.script(LONG), max=1), "--json").json["run"]
    gated = lw("run", lw.loop(lw.script("x"), max=2, gate={}), "--no-wait", "--json").json["run"]
    other = lw("loop", "go", "--agent", agent, "--max", "1", "--json").json["run"]
    newest = lw("run", lw.loop(lw.script("y", "z"), max=2), "--json").json["run"]
    path = Path(lw.env["LOOPWRIGHT_HOME"])
    return Home(lw, path, done, gated, other, newest)


def rewrite(home: Home, run: int, change: Callable[[bytes], bytes]) -> None:
    """Change the events of a run and all hashes after them, as an attacker who knows how would."""
    db = sqlite3.connect(home.path / DATABASE)
    [(name,)] = db.execute("SELECT name FROM run WHERE id = ?", (run,))
    chain = genesis(name)
    rows = db.execute("SELECT seq, body FROM segment WHERE run = ? ORDER BY seq", (run,)).fetchall()
    for seq, body in rows:
        chain = link(chain, change(body))
        values = (change(body), chain, run, seq)
        db.execute("UPDATE segment SET body = ?, chain = ? WHERE run = ? AND seq = ?", values)
    db.commit()
    db.close()


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0xFF
    file.write_bytes(data)


def statement(*statements: str) -> Callable[[Home], None]:
    return lambda home: home.sql(*statements)


def remove_heads(home: Home) -> None:
    (home.path / HEADS).unlink()


def truncate_heads(home: Home) -> None:
    os.truncate(home.path / HEADS, 128)


def remove_database(home: Home) -> None:
    (home.path / DATABASE).unlink()


def swap_database(home: Home) -> None:
    other = home.path.parent / "elsewhere"
    assert (
        home.lw("run", home.lw.loop(home.lw.script("z"), max=1), "--data-dir", str(other)).code == 0
    )
    shutil.copy(other / DATABASE, home.path / DATABASE)


def older_copy(home: Home) -> None:
    """The database as it was before the newest run."""
    home.sql(
        "DELETE FROM segment WHERE run = 4", "DELETE FROM run WHERE id = 4",
        "DELETE FROM gate WHERE run = 4", "DELETE FROM usage WHERE run = 4",
    )  # fmt: skip


def cut_history(home: Home) -> None:
    """Remove the last events and make the row fit them."""
    home.sql(
        "DELETE FROM segment WHERE run = 1 AND seq = (SELECT max(seq) FROM segment WHERE run = 1)",
        "UPDATE run SET status = 'running', reason = '', finished_at = NULL WHERE id = 1",
    )


class Tampering(NamedTuple):
    """What is done, what the deep look says, and who else notices."""

    do: Callable[[Home], None]
    deep: str
    plain: bool = True  # `doctor` without --deep
    ls: bool = False  # `ls` fails, or says of the run that it is damaged
    show: str = ""  # the run that `show` and `logs` refuse


DELETE_TAIL = (
    "DELETE FROM segment WHERE run = {} AND seq = (SELECT max(seq) FROM segment WHERE run = {})"
)
TAMPERINGS = {
    "tail of the newest run": Tampering(
        statement(DELETE_TAIL.format(4, 4)), "are missing", ls=True, show="newest"
    ),
    "tail of an older run": Tampering(
        statement(DELETE_TAIL.format(1, 1)), "are missing", ls=True, show="done"
    ),
    "tail, and the row made to fit": Tampering(cut_history, "are missing", ls=True, show="done"),
    "all events": Tampering(
        statement("DELETE FROM segment WHERE run = 1"), "missing", ls=True, show="done"
    ),
    "an event edited": Tampering(
        statement("UPDATE segment SET body = replace(body, 'line', 'lime') WHERE run = 1"),
        "hash chain breaks", plain=False, ls=True, show="done",
    ),
    "an event edited, with all hashes": Tampering(
        lambda home: rewrite(home, 1, lambda body: body.replace(b"line", b"lime")),
        "not as they were recorded", ls=True, show="done",
    ),
    "events exchanged": Tampering(
        statement(
            "UPDATE segment SET seq = -seq WHERE run = 1 AND seq IN (1, 2)",
            "UPDATE segment SET seq = 3 + seq WHERE run = 1 AND seq < 0",
        ),
        "hash chain breaks", plain=False, ls=True, show="done",
    ),
    "an event in the middle removed": Tampering(
        statement("DELETE FROM segment WHERE run = 4 AND seq = (SELECT max(seq) FROM segment "
                  "WHERE run = 4 AND seq < (SELECT max(seq) FROM segment WHERE run = 4))"),
        "found where event", plain=False, ls=True, show="newest",
    ),
    "a status edited": Tampering(
        statement("UPDATE run SET status = 'failed' WHERE id = 1"),
        "the row of", ls=True, show="done",
    ),
    "a status edited, with its revision": Tampering(
        statement("UPDATE run SET status = 'failed', revision = revision + 1 WHERE id = 1"),
        "status 'failed'", plain=False,
    ),
    "a waiting run completed": Tampering(
        statement("UPDATE run SET status = 'completed', revision = revision + 1 WHERE id = 2"),
        "its events do not end", plain=False,
    ),
    **{
        f"{column} edited": Tampering(
            statement(f"UPDATE run SET {column} = {value} WHERE id = 1"), "the row of",
            ls=column != "surface", show="done",  # a chat is not in the list of runs
        )
        for column, value in {
            "title": "'other'", "reason": "'approved'", "dialect": "'archon'",
            "workspace": "'/elsewhere'", "started_at": 5, "updated_at": 5, "finished_at": 5,
            "wake_at": 5, "key": "'k'", "session": "'s'", "labels": "'[\"l\"]'",
            "surface": "'chat'",
        }.items()
    },
    "a run removed": Tampering(
        statement("DELETE FROM run WHERE id = 1"), "is missing", ls=True, show="done"
    ),
    "a run removed with all its rows": Tampering(older_copy, "is missing", ls=True, show="newest"),
    "a gate removed": Tampering(
        statement("DELETE FROM gate"), "missing from the inbox", plain=False
    ),
    "a gate edited": Tampering(
        statement("UPDATE gate SET message = 'Go on?'"), "not as it was opened", plain=False
    ),
    "a gate invented": Tampering(
        statement(
            "INSERT INTO gate (gate, run, path, digest, message, opened_at) "
            "VALUES ('gate_x', 1, '', '', 'Accept?', 1)"
        ),
        "not open", plain=False,
    ),
    "figures edited": Tampering(
        statement("UPDATE segment SET figures = replace(figures, '[1,', '[2,')"),
        "has the figures", plain=False,
    ),
    "worktree edited": Tampering(
        statement("UPDATE run SET details = '{\"worktree\": {\"repository\": \"/\", "
                  "\"folder\": \"/\", \"branch\": \"b\", \"base\": \"c\"}}'"),
        "another worktree", plain=False,
    ),
    "usage edited": Tampering(
        statement("UPDATE usage SET usd = 0.01"), "the usage of agent", plain=False
    ),
    "usage removed": Tampering(
        statement("DELETE FROM usage WHERE run = 3"), "the usage of agent", plain=False
    ),
    "an audit row edited": Tampering(
        statement("UPDATE audit SET who = 'nobody' WHERE id = 1"),
        "the audit log was changed at row 1", plain=False,
    ),
    "the last audit row removed": Tampering(
        statement("DELETE FROM audit WHERE id = (SELECT max(id) FROM audit)"), "of the audit log"
    ),
    "the first audit row removed": Tampering(
        statement("DELETE FROM audit WHERE id = 1"), "the audit log was changed", plain=False
    ),
    "content edited": Tampering(
        statement("UPDATE blob SET body = replace(body, 'line', 'lime')"),
        "is not what its name says", plain=False, show="done",
    ),
    "content removed": Tampering(
        statement("DELETE FROM blob"), "not stored", plain=False, show="done"
    ),
    "a byte of the head file": Tampering(
        lambda home: flip(home.path / HEADS, 64 * 3 + 40), "were changed"
    ),
    "the head file shortened": Tampering(
        truncate_heads, "records were removed from the end", ls=True, show="done"
    ),
    "the head file removed": Tampering(remove_heads, "is missing", ls=True, show="done"),
    "the database removed": Tampering(
        remove_database, "the database is missing", ls=True, show="done"
    ),
    "the database of another directory": Tampering(
        swap_database, "not the database", ls=True, show="done"
    ),
}  # fmt: skip


def is_told(told: Told) -> bool:
    """Whether a list fails, or says that a run of it is damaged."""
    return told.code == 1 or any(run["damaged"] for run in told.json["runs"])


@pytest.mark.item("bnd-tamper-1", "bnd-tamper-2")
@pytest.mark.parametrize("case", TAMPERINGS.values(), ids=TAMPERINGS.keys())
def test_every_tampering_is_found(home: Home, case: Tampering) -> None:
    """`doctor --deep` names it in a line with what to do, and reads never show it as whole."""
    assert home.failures("--deep") == []
    assert not is_told(home("ls", "--json"))
    case.do(home)
    found = home.failures("--deep")
    assert any(case.deep in one["why"] for one in found), found
    assert all(one["fix"] for one in found)
    assert bool(home.failures()) == case.plain
    assert is_told(home("ls", "--json")) == case.ls
    if case.show:
        run = getattr(home, case.show)
        for words in (("show", run), ("show", run, "--json"), ("logs", run)):
            told = home(*words)
            assert (told.code, "defect" in told.err) == (1, False), (words, told)


@pytest.mark.item("bnd-tamper-3")
@pytest.mark.parametrize("run", ["newest", "gated"])
def test_a_shorter_history_is_never_shown(home: Home, run: str) -> None:
    """When the last events are gone, nothing shows the rest as if it were all, or adds to it."""
    number = {"gated": 2, "newest": 4}[run]
    home.sql(DELETE_TAIL.format(number, number))
    for words in (["events"], ["show"], ["logs"], ["stop"], ["fork"], ["resume"], ["diff"]):
        told = home(*words, getattr(home, run))
        assert told.code == 1, (words, told)
        assert "are missing" in told.err, (words, told)
    assert home("show", home.done).code == 0


@pytest.mark.item("bnd-tamper-4")
def test_a_lost_write_ahead_log_is_noticed(home: Home) -> None:
    """Commits that are in the head file and not in the database are named; the rest is readable."""
    db = sqlite3.connect(home.path / DATABASE)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = (home.path / DATABASE).read_bytes()
    late = home("run", home.lw.loop(home.lw.script("late"), max=1), "--json").json["run"]
    db.close()
    (home.path / DATABASE).write_bytes(before)
    for end in ("-wal", "-shm"):
        (home.path / f"{DATABASE}{end}").unlink(missing_ok=True)
    told = home("ls", "--json")
    assert (told.code, told.json["total"]["missing"]) == (1, [late])
    assert late in told.err
    assert f"{late} is missing" in home("show", late).err
    for reference in (late[-10:], "last"):
        assert f"{late} is missing" in home("show", reference).err
    assert home("show", home.done).code == 0
    assert any(late in one["why"] for one in home.failures())


@pytest.mark.item("bnd-tamper-5")
def test_a_restored_backup_is_accepted_on_purpose(home: Home) -> None:
    """A backup over newer data is refused until somebody says that it is meant; audited."""
    copy = home.path.parent / "copy.db"
    assert home("backup", str(copy)).code == 0
    late = home("run", home.lw.loop(home.lw.script("late"), max=1), "--json").json["run"]
    shutil.move(copy, home.path / DATABASE)
    for end in ("-wal", "-shm"):
        (home.path / f"{DATABASE}{end}").unlink(missing_ok=True)
    told = home("ls")
    assert (told.code, "--rebuild-heads" in told.err) == (1, True)
    assert home("doctor", "--rebuild-heads").code == 0
    assert home.failures("--deep") == []
    assert late not in home("ls").out
    db = sqlite3.connect(home.path / DATABASE)
    assert ("heads.rebuilt",) in db.execute("SELECT action FROM audit").fetchall()
    db.close()


@pytest.mark.item("bnd-tamper-5")
def test_a_backup_alone_is_a_data_directory(home: Home) -> None:
    """A backup in an empty data directory opens and gets a head file of its own."""
    new = home.path.parent / "new"
    new.mkdir()
    assert home("backup", str(new / DATABASE)).code == 0
    other = Home(home.lw, new, home.done, home.gated, home.other, home.newest)
    assert other("show", home.done).code == 0
    assert other.failures("--deep") == []
    other.sql(DELETE_TAIL.format(1, 1))
    assert other("show", home.done).code == 1


@pytest.mark.item("bnd-tamper-6")
def test_an_exported_list_finds_what_was_rewritten_everywhere(home: Home) -> None:
    """Whoever rewrites the database and the head file is found out by a copy kept elsewhere."""
    file = home.path.parent / "monday"
    assert home("doctor", "--export-heads", str(file)).code == 0
    assert home("doctor", "--export-heads", str(file)).code == 1
    assert home("run", home.lw.loop(home.lw.script("late"), max=1)).code == 0
    assert home.failures("--deep", "--heads", str(file)) == []
    cut_history(home)
    remove_heads(home)
    home.sql("DELETE FROM meta WHERE key LIKE 'heads%'")
    assert "are missing" not in home("show", home.done).err
    found = home.failures("--heads", str(file))
    assert any("are missing" in one["why"] and home.done in one["why"] for one in found)


@pytest.mark.item("bnd-tamper-2")
def test_pruned_runs_are_not_missing(home: Home) -> None:
    """A run that was deleted on purpose is no damage."""
    assert home("prune", "--older", "1ms").code == 0
    assert home("ls").code == 0
    assert home.failures("--deep") == []


@pytest.mark.item("bnd-tamper-7")
@pytest.mark.parametrize("seed", range(4))
def test_random_damage_is_never_shown_as_data(home: Home, seed: int) -> None:
    """Bytes that are changed or cut off anywhere: every read gives the original or an error."""
    chance = random.Random(seed)
    runs = [home.done, home.gated, home.other, home.newest]
    commands = [["events", run, "--json"] for run in runs] + [
        ["show", run, "--json"] for run in runs
    ]
    before = {tuple(words): home(*words).json for words in commands}
    files = {one: (home.path / one).read_bytes() for one in (DATABASE, HEADS)}
    for number in range(12):
        for name, data in files.items():
            (home.path / name).write_bytes(data)
        for end in ("-wal", "-shm"):
            (home.path / f"{DATABASE}{end}").unlink(missing_ok=True)
        name = chance.choice([DATABASE, DATABASE, HEADS])
        damaged = bytearray(files[name])
        if chance.random() < 0.3:
            del damaged[chance.randrange(len(damaged)) :]
        else:
            for _ in range(chance.choice([1, 8, 200])):
                damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        (home.path / name).write_bytes(damaged)
        for words in commands:
            told = home(*words)
            if told.code == 0 and "warning" not in told.err:
                assert told.json == before[tuple(words)], (seed, number, name, words)
            else:
                assert "Traceback" not in told.err


# -- files beside the database ---------------------------------------------------------------------


@pytest.fixture
def changing(lw: Place, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A run of two iterations that change files, with snapshots, and a file given to it."""
    monkeypatch.setenv("LOOPWRIGHT_SNAPSHOTS", "on")
    folder = lw.folder / "project"
    folder.mkdir()
    (folder / "kept.txt").write_text("kept\n" * 50)
    agent = lw.write("agent.sh", "#!/bin/sh\necho $$ >> made.txt\necho worked\n")
    agent.chmod(0o755)
    told = lw(
        *("loop", "go", "--agent", f"command:{agent}", "--max", "2", "--json"),
        *("--workspace", str(folder)),
    )
    run = told.json["run"]
    given = lw.write("given.txt", "given\n" * 100)
    assert lw("artifact", "put", run, str(given)).code == 0
    return Home(lw, Path(lw.env["LOOPWRIGHT_HOME"]), run, run, run, run)


def objects(home: Home) -> list[Path]:
    """Every object of the snapshots: blobs, trees and commits."""
    return sorted((home.path / "snapshots").glob("*.git/objects/??/*"))


def problems_of(home: Home) -> list[str]:
    """What `doctor --deep` says of files beside the database."""
    with closing(open_sqlite_log(home.path / DATABASE, alive=lambda _: True)) as log:
        return list(check_files(log, home.path))


def reads_of(home: Home) -> list[Told]:
    """What shows files of snapshots."""
    commands = (["diff", home.done], ["diff", home.done, "1"], ["diff", home.done, "--json"])
    return [home(*words) for words in commands]


@pytest.mark.item("bnd-tamper-9")
def test_each_missing_or_edited_object_of_a_snapshot_is_found(changing: Home) -> None:
    """`doctor --deep` names it; `diff` shows the original or fails, and never shows nothing."""
    assert changing.failures("--deep") == []
    before = [(told.code, told.out) for told in reads_of(changing)]
    assert all(out for _, out in before), before
    for number, file in enumerate(objects(changing)):
        data = file.read_bytes()
        if not number:
            file.unlink()
            assert any("snapshots/" in one["why"] for one in changing.failures("--deep"))
            file.write_bytes(data)
        for damaged in (None, data[: len(data) // 2], bytes([data[0], data[1] ^ 1, *data[2:]])):
            file.chmod(0o600)
            file.unlink()
            if damaged is not None:
                file.write_bytes(damaged)
            assert problems_of(changing), (file, damaged)
            for told, (code, out) in zip(reads_of(changing), before, strict=True):
                assert (told.code, told.out) == (code, out) or told.code in (1, 2), file
            file.unlink(missing_ok=True)
            file.write_bytes(data)
    assert problems_of(changing) == []


@pytest.mark.item("bnd-tamper-9")
def test_snapshots_that_are_gone_are_not_an_empty_diff(changing: Home) -> None:
    """Without its reference or its repository, a run has an error in the place of its diff."""
    (reference,) = (changing.path / "snapshots").glob(f"*.git/refs/loopwright/{changing.done}")
    reference.unlink()
    assert any("its snapshots are missing" in one["why"] for one in changing.failures("--deep"))
    assert all(told.code == 2 for told in reads_of(changing))
    shutil.rmtree(changing.path / "snapshots")
    assert all(told.code == 2 for told in reads_of(changing))


@pytest.mark.item("bnd-tamper-9")
@pytest.mark.parametrize("how", ["removed", "edited", "emptied"])
def test_a_changed_artifact_file_is_found_and_not_returned(changing: Home, how: str) -> None:
    """Its bytes are compared with its name by `doctor --deep` and by whatever reads it."""
    (file,) = (one for one in (changing.path / "uploads").rglob("*") if one.is_file())
    name = next(
        one["id"]
        for one in changing("artifact", "ls", changing.done, "--json").json["artifacts"]
        if one["name"] == "given.txt"
    )
    target = changing.lw.folder / "copy.txt"
    words = ("artifact", "get", changing.done, name, "-o", str(target))
    assert changing(*words).code == 0
    target.unlink()
    if how == "removed":
        file.unlink()
    else:
        file.write_bytes(b"" if how == "emptied" else file.read_bytes().replace(b"g", b"h", 1))
    assert any("an artifact: its file" in one for one in problems_of(changing))
    told = changing(*words)
    assert (told.code, target.exists()) == (1, False)
    assert "loopwright doctor" in told.err
