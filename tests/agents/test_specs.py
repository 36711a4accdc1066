"""Specs of agents: what is read out of the short text, and what is said about a wrong one."""

import pytest

from loopwright.agents.specs import BadSpec, Spec, parse_spec, unfit_agent
from loopwright.model.plan import Agent


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("command:cat", Spec("command", ("cat",)), id="one word"),
        pytest.param("command:a 'b c' d", Spec("command", ("a", "b c", "d")), id="quotes"),
        pytest.param("command:a b\\ c", Spec("command", ("a", "b c")), id="backslash"),
        pytest.param('jsonl:a --x="1 2"', Spec("jsonl", ("a", "--x=1 2")), id="jsonl"),
        pytest.param(" command : a ", Spec("command", ("a",)), id="blanks around"),
        pytest.param("script:my replies.yaml", Spec("script", file="my replies.yaml"), id="script"),
        pytest.param("command:a:b", Spec("command", ("a:b",)), id="second colon belongs to it"),
        pytest.param("claude", Spec("claude"), id="a coding CLI"),
        pytest.param("codex:-c 'a=\"b\"'", Spec("codex", ("-c", 'a="b"')), id="more arguments"),
        pytest.param("gemini:", Spec("gemini"), id="no more arguments"),
        pytest.param("acp:opencode acp", Spec("acp", ("opencode", "acp")), id="acp"),
        pytest.param("command:a # b", Spec("command", ("a", "#", "b")), id="no comments"),
    ],
)
def test_a_spec_is_taken_apart(text: str, expected: Spec) -> None:
    """The kind comes before the first colon, the rest is split like a command line."""
    assert parse_spec(text) == expected


@pytest.mark.parametrize("sign", ["|", "&&", ";", ">", "$HOME", "$(id)", "`id`", "*", "~"])
def test_shell_signs_stay_words(sign: str) -> None:
    """Nothing of a shell is understood: every sign arrives as an argument."""
    assert parse_spec(f"command:prog a {sign} b") == Spec("command", ("prog", "a", sign, "b"))


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        pytest.param("", "unknown agent ''", "known are model:PROVIDER", id="nothing"),
        pytest.param("cat", "unknown agent 'cat'", "known are", id="no kind"),
        pytest.param("./a.sh", "unknown agent './a.sh'", "write command:./a.sh", id="a path"),
        pytest.param("comand:x", "unknown agent 'comand:x'", "did you mean command?", id="typo"),
        pytest.param("command", "unknown agent 'command'", "command:PROGRAM", id="no colon"),
        pytest.param("command:", "names nothing to run", "command:PROGRAM ARG", id="no program"),
        pytest.param("acp", "unknown agent 'acp'", "acp:PROGRAM", id="acp alone"),
        pytest.param("acp:", "names nothing to run", "acp:PROGRAM ARG", id="acp of nothing"),
        pytest.param("script: ", "names nothing to run", "script:", id="no file"),
        pytest.param("command:a 'b", "cannot be split", "close the quote", id="open quote"),
    ],
)
def test_a_wrong_spec_is_answered_with_the_fix(text: str, message: str, hint: str) -> None:
    """What is wrong and what to write instead stand in the answer; nothing is raised."""
    bad = parse_spec(text)
    assert isinstance(bad, BadSpec)
    assert message in bad.message
    assert hint in bad.hint


@pytest.mark.parametrize(
    ("text", "models"),
    [
        pytest.param("model:openai/gpt-5", ("openai/gpt-5",), id="one"),
        pytest.param("model: a/b , c/d/e", ("a/b", "c/d/e"), id="failover, names with a slash"),
    ],
)
def test_chat_models(text: str, models: tuple[str, ...]) -> None:
    """Models are named by provider and name; further ones are asked when the first fails."""
    assert parse_spec(text) == Spec(kind="model", argv=models)


@pytest.mark.parametrize("text", ["model:", "model:gpt", "model:/x", "model:a/", "model:a/b,,c/d"])
def test_a_spec_that_names_no_model(text: str) -> None:
    """What is missing is told with an example."""
    bad = parse_spec(text)
    assert isinstance(bad, BadSpec)
    assert "model:" in bad.hint


@pytest.mark.parametrize("spec", ["command:x", "jsonl:x", "script:x.yaml", "claude", "acp:x"])
def test_approvals_need_a_chat_model(spec: str) -> None:
    """Behind any other agent nobody would be asked, so it is refused; `never` asks nobody."""
    parsed = parse_spec(spec)
    assert isinstance(parsed, Spec)
    asked = unfit_agent(parsed, Agent(approvals={"fs.read": "never", "shell.exec": "always"}))
    assert asked is not None
    assert "shell.exec" in asked
    assert unfit_agent(parsed, Agent(approvals={"shell.exec": "never"})) is None
    chat = parse_spec("model:a/b")
    assert isinstance(chat, Spec)
    assert unfit_agent(chat, Agent(approvals={"shell.exec": "always"})) is None
