"""ZenFlow workflows from the command line on, with agents that are programs."""

import pytest

from tests.cli.conftest import Place
from tests.journeys.flows import flow


def test_context_files_are_shown(lw: Place) -> None:
    """A file of the workspace stands below the prompt of a real agent."""
    lw.write("notes.md", "Use tabs.")
    text = flow("  - {id: a, agent: w, instructions: Go., contextFiles: [notes.md]}")
    file = lw.write("flow.yaml", text)
    told = lw("run", str(file), "Go.", "--agent", lw.probe(), "--json")
    assert told.code == 0, told.err
    assert "### notes.md\n\nUse tabs." in lw.calls()[0]["prompt"]


@pytest.mark.parametrize(
    ("options", "arguments", "most"),
    [
        pytest.param("{maxConcurrency: 2}", ["--parallel", "3"], 2, id="the file beats the option"),
        pytest.param("", ["--parallel", "3"], 3, id="the option beats the default"),
        pytest.param("{maxConcurrency: 0}", ["--parallel", "1"], 1, id="0 is not a number"),
        pytest.param("", [], 5, id="five by default"),
    ],
)
@pytest.mark.item("zenflow-55")
def test_how_many_at_once(lw: Place, options: str, arguments: list[str], most: int) -> None:
    """As many agents are called before the first answers as the number says, of eight steps."""
    steps = "\n".join(f"  - {{id: s{n}, agent: w}}" for n in range(8))
    file = lw.write("flow.yaml", flow(steps, options=options))
    agent = lw.script(*[{"text": "ok", "delay": 0.3}] * 8)
    told = lw("run", str(file), "Go.", "--agent", agent, "--json", *arguments)
    assert told.code == 0, told.err
    under_way, peak = 0, 0
    for event in lw.events("run_"):
        under_way += (event["kind"] == "effect.requested") - (event["kind"] == "effect.done")
        peak = max(peak, under_way)
    assert peak == most


@pytest.mark.parametrize("number", ["0", "-1", "1001", "many"])
def test_what_is_no_number_of_agents(lw: Place, number: str) -> None:
    """It is refused before anything starts."""
    file = lw.write("flow.yaml", flow("  - {id: a, agent: w}"))
    assert lw("run", str(file), "Go.", "--parallel", number).code == 2


@pytest.mark.parametrize(
    ("text", "replies", "code"),
    [
        pytest.param("  - {id: a, agent: w}", ["fine"], 0, id="completed"),
        pytest.param("  - {id: a, agent: w}", [{"fail": "no"}], 1, id="failed"),
        pytest.param(
            "  - {id: a, agent: w}\n  - {id: b, agent: w}",
            ["fine", {"fail": "no"}],
            1,
            id="partial",
        ),
        pytest.param("  - {id: a, agent: nobody}", ["fine"], 2, id="refused"),
    ],
)
@pytest.mark.item("zenflow-70")
def test_exit_codes_of_the_other_system(
    lw: Place, text: str, replies: list[str], code: int
) -> None:
    """On request the exit code is the documented one; without, ours."""
    file = lw.write("flow.yaml", flow(text))
    agent = lw.script(*replies)
    told = lw("run", str(file), "Go.", "--agent", agent, "--exit-codes", "dialect")
    assert told.code == code
    ours = lw("run", str(file), "Go.", "--agent", agent)
    assert ours.code == {0: 0, 1: 3, 2: 2}[code]


@pytest.mark.item("zenflow-70")
def test_a_run_whose_time_is_over(lw: Place) -> None:
    """The watchdog has a code of its own."""
    file = lw.write("flow.yaml", flow("  - {id: a, agent: w}", options="{timeout: 1s}"))
    agent = lw.probe({"sleep": 20})
    told = lw("run", str(file), "Go.", "--agent", agent, "--exit-codes", "dialect", "--json")
    assert (told.code, told.json["reason"]) == (124, "deadline")


