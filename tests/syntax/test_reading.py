"""`read`: any bytes in; a document, or a reason with a position, out."""

import sys
import time
from collections.abc import Callable

import pytest
import yaml

from loopwright.syntax.document import Diagnostic
from loopwright.syntax.readers import read
from loopwright.syntax.yaml_reader import FASTEST

TRACED = sys.gettrace() is not None  # under coverage, time says nothing

ALIAS_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGE_BOMB = "".join(f"k{i}: &k{i} {{a: 1}}\n" for i in range(2_000)) + "".join(
    f"m{i}: {{<<: *k{i}}}\n" for i in range(2_000)
)


def cpu(call: Callable[[], object]) -> float:
    """The least CPU time of five calls: others may be busy on the same machine."""
    spent = []
    for _ in range(5):
        started = time.process_time()
        call()
        spent.append(time.process_time() - started)
    return min(spent)


def problems(data: bytes | str, *, file: str = "f.yaml") -> list[Diagnostic]:
    document, found = read(data.encode() if isinstance(data, str) else data, file=file)
    assert document is None
    return found


def places(data: bytes | str, *, file: str = "f.yaml") -> list[str]:
    return [f"{p.line}:{p.column}: {p.code}" for p in problems(data, file=file)]


@pytest.mark.item("A1")
@pytest.mark.parametrize(
    "text",
    ["", "  \n\n", "# only\n# comments\n", "---\n", "---\n...\n", "null", "~", "\ufeff"],
    ids=["nothing", "blank", "comments", "marker", "end", "null", "tilde", "mark"],
)
@pytest.mark.parametrize("file", ["f.yaml", "f.json"])
def test_nothing_in_the_file_is_an_empty_definition(text: str, file: str) -> None:
    """A file that defines nothing is refused by its name."""
    (found,) = problems(text, file=file)
    assert (found.code, found.file) == ("empty-definition", file)


@pytest.mark.item("A2")
@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param("a:\n\tb: 1", "2:1", id="first indent"),
        pytest.param("a:\n  b: 1\n\tc: 2", "3:1", id="later line"),
        pytest.param("a:\n  b: 1\n  \tc: 2", "3:3", id="after spaces"),
        pytest.param("\ta: 1", "1:1", id="first line"),
        pytest.param("a:\n  - b\n\t- c", "3:1", id="list"),
        pytest.param("- a\n-\tb: 1\n\tc: 2", "2:2", id="after a dash"),
    ],
)
def test_tabs_do_not_indent(text: str, place: str) -> None:
    """A tab used as indentation is found where it stands, and spaces are named."""
    (found,) = problems(text)
    assert f"{found.line}:{found.column}" == place
    assert found.code == "yaml-syntax"
    assert "use spaces" in found.render()


@pytest.mark.item("A3")
@pytest.mark.parametrize(
    ("text", "file", "lines"),
    [
        pytest.param("name: x\nmax: 5\nother: 1\nmax: 500\n", "f.yaml", (2, 4), id="yaml"),
        pytest.param("max: 5\n'max': 6\n", "f.yaml", (1, 2), id="quoted"),
        pytest.param('{"max": 5,\n "max": 6}', "f.json", (1, 2), id="json"),
        pytest.param('{"max": 5,\n "m\\u0061x": 6}', "f.json", (1, 2), id="escaped"),
    ],
)
def test_a_duplicate_key_names_both_lines(text: str, file: str, lines: tuple[int, int]) -> None:
    """A key given twice is refused at its second place."""
    (found,) = problems(text, file=file)
    assert (found.code, found.line) == ("duplicate-key", lines[1])
    assert found.message == f"max is set on line {lines[0]} and again on line {lines[1]}"


def test_all_duplicates_are_reported_together() -> None:
    """Reading goes on after a problem that leaves the structure clear."""
    text = "a: 1\na: 2\nb: !x y\n1: c\nd: .nan\nd: {e: 1, e: 2}"
    assert places(text) == [
        "2:1: duplicate-key",
        "3:4: yaml-tag",
        "4:1: wrong-type",
        "5:4: not-finite",
        "6:1: duplicate-key",
        "6:11: duplicate-key",
    ]


