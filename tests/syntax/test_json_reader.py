"""JSON with positions, and with what was expected."""

import pytest

from loopwright.syntax.document import SourceText
from loopwright.syntax.readers import compose_json


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        pytest.param('{"a": 1} x', "1:10", "end of the file", id="text behind"),
        pytest.param("[1] [2]", "1:5", "end of the file", id="second value"),
        pytest.param('{"a": 1,}', "1:9", "a key in double quotes", id="comma in map"),
        pytest.param("[1,\n]", "2:1", "no comma before it", id="comma in list"),
        pytest.param("{'a': 1}", "1:2", "double quotes", id="single quotes"),
        pytest.param("{a: 1}", "1:2", 'not "a"', id="bare key"),
        pytest.param('{"a" 1}', "1:6", "':'", id="no colon"),
        pytest.param('["a" "b"]', "1:6", "',' or ']'", id="no comma"),
        pytest.param('{"a": 1 "b"}', "1:9", "',' or '}'", id="no comma in map"),
        pytest.param('{"a": 1]', "1:8", "',' or '}'", id="wrong end"),
        pytest.param('{"a": tru}', "1:7", 'not "tru"', id="word"),
        pytest.param('{"a": 01}', "1:7", 'not "01"', id="leading zero"),
        pytest.param('{"a": +1}', "1:7", "a value", id="plus"),
        pytest.param('{"a": 1.}', "1:8", "',' or '}'", id="dot"),
        pytest.param('{"a": -}', "1:7", "a value", id="minus"),
        pytest.param('{"a": 1 // b\n}', "1:9", "no comments", id="comment"),
        pytest.param("{", "1:2", "the file ends", id="open map"),
        pytest.param("[1", "1:3", "the file ends", id="open list"),
        pytest.param('{"a":\n', "2:1", "the file ends", id="no value"),
        pytest.param('{"a": "b', "1:7", "closing quote", id="open text"),
        pytest.param('{"a": "b\nc"}', "1:9", "must be escaped", id="line end in text"),
        pytest.param('{"a": "\\q"}', "1:8", "escape", id="unknown escape"),
        pytest.param('{"a": "\\u12"}', "1:9", "escape", id="short escape"),
    ],
)
def test_mistakes_say_what_was_expected(text: str, where: str, words: str) -> None:
    """A syntax error stops the reading at its place."""
    composer = compose_json(SourceText("f.json", text))
    (found,) = composer.problems
    assert composer.root is None
    assert f"{found.line}:{found.column}: {found.code}" == f"{where}: json-syntax"
    assert words in found.render()


@pytest.mark.item("A13")
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1E999"])
def test_numbers_are_finite(number: str) -> None:
    """What JSON libraries add for infinity and not-a-number is refused."""
    (found,) = compose_json(SourceText("f.json", f'{{"a": {number}}}')).problems
    assert (found.line, found.column, found.code) == (1, 7, "not-finite")


@pytest.mark.parametrize("escape", ["\\ud800", "\\udc00\\ud800", "\\u0000"])
@pytest.mark.parametrize("text", ['{{"a": "x{}"}}', '{{"x{}": 1}}'], ids=["value", "key"])
def test_characters_that_cannot_be_stored_are_refused(text: str, escape: str) -> None:
    """Neither a lone surrogate nor NUL gets in through an escape."""
    (found,) = compose_json(SourceText("f.json", text.format(escape))).problems
    assert found.code == "bad-character"


def test_every_kind_of_value_keeps_its_type() -> None:
    """All of JSON, with its types and its order of keys."""
    text = ' {"b": [1, -2.5, 1E2, true, false, null, "x\\n\\u00e9"], "a": {}, "": [[]]}\n'
    root = compose_json(SourceText("f.json", text)).root
    assert root is not None
    assert isinstance(root.value, dict)
    assert list(root.value) == ["b", "a", ""]
    found = [root.value["b"], root.value["a"], root.value[""]]
    assert repr(found) == repr([[1, -2.5, 100.0, True, False, None, "x\né"], {}, [[]]])
