"""`run` and `loop`: exit codes, results, options."""

import json
import re
import shlex
import subprocess
import time
from typing import Any

import pytest

from tests.cli.conftest import Place
from tests.cli.terminal import COMMAND, PATIENCE_S

KEYS = {
    "run",
    "status",
    "summary",
    "reason",
    "output",
    "result",
    "iterations",
    "steps",
    "usage",
    "uncovered",
    "labels",
    "gates",
    "checks",
    "error",
}


def outcome(told: Any) -> tuple[int, str, str]:
    return told.code, told.json["status"], told.json["reason"]


@pytest.mark.parametrize(
    ("replies", "repeat", "expected"),
    [
        pytest.param(
            ["no", "DONE"], {"until": {"signal": "DONE"}}, (0, "completed", "signal"), id="0"
        ),
        pytest.param(
            [{"fail": "broken"}], {"until": {"signal": "DONE"}}, (3, "failed", "error"), id="3"
        ),
        pytest.param(
            ["a", "b", "c"],
            {"until": {"signal": "X"}},
            (4, "exhausted", "max_iterations"),
            id="4 cap",
        ),
        pytest.param(
            ["a", "b", "c"], {"at_cap": "complete"}, (0, "completed", "max_iterations"), id="0 cap"
        ),
        pytest.param(
            ["a", "a", "a"],
            {"until": {"signal": "X"}, "limits": {"identical": 2}},
            (4, "exhausted", "stalled"),
            id="4 stalled",
        ),
        pytest.param(["a"], {"until": {"person": True}}, (5, "waiting", "gate"), id="5"),
    ],
)
def test_exit_codes_and_the_object(
    lw: Place, replies: list[Any], repeat: dict[str, Any], expected: tuple[int, str, str]
) -> None:
    """The exit code says how a run ended, and the object has exactly the promised fields."""
    told = lw("run", lw.loop(lw.script(*replies), **repeat), "--json")
    assert outcome(told) == expected
    assert set(told.json) == KEYS
    assert set(told.json["steps"]["main"]) == {
        "status",
        "reason",
        "output",
        "result",
        "iterations",
        "error",
    }


def test_a_broken_check_is_a_failure(lw: Place) -> None:
    """A check that cannot be asked three times in a row ends the run with exit code 3."""
    file = lw.loop(lw.script(*["x"] * 5), until={"command": ["./missing"]}, max=5)
    told = lw("run", file, "--json")
    assert outcome(told) == (3, "failed", "check_broken")
    assert told.json["iterations"] == 3


