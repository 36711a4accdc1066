"""The limits that YAML and JSON share, at their boundaries."""

import pytest

from loopwright.syntax.readers import read


def codes(text: str, file: str) -> list[str]:
    return [p.code for p in read(text.encode(), file=file)[1]]


@pytest.mark.parametrize("file", ["f.yaml", "f.json"])
@pytest.mark.parametrize(("depth", "expected"), [(32, []), (33, ["too-deep"])])
def test_depth(file: str, depth: int, expected: list[str]) -> None:
    """32 levels are read, 33 are not."""
    assert codes("[" * depth + "]" * depth, file) == expected


@pytest.mark.parametrize(("levels", "expected"), [(15, []), (16, ["too-deep"])])
def test_depth_counts_through_aliases(levels: int, expected: list[str]) -> None:
    """An alias is as deep as what it repeats."""
    text = f"a: &a {'[' * 16 + ']' * 16}\nb: {'[' * levels}*a{']' * levels}\n"
    assert codes(text, "f.yaml") == expected


@pytest.mark.parametrize("file", ["f.yaml", "f.json"])
@pytest.mark.parametrize(("items", "expected"), [(9_999, []), (10_000, ["too-complex"])])
def test_number_of_nodes(file: str, items: int, expected: list[str]) -> None:
    """10,000 keys and values are read, one more is not."""
    assert codes(f"[{','.join(['1'] * items)}]", file) == expected


@pytest.mark.item("A7")
@pytest.mark.parametrize(("times", "expected"), [(98, []), (99, ["too-complex"])])
def test_aliases_count_as_often_as_they_repeat(times: int, expected: list[str]) -> None:
    """A list of 100 nodes repeated 99 times is too much, however short it is written."""
    items = ",".join(["1"] * 99)
    text = f"- &a [{items}]\n" + "- *a\n" * times
    assert codes(text, "f.yaml") == expected


def test_a_problem_does_not_hide_the_fatal_one() -> None:
    """What was found before reading had to stop is reported with it."""
    assert codes("a: 1\na: 2\nb: [", "f.yaml") == ["duplicate-key", "yaml-syntax"]


def test_the_value_of_a_refused_key_goes_nowhere() -> None:
    """Structure stays in step after a refused key: later problems stand at their own places."""
    found = read(b"[a, b]: {c: 1}\nd: {e: 1, e: 2}\n", file="f.yaml")[1]
    assert [(p.line, p.column, p.code) for p in found] == [
        (1, 1, "wrong-type"),
        (2, 11, "duplicate-key"),
    ]
