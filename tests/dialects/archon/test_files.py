"""Commands and scripts in files: what is asked for, which is taken, what is said when none is."""

import pytest

from loopwright.dialects import archon
from loopwright.dialects.archon.files import FoundText, NotFound, command, find, script
from loopwright.model.actions import CallAgent, RunScript
from loopwright.model.template import Lit
from loopwright.syntax import Document, read
from tests.dialects.archon.reading import Problem, flow

ABSENT = Problem("not-found", "no such file")


def document(*nodes: str) -> Document:
    found, _ = read(flow(*nodes).encode(), file="flow.yaml")
    assert found is not None
    return found


def test_what_is_asked_for() -> None:
    """First the file in the project and in the person's own folder, each once."""
    asked = archon.wanted(document("{id: a, command: x}", "{id: b, command: x}"))
    assert [(one.path, one.kind) for one in asked] == [
        (".archon/commands/x.md", "text"),
        ("~/.archon/commands/x.md", "text"),
    ]
    assert {one.limit for one in asked} == {1_048_576}
    assert asked[0].where == (5, 22)


def test_names_are_asked_for_only_when_nothing_was_found() -> None:
    """The names in the folders serve the hint, so they are read only if one is needed."""
    paths = command("x").paths()
    one = document("{id: a, command: x}")
    assert archon.wanted(one, {paths[0]: b"Go"}) == []
    asked = archon.wanted(one, dict.fromkeys(paths, ABSENT))
    assert [(each.path, each.kind) for each in asked] == [
        (".archon/commands", "names"),
        ("~/.archon/commands", "names"),
    ]


@pytest.mark.parametrize(
    ("name", "runtime", "paths"),
    [
        ("x", "uv", [".archon/scripts/x.py", "~/.archon/scripts/x.py"]),
        ("x.py", "uv", [".archon/scripts/x.py", "~/.archon/scripts/x.py"]),
        ("x.js", "bun", [".archon/scripts/x.js", "~/.archon/scripts/x.js"]),
    ],
)
def test_endings_of_scripts(name: str, runtime: str, paths: list[str]) -> None:
    """The ending follows from the runtime unless it is written."""
    assert script(name, runtime).paths() == paths


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
    assert found == NotFound("unknown-script", "no script is called cuont", "did you mean count?")
    found = find(script("zzz", "uv"), files)
    assert isinstance(found, NotFound)
    assert found.hint == "known are count, say"
    found = find(command("x"), {})
    assert isinstance(found, NotFound)
    assert found.hint == "write .archon/commands/x.md"


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
