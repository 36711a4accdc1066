"""What holds for every command: help, JSON, colour, suggestions, no trace of a defect."""

import json
import resource
from collections.abc import Sequence

import pytest

from loopwright.cli.main import COMMANDS, FIRST
from tests.cli.conftest import Place
from tests.cli.terminal import PATIENCE_S

LATER = (
    "fork",
    "diff",
    "bisect",
    "replay",
    "worker",
    "tui",
)


def prepared(lw: Place) -> dict[str, str]:
    """A finished run and one that waits, and files to speak about."""
    done = lw("run", lw.loop(lw.script("DONE"), until={"signal": "DONE"}), "--json").json["run"]
    waiting = lw("run", lw.loop(lw.script("a", "b", "c"), until={"person": True}), "--json").json
    return {"done": done, "waiting": waiting["run"], "gate": waiting["gates"][0]["id"]}


def command_lines(names: dict[str, str]) -> dict[str, list[str]]:
    """A command line for each command that leaves at once."""
    return {
        "run": ["run", "loop.yaml", "--no-wait"],
        "loop": ["loop", "hello", "--agent", "script:replies.yaml", "--max", "1"],
        "chat": ["chat"],
        "repl": ["repl"],
        "backup": ["backup", "copy.db"],
        "login": ["login"],
        "logout": ["logout", "http://127.0.0.1:1"],
        "user": ["user", "ls"],
        "token": ["token", "ls"],
        "hook": ["hook", "ls"],
        "webhook": ["webhook", "ls"],
        "notifications": ["notifications", "ls"],
        "artifact": ["artifact", "ls", names["done"]],
        "project": ["project", "ls"],
        "sprint": ["sprint", "ls"],
        "todo": ["todo", "ls", names["done"]],
        "import": ["import", "."],
        "workspace": ["workspace", "ls"],
        "mcp": ["mcp"],
        "serve": ["serve", "--host", "0.0.0.0", "--port", "0"],
        "ls": ["ls"],
        "show": ["show", names["done"]],
        "watch": ["watch", names["done"]],
        "events": ["events", names["done"]],
        "logs": ["logs", names["done"]],
        "eval": ["eval", names["done"]],
        "promote": ["promote"],
        "inbox": ["inbox"],
        "approve": ["approve", names["gate"]],
        "reject": ["reject", "gate_none"],
        "continue": ["continue", "gate_none", "more"],
        "tell": ["tell", "nothing", "x"],
        "pause": ["pause", "all"],
        "resume": ["resume", "all"],
        "stop": ["stop", "all"],
        "retry": ["retry", "nothing"],
        "skip": ["skip", "nothing"],
        "edit": ["edit", "nothing", "--goal", "x"],
        "fork": ["fork", "nothing", "--at", "main"],
        "apply": ["apply", "nothing"],
        "discard": ["discard", "nothing", "--yes"],
        "diff": ["diff", "nothing"],
        "restore": ["restore", "nothing", "1"],
        "bisect": ["bisect", "nothing"],
        "spend": ["spend"],
        "stored": ["stored", "ls"],
        "validate": ["validate", "loop.yaml"],
        "definitions": ["definitions"],
        "convert": ["convert", "loop.yaml"],
        "schema": ["schema"],
        "init": ["init", "new"],
        "roles": ["roles"],
        "agent": ["agent", "ls"],
        "doctor": ["doctor", "--deep"],
        "prune": ["prune"],
        "config": ["config", "show"],
        "completion": ["completion", "zsh"],
        "version": ["version"],
        "demo": ["demo", "a-demo"],
        "help": ["help"],
    }


def listed(text: str) -> list[str]:
    """The first words of the indented lines of a help text."""
    return [line.split()[0] for line in text.splitlines() if line.startswith("  ")]


def test_every_command_speaks_json(lw: Place) -> None:
    """With --json, before or after the command, stdout is exactly one object, errors included."""
    lines = command_lines(prepared(lw))
    assert set(lines) == set(COMMANDS)
    for number, (name, words) in enumerate(lines.items()):
        args = ["--json", *words] if number % 2 else [*words, "--json"]
        told = lw(*args)
        assert told.out.startswith("{"), name
        assert isinstance(json.loads(told.out), dict), name
        assert "Traceback" not in told.err, name
        assert "\x1b[" not in told.out + told.err, name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_no_side_effect(lw: Place, name: str) -> None:
    """`COMMAND --help` and `-h` describe it and leave with 0, without touching the data."""
    told = lw(name, "--help")
    assert told.code == 0
    assert told.out.startswith("Usage: loopwright")
    assert "--json" in told.out
    assert "--data-dir" in told.out
    assert lw(name, "-h").out == told.out
    assert not (lw.folder.parent / "home").exists()


