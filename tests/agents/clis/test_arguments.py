"""Argument vectors: everything that an agent is told or allowed is an argument of its own."""

import json
import tomllib

import pytest

from loopwright.agents.clis.catalogue import CLIS
from loopwright.agents.clis.command_line import (
    ARGUMENT_BYTES,
    CommandLine,
    CommandLineRequest,
    command_line,
    command_policy,
    is_read_only,
    named_model,
    needs_system_file,
    own_variables,
    unfit,
)
from loopwright.model.plan import Agent
from loopwright.model.record import JsonValue

every_cli = pytest.mark.parametrize("cli", sorted(CLIS))
LOGS = ("--print-logs", "--log-level", "ERROR")  # on stderr
EVIL = "--help; $(id) `id` | & > \n'\""


def line(cli: str, agent: Agent | None = None, **more: object) -> CommandLine:
    fields: dict[str, object] = {"prompt": "Do it.", "agent": agent or Agent(), **more}
    return command_line(cli, CommandLineRequest(**fields))  # type: ignore[arg-type]


def after(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


@pytest.mark.item("rondoflow-19")
def test_claude_receives_everything_by_arguments() -> None:
    """Tools, model, budget and permission mode are arguments, and the prompt is last after `--`."""
    agent = Agent(
        model="opus",
        tools=("Read", "Bash(git log *)", "Bash(ls)", "mcp__srv__find"),
        deny_tools=("WebFetch", "WebSearch"),
        permission="bypassPermissions",
        max_usd=1.5,
        max_turns=7,
        system="Be brief.",
    )
    argv = line("claude", agent, prompt=EVIL, extra=("--add-dir", "../lib")).argv
    assert argv == (
        *("claude", "-p", "--output-format", "stream-json", "--verbose"),
        *("--include-partial-messages", "--permission-mode", "bypassPermissions"),
        *("--model", "opus", "--append-system-prompt", "Be brief."),
        *("--tools", "Read,Bash", "--allowedTools", "Read,Bash(git log *),Bash(ls),mcp__srv__find"),
        *("--disallowedTools", "WebFetch,WebSearch"),
        *("--max-turns", "7", "--max-budget-usd", "1.5", "--add-dir", "../lib"),
        *("--", EVIL),
    )


@pytest.mark.parametrize(
    ("cli", "argv", "stdin"),
    [
        (
            "claude",
            (
                *("claude", "-p", "--output-format", "stream-json", "--verbose"),
                *("--include-partial-messages", "--permission-mode", "acceptEdits", "--", EVIL),
            ),
            "",
        ),
        (
            "codex",
            (
                *("codex", "exec", "-s", "workspace-write", "--json", "--skip-git-repo-check"),
                *("--", EVIL),
            ),
            "",
        ),
        ("opencode", ("opencode", "run", "--format", "json", *LOGS), EVIL),
        (
            "gemini",
            ("gemini", "-o", "stream-json", "--skip-trust", "--approval-mode", "auto_edit"),
            EVIL,
        ),
    ],
    ids=["claude", "codex", "opencode", "gemini"],
)
def test_a_plain_call(cli: str, argv: tuple[str, ...], stdin: str) -> None:
    """Nothing is said that nobody asked for; the prompt is one argument or the standard input."""
    made = line(cli, prompt=EVIL)
    assert (made.argv, made.stdin) == (argv, stdin)


@every_cli
def test_a_long_prompt_is_on_standard_input(cli: str) -> None:
    """What does not fit into an argument still arrives as it is."""
    prompt = "ä" * ARGUMENT_BYTES
    made = line(cli, prompt=prompt)
    assert made.stdin == prompt
    assert all(len(word) < 100 for word in made.argv)
    assert line(cli, prompt="a\0b").stdin == "a\0b"


@every_cli
@pytest.mark.parametrize(
    ("flag", "value"),
    [("model", "big"), ("session", "s-1")],
)
def test_model_and_session_are_arguments(cli: str, flag: str, value: str) -> None:
    """Each program has its own flag for them."""
    flags = {
        ("claude", "model"): "--model",
        ("claude", "session"): "--resume",
        ("codex", "model"): "-m",
        ("opencode", "model"): "-m",
        ("opencode", "session"): "-s",
        ("gemini", "model"): "-m",
        ("gemini", "session"): "--resume",
    }
    made = line(cli, Agent(model=value)) if flag == "model" else line(cli, session=value)
    if (cli, flag) == ("codex", "session"):
        assert made.argv[4:] == ("resume", "--json", "--skip-git-repo-check", "--", "s-1", "Do it.")
        assert line(cli, session=value, prompt="x" * ARGUMENT_BYTES * 2).argv[-2:] == ("s-1", "-")
    else:
        assert after(made.argv, flags[cli, flag]) == value


@every_cli
def test_arguments_of_the_author_are_added(cli: str) -> None:
    """Words after the colon of a spec are handed over one by one."""
    argv = line(cli, extra=("--x", "a b")).argv
    assert after(argv, "--x") == "a b"


@pytest.mark.parametrize("cli", ["codex", "opencode", "gemini"])
def test_instructions_come_before_the_prompt(cli: str) -> None:
    """A program that takes no instructions apart gets them above the prompt."""
    made = line(cli, Agent(system="Be brief."))
    assert (made.stdin or made.argv[-1]) == "Be brief.\n\nDo it."


def test_long_instructions_are_in_a_file() -> None:
    """Instructions that are too long for an argument are named by a file."""
    agent = Agent(system="x" * 100_000)
    assert needs_system_file(agent)
    assert not needs_system_file(Agent(system="x" * 1_000))
    argv = line("claude", agent, system_file="/tmp/s.txt").argv
    assert after(argv, "--append-system-prompt-file") == "/tmp/s.txt"
    assert "--append-system-prompt" not in argv


@pytest.mark.parametrize(
    ("schema", "given"),
    [({"type": "object"}, True), ({"x": "y" * ARGUMENT_BYTES}, False)],
    ids=["fits", "too long"],
)
def test_the_form_of_a_result_is_an_argument(schema: dict[str, JsonValue], given: bool) -> None:
    """Claude Code checks the form itself; one that is too long stands in the prompt alone."""
    argv = line("claude", schema=schema).argv
    assert ("--json-schema" in argv) is given
    if given:
        assert json.loads(after(argv, "--json-schema")) == schema


def test_a_budget_is_on_top_of_what_the_session_has_cost() -> None:
    """The program compares with the whole session, a definition means one call."""
    argv = line("claude", Agent(max_usd=0.5), session="s", session_usd=0.25).argv
    assert after(argv, "--max-budget-usd") == "0.75"


def test_no_tools_are_no_tools() -> None:
    """An empty list is a list: nothing may be used."""
    argv = line("claude", Agent(tools=())).argv
    assert after(argv, "--tools") == ""
    assert "--allowedTools" not in argv


@pytest.mark.parametrize(
    ("agent", "rights", "auto"),
    [
        (Agent(), {"edit": "allow"}, False),
        (Agent(permission="default"), None, False),
        (Agent(permission="read-only"), {"edit": "deny", "bash": "deny"}, False),
        (Agent(permission="bypassPermissions"), None, True),
        (Agent(tools=("read",)), {"*": "deny", "read": "allow"}, False),
        (Agent(deny_tools=("bash",)), {"edit": "allow", "bash": "deny"}, False),
    ],
    ids=["plain", "default", "read only", "all", "tools", "denied"],
)
def test_rights_of_opencode(agent: Agent, rights: dict[str, str] | None, auto: bool) -> None:
    """Its rights are a variable; asking for none of them is a flag."""
    made = line("opencode", agent)
    found = made.env.get("OPENCODE_PERMISSION")
    assert (None if found is None else json.loads(found)) == rights
    assert ("--auto" in made.argv) is auto


@every_cli
@pytest.mark.parametrize("word", ["read-only", "default", "acceptEdits", "bypassPermissions"])
def test_common_words_for_rights(cli: str, word: str) -> None:
    """The same words mean the same for every program."""
    assert unfit(cli, Agent(permission=word)) is None
    assert CLIS[cli].permissions[word]


@pytest.mark.parametrize(
    ("cli", "agent", "says"),
    [
        ("claude", Agent(permission="root"), "claude knows no permission 'root'"),
        ("codex", Agent(tools=("Read",)), "cannot be used without 'bash' among its tools"),
        ("codex", Agent(deny_tools=("bash",)), "cannot be used without 'bash'"),
        ("codex", Agent(deny_tools=("x",)), "codex cannot be kept from 'x'"),
    ],
    ids=["permission", "tools", "denied", "unknown"],
)
def test_what_cannot_be_held_is_refused(cli: str, agent: Agent, says: str) -> None:
    """A right that a program cannot be held to is refused, not left out."""
    assert says in (unfit(cli, agent) or "")


@pytest.mark.item("zenflow-74")
def test_denied_tools_in_the_words_of_each_program() -> None:
    """Each program is kept from a tool by its own means."""
    denied = Agent(deny_tools=("Bash", "WebFetch"))
    words = line("claude", denied).argv
    assert words[words.index("--disallowedTools") + 1] == "Bash,WebFetch"
    rights = json.loads(line("opencode", Agent(deny_tools=("bash",))).env["OPENCODE_PERMISSION"])
    assert rights["bash"] == "deny"
    agent = Agent(deny_tools=("run_shell_command",))
    policy = tomllib.loads(command_policy("gemini", CommandLineRequest(prompt="p", agent=agent)))
    rule = {"toolName": "run_shell_command", "decision": "deny", "priority": 990}
    assert policy == {"rule": [rule]}
    assert unfit("codex", Agent(deny_tools=("write", "webfetch"))) is None
    codex = line("codex", Agent(deny_tools=("write", "webfetch"))).argv
    assert codex[2:6] == ("-s", "read-only", "-c", 'web_search="disabled"')
    assert is_read_only("codex", Agent(deny_tools=("edit",)))


def test_the_only_tools_of_gemini_are_rules() -> None:
    """What is not named is denied, also tools that nobody knows."""
    agent = Agent(tools=("read_file",))
    policy = tomllib.loads(command_policy("gemini", CommandLineRequest(prompt="p", agent=agent)))
    found = {rule["toolName"]: rule["decision"] for rule in policy["rule"]}
    assert {name for name, said in found.items() if said == "allow"} == {"read_file"}
    assert {"run_shell_command", "write_file", "*"} <= {n for n, s in found.items() if s == "deny"}


def test_turns_that_cannot_be_limited_are_reported() -> None:
    """A limit of turns is only a wish; that it was not applied is in the notes."""
    assert line("codex", Agent(max_turns=3)).notes == (
        "codex has no limit of turns: max_turns was not applied",
    )
    assert line("claude", Agent(max_turns=3)).notes == ()


# -- the environment -------------------------------------------------------------------------------


@pytest.mark.item("rondoflow-56")
@pytest.mark.parametrize(
    ("base", "found"),
    [
        (
            {"CLAUDE_CODE_OAUTH_TOKEN": "t", "ANTHROPIC_API_KEY": "k"},
            {"CLAUDE_CODE_OAUTH_TOKEN": "t"},
        ),
        ({"ANTHROPIC_API_KEY": "k"}, {"ANTHROPIC_API_KEY": "k"}),
        ({"ANTHROPIC_API_KEY": "", "ANTHROPIC_AUTH_TOKEN": "a"}, {"ANTHROPIC_AUTH_TOKEN": "a"}),
        ({"OPENAI_API_KEY": "o", "DATABASE_URL": "x"}, {}),
    ],
    ids=["token wins", "key", "an empty one is none", "of others nothing"],
)
def test_exactly_one_credential_is_passed_on(base: dict[str, str], found: dict[str, str]) -> None:
    """The setup token comes before the key, and never both."""
    assert own_variables("claude", base) == found


@every_cli
def test_a_program_gets_its_own_variables_alone(cli: str) -> None:
    """Where it finds its settings and its server is handed on; what belongs to others is not."""
    base = {name: f"{name}!" for one in CLIS.values() for name in (*one.variables, "SECRET")}
    found = own_variables(cli, base)
    assert sorted(found) == sorted(CLIS[cli].variables)


@pytest.mark.parametrize(
    ("extra", "model"),
    [
        (("-m", "gpt-5"), "gpt-5"),
        (("--add-dir", "x", "--model", "opus"), "opus"),
        (("--model=opus",), "opus"),
        (("-c", 'model="gpt-5"'), "gpt-5"),
        (("-c", "model_provider=x"), ""),
        (("-m",), ""),
        ((), ""),
    ],
    ids=["short", "long", "joined", "config", "other-config", "nothing-after-it", "none"],
)
def test_named_model_reads_the_author_arguments(extra: tuple[str, ...], model: str) -> None:
    """A model in the arguments of a spec is known without a report of the program."""
    assert named_model(extra) == model
