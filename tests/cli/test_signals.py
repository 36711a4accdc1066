"""Ctrl-C and SIGTERM while a run is driven: pause first, leave second, never lose the run."""

import json
import signal

import pytest

from tests.cli.conftest import Place, until
from tests.cli.terminal import PATIENCE_S
from tests.cli.test_control import begun, is_running


@pytest.mark.item("K4")
def test_one_interrupt_pauses(lw: Place) -> None:
    """The first Ctrl-C lets the iteration end, says how to come back, and leaves with 130."""
    go = lw.folder / "go"
    process = begun(lw, {"wait_for": str(go), "say": "one"}, {"say": "DONE"})
    process.send_signal(signal.SIGINT)
    until(lambda: "run.paused" in lw.kinds("run_"))
    go.touch()
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert json.loads(out)["status"] == "paused"
    assert b"loopwright resume run_" in err
    assert len(lw.calls()) == 1
    assert lw("resume", "run_", "--json").json["status"] == "completed"


@pytest.mark.item("K4")
def test_two_interrupts_leave_at_once(lw: Place) -> None:
    """The second Ctrl-C ends the agent with all it started; the run stays resumable."""
    process = begun(lw, {"hang": True})
    [call] = lw.calls()
    process.send_signal(signal.SIGINT)
    until(lambda: "run.paused" in lw.kinds("run_"))
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert json.loads(out)["status"] == "paused"
    until(lambda: not is_running(call["pid"]) and not is_running(call["child"]))
    lw.probe({"say": "DONE"})
    assert lw("resume", "run_", "--json").json["status"] == "completed"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["TERM", "HUP"]
)
def test_termination_leaves_at_once(lw: Place, number: signal.Signals, code: int) -> None:
    """SIGTERM ends the agent and leaves with 143; the run is taken up again by resume."""
    process = begun(lw, {"hang": True})
    [call] = lw.calls()
    process.send_signal(number)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    assert json.loads(out)["status"] == "running"
    until(lambda: not is_running(call["pid"]) and not is_running(call["child"]))
    lw.probe({"say": "DONE"})
    told = lw("resume", "run_", "--json")
    assert (told.code, told.json["iterations"]) == (0, 1)


@pytest.mark.item("K4")
def test_keys_on_a_terminal(lw: Place) -> None:
    """On a terminal the view says what the first Ctrl-C did; the second one leaves."""
    file = lw.loop("command:false", until={"signal": "DONE"})
    with lw.terminal("run", file, "--agent", lw.probe({"hang": True})) as screen:
        until(lambda: len(lw.calls()) == 1)
        screen.press_ctrl_c()
        screen.wait_for("Ctrl-C again")
        screen.press_ctrl_c()
        assert screen.leave() == 130
        assert "loopwright resume run_" in screen.seen
        assert "Traceback" not in screen.seen


def test_an_interrupt_at_a_question(lw: Place) -> None:
    """Ctrl-C while a person is asked leaves the run waiting."""
    file = lw.loop(lw.script("x"), until={"person": True})
    with lw.terminal("run", file) as screen:
        screen.wait_for("[l]eave it: ")
        screen.press_ctrl_c()
        assert screen.leave() == 130
    assert len(lw("inbox", "--json").json["gates"]) == 1


def test_an_interrupt_while_following(lw: Place) -> None:
    """Ctrl-C ends `events --follow` without a word."""
    run = lw("run", lw.loop(lw.script("x"), until={"person": True}), "--json").json["run"]
    process = lw.start("events", run, "--follow")
    assert process.stdout is not None
    while b"gate.opened" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (130, b"")
