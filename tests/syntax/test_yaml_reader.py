"""YAML 1.2 from events: tags, aliases, keys and errors, with either parser."""

import pytest
import yaml

from loopwright.syntax.composer import Composer
from loopwright.syntax.document import Diagnostic, SourceText
from loopwright.syntax.readers import read
from loopwright.syntax.yaml_reader import FASTEST, Loader, compose_yaml

EITHER = pytest.mark.parametrize(
    "loader", [FASTEST, yaml.SafeLoader], ids=["fastest", "pure Python"]
)


def compose(text: str, loader: Loader = FASTEST) -> Composer:
    return compose_yaml(SourceText("f.yaml", text), loader=loader)


def value(text: str, loader: Loader = FASTEST) -> object:
    composer = compose(text, loader)
    assert composer.problems == []
    assert composer.root is not None
    return composer.root.value


def problem(text: str, loader: Loader = FASTEST) -> Diagnostic:
    (found,) = compose(text, loader).problems
    return found


def place(found: Diagnostic) -> str:
    return f"{found.line}:{found.column}: {found.code}"


@pytest.mark.item("A12")
@EITHER
def test_text_stays_text(loader: Loader) -> None:
    """What YAML 1.1 would take for booleans, times and octals is text or a decimal number."""
    text = "on: on\noff: off\nyes: yes\nno: no\ny: y\ntime: 12:30:45\noct: 010\nday: 2024-01-01\n"
    assert value(text, loader) == {
        "on": "on",
        "off": "off",
        "yes": "yes",
        "no": "no",
        "y": "y",
        "time": "12:30:45",
        "oct": 10,
        "day": "2024-01-01",
    }


@EITHER
def test_every_kind_of_value_keeps_its_type(loader: Loader) -> None:
    """Maps, lists, text in all styles, numbers, booleans and null."""
    text = (
        "a: [1, -2.5, true, null, ~, '1', \"x\\ty\"]\n"
        "b: |\n  line\n  two\nc: >-\n  fold\n  ed\nd:\n"
    )
    assert value(text, loader) == {
        "a": [1, -2.5, True, None, None, "1", "x\ty"],
        "b": "line\ntwo\n",
        "c": "fold ed",
        "d": None,
    }


@EITHER
def test_core_tags_are_understood(loader: Loader) -> None:
    """The tags of the core schema convert, in short, long and verbatim form."""
    text = (
        "a: !!str 12\nb: !!float 1\nc: !!int '7'\nd: !!map {}\ne: !!seq []\nf: !!null ''\n"
        "g: !!bool 'true'\nh: !<tag:yaml.org,2002:str> 1\n"
    )
    assert value(text, loader) == {
        "a": "12",
        "b": 1.0,
        "c": 7,
        "d": {},
        "e": [],
        "f": None,
        "g": True,
        "h": "1",
    }


@pytest.mark.item("A6")
@EITHER
@pytest.mark.parametrize(
    "tagged",
    [
        "!!python/object/apply:os.system [ls]",
        "!!python/name:os.system ''",
        "!!binary aGk=",
        "!!timestamp 2024-01-01",
        "!!set {x}",
        "!!omap []",
        "!!merge <<",
        "!custom x",
        "!custom {x: y}",
        "!custom [x]",
        "!<verbatim> x",
        "! x",
        "!undefined!handle x",
        "!!map x",
        "!!seq {x: y}",
        "!!str [x]",
        "!!int x",
        "!!int 1.5",
        "!!bool yes",
        "!!null 0",
    ],
)
def test_other_tags_are_refused(tagged: str, loader: Loader) -> None:
    """Any tag that is not of the core schema, or does not fit its value, is refused."""
    assert place(problem(f"a: {tagged}", loader)) == "1:4: yaml-tag"


@EITHER
def test_a_tag_directive_does_not_help(loader: Loader) -> None:
    """A handle that is bound to a foreign name is refused all the same."""
    text = "%TAG !! tag:example,2000:\n---\na: !!str x\n"
    assert place(problem(text, loader)) == "3:4: yaml-tag"


@pytest.mark.item("A11")
@EITHER
@pytest.mark.parametrize(
    ("text", "where"),
    [("&a [*a]", "1:5"), ("x: &a {b: [1, {c: *a}]}", "1:19"), ("&a {? *a : 1}", "1:7")],
    ids=["list", "nested", "key"],
)
def test_cycles_are_refused(text: str, where: str, loader: Loader) -> None:
    """An alias inside of its own anchor is refused."""
    assert place(problem(text, loader)) == f"{where}: yaml-cycle"


@EITHER
def test_aliases_are_written_out(loader: Loader) -> None:
    """An alias gives an equal value that shares nothing with the first."""
    found = value("a: &x {l: [1]}\nb: *x\n? &k key\n: 2\nc: *k\n", loader)
    assert found == {"a": {"l": [1]}, "b": {"l": [1]}, "key": 2, "c": "key"}
    assert isinstance(found, dict)
    assert found["a"] is not found["b"]
    assert found["a"]["l"] is not found["b"]["l"]


