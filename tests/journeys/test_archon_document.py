"""Every example of the document about loop nodes, as it is printed, with what it says about it."""

import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Place
from tests.journeys.test_archon_projects import in_project  # noqa: F401 - a fixture

STORIES = """\
name: iterate-until-done
description: Implement stories one at a time
nodes:
  - id: setup
    bash: |
      echo "Found 3 stories to implement"
  - id: implement
    depends_on: [setup]
    loop:
      prompt: |
        Read the PRD and implement the next unfinished story.
        Validate your changes before committing.
        Setup context: $setup.output
        User request: $USER_MESSAGE
        When all stories are done, output: <promise>COMPLETE</promise>
      until: COMPLETE
      max_iterations: 10
      fresh_context: true
  - id: report
    depends_on: [implement]
    prompt: |
      Summarize what was implemented: $implement.output
"""
FIELDS = """\
- id: my-loop
  loop:
    prompt: "..." # Required. The prompt sent each iteration.
    until: COMPLETE # Required. Completion signal string.
    max_iterations: 10 # Required. Hard limit — node fails if exceeded.
    fresh_context: true # Optional. Default: false.
    until_bash: "..." # Optional. Bash script checked after each iteration.
    interactive: true # Optional. Default: false. Pause after each non-completing
    # iteration for user input via /workflow approve.
    gate_message: "..." # Required when interactive: true. Message shown to the
    # user at each pause with the run ID and approve command.
"""
FIX_FRAGMENT = """\
loop:
  prompt: "Fix the failing tests"
  until: ALL_PASS
  max_iterations: 5
  until_bash: "bun run test" # Loop ends when tests pass
"""
FRESH = """\
- id: implement
  depends_on: [setup]
  idle_timeout: 600000
  loop:
    prompt: |
      You are in a FRESH session — no memory of previous iterations.
      Read the PRD tracking file to find the next unfinished story.
      Implement it, validate, commit, update tracking.
      When all stories are done: <promise>COMPLETE</promise>
      Project context: $setup.output
    until: COMPLETE
    max_iterations: 15
    fresh_context: true
"""
REFINE = """\
- id: refine
  loop:
    prompt: |
      Review the current implementation and improve it.
      Run validation after each change.
      When validation passes with zero issues: <promise>DONE</promise>
    until: DONE
    max_iterations: 5
    fresh_context: false
"""
FIX = """\
- id: fix-tests
  loop:
    prompt: |
      Run the test suite. Read the failures. Fix them one at a time.
      If all tests pass: <promise>TESTS_PASS</promise>
    until: TESTS_PASS
    max_iterations: 8
    until_bash: "bun run test"
    fresh_context: false
"""
GUIDED = """\
name: guided-refine
description: Refine output with human review between iterations.
interactive: true # Required at workflow level for interactive loops
nodes:
  - id: refine
    loop:
      prompt: |
        Review the current draft and improve it based on this feedback: $LOOP_USER_INPUT
        When the output is satisfactory, output: <promise>DONE</promise>
      until: DONE
      max_iterations: 5
      interactive: true
      gate_message: Review the output above. Reply with your feedback or type DONE to finish.
"""
SETUP = "- id: setup\n  bash: echo context\n"


def in_workflow(*nodes: str, head: str = "") -> str:
    """Nodes of the document in a workflow."""
    body = textwrap.indent("".join(nodes), "  ")
    return f"name: example\ndescription: Of the document.\n{head}nodes:\n{body}"


@pytest.fixture
def lw_in_project(request: pytest.FixtureRequest) -> Place:
    """A place with programs for scripts."""
    place: Place = request.getfixturevalue("in_project")
    return place


def run(lw: Place, text: str, *replies: Any, message: str = "Do it.") -> Any:
    (lw.folder / "flow.yaml").write_text(text, encoding="utf-8")
    agent = lw.script(*replies)
    told = lw("run", "flow.yaml", message, "--agent", agent, "--json")
    assert told.code in (0, 3, 5), told.err
    return told.json


def bun_that(lw: Place, tmp_path: Path, command: str) -> None:
    """`bun run test` does this."""
    (tmp_path / "programs" / "bun").write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")


@pytest.mark.item("archon-83", "archon-74", "archon-12")
def test_the_quick_start_iterates_until_the_agent_gives_its_signal(lw_in_project: Place) -> None:
    """Each iteration gets the setup context and the request; the report gets the last output
    without the tags.
    """
    end = run(
        lw_in_project,
        STORIES,
        {"when": {"step": "implement"}, "text": "Story one."},
        {
            "when": {"step": "implement"},
            "text": "I did not need the docs, so: <promise>COMPLETE</promise>",
        },
        {"when": {"step": "report"}, "text": "Done."},
    )
    assert (end["status"], end["iterations"], end["output"]) == ("completed", 2, "Done.")
    assert end["steps"]["implement"]["output"] == "I did not need the docs, so:"


