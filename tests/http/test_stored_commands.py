"""`stored` and `run stored:NAME`: the same words here and at a server elsewhere."""

import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loopwright.cli import definitions as commands
from loopwright.client import client as client_module
from loopwright.operations.use_cases.operation import PageRequest
from tests.cli.conftest import Place, Told, lw
from tests.cli.test_definitions import SELF_JUDGED
from tests.http.served import Served, served
from tests.http.test_named_files import CASES
from tests.person import ME

__all__ = ["lw"]

BASE = "/api/v1/definitions"
Do = Callable[..., Told]
ScriptedAnswer = tuple[Do, Served]


@pytest.fixture(params=["here", "afar"])
def say(
    request: pytest.FixtureRequest, lw: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ScriptedAnswer]:
    """The command line and a server: of the same home, or of another that is asked."""
    remote = request.param == "afar"
    home = "elsewhere" if remote else str(lw.folder.parent / "home")
    with served(tmp_path, home=home) as server:
        monkeypatch.setenv("LOOPWRIGHT_TOKEN", server.token)
        where = ("--server", f"http://127.0.0.1:{server.port}") if remote else ()
        yield (lambda *words: lw(*words, *where)), server


def native(agent: str, **more: Any) -> str:
    value = {"name": "work", "agent": agent, "goal": "Do it.", "repeat": {"max": 1}}
    return json.dumps({**value, **more})


def test_stored_from_first_to_last(say: ScriptedAnswer, lw: Place) -> None:
    """Stored, listed, shown, changed and taken away; the record says what was done and by whom."""
    do, server = say
    assert "nothing is stored" in do("stored", "ls").err
    assert do("stored", "ls", "--json").json == {"definitions": []}
    text = native("command:/bin/cat", description="gr\u00fcn")
    lw.write("cat.json", text)
    put = do("stored", "put", "triage", "cat.json")
    assert (put.code, put.out) == (0, "")
    assert "triage is stored; `loopwright run stored:triage" in put.err
    told = server("GET", f"{BASE}/triage").json
    assert (told["text"], told["version"], told["programs"]) == (text, 1, ["/bin/cat"])
    shown = do("stored", "show", "triage")
    for part in (told["digest"], told["by"], told["changed_at"], "native", "ready", "/bin/cat"):
        assert part in shown.out, part
    assert do("stored", "show", "triage", "--json").json == told
    assert do("stored", "show", "triage", "--source").out == text
    listed = do("stored", "ls", "--json").json["definitions"]
    assert listed == [{**told, "text": None}]
    assert "triage" in do("stored", "ls").out
    lw.write("cat.json", native("model:test/x"))
    changed = do("stored", "put", "triage", "cat.json", "--replace", "--json").json
    assert (changed["version"], changed["programs"], changed["by"]) == (2, [], told["by"])
    assert do("stored", "put", "other", "cat.json", "--replace").code == 0
    assert do("stored", "rm", "triage").code == 0
    assert do("stored", "rm", "other", "--json").json == {"name": "other", "removed": True}
    for words in (["show", "triage"], ["rm", "triage"], ["approve", "triage", "0"]):
        gone = do("stored", *words)
        assert (gone.code, "no stored definition 'triage'" in gone.err) == (2, True)
        assert "loopwright stored put NAME FILE" in gone.err
    rows = server("GET", "/api/v1/audit?subject=triage").json["rows"]
    assert [(row["action"], row["who"]) for row in rows] == [
        ("definition.removed", told["by"]),
        ("definition.saved", told["by"]),
        ("definition.saved", told["by"]),
    ]


def test_what_is_no_name(say: ScriptedAnswer, lw: Place) -> None:
    """It is told as such, whatever it would mean in an address."""
    do, _ = say
    lw.write("cat.json", native("command:/bin/cat"))
    for name in ("", ".", "..", "a/b", "../a", "A", "a b", "a?b", "a#b", "%2e"):
        told = do("stored", "put", name, "cat.json")
        assert told.code == 2, name
        assert f"error: {name!a} cannot be the name of a definition" in told.err
        for words in (["stored", "show", name], ["stored", "rm", name], ["run", f"stored:{name}"]):
            gone = do(*words)
            assert gone.code == 2, name
            assert f"no stored definition {name!a}" in gone.err or told.err == gone.err


def test_who_stores_here_is_who_is_signed_in(lw: Place) -> None:
    """Without a server it is the person at this machine."""
    lw.write("x.json", native("model:test/x"))
    assert lw("stored", "put", "x", "x.json", "--json").json["by"] == ME


