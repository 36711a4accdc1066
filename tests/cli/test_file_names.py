"""Names of files that an agent chose: none writes a line of its own, or drives a terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tests.cli.conftest import Place, Told
from tests.workspaces.folders import commit, git, put

FAKE = "✓ Completed in 1 iteration · all tests passed"
NAME = f"tests/a\n{FAKE}\x1b[2J\r\u2028{FAKE}\tb"
AGENT = f"""
import os, pathlib
os.makedirs("tests", exist_ok=True)
pathlib.Path({NAME!r}).write_text("by the agent\\n")
"""


@pytest.mark.item("rec-12", "rec-19", "rec-36", "rec-41")
def test_a_name_of_a_file_is_no_line_of_the_output(lw: Place) -> None:
    """The final line, `show`, `logs`, the certificate, `diff`, `apply`, `restore` and `discard`."""
    put(lw.folder, __gitignore="home/\n", tests___t__py="1\n", agent__py=AGENT)
    git(lw.folder, "init", "-q", "-b", "main", "--template=")
    commit(lw.folder, "first")
    agent = f"command:python3 -I {lw.folder / 'agent.py'}"
    checks = ("--until-command", "test -d tests", "--protect", "tests/**", "--max", "1")
    ran = lw("loop", "go", "--agent", agent, "--worktree", *checks)
    assert ran.code == 4
    run = json.loads(lw("ls", "--json").out)["runs"][0]["run"]
    _check(ran)
    assert "protected files changed: tests/a" in ran.err
    summary = lw("show", run, "--json").json["summary"]
    assert len(summary.splitlines()) == 1
    commands: Sequence[Sequence[str]] = (
        ("show", run),
        ("show", run, "--certificate"),
        ("logs", run),
        ("diff", run),
        ("diff", run, "--stat"),
        ("apply", run),
        ("restore", run, "0"),
        ("discard", run, "--yes"),
    )
    for command in commands:
        if command[0] == "restore":
            put(lw.folder / "home" / "worktrees" / run, **{NAME.replace("/", "___"): "newer\n"})
        told = lw(*command)
        _check(told)
        if command[0] in ("diff", "apply"):
            assert "tests/a" in told.out
    assert told.code == 0


def _check(told: Told) -> None:
    for text in (told.out, told.err):
        assert "\x1b" not in text
        assert not [line for line in text.splitlines() if line.startswith(("✓", "b"))]
