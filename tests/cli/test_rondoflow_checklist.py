"""An assistant document through the command line: what its loop does, one test for each promise.

The agent is a real program (`probe.py`) that writes down how it was called and behaves as told.
"""

import json
import os
import re
import signal
from typing import Any

import pytest

from tests.cli.conftest import Place, Told, until
from tests.cli.terminal import PATIENCE_S
from tests.cli.test_control import is_running

MESSAGE = "Fix the \u201cparser\u201d,\n  then stop. {{not a place}} $HOME"


def assistant(lw: Place, kind: str | None = None, value: str = "", **fields: Any) -> str:
    """An assistant document with looping on."""
    criteria = None if kind is None else {"type": kind, "value": value}
    document = {"name": "fixer", "loopEnabled": True, "loopCriteria": criteria, **fields}
    lw.write("assistant.json", json.dumps(document))
    return "assistant.json"


def run(lw: Place, file: str, *behaviour: dict[str, Any], message: str = MESSAGE) -> Told:
    return lw("run", file, message, "--agent", lw.probe(*behaviour), "--json")


def begun(lw: Place, file: str, *behaviour: dict[str, Any]) -> Any:
    """The same in a process of its own, once the first iteration is under way."""
    process = lw.start("run", file, MESSAGE, "--agent", lw.probe(*behaviour), "--json")
    until(lambda: len(lw.calls()) >= 1)
    return process


def fails_until(lw: Place, passes: int) -> str:
    """A test command that succeeds from the given pass on."""
    lw.write("check", f"#!/bin/sh\ntest -f calls/call-{passes}.json\n").chmod(0o755)
    return "./check"


# -- start -----------------------------------------------------------------------------------------


@pytest.mark.item("rondoflow-6", "rondoflow-58")
@pytest.mark.parametrize("message", [[], [""], ["  \n "]], ids=["none", "empty", "blank"])
def test_6_a_message_is_needed(lw: Place, message: list[str]) -> None:
    """Without a message, or with one that says nothing, nothing is started."""
    told = lw("run", assistant(lw), *message, "--agent", lw.probe())
    assert told.code == 2
    assert "message" in told.err
    assert lw.calls() == []
    assert lw("ls", "--json").json["runs"] == []


@pytest.mark.item("rondoflow-7")
def test_7_looping_must_be_on(lw: Place) -> None:
    """An assistant that does not exist and one with looping off are refused differently."""
    missing = lw("run", "nobody.json", "x")
    off = run(lw, assistant(lw, loopEnabled=False))
    assert (missing.code, off.code) == (2, 2)
    assert "cannot-read" in missing.err
    assert off.json["errors"][0]["code"] == "loop-disabled"
    assert lw.calls() == []


@pytest.mark.item("rondoflow-7", "rondoflow-71")
def test_7_a_number_of_iterations_switches_looping_on(lw: Place) -> None:
    """An assistant of a catalog has no settings of a loop; `--max` is the wish for one."""
    manifest = {"id": "w", "name": "Writer", "model": "sonnet", "allowedTools": [], "scope": []}
    lw.write("manifest.json", json.dumps(manifest))
    lw.write("persona.md", "You write.")
    agent = lw.script("one", "two", "three")
    assert lw("run", "manifest.json", "Go.", "--agent", agent).code == 2
    done = lw("run", "manifest.json", "Go.", "--agent", agent, "--max", "2", "--json").json
    assert (done["status"], done["iterations"]) == ("completed", 2)


@pytest.mark.item("rondoflow-9")
def test_9_one_loop_for_each_assistant(lw: Place) -> None:
    """A second start of the same assistant is refused; the first goes on undisturbed."""
    go = lw.folder / "go"
    file = assistant(lw, "regex", "DONE")
    first = begun(lw, file, {"wait_for": str(go), "say": "DONE"})
    second = run(lw, file, {"wait_for": str(go), "say": "DONE"})
    assert (second.code, second.json["status"]) == (8, 409)
    go.touch()
    out, _ = first.communicate(timeout=PATIENCE_S)
    assert json.loads(out)["status"] == "completed"
    assert len(lw.calls()) == 1
    assert run(lw, file, {"say": "DONE"}).code == 0


