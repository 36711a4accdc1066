"""Tool calls and definitions of Coqui's document, as they are printed there. Each test asserts what
the document says about its example. Its commands are in `tests/cli/test_repl.py`, its routes in
`tests/http/test_loop_routes.py`.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from loopwright.agents.script import ScriptedAgent
from loopwright.operations.library import DefinitionLibrary
from loopwright.operations.mcp.loop_tools import LoopTools
from loopwright.operations.settings import Settings
from loopwright.operations.use_cases.role_loops import RoleLoops
from loopwright.operations.wiring import Local, local
from loopwright.ports import EffectJob

DOCS_REVIEW = """
{ "name": "docs-review", "description": "Documentation writer-reviewer cycle",
"roles": [ { "name": "write", "role": "coder", "prompt": "Write or update documentation based on
 the goal and any previous feedback.", "order": 0 },
{ "name": "review", "role": "reviewer", "prompt": "Review the documentation for completeness,
 accuracy, and clarity. Respond APPROVED if ready, or provide specific feedback.", "order": 1 } ],
"termination_condition": { "type": "evaluation_bound", "value":
{ "criteria": "Documentation is complete, accurate, and well-organized",
"max_review_rounds": 3 } } }
"""
INVESTIGATE = """
{ "name": "investigate", "parameters": [
{"name": "subject", "description": "Subject to investigate", "required": true},
{"name": "depth", "description": "How deep to go", "required": false, "default": "moderate"} ],
"roles": [ { "role": "explorer", "prompt": "Investigate {{subject}} at {{depth}} depth..." } ] }
"""
_CALL = re.compile(r"(\w+)\((.*)\)", re.DOTALL)
_ARGUMENT = re.compile(r"(\w+): (\"[^\"]*\"|'[^']*'|\d+)")


def parsed(call: str) -> tuple[str, dict[str, Any]]:
    """The tool and the arguments of a call as it is printed."""
    found = _CALL.fullmatch(call.strip())
    assert found is not None, call
    arguments = {
        name: int(value) if value.isdigit() else value[1:-1]
        for name, value in _ARGUMENT.findall(found[2])
    }
    return found[1], arguments


class Agent:
    """An agent with the loop tools, in a project, with scripted stages."""

    def __init__(self, here: Local, folder: Path) -> None:
        self.here, self.folder = here, folder
        self.prompts: list[tuple[str, str]] = []

    def script(self, *replies: dict[str, Any]) -> None:
        (self.folder / "replies.json").write_text(json.dumps({"replies": list(replies)}))

    def tools(self) -> LoopTools:
        return LoopTools(
            loops=RoleLoops(
                here=self.here,
                settings=Settings(home=self.folder / "home"),
                cwd=self.folder,
                agents=(f"script:{self.folder / 'replies.json'}",),
            )
        )

    async def call(self, text: str, loop: str = "") -> str:
        """What a call of the document answers; `loop123` stands for a loop of the test."""
        name, arguments = parsed(text)
        if arguments.get("id") == "loop123":
            arguments["id"] = loop
        told = await self.tools().answer(name, arguments)
        assert not told.error, told.text
        return told.text

    async def start(self, text: str) -> str:
        return str(json.loads(await self.call(text))["loop_id"])

    async def status(self, loop: str) -> Any:
        await self.here.driver.rest(loop)
        return json.loads(await self.call('loop_status(id: "loop123")', loop))

    def prompt(self, stage: str, number: int = -1) -> str:
        return [text for name, text in self.prompts if name == stage][number]


Play = Callable[[Agent], Awaitable[None]]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Play], None]:
    """Plays a scene with an agent that has a project of its own."""
    perform = ScriptedAgent.perform

    def plays(scene: Play) -> None:
        async def whole() -> None:
            async with local(Settings(home=tmp_path / "home")) as here:
                agent = Agent(here, tmp_path)

                def recorded(self: ScriptedAgent, job: EffectJob, file: str) -> Any:
                    agent.prompts.append((job.path.rpartition(".")[2], job.prompt.text or ""))
                    return perform(self, job, file)

                monkeypatch.setattr(ScriptedAgent, "perform", recorded)
                await scene(agent)

        asyncio.run(whole())

    return plays


def said(agent: str, text: str, iteration: int | None = None, **more: Any) -> dict[str, Any]:
    when = {"agent": agent} | ({} if iteration is None else {"iteration": iteration})
    return {"when": when, "text": text, **more}


def iteration(number: int, review: str) -> list[dict[str, Any]]:
    return [
        said("plan", f"plan {number}", number),
        said("coder", f"changes {number}", number),
        said("reviewer", review, number),
    ]


def definition(folder: Path, text: str) -> None:
    """A definition of the document in `workspace/loops/`, its line breaks inside texts undone."""
    value = json.loads(re.sub(r"\n ", " ", text))
    place = folder / "workspace" / "loops" / f"{value['name']}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(value, indent=4))


# -- built-in definitions --------------------------------------------------------------------------


@pytest.mark.item("coqui-1", "coqui-87")
@pytest.mark.parametrize(
    ("name", "roles", "termination", "rounds"),
    [
        ("harness", "plan → coder → reviewer", "evaluation_bound", 5),
        ("research", "explorer → coder → reviewer", "evaluation_bound", 3),
        ("goal-driven", "plan → coder", "goal_bound", 10),
    ],
)
def test_the_table_of_built_in_definitions(
    tmp_path: Path, name: str, roles: str, termination: str, rounds: int
) -> None:
    """Roles, termination and rounds."""
    library = DefinitionLibrary(tmp_path / "home", tmp_path)
    listed = library.get(name)
    assert (listed.chain, listed.termination) == (roles, termination)
    loop: Any = library.read(name).plan.steps[0].action
    assert loop.max == rounds


# -- starting --------------------------------------------------------------------------------------


@pytest.mark.item("coqui-14", "coqui-21", "coqui-22", "coqui-29", "coqui-30", "coqui-87")
def test_how_a_loop_executes(play: Callable[[Play], None]) -> None:
    """A project and a sprint are created; each stage receives the goal and what came before; a
    review with NEEDS CHANGES begins iteration 2, and APPROVED completes the loop.
    """

    async def scene(agent: Agent) -> None:
        agent.script(*iteration(1, "NEEDS CHANGES — validation missing"), *iteration(2, "APPROVED"))
        loop = await agent.start('loop_start(definition: "harness", goal: "Build caching layer")')
        told = await agent.status(loop)
        assert (told["status"], told["reason"], told["current_iteration"]) == (
            "completed",
            "approved",
            2,
        )
        project, *_ = agent.here.trackers.all("", "project")
        assert (project.text("title"), project.text("description")) == (
            "Loop: harness",
            "Build caching layer",
        )
        assert [
            one.text("status") for one in agent.here.tracker_scopes.made(loop, "sprint", run=loop)
        ] == [
            "rejected",
            "complete",
        ]
        first, last = agent.prompt("plan", 0), agent.prompt("evaluate")
        for words in ("Build caching layer", "Iteration 1/5", "Acceptance Criteria"):
            assert words in first
        assert "plan 1" in agent.prompt("implement", 0)
        for words in ("plan 2", "changes 2", "Iteration 2/5", "validation missing"):
            assert words in last

    play(scene)


@pytest.mark.item("coqui-87")
def test_a_basic_start(play: Callable[[Play], None]) -> None:
    """The answer names the loop and its roles."""

    async def scene(agent: Agent) -> None:
        agent.script(*iteration(1, "APPROVED"))
        text = 'loop_start(definition: "harness", goal: "Build a Redis caching layer for the API")'
        told = json.loads(await agent.call(text))
        assert told["goal"] == "Build a Redis caching layer for the API"
        assert told["roles"] == ["plan", "coder", "reviewer"]
        assert (await agent.status(told["loop_id"]))["status"] == "completed"

    play(scene)


@pytest.mark.item("coqui-10", "coqui-11", "coqui-87")
def test_a_start_with_parameters(play: Callable[[Play], None]) -> None:
    """The subject is the goal; the parameter tunes the deliverable, and defaults fill the rest."""

    async def scene(agent: Agent) -> None:
        agent.script(
            said("explorer", "facts"), said("coder", "a table"), said("reviewer", "APPROVED")
        )
        loop = await agent.start(
            'loop_start( definition: "research", goal: "Deep investigation of WebSocket libraries",'
            ' parameters: \'{"output_format": "comparison matrix"}\' )'
        )
        assert (await agent.status(loop))["max_iterations"] == 3
        prompt = agent.prompt("synthesize")
        for words in ("Deep investigation of WebSocket libraries", "into a comparison matrix"):
            assert words in prompt

    play(scene)


@pytest.mark.item("coqui-13", "coqui-34", "coqui-87")
def test_a_start_with_a_limit(play: Callable[[Play], None]) -> None:
    """At most three iterations."""

    async def scene(agent: Agent) -> None:
        agent.script(*(one for n in (1, 2, 3) for one in iteration(n, "NEEDS CHANGES")))
        loop = await agent.start(
            'loop_start(definition: "harness", goal: "...", max_iterations: 3)'
        )
        told = await agent.status(loop)
        assert (told["max_iterations"], told["current_iteration"]) == (3, 3)
        assert (told["status"], told["outcome"], told["reason"]) == (
            "completed",
            "exhausted",
            "max_iterations",
        )

    play(scene)


# -- definitions -----------------------------------------------------------------------------------


@pytest.mark.item("coqui-75", "coqui-87")
def test_the_custom_definition(play: Callable[[Play], None]) -> None:
    """It is found in `workspace/loops/`, and runs writer and reviewer until the approval."""

    async def scene(agent: Agent) -> None:
        definition(agent.folder, DOCS_REVIEW)
        agent.script(said("coder", "the page"), said("reviewer", "APPROVED"))
        assert "docs-review: Documentation writer-reviewer cycle" in await agent.call(
            "loop_definitions()"
        )
        loop = await agent.start('loop_start(definition: "docs-review", goal: "Explain it")')
        told = await agent.status(loop)
        assert [one["name"] for one in told["stages"]] == ["write", "review"]
        assert (told["status"], told["max_iterations"]) == ("completed", 3)
        assert "complete, accurate, and well-organized" in agent.prompt("review")

    play(scene)


@pytest.mark.item("coqui-9", "coqui-72", "coqui-73", "coqui-87")
def test_the_definition_with_parameters(play: Callable[[Play], None]) -> None:
    """It has neither a description nor a termination: it runs once, with both parameters filled."""

    async def scene(agent: Agent) -> None:
        definition(agent.folder, INVESTIGATE)
        agent.script(said("explorer", "found"))
        loop = await agent.start(
            'loop_start(definition: "investigate", goal: "...",'
            ' parameters: \'{"subject": "caching strategies"}\')'
        )
        told = await agent.status(loop)
        assert (told["status"], told["current_iteration"]) == ("completed", 1)
        assert "Investigate caching strategies at moderate depth..." in agent.prompt("explorer")
        missing = await agent.tools().answer(
            "loop_start", {"definition": "investigate", "goal": "..."}
        )
        assert missing.error
        assert "subject" in missing.text

    play(scene)


@pytest.mark.item("coqui-33", "coqui-36", "coqui-37", "coqui-87")
@pytest.mark.parametrize(
    ("condition", "limit", "status"),
    [
        ({"type": "iteration_bound", "max_iterations": 5}, None, "completed"),
        ({"type": "time_bound", "value": 3600}, 1, "exhausted"),
        ({"type": "manual"}, 1, "exhausted"),
    ],
    ids=lambda one: one["type"] if isinstance(one, dict) else None,
)
def test_the_table_of_terminations(
    play: Callable[[Play], None], condition: dict[str, Any], limit: int | None, status: str
) -> None:
    """Iterations are counted; neither time nor a person's stop ends a loop by itself at once."""

    async def scene(agent: Agent) -> None:
        written = {
            "name": "small",
            "roles": [{"role": "coder", "prompt": "Work."}],
            "termination_condition": condition,
        }
        definition(agent.folder, json.dumps(written))
        agent.script(*(said("coder", f"work {n}", n) for n in range(1, 6)))
        given = {"definition": "small", "goal": "x"} | (
            {} if limit is None else {"max_iterations": limit}
        )
        told = await agent.tools().answer("loop_start", given)
        loop = json.loads(told.text)["loop_id"]
        found = await agent.status(loop)
        assert (found["outcome"], found["current_iteration"]) == (status, limit or 5)

    play(scene)


# -- monitoring and control ------------------------------------------------------------------------


@pytest.mark.item("coqui-43", "coqui-45", "coqui-46", "coqui-53", "coqui-87")
def test_monitoring_and_control(play: Callable[[Play], None]) -> None:
    """Status shows iteration, stage, status, elapsed time and stage results; pause waits for the
    current stage, resume continues, stop cancels, and `all` means every loop.
    """

    async def scene(agent: Agent) -> None:
        slow = [{**one, "delay": 0.2} for one in iteration(1, "NEEDS CHANGES")]
        agent.script(*slow, *({**one, "delay": 30} for one in iteration(2, "APPROVED")))
        loop = await agent.start('loop_start(definition: "harness", goal: "Build it")')
        await agent.call('loop_control(action: "pause", id: "loop123")', loop)
        told = await agent.status(loop)
        assert (told["status"], told["current_iteration"], told["current_stage"]) == (
            "paused",
            1,
            1,
        )
        assert told["elapsed_seconds"] >= 0
        assert [one["status"] for one in told["stages"]] == ["completed", "pending", "pending"]
        assert told["stages"][0]["summary"] == "plan 1"
        await agent.call('loop_control(action: "resume", id: "loop123")', loop)
        assert await agent.call('loop_control(action: "pause", id: "all")') == "1 loop paused"
        await agent.here.driver.rest(loop)
        assert await agent.call('loop_control(action: "resume", id: "all")') == "1 loop resumed"
        assert loop in await agent.call('loop_list(status: "running")')
        await agent.call('loop_control(action: "stop", id: "loop123")', loop)
        assert (await agent.status(loop))["status"] == "cancelled"
        assert await agent.call('loop_control(action: "stop", id: "all")') == (
            "no loop can be stopped now"
        )

    play(scene)
