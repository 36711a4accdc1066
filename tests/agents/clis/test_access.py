"""Access levels in the words of each coding CLI."""

import json

import pytest

from loopwright.agents.clis.catalogue import CLIS, own_places, unheld, worded
from loopwright.agents.clis.command_line import (
    CommandLine,
    CommandLineRequest,
    StageServer,
    command_line,
)
from loopwright.model.access import DENIED_TOOLKITS, LEVELS, PLAIN_READ_COMMANDS
from loopwright.model.plan import Access, Agent

WRITERS = ("Write", "Edit", "NotebookEdit", "MultiEdit")


def line(name: str, level: Access | None, **more: object) -> tuple[list[str], dict[str, str]]:
    agent = Agent(spec=name, access=level, **more)  # type: ignore[arg-type]
    made = command_line(name, CommandLineRequest(prompt="Go.", agent=agent))
    return list(made.argv), dict(made.env)


def after(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1] if flag in argv else ""


@pytest.mark.item("coqui-26")
@pytest.mark.parametrize(
    ("level", "tools"),
    [
        ("minimal", ""),
        ("readonly", "Read,Grep,Glob"),
        ("readonly-shell", "Read,Grep,Glob,Bash"),
    ],
)
def test_claude_below_full(level: Access, tools: str) -> None:
    """It has the tools of its level and nobody is asked for more."""
    argv, _ = line("claude", level)
    assert after(argv, "--tools") == tools
    assert after(argv, "--permission-mode") == "dontAsk"
    allowed = after(argv, "--allowedTools").split(",")
    assert not set(allowed) & {*WRITERS, "Bash"}
    commands = [one for one in allowed if one.startswith("Bash(")]
    wanted = [f"Bash({one}:*)" for one in PLAIN_READ_COMMANDS] if level == "readonly-shell" else []
    assert commands == wanted


def test_claude_at_full() -> None:
    """Commands and the web need no question; a filter of the role takes commands away."""
    argv, _ = line("claude", "full")
    assert after(argv, "--allowedTools") == "Bash,WebFetch,WebSearch,mcp__loopwright"
    assert after(argv, "--permission-mode") == "acceptEdits"
    argv, _ = line("claude", "full", options={DENIED_TOOLKITS: ["shell"]})
    assert after(argv, "--disallowedTools") == "Bash"
    assert "Bash" not in after(argv, "--allowedTools").split(",")
    argv, _ = line("claude", "full", tools=("Read",))
    assert after(argv, "--allowedTools") == "Read"


def test_named_tools_narrow_a_level_and_never_widen_it() -> None:
    """Of what an author names, that remains which the level has."""
    argv, _ = line("claude", "readonly", tools=("Read", "Write", "Bash"))
    assert after(argv, "--allowedTools") == "Read"


@pytest.mark.parametrize("level", LEVELS)
def test_codex(level: Access) -> None:
    """Below full its own sandbox is for reading."""
    argv, _ = line("codex", level)
    assert after(argv, "-s") == ("workspace-write" if level == "full" else "read-only")


@pytest.mark.parametrize("level", LEVELS)
def test_opencode(level: Access) -> None:
    """What is not named is denied; commands by their pattern."""
    argv, env = line("opencode", level)
    if level == "full":
        assert "--auto" in argv
        _, env = line("opencode", level, options={DENIED_TOOLKITS: ["shell"]})
        assert json.loads(env["OPENCODE_PERMISSION"]) == {"bash": "deny"}
        return
    rights = json.loads(env["OPENCODE_PERMISSION"])
    assert rights["*"] == "deny"
    assert "edit" not in rights
    assert ("read" in rights) is (level != "minimal")
    commands = {"*": "deny", **{f"{one} *": "allow" for one in PLAIN_READ_COMMANDS}}
    assert rights.get("bash") == (commands if level == "readonly-shell" else None)


