"""The live view on a terminal: what it shows, in every size, and what it never lets through."""

import re

import pytest

from tests.cli.conftest import Place, until

SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def drawn(seen: str) -> str:
    return SEQUENCES.sub("", seen)


def slow(lw: Place) -> str:
    usage = {"input_tokens": 1000, "output_tokens": 500, "usd": 0.25}
    agent = lw.script(
        {"text": "thinking about it\x1b]0;evil\x07", "usage": usage, "delay": 0.3},
        {"text": "DONE", "delay": 0.3},
    )
    return lw.loop(agent, until={"signal": "DONE"}, top={"budget": {"usd": 5}})


def test_a_run_is_shown_while_it_moves(lw: Place) -> None:
    """Goal, passes, the agent's words, verdicts, spend and id are drawn; the end stays there."""
    with lw.terminal("run", slow(lw)) as screen:
        assert screen.leave() == 0
    seen = drawn(screen.seen)
    for part in (
        "Do it.",
        "iteration 1/3",
        "█",
        "thinking about it",
        "✗ signal: DONE failed",
        "✓ signal: DONE passed",
        "$0.25 of $5.00",
        "1.5k tokens",
        "run_",
    ):
        assert part in seen
    assert "\x1b]0;" not in screen.seen
    line = seen.splitlines()[-3]
    assert line.startswith("✓ Completed in 2 iterations · ")
    assert line.endswith(" s · $0.25 · agent signalled completion")
    assert seen.splitlines()[-1] == "DONE"


@pytest.mark.item("K6")
@pytest.mark.parametrize("size", [(5, 20), (1, 1), (24, 80), (100, 400), (3, 200), (60, 12)])
def test_every_size_of_terminal(lw: Place, size: tuple[int, int]) -> None:
    """From a stamp to a wall: no crash, and no line is longer than the terminal is wide."""
    with lw.terminal("run", slow(lw), size=size) as screen:
        assert screen.leave() == 0
        assert "Traceback" not in screen.seen
    if size[0] < 8 and size[1] >= 20:
        assert re.search(r"[12]/3 running \d+s", drawn(screen.seen))


def test_ctrl_c_names_the_whole_command_that_continues(lw: Place) -> None:
    """Also where the terminal is narrow: an id that is cut is of no use."""
    agent = lw.probe({"hang": True})
    with lw.terminal("run", lw.loop(agent), size=(24, 60)) as screen:
        until(lambda: bool(lw.calls()))
        screen.press_ctrl_c()
        screen.wait_for("pausing after this iteration (Ctrl-C again exits at once)")
        (run,) = {one["run"] for one in lw("ls", "--json").json["runs"]}
        screen.wait_for(f"loopwright resume {run}")
        screen.press_ctrl_c()
        assert screen.leave() == 130


@pytest.mark.item("rec-12")
def test_a_failed_snapshot_is_shown(lw: Place) -> None:
    """Above the picture, where it stays."""
    work = lw.folder / "inner"
    work.mkdir()
    script = lw.write("agent.sh", f"#!/bin/sh\ncat >/dev/null\nrm -rf {work}\n")
    script.chmod(0o755)
    words = ["loop", "go", "--agent", f"command:{script}", "--max", "1", "--workspace", str(work)]
    with lw.terminal(*words, size=(24, 200), env={"LOOPWRIGHT_SNAPSHOTS": "on"}) as screen:
        screen.leave()
    assert "iteration 1/1: warning: the snapshot of the workspace failed: " in drawn(screen.seen)


@pytest.mark.item("K6")
def test_a_storm_of_resizes(lw: Place) -> None:
    """The terminal may change its size at any time."""
    with lw.terminal("run", slow(lw)) as screen:
        screen.wait_for("iteration 1/3")
        for number in range(60):
            screen.resize(1 + number % 50, 1 + (number * 7) % 200)
        assert screen.leave() == 0
        assert "Traceback" not in screen.seen


@pytest.mark.item("K6")
@pytest.mark.parametrize(
    ("env", "moving"),
    [
        pytest.param({"TERM": "dumb"}, False, id="dumb"),
        pytest.param({"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}, True, id="no UTF-8"),
        pytest.param({"NO_COLOR": "1"}, True, id="no colour"),
    ],
)
def test_poor_terminals(lw: Place, env: dict[str, str], moving: bool) -> None:
    """Without cursor movement there are plain lines, without UTF-8 plain signs."""
    with lw.terminal("run", slow(lw), env=env) as screen:
        assert screen.leave() == 0
    assert ("\x1b[" in screen.seen) == moving
    assert "█" not in screen.seen or "PYTHONIOENCODING" not in env
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", screen.seen) or "NO_COLOR" not in env
    assert "Completed in 2 iterations" in screen.seen
    assert ("✓ Completed" in screen.seen) == ("PYTHONIOENCODING" not in env)


def test_json_on_a_terminal_is_alone_on_stdout(lw: Place) -> None:
    """With --json nothing is drawn over; the object comes last."""
    with lw.terminal("run", slow(lw), "--json") as screen:
        assert screen.leave() == 0
    assert "\x1b[2K" not in screen.seen
    assert screen.seen.rstrip().endswith("}")
