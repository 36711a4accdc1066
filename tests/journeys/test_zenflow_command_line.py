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
        pytest.param("{maxConcurrency: 0}", ["--parallel", "1"], 1, id="0 is no number"),
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
    for fact in lw.facts("run_"):
        under_way += (fact["kind"] == "effect.requested") - (fact["kind"] == "effect.done")
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