@pytest.mark.item("A7", "A8", "A9")
@pytest.mark.parametrize(
    ("text", "file", "code"),
    [
        pytest.param(ALIAS_BOMB, "f.yaml", "too-complex", id="alias bomb"),
        pytest.param(MERGE_BOMB, "f.yaml", "too-complex", id="merge-key bomb"),
        pytest.param("[" * 5_000, "f.yaml", "too-deep", id="yaml flow"),
        pytest.param("{a: " * 5_000, "f.yaml", "too-deep", id="yaml flow maps"),
        pytest.param("- " * 5_000, "f.yaml", "too-deep", id="yaml block"),
        pytest.param("? " * 5_000, "f.yaml", "too-deep", id="yaml keys"),
        pytest.param("[" * 100_000, "f.json", "too-deep", id="json open"),
        pytest.param("[" * 100_000 + "]" * 100_000, "f.json", "too-deep", id="json closed"),
        pytest.param('{"a":' * 50_000, "f.json", "too-deep", id="json maps"),
        pytest.param("[" * 100_000, "f.yaml", "too-deep", id="json or yaml"),
    ],
)
def test_bombs_are_refused_quickly(text: str, file: str, code: str) -> None:
    """What would grow without bound is refused within 100 ms of CPU."""
    (found,) = problems(text, file=file)
    assert found.code == code
    assert TRACED or cpu(lambda: problems(text, file=file)) < 0.1


@pytest.mark.item("A10")
def test_a_large_file_is_refused_before_it_is_parsed() -> None:
    """Ten megabytes are refused by size, with the limit, even if they are not text at all."""
    (found,) = problems(b"\xff" * 10_000_000)
    assert found.code == "too-large"
    assert "10,000,000" in found.message
    assert "262,144" in found.message


def test_the_limit_can_be_set_and_is_inclusive() -> None:
    """A file of exactly the limit is read."""
    assert read(b"a: 12", file="f.yaml", limit=5)[1] == []
    assert read(b"a: 123", file="f.yaml", limit=5)[1][0].code == "too-large"


@pytest.mark.item("A23")
@pytest.mark.parametrize("file", ["f.yaml", "f.json"])
@pytest.mark.parametrize("end", ["\r\n", "\r"], ids=["CRLF", "CR"])
def test_line_ends_do_not_count(file: str, end: str) -> None:
    """CRLF and CR give the value, digest and positions that LF gives."""
    text = '{"a": 1,\n "b": [2,\n 3]}\n' if file == "f.json" else "a: |\n  x\n  y\nb: 'p\n\n  q'\n"
    plain, _ = read(text.encode(), file=file)
    other, found = read(text.replace("\n", end).encode(), file=file)
    assert found == []
    assert plain is not None
    assert other is not None
    assert other.value == plain.value
    assert other.digest == plain.digest
    assert other.at(["b"]) == plain.at(["b"])


@pytest.mark.parametrize(
    ("text", "file", "value"),
    [
        pytest.param('{"a": "\\ud83d\\ude00"}', "f.yaml", {"a": "😀"}, id="JSON in a YAML file"),
        pytest.param("{a: 1, b: on,}", "f.yaml", {"a": 1, "b": "on"}, id="flow YAML"),
        pytest.param("a: 1", "f.json", {"a": 1}, id="YAML in a JSON file"),
        pytest.param('{"a": NaN}', "-", {"a": "NaN"}, id="YAML text that JSON forbids"),
        pytest.param("\ufeffa: 1", "f.yaml", {"a": 1}, id="YAML with mark"),
        pytest.param('\ufeff{"a": 1}', "f.json", {"a": 1}, id="JSON with mark"),
    ],
)
def test_the_content_decides_the_format(text: str, file: str, value: object) -> None:
    """What is JSON is read as JSON, everything else as YAML."""
    document, found = read(text.encode(), file=file)
    assert found == []
    assert document is not None
    assert document.value == value


def test_a_json_file_gets_json_errors() -> None:
    """A file named .json that starts like JSON is not forgiven as YAML."""
    assert places("{a: 1}", file="F.JSON") == ["1:2: json-syntax"]


def test_a_report_has_at_most_fifty_problems() -> None:
    """The first fifty problems are kept, in order."""
    found = problems("a: 1\n" * 200)
    assert [p.line for p in found] == list(range(2, 52))


def test_a_usual_definition_is_read_quickly() -> None:
    """Ten kilobytes take under 10 ms of CPU; on a slow machine, 4 times a bare YAML load."""
    step = (
        "  - id: step-{}\n    agent: some-agent\n    goal: Make the failing tests pass.\n"
        "    repeat:\n      max: 10\n"
        "      until: {{all: [{{signal: DONE}}, {{command: [a, b]}}]}}\n"
    )
    data = ("steps:\n" + "".join(step.format(i) for i in range(70))).encode()
    assert len(data) > 10_000
    assert read(data, file="f.yaml")[1] == []
    bare = cpu(lambda: yaml.load(data, Loader=FASTEST))  # noqa: S506 - FASTEST is a safe loader
    assert TRACED or cpu(lambda: read(data, file="f.yaml")) < max(0.010, 4 * bare)
