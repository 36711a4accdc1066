"""Runs that ended without completing and are resumed, from the command line and at the prompt."""

import json
import os
import signal
import sys
from typing import Any

import pytest

from tests.cli.conftest import Place, Told, until

AGENT = """
import os, pathlib, sys, time
here = pathlib.Path(sys.argv[1])
prompt = sys.stdin.read()
number = int(os.environ["LOOPWRIGHT_ITERATION"])
calls = here / "calls.txt"
with calls.open("a") as file:
    file.write(f"{number}\\n")
(here / f"prompt-{len(calls.read_text().split())}.txt").write_text(prompt)
fail, hang = here / "fail-at", here / "hang-at"
if fail.exists() and int(fail.read_text()) == number:
    fail.unlink()
    sys.stderr.write("the connection was lost\\n")
    sys.exit(1)
if hang.exists() and int(hang.read_text()) == number:
    hang.unlink()
    (here / "hanging").touch()
    time.sleep(60)
said = f"I finished part {number}."
print(said if sys.argv[2] == "command" else '{"type": "result", "text": "%s"}' % said)
"""


class Writer:
    """An agent that fails or hangs in an iteration, once, and notes its prompts."""

    def __init__(self, lw: Place, kind: str) -> None:
        self.lw, self.folder = lw, lw.folder
        program = lw.write("agent.py", AGENT)
        self.spec = f"{kind}:{sys.executable} -I -S {program} {lw.folder} {kind}"

    def at(self, name: str, number: int) -> None:
        (self.folder / f"{name}-at").write_text(str(number))

    def loop(self, **more: Any) -> str:
        return self.lw.loop(self.spec, max=5, memory="progress-log", at_cap="complete", **more)

    @property
    def calls(self) -> list[int]:
        return [int(line) for line in (self.folder / "calls.txt").read_text().split()]

    def prompt(self, call: int) -> str:
        return (self.folder / f"prompt-{call}.txt").read_text()


def iterations(lw: Place, run: str) -> list[int]:
    """The iterations that completed, in their order."""
    ends = [event for event in lw.events(run) if event["kind"] == "iteration.finished"]
    return [event["iteration"] for event in ends if event.get("status", "completed") == "completed"]


@pytest.mark.item("rec-1", "rec-2")
@pytest.mark.parametrize("kind", ["command", "jsonl"])
def test_an_agent_that_fails_in_iteration_3_of_5_continues_there(lw: Place, kind: str) -> None:
    """The prompt of the repeated call has the complete progress log, and 4 and 5 follow."""
    agent = Writer(lw, kind)
    agent.at("fail", 3)
    first = lw("run", agent.loop(), "--json")
    assert (first.code, first.json["status"]) == (3, "failed")
    run = first.json["run"]
    assert f"loopwright resume {run}" in lw("show", run).out
    told = lw("resume", run)
    assert told.code == 0, told.err
    assert f"{run} resumed at iteration 3 of 5" in told.err
    assert agent.calls == [1, 2, 3, 3, 4, 5]
    assert iterations(lw, run) == [1, 2, 3, 4, 5]
    for part in (1, 2):
        assert f"I finished part {part}." in agent.prompt(4)
    assert "I finished part 4." in agent.prompt(6)
    shown = lw("show", run, "--json").json
    assert shown["iterations"] == 5
    assert lw("doctor", "--deep", "--json").json["ok"] is True


@pytest.mark.item("rec-1", "rec-5")
def test_a_failure_and_a_kill_in_one_run(lw: Place) -> None:
    """The process is killed in iteration 2, the agent fails in 3, and the run is killed again in 4;
    each iteration completes once, with the whole progress log."""
    agent = Writer(lw, "command")
    agent.at("hang", 2)
    agent.at("fail", 3)
    driver = lw.start("run", agent.loop())
    kill_there(agent, driver)
    assert lw("resume", "last").code == 3
    agent.at("hang", 4)
    kill_there(agent, lw.start("resume", "last"))
    told = lw("resume", "last", "--json")
    assert (told.code, told.json["status"]) == (0, "completed")
    assert agent.calls == [1, 2, 2, 3, 3, 4, 4, 5]
    assert iterations(lw, told.json["run"]) == [1, 2, 3, 4, 5]
    assert all(f"I finished part {part}." in agent.prompt(8) for part in (1, 2, 3, 4))


def kill_there(agent: Writer, driver: Any) -> None:
    """Kill the driver when the agent hangs."""
    until((agent.folder / "hanging").exists)
    os.kill(driver.pid, signal.SIGKILL)
    driver.communicate()
    (agent.folder / "hanging").unlink()


@pytest.mark.item("rec-4")
def test_a_restart_begins_with_iteration_1_and_says_so(lw: Place) -> None:
    """What was learned before is not in its prompts."""
    agent = Writer(lw, "command")
    agent.at("fail", 3)
    lw("run", agent.loop())
    told = lw("resume", "last", "--restart")
    assert told.code == 0
    assert "restarted at iteration 1" in told.err
    assert agent.calls == [1, 2, 3, 1, 2, 3, 4, 5]
    assert "I finished part" not in agent.prompt(4)


# -- ways of ending --------------------------------------------------------------------------------