def test_what_is_stored_is_not_overwritten(
    say: ScriptedAnswer, lw: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not without --replace, and with it not when somebody else was quicker."""
    do, server = say
    lw.write("mine.json", native("model:test/mine"))
    lw.write("theirs.json", native("model:test/theirs"))
    assert do("stored", "put", "x", "theirs.json").code == 0
    again = do("stored", "put", "x", "mine.json")
    assert (again.code, "x is stored already" in again.err) == (8, True)
    assert "--replace" in again.err
    problem = do("stored", "put", "x", "mine.json", "--json").json
    assert problem["type"] == "urn:loopwright:problem:name-taken"

    read = commands._version
    quicker = native("model:test/quicker")

    def overtaken(shelf: Any, name: str) -> int:
        seen = read(shelf, name)
        condition = {"If-Match": "*"} if seen else {}
        server("PUT", f"{BASE}/{name}", {"text": quicker}, headers=condition)
        return seen

    monkeypatch.setattr(commands, "_version", overtaken)
    late = do("stored", "put", "x", "mine.json", "--replace")
    assert (late.code, "x was changed meanwhile" in late.err) == (8, True)
    assert "loopwright stored show x" in late.err
    new = do("stored", "put", "new", "mine.json")
    assert (new.code, "new is stored already" in new.err) == (8, True)
    for name in ("x", "new"):
        assert server("GET", f"{BASE}/{name}").json["text"] == quicker


def test_what_is_wrong_is_reported_with_the_file(
    say: ScriptedAnswer, lw: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every problem, with the name of the file as it was given; nothing is stored."""
    do, server = say
    (lw.folder / "kept").mkdir()
    lw.write("kept/bad.yaml", "name: w\nagnt: x\nrepeat:\n  max: 0\n  untill: {signal: x}\n")
    bad = do("stored", "put", "w", "kept/bad.yaml")
    assert bad.code == 2
    assert [line.split(": ")[:2] for line in bad.err.splitlines()] == [
        line.split(": ")[:2] for line in lw("validate", "kept/bad.yaml").err.splitlines()
    ]
    assert bad.err.count("kept/bad.yaml:") > 2
    told = do("stored", "put", "w", "kept/bad.yaml", "--json").json
    assert told["detail"] == "kept/bad.yaml is not a valid definition"
    assert {one["file"] for one in told["errors"]} == {"kept/bad.yaml"}
    (lw.folder / "latin.yaml").write_bytes(b"name: gr\xfcn\n")
    assert "latin.yaml:1:9: encoding" in do("stored", "put", "w", "latin.yaml").err
    assert "none.yaml:1:1: cannot-read" in do("stored", "put", "w", "none.yaml").err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"name: [")))
    assert "(stdin):1:" in do("stored", "put", "w", "-").err
    lw.write("good.json", native("model:test/x"))
    assert "cannot be the name" in do("stored", "put", "Upper", "good.json").err
    assert "unknown dialect 'nativ'" in do("stored", "put", "w", "good.json", "--dialect=nativ").err
    assert server("GET", BASE).json["definitions"] == []


