"""Continue beyond a cap with `resume --max` and `fork --max`."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Place


def stopped(lw: Place) -> str:
    file = lw.loop(lw.probe(), max=2, memory="progress-log", at_cap="exhaust")
    told = lw("run", file)
    assert told.code == 4
    run: str = lw("ls", "--json").json["runs"][0]["run"]
    assert f"loopwright resume {run} --max 4   continues it" in told.err
    return run


def test_a_run_at_its_cap_says_how_it_continues(lw: Place) -> None:
    """At its end, in `show`, and when it is resumed as it is; the loop counts on and remembers."""
    run = stopped(lw)
    assert f"loopwright resume {run} --max 4" in lw("show", run).out
    plain = lw("resume", run)
    assert plain.code == 8
    assert f"`loopwright resume {run} --max 4` continues it" in plain.err
    told = lw("resume", run, "--max", "4", "--json")
    assert (told.code, told.json["status"], told.json["iterations"]) == (4, "exhausted", 4)
    calls = lw.calls()
    assert [call["env"]["LOOPWRIGHT_ITERATION"] for call in calls] == list("1234")
    assert [call["env"]["LOOPWRIGHT_RUN"] for call in calls] == [run] * 4
    assert "Stopped at the limit of 4 iterations" in lw("show", run).out
    assert lw("doctor", "--deep", "--json").json["ok"] is True


def test_more_iterations_count_after_the_end_too(lw: Place) -> None:
    """A loop that goes on beyond its cap and is done is told with what it was granted."""
    file = lw.loop(lw.script("one", "DONE"), max=1, until={"signal": "DONE"})
    assert lw("run", file).code == 4
    assert "Completed in 2 iterations" in lw("resume", "last", "--max", "3").err
    assert lw("ls", "--json").json["runs"][0]["max"] == 3


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        pytest.param(["--max", "2"], 2, "has made 2 iterations already", id="no more than before"),
        pytest.param(["--max", "0"], 2, "--max", id="none"),
        pytest.param(["--max", "1001"], 2, "--max", id="too many"),
    ],
)
def test_caps_that_are_none(lw: Place, words: list[str], code: int, told: str) -> None:
    """A cap has to be above what was made, and within what loops may have."""
    run = stopped(lw)
    said = lw("resume", run, *words)
    assert said.code == code
    assert told in said.err


def test_a_fork_beyond_the_cap(lw: Place) -> None:
    """The new run goes on after the last iteration of the old one, which stays as it is."""
    run = stopped(lw)
    told = lw("fork", run, "--at", "main.1")
    assert told.code == 8
    assert "--max" in told.err
    made = lw("fork", run, "--at", "main.1", "--max", "3", "--json")
    assert (made.code, made.json["iterations"]) == (4, 3)
    assert lw("fork", run, "--at", "main.1", "--max", "2").code == 2


def test_more_iterations_of_a_completed_loop_are_a_fork(lw: Place) -> None:
    """A loop without checks completes at its limit; the hint has a command that works."""
    file = lw.loop(lw.probe(), max=2, memory="progress-log")
    run = lw("run", file, "--json").json["run"]
    told = lw("resume", run, "--max", "3")
    command = f"loopwright fork {run} --at 2 --max 3"
    assert told.code == 8
    assert command in told.err
    assert lw(*command.split()[1:], "--json").json["iterations"] == 3


def test_options_for_a_paused_run_say_what_to_do(lw: Place) -> None:
    """Stop it, then resume it with the options."""
    run = lw("run", lw.loop(lw.probe(), until={"person": True}), "--json").json["run"]
    told = lw("resume", run, "--max", "9")
    assert told.code == 8
    assert f"`loopwright stop {run}`" in told.err


def test_a_budget_that_cannot_be_read_is_reported_before_the_cap(lw: Place) -> None:
    run = stopped(lw)
    told = lw("resume", run, "--budget", "usd=ten")
    assert (told.code, "iterations" in told.err) == (2, False)
    assert "usd" in told.err
