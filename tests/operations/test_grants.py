"""From the tools in a definition to what an agent may really use."""

import msgspec
import pytest

from loopwright.errors import LoopwrightError
from loopwright.kernel.bodies.conversation import rule_for
from loopwright.model.plan import Agent
from loopwright.model.record import JsonValue
from loopwright.operations.agents.tool_grants import (
    asking,
    check_tools,
    grant_of,
    server_of,
    servers_of,
)
from loopwright.tools.mcp.server_records import HttpServer, StdioServer

FILES = ("fs.read", "fs.list", "fs.search", "fs.write", "fs.edit")
READING = ("fs.read", "fs.list", "fs.search")
SERVERS = {"issues": StdioServer(argv=("issue-server",))}


def native(**more: object) -> tuple[str, ...]:
    return grant_of(Agent(spec="model:a/b", **more), SERVERS).native  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        pytest.param({}, FILES, id="nothing named"),
        pytest.param({"tools": ()}, (), id="none"),
        pytest.param({"tools": ("fs.read", "fs.read")}, ("fs.read",), id="twice"),
        pytest.param(
            {"tools": ("aldo-fs.fs.write", "x.shell.exec")},
            ("fs.write", "shell.exec"),
            id="as of a server",
        ),
        pytest.param(
            {"deny_tools": ("fs.write", "edit")}, READING, id="denied, also by short name"
        ),
        pytest.param(
            {"deny_tools": ("any.fs.edit", "fs.write")}, READING, id="denied by long name"
        ),
        pytest.param({"permission": "read-only"}, READING, id="read only"),
        pytest.param(
            {"options": {"permissions": {"filesystem": "repo-readonly"}}}, READING, id="read rights"
        ),
        pytest.param({"options": {"permissions": {"filesystem": "none"}}}, (), id="no files"),
        pytest.param(
            {"options": {"permissions": {"filesystem": "repo-readwrite"}}}, FILES, id="write rights"
        ),
    ],
)
@pytest.mark.item("aldo-30")
def test_built_in_tools(more: dict[str, object], expected: tuple[str, ...]) -> None:
    """What is named, less what is denied or beyond the rights of the agent."""
    assert native(**more) == expected


def test_programs_need_an_allow_list() -> None:
    """Without one the tool is there and starts nothing."""
    agent = Agent(spec="model:a/b", tools=("shell.exec",), pass_env=("HOME",))
    assert grant_of(agent, {}).commands.allow == ()
    options: dict[str, JsonValue] = {"commands": {"allow": ["make"], "deny": ["-k", 3]}}
    allowed = grant_of(Agent(spec="model:a/b", options=options, pass_env=("HOME",)), {}).commands
    assert (allowed.allow, allowed.deny, allowed.pass_env) == (("make",), ("-k",), ("HOME",))


def test_servers() -> None:
    """A tool of a server needs the server; what is denied of it is not granted."""
    agent = Agent(
        spec="model:a/b", tools=("issues.create", "issues.close"), deny_tools=("issues.close",)
    )
    [granted] = grant_of(agent, SERVERS).servers
    assert (granted.name, granted.allow) == ("issues", ("create",))
    own: dict[str, JsonValue] = {"mcp": [{"server": "own", "url": "http://127.0.0.1:1"}]}
    [mine] = grant_of(Agent(spec="model:a/b", tools=("own.do",), options=own), {}).servers
    assert mine.spec == HttpServer(url="http://127.0.0.1:1")
    reading = Agent(spec="model:a/b", tools=("issues.create",), permission="read-only")
    assert grant_of(reading, SERVERS).servers == ()


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        pytest.param(("fs.reed",), "did you mean fs.read?", id="typo"),
        pytest.param(("zzz",), "there are fs.edit", id="nothing like it"),
    ],
)
def test_a_tool_that_is_not_there(tools: tuple[str, ...], words: str) -> None:
    """It is told before the run, with the nearest one."""
    agent = Agent(spec="model:a/b", tools=tools)
    with pytest.raises(LoopwrightError, match="not there") as refused:
        check_tools("coder", agent)
    assert words in str(refused.value)
    with pytest.raises(LoopwrightError, match="there is no tool"):
        grant_of(agent, {})


def test_a_server_that_is_not_there() -> None:
    """It is told with how to describe it."""
    agent = Agent(spec="model:a/b", tools=("jira.create",))
    check_tools("coder", agent)
    with pytest.raises(LoopwrightError, match="no MCP server 'jira'") as refused:
        grant_of(agent, SERVERS)
    assert "[mcp.jira]" in str(refused.value)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        pytest.param({"command": "s", "args": ["-x"]}, StdioServer(argv=("s", "-x")), id="command"),
        pytest.param(
            {"command": ["s"], "pass_env": ["T"]},
            StdioServer(argv=("s",), pass_env=("T",)),
            id="env",
        ),
        pytest.param(
            {"url": "http://h", "bearer_env": "T", "header_env": {"X-A": "V"}},
            HttpServer(url="http://h", bearer_env="T", header_env=(("X-A", "V"),)),
            id="address",
        ),
        pytest.param(
            {"url": "http://h", "bearer_env": 3}, HttpServer(url="http://h"), id="no name"
        ),
        pytest.param({}, None, id="nothing"),
        pytest.param({"url": ""}, None, id="no address"),
    ],
)
def test_how_a_server_is_written(
    written: dict[str, JsonValue], expected: StdioServer | HttpServer | None
) -> None:
    """A program or an address; secrets by the names of their variables alone."""
    assert server_of(written) == expected
    assert servers_of({"x": written}) == ({"x": expected} if expected else {})


