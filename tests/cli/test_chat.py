"""`chat`: messages, files, commands, and a chat that outlives its process."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from loopwright.operations.messages import expand, fenced
from loopwright.testing.wires import ScriptedCall, ScriptedTurn
from tests.cli.conftest import MODEL, Place, Serve, Told


def chat(lw: Place, *lines: str, args: tuple[str, ...] = ("--agent", MODEL)) -> Told:
    return lw.real("chat", *args, stdin="".join(f"{line}\n" for line in lines).encode())


def users(server: Any, number: int = -1) -> list[str]:
    messages = server.requests[number].body["messages"]
    return [m["content"] for m in messages if m["role"] == "user"]


def only_run(lw: Place) -> str:
    [row] = lw("ls", "--chats", "--json").json["runs"]
    run: str = row["run"]
    return run


@pytest.mark.item("aldo-22", "aldo-66")
def test_a_chat_is_a_run(lw: Place, serve: Serve) -> None:
    """Each message is a turn of one durable run, tools work, and the model knows what was said."""
    lw.write("notes.txt", "the code is 7\n")
    server = serve(
        ScriptedTurn(text="Hello."),
        ScriptedTurn(
            text="I look.", calls=(ScriptedCall(name="fs_read", args={"path": "notes.txt"}),)
        ),
        ScriptedTurn(text="It is 7."),
    )
    told = chat(lw, "Hi", "What is the code?")
    assert told.code == 0, told.err
    assert told.out == "Hello.\nI look.\nIt is 7.\n"
    assert "[fs.read" in told.err
    assert users(server) == ["Hi", "What is the code?"]
    run = only_run(lw)
    assert lw("show", run, "--json").json["status"] == "waiting"
    assert f"loopwright chat --resume {run}" in told.err


@pytest.mark.item("aldo-65", "aldo-66")
def test_it_is_resumed_by_its_id(lw: Place, serve: Serve) -> None:
    """The model gets the earlier turns, not only the screen; ending it is for good."""
    serve(ScriptedTurn(text="Hello."))
    chat(lw, "My name is Ann")
    run = only_run(lw)
    server = serve(ScriptedTurn(text="Ann."))
    told = chat(lw, "Who am I?", "/end", args=("--resume", run))
    assert (told.code, told.out) == (0, "Hello.\nAnn.\n")
    assert users(server) == ["My name is Ann", "Who am I?"]
    assert lw("show", run, "--json").json["status"] == "completed"
    again = lw("chat", "--resume", run)
    assert again.code == 8
    assert "has ended" in again.err
    assert lw("doctor", "--deep", "--json").json["ok"] is True


def test_a_chat_that_was_left_is_no_work_for_others(lw: Place, serve: Serve) -> None:
    """It waits for its person: neither the inbox nor `/loops` lists it, and a start in its folder
    does not warn about it.
    """
    serve(ScriptedTurn(text="Hello."))
    chat(lw, "Hi")
    assert only_run(lw)
    assert lw("inbox", "--json").json == {"gates": []}
    assert "no loops yet" in lw.real("repl", stdin=b"/loops\n").out
    told = lw("run", lw.loop(lw.script("x"), max=1))
    assert (told.code, "in this folder" in told.err) == (0, False)


@pytest.mark.item("aldo-65")
@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "nope", "run_\u202e", "x;id"])
def test_ids_that_are_none(lw: Place, serve: Serve, name: str) -> None:
    """They are told as unknown, and nothing is asked or opened."""
    server = serve()
    told = lw("chat", "--resume", name)
    assert told.code == 2
    assert "no run" in told.err
    assert server.requests == []


@pytest.mark.item("aldo-65")
def test_a_chat_whose_record_was_changed(lw: Place, serve: Serve) -> None:
    """It is said that the record is damaged; the model is not asked."""
    serve(ScriptedTurn(text="Hello."))
    chat(lw, "Hi")
    run = only_run(lw)
    database = Path(lw.env["LOOPWRIGHT_HOME"]) / "loopwright.db"
    with sqlite3.connect(database) as store:
        store.execute("UPDATE segment SET body = X'7B7D'")
    store.close()
    server = serve()
    told = lw("chat", "--resume", run)
    assert told.code != 0
    assert "Traceback" not in told.err
    assert run in told.err
    assert server.requests == []


def test_another_run_is_no_chat(lw: Place, serve: Serve) -> None:
    """A loop is resumed as a loop."""
    run = lw("run", lw.loop(lw.script("a", "b", "c")), "--json").json["run"]
    told = lw("chat", "--resume", run)
    assert told.code == 8
    assert "is not a chat" in told.err


@pytest.mark.item("aldo-64")
def test_commands_never_reach_the_model(lw: Place, serve: Serve) -> None:
    """Known ones do what they say, unknown ones are told with the nearest; the model sees none."""
    server = serve(ScriptedTurn(text="Hello."))
    told = chat(lw, "/export", "/cost", "/help", "/exprot", "/nothing like it", "Hi", "/cost")
    assert told.code == 0, told.err
    assert "did you mean /export?" in told.err
    assert "no command /nothing: /help lists the commands" in told.err
    assert "/quit" in told.out
    assert "the conversation is empty" in told.err
    assert [users(server, number) for number in range(len(server.requests))] == [["Hi"]]


@pytest.mark.item("aldo-64", "I-1", "I-2")
def test_a_transcript_in_markdown(lw: Place, serve: Serve) -> None:
    """Everything that was said, in fences: no picture is loaded, no link is one, no escape left."""
    bad = "![x](https://evil/?d=1) <img src=x>\x1b]0;t\x07\n```\nfence\n```"
    serve(ScriptedTurn(text=bad))
    told = chat(lw, "Show me", "/export talk.md", "/export talk.md", "/export")
    assert "talk.md is not written: file exists" in told.err
    text = (lw.folder / "talk.md").read_text()
    assert text in told.out
    assert "\x1b" not in text
    assert text.startswith(f"# Chat {only_run(lw)}\n\n## user\n\n```\nShow me\n```\n")
    assert "## assistant\n\n````\n![x](https://evil/?d=1) <img src=x>" in text
    assert text.rstrip().endswith("```\n````")


@pytest.mark.item("aldo-61")
def test_files_that_a_message_names(lw: Place, serve: Serve) -> None:
    """Texts of the workspace are shown to the model; each other one is told and left out."""
    lw.write("notes.txt", "the code is 7")
    lw.write("long.txt", "x" * 70_000)
    (lw.folder / "picture.bin").write_bytes(b"\x89PNG\0\xff")
    (lw.folder / "link").symlink_to("/etc/passwd")
    server = serve(ScriptedTurn(text="ok"))
    names = ["@notes.txt,", "@../secret", "@/etc/passwd", "@link", "@long.txt", "@picture.bin"]
    told = chat(lw, f"Look at {' '.join(names)} @none and mail me@home.org")
    assert told.code == 0, told.err
    [said] = users(server)
    assert "### notes.txt\n\n```\nthe code is 7\n```" in said
    assert said.count("### ") == 1
    assert "root:" not in said
    skipped = [line for line in told.err.splitlines() if "is not shown" in line]
    assert [line.split()[0] for line in skipped] == [
        "@../secret",
        "@/etc/passwd",
        "@link",
        "@long.txt",
        "@picture.bin",
        "@none",
    ]


def test_a_message_shows_so_many_files(tmp_path: Path) -> None:
    """One more is told of and left out; one that is named twice is shown once."""
    for number in range(22):
        (tmp_path / f"f{number}").write_text("x")
    names = " ".join(f"@f{number}" for number in range(22))
    found = expand(f"{names} @f0", tmp_path)
    assert found.text.count("### ") == 20
    assert [line.split()[0] for line in found.skipped] == ["@f20", "@f21"]
    assert fenced("````") == "`````\n````\n`````"


def test_a_call_that_waits_for_a_person(lw: Place, serve: Serve) -> None:
    """Away from a terminal the chat is left with the command that answers, and goes on later."""
    lw.write("calc.txt", "2 + 2 = 5\n")
    edit = ScriptedCall(name="fs_edit", args={"path": "calc.txt", "old": "5", "new": "4"})
    serve(ScriptedTurn(text="I mend.", calls=(edit,)), ScriptedTurn(text="Mended."))
    file = lw.write(
        "agent.yaml",
        "name: c\nagents: {c: {use: 'model:local/tiny', system: Be kind., permission: default}}\n"
        "steps: [{id: a, agent: c, prompt: x}]\n",
    )
    told = chat(lw, "Mend calc.txt", args=(str(file),))
    assert (told.code, told.out) == (5, "I mend.\n")
    assert "loopwright approve gate_" in told.err
    run = only_run(lw)
    assert lw("approve", run, "--json").code in (0, 5)
    assert "= 4" in (lw.folder / "calc.txt").read_text()
    assert chat(lw, args=("--resume", run)).out == "I mend.\nMended.\n"


def test_what_is_no_chat_model(lw: Place) -> None:
    """A program has no turns; nothing is created."""
    told = chat(lw, "Hi", args=("--agent", "command:echo x"))
    assert told.code == 2
    assert "`chat` needs a model (`--agent model:openai/gpt-5`); `command` only runs" in told.err
    assert lw("ls", "--chats", "--json").json["runs"] == []


@pytest.mark.item("rec-40")
@pytest.mark.parametrize(
    ("args", "words"),
    [
        pytest.param(("--agent", "claude"), "`claude` only runs whole tasks", id="a-cli"),
        pytest.param((), "`chat` needs a model: add `--agent model:openai/gpt-5`", id="none"),
        pytest.param(("--agent", "model:openai/gpt-5"), "OPENAI_API_KEY", id="no-key"),
        pytest.param(("--agent", "model:nobody/x"), "nobody", id="unknown-provider"),
        pytest.param(("nope.yaml",), "nope.yaml", id="no-file"),
    ],
)
def test_the_agent_is_checked_before_the_first_prompt(
    lw: Place, args: tuple[str, ...], words: str
) -> None:
    """Nothing has to be typed to see that a chat cannot begin."""
    told = chat(lw, args=args)
    assert told.code == 2
    assert words in told.err


@pytest.mark.item("W23", "W24")
def test_at_a_terminal_every_question_is_answered_by_itself(lw: Place, serve: Serve) -> None:
    """Two calls of one turn wait: each is shown and decided alone, and then the person speaks."""
    lw.write("calc.txt", "2 + 2 = 5\n")
    lw.write("notes.txt", "keep 5\n")
    edits = tuple(
        ScriptedCall(name="fs_edit", args={"path": name, "old": "5", "new": "4"})
        for name in ("calc.txt", "notes.txt")
    )
    server = serve(
        ScriptedTurn(text="I mend.", calls=edits),
        ScriptedTurn(text="Only one."),
        ScriptedTurn(text="Both."),
    )
    file = lw.write(
        "agent.yaml",
        "name: c\nagents: {c: {use: 'model:local/tiny', permission: default}}\n"
        "steps: [{id: a, agent: c, prompt: x}]\n",
    )
    with lw.terminal("chat", str(file)) as terminal:
        terminal.wait_for("you>")
        terminal.type("Mend them\r")
        terminal.wait_for("eave it:")
        asked = terminal.seen.partition("Run fs.")[2]
        assert ("calc.txt" in asked, "notes.txt" in asked) == (True, False)
        terminal.type("a\r")
        terminal.wait_for("notes.txt")
        terminal.wait_for("eave it:", times=2)
        terminal.type("r it is right as it is\r")
        terminal.wait_for("Only one.")
        terminal.type("What did you mend?\r")
        terminal.wait_for("Both.")
        terminal.type("/quit\r")
        assert terminal.leave() == 0
    assert (lw.folder / "calc.txt").read_text() == "2 + 2 = 4\n"
    assert (lw.folder / "notes.txt").read_text() == "keep 5\n"
    told = str(server.requests[1].body["messages"])
    assert "it is right as it is" in told
    # What stands on the screen is what the model has: after a new start as well.
    run = only_run(lw)
    later = serve(ScriptedTurn(text="I know."))
    with lw.terminal("chat", "--resume", run) as terminal:
        terminal.wait_for("Both.")
        terminal.type("And now?\r")
        terminal.wait_for("I know.")
        terminal.type("/quit\r")
        assert terminal.leave() == 0
    assert users(later) == ["Mend them", "What did you mend?", "And now?"]
    assert "it is right as it is" in str(later.requests[0].body["messages"])
