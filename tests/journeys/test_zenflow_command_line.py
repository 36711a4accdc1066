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