def test_limits_of_tools() -> None:
    """Times, numbers at once and exclusiveness are the author's; nonsense changes nothing."""
    options: dict[str, JsonValue] = {
        "tool_limits": {
            "fs.read": {"seconds": 3, "at_once": 2, "exclusive": True},
            "fs.list": {"seconds": "x"},
        }
    }
    limits = grant_of(Agent(spec="model:a/b", options=options), {}).limits
    assert (limits["fs.read"].seconds, limits["fs.read"].at_once) == (3.0, 2)
    assert limits["fs.read"].exclusive
    assert limits["fs.list"].seconds == 60.0


def test_protected_paths_can_be_replaced() -> None:
    """The author's list counts instead of ours."""
    options: dict[str, JsonValue] = {"protected_paths": ["secret/**"]}
    agent = Agent(spec="model:a/b", options=options)
    assert grant_of(agent, {}).protected == ("secret/**",)


def test_asking_about_every_change() -> None:
    """With the permission `default` a person is asked about all that does more than read."""
    tools = ("fs.read", "fs.edit", "shell.exec", "issues.create")
    agent = Agent(spec="model:a/b", tools=tools, permission="default")
    held = asking(agent).approvals
    assert held == dict.fromkeys(("fs.edit", "shell.exec", "issues.create"), "always")
    assert asking(Agent(spec="model:a/b", tools=tools)).approvals == {}


OPEN = Agent(spec="model:a/b", tools=("issues.*", "fs.read"))


@pytest.mark.item("aldo-30", "aldo-41")
@pytest.mark.parametrize("denied", ["issues.close", "close", "else.issues.close"])
def test_what_is_denied_of_a_whole_server(denied: str) -> None:
    """A grant of all tools of a server is one of all but those, by whichever name."""
    agent = msgspec.structs.replace(OPEN, deny_tools=(denied,))
    [granted] = grant_of(agent, SERVERS).servers
    assert (granted.allow, granted.deny) == (("*",), (denied,))
    whole = msgspec.structs.replace(OPEN, deny_tools=("issues.*",))
    assert grant_of(whole, SERVERS).servers[0].allow == ()


@pytest.mark.item("aldo-32", "aldo-41")
def test_asking_about_a_whole_server() -> None:
    """Tools that only the server lists are asked about too."""
    rules = asking(msgspec.structs.replace(OPEN, permission="default")).approvals
    assert rule_for("issues.close", rules) == "always"
    assert rule_for("fs.read", rules) == "never"


FULL = {"access": "full", "role": "coder"}


@pytest.mark.item("coqui-26", "coqui-88")
def test_full_access_has_shell_web_memory_and_all_servers() -> None:
    """A chat model in a role with full access has what its document promises."""
    grant = grant_of(Agent(spec="model:a/b", **FULL), SERVERS)  # type: ignore[arg-type]
    assert {*FILES, "shell.exec", "web.fetch", "memory.save", "memory.search"} <= {*grant.native}
    assert [(one.name, one.allow) for one in grant.servers] == [("issues", ("*",))]


@pytest.mark.item("coqui-26", "coqui-88")
@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"access": "readonly-shell", "role": "explorer"}, id="readonly-shell"),
        pytest.param({"access": "readonly", "role": "plan"}, id="readonly"),
        pytest.param({"access": "minimal", "role": "evaluator"}, id="minimal"),
        pytest.param({**FULL, "permission": "read-only"}, id="a permission that only reads"),
    ],
)
def test_lesser_access_has_neither_web_nor_servers(more: dict[str, object]) -> None:
    """Nothing is discovered for them, and memory is for full access alone."""
    grant = grant_of(Agent(spec="model:a/b", **more), SERVERS)  # type: ignore[arg-type]
    assert grant.servers == ()
    assert "web.fetch" not in grant.native
    if more["access"] != "full":
        assert not [one for one in grant.native if one.startswith("memory.")]


@pytest.mark.item("coqui-88")
def test_what_takes_discovered_tools_away() -> None:
    """A role that denies them, an agent without a network, and one that names its tools."""

    def granted(**more: object) -> tuple[list[str], bool]:
        found = grant_of(Agent(spec="model:a/b", **{**FULL, **more}), SERVERS)  # type: ignore[arg-type]
        return [one.name for one in found.servers], "web.fetch" in found.native

    assert granted(options={"denied_toolkits": ["servers", "web"]}) == ([], False)
    assert granted(options={"network": "none"}) == ([], False)
    assert granted(tools=("fs.read",)) == ([], False)
    assert granted(role=None) == ([], True)


@pytest.mark.item("aldo-31")
@pytest.mark.parametrize(
    ("agent", "granted"),
    [
        pytest.param(Agent(tools=("fs.mkdir",)), True, id="named"),
        pytest.param(Agent(tools=("fs.mkdir",), access="readonly"), False, id="a level that reads"),
        pytest.param(Agent(tools=("fs.mkdir",), permission="read-only"), False, id="read only"),
        pytest.param(
            Agent(tools=("fs.mkdir",), options={"permissions": {"filesystem": "repo-readonly"}}),
            False,
            id="files of the definition",
        ),
        pytest.param(Agent(), False, id="not named"),
    ],
)
def test_folders_are_made_only_by_those_who_may_write(agent: Agent, *, granted: bool) -> None:
    """`fs.mkdir` is a tool that writes, and is given by name only."""
    assert ("fs.mkdir" in grant_of(agent, {}).native) is granted