FAIL = {"fail": {"type": "crashed", "detail": "lost"}}
USED = {"input_tokens": 40, "output_tokens": 0, "usd": 0}
DEFINITION = {"name": "work", "goal": "Do it.", "repeat": {"max": 3, "memory": "progress-log"}}

ENDINGS: dict[str, tuple[dict[str, Any], list[Any], list[str], str]] = {
    "failure": ({}, ["one", FAIL, "two", "three"], [], "iteration 2 of 3"),
    "budget": (
        {"budget": {"tokens": 50}},
        [{"text": str(n), "usage": USED} for n in range(3)],
        ["--budget", "tokens=500"],
        "iteration 3 of 3",
    ),
    "cap": (
        {"repeat": {"max": 2, "until": {"signal": "DONE"}}},
        ["one", "two", "DONE"],
        ["--max", "3"],
        "iteration 3 of 3",
    ),
    "deadline": (
        {"budget": {"time": "1s"}},
        ["one", {"text": "late", "delay": 1.5}, "two", "three"],
        ["--time", "1h"],
        "iteration 2 of 3",
    ),
}


def ended_run(lw: Place, ending: str) -> tuple[str, list[str], str]:
    """A run that ended so, the options with which it is resumed, and where it continues."""
    more, replies, options, point = ENDINGS[ending]
    document = {**DEFINITION, **more, "agent": lw.script(*replies)}
    lw.write("loop.yaml", json.dumps(document))
    told = lw("run", "loop.yaml", "--json")
    assert told.code in (3, 4), told
    return told.json["run"], options, point


@pytest.mark.item("rec-3", "rec-5")
@pytest.mark.parametrize("ending", ENDINGS)
def test_each_way_of_ending_is_resumed_from_the_command_line(lw: Place, ending: str) -> None:
    """With the option that it needs; without it the refusal names the option."""
    run, options, point = ended_run(lw, ending)
    if ending in ("budget", "cap"):
        plain = lw("resume", run)
        assert (plain.code, options[0] in plain.err) == (8, True)
        assert options[0] in lw("show", run).out
    told = lw("resume", run, *options)
    assert told.code == 0, told.err
    assert f"resumed at {point}" in told.err
    assert iterations(lw, run) == [1, 2, 3]


def at_prompt(lw: Place, line: str) -> Told:
    """A line at the prompt of `repl`, in this process."""
    lines = lw.write("lines", line)
    with pytest.MonkeyPatch.context() as patch, lines.open() as stdin:
        patch.setattr(sys, "stdin", stdin)
        return lw("repl")


@pytest.mark.item("rec-5")
@pytest.mark.parametrize("ending", ["failure", "cap"])
def test_the_prompt_takes_the_same_options(lw: Place, ending: str) -> None:
    """And says where the run continues."""
    run, options, point = ended_run(lw, ending)
    line = f"/loops resume {run} {' '.join(options)}\n"
    told = at_prompt(lw, line)
    assert told.code == 0, told
    assert f"{run} resumed at {point}" in told.out + told.err
    assert iterations(lw, run) == [1, 2, 3]


def test_wrong_options_at_the_prompt_are_named(lw: Place) -> None:
    """The usage is shown, and the run is left alone."""
    run, _, _ = ended_run(lw, "failure")
    told = at_prompt(lw, f"/loops resume {run} --more\n")
    assert "--restart" in told.out + told.err
    assert iterations(lw, run) == [1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(
            ["--budget", "tokens=60"], "has already used 80 of 60 tokens", id="too-little"
        ),
        pytest.param(["--max", "1"], "has made 2 iterations already", id="too-few"),
    ],
)
def test_limits_that_are_already_reached_are_refused(
    lw: Place, options: list[str], words: str
) -> None:
    """The limit is for the whole run."""
    run, _, _ = ended_run(lw, "budget")
    told = lw("resume", run, *options)
    assert (told.code, words in told.err) == (2, True), told.err


@pytest.mark.item("rec-5")
def test_a_stopped_run_is_resumed(lw: Place) -> None:
    """A person's stop is not the end of the work."""
    agent = Writer(lw, "command")
    agent.at("hang", 3)
    driver = lw.start("run", agent.loop())
    until((agent.folder / "hanging").exists)
    assert lw("stop", "last").code == 0
    driver.communicate()
    run = lw("ls", "--json").json["runs"][0]
    assert run["status"] == "cancelled"
    assert f"loopwright resume {run['run']}" in lw("show", "last").out
    told = lw("resume", "last")
    assert "resumed at iteration 3 of 5" in told.err
    assert agent.calls == [1, 2, 3, 3, 4, 5]


@pytest.mark.item("rec-3")
def test_another_agent_continues_with_what_was_learned(lw: Place) -> None:
    """`--agent` counts from the resume on."""
    run, _, _ = ended_run(lw, "failure")
    other = Writer(lw, "command")
    told = lw("resume", run, "--agent", other.spec)
    assert told.code == 0, told.err
    assert other.calls == [2, 3]
    assert "one" in other.prompt(1)


@pytest.mark.item("rec-41")
def test_changes_are_accepted_only_where_files_are_protected(lw: Place) -> None:
    """The refusal says so, and the run is left alone."""
    run, _, _ = ended_run(lw, "failure")
    told = lw("resume", run, "--accept-changes")
    assert (told.code, "has none" in told.err) == (2, True), told.err
    assert iterations(lw, run) == [1]
