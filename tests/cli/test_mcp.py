"""`loopwright mcp`, driven by a real client over stdin and stdout."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

from loopwright import __version__
from loopwright.operations.mcp.loop_tools import INSIDE_RUN
from tests.cli.conftest import Place

STAGES = """\
replies:
  - when: {agent: plan}
    text: The plan.
  - when: {agent: coder}
    text: The work.
    %s
  - when: {agent: reviewer}
    text: "Needs changes: no tests."
  - when: {agent: plan}
    text: A better plan.
  - when: {agent: coder}
    text: Better work.
  - when: {agent: reviewer}
    text: APPROVED
"""
DEADLINE_S = 60.0


class Client:
    """A client, in short words."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def tools(self) -> set[str]:
        return {tool.name for tool in (await self._session.list_tools()).tools}

    async def text(self, tool: str, **arguments: Any) -> str:
        result = await self._session.call_tool(tool, arguments)
        assert not result.is_error, result.content
        return str(result.content[0].text)  # type: ignore[union-attr]

    async def json(self, tool: str, **arguments: Any) -> Any:
        return json.loads(await self.text(tool, **arguments))

    async def refused(self, tool: str, **arguments: Any) -> str:
        result = await self._session.call_tool(tool, arguments)
        assert result.is_error, result.content
        return str(result.content[0].text)  # type: ignore[union-attr]

    async def until(self, loop: str, *statuses: str, stage: str = "", ended: str = "") -> Any:
        """The status of a loop once it is one of these, or a stage is under way, or has ended."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                told = await self.json("loop_status", id=loop)
                stages = {(one["role"], one["status"]) for one in told["stages"]}
                wanted = {(stage, "running"), (ended, "completed")}
                if told["status"] in statuses or stages & wanted:
                    return told
                await asyncio.sleep(0.05)


@asynccontextmanager
async def connected(lw: Place, *flags: str) -> AsyncIterator[Client]:
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "loopwright", "mcp", "--agent", "script:stages.yaml", *flags],
        env={**lw.env, "LOOPWRIGHT_DURABILITY": "normal"},
        cwd=lw.folder,
    )
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        greeted = await session.initialize()
        assert greeted.server_info.version == __version__
        yield Client(session)


def play(lw: Place, work: Callable[[Client], Awaitable[None]], *flags: str) -> None:
    async def whole() -> None:
        async with connected(lw, *flags) as client:
            await work(client)

    asyncio.run(whole())


@pytest.fixture
def stages(lw: Place) -> Place:
    lw.write("stages.yaml", STAGES % "")
    return lw


@pytest.mark.item("coqui-8", "coqui-53")
def test_a_client_starts_a_loop_and_sees_it_through(stages: Place) -> None:
    """Two rounds of three roles, until the reviewer approves; nothing but the protocol is used."""
    stages.write("stages.yaml", STAGES % "tools: [{name: Bash, args: {command: make}, code: 2}]")

    async def work(client: Client) -> None:
        assert await client.tools() == {
            *("loop_start", "loop_list", "loop_status", "loop_activity", "loop_diff"),
            *("loop_control", "loop_tell", "loop_events", "loop_definitions"),
        }
        assert "harness" in await client.text("loop_definitions")
        told = await client.json("loop_start", definition="harness", goal="Build a cache")
        assert told["roles"] == ["plan", "coder", "reviewer"]
        assert (told["definition"], told["goal"], told["max_iterations"]) == (
            *("harness", "Build a cache", 5),
        )
        assert told["termination"] == "evaluation_bound"
        loop = told["loop_id"]
        end = await client.until(loop, "completed", "failed")
        assert (end["status"], end["outcome"], end["current_iteration"]) == (
            *("completed", "completed", 2),
        )
        assert [one["status"] for one in end["stages"]] == ["completed"] * 3
        assert end["stages"][2]["summary"] == "APPROVED"
        assert end["elapsed_seconds"] >= 0
        assert end["metadata"]["dispatch"]["status"] == "dispatched"
        did = (await client.json("loop_activity", id=loop, iteration=1))["entries"]
        assert [(one["kind"], one["target"], one["code"]) for one in did] == [
            ("command", "make", 2)
        ]
        assert (await client.json("loop_activity", id=loop, iteration=2))["entries"] == []
        assert loop in await client.text("loop_list", status="completed")
        assert await client.text("loop_list", status="failed") == "there are no loops"

    play(stages, work)


def test_a_start_returns_the_warnings_of_its_definition(stages: Place) -> None:
    """What is done differently than a definition says is in the answer, as over HTTP."""
    (stages.folder / "workspace" / "loops").mkdir(parents=True)
    stages.write(
        "workspace/loops/once.json",
        json.dumps({"name": "once", "roles": [{"role": "coder", "prompt": "Do it."}]}),
    )

    async def work(client: Client) -> None:
        told = await client.json("loop_start", definition="once", goal="Build a cache")
        [warning] = told["warnings"]
        assert warning.startswith("once:1:1: warning: no-termination: without termination_")
        await client.until(told["loop_id"], "completed", "failed")
        whole = await client.json("loop_start", definition="harness", goal="Build a cache")
        assert whole["warnings"] == []

    play(stages, work)


@pytest.mark.item("coqui-10", "coqui-79")
def test_parameters_and_arguments_that_are_not_declared_are_refused(stages: Place) -> None:
    """A parameter has what was given or its default; an unknown one is refused by its name, and so
    are unknown arguments and statuses. Nothing is started then.
    """

    async def work(client: Client) -> None:
        asked = {"definition": "research", "goal": "g"}
        told = await client.json("loop_start", **asked, parameters={"output_format": "a table"})
        assert told["parameters"]["output_format"] == "a table"
        assert told["parameters"]["max_review_rounds"] == "3"
        before = await client.text("loop_list")
        for parameters in ({"colour": 1}, '{"colour": 1}'):
            said = await client.refused("loop_start", **asked, parameters=parameters)
            assert "unknown input 'colour' (its inputs are max_review_rounds, output_format" in said
        said = await client.refused("loop_start", **asked, paramters={})
        assert "paramters" in said
        assert "max_iterations" in await client.refused("loop_start", **asked, max_iterations="3")
        assert 'not "finished"' in await client.refused("loop_list", status="finished")
        assert (await client.text("loop_list")).count("\n") == before.count("\n")

    play(stages, work)


@pytest.mark.item("coqui-43", "coqui-44", "coqui-45", "coqui-46", "coqui-47")
def test_a_client_pauses_resumes_and_stops(lw: Place) -> None:
    """Pausing lets the stage end, stopping does not; what does not fit is refused."""
    lw.write("stages.yaml", STAGES % "delay: 1.5")

    async def work(client: Client) -> None:
        loop = (await client.json("loop_start", definition="harness", goal="g"))["loop_id"]
        await client.until(loop, stage="coder")
        assert await client.text("loop_control", action="pause", id=loop) == f"{loop}: paused"
        assert "cannot be paused" in await client.refused("loop_control", action="pause", id=loop)
        told = await client.until(loop, ended="coder")
        assert (told["status"], told["stages"][2]["status"]) == ("paused", "pending")
        assert "1 loop resumed" in await client.text("loop_control", action="resume", id="ALL")
        end = await client.until(loop, "completed", "failed")
        assert end["status"] == "completed"
        said = await client.refused("loop_control", action="stop", id=loop)
        assert said.startswith("ended: ")

    play(lw, work)

    async def stop(client: Client) -> None:
        loop = (await client.json("loop_start", definition="harness", goal="g"))["loop_id"]
        await client.until(loop, stage="coder")
        await client.text("loop_control", action="stop", id=loop)
        assert (await client.json("loop_status", id=loop))["status"] == "cancelled"
        assert "no loop can be paused" in await client.text(
            "loop_control", action="pause", id="all"
        )
        assert "no run" in await client.refused("loop_status", id="run_zzzz")

    lw.write("stages.yaml", STAGES % "delay: 60")
    play(lw, stop)


@pytest.mark.item("coqui-8", "coqui-9", "coqui-12", "coqui-13", "coqui-14")
def test_what_cannot_be_started_creates_nothing(stages: Place) -> None:
    """Each is told with what is wrong, and there is no loop afterwards."""

    async def work(client: Client) -> None:
        async def start(**more: Any) -> str:
            given = {"definition": "harness", "goal": "g", **more}
            return await client.refused("loop_start", **given)

        assert "the message is empty" in await start(goal="  ")
        assert "harness" in await start(definition="harnes")
        assert "JSON object" in await start(parameters="[1]")
        assert "JSON object" in await start(parameters="{")
        assert "must be a text" in await start(parameters={"a": [1]})
        for number in (0, 1_001):
            told = await start(max_iterations=number)
            assert f"max must be a whole number from 1 to 1000, not {number}" in told
            assert "here it is `max_iterations`" in told
            assert "--max" not in told
        assert "not by both" in await start(project_id="a", project_slug="b")
        assert "no project" in await start(project_slug="zz")
        assert await client.text("loop_list") == "there are no loops"

    play(stages, work)


def test_gates_are_answered_only_where_that_is_allowed(lw: Place) -> None:
    """The two tools are there with the flag, and do what a person would."""
    file = lw.loop(lw.script("a", "b"), until={"person": True})
    gate = lw("run", file, "--json").json["gates"][0]["id"]
    lw.write("stages.yaml", STAGES % "")

    async def work(client: Client) -> None:
        assert "gate_answer" in await client.tools()
        [waiting] = (await client.json("gate_list"))["gates"]
        assert waiting["id"] == gate
        assert "no gate" in await client.refused("gate_answer", id="gate_zz", decision="approve")
        assert gate in await client.text("gate_answer", id=gate, decision="approve")

    play(lw, work, "--allow-answers")
    assert lw("inbox", "--json").json == {"gates": []}


def test_a_loop_outlives_its_client(lw: Place) -> None:
    """When the client goes, a process of its own drives the loop to its end."""
    lw.write("stages.yaml", STAGES % "delay: 1")
    loops: list[str] = []

    async def work(client: Client) -> None:
        told = await client.json("loop_start", definition="harness", goal="g")
        loops.append(told["loop_id"])
        await client.until(loops[0], stage="coder")

    play(lw, work)

    async def end(client: Client) -> None:
        told = await client.until(loops[0], "completed", "failed")
        assert told["status"] == "completed"

    play(lw, end)


@pytest.mark.item("bnd-p6")
def test_an_agent_inside_a_run_starts_and_looks(stages: Place) -> None:
    """It has the tools that start loops and look at its own, and is named by the events."""
    stages("loop", "x", "--agent", "script:stages.yaml", "--max", "1")
    [parent, other] = [
        stages("loop", "x", "--agent", "script:stages.yaml", "--max", "1", "--json").json["run"]
        for _ in "12"
    ]
    stages.env.update(LOOPWRIGHT_RUN=parent, LOOPWRIGHT_AGENT="coder", LOOPWRIGHT_DEPTH="0")
    loops: list[str] = []

    async def work(client: Client) -> None:
        assert await client.tools() == {*INSIDE_RUN}
        started = await client.json("loop_start", definition="harness", goal="Write it")
        loop = started["loop_id"]
        assert "did not start" in await client.refused("loop_status", id=other)
        assert other not in await client.text("loop_list")
        assert "cannot use the tool" in await client.refused("gate_list")
        await client.until(loop, "completed", "failed", "exhausted", "stopped", "waiting")
        loops.append(loop)

    play(stages, work)
    first = stages.events(loops[0])[0]
    assert (first["parent"], first["by"]) == (parent, f"agent:coder of {parent}")
    refused = stages.real("mcp", "--allow-answers")
    assert refused.code == 6
    assert "cannot answer gates" in refused.err


@pytest.mark.item("coqui-27", "coqui-80")
def test_a_stage_of_a_loop_of_roles_starts_no_loop(stages: Place) -> None:
    """Neither with a tool nor with a command, also below a run that the stage belongs to; each
    attempt is in the audit log.
    """
    told = stages("run", "harness", "Write it", "--agent", "script:stages.yaml", "--json")
    parent = told.json["run"]
    stages.env.update(LOOPWRIGHT_RUN=parent, LOOPWRIGHT_AGENT="coder", LOOPWRIGHT_DEPTH="0")

    async def work(client: Client) -> None:
        said = await client.refused("loop_start", definition="harness", goal="Write it")
        assert "stages of a loop do not start loops" in said
        assert parent in await client.text("loop_list")

    play(stages, work)
    for command in (
        ("run", "harness", "Write it", "--agent", "script:stages.yaml"),
        ("loop", "x", "--agent", "script:stages.yaml", "--max", "1"),
    ):
        refused = stages.real(*command)
        assert refused.code == 6, refused
        assert "do not start loops" in refused.err
    del stages.env["LOOPWRIGHT_RUN"]
    assert [one["run"] for one in stages("ls", "--json").json["runs"]] == [parent]
