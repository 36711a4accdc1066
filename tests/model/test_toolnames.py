"""Which rules speak of which tools, and what names of other systems mean for each agent."""

import pytest

from loopwright.model.access import family_of, is_open, is_rule_for, names_for


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
    assert is_rule_for(name, tool) == about


@pytest.mark.parametrize(
    ("name", "open_"), [("*", True), ("a.*", True), ("a*", False), ("a", False)]
)
def test_open_names(name: str, open_: bool) -> None:
    """A star alone, or as the last part."""
    assert is_open(name) == open_


@pytest.mark.item("zenflow-73")
@pytest.mark.parametrize(
    ("kind", "names", "found"),
    [
        ("model", ("bash", "read"), ("shell.exec", "fs.read")),
        ("model", ("glob", "grep"), ("fs.list", "fs.search")),
        ("model", ("write",), ("fs.write", "fs.edit", "fs.mkdir")),
        ("model", ("edit",), ("fs.edit",)),
        ("model", ("fs.write", "github.issue", "mystery"), ("fs.write", "github.issue", "mystery")),
        ("claude", ("bash", "webfetch", "Edit"), ("Bash", "WebFetch", "Edit")),
        ("claude", ("fs.read", "Bash(npm test)"), ("Read", "Bash(npm test)")),
        ("claude", ("bash(npm test)",), ("Bash(npm test)",)),
        ("claude", ("+bash",), ("+Bash",)),
        ("opencode", ("write", "Bash"), ("edit", "bash")),
        ("gemini", ("bash", "read"), ("run_shell_command", "read_file", "read_many_files")),
        ("command", ("bash",), ("bash",)),
    ],
)
def test_names_become_those_of_the_agent(
    kind: str, names: tuple[str, ...], found: tuple[str, ...]
) -> None:
    """Every kind of agent is given the names that it knows; unknown ones stay."""
    assert names_for(kind, names) == found


@pytest.mark.item("zenflow-74")
def test_a_denied_pattern_of_another_system_denies_the_whole_tool() -> None:
    """A pattern that nobody checks would leave the tool; so the tool is gone."""
    assert names_for("model", ("Bash(rm:*)",), denies=True) == ("shell.exec",)
    assert names_for("claude", ("Bash(rm:*)",), denies=True) == ("Bash(rm:*)",)
    assert names_for("claude", ("bash(rm *)",), denies=True) == ("Bash",)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("fs.edit", "edit"),
        ("Edit", "edit"),
        ("replace", "edit"),
        ("NotebookEdit", "edit"),
        ("fs.write", "write"),
        ("Write(x)", "write"),
        ("deploy", None),
    ],
)
def test_a_name_belongs_to_the_most_precise_family(name: str, family: str | None) -> None:
    """`fs.edit` is not the whole of writing."""
    found = family_of(name)
    assert (None if found is None else found.name) == family