@pytest.mark.parametrize("level", LEVELS)
def test_gemini(level: Access) -> None:
    """Nobody is there to be asked, so `default` is a no to all that writes or runs."""
    argv, _ = line("gemini", level)
    assert after(argv, "--approval-mode") == ("yolo" if level == "full" else "default")
    allowed = after(argv, "--allowed-tools")
    wanted = ",".join(f"run_shell_command({one})" for one in PLAIN_READ_COMMANDS)
    assert allowed == (wanted if level == "readonly-shell" else "")
    argv, _ = line("gemini", "full", options={DENIED_TOOLKITS: ["shell"]})
    assert after(argv, "--approval-mode") == "auto_edit"


@pytest.mark.parametrize("name", sorted(CLIS))
def test_without_a_level_nothing_changes(name: str) -> None:
    """The words are those of the definition."""
    agent = Agent(spec=name, permission="plan")
    assert worded(name, agent) == agent
    assert unheld(name, agent, sandbox="none") is None


def test_what_cannot_be_kept_is_refused() -> None:
    """By name, and with what to do instead."""
    files = {DENIED_TOOLKITS: ["files"]}
    kept = Agent(access="full", options=files)
    assert "access_level: minimal" in (unheld("claude", kept, sandbox=None) or "")
    assert unheld("claude", Agent(access="minimal", options=files), sandbox=None) is None
    assert "running commands" in (unheld("codex", Agent(access="readonly"), sandbox=None) or "")
    assert "sandbox" in (unheld("acp", Agent(access="minimal"), sandbox="no bwrap") or "")
    assert unheld("claude", Agent(access="full"), sandbox="no bwrap") is None
    assert unheld("claude", Agent(access="readonly"), sandbox="no bwrap") is None


@pytest.mark.parametrize(
    ("name", "env", "places"),
    [
        ("claude", {"HOME": "/h"}, ("/h/.claude", "/h/.claude.json")),
        ("claude", {"HOME": "/h", "CLAUDE_CONFIG_DIR": "/c"}, ("/c",)),
        ("codex", {"HOME": "/h"}, ("/h/.codex",)),
        ("gemini", {"HOME": "/h"}, ("/h/.gemini",)),
        ("acp", {"HOME": "/h"}, ()),
        (
            "opencode",
            {"HOME": "/h", "XDG_DATA_HOME": "/d"},
            (
                "/h/.config/opencode",
                "/d/opencode",
                "/h/.local/state/opencode",
                "/h/.cache/opencode",
            ),
        ),
    ],
)
def test_where_programs_keep_their_own(
    name: str, env: dict[str, str], places: tuple[str, ...]
) -> None:
    """The folders that a sandbox leaves them."""
    assert own_places(name, env) == places


SERVER = StageServer(
    name="loopwright", argv=("/usr/bin/python3", "pump.py", 'a "b'), config="/tmp/x/servers.json"
)


def test_the_server_of_a_stage_in_the_words_of_each() -> None:
    """A file of settings, options, or a variable: as each of them takes servers."""

    def made(name: str, level: Access) -> CommandLine:
        agent = Agent(spec=name, access=level)
        return command_line(name, CommandLineRequest(prompt="Go.", agent=agent, server=SERVER))

    argv = list(made("claude", "readonly").argv)
    assert after(argv, "--mcp-config") == SERVER.config
    assert "--strict-mcp-config" in argv  # no other server of the person's own
    assert "--strict-mcp-config" not in made("claude", "full").argv
    codex = made("codex", "full").argv
    assert 'mcp_servers.loopwright.command="/usr/bin/python3"' in codex
    assert 'mcp_servers.loopwright.args=["pump.py","a \\"b"]' in codex
    assert "mcp_servers.loopwright.required=true" in codex
    config = json.loads(made("opencode", "full").env["OPENCODE_CONFIG_CONTENT"])
    assert config["mcp"]["loopwright"]["command"] == list(SERVER.argv)
    assert made("gemini", "full").env["GEMINI_CLI_SYSTEM_SETTINGS_PATH"] == SERVER.config
