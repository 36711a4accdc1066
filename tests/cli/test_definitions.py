"""`validate`, `convert`, `schema` and `init`: definitions, before they are run."""

import json
import shlex
from pathlib import Path

import pytest

from loopwright.operations.dialects import read_definition
from tests.cli.conftest import Place

ASSISTANT = {
    "name": "fixer",
    "persona": "You fix.\nCarefully.",
    "loopEnabled": True,
    "loopCriteria": {"type": "regex", "value": "DONE"},
    "maxIterations": 4,
}


def test_validate(lw: Place) -> None:
    """Every problem of every file is told with its place; valid files leave with 0."""
    good = lw.loop("script:x", max=2)
    lw.write("bad.yaml", "name: x\nagent: script:x\nrepeat:\n  max: 3\n  untli: {signal: D}\n")
    lw.write("worse.yaml", "name: [\n")
    assert lw("validate", good).code == 0
    told = lw("validate", good, "bad.yaml", "worse.yaml", "missing.yaml")
    assert told.code == 2
    assert told.out == ""
    assert "bad.yaml:5:3: unknown-field: " in told.err
    assert "did you mean until?" in told.err
    assert "worse.yaml:" in told.err
    assert "missing.yaml:1:1: cannot-read: " in told.err


def test_validate_as_json(lw: Place) -> None:
    """A report of problems is one problem object; a report of none says so."""
    lw.write("bad.yaml", "name: x\nmaxx: 1\n")
    bad = lw("validate", "bad.yaml", "--json").json
    assert (bad["status"], bad["valid"]) == (422, False)
    assert set(bad["errors"][0]) == {"file", "line", "column", "code", "message", "hint"}
    good = lw("validate", lw.loop("script:x", max=2), "--json").json
    assert good["files"] == [
        {"file": "loop.yaml", "dialect": "native", "name": "work", "warnings": []}
    ]


def test_validate_for_github(lw: Place) -> None:
    """Problems become annotations on stdout."""
    lw.write("bad.yaml", "name: x\nagent: script:x\nmaxx: 1\n")
    told = lw("validate", "--format", "github", "bad.yaml")
    assert told.code == 2
    assert told.out.startswith("::error file=bad.yaml,line=3,col=1,title=unknown-field::")


def test_warnings_are_no_errors(lw: Place) -> None:
    """A warning is told and leaves with 0."""
    value = {**ASSISTANT, "loopCriteria": {"type": "regex", "value": "(["}}
    lw.write("warn.json", json.dumps(value))
    told = lw("validate", "warn.json")
    assert told.code == 0
    assert "warning: bad-regex" in told.err


def test_convert(lw: Place) -> None:
    """Another dialect becomes native YAML that means the same; a file is not overwritten."""
    source = lw.write("assistant.json", json.dumps(ASSISTANT))
    told = lw("convert", "assistant.json")
    assert told.code == 0
    assert "name: fixer\n" in told.out
    native = lw.write("native.yaml", told.out)
    assert lw("validate", "native.yaml", "--json").json["files"][0]["dialect"] == "native"
    for part in ("agents", "limits", "inputs"):
        assert getattr(read_definition(native).plan, part) == getattr(
            read_definition(source).plan, part
        )
    assert lw("convert", "assistant.json", "-o", "native.yaml").code == 8
    assert lw("convert", "assistant.json", "-o", "native.yaml", "--force").code == 0
    assert lw("convert", "native.yaml").out == told.out
    assert lw("convert", "missing.json").code == 2


def test_schema(lw: Place) -> None:
    """Each dialect has a JSON Schema; an unknown one gets a suggestion."""
    assert lw("schema").json["title"]
    assert lw("schema", "rondoflow", "--json").json != lw("schema").json
    told = lw("schema", "rondoflo")
    assert told.code == 2
    assert "did you mean rondoflow?" in told.err


def test_init_writes_what_runs(lw: Place) -> None:
    """What init writes is valid, runs at once without a key, and is never overwritten."""
    told = lw("init", "first")
    assert told.code == 0
    assert told.out == "loopwright run first/loop.yaml\n"
    assert lw("validate", "first/loop.yaml").code == 0
    ran = lw(*told.out.split()[1:], "--json")
    assert (ran.code, ran.json["status"], ran.json["iterations"]) == (0, "completed", 2)
    (lw.folder / "first" / "loop.yaml").write_text("mine")
    again = lw("init", "first")
    assert again.code == 8
    assert "--force" in again.err
    assert (lw.folder / "first" / "loop.yaml").read_text() == "mine"
    assert lw("init", "first", "--force").code == 0
    assert lw("validate", "first/loop.yaml").code == 0


@pytest.mark.parametrize("name", ["x/y.yaml", "y.yml", "x/my: loop #1.YAML"])
def test_init_writes_the_file_that_is_named(lw: Place, name: str) -> None:
    """A name with the ending of a definition is the file; what it needs stands beside it."""
    told = lw("init", name, "--json")
    assert told.code == 0
    assert told.json["files"][0] == name
    assert (lw.folder / name).is_file()
    assert all((lw.folder / file).is_file() for file in told.json["files"])
    ran = lw("run", name, "--json")
    assert (ran.code, ran.json["status"]) == (0, "completed")
    text = (lw.folder / name).read_text()
    assert f"loopwright run {shlex.quote(Path(name).name)}" in text
    assert lw("init", name).code == 8


