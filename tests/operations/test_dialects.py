"""Definitions are known by what they say: every corpus against all dialects."""

from pathlib import Path
from typing import Any

import pytest

from loopwright.errors import DefinitionError
from loopwright.model.plan import Plan
from loopwright.operations.dialects import NAMES, dialect, read_definition, recognise, rendering
from loopwright.syntax.readers import read

CORPUS = Path(__file__).resolve().parents[1] / "corpus"


def definitions() -> list[Any]:
    """Every valid definition of every dialect, alone or with files beside it."""
    found = [
        path
        for name in NAMES
        for path in [
            *(CORPUS / name / "valid").iterdir(),
            *(CORPUS / name / "files" / "valid").glob("*/main.*"),
        ]
        if path.suffix in (".yaml", ".json") and not path.name.endswith("plan.json")
    ]
    return [pytest.param(one, id=one.relative_to(CORPUS).as_posix()) for one in sorted(found)]


@pytest.mark.parametrize("path", definitions())
def test_every_definition_is_known_by_what_it_says(path: Path) -> None:
    """No other dialect is as sure about a definition as its own."""
    document, _ = read(path.read_bytes(), file=path.name)
    assert document is not None
    own = path.relative_to(CORPUS).parts[0]
    sure = {name: dialect(name).recognise(document.value) for name in NAMES}
    assert recognise(document.value) == own
    assert [name for name in NAMES if sure[name] >= sure[own]] == [own]


@pytest.mark.item("aldo-1", "aldo-6")
@pytest.mark.parametrize("name", ["reference", "composite", "parallel", "depth"])
def test_files_are_gathered(name: str) -> None:
    """Prompts, schemas and the agents of a composite are read from beside the definition."""
    found = read_definition(CORPUS / "aldo" / "files" / "valid" / name / "main.yaml")
    assert found.dialect == "aldo"
    assert all(agent.system for agent in found.plan.agents.values())


@pytest.mark.parametrize("name", NAMES)
def test_only_some_have_events(name: str) -> None:
    """A dialect tells runs in its own words, or says that it has none."""
    told = rendering(Plan(name="x", dialect=name, steps=()), str)
    assert (told is not None) is (name in ("aldo", "zenflow"))


def test_a_file_whose_words_say_nothing_is_read_as_its_folder_says(tmp_path: Path) -> None:
    """A workflow with a wrong word is refused in the words of its own dialect."""
    folder = tmp_path / ".archon" / "workflows"
    folder.mkdir(parents=True)
    text = "name: x\ndescription: y\nnodes:\n  a: {prompt: Go}\n"
    for place, message in ((folder, "nodes must be a list"), (tmp_path, "nodes")):
        file = place / "flow.yaml"
        file.write_text(text)
        with pytest.raises(DefinitionError) as caught:
            read_definition(file)
        assert message in str([one.render() for one in caught.value.problems])