@pytest.mark.item("archon-83")
def test_the_quick_start_substitutes_its_variables(lw_in_project: Place) -> None:
    """With an agent that repeats its prompt, the outputs show what it was asked."""
    (lw_in_project.folder / "flow.yaml").write_text(STORIES, encoding="utf-8")
    told = lw_in_project("run", "flow.yaml", "Release", "--agent", "command:cat", "--json")
    shown = told.json["steps"]["implement"]["output"]
    assert "Setup context: Found 3 stories to implement\nUser request: Release" in shown
    assert "promise" not in told.json["output"]


@pytest.mark.item("archon-83", "archon-75")
def test_the_list_of_fields_is_a_workflow_that_asks_after_an_iteration(
    lw_in_project: Place,
) -> None:
    """Without interactive at the top there is a loader warning; the loop waits all the same. The
    check as it is printed is no command, so it does not end the loop.
    """
    text = in_workflow(FIELDS)
    (lw_in_project.folder / "flow.yaml").write_text(text, encoding="utf-8")
    told = lw_in_project("validate", "flow.yaml")
    assert told.code == 0
    assert "not-interactive" in told.out + told.err
    end = run(lw_in_project, text, "Not yet.")
    assert (end["status"], end["gates"][0]["message"]) == ("waiting", "...")


@pytest.mark.item("archon-83")
@pytest.mark.parametrize("field", ["prompt", "until", "max_iterations", "gate_message"])
def test_required_fields_are_required(field: str, lw_in_project: Place) -> None:
    """A loop without a required field is refused, and the message names it."""
    node = yaml.safe_load(FIELDS)[0]
    del node["loop"][field]
    if field == "until":
        del node["loop"]["until_bash"]
    flow = {"name": "x", "description": "y", "interactive": True, "nodes": [node]}
    (lw_in_project.folder / "flow.yaml").write_text(yaml.safe_dump(flow), encoding="utf-8")
    told = lw_in_project("validate", "flow.yaml")
    assert told.code == 2
    assert field in told.out + told.err


@pytest.mark.item("archon-83", "archon-21")
@pytest.mark.parametrize(
    "example", [f"- id: fix-tests\n{textwrap.indent(FIX_FRAGMENT, '  ')}", FIX]
)
def test_until_bash_ends_the_loop_without_a_signal(
    example: str, lw_in_project: Place, tmp_path: Path
) -> None:
    """The loop completes when the check succeeds, even if the agent gave no signal."""
    check = 'echo x >> runs; [ "$1 $2" = "run test" ] && [ "$(wc -l < runs)" -ge 2 ]'
    bun_that(lw_in_project, tmp_path, check)
    end = run(lw_in_project, in_workflow(example), "First.", "Second.")
    assert (end["status"], end["iterations"]) == ("completed", 2)
    assert end["steps"]["fix-tests"]["output"] == "Second."


@pytest.mark.item("archon-83", "archon-18")
@pytest.mark.parametrize(("example", "session"), [(SETUP + FRESH, "fresh"), (REFINE, "thread")])
def test_sessions_are_fresh_or_continue(example: str, session: str, lw_in_project: Place) -> None:
    """`fresh_context: true` starts every iteration anew, and `false` continues the session."""
    signal = "COMPLETE" if session == "fresh" else "DONE"
    answers = [
        {"when": {"step": "implement" if session == "fresh" else "refine"}, "text": text}
        for text in ("one", f"<promise>{signal.lower()}</promise>")
    ]
    end = run(lw_in_project, in_workflow(example), *answers)
    assert (end["status"], end["iterations"]) == ("completed", 2)
    plan = lw_in_project("convert", "flow.yaml").out
    assert ("session: thread" in plan) == (session == "thread")


@pytest.mark.item("archon-83", "archon-75")
def test_the_guided_example_waits_between_iterations(lw_in_project: Place) -> None:
    """The feedback reaches the next iteration; the iteration that completes is not asked about."""
    end = run(lw_in_project, GUIDED, "Draft.", "Better. <promise>DONE</promise>")
    assert end["status"] == "waiting"
    assert end["gates"][0]["message"].startswith("Review the output above.")
    told = lw_in_project("approve", end["run"], "shorter", "--json")
    assert (told.json["status"], told.json["output"]) == ("completed", "Better.")


@pytest.mark.item("archon-83")
def test_the_command_of_the_document_answers_a_gate(lw_in_project: Place) -> None:
    """`/workflow approve <id> <feedback>` continues the run that waits."""
    end = run(lw_in_project, GUIDED, "Draft.", "Better. <promise>DONE</promise>")
    line = f"/workflow approve {end['run']} shorter\n"
    told = lw_in_project.real("repl", stdin=line.encode())
    assert f"{end['run']}: approve" in told.out
    events = [one for one in lw_in_project.events(end["run"]) if one["kind"] == "gate.answered"]
    assert [(one["decision"], one["text"]) for one in events] == [("approve", "shorter")]


@pytest.mark.item("archon-83", "archon-13")
def test_a_loop_that_reaches_its_limit_fails(lw_in_project: Place) -> None:
    """The node fails with a clear error, and later nodes are skipped."""
    text = STORIES.replace("max_iterations: 10", "max_iterations: 2")
    end = run(lw_in_project, text, "One.", "INCOMPLETE")
    assert end["status"] == "failed"
    assert "step 'implement' failed" in end["error"]["detail"]
    assert end["steps"]["report"]["status"] == "skipped"
