"""The environment of a program, and which file its first word stands for."""

from pathlib import Path

import pytest

from loopwright.agents.program_files import (
    CannotStart,
    agent_environment,
    malformed_names,
    reserved_names,
    resolve_program,
)

# ------------------------------------------------------------------------------- environment


def test_only_the_allow_list_is_passed_on() -> None:
    """Of the driver's variables exactly the harmless and needed ones get through."""
    kept = dict.fromkeys(("PATH", "HOME", "LANG", "LC_ALL", "LC_TIME", "TERM", "TMPDIR", "USER"))
    dropped = ["SECRET", "AWS_SECRET_ACCESS_KEY", "LD_PRELOAD", "PYTHONPATH", "GIT_DIR", "SHELL"]
    dropped += ["LOOPWRIGHT_RUN", "HOMES", "XPATH", "path", "SSH_AUTH_SOCK"]
    base = {name: f"value of {name}" for name in (*kept, *dropped)}
    assert agent_environment(base, {}, {}) == {name: f"value of {name}" for name in kept}


def test_definition_then_own_values_are_added() -> None:
    """What the definition names is added, and may replace what was passed on."""
    made = agent_environment(
        {"PATH": "/bin", "HOME": "/home/me", "TOKEN": "driver's"},
        {"HOME": "/elsewhere", "TOKEN": "named"},
        {"LOOPWRIGHT_RUN": "r1"},
    )
    assert made == {
        "PATH": "/bin",
        "HOME": "/elsewhere",
        "TOKEN": "named",
        "LOOPWRIGHT_RUN": "r1",
    }


@pytest.mark.item("C12")
@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "LD_AUDIT",
        "DYLD_INSERT_LIBRARIES",
        "GIT_DIR",
        "GIT_SSH_COMMAND",
        "PYTHONSTARTUP",
        "PYTHONHOME",
        "NODE_OPTIONS",
        "BASH_ENV",
        "ENV",
        "IFS",
        "PERL5OPT",
        "RUBYOPT",
        "JAVA_TOOL_OPTIONS",
        "LOOPWRIGHT_RUN",
        "LOOPWRIGHT_SWEEP",
    ],
)
def test_reserved_names_are_refused(name: str) -> None:
    """A definition may set no variable that changes which code runs, nor one of ours."""
    assert reserved_names({"FINE": "", name: ""}) == [name]
    with pytest.raises(ValueError, match=name):
        agent_environment({}, {"FINE": "", name: ""}, {})


def test_other_names_are_free() -> None:
    """Names that merely resemble reserved ones may be set."""
    names = ["API_KEY", "PATHS", "MY_PATH", "GITHUB_TOKEN", "LDFLAGS", "PYTHONPATH", "LOOPWRIGHT"]
    assert reserved_names(names) == []
    assert set(agent_environment({}, dict.fromkeys(names, "x"), {})) == set(names)


@pytest.mark.parametrize("name", ["", "A=B", "1A", "A B", "A\0", "A\n", "Ä", "BASH_FUNC_x%%"])
def test_malformed_names_are_refused(name: str) -> None:
    """What is not a name of a variable is not passed to the system."""
    assert malformed_names([name, "FINE"]) == [name]
    with pytest.raises(ValueError, match="may not set"):
        agent_environment({}, {name: "x"}, {})


def test_own_values_have_own_names() -> None:
    """The product sets no variable outside its own prefix."""
    with pytest.raises(ValueError, match="HOME"):
        agent_environment({}, {}, {"HOME": "/"})


# ------------------------------------------------------------------------------ finding the file


def tool(file: Path, *, mode: int = 0o755) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("#!/bin/sh\n")
    file.chmod(mode)
    return file


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace in which somebody has put tools with well-known names."""
    folder = tmp_path / "workspace"
    for place in ("git", "bin/git", "bin/only-here"):
        tool(folder / place)
    return folder


@pytest.mark.item("C11")
@pytest.mark.parametrize(
    "first",
    ["", ".", "./", "bin", "./bin", "../workspace/bin", "{workspace}", "{workspace}/bin", "{link}"],
)
def test_bare_names_are_never_found_in_the_workspace(
    tmp_path: Path, workspace: Path, first: str
) -> None:
    """However the search path leads into the workspace, the tool outside is taken."""
    (tmp_path / "link").symlink_to(workspace / "bin")
    outside = tool(tmp_path / "outside" / "git")
    entry = first.format(workspace=workspace, link=tmp_path / "link")
    found = resolve_program("git", str(workspace), f"{entry}:{outside.parent}")
    assert found == str(outside)


@pytest.mark.item("C11")
def test_a_name_found_only_in_the_workspace_is_refused_with_the_way_out(workspace: Path) -> None:
    """The refusal names the file that was found and says how to mean it."""
    with pytest.raises(CannotStart, match="write its path with a slash") as refused:
        resolve_program("only-here", str(workspace), f"{workspace}/bin")
    assert refused.value.problem == "program-not-found"
    assert f"{workspace}/bin/only-here" in refused.value.detail


@pytest.mark.item("C11")
@pytest.mark.parametrize("word", ["./git", "bin/git", "bin/../git", "{workspace}/git"])
def test_a_path_is_what_its_author_says(workspace: Path, word: str) -> None:
    """A word with a slash is a path from the workspace, whatever PATH says."""
    word = word.format(workspace=workspace)
    found = resolve_program(word, str(workspace), "/usr/bin")
    assert Path(found).is_absolute()
    assert Path(found).resolve().is_relative_to(workspace.resolve())


def test_the_search_continues_past_what_cannot_run(tmp_path: Path, workspace: Path) -> None:
    """Folders and files that are not executable do not hide a program further on."""
    tool(tmp_path / "first" / "git", mode=0o644)
    (tmp_path / "second" / "git").mkdir(parents=True)
    third = tool(tmp_path / "third" / "git")
    path = ":".join(str(tmp_path / name) for name in ("none", "first", "second", "third"))
    assert resolve_program("git", str(workspace), path) == str(third)
    with pytest.raises(CannotStart, match="chmod") as refused:
        resolve_program("git", str(workspace), f"{tmp_path}/first:{tmp_path}/second")
    assert refused.value.problem == "not-executable"


def test_the_root_directory_as_workspace_hides_nothing(tmp_path: Path) -> None:
    """Everything lies in `/`; programs are found there all the same."""
    outside = tool(tmp_path / "outside" / "git")
    assert resolve_program("git", "/", str(outside.parent)) == str(outside)


def test_a_neighbour_with_a_similar_name_is_outside(tmp_path: Path, workspace: Path) -> None:
    """`workspace-tools` is not inside `workspace`."""
    near = tool(tmp_path / "workspace-tools" / "git")
    assert resolve_program("git", str(workspace), str(near.parent)) == str(near)


def test_without_a_search_path_the_system_folders_are_searched(workspace: Path) -> None:
    """A missing PATH means the system's own default, an empty one means nothing."""
    assert resolve_program("sh", str(workspace), None) in ("/bin/sh", "/usr/bin/sh")
    with pytest.raises(CannotStart):
        resolve_program("sh", str(workspace), "")
