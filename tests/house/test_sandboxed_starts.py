"""Every program of a run is started through the sandbox."""

import ast

import pytest

from tests.house.source_tree import SRC, dotted, nodes, source_files

STARTS = (
    *("subprocess.Popen", "subprocess.run", "subprocess.call", "subprocess.check_call"),
    *("subprocess.check_output", "asyncio.create_subprocess_exec", "anyio.open_process"),
    *("os.execve", "os.execv", "os.execvp", "os.execvpe", "os.posix_spawn", "os.spawnv"),
    *("stdio_client", "pty.spawn"),
)
OWN = {
    "operations/background_runs.py": "starts Loopwright itself",
    "operations/workspace_rules.py": "Git, without hooks",
    "cli/demo.py": "starts Loopwright itself, and the tests of its own project",
    "cli/workspace_changes.py": "the pager of the person",
    "agents/pattern_search.py": "searches texts with a pattern, with no files and no variables",
    "agents/processes/process.py": "the supervisor, which the sandbox starts programs with",
    "agents/sandbox/bubblewrap.py": "bubblewrap: tries whether it works, and asks programs in it",
    "agents/processes/supervise.py": "turns into the program",
    "workers/notifiers.py": "programs that the settings of the server name",
    "workspaces/git.py": "Git, without hooks",
}
"""Files that start programs by themselves, none of which is a program of a run, and why."""


def starts(node: ast.AST) -> bool:
    """Whether a node names a function that starts programs."""
    return isinstance(node, ast.Attribute | ast.Name) and dotted(node) in STARTS


@pytest.mark.item("bnd-l2")
def test_only_known_files_start_programs() -> None:
    """Another file that does so is a way around the sandbox."""
    found = {
        path.relative_to(SRC).as_posix()
        for path in source_files()
        if any(starts(node) for node in nodes(path))
    }
    assert found == set(OWN)


@pytest.mark.item("bnd-l2")
def test_only_the_sandbox_runs_programs_under_a_supervisor() -> None:
    """`run_program` starts whatever it is given; the sandbox alone calls it."""
    users = {
        path.relative_to(SRC).as_posix()
        for path in source_files()
        for node in nodes(path)
        if isinstance(node, ast.Call) and dotted(node.func).endswith("run_program")
    }
    assert users == {"agents/sandbox/bubblewrap.py"}


@pytest.mark.parametrize("code", ["subprocess.run(argv)", "asyncio.create_subprocess_exec(*argv)"])
def test_a_start_is_found(code: str) -> None:
    """The rule above sees what it is about."""
    assert any(starts(node) for node in ast.walk(ast.parse(code)))
