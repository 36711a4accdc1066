"""Library by name: which are there, which wins, and what is wrong with the others."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from loopwright.errors import Conflict, DefinitionError, LoopwrightError, NotFound, StorageError
from loopwright.operations.library import DefinitionLibrary

GOOD: dict[str, Any] = {
    "name": "small",
    "description": "A small loop",
    "roles": [{"role": "coder", "prompt": "Do it."}],
    "termination_condition": {"type": "iteration_bound", "value": 1},
}


@pytest.fixture
def known(tmp_path: Path) -> DefinitionLibrary:
    """A home and a project of their own."""
    (tmp_path / "project").mkdir()
    return DefinitionLibrary(tmp_path / "home", tmp_path / "project")


def put(known: DefinitionLibrary, name: str, value: object, *, project: bool = False) -> Path:
    folder = known.folders["project" if project else "user"][0]
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{name}.json"
    place.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return place


@pytest.mark.item("coqui-1")
def test_what_is_built_in(known: DefinitionLibrary) -> None:
    """Three definitions are there from the first moment, with chain, end and parameters."""
    found = {one.name: one for one in known.all()}
    assert {name: (one.chain, one.termination) for name, one in found.items()} == {
        "goal-driven": ("plan → coder", "goal_bound"),
        "harness": ("plan → coder → reviewer", "evaluation_bound"),
        "research": ("explorer → coder → reviewer", "evaluation_bound"),
    }
    rounds = {name: known.read(name).plan.steps[0].action.max for name in found}  # type: ignore[union-attr]
    assert rounds == {"goal-driven": 10, "harness": 5, "research": 3}
    shown = found["research"].as_dict()
    assert [one["name"] for one in shown["parameters"]] == [  # type: ignore[union-attr, index, call-overload]
        "output_format",
        "max_review_rounds",
        "termination_criteria",
    ]
    assert all(one.is_valid and one.problems == () for one in found.values())


@pytest.mark.item("coqui-2")
def test_an_edited_built_in_wins_and_comes_back(known: DefinitionLibrary) -> None:
    """The person's own file is used, the project's before it; deleting them brings it back."""
    mine = put(known, "harness", GOOD | {"name": "harness"})
    found = known.get("harness")
    assert (found.source, found.chain, found.hides) == ("user", "coder", ("builtin",))
    theirs = put(known, "any-file-name", GOOD | {"name": "harness"}, project=True)
    assert known.get("harness").source == "project"
    assert known.get("harness").hides == ("user", "builtin")
    theirs.unlink()
    mine.unlink()
    assert known.get("harness").chain == "plan → coder → reviewer"


BROKEN = {
    "bad json": '{"name": ',
    "bad name": GOOD | {"name": "Foo Bar"},
    "no roles": GOOD | {"roles": []},
    "empty prompt": GOOD | {"roles": [{"role": "coder", "prompt": ""}]},
    "optional without default": GOOD
    | {"parameters": [{"name": "a", "description": "A", "required": False}]},
}


@pytest.mark.item("coqui-3")
@pytest.mark.parametrize("value", BROKEN.values(), ids=BROKEN.keys())
def test_what_is_wrong_is_listed_and_harms_nothing_else(
    known: DefinitionLibrary, value: object
) -> None:
    """A file that cannot be used is listed with its problems and is not offered; others are."""
    put(known, "broken", value)
    put(known, "small", GOOD)
    assert known.names() == ["goal-driven", "harness", "research", "small"]
    found = known.get("broken")
    assert not found.is_valid
    assert all(one.line and one.column for one in found.problems)
    assert found.as_dict()["valid"] is False
    with pytest.raises(DefinitionError) as refused:
        known.read("broken")
    assert refused.value.problems


def test_a_broken_file_hides_what_it_was_to_replace(known: DefinitionLibrary) -> None:
    """Nothing else is run in the place of what a person has edited."""
    put(known, "harness", "{")
    assert "harness" not in known.names()
    with pytest.raises(DefinitionError):
        known.read("harness")


def test_a_name_that_is_used_twice_is_a_problem(known: DefinitionLibrary) -> None:
    """The first of a folder counts, and the second is listed with the first."""
    first = put(known, "a", GOOD)
    put(known, "b", GOOD)
    put(known, ".hidden", "{")
    listed = [one for one in known.all() if one.name == "small"]
    assert [one.is_valid for one in listed] == [True, False]
    assert str(first) in listed[1].problems[0].message


def test_a_file_that_cannot_be_read_is_listed(known: DefinitionLibrary) -> None:
    """Also what is no file at all."""
    known.folders["user"][0].mkdir(parents=True)
    (known.folders["user"][0] / "folder.json").mkdir()
    assert [one.code for one in known.get("folder").problems] == ["not-a-file"]


@pytest.mark.item("coqui-8")
def test_an_unknown_name_is_reported_with_the_known(known: DefinitionLibrary) -> None:
    """With the near one first."""
    with pytest.raises(NotFound) as refused:
        known.get("harnes")
    assert refused.value.hint == "did you mean harness? there are goal-driven, harness, research"
    with pytest.raises(NotFound) as refused:
        known.get("zzzz")
    assert refused.value.hint == "there are goal-driven, harness, research"


def test_the_difference_from_what_is_built_in(known: DefinitionLibrary) -> None:
    """Line by line; nothing where nothing was changed, an error where nothing is built in."""
    assert known.difference("harness") == ""
    text = (
        known.get("harness")
        .data.decode()
        .replace('"max_review_rounds": 5', '"max_review_rounds": 9')
    )
    put(known, "harness", text)
    found = known.difference("harness")
    assert '-      "max_review_rounds": 5' in found
    assert '+      "max_review_rounds": 9' in found
    put(known, "small", GOOD)
    with pytest.raises(NotFound):
        known.difference("small")


@pytest.mark.item("coqui-68")
def test_definitions_are_written_by_their_version(known: DefinitionLibrary) -> None:
    """Who writes says what it replaces; another version, another name or a path is refused."""
    data = json.dumps(GOOD).encode()
    made, is_new = known.save("small", data, expected="*")
    assert is_new
    with pytest.raises(Conflict) as refused:
        known.save("small", data, expected="*")
    assert refused.value.code == "version-conflict"
    changed = json.dumps(GOOD | {"description": "Another"}).encode()
    with pytest.raises(Conflict) as refused:
        known.save("small", changed, expected="stale")
    assert made.version in refused.value.message
    again, is_new = known.save("small", changed, expected=made.version)
    assert (is_new, again.version != made.version) == (False, True)
    for name in ("../x", "other"):
        with pytest.raises(LoopwrightError):
            known.save(name, data, expected="*")
    with pytest.raises(DefinitionError):
        known.save("small", json.dumps(GOOD | {"roles": []}).encode(), expected=again.version)
    with pytest.raises(NotFound):
        known.save("harness", json.dumps(GOOD | {"name": "harness"}).encode(), expected="x")
    with pytest.raises(Conflict):
        known.delete("small", expected=made.version)
    known.delete("small", expected=again.version)
    assert known.find("small") is None
    with pytest.raises(Conflict) as refused:
        known.delete("harness")
    assert refused.value.code == "not-yours"
    with pytest.raises(NotFound):
        known.delete("small")


def test_a_folder_that_cannot_be_written(
    known: DefinitionLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, or one that can only be read, is told as such; what was there stays."""
    data = json.dumps(GOOD).encode()
    first, _ = known.save("small", data, expected="*")

    def full(self: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    with monkeypatch.context() as broken:
        broken.setattr(Path, "write_bytes", full)
        with pytest.raises(StorageError) as error:
            known.save("small", data + b" ", expected=first.version)
    assert error.value.code == "full"
    with monkeypatch.context() as broken:
        broken.setattr(Path, "unlink", full)
        with pytest.raises(StorageError):
            known.delete("small")
    assert known.get("small").version == first.version
    assert [one.name for one in known.folders["user"][0].iterdir()] == ["small.json"]


@pytest.mark.item("coqui-75")
@pytest.mark.parametrize("start", [".", "src/deep", "workspace", "workspace/loops"])
def test_definitions_are_found_in_the_workspace_folder(tmp_path: Path, start: str) -> None:
    """`workspace/loops/` of a project counts, from any folder inside of the project."""
    project = tmp_path / "project"
    for folder in ("src/deep", "workspace/loops", ".git"):
        (project / folder).mkdir(parents=True)
    (project / "workspace/loops/small.json").write_text(json.dumps(GOOD))
    known = DefinitionLibrary(tmp_path / "home", project / start)
    found = known.get("small")
    assert (found.source, found.is_valid) == ("project", True)
    put(known, "small", GOOD | {"description": "Of the person"})
    assert known.get("small").about["description"] == GOOD["description"]
    assert known.get("small").hides == ("user",)


@pytest.mark.item("coqui-75")
def test_the_own_folder_of_a_project_comes_before_its_workspace_folder(tmp_path: Path) -> None:
    """The same name in `.loopwright/loops` wins; nothing is wrong with either file."""
    for folder in (".loopwright", "workspace"):
        (tmp_path / folder / "loops").mkdir(parents=True)
        place = tmp_path / folder / "loops" / "small.json"
        place.write_text(json.dumps(GOOD | {"description": folder}))
    found = DefinitionLibrary(tmp_path / "home", tmp_path).get("small")
    assert found.about["description"] == ".loopwright"
    assert found.problems == ()
    assert found.hides == ("project",)
