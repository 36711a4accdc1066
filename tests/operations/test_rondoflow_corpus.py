"""Assistants as users of RondoFlow have them: each file loads, runs and ends as it should."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from loopwright.errors import DefinitionError, LoopwrightError
from loopwright.kernel.events import CheckVerdict
from loopwright.operations.dialects import recognise
from loopwright.operations.loops.dialect_events import dialect_events_after
from loopwright.operations.preflight import check_programs
from loopwright.operations.run_request import StartRun
from loopwright.operations.run_start import DefinitionSource, StartPlace, prepare_start
from loopwright.operations.runs import row_ended
from loopwright.operations.settings import Settings
from loopwright.operations.wiring import Local, local
from loopwright.ports.headline import iterations
from loopwright.syntax.readers import read

USERS = Path(__file__).resolve().parents[1] / "corpus" / "rondoflow" / "users"

# Stands for npm, pytest and the like: writes down its arguments and passes the second time.
FAKE = """#!/bin/sh
printf '%s' "${0##*/}" >> calls.txt
for part in "$@"; do printf ' [%s]' "$part" >> calls.txt; done
echo >> calls.txt
test "$(wc -l < calls.txt)" -ge 2
"""
PROGRAMS = ("npm", "npx", "pytest", "make", "cargo", "go")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A file with what its agent answers, and how its loop ends."""

    says: list[Any] = field(default_factory=lambda: ["first draft", "second draft"])
    passes: int = 1
    ends: str = "completed"
    reason: str = "max_iterations"
    output: str | None = None
    warns: tuple[str, ...] = ()
    calls: str = ""
    decides: str = ""
    choose: str | None = None
    system: str = ""
    tools: tuple[str, ...] | None = None


def matched(*says: str, output: str | None = None, **more: Any) -> Case:
    """The criterion is met by the last answer, whose whole text is the result."""
    return Case(
        says=list(says),
        passes=len(says),
        reason="regex",
        output=output or says[-1],
        **more,
    )


def passing(calls: str, **more: Any) -> Case:
    """The test passes after the second iteration."""
    return Case(passes=2, reason="command", output="second draft", calls=calls, **more)


def capped(passes: int, **more: Any) -> Case:
    """All iterations are made, and the result is the last learning."""
    says = [f"draft {n}" for n in range(1, passes + 1)]
    return Case(says=says, passes=passes, output=f"draft {passes}", **more)