def test_the_nearest_anchor_before_counts() -> None:
    """An anchor may be set again."""
    assert value("[&a 1, *a, &a 2, *a]") == [1, 1, 2, 2]


@pytest.mark.item("A8")
@EITHER
def test_merge_keys_are_off(loader: Loader) -> None:
    """A merge key is refused by name; in quotes it is a key like any other."""
    found = problem("a: &a {x: 1}\nb:\n  <<: *a\n", loader)
    assert place(found) == "3:3: too-complex"
    assert "merge keys" in found.message
    assert value("'<<': 1", loader) == {"<<": 1}


@EITHER
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1: x", "not 1"),
        ("true: x", "not true"),
        ("~: x", "not null"),
        ("? \n: x", "not null"),
        ("1.5: x", "not 1.5"),
        ("[a]: x", "not a list"),
        ("? {a: b}\n: x", "not a mapping"),
        ("a: &n 1\n*n : x", "not 1"),
    ],
)
def test_keys_are_text(text: str, shown: str, loader: Loader) -> None:
    """A key of another type is refused, naming the key."""
    found = problem(text, loader)
    assert found.code == "wrong-type"
    assert shown in found.message


@pytest.mark.item("A21")
@EITHER
@pytest.mark.parametrize(
    ("text", "line"),
    [("a: 1\n---\nb: 2\n", 2), ("---\na: 1\n---\n", 3), ("a: 1\n...\n---\nb: 2", 3)],
)
def test_a_second_document_is_refused(text: str, line: int, loader: Loader) -> None:
    """A definition is one document."""
    assert place(problem(text, loader)) == f"{line}:1: multiple-documents"


@pytest.mark.item("A13")
@EITHER
@pytest.mark.parametrize("number", [".nan", ".NaN", ".inf", "-.inf", "+.INF", "1e999", "-1e999"])
def test_numbers_are_finite(number: str, loader: Loader) -> None:
    """Infinity and not-a-number are refused, naming the number."""
    found = problem(f"a: {number}", loader)
    assert place(found) == "1:4: not-finite"
    assert number in found.message


@EITHER
@pytest.mark.parametrize("escape", ["\\ud800", "\\udfff", "\\0", "\\ud83d\\ude00"])
def test_characters_that_cannot_be_stored_are_refused(escape: str, loader: Loader) -> None:
    """Neither a surrogate nor NUL gets in through an escape."""
    assert problem(f'a: "x{escape}"', loader).code == "bad-character"


@pytest.mark.parametrize("loader", [yaml.SafeLoader])
def test_an_escape_past_unicode_is_a_syntax_error(loader: Loader) -> None:
    """The pure parser raises something else there, which must not get out."""
    assert problem('a: "\\Uffffffff"', loader).code == "yaml-syntax"


@EITHER
@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        pytest.param("a: [1, 2", "1:9", "',' or ']'", id="open list"),
        pytest.param("a: b: c", "1:5", "quotes", id="colon in text"),
        pytest.param("a: @b", "1:4", "quotes", id="reserved sign"),
        pytest.param("a: *b", "1:4", "&b", id="unknown anchor"),
        pytest.param("a: 1\n b: 2", "2:3", "", id="indent"),
        pytest.param("%YAML 3.0\n--- a", "1:1", "", id="other YAML"),
        pytest.param("é: 1\nß: [ü", "2:6", "", id="not ASCII"),
    ],
)
def test_other_mistakes_are_syntax_errors(
    text: str, where: str, words: str, loader: Loader
) -> None:
    """Anything else is `yaml-syntax`, at a place in the text and with a reason."""
    found = problem(text, loader)
    assert found.code == "yaml-syntax"
    assert words in found.render()
    if loader is FASTEST:  # the two parsers notice some mistakes at different places
        assert place(found).startswith((where, f"{int(where[0]) + 1}:1"))


def test_line_separators_are_refused_by_name() -> None:
    """U+2028 ends a line for the parser and for nobody else."""
    found = problem("a: x\u2028y")
    assert place(found) == "1:5: bad-character"
    assert "U+2028 LINE SEPARATOR" in found.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\n", {"x": 1, "y": 3}, id="own-wins"),
        pytest.param("a: &a {y: 2}\nb:\n  y: 3\n  <<: *a\n", {"y": 3}, id="own-wins-before"),
        pytest.param(
            "a: &a {x: 1}\nc: &c {x: 2, z: 3}\nb: {<<: [*a, *c]}\n",
            {"x": 1, "z": 3},
            id="first-wins",
        ),
        pytest.param("b: {<<: {x: [1]}}\n", {"x": [1]}, id="written-in-place"),
        pytest.param(
            "a: &a {x: 1}\nc: &c {<<: *a, y: 2}\nb: {<<: *c}\n", {"y": 2, "x": 1}, id="merged-twice"
        ),
        pytest.param(
            "a: &a {x: 1}\nb: {<<: *a, '<<': 2}\n", {"<<": 2, "x": 1}, id="quoted-is-a-key"
        ),
    ],
)
def test_merge_keys_when_allowed_add_missing_fields(text: str, expected: object) -> None:
    """A merge key adds what its mapping does not set itself."""
    document, found = read(text.encode(), file="f.yaml", merge_keys=True)
    assert document is not None, found
    assert isinstance(document.value, dict)
    assert document.value["b"] == expected