@pytest.mark.item("rondoflow-10")
def test_10_two_assistants_side_by_side(lw: Place) -> None:
    """Loops of two assistants are under way at the same time."""
    go = lw.folder / "go"
    first = begun(lw, assistant(lw, "regex", "DONE"), {"wait_for": str(go), "say": "DONE"})
    other = run(lw, assistant(lw, "regex", "DONE", name="other"), {"say": "DONE"})
    assert other.code == 0
    assert first.poll() is None
    go.touch()
    first.communicate(timeout=PATIENCE_S)
    assert first.returncode == 0


# -- iterations ------------------------------------------------------------------------------------


@pytest.mark.item("rondoflow-12")
def test_12_the_first_prompt_is_the_message(lw: Place) -> None:
    """Byte for byte."""
    assert run(lw, assistant(lw, maxIterations=1)).code == 0
    assert lw.calls()[0]["prompt"] == MESSAGE


@pytest.mark.item("rondoflow-13")
def test_13_the_second_prompt_has_the_progress_log(lw: Place) -> None:
    """The message, one learning, and which pass of how many this is."""
    run(lw, assistant(lw, maxIterations=4), {"say": "learned\nthis"})
    prompt = lw.calls()[1]["prompt"]
    assert prompt.startswith(MESSAGE)
    assert "## Progress Log" in prompt
    assert re.findall(r"- Iteration (\d+): (.*)", prompt) == [("1", "learned this")]
    assert "Iteration 2 of 4" in prompt


@pytest.mark.item("rondoflow-14")
def test_14_learnings_in_order(lw: Place) -> None:
    """The third prompt lists both learnings, oldest first."""
    run(lw, assistant(lw, maxIterations=3), {"say": "first"}, {"say": "second"}, {"say": "third"})
    found = re.findall(r"- Iteration (\d+): (.*)", lw.calls()[2]["prompt"])
    assert found == [("1", "first"), ("2", "second")]


@pytest.mark.item("rondoflow-15")
def test_15_every_iteration_is_a_new_process_without_a_session(lw: Place) -> None:
    """No pid twice, and no session to go on with."""
    run(lw, assistant(lw, maxIterations=3))
    calls = lw.calls()
    assert len({call["pid"] for call in calls}) == 3
    assert {call["env"]["LOOPWRIGHT_SESSION"] for call in calls} == {""}
    assert len({call["env"]["LOOPWRIGHT_EFFECT"] for call in calls}) == 3


@pytest.mark.item("rondoflow-16")
def test_16_learnings_are_short_lines(lw: Place) -> None:
    """At most 300 characters on one line; nothing but line ends gives a placeholder."""
    long = "word\n" * 200
    told = run(lw, assistant(lw, maxIterations=3), {"say": long}, {"say": "\n\n\n"}, {"say": "x"})
    found = re.findall(r"- Iteration \d+: (.*)", lw.calls()[2]["prompt"])
    assert [len(line) <= 300 for line in found] == [True, True]
    assert found[0].startswith("word word word")
    assert found[1] == "(iteration 2 produced no output)"
    shown = lw("show", told.json["run"], "--json").json["passes"]
    assert [one["learning"] for one in shown[:2]] == found


@pytest.mark.item("rondoflow-17")
def test_17_order_of_events(lw: Place) -> None:
    """Each iteration starts, calls, ends, and only then the next begins; the end comes last."""
    told = run(lw, assistant(lw, maxIterations=2))
    kinds = [kind for kind in lw.kinds(told.json["run"]) if not kind.startswith("step.")]
    one = ["iteration.started", "effect.requested", "effect.done", "iteration.finished"]
    assert kinds == ["run.started", *one, *one, "run.finished"]


def test_19_what_the_agent_is_given(lw: Place) -> None:
    """Model and tools reach the agent, the arguments are as written, no shell is in between."""
    file = assistant(lw, maxIterations=1, model="big", tools=["Read", "Bash(git *)"], persona="P")
    agent = lw.probe() + " '$HOME; echo no'"
    assert lw("run", file, MESSAGE, "--agent", agent, "--sandbox", "off", "--json").code == 0
    [call] = lw.calls()
    assert call["argv"][-1] == "$HOME; echo no"
    assert call["env"]["LOOPWRIGHT_MODEL"] == "big"
    assert call["env"]["LOOPWRIGHT_TOOLS"] == "Read,Bash(git *)"
    assert call["env"]["LOOPWRIGHT_SYSTEM"] == "P"
    pids = [pid for pid, _ in call["parents"]]
    between = [name for _, name in call["parents"][: pids.index(os.getpid())]]
    assert len(between) == 1, "the supervisor alone"
    assert not {"sh", "bash", "dash"} & set(between)


