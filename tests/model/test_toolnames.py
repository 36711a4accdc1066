"""Which rules speak of which tools."""

import pytest

from loopwright.model.toolnames import is_open, speaks_of


@pytest.mark.parametrize(
    ("name", "tool", "about"),
    [
        pytest.param("fs.write", "fs.write", True, id="own name"),
        pytest.param("write", "fs.write", True, id="last part"),
        pytest.param("aldo-fs.fs.write", "fs.write", True, id="longer name"),
        pytest.param("fs.write", "bench.fs.write", True, id="last parts"),
        pytest.param("bench.*", "bench.delete", True, id="all of a server"),
        pytest.param("*", "bench.delete", True, id="all"),
        pytest.param("bench.*", "bench.*", True, id="a grant of all"),
        pytest.param("bench.*", "benchmark.run", False, id="another server"),
        pytest.param("bench.*", "fs.write", False, id="not of the server"),
        pytest.param("rite", "fs.write", False, id="a piece of a part"),
        pytest.param("FS.WRITE", "fs.write", False, id="another case"),
    ],
)
def test_names_in_rules(name: str, tool: str, about: bool) -> None:
    """Whole parts of a name count, and nothing that only looks like it."""
    assert speaks_of(name, tool) == about


@pytest.mark.parametrize(
    ("name", "open_"), [("*", True), ("a.*", True), ("a*", False), ("a", False)]
)
def test_open_names(name: str, open_: bool) -> None:
    """A star alone, or as the last part."""
    assert is_open(name) == open_