def test_streams_off_a_terminal(lw: Place) -> None:
    """The output is on stdout, a line for each event on stderr; quiet leaves the output alone."""
    file = lw.loop(lw.script("first", "second\nDONE"), until={"signal": "DONE"})
    told = lw.real("run", file)
    assert told.code == 0
    assert told.out == "second\nDONE\n"
    assert "iteration 1/3 started" in told.err
    assert "iteration 2/3: agent signalled completion" in told.err
    line, more = told.err.splitlines()[-2:]
    assert re.fullmatch(
        r"✓ Completed in 2 iterations · [\d.]+ s · agent signalled completion", line
    )
    assert more.startswith("  loopwright show run_")
    quiet = lw.real("run", file, "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "second\nDONE\n", "")


@pytest.mark.parametrize(
    ("agent", "code", "says"),
    [
        pytest.param({"fail": "no key"}, 3, "✗ Failed ", id="failed"),
        pytest.param("not yet", 4, "■ Stopped at the limit of 2 iterations", id="exhausted"),
    ],
)
def test_quiet_prints_the_error_of_a_run_that_did_not_complete(
    lw: Place, agent: object, code: int, says: str
) -> None:
    """One line on stderr says how the run ended; with --json the result says it."""
    file = lw.loop(lw.script(*[agent] * 2), until={"signal": "DONE"}, max=2)
    told = lw.real("run", file, "--quiet")
    assert told.code == code
    (line,) = told.err.splitlines()
    assert line.startswith(says)
    assert lw.real("run", file, "--quiet", "--json").err == ""


def test_streams_that_are_not_there(lw: Place) -> None:
    """A run keeps its exit code when nobody can hear of it."""
    file = lw.loop(lw.script("x", "x", "x"), until={"signal": "D"})
    words = f"{shlex.join([*COMMAND, 'run', file])} >&- 2>&-"
    done = subprocess.run(["bash", "-c", words], env=lw.env, cwd=lw.folder, check=False)
    assert done.returncode == 4
    process = lw.start("run", file)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    assert process.wait(PATIENCE_S) == 4


def test_events_as_they_come(lw: Place) -> None:
    """--jsonl puts every event on stdout, numbered without a gap, and nothing else."""
    told = lw("run", lw.loop(lw.script("x"), max=1), "--jsonl")
    assert [event["seq"] for event in told.lines] == list(range(1, len(told.lines) + 1))
    assert told.lines[0]["kind"] == "run.started"
    assert told.lines[-1]["kind"] == "run.finished"
    assert told.lines == lw.events(told.lines[0]["run"])
    assert lw("run", "loop.yaml", "--jsonl", "--json").code == 2


def test_the_definition_may_come_by_stdin(lw: Place) -> None:
    """`run -` reads the definition from stdin; problems name it."""
    lw.loop(lw.script("x"), max=1)
    told = lw.real("run", "-", "--json", stdin=(lw.folder / "loop.yaml").read_bytes())
    assert told.code == 0
    bad = lw.real("run", "-", stdin=b"name: x\nnmae: y\n")
    assert bad.code == 2
    assert "(stdin):2:1: unknown-field" in bad.err


def test_message_inputs_name_workspace_and_budget(lw: Place) -> None:
    """Every option of `run` reaches the run."""
    (lw.folder / "there").mkdir()
    agent = lw.probe({"say": "ok"})
    top = {"inputs": {"who": {}, "mood": {"default": "fine"}}}
    top["repeat"] = {"max": 1, "prompt": "{{message}} {{input.who}} {{input.mood}}"}
    file = lw.loop("command:false", top=top)
    words = ["--agent", agent, "--input", "who=you", "--name", "named", "--workspace", "there"]
    told = lw("run", file, "Greet", *words, "--budget", "tokens=2M,time=2h", "--json")
    assert told.code == 0, told.err
    [call] = lw.calls()
    assert call["prompt"] == "Greet you fine"
    assert call["cwd"] == str(lw.folder / "there")
    detail = lw("show", told.json["run"], "--json").json
    assert (detail["name"], detail["goal"]) == ("named", "Greet")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["--input", "who"], "NAME=VALUE", id="no value"),
        pytest.param(["--input", "whom=x"], "unknown input", id="unknown input"),
        pytest.param(["--budget", "usd"], "usd=5", id="budget without a number"),
        pytest.param(["--budget", "dollars=5"], "unknown limit", id="unknown budget"),
        pytest.param(["--budget", "usd=-1"], "--budget", id="negative budget"),
        pytest.param(["--budget", "time=soon"], "is not a time", id="budget without a time"),
        pytest.param(["--workspace", "nowhere"], "--workspace", id="workspace"),
        pytest.param(["--agent", "wrker=script:replies.yaml"], "no agent", id="unknown agent"),
        pytest.param(["--agent", "comand:x"], "did you mean command", id="spec"),
        pytest.param(["--agent", "script:none.yaml"], "no file", id="script"),
        pytest.param(["--agent", "model:x/y"], "names no model", id="no such provider"),
        pytest.param(["--dialect", "nativ"], "did you mean native", id="dialect"),
        pytest.param(["--name", " "], "--name", id="name"),
        pytest.param(["  "], "empty", id="blank message"),
    ],
)
def test_arguments_that_cannot_be(lw: Place, words: list[str], said: str) -> None:
    """A wrong argument leaves with 2, says what to write, and starts nothing."""
    file = lw.loop(lw.script("x"), max=1)
    told = lw("run", file, *words)
    assert told.code == 2
    assert said in told.err
    assert lw("ls", "--json").json["runs"] == []