@pytest.mark.parametrize(
    ("second", "code", "reason"),
    [
        pytest.param({"text": "fine"}, 0, "done", id="completed"),
        pytest.param({"fail": "no"}, 3, "partial", id="partial"),
    ],
)
def test_some_that_failed_make_a_run_fail(
    lw: Place, second: dict[str, str], code: int, reason: str
) -> None:
    """Its reason says that others completed."""
    file = lw.write("flow.yaml", flow("  - {id: a, agent: w}\n  - {id: b, agent: w}"))
    told = lw("run", str(file), "Go.", "--agent", lw.script("fine", second), "--json")
    assert (told.code, told.json["reason"]) == (code, reason)


@pytest.mark.item("zenflow-79")
def test_events_under_the_names_of_the_document(lw: Place) -> None:
    """One object on each line, with the fields of that system; `seq` is Loopwright's own."""
    loop = "{forEach: [x, y], maxConcurrency: 1}"
    file = lw.write("flow.yaml", flow(f"  - {{id: a, agent: w, loop: {loop}}}"))
    run = lw("run", str(file), "Go.", "--agent", lw.script("one", "two"), "--json").json["run"]
    for words in (["--dialect"], ["--dialect", "zenflow"]):
        lines = lw("events", run, *words).lines
        assert [
            (one["type"], one.get("stepId")) for one in lines if one["type"] != "agent_turn"
        ] == [
            ("workflow_start", None),
            ("step_start", "a"),
            *(("step_start", "a[0]"), ("step_end", "a[0]")),
            *(("step_start", "a[1]"), ("step_end", "a[1]")),
            ("step_end", "a"),
            ("workflow_end", None),
        ]
        assert {one["runId"] for one in lines} == {run}
        assert all(one["timestamp"].endswith("Z") and one["seq"] for one in lines)
    assert lw("events", "--dialect", run).lines == lines
    other = lw("events", run, "--dialect", "aldo")
    assert (other.code, "is in the dialect zenflow, not aldo" in other.err) == (2, True)


@pytest.mark.item("zenflow-81")
def test_context_files_are_beside_the_workflow(lw: Place) -> None:
    """From the folder of each workflow file on, also of an included one; else in the workspace."""
    for folder in ("flows/docs", "flows/parts"):
        (lw.folder / folder).mkdir(parents=True)
    lw.write("flows/docs/a.md", "beside the workflow")
    lw.write("flows/parts/b.md", "beside the part")
    lw.write("top.md", "in the workspace")
    part = "name: part\nsteps: [{id: in, instructions: Go., contextFiles: [b.md, ../docs/a.md]}]\n"
    lw.write("flows/parts/part.yaml", part)
    steps = """
  - {id: a, agent: w, instructions: Go., contextFiles: [docs/a.md, top.md]}
  - {id: b, include: parts/part.yaml, dependsOn: [a]}
"""
    file = lw.write("flows/flow.yaml", flow(steps))
    told = lw("run", str(file), "Go.", "--agent", lw.probe(), "--json")
    assert told.code == 0, told.err
    first, second = (one["prompt"] for one in lw.calls())
    assert "### flows/docs/a.md\n\nbeside the workflow" in first
    assert "### top.md\n\nin the workspace" in first
    assert "### flows/parts/b.md\n\nbeside the part" in second
    assert "beside the workflow" in second


@pytest.mark.item("zenflow-80", "zenflow-81")
def test_files_that_an_agent_does_not_see_cause_a_warning(lw: Place) -> None:
    """An image for an agent that cannot look at it, and a file outside of the workspace."""
    for folder in ("flows", "work"):
        (lw.folder / folder).mkdir()
    lw.write("flows/logo.png", "x")
    lw.write("work/x.txt", "x")
    file = lw.write("flows/flow.yaml", flow("  - {id: a, agent: w, contextFiles: [logo.png]}"))
    told = lw("run", str(file), "Go.", "--agent", lw.script("ok"))
    assert "agent w is given only the name of flows/logo.png: image/png files are" in told.err
    other = lw("run", str(file), "Go.", "--agent", lw.script("ok"), "--workspace", "work")
    assert other.code == 0
    assert "logo.png is beside the definition but outside of the workspace" in other.err
