"""Projects as people of this system write them: every file loads and comes to what is expected.

`projects/` has their agents in folders, with prompts, schemas and composites across teams;
`expected.yaml` says what the model says and what becomes of it. The files are read from disk by the
code that `run` uses; models, tools and people answer from the table.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loopwright.kernel.bodies.conversation import SUBMIT
from loopwright.kernel.event_parts import ToolCall
from loopwright.kernel.events import GateOpened
from loopwright.model.actions import Action, ModelCycle, Repeat, Steps
from loopwright.model.chat import RequestedCall
from loopwright.model.plan import Plan
from loopwright.operations.definition_files import is_path
from loopwright.operations.dialects import packed, parse_definition, read_definition
from tests.dialects.aldo.cases import CORPUS
from tests.dialects.aldo.running import Stage, turn
from tests.kernel.driving import Fail, Reply, ScriptedAnswer
from tests.support.tables import read_table

PROJECTS = CORPUS / "projects"
EXPECTED: dict[str, dict[str, Any]] = read_table(PROJECTS / "expected.yaml")
LEAST = 40


def agents_on_disk() -> set[str]:
    """The files of the projects that describe an agent."""
    ends = (".yaml", ".yml", ".json")
    found = (file for file in PROJECTS.rglob("*") if file.suffix in ends)
    own = {file for file in found if file.parent.name != "schemas"}
    return {str(file.relative_to(PROJECTS)) for file in own} - {"expected.yaml"}


def structured(plan: Plan) -> set[str]:
    """The agents that hand in a result."""

    def inside(action: Action) -> set[str]:
        match action:
            case ModelCycle(agent=name, schema=schema):
                return {name} if schema is not None else set()
            case Repeat(body=body):
                return inside(body)
            case Steps(steps=steps):
                return {name for step in steps for name in inside(step.action)}
            case _:
                return set()

    return {name for step in plan.steps for name in inside(step.action)}


class Actors:
    """Models, tools and people that answer from the table, in its order."""

    def __init__(self, plan: Plan, case: dict[str, Any]) -> None:
        self._case = case
        self._schemas = structured(plan)
        self._turns: dict[str, int] = defaultdict(int)
        self._calls: dict[str, int] = defaultdict(int)
        self._gates: dict[str, tuple[str, str]] = {}

    def speak(self, agent: str, cycle: int, asked: str) -> ScriptedAnswer:
        rows = self._case["says"][agent]
        row = rows[min(self._turns[agent], len(rows) - 1)]
        self._turns[agent] += 1
        row = row if isinstance(row, dict) else {"say": row}
        calls = [
            RequestedCall(id=f"{agent}-{cycle}-{n}", tool=tool, arguments=args, paths=())
            for n, (tool, args) in enumerate(row.get("calls", ()))
        ]
        if agent in self._schemas:
            value = msgspec.json.decode(row["say"])
            calls = [RequestedCall(id=f"{agent}-{cycle}", tool=SUBMIT, arguments=value)]
            row = {"say": ""}
        return turn(row.get("say", ""), *calls, usd=row.get("usd", 0.0))

    def answer(self, call: ToolCall) -> ScriptedAnswer:
        rows = self._case.get("tools", {}).get(call.tool, {})
        row = rows if isinstance(rows, dict) else rows[min(self._calls[call.tool], len(rows) - 1)]
        self._calls[call.tool] += 1
        if "fail" in row:
            return Fail("tool", row["fail"])
        return Reply(row.get("text", "ok") + "x" * row.get("long", 0), code=row.get("code"))

    def decide(self, gate: GateOpened) -> Any:
        if gate.gate not in self._gates:
            self._gates[gate.gate] = self._case["people"][len(self._gates)]
        return tuple(self._gates[gate.gate])


@pytest.mark.item("aldo-89")
def test_the_table_has_every_agent_of_the_projects() -> None:
    """No file is left out, and there are as many as were promised."""
    assert agents_on_disk() == set(EXPECTED)
    assert len(EXPECTED) >= LEAST


@pytest.mark.item("aldo-89", "aldo-81", "aldo-82", "aldo-83", "aldo-84", "aldo-73")
@pytest.mark.parametrize("file", sorted(EXPECTED))
def test_an_agent_loads_and_has_the_expected_result(file: str) -> None:
    """Warnings, what each agent was asked, gates, results, what ended it, and how often."""
    case = EXPECTED[file]
    read = read_definition(PROJECTS / file)
    assert sorted(one.code for one in read.warnings) == case.get("warnings", [])
    actors = Actors(read.plan, case)
    stage = Stage(read.plan, actors.speak, tool=actors.answer, people=actors.decide)
    stage.run(case.get("task", "Do it."))
    status, reason, output, cycles = case["ends"]
    assert (stage.driver.ended[0], stage.driver.ended[2]) == (status, output)
    events = stage.events()
    assert sum(one.type == "cycle.start" for one in events) == cycles
    ends = [one.payload for one in events if one.type == "run.terminated_by"]
    assert (ends[-1]["reason"] if ends else None) == reason
    assert events[-1].type == "run.completed"
    assert events[-1].payload["ok"] is True
    _check_details(stage, case, ends)


def _check_details(stage: Stage, case: dict[str, Any], ends: list[Any]) -> None:
    events = stage.events()
    heard = {agent: asked for agent, asked in reversed(stage.heard)}
    for agent, asked in case.get("heard", {}).items():
        assert heard[agent] == asked
    if "system" in case:
        (agent,) = case["says"]
        assert case["system"] in stage.plan.agents[agent].system
    if "gates" in case:
        waited = [one for one in events if one.type == "tool.pending_approval"]
        assert len(waited) == case["gates"]
    if "results" in case:
        results = [one.payload["isError"] for one in events if one.type == "tool_result"]
        assert sorted(results) == case["results"]  # type: ignore[type-var]
    if "compressed" in case:
        cuts = [one.payload["strategy"] for one in events if one.type == "history.compressed"]
        assert [one for one in cuts if one != "trim"][: len(case["compressed"])] == case[
            "compressed"
        ]
    if "detail" in case:
        assert ends[-1]["detail"]["match"] == case["detail"]


@pytest.mark.item("aldo-83", "aldo-89")
@pytest.mark.parametrize("file", ["agency/delivery/tech-lead.yaml", "pipelines/newsroom.yml"])
def test_a_project_is_sent_to_a_server_with_its_files(file: str) -> None:
    """What a server reads of the files that come with a definition is what is read here."""
    path = PROJECTS / file
    files = packed(path.read_bytes(), file=path.name, dialect=None, folder=path.parent)
    assert files is not None
    assert all(map(is_path, files))
    sent = {name: text.encode() for name, text in files.items()}
    there = parse_definition(path.read_bytes(), file=path.name, files=sent)
    assert there.plan == read_definition(path).plan


@pytest.mark.item("aldo-89")
def test_projects_have_files_of_all_kinds() -> None:
    """Prompts, schemas, composites of each strategy, and loops of both kinds of compression."""
    texts = [(PROJECTS / file).read_text(encoding="utf-8") for file in EXPECTED]
    for word in ("sequential", "parallel", "debate", "iterative"):
        assert any(f"strategy: {word}" in text for text in texts), word
    assert any("periodic-summary" in text for text in texts)
    assert len(list(Path(PROJECTS).rglob("prompts/*.md"))) >= LEAST
