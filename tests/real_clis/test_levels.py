"""Real coding CLIs at access levels: behind bubblewrap, with the trackers of their run."""

import asyncio
import os
from collections.abc import Sequence
from unittest.mock import patch

import pytest

from loopwright.agents.sandbox import bubblewrap
from loopwright.model.actions import CallAgent, Step
from loopwright.model.plan import Access, Agent, Plan
from loopwright.model.record import JsonValue, literal
from loopwright.operations.run_request import RunStart
from loopwright.operations.settings import Settings
from loopwright.operations.wiring import local
from loopwright.testing.wires import ScriptedCall, ScriptedTurn, WireRequest, WireScript
from tests.real_clis.conftest import Lab, Labs, needs

pytestmark = [pytest.mark.real_cli, pytest.mark.timeout(600)]
needs_sandbox = pytest.mark.skipif(
    bubblewrap.works() is not None, reason=f"bubblewrap cannot work here: {bubblewrap.works()}"
)


TODO: dict[str, JsonValue] = {"todos": [{"title": "from a stage"}]}


def tries(*calls: ScriptedCall) -> WireScript:
    """A model that tries these, one in each turn."""
    turns = tuple(ScriptedTurn(calls=(call,)) for call in calls)
    return WireScript(turns=turns, otherwise=ScriptedTurn(text="That was all."))


def played(lab: Lab, cli: str, level: Access) -> tuple[str, Sequence[str]]:
    """A run with the CLI at a level: its status, and the titles of todos that it leaves."""
    action = CallAgent(agent="worker", prompt=literal("Do it."))
    agent = Agent(spec=lab.spec(cli), access=level, role="worker", wall_ms=240_000)
    plan = Plan(name="p", steps=(Step(id="main", action=action),), agents={"worker": agent})

    async def work() -> tuple[str, Sequence[str]]:
        settings = Settings(home=lab.folder / "data", durability="normal")
        async with local(settings) as here:
            start = RunStart(plan=plan, workspace=lab.work, message="Go.", session="s")
            run = await here.service.start(start)
            await here.driver.rest(run)
            status = here.log.row(run).headline.status
            return status, [one.text("title") for one in here.trackers.all("s", "todo")]

    with patch.dict(os.environ, lab.env):
        return asyncio.run(work())


@needs_sandbox
@pytest.mark.parametrize("level", ["readonly", "readonly-shell", "minimal"])
def test_claude_below_full_writes_nothing_and_has_its_trackers(labs: Labs, level: Access) -> None:
    """Its own flags and the sandbox hold it; the todo that it adds is there afterwards."""
    needs("claude")
    lab = labs(
        tries(
            ScriptedCall(name="Write", args={"file_path": "a.txt", "content": "hi\n"}),
            ScriptedCall(name="Bash", args={"command": "touch b.txt"}),
            ScriptedCall(
                name="mcp__loopwright__todo_add", args={"todos": [{"title": "from claude"}]}
            ),
        )
    )
    (lab.work / "notes.txt").write_text("plum\n")
    assert played(lab, "claude", level) == ("completed", ["from claude"])
    assert [one.name for one in lab.work.iterdir()] == ["notes.txt"]


@needs_sandbox
def test_claude_reads_with_a_command_at_readonly_shell(labs: Labs) -> None:
    """One of the reading commands runs, and the model sees what it printed."""
    needs("claude")
    lab = labs(tries(ScriptedCall(name="Bash", args={"command": "cat notes.txt"})))
    (lab.work / "notes.txt").write_text("a ripe plum\n")
    assert played(lab, "claude", "readonly-shell")[0] == "completed"
    assert any("a ripe plum" in request.raw.decode() for request in lab.wires.asked)


@needs_sandbox
def test_claude_at_full_writes_in_the_workspace(labs: Labs) -> None:
    """Files and commands, behind a wall that leaves the workspace writable."""
    needs("claude")
    lab = labs(
        tries(
            ScriptedCall(name="Write", args={"file_path": "a.txt", "content": "hi\n"}),
            ScriptedCall(name="Bash", args={"command": "touch b.txt"}),
        )
    )
    assert played(lab, "claude", "full")[0] == "completed"
    assert {"a.txt", "b.txt"} <= {one.name for one in lab.work.iterdir()}


@needs_sandbox
@pytest.mark.parametrize(
    ("cli", "call"),
    [
        ("codex", ScriptedCall(name="todo_add", namespace="mcp__loopwright", args=TODO)),
        ("opencode", ScriptedCall(name="loopwright_todo_add", args=TODO)),
    ],
)
@pytest.mark.parametrize("level", ["full", "readonly-shell"])
def test_others_have_their_trackers(
    labs: Labs, cli: str, call: ScriptedCall, level: Access
) -> None:
    """The server of the stage, in the words of each program, behind the sandbox."""
    needs(cli)
    left = [ScriptedTurn(calls=(call,))]

    def choose(request: WireRequest) -> ScriptedTurn:
        wants_title = cli == "opencode" and not request.tools
        return ScriptedTurn(text="Done.") if wants_title or not left else left.pop(0)

    lab = labs(choose=choose)
    assert played(lab, cli, level) == ("completed", ["from a stage"])
