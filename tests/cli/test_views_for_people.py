"""What a person reads after a run: `show`, the hints at its end, and answers at a gate."""

import asyncio
import sys
from collections.abc import Iterator

import pytest

from loopwright.cli.gate_prompts import GateReply, ask
from loopwright.cli.run_logs import _put_activity
from loopwright.cli.terminal import CommonOptions, Terminal
from loopwright.kernel.events import GateOpened
from loopwright.views.status_text import duration_text
from loopwright.views.transcript import ActivityItem
from tests.cli.conftest import Place

AGENT = """\
import json, os, sys
sys.stdin.read()
if os.environ["LOOPWRIGHT_ITERATION"] == "2" and not os.path.exists("mended"):
    sys.exit(3)
open("notes.txt", "a").write("x\\n")
usage = {"type": "usage", "input_tokens": 10, "output_tokens": 5}
print(json.dumps({**usage, "usd": 0.25 * int(os.environ["LOOPWRIGHT_ITERATION"])}))
print(json.dumps({"type": "result", "text": "ok"}))
"""


def test_show_says_what_a_run_was_started_with_and_when_it_was_resumed(lw: Place) -> None:
    """Agent, limits, protected files, names of variables, cost of each iteration, resumption."""
    lw.write("agent.py", AGENT)
    agent = f"jsonl:{sys.executable} {lw.folder / 'agent.py'}"
    limits = ["--max", "2", "--budget", "usd=5,tokens=2M,time=1h"]
    more = ["--protect", "*.py", "--env", "PHRASE=keep-this-secret"]
    told = lw("loop", "go", "--agent", agent, *limits, *more)
    assert told.code == 3
    run = lw("ls", "--json").json["runs"][0]["run"]
    assert f"  loopwright resume {run}   continues it\n" in told.err
    lw.write("mended", "")
    assert lw("resume", run).code == 0
    shown = lw("show", run).out
    assert f"agent      {agent}\n" in shown
    assert "limits     2 iterations, $5.00, 2M tokens, 1h\n" in shown
    assert "protected  *.py\n" in shown
    assert "variables  PHRASE\n" in shown
    assert "keep-this-secret" not in shown
    assert ", at iteration 2 of 2\n" in shown
    assert "  $0.25  " in shown
    assert "  $0.50 + unknown (1 call)  " in shown
    assert f"  loopwright diff {run}\n" in shown
    detail = lw("show", run, "--json").json
    assert [one["usage"]["usd"] for one in detail["passes"]] == [0.25, 0.5]
    assert [one["point"] for one in detail["resumed"]] == ["iteration 2 of 2"]


def test_a_run_that_a_time_limit_ended_names_a_longer_one(lw: Place) -> None:
    """The command that resumes it has twice the time."""
    told = lw("loop", "go", "--agent", "command:sleep 30", "--max", "1", "--budget", "time=300ms")
    assert told.code == 4
    run = lw("ls", "--json").json["runs"][0]["run"]
    assert f"  loopwright resume {run} --time 600ms   continues it\n" in told.err
    assert f"  loopwright resume {run} --time 600ms\n" in lw("show", run).out


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        pytest.param(7_200_000, "2h", id="hours"),
        pytest.param(5_400_000, "90m", id="minutes"),
        pytest.param(90_000, "90s", id="seconds"),
        pytest.param(1_500, "1500ms", id="milliseconds"),
    ],
)
def test_durations_are_written_as_the_option_takes_them(ms: int, text: str) -> None:
    """The largest unit that needs no fraction."""
    assert duration_text(ms) == text


@pytest.mark.parametrize(
    ("lines", "reply"),
    [
        pytest.param(["r", "too long"], GateReply("reject", "too long"), id="asked for"),
        pytest.param(["r", ""], GateReply("reject", ""), id="none"),
        pytest.param(["r too long"], GateReply("reject", "too long"), id="given at once"),
        pytest.param(["a"], GateReply("approve", ""), id="approval needs none"),
        pytest.param(["r"], None, id="left"),
    ],
)
def test_a_rejected_iteration_is_asked_for_a_reason(
    lines: list[str], reply: GateReply | None
) -> None:
    """An empty line is an answer: the reason of a rejection may be left out."""
    typed: Iterator[str] = iter(lines)

    async def read_line() -> str | None:
        return next(typed, None)

    gate = GateOpened(
        at=1,
        path="main.0",
        gate="gate_1",
        digest="d" * 32,
        message="Accept?",
        answers=("approve", "reject", "continue"),
        about="pass",
    )
    assert asyncio.run(ask(Terminal(CommonOptions()), gate, "", read_line)) == reply


def test_activity_of_several_days_has_dates(capsys: pytest.CaptureFixture[str]) -> None:
    """A line names the date wherever the day is not that of the entry before."""
    entries = [
        ActivityItem(
            seq=1,
            number=1,
            effect="main/agent#1",
            path="main",
            iteration=1,
            agent="a",
            at=at,
            kind="tool",
            tool="Read",
            target="x",
            ok=None,
            code=None,
            ms=None,
            text="",
            arguments="",
            arguments_bytes=0,
            result="",
            result_bytes=0,
        )
        for at in ("2020-01-01T23:59:00Z", "2020-01-01T23:59:30Z", "2020-01-02T00:01:00Z")
    ]
    _put_activity(Terminal(CommonOptions()), "run_1", iter(entries), {})
    lines = capsys.readouterr().out.splitlines()
    dates = [number for number, line in enumerate(lines) if "(UTC)" in line]
    assert dates == [0, 3]
    assert "2020-01-02" in lines[3]