def test_help_shows_examples_before_commands(lw: Place) -> None:
    """The first thing that help shows is how it is used; every command is listed once."""
    told = lw("--help")
    assert told.code == 0
    assert told.out.index("Examples:") < told.out.index("Usage:") < told.out.index("  run ")
    assert [word for word in listed(told.out) if word in COMMANDS] == list(FIRST)
    assert lw().out == lw("help").out == told.out


def test_help_lists_every_command_once(lw: Place) -> None:
    """`help --all` has each command in one group, as text and as JSON."""
    told = lw("help", "--all")
    assert sorted(word for word in listed(told.out) if word in COMMANDS) == sorted(COMMANDS)
    entries = lw("help", "--all", "--json").json["commands"]
    assert [one["name"] for one in entries] == list(COMMANDS)
    assert all(one["summary"] and one["group"] in told.out for one in entries)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["resume"], 0, "Usage: loopwright resume [OPTIONS] RUN|all"),
        (["user", "add"], 0, "Usage: loopwright user add [OPTIONS] NAME"),
        (["resum"], 2, "no such command 'resum'"),
        (["user", "ad"], 2, "no such command 'ad'"),
        (["resume", "it"], 2, "loopwright resume has no command 'it'"),
    ],
)
def test_help_of_a_command(lw: Place, words: list[str], code: int, says: str) -> None:
    """`help COMMAND` is the help of that command, also of one inside a group."""
    told = lw("help", *words)
    assert (told.code, says in told.out + told.err) == (code, True), told.out + told.err
    if code == 0:
        assert told.out == lw(*words, "--help").out
        assert lw("help", *words, "--json").json == {
            "command": " ".join(words),
            "help": told.out.rstrip("\n"),
        }


def test_help_is_quick(lw: Place) -> None:
    """`loopwright --help` takes at most 250 ms of CPU; the best of five, machines are noisy."""

    def cpu() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert lw.real("--help").code == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(cpu() for _ in range(5)) <= 0.250


@pytest.mark.item("K1")
@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        pytest.param(["rnu", "x.yaml"], "'run'", id="command"),
        pytest.param(["run", "x.yaml", "--jsn"], "'--json'", id="flag"),
        pytest.param(["ls", "--statsu", "waiting"], "'--status'", id="flag of ls"),
        pytest.param(["run", "--agnet", "x"], "'--agent'", id="flag of run"),
        pytest.param(["config", "shwo"], "'show'", id="command of a command"),
    ],
)
def test_a_typo_gets_a_suggestion(lw: Place, words: list[str], suggestion: str) -> None:
    """An unknown command or flag leaves with 2 and names what was probably meant."""
    told = lw(*words)
    assert told.code == 2
    assert told.out == ""
    assert f"did you mean {suggestion}" in told.err.lower() or suggestion in told.err


@pytest.mark.parametrize("name", LATER)
def test_commands_of_later_do_not_exist(lw: Place, name: str) -> None:
    """What cannot be done yet is an unknown command, not a broken one."""
    assert lw(name).code == 2


@pytest.mark.item("K9")
@pytest.mark.parametrize(
    "flag", ["--token", "--api-key", "--apikey", "--openai-api-key", "--password"]
)
def test_secrets_are_not_taken_from_the_command_line(lw: Place, flag: str) -> None:
    """A secret as a flag is refused without repeating it; the ways that are safe are named."""
    told = lw("run", "loop.yaml", flag, "s3cret-canary")
    assert told.code == 2
    assert "environment" in told.err
    assert "file" in told.err
    joined = lw("run", "loop.yaml", f"{flag}=s3cret-canary")
    assert joined.code == 2
    assert "s3cret-canary" not in told.err + joined.err