def test_a_budget_on_the_command_line_holds(lw: Place) -> None:
    """What the agent reports is held against the budget of the command line."""
    usage = {"input_tokens": 10, "usd": 1.0}
    file = lw.loop(lw.script(*[{"text": "x", "usage": usage}] * 3), until={"signal": "D"})
    told = lw("run", file, "--budget", "usd=1.5", "--json")
    assert outcome(told) == (4, "exhausted", "budget")
    assert told.json["iterations"] == 2


def test_the_default_agent_of_the_settings(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting fills in where neither file nor flag names an agent, and beats neither."""
    spec = lw.script("from the settings", name="setting.yaml")
    monkeypatch.setenv("LOOPWRIGHT_AGENT", spec)
    lw.write("bare.yaml", "name: bare\ngoal: Do it.\nagents: {a: {}}\nagent: a\n")
    assert lw("run", "bare.yaml", "--json").json["output"] == "from the settings"
    own = lw.loop(lw.script("from the file"), max=1)
    assert lw("run", own, "--json").json["output"] == "from the file"


def test_definition_problems_look_the_same_everywhere(lw: Place) -> None:
    """`run` and `validate` refuse a definition in the same words, as text and as JSON."""
    lw.write("bad.yaml", "name: x\nagent: script:a\nrepeat: {max: 0}\n")
    ran, validated = lw("run", "bad.yaml", "x"), lw("validate", "bad.yaml")
    assert (ran.code, validated.code) == (2, 2)
    assert ran.err == validated.err
    assert ran.err.startswith("bad.yaml:3:")
    as_json = [lw(verb, "bad.yaml", "--json").json["errors"] for verb in ("run", "validate")]
    assert as_json[0] == as_json[1]


def test_detached(lw: Place) -> None:
    """--detach returns at once with the run's id; a process of its own drives it to its end."""
    go = lw.folder / "go"
    file = lw.loop(lw.probe({"wait_for": str(go), "say": "DONE"}), until={"signal": "DONE"})
    told = lw.real("run", file, "--detach")
    assert told.code == 0
    run = told.out.strip()
    assert lw("show", run, "--json").json["status"] == "running"
    go.touch()
    followed = lw.real("logs", run, "--follow")
    assert "✓ Completed in 1 iteration · " in followed.out


@pytest.mark.item("D12")
def test_a_workspace_that_the_agent_removes(lw: Place) -> None:
    """The next iteration fails because the workspace is gone; nothing hangs."""
    place = lw.folder / "gone"
    place.mkdir()
    agent = lw.probe({"remove": str(place), "say": "removed"})
    file = lw.loop("command:false", until={"signal": "DONE"})
    began = time.monotonic()
    told = lw("run", file, "--agent", agent, "--workspace", "gone", "--json")
    assert (told.code, told.json["error"]["type"]) == (3, "workspace_gone")
    assert len(lw.calls()) == 1
    assert time.monotonic() - began < PATIENCE_S


# -- loop ----------------------------------------------------------------------------------------


def test_a_loop_without_a_file(lw: Place) -> None:
    """All --until options must hold in the same iteration; the message is taken as it is."""
    lw.write("ok.sh", "#!/bin/sh\ntest -f calls/call-2.json\n").chmod(0o755)
    agent = lw.probe({"say": "fine\nDONE"})
    words = ["--until-signal", "DONE", "--until-regex", "^fi", "--until-command", "./ok.sh"]
    told = lw("loop", "Say {{this}}", "--agent", agent, *words, "--max", "4", "--json")
    assert outcome(told)[:2] == (0, "completed")
    assert told.json["iterations"] == 2
    prompt = lw.calls()[0]["prompt"]
    assert prompt.startswith("Say {{this}}\n\n## When the work is done\n\n")
    assert "\n- `./ok.sh` exits with 0" in prompt
    assert "- `./ok.sh` exited with 1 and printed nothing\n" in lw.calls()[1]["prompt"]
    assert "## Progress Log" in lw.calls()[1]["prompt"]


@pytest.mark.item("rec-29")
def test_a_loop_without_criteria(lw: Place) -> None:
    """--no-criteria leaves the prompt as it was written."""
    agent = lw.probe({"say": "DONE"})
    assert lw("loop", "Go", "--agent", agent, "--until-signal", "DONE", "--no-criteria").code == 0
    assert lw.calls()[0]["prompt"] == "Go"


@pytest.mark.item("rec-29")
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--until-regex", "ALL PASS"),
        ("--until-signal", "DONE"),
        ("--until-regex", "done"),
        ("--until-regex", "(?<!not )finished"),
    ],
)
def test_an_agent_that_echoes_its_prompt_does_not_complete(
    lw: Place, option: str, value: str
) -> None:
    """`cat` answers with what it was asked: the criterion is in it, and it is not met."""
    told = lw("loop", "Go", "--agent", "command:cat", option, value, "--max", "3", "--json")
    assert outcome(told) == (4, "exhausted", "max_iterations")
    assert "written without the dots" in told.json["output"] or value != "ALL PASS"


