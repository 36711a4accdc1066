"""`retry`, `skip` and `edit`, at the command line, at the prompt and by an agent."""

import pytest
import yaml

from tests.cli.conftest import Place
from tests.cli.test_mcp import Client, play
from tests.cli.test_repl import typed

BLOCKED = "STATUS: BLOCKED\nNo key."


@pytest.fixture
def stages(lw: Place) -> Place:
    """The coder says something new each time; the reviewer approves."""
    return lw


def says(lw: Place, *coder: object) -> str:
    replies = [
        {"when": {"agent": "plan"}, "text": "The plan."},
        *[
            {"when": {"agent": "coder"}, **(one if isinstance(one, dict) else {"text": one})}
            for one in coder
        ],
        {"when": {"agent": "reviewer"}, "text": "APPROVED"},
    ]
    lw.write("stages.yaml", yaml.safe_dump({"replies": replies}))
    return "script:stages.yaml"


def failed(lw: Place) -> str:
    """A loop that stopped at its second stage."""
    agent = says(lw, {"fail": "no space"}, "Done.")
    told = lw("run", "harness", "Build it", "--agent", agent, "--json")
    assert told.json["status"] == "failed"
    return str(told.json["run"])


def kept(lw: Place, run: str) -> list[tuple[str, str]]:
    events = [event for event in lw.events(run) if event["kind"] == "step.kept"]
    return [(event["path"], event["reason"]) for event in events]


def test_a_failed_stage_is_tried_again(stages: Place) -> None:
    """It is driven here to its end, under its id, and nothing before it is run again."""
    run = failed(stages)
    told = stages("retry", run, "Mind the gap \udcff", "--json")
    assert (told.code, told.json["run"], told.json["status"]) == (0, run, "completed")
    assert kept(stages, run) == [("main~2.0.plan", "kept")]
    again = stages("retry", run)
    assert (again.code, "completed" in again.err) == (8, True)


def test_a_stage_that_stopped_is_reported_with_why_and_what_to_do(stages: Place) -> None:
    """Of one that failed the error and both ways on, of one that is blocked what it asks."""
    run = failed(stages)
    page = stages("show", run).out
    assert "✗ 1  step 'implement' failed: no space" in page
    assert f"loopwright retry {run} NOTE\n  loopwright skip {run}" in page
    told = stages("run", "harness", "Build it", "--agent", says(stages, BLOCKED), "--no-wait")
    assert "    No key.\n    gate_" in told.err
    assert "STATUS: BLOCKED No key." in stages("show", "last").out


def test_a_failed_stage_is_left_out(stages: Place) -> None:
    """The next one goes on."""
    run = failed(stages)
    told = stages("skip", run, "by hand")
    assert (told.code, "left out" in told.err) == (0, True)
    assert kept(stages, run)[-1] == ("main~2.0.implement", "skipped")
    assert (
        "SKIPPED by a person: by hand" in stages("show", run, "--output", "main~2.0.implement").out
    )


def test_a_blocked_loop_is_changed_and_tried_again(stages: Place) -> None:
    """An edit of what waits is told by the next stage; trying again is an answer."""
    agent = says(stages, BLOCKED, "Done.")
    run = stages("run", "harness", "Build it", "--agent", agent, "--no-wait", "--json").json["run"]
    told = stages("edit", run, "--goal", "Another", "--max", "none", "--label", "x", "--json")
    assert told.json == {"run": run, "changed": ["goal", "max_iterations", "labels"]}
    assert "changed goal" in stages("edit", run, "--goal", "Other").err
    assert stages("edit", run, "--metadata", '{"a": 1}').code == 0
    unkept = (
        ["--metadata", '{"a": 1e999}'],
        ["--metadata", '{"a": "\\ud800"}'],
        ["--label", "\udcff"],
    )
    for bad in (["--max", "0"], ["--max", "x"], ["--metadata", "{"], [], *unkept):
        assert stages("edit", run, *bad).code == 2, bad
    assert stages("show", run, "--json").json["goal"] == "Other"
    assert stages("retry", run, "The key is there \udcff").code == 0
    assert stages("edit", run, "--goal", "Too late").code == 8


def test_at_the_prompt(stages: Place) -> None:
    """The same words, and what can be run by its name."""
    run = failed(stages)
    told = typed(
        stages,
        "/loops definitions",
        f"/loops retry {run} Mind the gap",
        "/loops skip",
        "/loops edit last max",
        "/loops edit last max \u00b2",
    )
    assert "harness: " in told.out
    assert f"{run}: retry" in told.out
    assert "write /loops skip [--allow-unknown-cost] RUN [NOTE]" in told.err
    assert "write /loops edit RUN" in told.err
    assert stages("show", run, "--json").json["status"] == "completed"
    agent = says(stages, BLOCKED, "Done.")
    stages("run", "harness", "Build it", "--agent", agent, "--no-wait")
    edits = ("goal Other", "max none", "max 7", "labels a b")
    told = typed(stages, *(f"/loops edit last {one}" for one in edits), "/loops skip last fine")
    assert told.out.count("changed") == len(edits)
    assert stages("show", "last", "--json").json["status"] == "completed"


def test_an_agent_tries_again_what_failed_and_decides_nothing(stages: Place) -> None:
    """A loop that waits for a person is for people, unless agents may answer."""
    says(stages, {"fail": "no space"}, "Done.", BLOCKED)

    async def work(client: Client) -> None:
        loop = (await client.json("loop_start", definition="harness", goal="g"))["loop_id"]
        await client.until(loop, "failed")
        said = await client.text("loop_control", action="retry", id=loop, note="again")
        assert said == f"{loop}: tries again"
        assert (await client.until(loop, "completed", "failed"))["status"] == "completed"

    play(stages, work)
    says(stages, BLOCKED)

    async def blocked(client: Client) -> None:
        loop = (await client.json("loop_start", definition="harness", goal="g"))["loop_id"]
        await client.until(loop, "blocked")
        assert "--allow-answers" in await client.refused("loop_control", action="skip", id=loop)

    play(stages, blocked)