def test_init_writes_several_into_a_folder(lw: Place) -> None:
    """Definitions of different names share the schema and have answers of their own."""
    for place in ("loops/a.yaml", "loops/b.yaml", "loops"):
        assert lw("init", place).code == 0
    names = sorted(file.name for file in (lw.folder / "loops").iterdir())
    assert names == [
        "a.replies.yaml",
        "a.yaml",
        "b.replies.yaml",
        "b.yaml",
        "loop.schema.json",
        "loop.yaml",
        "replies.yaml",
    ]
    (lw.folder / "loops" / "loop.schema.json").write_text("{}")
    assert lw("init", "loops/c.yaml").code == 8


def test_init_in_a_folder_that_looks_like_a_file(lw: Place) -> None:
    """A folder that is there is a folder, whatever it is called."""
    (lw.folder / "old.yaml").mkdir()
    assert lw("init", "old.yaml").out == "loopwright run old.yaml/loop.yaml\n"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param("x/y.json", "name it x/y.yaml", id="json"),
        pytest.param("", "cannot be written", id="empty"),
        pytest.param("a\nb.yaml", "cannot be written", id="line break"),
    ],
)
def test_init_under_a_name_that_cannot_be(lw: Place, name: str, said: str) -> None:
    """What cannot become a commented definition is refused, and nothing is written."""
    told = lw("init", name)
    assert told.code == 2
    assert said in told.err
    assert list(lw.folder.rglob("*.yaml")) == []


@pytest.mark.parametrize("name", ["taken", "taken/below"])
def test_init_where_it_cannot_be(lw: Place, name: str) -> None:
    """A file in the place of the folder is refused."""
    lw.write("taken", "x")
    assert lw("init", name).code in (2, 8)


SELF_JUDGED = """\
name: circle
agents:
  worker:
    description: does it and says that it is done
    resultSchema: {type: object, required: [done], properties: {done: {type: boolean}}}
steps:
  - id: work
    agent: worker
    loop: {maxIterations: 3, untilAgent: worker}
"""


@pytest.mark.item("A20")
def test_strict_makes_an_error_of_a_warning(lw: Place) -> None:
    """A worker that judges itself is told as a warning, and refused when asked to be strict."""
    (lw.folder / "circle.yaml").write_text(SELF_JUDGED)
    told = lw("validate", "circle.yaml")
    assert told.code == 0
    assert "warning: self-judging" in told.err
    strict = lw("validate", "--strict", "circle.yaml")
    assert strict.code == 2
    assert "self-judging" in strict.err


SUITE = "cases:\n  - input: a\n    expect: b\n"


@pytest.mark.parametrize(
    ("files", "checked", "code"),
    [
        pytest.param({}, ["sub/loop.yaml"], 0, id="init"),
        pytest.param(
            {"data.json": '{"a": 1}', "suite.yaml": SUITE}, ["sub/loop.yaml"], 0, id="data"
        ),
        pytest.param({"node_modules/x/loop.yaml": "nonsense: 1"}, ["sub/loop.yaml"], 0, id="tools"),
        pytest.param(
            {"x.yaml": "name: x\ngoal: y\nnonsense: 1\n"},
            ["sub/loop.yaml", "sub/x.yaml"],
            2,
            id="bad",
        ),
        pytest.param(
            {"x.yaml": "goal: [\n"}, ["sub/loop.yaml", "sub/x.yaml"], 2, id="broken-definition"
        ),
        pytest.param({"x.yaml": "a: [\n"}, ["sub/loop.yaml", "sub/x.yaml"], 2, id="broken-file"),
    ],
)
def test_files_of_a_folder_that_are_not_definitions_are_left_out(
    lw: Place, files: dict[str, str], checked: list[str], code: int
) -> None:
    """`validate` finds the definitions of a folder as `import` does: what `init` wrote is valid.
    A file that cannot be read is an error, since it may be a definition with a mistake.
    """
    assert lw("init", "sub").code == 0
    for name, text in files.items():
        (lw.folder / "sub" / name).parent.mkdir(parents=True, exist_ok=True)
        lw.write(f"sub/{name}", text)
    told = lw("validate", "sub", "--json")
    assert [one["file"] for one in told.json["files"]] == checked
    assert told.code == code
    others = {"sub/loop.schema.json", "sub/replies.yaml"}
    assert others <= set(told.json["skipped"])
    in_words = lw("validate", "sub")
    assert in_words.code == code
    assert "not definitions" in in_words.err
    assert "loop.schema.json" in in_words.err


def test_a_folder_without_a_definition_is_refused(lw: Place) -> None:
    """Nothing was checked, which must not look like a success."""
    (lw.folder / "empty").mkdir()
    lw.write("empty/data.json", "[]")
    told = lw("validate", "empty")
    assert told.code == 2
    assert "empty contains no definition" in told.err


def test_a_folder_is_validated_whole(lw: Place) -> None:
    """Every definition in it is read, hidden ones are not, and one bad file hides no other."""
    folder = lw.folder / "flows"
    (folder / "sub").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    (folder / "good.yaml").write_text(SELF_JUDGED)
    (folder / "sub" / "bad.yaml").write_text("name: x\ngoal: y\nnonsense: 1\n")
    (folder / ".hidden" / "worse.yaml").write_text("{")
    told = lw("validate", "flows", "--json")
    assert told.code == 2
    assert [one["file"] for one in told.json["files"]] == ["flows/good.yaml", "flows/sub/bad.yaml"]