IGNORED = ("ignored-field",)
CASES: dict[str, Case] = {
    "changelog-polisher.json": capped(
        3, system="Tighten the wording of CHANGELOG.md. Keep every fact."
    ),
    "haiku-smith.json": capped(2),
    "release-notes.json": capped(1),
    "default-cap.json": capped(10),
    "null-criterion.json": capped(2),
    "done-word.json": matched("still at it", "All complete.\nNothing left."),
    "last-iteration.json": matched("begun", "finished " + "x" * 400),
    "lint-clean.json": matched("3 errors", "0 problems", tools=("Read", "Edit", "Bash")),
    "coverage-eighty.json": matched("Coverage: 79.9%", "coverage:\u202f81.2%"),
    "anchored.json": matched("not APPROVED", "approved"),
    "unicode-check.json": matched("❌", "✓ good"),
    "not-failed.json": matched("3 passed\n1 failed", "4 passed\n"),
    "after-label.json": matched("state: ok", "Status: GREEN"),
    "not-yet.json": matched("not done", "done"),
    "same-quote.json": matched("verdict: 'pass\"", "verdict: 'pass'"),
    "named-group.json": matched("abc1234 == abc1235", "abc1234 == abc1234"),
    "runs-to-cap.json": capped(2, warns=("bad-regex",)),
    "python-flag.json": capped(2, warns=("bad-regex",)),
    "panel-left-empty.json": matched("anything", warns=("matches-everything",)),
    "npm-test.json": passing("npm [test]"),
    "npm-script.json": passing("npm [run] [test:unit]"),
    "one-test.json": passing("pytest [tests/test_cart.py::test_total] [-q]"),
    "jest-ci.json": passing(
        "npx [jest] [--ci=true] [--testPathPattern=src/(cart|user)]", warns=("shell-syntax",)
    ),
    "make-check.json": passing("make [-j2] [check]"),
    "cargo-workspace.json": passing("cargo [test] [--workspace] [--] [--nocapture]"),
    "go-race.json": passing("go [test] [-race] [./...]"),
    "shell-habits.json": passing("npm [test] [&&] [npm] [run] [lint]", warns=("shell-syntax",)),
    "never-passes.json": capped(2),
    "review-each-draft.json": Case(
        passes=1, decides="approve", reason="approved", output="first draft"
    ),
    "review-null-value.json": Case(passes=1, decides="approve", reason="approved"),
    "review-rejected.json": Case(passes=1, decides="reject", ends="failed", reason="rejected"),
    "agent-fails.json": Case(
        says=[{"fail": {"type": "crashed", "detail": "exit 3"}}], ends="failed", reason="error"
    ),
    "loop-budget.json": capped(2),
    "system-prompt.yaml": matched(
        "stale",
        "It is UP TO DATE.",
        system="Keep README.md in step with the code.\nSay UP TO DATE when it is.\n",
    ),
    "criterion-note.yaml": matched("No typos left", warns=IGNORED),
    "exported/api-agent.json": matched("red", "All tests are green", warns=IGNORED),
    "exported/api-response.json": capped(1, warns=("field-not-applied", "ignored-field")),
    "exported/agents-list.json": matched("planning", "built", warns=IGNORED, system="You build."),
    "exported/openai-agent.json": capped(1, warns=("field-not-applied", "ignored-field")),
    "exported/scoped-agent.json": capped(
        1, warns=("field-not-applied", "ignored-field"), tools=("Read", "Grep")
    ),
    "exported/all-tools.json": capped(1, warns=IGNORED),
    "exported/team.json": matched(
        "once", "THE END", choose="Writer", warns=IGNORED, system="You write."
    ),
    "exported/workspace.json": passing(
        "npm [test]", warns=("field-not-applied", "ignored-field"), tools=("Read", "Write", "Edit")
    ),
    "exported/workspace-response.json": capped(
        2, warns=IGNORED, system="You answer.", tools=("Read", "Write", "Edit")
    ),
    "exported/import-request.json": capped(1, warns=IGNORED, tools=("Read", "Write", "Edit")),
    "catalog/proofreader/manifest.json": matched(
        "one slip",
        "There are no slips.",
        warns=IGNORED,
        tools=("Read", "Edit"),
        system='# Proofreader\n\nRead slowly. Report slips; say "no slips" when there are none.\n',
    ),
}


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with programs of the usual names."""
    programs, folder = tmp_path / "bin", tmp_path / "ws"
    folder.mkdir()
    programs.mkdir()
    for name in PROGRAMS:
        (programs / name).write_text(FAKE)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return folder


def prepared(name: str, workspace: Path, *says: Any, **inputs: Any) -> Any:
    """The start of a file of a user, with an agent that says this."""
    script = workspace.parent / "replies.json"
    replies = [{"text": one} if isinstance(one, str) else one for one in says]
    script.write_text(json.dumps({"replies": replies}))
    request = StartRun(message="Do it.", agent=f"script:{script}", inputs=inputs)
    place = StartPlace(settings=Settings(home=workspace.parent / "home"), workspace=workspace)
    return prepare_start(place, request, DefinitionSource(file=str(USERS / name)))


async def play(here: Local, run: str, decision: str) -> None:
    """Follow a run to its end; reviews get this decision."""
    while not row_ended(here.log.row(run)):
        await here.driver.rest(run)
        for gate in here.log.gates(run):
            await here.service.answer(gate.gate, decision, by="ann")  # type: ignore[arg-type]


def made(here: Local, run: str) -> int:
    """How many iterations a run says that it has made."""
    return iterations(here.service.state(run))


@pytest.mark.item("rondoflow-74", "rondoflow-64", "rondoflow-65", "rondoflow-71")
@pytest.mark.parametrize("name", CASES)
def test_files_of_users_run_to_their_end(workspace: Path, name: str) -> None:
    """The status, the reason, the number of iterations, the result, the warnings and the arguments
    of the test command are as documented.
    """
    case = CASES[name]
    values = {"assistant": case.choose} if case.choose else {}
    start, definition = prepared(name, workspace, *case.says, **values)
    asyncio.run(check_programs(start))
    assert definition.dialect == "rondoflow"
    assert tuple(sorted(one.code for one in definition.warnings)) == case.warns
    (agent,) = start.plan.agents.values()
    assert (agent.tools, agent.permission) == (case.tools, "bypassPermissions")
    assert agent.system == case.system or not case.system

    async def body() -> tuple[Any, list[dict[str, Any]]]:
        async with local(Settings(home=workspace.parent / "home", durability="normal")) as here:
            run = await here.service.start(start)
            await play(here, run, case.decides)
            head = here.log.row(run).headline
            events = list(dialect_events_after(here.service, run, here.service.events(run), 0))
            return (head.status, head.reason, made(here, run)), events

    ended, events = asyncio.run(body())
    assert ended == (case.ends, case.reason, case.passes)
    if case.calls:
        assert (workspace / "calls.txt").read_text().splitlines() == [case.calls] * case.passes
    last = events[-1]
    if case.ends == "completed":
        assert last["type"] == "completed"
        assert last["payload"]["totalIterations"] == case.passes
        assert case.output is None or last["payload"]["finalOutput"] == case.output
    else:
        assert last["type"] == "failed"
        assert last["payload"]["iteration"] == case.passes


def test_the_corpus_is_complete() -> None:
    """Every file of it is run here, or named in another test of this file."""
    others = {"explosive.json", "switched-off.json", "catalog/translator/manifest.json"}
    files = {
        path.relative_to(USERS).as_posix()
        for path in USERS.rglob("*")
        if path.suffix in (".json", ".yaml")
    }
    assert files == set(CASES) | others
    assert len(files) >= 40


@pytest.mark.item("rondoflow-65")
def test_a_pattern_that_never_ends_does_not_stop_the_loop(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict says that it took too long, and the loop continues to its last iteration."""
    monkeypatch.setattr("loopwright.kernel.iteration.MATCH_MS", 200)
    says = ["a" * 5_000, "b"]
    start, _ = prepared("explosive.json", workspace, *says)

    async def body() -> tuple[Any, list[CheckVerdict]]:
        async with local(Settings(home=workspace.parent / "home", durability="normal")) as here:
            run = await here.service.start(start)
            await play(here, run, "")
            head = here.log.row(run).headline
            found = [one.event for one in here.service.events(run)]
            return (head.status, made(here, run)), [
                one for one in found if isinstance(one, CheckVerdict)
            ]

    ended, verdicts = asyncio.run(body())
    assert ended == ("completed", 2)
    assert [one.verdict for one in verdicts] == ["timed_out", "fail"]
    assert "more than 0.2 s for this output of 5,000 characters" in str(verdicts[0].evidence)


