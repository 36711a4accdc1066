"""The page of what is supported: read off the corpora, and honest about what no file shows."""

import re
from functools import cache

import pytest

from loopwright.operations.dialects import NAMES
from scripts.support import CORPUS, Schema, support_page

ROW = re.compile(r"\| `(?P<word>[^`]+)` \| (?P<place>\w*) \| (?P<rest>.*) \|")


page = cache(support_page)  # all tests read the same page, which takes long to make


def rows(name: str) -> dict[tuple[str, str], list[str]]:
    """The cells of each word of a dialect, by the mapping that it stands in."""
    section = page().partition(f"## {name}\n")[2].partition("\n## ")[0]
    found = [match for line in section.splitlines() if (match := ROW.fullmatch(line))]
    return {(m["place"], m["word"]): [c.strip() for c in m["rest"].split("|")] for m in found}


@pytest.mark.parametrize("name", NAMES)
def test_every_dialect_has_its_table(name: str) -> None:
    """Each cell names a file that is there, of the right kind."""
    found = rows(name)
    assert len(found) > 10
    for supported, ignored, refused in found.values():
        if supported.startswith("`"):
            assert supported.strip("`").startswith(f"{name}/valid/")
        for cell in (supported, ignored, refused):
            if cell.startswith("`"):
                assert (CORPUS / cell.strip("`")).is_file()


def test_states_are_those_of_the_corpus() -> None:
    """A word may be supported here and ignored or refused there; the place tells which."""
    zenflow = rows("zenflow")
    assert zenflow["LoopSpec", "maxConcurrency"][1] == "`zenflow/valid/warnings.yaml`"
    assert zenflow["AgentSpec", "resultSchema"][0].startswith("`zenflow/valid/")
    refused = [word for (_, word), cells in rows("native").items() if cells[2]]
    assert refused


def test_words_are_reported_with_their_mapping() -> None:
    """The same word in two mappings is two; lists, names and alternatives are gone through."""
    schema = Schema(
        {
            "properties": {"name": {}, "steps": {"items": {"$ref": "#/definitions/Step"}}},
            "definitions": {
                "Step": {
                    "properties": {"name": {}, "env": {"anyOf": [{"$ref": "#/definitions/E"}]}}
                },
                "E": {"patternProperties": {".*": {"$ref": "#/definitions/V"}}},
                "V": {"properties": {"use": {}}},
            },
        }
    )
    value = {"name": "x", "steps": [{"name": "y", "env": {"A": {"use": 1}}}], "odd": 1}
    assert [used.name for used in schema.used(value)] == [
        ("top", "name"),
        ("top", "steps"),
        ("Step", "name"),
        ("Step", "env"),
        ("V", "use"),
    ]
    assert schema.words()[:2] == [("top", "name"), ("top", "steps")]
