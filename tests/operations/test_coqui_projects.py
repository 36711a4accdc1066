"""Projects of loops, roles and skills, as users of the original keep them: each loop runs with
scripted agents to the end that its project states in `runs.yaml`.
"""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from loopwright.agents.script import ScriptedAgent
from loopwright.errors import LoopwrightError
from loopwright.http.compat.coqui_payloads import sheet
from loopwright.operations.agents.roles import find_roles
from loopwright.operations.library import DefinitionLibrary
from loopwright.operations.run_request import StartRun
from loopwright.operations.run_start import DefinitionSource, StartPlace, prepare_start
from loopwright.operations.settings import Settings
from loopwright.operations.wiring import Local, local
from loopwright.ports import EffectJob
from loopwright.views.role_loops import stages_of
from tests.support.tables import read_table

CORPUS = Path(__file__).resolve().parents[1] / "corpus" / "coqui"
PROJECTS, VALID = CORPUS / "projects", CORPUS / "valid"
VALID_RUNS: list[dict[str, Any]] = read_table(CORPUS / "valid_runs.yaml")
FEWEST_FILES = 40
ENDS_ON_A_DAY = {"time-at-a-point", "time-without-zone"}


def all_runs() -> list[Any]:
    """Every run of every project as a case."""
    found = []
    for project in sorted(PROJECTS.iterdir()):
        listed = read_table(project / "runs.yaml")
        for number, run in enumerate(listed):
            name = f"{project.name}-{number}-{run['definition']}"
            found.append(pytest.param(project, run, id=name))
    return found


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The newest prompt of each stage, as its agent was given it."""
    found: dict[str, str] = {}
    perform = ScriptedAgent.perform

    def recorded(self: ScriptedAgent, job: EffectJob, file: str) -> Any:
        found[job.path.rpartition(".")[2].partition("~")[0]] = job.prompt.text or ""
        return perform(self, job, file)

    monkeypatch.setattr(ScriptedAgent, "perform", recorded)
    return found


def test_the_projects_have_many_files_and_every_loop_is_run() -> None:
    """At least 40 files of users, and no definition without a run."""
    files = [one for one in PROJECTS.glob("*/workspace/**/*") if one.is_file()]
    assert len(files) >= FEWEST_FILES
    for project in PROJECTS.iterdir():
        listed = read_table(project / "runs.yaml")
        loops = {one.stem for one in (project / "workspace" / "loops").iterdir()}
        assert {run["definition"] for run in listed} == loops


@pytest.mark.item("coqui-86")
@pytest.mark.parametrize("project", sorted(PROJECTS.iterdir()), ids=lambda one: one.name)
def test_every_file_of_a_project_loads(project: Path, tmp_path: Path) -> None:
    """Definitions and roles are listed without an error."""
    listed = [one for one in DefinitionLibrary(tmp_path, project).all() if one.source == "project"]
    assert [one.name for one in listed if not one.is_valid] == []
    assert {Path(one.file).stem for one in listed} == {one.name for one in listed}
    roles = [one for one in find_roles(None, project).values() if one.place == "project"]
    assert [one.problem for one in roles if one.problem] == []


@pytest.mark.item("coqui-86")
@pytest.mark.parametrize(("project", "run"), all_runs())
def test_a_loop_of_a_project_ends_as_expected(
    project: Path, run: dict[str, Any], tmp_path: Path, prompts: dict[str, str]
) -> None:
    """Found by its name, with its warnings, its roles and the prompts of its stages."""
    folder = tmp_path / "project"
    shutil.copytree(project, folder)
    check_run(run, folder, tmp_path / "home", prompts)


def test_enough_definitions_run_to_an_outcome() -> None:
    """Every valid definition has a run, but for those that end on a day of the calendar."""
    valid = {one.stem for one in VALID.glob("*.json") if not one.name.endswith(".plan.json")}
    assert {one["definition"] for one in VALID_RUNS} == valid - ENDS_ON_A_DAY
    rows = [(None, one) for one in VALID_RUNS] + [one.values for one in all_runs()]
    assert (
        len({(at, one["definition"]) for at, one in rows if "refused" not in one}) >= FEWEST_FILES
    )


@pytest.mark.item("coqui-86")
@pytest.mark.parametrize("run", VALID_RUNS, ids=[one["definition"] for one in VALID_RUNS])
def test_a_definition_of_the_corpus_ends_as_expected(
    run: dict[str, Any], tmp_path: Path, prompts: dict[str, str]
) -> None:
    """Each valid definition, whose plan other tests compare, also runs with scripted agents."""
    loops = tmp_path / "project" / "workspace" / "loops"
    loops.mkdir(parents=True)
    file = shutil.copy(VALID / f"{run['definition']}.json", loops)
    named = {**run, "definition": json.loads(Path(file).read_text("utf-8"))["name"]}
    check_run(named, loops.parents[1], tmp_path / "home", prompts)


def check_run(run: dict[str, Any], folder: Path, home: Path, prompts: dict[str, str]) -> None:
    """A run ends as its row says, and its stages had the prompts of the row."""
    (folder / "replies.json").write_text(json.dumps({"replies": run.get("replies", [])}))
    asyncio.run(_check(folder, home, run))
    for stage, texts in run.get("expect", {}).get("prompts", {}).items():
        assert [one for one in texts if one not in prompts[stage]] == []


async def _check(folder: Path, home: Path, run: dict[str, Any]) -> None:
    request = StartRun(
        message=run["goal"],
        agent=f"script:{folder / 'replies.json'}",
        inputs=run.get("parameters", {}),
        max=run.get("max_iterations"),
    )
    place = StartPlace(settings=Settings(home=home), workspace=folder)
    source = DefinitionSource(file=run["definition"], library=folder)
    if "refused" in run:
        with pytest.raises(LoopwrightError) as refused:
            prepare_start(place, request, source)
        assert run["refused"] in refused.value.message
        return
    async with local(Settings(home=home)) as here:
        start, definition = prepare_start(place, request, source)
        assert [one.code for one in definition.warnings] == run.get("warnings", [])
        name = await here.service.start(start)
        await here.driver.rest(name)
        _check_end(here, name, run["expect"])


def _check_end(here: Local, run: str, expected: dict[str, Any]) -> None:
    row = here.log.row(run)
    head, found = row.headline, sheet(here.service, row)
    assert head.status == expected["status"], head
    assert head.reason == expected.get("reason", head.reason)
    assert found.seen.iteration == expected.get("iterations", found.seen.iteration)
    loop = found.loop()
    assert loop.current_stage == expected.get("stage", loop.current_stage)
    assert loop.termination_criteria == expected.get("criteria", loop.termination_criteria)
    plan = found.state.plan
    stages = [one.id for one in stages_of(plan)]
    assert stages == expected.get("stages", stages)
    for agent, turns in expected.get("turns", {}).items():
        assert plan.agents[agent].max_turns == turns
    for agent, access in expected.get("access", {}).items():
        assert plan.agents[agent].access == access
    ended = found.state.finished
    if "output" in expected:
        assert ended is not None
        assert expected["output"] in here.service.read_text(ended.output)
    if "error" in expected:
        summaries = [one.summary for one in found.cycles[-1].stages]
        assert any(expected["error"] in one for one in summaries), summaries