@pytest.mark.item("rondoflow-7", "rondoflow-71")
@pytest.mark.parametrize("name", ["switched-off.json", "catalog/translator/manifest.json"])
def test_an_assistant_that_is_switched_off_loads_and_is_not_started(
    workspace: Path, name: str
) -> None:
    """The file is valid; the start is refused and says what to do."""
    with pytest.raises(DefinitionError, match="looping is off") as refused:
        prepared(name, workspace, "x")
    (problem,) = refused.value.problems
    assert problem.code == "loop-disabled"
    assert problem.hint == "set loopEnabled: true, or give the number of iterations at the start"
    assert name.rpartition("/")[2] in problem.file


@pytest.mark.item("rondoflow-71")
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "missing input: assistant"),
        ({"assistant": "Writter"}, "no assistant 'Writter' in this file"),
        ({"assistant": "Illustrator"}, "assistant 'Illustrator': looping is off"),
    ],
)
def test_one_of_several_assistants_must_be_chosen(
    workspace: Path, given: dict[str, str], says: str
) -> None:
    """The error names the assistants, and the one it is about."""
    with pytest.raises(LoopwrightError) as refused:
        prepared("exported/team.json", workspace, "x", **given)
    error = refused.value
    problems = error.problems if isinstance(error, DefinitionError) else ()
    words = [error.message, *(f"{one.message} {one.hint}" for one in problems)]
    assert any(says in one for one in words), words
    assert "Writter" not in says or "did you mean Writer?" in " ".join(words)


def test_every_file_is_known_as_one_of_this_dialect() -> None:
    """No other dialect claims them."""
    for path in [*USERS.rglob("*.json"), *USERS.rglob("*.yaml")]:
        document, _ = read(path.read_bytes(), file=path.name)
        assert document is not None
        assert recognise(document.value) == "rondoflow", path
