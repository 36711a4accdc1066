"""Text that comes from an agent or an author is never given to a shell."""

import ast

import pytest

from tests.house.source_tree import dotted, nodes, shown, source_files

SHELL_CALLS = {
    "asyncio.create_subprocess_shell",
    "create_subprocess_shell",
    "os.popen",
    "os.system",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
}


def uses_a_shell(node: ast.AST) -> bool:
    match node:
        case ast.keyword(arg="shell", value=ast.Constant(value=False)):
            return False
        case ast.keyword(arg="shell"):
            return True
        case ast.Attribute() | ast.Name():
            return dotted(node) in SHELL_CALLS
        case ast.ImportFrom(module=module, names=names):
            return any(f"{module}.{alias.name}" in SHELL_CALLS for alias in names)
        case _:
            return False


def test_no_source_file_uses_a_shell() -> None:
    """Nothing in src passes `shell=` or calls a function that starts one."""
    users = {
        f"{shown(path)}:{getattr(node, 'lineno', 0)}"
        for path in source_files()
        for node in nodes(path)
        if uses_a_shell(node)
    }
    assert users == set(), "pass a list of arguments instead"


@pytest.mark.parametrize(
    "code",
    [
        "subprocess.run(text, shell=True)",
        "subprocess.Popen(text, shell=flag)",
        "os.system(text)",
        "from os import system",
        "asyncio.create_subprocess_shell(text)",
    ],
)
def test_the_rule_sees_a_planted_case(code: str) -> None:
    """Each way to a shell is recognised."""
    assert any(uses_a_shell(node) for node in ast.walk(ast.parse(code)))
