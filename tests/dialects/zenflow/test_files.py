"""Files that belong to a workflow: what is asked for, and what is refused."""

from typing import get_args

import pytest

from loopwright.dialects import zenflow
from loopwright.syntax.document import Document, Position
from loopwright.syntax.notations import path_inside
from loopwright.syntax.readers import read
from tests.dialects.zenflow.cases import Refused, lowered

FLOW = """name: x
agents: {one: {description: Works., prompt: "@prompts/role.md"}}
includes: {part: parts/one.yaml, unused: parts/two.yaml}
steps:
  - {id: a, agent: one, instructions: "@prompts/task.md"}
  - {id: b, include: part}
  - {id: c, instructions: "@prompts/task.md"}
"""


def document(text: str = FLOW, *, file: str = "flows/flow.yaml") -> Document:
    made, problems = read(text.encode(), file=file)
    assert problems == []
    assert made is not None
    return made


def test_what_is_asked_for() -> None:
    """Each file once, where it is first named, and only those that are used."""
    asked = zenflow.requested_files(document())
    assert [(one.path, one.kind, one.where) for one in asked] == [
        ("prompts/role.md", "text", Position(2, 45)),
        ("prompts/task.md", "text", Position(5, 39)),
        ("parts/one.yaml", "workflow", Position(6, 22)),
    ]
    assert {one.limit for one in asked} == {1_048_576}


def test_files_ask_for_files() -> None:
    """What a file asks for in turn is wanted when that file is there, from its own folder on."""
    have: dict[str, bytes | Refused] = {
        "prompts/role.md": b"@prompts/real.md\n",
        "prompts/task.md": b"Do it.",
        "parts/one.yaml": b'name: y\nsteps: [{id: z, instructions: "@../say.md"}]\n',
    }
    asked = zenflow.requested_files(document(), have)
    assert [one.path for one in asked] == ["prompts/real.md", "say.md"]
    have |= {"prompts/real.md": b"Role.", "say.md": b"Say."}
    assert zenflow.requested_files(document(), have) == []
    plan, problems = zenflow.lower(document(), have)
    assert problems == []
    assert plan is not None


def test_included_files_are_named_as_the_first_one_is() -> None:
    """A finding in an included file says where that file is, seen from the same place."""
    have: dict[str, bytes | Refused] = {"parts/one.yaml": b"name: y\n"}
    text = "name: x\nsteps: [{id: b, include: parts/one.yaml}]\n"
    _, (problem,) = zenflow.lower(document(text), have)
    assert problem.render().startswith("flows/parts/one.yaml:1:1: missing-steps")


def test_what_the_reader_refuses_is_reported_in_its_place() -> None:
    """A file that is not handed over is told with the reader's reason, where it is named."""
    link = Refused("file-outside", "prompts/task.md leads out of the folder")
    text = 'name: x\nsteps: [{id: a, instructions: "@prompts/task.md"}, {id: b, include: c.yaml}]\n'
    plan, problems = lowered(text, {"prompts/task.md": link, "c.yaml": link})
    assert plan is None
    assert [(one.line, one.column, one.code) for one in problems] == [
        (2, 31, "file-outside"),
        (2, 69, "file-outside"),
    ]


def test_large_files_are_refused() -> None:
    """A file may have 1 MiB."""
    text = 'name: x\nsteps: [{id: a, instructions: "@a.md"}]\n'
    assert lowered(text, {"a.md": b"x" * 1_048_576})[1] == []
    (problem,) = lowered(text, {"a.md": b"x" * 1_048_577})[1]
    assert problem.code == "too-large"


@pytest.mark.item("A25")
@pytest.mark.parametrize(
    "target",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "a/../../b.yaml",
        "https://example.org/flow.yaml",
        "file:///etc/passwd",
        "~/flow.yaml",
        "C:/flow.yaml",
        "a\\..\\..\\b.yaml",
        ".",
    ],
)
def test_includes_stay_in_the_folder(target: str) -> None:
    """Nothing outside of the workflow's folder is included, or even asked for."""
    text = f"name: x\nincludes: {{far: '{target}'}}\nsteps: [{{id: a, include: '{target}'}}]\n"
    assert zenflow.requested_files(document(text)) == []
    plan, problems = lowered(text)
    assert plan is None
    assert [one.code for one in problems] == ["include-outside", "include-outside"]


@pytest.mark.item("A25")
def test_circular_includes() -> None:
    """A workflow that leads back to itself is refused with the way around."""
    files: dict[str, bytes | Refused] = {
        "a.yaml": b"name: a\nsteps: [{id: a, include: b.yaml}]\n",
        "b.yaml": b"name: b\nsteps: [{id: b, include: a.yaml}]\n",
    }
    (problem,) = lowered("name: x\nsteps: [{id: s, include: a.yaml}]\n", files)[1]
    assert (problem.file, problem.code) == ("b.yaml", "include-cycle")
    assert "a.yaml → b.yaml → a.yaml" in problem.message


@pytest.mark.parametrize(
    ("folder", "written", "path"),
    [
        ("", "a.md", "a.md"),
        ("", "./a//b/../c.md", "a/c.md"),
        ("sub", "a.md", "sub/a.md"),
        ("sub/deep", "../a.md", "sub/a.md"),
        ("sub", "../../a.md", None),
        ("", "", None),
        ("", "a\u202eb", None),
        ("", "a\nb", None),
        ("", "..", None),
    ],
)
def test_paths(folder: str, written: str, path: str | None) -> None:
    """A path is taken from its file's folder, and never leads out of the first one."""
    assert path_inside(folder, written) == path


def test_kinds_of_files() -> None:
    """A reader that does something by kind has two of them."""
    kinds = get_args(zenflow.ZenflowFileRequest.__annotations__["kind"])
    assert set(kinds) == {"text", "workflow"}


def test_files_shared_by_many_are_read_once() -> None:
    """Steps that include the same file share it, so that many of them cost little."""
    files: dict[str, bytes | Refused] = {
        f"n{n}.yaml": (
            f"name: n{n}\nsteps:\n"
            + "".join(f"  - {{id: s{k}, include: n{n + 1}.yaml}}\n" for k in range(10))
        ).encode()
        for n in range(5)
    } | {"n5.yaml": b"name: n5\nsteps: [{id: a}]\n"}
    problems = lowered("name: x\nsteps: [{id: s, include: n1.yaml}]\n", files)[1]
    assert [one.code for one in problems] == ["too-many-steps"]
