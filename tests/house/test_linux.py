"""What only Linux has is used in `host`, and in what starts and confines programs."""

import ast

import pytest

from tests.house.source_tree import SRC, dotted, nodes, shown, source_files

ALLOWED = ("host.py", "agents/processes/", "agents/sandbox/", "dialects/archon/shell/")
"""The last one reads scripts that name such files."""
LINUX_NAMES = {
    "socket.SO_PEERCRED",
    "os.memfd_create",
    "os.pidfd_open",
    "os.setns",
    "os.unshare",
    "sys.platform",
}
LINUX_TEXTS = ("/proc/", "SO_PEERCRED")


def depends_on_the_system(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr="prctl"):
            return True
        case ast.Attribute():
            return dotted(node) in LINUX_NAMES
        case ast.Constant(value=str(text)):
            return text.startswith(LINUX_TEXTS)
        case _:
            return False


def test_source_files_when_outside_the_linux_modules_do_not_depend_on_the_system() -> None:
    users = {
        f"{shown(path)}:{getattr(node, 'lineno', 0)}"
        for path in source_files()
        if not path.relative_to(SRC).as_posix().startswith(ALLOWED)
        for node in nodes(path)
        if depends_on_the_system(node)
    }
    assert users == set(), "use loopwright.host"


@pytest.mark.parametrize(
    "code",
    [
        "ctypes.CDLL(None).prctl(1)",
        "open('/proc/self/stat')",
        "open(f'/proc/{pid}/stat')",
        "sys.platform == 'linux'",
        "hasattr(socket, 'SO_PEERCRED')",
        "line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED)",
        "os.memfd_create('x')",
    ],
)
def test_rule_when_a_case_is_planted_finds_it(code: str) -> None:
    assert any(depends_on_the_system(node) for node in ast.walk(ast.parse(code)))
