"""`loopwright watch` and `logs -f`: runs that other processes drive, with text as it is written."""

import asyncio
import json
import os
import signal
import sys
import threading

import pytest

from loopwright.client.run_feeds import LocalFeeds
from loopwright.client.transport import Fed, SeenEvent
from loopwright.kernel.events import EffectDone
from loopwright.model.ids import AGENT_CALL
from loopwright.operations.loop_definition import LoopOptions
from loopwright.operations.run_start import StartPlace, launch_run, prepare_start, start_request
from loopwright.operations.settings import load_settings
from loopwright.operations.wiring import local
from loopwright.ports import Delta
from tests.cli.conftest import Place, until
from tests.cli.terminal import PATIENCE_S
from tests.person import ME

AGENT = """
import json, os, sys, time
sys.stdin.read()
for word in ("thinking", "about", "it"):
    print(json.dumps({"type": "text", "text": f"{word}\\n"}), flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
print(json.dumps({"type": "text", "text": "DONE"}), flush=True)
"""


def started(lw: Place, **repeat: object) -> str:
    """A run in the background whose agent has written something and waits for the file `go`."""
    lw.write("agent.py", AGENT)
    file = lw.loop(f"jsonl:{sys.executable} agent.py", **{"until": {"signal": "DONE"}, **repeat})
    run = lw.real("run", file, "--detach").out.strip()
    until(lambda: "effect.requested" in lw.kinds(run))
    return run


@pytest.mark.item("rec-34")
def test_a_terminal_shows_text_while_it_is_written(lw: Place) -> None:
    """The live view of a run in the background, to its end, with its exit code."""
    run = started(lw)
    with lw.terminal("watch", run) as screen:
        screen.wait_for("about")
        screen.wait_for("iteration 1/3")
        (lw.folder / "go").touch()
        assert screen.leave() == 0
    assert "✓ Completed in 1 iteration" in screen.seen
    assert lw("show", run, "--json").json["status"] == "completed"


@pytest.mark.item("rec-34")
def test_ctrl_c_leaves_the_run_alone(lw: Place) -> None:
    """Watching ends with 130 and says that the run keeps running."""
    run = started(lw)
    with lw.terminal("watch", run) as screen:
        screen.wait_for("about")
        screen.press_ctrl_c()
        assert screen.leave() == 130
        assert f"{run} keeps running" in screen.seen
    assert lw("show", run, "--json").json["status"] == "running"
    (lw.folder / "go").touch()
    until(lambda: lw("show", run, "--json").json["status"] == "completed")
    assert "run.paused" not in lw.kinds(run)


@pytest.mark.item("rec-34")
@pytest.mark.parametrize("args", [["watch"], ["logs", "-f"]], ids=["watch", "logs -f"])
def test_text_comes_before_the_call_has_ended(lw: Place, args: list[str]) -> None:
    """Off a terminal, too; each text once."""
    run = started(lw)
    process = lw.start(args[0], run, *args[1:])
    seen: list[str] = []
    stream = process.stderr if args[0] == "watch" else process.stdout
    assert stream is not None

    def read() -> None:
        seen.extend(line.decode() for line in stream)

    thread = threading.Thread(target=read)
    thread.start()
    until(lambda: any("about" in line for line in list(seen)))
    assert lw("show", run, "--json").json["status"] == "running"
    (lw.folder / "go").touch()
    thread.join(PATIENCE_S)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    written = [line for line in seen if line.strip(" |\n") in ("thinking", "about", "it")]
    assert [line.strip(" |\n") for line in written] == ["thinking", "about", "it"]
    assert any("✓ Completed in 1 iteration" in line for line in seen)


@pytest.mark.item("rec-34")
@pytest.mark.parametrize(
    ("replies", "repeat", "code", "words"),
    [
        pytest.param(["DONE"], {"until": {"signal": "DONE"}}, 0, "✓ Completed in 1", id="0"),
        pytest.param([{"fail": "no"}], {}, 3, "✗ Failed in iteration 1", id="3"),
        pytest.param(["a"] * 3, {"until": {"signal": "D"}}, 4, "limit of 3 iterations", id="4"),
        pytest.param(["a"], {"until": {"person": True}}, 5, "loopwright approve gate_", id="5"),
    ],
)
def test_a_run_at_rest_is_shown_with_its_exit_code(
    lw: Place, replies: list[object], repeat: dict[str, object], code: int, words: str
) -> None:
    """Its final line, its output or how it is answered, and the exit code of `run`."""
    ran = lw("run", lw.loop(lw.script(*replies), **repeat))
    told = lw.real("watch", "last")
    assert (told.code, ran.code) == (code, code)
    assert words in told.err
    assert told.out == ran.out