@pytest.mark.item("rondoflow-65")
def test_a_loop_ends_with_a_pattern_that_looks_behind(lw: Place) -> None:
    """--until-regex takes what RE2 lacks; the engine with a time limit searches for it."""
    agent = lw.probe({"say": "not finished"}, {"say": "finished"})
    told = lw("loop", "Go", "--agent", agent, "--until-regex", "(?<!not )finished", "--json")
    assert outcome(told) == (0, "completed", "regex")
    assert told.json["iterations"] == 2
    assert [one["verdict"] for one in told.json["checks"]] == ["pass"]


def test_a_loop_asks_a_person(lw: Place) -> None:
    """--manual waits after the iteration; --memory none shows every iteration the same prompt."""
    agent = lw.probe({"say": "x"})
    told = lw("loop", "Go", "--agent", agent, "--manual", "--memory", "none", "--json")
    assert outcome(told) == (5, "waiting", "gate")
    again = lw("continue", told.json["run"], "better", "--json")
    assert outcome(again) == (5, "waiting", "gate")
    assert lw.calls()[1]["prompt"].startswith("Go")
    assert "Progress Log" not in lw.calls()[1]["prompt"]


def test_a_loop_is_judged(lw: Place) -> None:
    """--until-judge ends the loop when the judge says done; what it said is told to the worker."""
    worker = lw.probe({"say": "a draft"})
    judge = lw.script(
        {"text": "", "data": {"done": False, "reason": "no source"}},
        {"text": "", "data": {"done": True, "reason": "all have one"}},
    )
    words = ["--until-judge", "every {{claim}} has a source", "--agent", f"judge={judge}"]
    told = lw("loop", "Write it", "--agent", worker, *words, "--json")
    assert outcome(told) == (0, "completed", "judge")
    assert told.json["iterations"] == 2
    assert "no source" in lw.calls()[1]["prompt"]
    verdicts = [one for one in lw.events(told.json["run"]) if one["kind"] == "check.verdict"]
    assert [one["verdict"] for one in verdicts] == ["fail", "pass"]


def test_a_judge_gets_the_criterion_as_it_is(lw: Place) -> None:
    """Without another agent the worker judges, in a call of its own, by the words as written."""
    agent = lw.probe({"say": "a draft"}, {"say": '{"done": true}'})
    told = lw(
        "loop", "Write", "--agent", agent, "--until-judge", "no {{x}} or \\\\{{ left", "--json"
    )
    assert outcome(told) == (0, "completed", "judge")
    assert "\n\nno {{x}} or \\\\{{ left\n" in lw.calls()[1]["prompt"]


