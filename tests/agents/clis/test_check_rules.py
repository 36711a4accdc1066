"""What an agent is allowed in the words of each program: permission modes, checks and tools."""

import json
import tomllib

import pytest

from loopwright.agents.clis.catalogue import CLIS, added_tools, check_lines, only_tools
from loopwright.agents.clis.command_line import (
    CommandLineRequest,
    command_line,
    command_policy,
    unfit,
)
from loopwright.model.plan import Agent
from loopwright.model.record import JsonValue

pytestmark = pytest.mark.item("rec-31")

CHECKS = (("pytest", "-q"), ("npm", "run", "test:unit"))


def argv(cli: str, agent: Agent, **more: object) -> tuple[str, ...]:
    fields: dict[str, object] = {"prompt": "p", "agent": agent, "checks": CHECKS, **more}
    return command_line(cli, CommandLineRequest(**fields)).argv  # type: ignore[arg-type]


def after(words: tuple[str, ...], flag: str) -> str:
    return words[words.index(flag) + 1] if flag in words else ""


def rights(agent: Agent) -> dict[str, JsonValue]:
    line = command_line("opencode", CommandLineRequest(prompt="p", agent=agent, checks=CHECKS))
    found: dict[str, JsonValue] = json.loads(line.env.get("OPENCODE_PERMISSION", "{}"))
    return found


@pytest.mark.parametrize(
    ("cli", "flag", "modes"),
    [
        ("claude", "--permission-mode", ("default", "acceptEdits", "bypassPermissions")),
        ("codex", "-s", ("read-only", "workspace-write", "danger-full-access")),
        ("gemini", "--approval-mode", ("default", "auto_edit", "yolo")),
    ],
)
def test_permission_words_become_the_modes_of_each_program(
    cli: str, flag: str, modes: tuple[str, ...]
) -> None:
    """`ask`, `edit` and `all` mean the same everywhere."""
    for word, mode in zip(("ask", "edit", "all"), modes, strict=True):
        assert after(argv(cli, Agent(permission=word)), flag) == mode
        assert unfit(cli, Agent(permission=word)) is None


def test_permission_words_of_opencode() -> None:
    """It has no modes: what it may do is written into its permissions."""
    asks = rights(Agent(permission="ask"))
    assert {asks[name] for name in ("edit", "bash", "webfetch", "external_directory")} == {"ask"}
    assert rights(Agent(permission="edit"))["edit"] == "allow"
    assert "--auto" in argv("opencode", Agent(permission="all"))


def test_root_is_allowed_all_tools_by_name() -> None:
    """Claude Code refuses to run as root without permissions, so it is given all of them."""
    words = argv("claude", Agent(permission="all"), as_root=True)
    assert after(words, "--permission-mode") == "acceptEdits"
    assert {"Bash", "Write", "WebFetch"} <= set(after(words, "--allowedTools").split(","))
    plain = argv("claude", Agent(permission="bypassPermissions"), as_root=True)
    assert after(plain, "--permission-mode") == "bypassPermissions"


@pytest.mark.parametrize("permission", [None, "edit", "acceptEdits"])
def test_checks_are_allowed_exactly(permission: str | None) -> None:
    """Each program is told the command of the check, and nothing that begins like it."""
    agent = Agent(permission=permission)
    assert after(argv("claude", agent), "--allowedTools") == (
        "Bash(pytest -q),Bash(npm run test:unit)"
    )
    assert rights(agent)["bas?"] == {"pytest -q": "allow", "npm run test:unit": "allow"}
    policy = tomllib.loads(
        command_policy("gemini", CommandLineRequest(prompt="p", agent=agent, checks=CHECKS))
    )
    assert [rule["toolName"] for rule in policy["rule"]] == ["run_shell_command"] * 2
    assert policy["rule"][0]["argsPattern"] == '"command":"pytest \\-q"'
    assert {rule["decision"] for rule in policy["rule"]} == {"allow"}


@pytest.mark.parametrize(
    "agent",
    [
        Agent(permission="ask"),
        Agent(permission="plan"),
        Agent(permission="dontAsk"),
        Agent(access="readonly"),
        Agent(tools=("Read", "Edit")),
        Agent(tools=()),
        Agent(deny_tools=("Bash",)),
    ],
    ids=["ask", "plan", "dontAsk", "level", "only-tools", "no-tools", "denied"],
)
def test_checks_are_not_allowed_to_agents_that_may_not_edit(agent: Agent) -> None:
    """Whoever narrows an agent has decided about its commands, too."""
    assert check_lines(CHECKS, agent) == ()


@pytest.mark.parametrize(
    ("check", "line"),
    [
        (("pytest", "-q"), "pytest -q"),
        (("./run.sh", "--env=ci", "a b"), "./run.sh --env=ci 'a b'"),
        (("bash", "-c", "pytest && rm -rf x"), None),
        (("sh", "-c", "a; b"), None),
        (("grep", "-q", "a*"), None),
        (("grep", "(x)"), None),
        (("x", "$(id)"), None),
        (("x", "`id`"), None),
        (("x", "a,Bash"), None),
        (("x", "a\nb"), None),
        (("x", 'a"b'), None),
        (("x", "a\\b"), None),
        (("x", "a>b"), None),
        (("x", "é"), None),
        ((), None),
    ],
    ids=lambda value: repr(value) if isinstance(value, tuple) else "",
)
def test_only_plain_commands_are_put_into_patterns(
    check: tuple[str, ...], line: str | None
) -> None:
    """A character with a meaning to a shell or in a pattern would allow more than the check."""
    assert check_lines((check,), Agent()) == (() if line is None else (line,))


@pytest.mark.parametrize(
    ("tools", "only", "added"),
    [
        (None, None, ()),
        ((), (), ()),
        (("Read", "Bash(ls)"), ("Read", "Bash(ls)"), ()),
        (("+Bash(npm test)",), None, ("Bash(npm test)",)),
        (("Read", "+Bash"), ("Read",), ("Bash",)),
    ],
    ids=["none-named", "no-tools", "only", "added", "both"],
)
def test_tools_with_a_plus_are_added(
    tools: tuple[str, ...] | None, only: tuple[str, ...] | None, added: tuple[str, ...]
) -> None:
    """Without a plus a list says what there is; with it, what is allowed in addition."""
    agent = Agent(tools=tools)
    assert (only_tools(agent), added_tools(agent)) == (only, added)


def test_added_tools_in_the_words_of_each_program() -> None:
    """An addition takes nothing away; a program without names for tools refuses it."""
    agent = Agent(tools=("+Bash(npm test)", "+WebFetch"))
    words = argv("claude", agent)
    assert after(words, "--allowedTools").endswith("Bash(npm test),WebFetch")
    assert "--tools" not in words
    found = rights(Agent(tools=("+bash(npm test)", "+webfetch")))
    assert (found["edit"], found["webfetch"]) == ("allow", "allow")
    assert isinstance(found["bas?"], dict)
    assert found["bas?"]["npm test"] == "allow"
    gemini = argv("gemini", Agent(tools=("+run_shell_command(npm test)",)))
    assert after(gemini, "--allowed-tools") == "run_shell_command(npm test)"
    assert unfit("gemini", Agent(tools=("+run_shell_command",))) is None
    assert "--permission all" in (unfit("codex", Agent(tools=("+x",))) or "")
    assert unfit("codex", Agent(tools=("Read",)))
    assert set(CLIS) == {"claude", "codex", "gemini", "opencode"}