@pytest.mark.item("rondoflow-55")
def test_55_secrets_stay_here(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the environment only the allow-list reaches an agent."""
    for name in ("DATABASE_URL", "BETTER_AUTH_SECRET", "RONDOFLOW_SECRET", "Rondoflow_Secret"):
        monkeypatch.setenv(name, "canary")
    run(lw, assistant(lw, maxIterations=1))
    assert "canary" not in lw.calls()[0]["env"].values()


# -- criteria --------------------------------------------------------------------------------------


@pytest.mark.item("rondoflow-20")
def test_20_the_cap_alone(lw: Place) -> None:
    """Three processes, then completed with the third learning as output."""
    told = run(lw, assistant(lw, "max_iterations", maxIterations=3), {"say": "a\nb" * 300})
    assert (told.code, told.json["status"], told.json["iterations"]) == (0, "completed", 3)
    assert len(lw.calls()) == 3
    assert len(told.json["output"]) <= 300
    assert "\n" not in told.json["output"]
    assert told.json["reason"] == "max_iterations"


@pytest.mark.item("rondoflow-21")
def test_21_a_pattern_ignores_case(lw: Place) -> None:
    """A match ends the loop; the output is the whole text."""
    text = "line\n" * 100 + "it is complete now"
    told = run(lw, assistant(lw, "regex", "DONE|COMPLETE"), {"say": text})
    assert (told.code, told.json["iterations"], told.json["reason"]) == (0, 1, "regex")
    assert told.json["output"] == text


@pytest.mark.item("rondoflow-22")
def test_22_a_broken_pattern_runs_to_the_cap(lw: Place) -> None:
    """It never matches and never fails the loop; a warning says so."""
    file = assistant(lw, "regex", "([", maxIterations=2)
    told = run(lw, file)
    assert (told.code, told.json["status"], told.json["iterations"]) == (0, "completed", 2)
    assert "never matches" in told.err


@pytest.mark.item("rondoflow-23")
def test_23_a_match_on_the_last_iteration(lw: Place) -> None:
    """Gives the whole text, not its learning."""
    text = "x\n" * 300 + "DONE"
    file = assistant(lw, "regex", "DONE", maxIterations=2)
    told = run(lw, file, {"say": "no"}, {"say": text})
    assert (told.json["reason"], told.json["output"]) == ("regex", text)


@pytest.mark.item("rondoflow-24")
def test_24_a_test_command(lw: Place) -> None:
    """Passing on the second try means two iterations; never passing means all of them."""
    told = run(lw, assistant(lw, "test_pass", fails_until(lw, 2)))
    assert (told.json["iterations"], told.json["reason"]) == (2, "command")
    never = run(lw, assistant(lw, "test_pass", "false", maxIterations=3))
    assert (never.json["iterations"], never.json["reason"]) == (3, "max_iterations")


@pytest.mark.item("rondoflow-25")
def test_25_a_test_program_that_does_not_exist(lw: Place) -> None:
    """The start is refused with the name of the program, before anything is spent."""
    told = run(lw, assistant(lw, "test_pass", "no-such-program-here --ci", maxIterations=4))
    assert told.code == 2
    assert "no-such-program-here" in told.json["detail"]
    assert lw.calls() == []


@pytest.mark.item("rondoflow-25")
def test_25_a_test_program_that_disappears(lw: Place) -> None:
    """The check is broken then, and the loop fails; it is never "not yet"."""
    check = lw.write("check", '#!/bin/sh\nrm -- "$0"; exit 1\n')
    check.chmod(0o755)
    told = run(lw, assistant(lw, "test_pass", "./check", maxIterations=4))
    assert (told.json["status"], told.json["reason"]) == ("failed", "check_broken")
    assert told.json["iterations"] == 2


def test_26_a_test_command_has_a_minute(lw: Place) -> None:
    """The limit of 60 seconds stands in the request; `app/test_rondoflow_limits.py` reaches it."""
    told = run(lw, assistant(lw, "test_pass", "true"))
    asked = [f["call"] for f in lw.events(told.json["run"]) if f["kind"] == "effect.requested"]
    assert [c["timeout_ms"] for c in asked if c["do"] == "command"] == [60_000]


@pytest.mark.item("rondoflow-27")
def test_27_no_shell_reads_a_test_command(lw: Place) -> None:
    """Every part is an argument as it is written."""
    lw.write("args", '#!/bin/sh\nprintf "%s\\n" "$@" > args.txt\n').chmod(0o755)
    words = "a  -b ./c x:y a.py::test_b --ci=true | grep && echo $HOME *.txt 'q r'"
    run(lw, assistant(lw, "test_pass", f"./args {words}"))
    assert (lw.folder / "args.txt").read_text().splitlines() == words.split()


@pytest.mark.item("rondoflow-28")
def test_28_a_review_after_each_iteration(lw: Place) -> None:
    """It shows the iteration and its output under a new id, and nothing runs meanwhile."""
    told = run(lw, assistant(lw, "manual"), {"say": "one"}, {"say": "two"})
    assert (told.code, told.json["status"], told.json["output"]) == (5, "waiting", "one")
    again = lw("continue", told.json["run"], "more", "--json")
    assert (again.code, again.json["output"]) == (5, "two")
    opened = [f for f in lw.events(told.json["run"]) if f["kind"] == "gate.opened"]
    assert [(f["iteration"], f["output"]) for f in opened] == [(1, "one"), (2, "two")]
    assert len({f["gate"] for f in opened}) == 2
    assert len(lw.calls()) == 2


@pytest.mark.item("rondoflow-29")
def test_29_approval_and_rejection(lw: Place) -> None:
    """Approval completes with that pass's output, rejection fails with the known text."""
    told = run(lw, assistant(lw, "manual"), {"say": "good\nwork"})
    approved = lw("approve", told.json["run"], "--json")
    assert (approved.code, approved.json["output"]) == (0, "good\nwork")
    told = run(lw, assistant(lw, "manual"), {"say": "bad"})
    rejected = lw("reject", told.json["run"], "--json")
    assert (rejected.code, rejected.json["status"]) == (3, "failed")
    assert rejected.json["error"]["detail"] == "Manual approval was rejected by user"


@pytest.mark.item("rondoflow-30")
def test_30_stale_answers_change_nothing(lw: Place) -> None:
    """An invented id is unknown, an old one is answered already; the run still waits."""
    told = run(lw, assistant(lw, "manual"))
    old = told.json["gates"][0]["id"]
    lw("continue", old, "more")
    before = lw.events(told.json["run"])
    assert lw("approve", "gate_00000000000000000000").code == 2
    assert lw("approve", old).code == 8
    assert lw.events(told.json["run"]) == before


# -- failure, stop, pause --------------------------------------------------------------------------


@pytest.mark.item("rondoflow-31")
def test_31_a_failing_process_ends_the_loop(lw: Place) -> None:
    """The iteration is named, nothing more is started, and the assistant is free again."""
    file = assistant(lw, "regex", "DONE")
    told = run(lw, file, {"say": "fine"}, {"exit": 3, "stderr": "no key found", "say": ""})
    assert (told.code, told.json["status"], told.json["iterations"]) == (3, "failed", 2)
    assert "no key found" in told.json["error"]["detail"]
    assert len(lw.calls()) == 2
    failed = [f for f in lw.events(told.json["run"]) if f["kind"] == "effect.failed"]
    assert [f["iteration"] for f in failed] == [2]
    assert run(lw, file, {"say": "DONE"}).code == 0


@pytest.mark.item("rondoflow-32")
@pytest.mark.parametrize("passes", [1, 2])
def test_32_an_answer_that_says_it_failed(lw: Place, passes: int) -> None:
    """A result flagged as an error fails the loop in that pass although the exit code is 0."""
    said = [{"type": "text", "text": "working\n"}, {"type": "result", "text": "I could not"}]
    lines = [[*said[:1], {**said[1], "is_error": number == passes}] for number in range(1, 4)]
    for number, spoken in enumerate(lines, start=1):
        lw.write(f"said-{number}", "".join(f"{json.dumps(line)}\n" for line in spoken))
    lw.write("agent", '#!/bin/sh\ncat "said-$LOOPWRIGHT_ITERATION"\nexit 0\n').chmod(0o755)
    file = assistant(lw, maxIterations=3)
    told = lw("run", file, MESSAGE, "--agent", "jsonl:./agent", "--json")
    assert (told.code, told.json["status"], told.json["iterations"]) == (3, "failed", passes)
    assert told.json["error"]["type"] == "agent"
    assert told.json["error"]["detail"] == "I could not"
    [failed] = [f for f in lw.events(told.json["run"]) if f["kind"] == "effect.failed"]
    assert (failed["iteration"], failed["code"]) == (passes, 0)


def test_33_silence_is_ended(lw: Place) -> None:
    """An agent that is silent for too long is ended with its children, as timed out.

    Here with a short limit in a native file; that of an assistant document, five minutes, is
    reached in `app/test_rondoflow_limits.py`.
    """
    file = lw.loop("command:false", top={"agents": {"a": {"idle": "3s"}}, "agent": "a"})
    told = lw("run", file, MESSAGE, "--agent", lw.probe({"hang": True}), "--json")
    assert (told.code, told.json["error"]["type"]) == (3, "idle_timeout")
    assert "timed out" in told.json["error"]["detail"]
    [call] = lw.calls()
    until(lambda: not is_running(call["pid"]) and not is_running(call["child"]))


@pytest.mark.item("rondoflow-34")
def test_34_stop_during_an_iteration(lw: Place) -> None:
    """All processes of the iteration are dead, no iteration follows, a new start is possible."""
    file = assistant(lw)
    process = begun(lw, file, {"hang": True})
    [call] = lw.calls()
    assert lw("stop", "run_").code == 0
    process.communicate(timeout=PATIENCE_S)
    until(lambda: not is_running(call["pid"]) and not is_running(call["child"]))
    assert len(lw.calls()) == 1
    assert run(lw, assistant(lw, maxIterations=1)).code == 0


@pytest.mark.item("rondoflow-35")
def test_35_stop_during_a_review(lw: Place) -> None:
    """The review is closed and a late approval does nothing; the run is stopped, not rejected."""
    told = run(lw, assistant(lw, "manual"))
    assert lw("stop", told.json["run"]).code == 0
    late = lw("approve", told.json["gates"][0]["id"])
    assert late.code == 8
    assert lw("inbox", "--json").json["gates"] == []
    detail = lw("show", told.json["run"], "--json").json
    assert (detail["status"], detail["reason"]) == ("cancelled", "stopped")


@pytest.mark.item("rondoflow-36")
def test_36_stop_of_nothing(lw: Place) -> None:
    """Stopping what does not run is an error."""
    told = run(lw, assistant(lw, maxIterations=1))
    assert lw("stop", told.json["run"]).code == 8
    assert lw("stop", "run_nothing").code == 2


@pytest.mark.item("rondoflow-37")
def test_37_pause_holds_the_next_iteration(lw: Place) -> None:
    """The iteration under way ends, the next one waits for resume."""
    go = lw.folder / "go"
    process = begun(lw, assistant(lw, maxIterations=2), {"wait_for": str(go)}, {"say": "two"})
    assert lw("pause", "run_").code == 0
    go.touch()
    process.communicate(timeout=PATIENCE_S)
    assert "iteration.finished" in lw.kinds("run_")
    assert len(lw.calls()) == 1
    assert lw("resume", "run_", "--json").json["output"] == "two"


@pytest.mark.item("rondoflow-38")
def test_38_status_is_truthful(lw: Place) -> None:
    """Running, paused and inactive are what lists say."""
    go = lw.folder / "go"
    process = begun(lw, assistant(lw, maxIterations=2), {"wait_for": str(go)})

    def status() -> str:
        return str(lw("ls", "--json").json["runs"][0]["status"])

    assert status() == "running"
    lw("pause", "run_")
    assert status() == "paused"
    go.touch()
    process.communicate(timeout=PATIENCE_S)
    assert status() == "paused"
    lw("stop", "run_")
    assert status() == "cancelled"


def test_a_killed_driver_loses_nothing(lw: Place) -> None:
    """Other than in the system the document comes from, a crash is no end: the loop goes on."""
    process = begun(lw, assistant(lw, "regex", "DONE"), {"hang": True})
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)
    lw.probe({"say": "DONE"})
    assert lw("resume", "run_", "--json").json["status"] == "completed"