@pytest.mark.parametrize("dialect", CASES)
def test_files_are_not_stored(say: ScriptedAnswer, lw: Place, dialect: str) -> None:
    """A definition that names other files is refused with what to do, though they lie beside it."""
    do, server = say
    case = CASES[dialect]
    for name, text in {case.main: case.text, **case.files}.items():
        file = lw.folder / name.removeprefix("~/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    refused = do("stored", "put", "x", case.main)
    assert refused.code == 2
    first, *rest = refused.err.splitlines()
    assert first.startswith(f"{case.main}:1:1: names-files: it names other files")
    assert "`loopwright run FILE --server URL` sends its files" in first
    assert all(line.startswith(f"{case.main}:") for line in rest)
    assert rest
    assert server("GET", BASE).json["definitions"] == []


def test_from_stdin_and_with_a_warning(
    say: ScriptedAnswer, lw: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A definition may be piped in; warnings are told and stop nothing."""
    do, server = say
    piped = io.TextIOWrapper(io.BytesIO(SELF_JUDGED.encode()))
    monkeypatch.setattr("sys.stdin", piped)
    put = do("stored", "put", "x", "-", "--dialect", "zenflow")
    assert put.code == 0
    assert "(stdin):" in put.err
    assert "warning: self-judging" in put.err
    assert server("GET", f"{BASE}/x").json["text"] == SELF_JUDGED


# -- running ---------------------------------------------------------------------------------------


def test_a_stored_definition_is_run(say: ScriptedAnswer, lw: Place) -> None:
    """By its name, with the options of every run, and in a dry run."""
    do, server = say
    lw.write("work.json", native(server.script("said", "said")))
    do("stored", "put", "mine", "work.json")
    assert do("run", "stored:mine").out == "said\n"
    ended = do("run", "stored:mine", "Other words", "--name", "called", "--max", "2", "--json").json
    assert (ended["status"], ended["output"]) == ("completed", "said")
    row = server("GET", f"/api/v1/runs/{ended['run']}/snapshot").json
    assert (row["name"], row["goal"]) == ("called", "Other words")
    dry = do("run", "stored:mine", "--dry-run", "--json")
    assert (dry.code, dry.json["dialect"]) == (0, "native")
    held = do("run", "stored:mine", "--promoted").err
    assert "mine was not promoted as it is now" in held
    assert "`loopwright promote FILE`" in held  # `promote mine` would look for a file
    assert len(server("GET", "/api/v1/runs").json["runs"]) == 2
    missing = do("run", "stored:other")
    assert (missing.code, "no stored definition 'other'" in missing.err) == (2, True)
    assert do("run", "stored:mine", "--dialect", "native").code == 2
    assert do("run", "stored:mine", "--json", "--jsonl").code == 2


def test_warnings_of_a_stored_definition(say: ScriptedAnswer, lw: Place) -> None:
    """They are told before it runs, wherever it is stored."""
    do, _ = say
    lw.write("circle.yaml", SELF_JUDGED)
    do("stored", "put", "x", "circle.yaml")
    assert "warning: self-judging" in do("run", "stored:x", "--dry-run").err


def test_a_file_of_that_name_is_a_file(say: ScriptedAnswer, lw: Place) -> None:
    """What is there is run, whatever is stored."""
    do, server = say
    lw.write("stored:x", native(server.script("of the file", name="file.yaml")))
    assert do("run", "stored:x").out == "of the file\n"
    lw.write("other.json", native(server.script("of the store", name="store.yaml")))
    do("stored", "put", "x", "other.json")
    assert do("run", "stored:x").out == "of the file\n"
    (lw.folder / "stored:x").unlink()
    assert do("run", "stored:x").out == "of the store\n"


@pytest.mark.item("A30")
def test_what_was_held_back_is_approved(say: ScriptedAnswer) -> None:
    """A definition from elsewhere is not run nor rehearsed before exactly its text is approved."""
    do, server = say
    text = native("command:/bin/echo said")
    made = server("POST", f"{BASE}/import", {"name": "theirs", "text": text}).json
    digest = made["digest"]
    approving = f"loopwright stored approve theirs {digest}"
    assert "needs approval" in do("stored", "ls").out
    assert approving in do("stored", "show", "theirs").out
    for words in (["run", "stored:theirs"], ["run", "stored:theirs", "--dry-run"]):
        held = do(*words)
        assert held.code == 6
        assert approving in held.err
    wrong = do("stored", "approve", "theirs", "0" * 32)
    assert (wrong.code, digest in wrong.err) == (8, True)
    assert do("stored", "approve", "theirs", digest).code == 0
    assert do("stored", "approve", "theirs", digest, "--json").json["enabled"] is True
    assert do("run", "stored:theirs").out == "said\n"
    rows = server("GET", "/api/v1/audit?subject=theirs").json["rows"]
    assert [row["action"] for row in rows] == ["definition.approved", "definition.imported"]


def test_only_who_may_changes_what_is_stored(
    lw: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a server a viewer looks and an editor stores, but only an admin approves."""
    lw.write("x.json", native("model:test/x"))
    with served(tmp_path, home="elsewhere") as server:
        where = ("--server", f"http://127.0.0.1:{server.port}")
        monkeypatch.setenv("LOOPWRIGHT_TOKEN", server.made("viewer"))
        assert lw("stored", "put", "x", "x.json", *where).code == 6
        assert lw("stored", "ls", *where).code == 0
        monkeypatch.setenv("LOOPWRIGHT_TOKEN", server.made("editor"))
        made = lw("stored", "put", "x", "x.json", "--json", *where).json
        assert lw("stored", "approve", "x", made["digest"], *where).code == 6


def test_a_long_list_comes_page_by_page(
    lw: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a server keeps is listed, however many pages that takes."""
    with served(tmp_path, home="elsewhere") as server:
        monkeypatch.setenv("LOOPWRIGHT_TOKEN", server.token)
        for name in ("a", "b", "c"):
            server("PUT", f"{BASE}/{name}", {"text": native("model:test/x")})
        monkeypatch.setattr(client_module, "PageRequest", partial(PageRequest, limit=1))
        found = lw("stored", "ls", "--json", "--server", f"http://127.0.0.1:{server.port}").json
    assert [one["name"] for one in found["definitions"]] == ["a", "b", "c"]
