"""`--env` hands variables to agents and checks; their values are recorded nowhere."""

import json
import os
import stat
import time
from pathlib import Path

import pytest

from loopwright.operations.run_variables import KEPT_SECONDS, RunVariables
from tests.cli.conftest import Place, until

SECRET = "s3cret-value-of-a-key"
pytestmark = pytest.mark.item("rec-37")


def home(lw: Place) -> Path:
    return Path(lw.env["LOOPWRIGHT_HOME"])


def check(lw: Place, name: str) -> str:
    """A check command that passes if the variable has the value, and otherwise prints it."""
    file = lw.write("check.sh", f'#!/bin/sh\ntest "${name}" = {SECRET}\n')
    file.chmod(0o755)
    return "./check.sh"


def everything_stored(lw: Place) -> bytes:
    """All bytes of the data directory but for the file of the variables themselves."""
    files = [file for file in home(lw).rglob("*") if file.is_file() and file.parent.name != "env"]
    return b"".join(file.read_bytes() for file in files)


@pytest.mark.parametrize("verb", ["run", "loop"])
@pytest.mark.parametrize("given", [f"MY_KEY={SECRET}", "MY_KEY"], ids=["value", "name"])
def test_agents_and_checks_get_the_variable(
    lw: Place, monkeypatch: pytest.MonkeyPatch, verb: str, given: str
) -> None:
    """Both see it, its name is in the plan, and its value is in no file afterwards."""
    if "=" not in given:
        monkeypatch.setenv("MY_KEY", SECRET)
    agent, command = lw.probe({"say": "x"}), check(lw, "MY_KEY")
    if verb == "run":
        told = lw("run", lw.loop(agent, until={"command": command}), "--env", given, "--json")
    else:
        told = lw(
            "loop", "Go", "--agent", agent, "--until-command", command, "--env", given, "--json"
        )
    assert (told.code, told.json["reason"]) == (0, "command"), told
    (call,) = lw.calls()
    assert call["env"]["MY_KEY"] == SECRET
    assert SECRET.encode() not in everything_stored(lw)
    assert list((home(lw) / "env").iterdir()) == []