def test_merge_keys_when_merged_keep_positions_of_fields() -> None:
    """A merged field is where it is written."""
    document, _ = read(b"a: &a\n  x: 1\nb:\n  <<: *a\n", file="f.yaml", merge_keys=True)
    assert document is not None
    assert document.at(("b", "x")) == (2, 6)


@pytest.mark.parametrize("text", ["b: {<<: 1}", "a: &a [1]\nb: {<<: *a}", "b: {<<: [{x: 1}, 2]}"])
def test_merge_keys_when_not_a_mapping_are_refused(text: str) -> None:
    """Only mappings can be merged."""
    document, found = read(text.encode(), file="f.yaml", merge_keys=True)
    assert document is None
    assert [one.code for one in found] == ["wrong-type"]


def test_merge_keys_when_nested_count_as_written_out() -> None:
    """Merging mappings again and again is refused by the limit on keys and values."""
    lines = ["a0: &a0 {" + ", ".join(f"k{i}: {i}" for i in range(9)) + "}"]
    for level in range(1, 9):
        fields = ", ".join(f"l{level}_{i}: {{<<: *a{level - 1}}}" for i in range(9))
        lines.append(f"a{level}: &a{level} {{{fields}}}")
    document, found = read("\n".join(lines).encode(), file="f.yaml", merge_keys=True)
    assert document is None
    assert [one.code for one in found] == ["too-complex"]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('name: "x\nb: 1\n', "closing quote"),
        ("a:\n  - b: 1\n   c: 2\n", "indent the line"),
        ("a: |\n  x\ny\nb: 1\n", "indent the line"),
    ],
)
def test_syntax_errors_when_common_say_what_to_do(text: str, hint: str) -> None:
    """An unclosed quote and a wrong indentation have a remedy."""
    _, found = read(text.encode(), file="f.yaml")
    assert [one.code for one in found] == ["yaml-syntax"]
    assert hint in (found[0].hint or "")


@EITHER
@pytest.mark.parametrize(
    ("text", "where", "line"),
    [
        ('a: 1\nb: "x\nc: {d: "y"}\n', "2:4", 3),
        ("a: 'x\nb: ['y']\n", "1:4", 2),
        ('- a: "x\n  b: 1\n  c: "y"\n', "1:6", 3),
    ],
    ids=["double", "single", "in a list"],
)
def test_an_unclosed_quote_when_a_later_line_has_quotes_is_found_where_it_opens(
    text: str, where: str, line: int, loader: Loader
) -> None:
    """The parsers notice the mistake only after the next quote."""
    found = problem(text, loader)
    assert place(found) == f"{where}: yaml-syntax"
    assert found.message == f"the text that begins here ends at the quote on line {line}"
    assert "closing quote" in (found.hint or "")


@EITHER
@pytest.mark.parametrize(
    ("text", "line"), [('a: "x\n  y"\n c: 2\n', 3), ('a: "x" y\n', 1)], ids=["below", "one line"]
)
def test_a_closed_quote_before_another_mistake_is_not_blamed(
    text: str, line: int, loader: Loader
) -> None:
    """The mistake is reported where it is."""
    found = problem(text, loader)
    assert found.line == line
    assert "quote on line" not in found.message


@pytest.mark.parametrize("file", ["f.yaml", "f.json", "(request)"])
@pytest.mark.parametrize(
    "text", ['{"name": "a, "goal": "b"}', '[{"name": "a", "goal" "b"}]', '{"name": "a" "goal": 1}']
)
def test_broken_json_has_the_same_problem_under_every_file_name(text: str, file: str) -> None:
    """A request has no file name that says what it is."""
    _, found = read(text.encode(), file=file)
    _, expected = read(text.encode(), file="f.json")
    assert [one.code for one in found] == ["json-syntax"]
    assert [(one.line, one.column, one.message) for one in found] == [
        (one.line, one.column, one.message) for one in expected
    ]


def test_a_broken_flow_mapping_is_a_yaml_problem() -> None:
    """What does not look like JSON is YAML."""
    _, found = read(b"{name: a, goal: [b}", file="f.yaml")
    assert [one.code for one in found] == ["yaml-syntax"]
