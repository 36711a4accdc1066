"""Tool calls by their names and arguments: what kind they are and what they were about."""

import pytest

from loopwright.model.access import host_of, tool_kind, tool_target
from loopwright.model.record import JsonValue

PATCH = "*** Begin Patch\n*** Update File: src/a.py\n@@\n-x\n+y\n*** Add File: b.py\n+z\n"
DIFF = "--- a/src/a.py\n+++ b/src/a.py\n@@ -1 +1 @@\n--- a/gone\n+++ /dev/null\n"

CALLS: dict[str, tuple[str, JsonValue, str, str]] = {
    "claude bash": ("Bash", {"command": "make test", "description": "d"}, "command", "make test"),
    "codex argv": ("shell", {"command": ["bash", "-lc", "ls -a"]}, "command", "ls -a"),
    "our shell": ("shell.exec", {"argv": ["pytest", "-q"]}, "command", "pytest -q"),
    "gemini shell": ("run_shell_command", {"command": "ls"}, "command", "ls"),
    "text alone": ("exec", "echo hi", "command", "echo hi"),
    "words alone": ("exec", ["echo", "hi"], "command", "echo hi"),
    "no command": ("Bash", {"command": 7}, "command", ""),
    "claude edit": ("Edit", {"file_path": "/w/a.py", "old_string": "x"}, "edit", "/w/a.py"),
    "claude write": ("Write", {"file_path": "a.py", "content": "path"}, "edit", "a.py"),
    "multi edit": ("MultiEdit", {"file_path": "a.py", "edits": [{}]}, "edit", "a.py"),
    "opencode": ("edit", {"filePath": "a.py"}, "edit", "a.py"),
    "our write": ("fs.write", {"path": "a.py", "text": "x"}, "edit", "a.py"),
    "a patch": ("apply_patch", {"input": PATCH}, "edit", "src/a.py, b.py"),
    "a diff": ("apply_patch", {"patch": DIFF}, "edit", "src/a.py"),
    "changes": ("file_change", {"changes": [{"path": "a"}, {"path": "b"}]}, "edit", "a, b"),
    "changes by path": ("patch", {"changes": {"a.py": {"update": 1}}}, "edit", "a.py"),
    "many": (
        "write_file",
        {"files": [f"f{n}" for n in range(8)]},
        "edit",
        "f0, f1, f2, f3, f4 and 3 more",
    ),
    "claude read": ("Read", {"file_path": "a.py", "limit": 3}, "read", "a.py"),
    "glob": ("Glob", {"pattern": "**/*.py"}, "read", "**/*.py"),
    "grep": ("Grep", {"pattern": "TODO", "path": "src"}, "read", "src"),
    "list": ("LS", {"path": "/w"}, "read", "/w"),
    "our list": ("fs.list", {}, "read", ""),
    "mcp": ("mcp__files__read_file", {"path": "x"}, "read", "x"),
    "fetch": (
        "WebFetch",
        {"url": "https://u:p@Docs.Example.org:8/x?y"},
        "fetch",
        "docs.example.org",
    ),
    "search": ("WebSearch", {"query": "how to"}, "fetch", "how to"),
    "urls": ("fetch", {"urls": ["http://a.org/x", "http://b.org"]}, "fetch", "a.org, b.org"),
    "prompt": ("web_fetch", {"prompt": "read https://a.org/x."}, "fetch", "a.org"),
    "no address": ("fetch", {"url": 7}, "fetch", ""),
    "another tool": ("TodoWrite", {"todos": []}, "tool", ""),
    "what it says": ("Task", {"description": "Look around", "data": 1}, "tool", "Look around"),
    "words with spaces": ("shell", {"command": ["echo", "a b"]}, "command", "echo 'a b'"),
    "task": ("Task", None, "tool", ""),
    "no name": ("", {"path": "x"}, "tool", "x"),
    "paths of nothing": ("Read", {"paths": [1, None]}, "read", ""),
    "an odd path": ("Read", {"path": 7, "file": "a"}, "read", "a"),
}


@pytest.mark.item("rec-6")
@pytest.mark.parametrize(("name", "arguments", "kind", "target"), CALLS.values(), ids=list(CALLS))
def test_kind_and_target_follow_from_name_and_arguments(
    name: str, arguments: JsonValue, kind: str, target: str
) -> None:
    """Each agent's way to name its tools and their arguments is understood."""
    assert tool_target(name, arguments) == (kind, target)
    assert tool_kind(name) == kind


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://a.org", "a.org"),
        ("http://[::1]:80/x", "[::1]"),
        ("ftp://me@A.org/x", "a.org"),
        ("a.org/x", ""),
        ("https://", ""),
    ],
)
def test_host_of_an_address(url: str, host: str) -> None:
    """The host is named without user, port and path."""
    assert host_of(url) == host