def test_a_variable_that_is_not_named_is_withheld(
    lw: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is named is handed on."""
    monkeypatch.setenv("MY_KEY", SECRET)
    lw("loop", "Go", "--agent", lw.probe({"say": "x"}), "--max", "1")
    assert "MY_KEY" not in lw.calls()[0]["env"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param("NOT_SET_ANYWHERE", "NOT_SET_ANYWHERE is not set", id="not-set"),
        pytest.param("PATH=/tmp", "PATH decides what programs load", id="reserved"),
        pytest.param("LD_PRELOAD", "LD_PRELOAD decides", id="reserved-name"),
        pytest.param("a-b=c", "'a-b' cannot be the name of a variable", id="no-name"),
        pytest.param("=c", "cannot be the name of a variable", id="empty"),
    ],
)
def test_names_that_are_refused(lw: Place, given: str, words: str) -> None:
    """Exit code 2, before anything is created."""
    told = lw("loop", "Go", "--agent", "command:echo x", "--max", "1", "--env", given)
    assert told.code == 2
    assert words in told.err
    assert lw("ls", "--json").json["runs"] == []


def test_a_chat_model_cannot_be_given_a_value(lw: Place) -> None:
    """Its requests are made by this process: a value that would be ignored is refused."""
    lw.env["OPENAI_API_KEY"] = "x"
    told = lw.real("loop", "Go", "--agent", "model:openai/gpt-5", "--env", "A_KEY=x")
    assert told.code == 2
    assert "does not reach the chat model" in told.err


def test_a_run_that_waits_keeps_its_variables(lw: Place) -> None:
    """They are in a file for its owner alone, and gone when the run completes."""
    agent = lw.probe({"say": "x"})
    words = ["--agent", agent, "--manual", "--env", f"MY_KEY={SECRET}", "--json"]
    waiting = lw("loop", "Go", *words)
    assert waiting.code == 5
    (file,) = (home(lw) / "env").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert json.loads(file.read_text()) == {"MY_KEY": SECRET}
    assert lw("continue", waiting.json["run"], "again").code == 5
    assert lw.calls()[1]["env"]["MY_KEY"] == SECRET
    assert lw("approve", waiting.json["run"]).code == 0
    assert not file.exists()


def failing(lw: Place) -> str:
    """A run that was stopped at a gate, with a variable."""
    words = ["--agent", lw.probe({"say": "x"}), "--manual", "--env", f"MY_KEY={SECRET}", "--json"]
    run: str = lw("loop", "Go", *words).json["run"]
    assert lw("stop", run).code == 0
    return run


def test_a_run_that_was_stopped_keeps_its_variables(lw: Place) -> None:
    """It is resumed with them; `prune` removes them."""
    run = failing(lw)
    file = home(lw) / "env" / f"{run}.json"
    assert file.exists()
    assert lw("resume", run, "--no-wait").code == 5
    assert lw("continue", run, "again").code == 5
    assert lw.calls()[-1]["env"]["MY_KEY"] == SECRET
    lw("stop", run)
    assert lw("prune", "--older", "1ms", "--json").json["count"] == 1
    assert not file.exists()


def test_resume_without_the_values_is_refused(lw: Place) -> None:
    """Nothing is recorded; the message has the flag, and with it the run continues."""
    run = failing(lw)
    (home(lw) / "env" / f"{run}.json").unlink()
    before = lw.events(run)
    told = lw("resume", run, "--no-wait", "--json")
    assert (told.code, told.json["type"]) == (2, "urn:loopwright:problem:missing-env")
    assert "--env MY_KEY=VALUE" in lw("resume", run, "--no-wait").err
    assert "started without OTHER" in lw("resume", run, "--env", "OTHER=1").err
    assert lw.events(run) == before
    assert lw("resume", run, "--no-wait", "--env", "MY_KEY=another").code == 5
    assert lw("continue", run, "again").code == 5
    assert lw.calls()[-1]["env"]["MY_KEY"] == "another"
    assert b"another" not in everything_stored(lw)


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "gone"])
def test_a_fork_gets_the_variables_of_its_run(lw: Place, *, is_stored: bool) -> None:
    """Those that are stored are handed on; others are named."""
    agent = lw.probe({"say": "x"}, {"say": "x"}, {"say": "x"})
    file = lw.loop(agent, max=2, until={"contains": "never"}, at_cap="exhaust")
    run = lw("run", file, "--env", f"MY_KEY={SECRET}", "--json").json["run"]
    if not is_stored:
        (home(lw) / "env" / f"{run}.json").unlink()
    told = lw("fork", run, "--at", "1")
    assert ("MY_KEY" in lw.calls()[-1]["env"]) is is_stored
    assert ("not stored any more: MY_KEY" in told.err) is not is_stored


def test_variables_of_old_runs_are_removed(tmp_path: Path) -> None:
    """A week after a run has ended nobody will resume it; one that is open keeps them."""
    variables = RunVariables(tmp_path)
    variables.remove_expired(lambda run: False)  # there is no folder yet
    for run in ("run_old", "run_new", "run_open"):
        variables.write(run, {"A": run})
    old = time.time() - KEPT_SECONDS - 60
    for run in ("run_old", "run_open"):
        os.utime(tmp_path / "env" / f"{run}.json", (old, old))
    variables.remove_expired(lambda run: run == "run_open")
    assert [variables.read(run) for run in ("run_old", "run_new", "run_open")] == [
        {},
        {"A": "run_new"},
        {"A": "run_open"},
    ]


@pytest.mark.parametrize(
    ("names", "stderr", "words"),
    [
        pytest.param(
            {"ANTHROPIC_API_KEY": "x"},
            "no API key was found",
            "ANTHROPIC_API_KEY is set but was not passed to the agent; add --env ANTHROPIC_API_KEY",
            id="a-key",
        ),
        pytest.param(
            {"A_API_KEY": "x", "B_API_KEY": "y"},
            "KeyError: 'B_API_KEY'",
            "B_API_KEY is set but was not passed to the agent; add --env B_API_KEY",
            id="named",
        ),
        pytest.param(
            {"SOME_TOKEN": "x"}, "401 unauthorized", "add --env SOME_TOKEN", id="token-and-sign-in"
        ),
        pytest.param({"ANTHROPIC_API_KEY": "x"}, "boom", None, id="key-and-another-failure"),
        pytest.param(
            {"ANTHROPIC_API_KEY": "x"}, "SyntaxError: unexpected token }", None, id="other-token"
        ),
        pytest.param({"SOME_TOKEN": "x"}, "boom", None, id="token-and-another-failure"),
        pytest.param({"HOME_PAGE": "x"}, "401 unauthorized", None, id="no-key"),
    ],
)
def test_a_failure_names_the_keys_that_were_withheld(
    lw: Place,
    monkeypatch: pytest.MonkeyPatch,
    names: dict[str, str],
    stderr: str,
    words: str | None,
) -> None:
    """When a call fails for want of a key, a line of its own says how to pass it. The cause that
    the headline names is what the agent said, and the value of the key is not shown.
    """
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    agent = lw.probe({"say": "", "stderr": stderr, "exit": 3})
    told = lw("loop", "Go", "--agent", agent, "--max", "1")
    assert told.code == 3
    shown, logged = lw("show", "last"), lw("logs", "last")
    hints = [line for line in told.err.splitlines() if "--env" in line]
    assert len(hints) == (1 if words else 0)
    for output in (told.err, shown.out, logged.out):
        assert (words in output) if words else ("--env" not in output)
    assert "--env" not in lw("show", "last", "--json").json["headline"]
    ends = [line for line in told.err.splitlines() if "Failed in iteration" in line]
    assert [f"code 3: {stderr}" in line and "--env" not in line for line in ends] == [True]


def test_a_key_that_was_passed_is_not_named(lw: Place) -> None:
    """No hint for what the agent got."""
    agent = lw.probe({"say": "", "stderr": "no ANTHROPIC_API_KEY", "exit": 3})
    words = ["--agent", agent, "--max", "1", "--env", "ANTHROPIC_API_KEY=x"]
    assert "--env" not in lw("loop", "Go", *words).err


USAGE = """#!/bin/sh
cat > /dev/null
echo '{"type":"usage","input_tokens":10,"output_tokens":5,"usd":"a lot"}'
echo '{"type":"result","text":"done"}'
exit $1
"""


@pytest.mark.parametrize("code", [0, 3], ids=["done", "failed"])
def test_an_ignored_usage_line_is_shown(lw: Place, code: int) -> None:
    """A usage that is not counted is named by `loop`, `logs` and `show`, also of a failed call."""
    lw.write("usage.sh", USAGE).chmod(0o755)
    told = lw("loop", "Go", "--agent", f"jsonl:./usage.sh {code}", "--max", "1")
    for output in (told.err, lw("logs", "last").out, lw("show", "last").out):
        assert output.count("ignored usage line: usd must be a number") == 1


LEAKS = """#!/bin/sh
cat > /dev/null
echo "the key is $MY_KEY"
echo "stderr has $MY_KEY" >&2
exit $1
"""


@pytest.mark.parametrize("code", [0, 3], ids=["output", "failure"])
def test_values_that_agents_and_checks_print_are_not_recorded(lw: Place, code: int) -> None:
    """Output, error detail and the output of a check name the variable instead of its value."""
    file = lw.write("leaks.sh", LEAKS)
    file.chmod(0o755)
    words = ["--agent", f"command:./leaks.sh {code}", "--until-command", "./leaks.sh 1"]
    lw("loop", "Go", *words, "--max", "1", "--env", f"MY_KEY={SECRET}", "--json")
    stored = everything_stored(lw)
    assert SECRET.encode() not in stored
    assert b"[MY_KEY]" in stored


def test_a_failed_run_is_resumed_with_its_variables(lw: Place) -> None:
    """The values of a run that can be resumed are kept."""
    agent = lw.probe({"say": "x", "exit": 3})
    told = lw("loop", "Go", "--agent", agent, "--max", "2", "--env", f"MY_KEY={SECRET}", "--json")
    assert told.code == 3
    assert SECRET.encode() not in everything_stored(lw)
    lw("resume", told.json["run"])
    assert [call["env"].get("MY_KEY") for call in lw.calls()] == [SECRET, SECRET]


def test_a_run_in_the_background_has_its_variables(lw: Place) -> None:
    """`--detach` hands the values to the process that drives the run, by the file."""
    agent = lw.probe({"say": "x"})
    words = ["--agent", agent, "--max", "1", "--env", f"MY_KEY={SECRET}", "--detach", "--json"]
    run = lw.real("loop", "Go", *words).json["run"]
    until(lambda: lw("show", run, "--json").json["status"] == "completed")
    assert lw.calls()[0]["env"]["MY_KEY"] == SECRET
    until(lambda: list((home(lw) / "env").iterdir()) == [])


def test_a_definition_names_variables_for_all_its_programs(
    lw: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pass_env` at the top of a definition is for agents and checks."""
    monkeypatch.setenv("MY_KEY", SECRET)
    file = lw.loop(
        lw.probe({"say": "x"}), top={"pass_env": ["MY_KEY"]}, until={"command": check(lw, "MY_KEY")}
    )
    assert lw("run", file, "--json").json["reason"] == "command"
    assert lw.calls()[0]["env"]["MY_KEY"] == SECRET


def test_a_server_elsewhere_is_not_sent_any_value(
    lw: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--env` is refused there before anything is sent."""
    monkeypatch.setenv("LOOPWRIGHT_TOKEN", "x")
    words = ["--agent", "command:echo x", "--env", f"MY_KEY={SECRET}"]
    told = lw("loop", "Go", *words, "--server", "http://127.0.0.1:9")
    assert told.code == 2
    assert "--env is not sent to a server" in told.err