@pytest.mark.item("K2")
@pytest.mark.parametrize(
    ("file", "code"),
    [
        pytest.param("missing.yaml", "cannot-read", id="missing"),
        pytest.param(".", "not-a-file", id="folder"),
    ],
)
def test_a_file_that_is_none(lw: Place, file: str, code: str) -> None:
    """Running what is no file leaves with 2 and says so, with a place."""
    told = lw("run", file)
    assert told.code == 2
    assert f"{file}:1:1: {code}: " in told.err
    problem = lw("run", file, "--json").json
    assert problem["status"] == 422
    assert problem["errors"][0]["code"] == code


@pytest.mark.item("K2")
def test_stdin_that_is_a_terminal(lw: Place) -> None:
    """`run -` at a terminal does not wait for anybody to type a definition."""
    with lw.terminal("run", "-") as screen:
        assert screen.leave() == 2
        assert "terminal" in screen.seen


@pytest.mark.item("K3")
@pytest.mark.parametrize("words", [["--help"], ["events", "RUN"], ["logs", "RUN"], ["schema"]])
def test_a_closed_pipe_is_quiet(lw: Place, words: list[str]) -> None:
    """When the reader goes away the command leaves without a word."""
    run = lw("run", lw.loop(lw.script(*["x" * 5000] * 20), max=20), "--json").json["run"]
    process = lw.start(*[run if word == "RUN" else word for word in words])
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(PATIENCE_S) == 0
    assert said == b""


def test_a_closed_pipe_does_not_harm_a_run(lw: Place) -> None:
    """A run whose events nobody reads any more goes on to its end."""
    file = lw.loop(lw.script(*["x"] * 5), max=5)
    process = lw.start("run", file, "--jsonl", "--quiet")
    assert process.stdout is not None
    process.stdout.close()
    _, said = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, said) == (0, b"")
    assert lw("ls", "--json").json["runs"][0]["status"] == "completed"


@pytest.mark.parametrize(
    ("env", "words", "colored"),
    [
        pytest.param({}, [], True, id="terminal"),
        pytest.param({"NO_COLOR": "1"}, [], False, id="NO_COLOR"),
        pytest.param({"NO_COLOR": ""}, [], True, id="NO_COLOR empty"),
        pytest.param({"TERM": "dumb"}, [], False, id="dumb"),
        pytest.param({}, ["--no-color"], False, id="--no-color"),
        pytest.param({"FORCE_COLOR": "1", "TERM": "dumb"}, [], True, id="FORCE_COLOR"),
        pytest.param({"FORCE_COLOR": "1", "NO_COLOR": "1"}, [], False, id="NO_COLOR wins"),
        pytest.param({"LOOPWRIGHT_COLOR": "never"}, [], False, id="setting"),
    ],
)
def test_colour_on_a_terminal(
    lw: Place, env: dict[str, str], words: Sequence[str], colored: bool
) -> None:
    """Colour follows the flag, then the environment, then the settings, then the terminal."""
    lw("run", lw.loop(lw.script("x"), max=1))
    with lw.terminal("ls", *words, env=env) as screen:
        assert screen.leave() == 0
        assert ("\x1b[" in screen.seen) == colored


def test_each_stream_has_its_own_colour(lw: Place) -> None:
    """No colour where a stream is no terminal, unless it is forced."""
    assert "\x1b[" not in lw.real("show", "nothing").err
    assert "\x1b[" in lw.real("show", "nothing", env={"FORCE_COLOR": "1"}).err


def test_defects_are_reported_without_a_trace(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error is one line and exit code 1; a variable shows where it happened."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("loopwright.client.in_process.open_empty_log", broken)
    told = lw("ls")
    assert told.code == 1
    assert "planted" in told.err
    assert "Traceback" not in told.err
    assert lw("ls", "--json").json["status"] == 500
    monkeypatch.setenv("LOOPWRIGHT_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        lw("ls")


@pytest.mark.parametrize("words", [["ls", "--data-dir", ""], ["--data-dir", " ", "version"]])
def test_an_empty_data_directory_is_refused(lw: Place, words: list[str]) -> None:
    """Nothing is not a folder: a variable that was never set must not lead to the usual one."""
    told = lw(*words)
    assert told.code == 2
    assert "'--data-dir': it is empty" in told.err


def test_a_data_directory_that_cannot_be(lw: Place) -> None:
    """A data directory in the place of a file is refused with the cure."""
    lw.write("taken", "x")
    told = lw("ls", "--data-dir", "taken")
    assert told.code == 1
    assert "--data-dir" in told.err