def test_a_loop_receives_its_inputs(lw: Place) -> None:
    """--input values stand below the message, which is still taken as it is."""
    words = ["--input", "branch=ma{{in", "--input", "n=3", "--max", "1"]
    told = lw("loop", "Say {{this}}", "--agent", lw.probe({"say": "x"}), *words, "--json")
    assert told.code == 0
    assert lw.calls()[0]["prompt"] == "Say {{this}}\n\n- branch: ma{{in\n- n: 3"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["--until-regex", "("], "error: --until-regex: bad-regex", id="pattern"),
        pytest.param(["--until-command", "a | b"], "--until-command: shell-syntax", id="shell"),
        *[
            pytest.param(
                ["--max", number],
                f"error: max must be a whole number from 1 to 1000, not {number}\n  given with",
                id=f"max {number}",
                marks=pytest.mark.item("A14"),
            )
            for number in ("0", "-1", "1001", "9" * 30)
        ],
        pytest.param(
            ["--memory", "elephant"], '"progress-log" or "session", not "elephant"', id="memory"
        ),
        pytest.param(["--until-judge", " "], "--until-judge: the criterion is empty", id="judge"),
        pytest.param(["--input", "x"], "has no value", id="input"),
        pytest.param(["--input", "a b=x"], "--input: ", id="input-name"),
        pytest.param(["--budget", "usd=x"], "--budget", id="budget"),
    ],
)
def test_a_loop_that_cannot_be(lw: Place, words: list[str], said: str) -> None:
    """A problem of a loop is reported as a problem of its option."""
    told = lw("loop", "Go", "--agent", lw.script("x"), *words)
    assert told.code == 2
    assert said in told.err


@pytest.mark.item("A13")
@pytest.mark.parametrize("command", ["run", "loop"])
@pytest.mark.parametrize("amount", ["nan", "inf", "-inf", "Infinity", "1e999"])
@pytest.mark.parametrize("limit", ["usd", "tokens", "time"])
def test_a_budget_is_finite(lw: Place, command: str, amount: str, limit: str) -> None:
    """What is no finite number is refused by its name, before anything is started."""
    agent = lw.script("x")
    words = ["run", lw.loop(agent)] if command == "run" else ["loop", "Go", "--agent", agent]
    told = lw(*words, "--budget", f"{limit}={amount}", "--json")
    assert told.code == 2
    assert told.json["type"] == "urn:loopwright:problem:not-finite"
    assert told.json["detail"] == f"--budget: {limit} must be finite, not {amount}"
    assert "usd=5" in told.json["hint"]
    assert lw("ls", "--json").json["runs"] == []


def test_a_budget_has_a_range(lw: Place) -> None:
    """A number beyond all bounds is told with those of the limit, not with those of numbers."""
    told = lw("run", lw.loop(lw.script("x")), "--budget", f"usd={'9' * 30}")
    assert told.code == 2
    assert "at most 1000000, not 1e+30" in told.err


def test_a_loop_needs_an_agent(lw: Place) -> None:
    """Without an agent the refusal says how to name one."""
    told = lw("loop", "Go", "--max", "1")
    assert told.code == 2
    assert "--agent" in told.err


def test_output_cannot_drive_a_terminal(lw: Place) -> None:
    """Escape sequences of an agent are removed from text; JSON has them, escaped."""
    evil = "\x1b]0;title\x07\x1b[31mred\x1b[0m\x1b]52;c;Zm9v\x07 ok\x07"
    file = lw.loop(lw.script(evil), max=1)
    told = lw("run", file)
    assert told.out == "red ok\\x07\n"
    assert "\x1b" not in told.err
    assert json.loads(lw("run", file, "--json").out)["output"] == evil


