"""Commands and scripts in files: what is asked for, which is taken, what is said when none is."""

import pytest

from loopwright.dialects import archon
from loopwright.dialects.archon.files import FoundText, NotFound, command, find, script
from loopwright.model.actions import CallAgent, FailStep, RunScript
from loopwright.model.template import Lit
from loopwright.syntax.document import Document
from loopwright.syntax.reading import read
from tests.dialects.archon.reading import Problem, flow, lowered

ABSENT = Problem("not-found", "no such file")


def document(*nodes: str) -> Document:
    found, _ = read(flow(*nodes).encode(), file="flow.yaml")
    assert found is not None
    return found


def test_what_is_asked_for() -> None:
    """First the files beside the workflow and in the project, each once, with the folder."""
    asked = archon.wanted(document("{id: a, command: x}", "{id: b, command: x}"))
    assert [(one.path, one.kind) for one in asked] == [
        ("@/commands/x.md", "text"),
        (".archon/commands/x.md", "text"),
        (".archon/commands", "names"),
    ]
    assert {one.limit for one in asked} == {1_048_576}
    assert asked[0].where == (5, 22)


@pytest.mark.item("archon-71")
def test_folders_are_searched_one_level_deep_and_the_project_before_the_person() -> None:
    """A file of a folder in the project's folder comes before one of the person's."""
    one = document("{id: a, command: x}")
    absent = dict.fromkeys(["@/commands/x.md", ".archon/commands/x.md"], ABSENT)
    files = {**absent, ".archon/commands": b"a.md\ndefaults\nteam\n"}
    assert [each.path for each in archon.wanted(one, files)] == [
        ".archon/commands/defaults/x.md",
        ".archon/commands/team/x.md",
    ]
    files |= {".archon/commands/defaults/x.md": ABSENT, ".archon/commands/team/x.md": b"Go"}
    assert archon.wanted(one, files) == []
    assert find(command("x"), files) == FoundText(".archon/commands/team/x.md", "Go")
    files[".archon/commands/team/x.md"] = ABSENT
    assert [each.path for each in archon.wanted(one, files)] == [
        "~/.archon/commands/x.md",
        "~/.archon/commands",
    ]


@pytest.mark.parametrize(
    ("name", "runtime", "paths"),
    [
        ("x", "uv", ["a/x.py"]),
        ("x.py", "uv", ["a/x.py"]),
        ("x.js", "bun", ["a/x.js"]),
        ("x", "bun", ["a/x.ts", "a/x.js"]),
    ],
)
def test_endings_of_scripts(name: str, runtime: str, paths: list[str]) -> None:
    """The ending follows from the runtime unless it is written."""
    assert script(name, runtime).paths("a") == paths


def test_the_project_comes_first() -> None:
    """Of two files of one name the project's is taken."""
    files = {".archon/commands/x.md": b"\xef\xbb\xbfours\r\n", "~/.archon/commands/x.md": b"mine"}
    assert find(command("x"), files) == FoundText(".archon/commands/x.md", "ours\n")
    files[".archon/commands/x.md"] = ABSENT  # type: ignore[assignment]
    assert find(command("x"), files) == FoundText("~/.archon/commands/x.md", "mine")


UNUSABLE = [
    (b"\xff", "encoding"),
    (b"a\0b", "encoding"),
    (b" \n", "empty-definition"),
    (Problem("file-too-large", "too large"), "file-too-large"),
    (Problem("cannot-read", "permission denied"), "cannot-read"),
    (Problem("cannot-read", "no such file or directory"), "unknown-command"),
    (Problem("outside-workspace", "leads out"), "outside-workspace"),
]


@pytest.mark.parametrize(("given", "code"), UNUSABLE, ids=[str(one) for one, _ in UNUSABLE])
def test_files_that_cannot_be_used(given: bytes | Problem, code: str) -> None:
    """A file that is there but cannot be used is told as what it is."""
    files: dict[str, bytes | Problem] = {
        ".archon/commands/x.md": given,
        "~/.archon/commands/x.md": Problem("outside-workspace", "not for us"),
    }
    found = find(command("x"), files)
    assert isinstance(found, NotFound)
    assert found.code == code


@pytest.mark.item("archon-68")
def test_near_misses_are_suggested() -> None:
    """The hint knows the names of both folders, and only files that would do."""
    files = {".archon/scripts": b"count.py\nnotes.txt\n", "~/.archon/scripts": b"say.py\n"}
    found = find(script("cuont", "uv"), files)
    message = "no script is called cuont in .archon/scripts or ~/.archon/scripts"
    assert found == NotFound("unknown-script", message, "did you mean count?")
    found = find(script("zzz", "uv"), files)
    assert isinstance(found, NotFound)
    assert (found.hint or "").endswith("; known are count, say")
    found = find(command("x"), {})
    assert isinstance(found, NotFound)
    assert (found.hint or "").startswith("write .archon/commands/x.md, or copy")
    assert found.is_absent


ABSENT_NODES = [
    ("{id: a, command: archon-plan}", "unknown-command", "no command is called archon-plan in"),
    ("{id: a, command: reviw-code}", "unknown-command", "did you mean review-code?"),
    ("{id: a, script: cuont, runtime: uv}", "unknown-script", "did you mean count?"),
    (
        "{id: a, loop: {command: x, until: D, max_iterations: 2}}",
        "unknown-command",
        "write .archon/commands/x.md",
    ),
    ("{id: a, workflow: reviw}", "unknown-workflow", "did you mean review?"),
    ("{id: a, workflow: x, fan_out: {items: [1]}}", "unknown-workflow", "write .archon/workflows/"),
]


@pytest.mark.item("archon-68")
@pytest.mark.parametrize(("node", "code", "says"), ABSENT_NODES, ids=[n for n, *_ in ABSENT_NODES])
def test_a_node_whose_file_is_missing_loads_with_a_warning_and_fails_when_reached(
    node: str, code: str, says: str
) -> None:
    """The warning has the name, the folders and what to do; so has the failure of the node."""
    plan, (problem,) = lowered(flow(node))
    assert (problem.severity, problem.code) == ("warning", code)
    assert problem.message.endswith(": the node will fail")
    assert plan is not None
    action = plan.steps[0].action
    assert isinstance(action, FailStep)
    assert f".archon/{code.removeprefix('unknown-')}s" in action.reason
    assert says in action.reason


def test_files_become_prompts_and_scripts() -> None:
    """The text of a file stands in the plan, as if it had been written there."""
    files = {".archon/commands/x.md": b"Go on", ".archon/scripts/y.py": b"print(1)"}
    plan, problems = archon.lower(
        document("{id: a, command: x}", "{id: b, script: y, runtime: uv}"), files
    )
    assert problems == []
    assert plan is not None
    call, run = plan.steps[0].action, plan.steps[1].action
    assert isinstance(call, CallAgent)
    assert call.prompt == (Lit(text="Go on"),)
    assert isinstance(run, RunScript)
    assert run.text == "print(1)"


def test_findings_in_a_file_name_that_file() -> None:
    """A variable that leads nowhere is shown in the file in which it stands."""
    files = {".archon/commands/x.md": b"one\ntwo $ghost.output"}
    _, problems = archon.lower(document("{id: a, command: x}"), files)
    (one,) = problems
    assert (one.file, one.line, one.column) == (".archon/commands/x.md", 2, 5)