@pytest.mark.item("rec-34")
def test_a_person_answers_where_they_watch(lw: Place) -> None:
    """At a gate in a terminal the answer is taken, and the run continues in the background."""
    lw("run", lw.loop(lw.script("a poem"), until={"person": True}))
    with lw.terminal("watch", "last") as screen:
        screen.wait_for("[l]eave it: ")
        assert "a poem" in screen.seen
        screen.type("a good\n")
        assert screen.leave() == 0
    [event] = [one for one in lw.events("last") if one["kind"] == "gate.answered"]
    assert (event["decision"], event["text"], event["by"]) == ("approve", "good", ME)


@pytest.mark.item("rec-16", "rec-34")
def test_a_person_sees_the_changes_where_they_watch(
    lw: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`d` at a gate shows the diff of the iteration, and the question is asked again."""
    monkeypatch.setenv("LOOPWRIGHT_SNAPSHOTS", "on")
    lw.env["LOOPWRIGHT_SNAPSHOTS"] = "on"
    lw.write("agent.sh", "#!/bin/sh\necho a new line >> notes.txt\n").chmod(0o755)
    assert lw("loop", "Write", "--agent", "command:./agent.sh", "--manual", "--max", "1").code == 5
    with lw.terminal("watch", "last") as screen:
        screen.wait_for("[l]eave it: ")
        screen.type("d\n")
        screen.wait_for("a new line")
        screen.type("a\n")
        assert screen.leave() == 0


@pytest.mark.item("rec-34")
def test_events_as_they_occur(lw: Place) -> None:
    """--jsonl prints every event once, in order, and nothing else on stdout."""
    run = started(lw)
    process = lw.start("watch", run, "--jsonl")
    (lw.folder / "go").touch()
    out, _ = process.communicate(timeout=PATIENCE_S)
    events = [json.loads(line) for line in out.splitlines()]
    assert events[-1]["kind"] == "run.finished"
    assert [one["seq"] for one in events] == list(range(1, len(lw.events(run)) + 1))


@pytest.mark.parametrize(
    "words", [("watch",), ("logs", "-f"), ("logs", "-f", "--tools"), ("events", "-f")]
)
def test_a_run_whose_process_was_killed_is_interrupted(
    lw: Place, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Watching and following end with 5 and say how the run is resumed."""
    run = started(lw)
    os.kill(lw("show", run, "--json").json["driver"], signal.SIGKILL)
    monkeypatch.setattr("loopwright.operations.run_tail.GRACE_S", 0.3)
    told = lw(*words, run)
    assert told.code == 5
    assert "Interrupted in iteration 1 of 3" in told.err
    assert f"loopwright resume {run}" in told.err
    (lw.folder / "go").touch()


@pytest.mark.parametrize("words", [("logs", "-f"), ("logs", "-f", "--tools"), ("events", "-f")])
def test_following_ends_when_only_a_person_can_advance_the_run(
    lw: Place, words: tuple[str, ...]
) -> None:
    """A run that waits and that no process drives, and the same run when it is paused."""
    lw("run", lw.loop(lw.script("a poem"), until={"person": True}))
    told = lw(*words, "last")
    assert (told.code, "loopwright approve gate_" in told.err) == (5, True)
    assert lw("pause", "last").code == 0
    told = lw(*words, "last")
    assert (told.code, "loopwright resume run_" in told.err) == (5, True)


def test_text_is_shown_between_the_events_of_its_call(lw: Place) -> None:
    """Text that arrives together with events comes after the start and before the end of its
    call, whatever was read first.
    """

    async def follow() -> list[str]:
        settings = load_settings().settings
        async with local(settings) as here:
            source = LoopOptions(commands=(), patterns=(), signals=(), judges=(), max=1)
            request = start_request({"message": "go", "agents": ("command:true",)})
            start, _ = prepare_start(StartPlace(settings=settings), request, source)
            run = await launch_run(here.service, start)
            feed = LocalFeeds(here, settings.home).open(run, 0)
            await here.driver.rest(run)
            events = here.service.events(run)
            [ends] = [
                one
                for one in events
                if isinstance(one.event, EffectDone) and one.event.purpose == AGENT_CALL
            ]
            feed._waiting.clear()
            feed.move(ends.seq - 1)
            feed.hear(Delta(run=run, effect=ends.event.effect, kind="text", text="hello"))
            feed.move(len(events))
            return [_named(one) async for one in feed.follow()]

    shown = asyncio.run(follow())
    start = shown.index("iteration.started")
    assert start < shown.index("hello") == shown.index("effect.done") - 1


def _named(one: Fed) -> str:
    if isinstance(one, Delta):
        return one.text
    assert isinstance(one, SeenEvent)
    assert one.numbered is not None
    return str(type(one.numbered.event).__struct_config__.tag)