@pytest.mark.parametrize(
    ("until", "why"),
    [
        pytest.param(
            {"all": [{"command": "true"}, {"regex": "ok"}]},
            "true passed · output matches ok",
            id="all",
        ),
        pytest.param(
            {"all": [{"all": [{"regex": "ok"}]}, {"expr": "true"}]},
            "output matches ok · expression is true",
            id="all of all",
        ),
        pytest.param(
            {"all": [{"any": [{"regex": "ok"}, {"command": "false"}]}, {"contains": "k"}]},
            "output matches ok · output contains 'k'",
            id="a choice",
        ),
    ],
)
def test_why_a_loop_with_several_checks_is_done(lw: Place, until: object, why: str) -> None:
    """All checks that had to hold together are named."""
    told = lw("run", lw.loop("command:echo ok", until=until))
    assert told.code == 0, told.err
    line = told.err.splitlines()[-2]
    assert re.fullmatch(
        rf"✓ Completed in 1 iteration · [\d.]+ s · cost unknown · {re.escape(why)}", line
    )


@pytest.mark.item("bnd-l1")
@pytest.mark.parametrize(("word", "near"), [("gaurd", "guard"), ("read-only", "readonly")])
def test_a_misspelt_sandbox_level_is_suggested(lw: Place, word: str, near: str) -> None:
    """The error names the level that was probably meant, and all levels."""
    told = lw("loop", "Do it.", "--agent", "command:cat", "--sandbox", word)
    assert told.code == 2
    assert f"did you mean {near}?" in told.err
    assert '"guard", "none", "off", "readonly" or "workspace"' in told.err


@pytest.mark.item("bnd-p6")
def test_loop_tools_are_given_on_the_command_line(lw: Place) -> None:
    """An option gives what a definition gives with `loops`; a plain program cannot have it."""
    plain = lw("loop", "Do it.", "--agent", "command:cat", "--loop-tools", "start", "--max", "1")
    assert (plain.code, "none of the agents can use loop tools" in plain.err) == (2, True)
    flags = ("--loop-tools", "start", "--loop-tools", "look", "--max", "1", "--dry-run")
    assert lw("loop", "Do it.", "--agent", "claude", *flags).code == 0


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        pytest.param("flows", "it is a folder; name a file in it, or check all", id="folder"),
        pytest.param("iterate", "loopwright run .archon/workflows/defaults/it.yaml", id="name"),
        pytest.param("it", "loopwright run .archon/workflows/defaults/it.yaml", id="file name"),
        pytest.param("other", "there are goal-driven", id="neither"),
    ],
)
def test_a_name_that_is_no_definition_leads_to_its_file(lw: Place, name: str, hint: str) -> None:
    """Users of Archon run workflows by name; others name the folder."""
    (lw.folder / "flows").mkdir()
    folder = lw.folder / ".archon/workflows/defaults"
    folder.mkdir(parents=True)
    (folder / "it.yaml").write_text("name: iterate\nnodes: []\n")
    told = lw("run", name)
    assert told.code == 2
    assert hint in told.err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        pytest.param(
            ["make", "it", "pass"], "put a message of several words in quotes", id="no quotes"
        ),
        pytest.param(
            ["go", "--until-command", "CI=1 npm test"], "write `env CI=1 npm test`", id="variable"
        ),
        pytest.param(
            ["go", "--until-command", "cd sub && make"], "cd is a command of shells", id="cd"
        ),
        pytest.param(["go", "--budget", "5"], "'5' is not NAME=VALUE", id="budget"),
    ],
)
def test_a_slip_of_a_new_user_is_answered_with_the_remedy(
    lw: Place, words: list[str], hint: str
) -> None:
    """What people type who know a shell."""
    told = lw("loop", *words, "--agent", "command:true")
    assert told.code == 2
    assert hint in told.err
