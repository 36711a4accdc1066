"""Whatever comes in, what goes out is a document or diagnostics."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loopwright.syntax.document import Document, SourceText, Value
from loopwright.syntax.readers import compose_json, read
from loopwright.syntax.validation import validate
from loopwright.syntax.yaml_reader import compose_yaml
from tests.syntax.union_model import Plan

FEW, MANY = settings(max_examples=300), settings(max_examples=20_000)
FILES = st.sampled_from(["f.yaml", "f.json", "-"])

# Words that a YAML or JSON text is made of, and those that make trouble.
PIECES = st.sampled_from(
    [
        *[
            " ",
            "  ",
            "\n",
            "\n  ",
            "\n    ",
            "\r\n",
            "\t",
            "- ",
            "? ",
            ": ",
            ":",
            ",",
            "#",
            "|",
            ">",
        ],
        *["[", "]", "{", "}", '"', "'", "\\", "\\u", "\\ud800", "&a ", "*a", "<<", "!!str ", "!x "],
        *[
            "---",
            "...",
            "%YAML 1.2",
            "%TAG ! x",
            "a",
            "b",
            "name",
            "1",
            "-1",
            "1.5",
            "1e999",
            ".nan",
        ],
        *[
            "true",
            "null",
            "~",
            "on",
            "0o7",
            "0x1f",
            "é",
            "\u2028",
            "\ufeff",
            "😀",
            "@",
            "`",
            "until",
        ],
        *[
            "command",
            "signal",
            "all",
            "limit",
            "tool",
            "type",
            "act",
            "run",
            "9" * 30,
            "\x7f",
            "\0",
        ],
    ]
)
TEXTISH = st.lists(PIECES, max_size=40).map("".join)

# All text that both formats can hold without an escape.
TEXT = st.text(
    st.characters(
        exclude_categories=["Cs", "Cc"], exclude_characters="\u2028\u2029\ufeff\ufffe\uffff"
    ),
    max_size=12,
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=15,
)
KEYS = st.sampled_from(
    [
        *["until", "limit", "many", "tool", "act", "command", "timeout", "signal", "all"],
        *["type", "argv", "code", "run", "ask", "whom"],
    ]
)
PLANS = st.dictionaries(
    KEYS,
    st.recursive(
        SCALARS | st.sampled_from(["unlimited", "sh", "py"]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | TEXT, inner, max_size=3),
        max_leaves=10,
    ),
    max_size=4,
)


def holds_together(data: bytes, file: str) -> None:
    document, found = read(data, file=file)
    assert (document is None) == bool(found)
    lines = data.count(b"\n") + data.count(b"\r") + 1
    for problem in found:
        assert problem.file == file
        assert 1 <= problem.line <= lines
        assert 1 <= problem.column <= len(data) + 1
        assert problem.render().isprintable()
    if document is not None:
        assert json.loads(json.dumps(document.value, allow_nan=False)) == document.value
        assert len(document.digest) == 64
        validates(document)


def validates(document: Document) -> None:
    made, found = validate(Plan, document)
    assert (made is None) == bool(found)
    assert all(p.render() and p.severity == "error" for p in found)


def reads_the_same(value: Value) -> None:
    source = SourceText("f", json.dumps(value, ensure_ascii=False))
    for composer in (compose_json(source), compose_yaml(source)):
        assert composer.problems == []
        assert composer.root is not None
        assert repr(composer.root.value) == repr(value)


@FEW
@given(st.binary(max_size=200), FILES)
def test_any_bytes(data: bytes, file: str) -> None:
    """No bytes raise an exception."""
    holds_together(data, file)


@FEW
@given(TEXTISH.map(str.encode), FILES)
@example(b"{? ", "f.yaml")
@example(b'"\\', "f.json")
def test_any_text(data: bytes, file: str) -> None:
    """No arrangement of YAML and JSON signs raises an exception."""
    holds_together(data, file)


@FEW
@given(VALUES)
def test_both_readers_give_what_was_written(value: Value) -> None:
    """Any JSON value comes back, with its types, from either reader."""
    reads_the_same(value)


@FEW
@given(PLANS)
def test_any_value_validates(value: Value) -> None:
    """No value raises an exception, and pydantic agrees on what is valid."""
    validates(Document.plain(value, file="f"))


@pytest.mark.deep
@pytest.mark.timeout(900)
@MANY
@given(st.binary(max_size=2_000), FILES)
def test_any_bytes_deeply(data: bytes, file: str) -> None:
    """As above, with many more examples."""
    holds_together(data, file)


@pytest.mark.deep
@pytest.mark.timeout(900)
@MANY
@given(st.lists(PIECES, max_size=200).map("".join).map(str.encode), FILES)
def test_any_text_deeply(data: bytes, file: str) -> None:
    """As above, with many more and longer examples."""
    holds_together(data, file)


@pytest.mark.deep
@pytest.mark.timeout(900)
@MANY
@given(VALUES)
def test_both_readers_deeply(value: Value) -> None:
    """As above, with many more examples."""
    reads_the_same(value)


@pytest.mark.deep
@pytest.mark.timeout(900)
@MANY
@given(PLANS)
def test_any_value_validates_deeply(value: Value) -> None:
    """As above, with many more examples."""
    validates(Document.plain(value, file="f"))
