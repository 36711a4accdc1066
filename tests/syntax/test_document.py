"""Where each part of a document stands, and its digest."""

import pytest

from loopwright.syntax.document import Diagnostic, Document
from loopwright.syntax.readers import read

TEXT = """\
name: x
steps:
  - id: one
    tags: [a, bb]
  - id: two
shared: &s
  deep: {er: 1}
again: *s
"""
JSON = '{"name": "x",\n "steps": [{"id": "one"},\n  {"id": "two"}]}'


def document(text: str = TEXT, file: str = "f.yaml") -> Document:
    found, problems = read(text.encode(), file=file)
    assert problems == []
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        pytest.param((), (1, 1), (1, 1), id="root"),
        pytest.param(("name",), (1, 7), (1, 1), id="field"),
        pytest.param(("steps",), (3, 3), (2, 1), id="list"),
        pytest.param(("steps", 1), (5, 5), (5, 5), id="item"),
        pytest.param(("steps", 0, "tags", 1), (4, 15), (4, 15), id="flow item"),
        pytest.param(("steps", 0, "tags"), (4, 11), (4, 5), id="field of an item"),
        pytest.param(("again",), (8, 8), (8, 1), id="alias"),
        pytest.param(("again", "deep"), (7, 9), (7, 3), id="inside an alias"),
        pytest.param(("steps", 0, "absent"), (3, 5), (3, 5), id="absent key"),
        pytest.param(("steps", 9, "id"), (3, 3), (3, 3), id="absent item"),
        pytest.param(("steps", -1), (3, 3), (3, 3), id="negative item"),
        pytest.param(("name", "x", 0), (1, 7), (1, 7), id="below a scalar"),
        pytest.param(("steps", "0"), (3, 3), (3, 3), id="text for an index"),
    ],
)
def test_positions(path: tuple[str | int, ...], value: object, key: object) -> None:
    """A path leads to its value and its key, an absent one to what is around it."""
    assert document().at(path) == value
    assert document().key_at(path) == key


def test_positions_in_json() -> None:
    """JSON keeps positions like YAML."""
    found = document(JSON, "f.json")
    assert found.at(["steps", 1, "id"]) == (3, 10)
    assert found.key_at(["steps", 1, "id"]) == (3, 4)


@pytest.mark.parametrize(
    "other",
    ["b: [1, x]\na: 1", "# note\na:   1\nb:\n- 1\n- 'x'\n", '{"a": 1, "b": [1, "x"]}'],
    ids=["order", "layout", "json"],
)
def test_the_digest_is_of_the_value(other: str) -> None:
    """Layout, comments, format and the order of keys do not count."""
    assert document(other).digest == document("a: 1\nb: [1, x]\n").digest


@pytest.mark.parametrize("other", ["a: 1.0", "a: '1'", "a: true", "a: [1]", "b: 1", "a: 2"])
def test_the_digest_reports_values_apart(other: str) -> None:
    """Another value or another type is another digest."""
    assert document(other).digest != document("a: 1").digest


def test_the_digest_never_changes() -> None:
    """Digests are stored, so the way they are made is fixed."""
    expected = "952b582ea83e4110a8ddb4cb701c6a6cf1c1abea37465aacd1ac7536df123851"
    assert document('{"b": [1, 2.5, null, true], "a": "é"}').digest == expected


def test_a_plain_document_is_all_in_one_place() -> None:
    """A value that was never text can be validated and reported like any other."""
    found = Document.plain({"a": [1]}, file="--flag")
    assert found.at(["a", 0]) == (1, 1)
    assert found.digest == document("a: [1]").digest


def test_a_document_makes_diagnostics() -> None:
    """Problems and warnings about a path carry its position; on request that of the key."""
    found = document()
    assert found.error("bad-id", "no", at=["name"], hint="yes") == Diagnostic(
        "f.yaml", 1, 7, "bad-id", "no", "yes"
    )
    assert found.error("bad-id", "no", at=["name"], on_key=True).column == 1
    assert found.warning("odd", "hm", at=["steps"]) == Diagnostic(
        "f.yaml", 3, 3, "odd", "hm", None, "warning"
    )
