"""`--permission` and `--tools` in a plan: which agents get what, and what is refused."""

from pathlib import Path

import pytest

from loopwright.errors import LoopwrightError, NotAllowed
from loopwright.model.plan import Agent, Plan
from loopwright.operations.agents.backends import bind_agents
from loopwright.operations.agents.permissions import unenforced_permissions, with_permission

pytestmark = pytest.mark.item("rec-31")


def plan(**agents: Agent) -> Plan:
    return Plan(name="p", steps=(), agents=agents)


def test_every_agent_gets_the_permission_in_its_own_words() -> None:
    """Coding agents know the words as they are; a chat model has other names for them."""
    before = plan(
        a=Agent(spec="claude", permission="plan"),
        b=Agent(spec="model:openai/x"),
        c=Agent(spec="acp:x"),
    )
    after = with_permission(before, "edit", ()).agents
    assert [after[name].permission for name in "abc"] == ["edit", "acceptEdits", "edit"]
    assert with_permission(before, None, ()) is before


@pytest.mark.parametrize(
    ("word", "known"),
    [("ask", "default"), ("edit", "acceptEdits"), ("all", "bypassPermissions")],
)
def test_chat_model_has_the_words_of_the_flag_in_a_definition(word: str, known: str) -> None:
    """`ask` asks a person about every change, however it was given; the others ask nobody."""
    here = Path.cwd()
    agent = Agent(spec="model:ollama/llama3", permission=word)
    bound = bind_agents(plan(a=agent), default=None, named={}, base=here, cwd=here)
    flagged = with_permission(plan(a=Agent(spec="model:ollama/llama3")), word, ())
    for one in (bound.agents["a"], flagged.agents["a"]):
        assert one.permission == known
        assert ("always" in one.approvals.values()) is (word == "ask")


@pytest.mark.parametrize(
    ("before", "tools", "after"),
    [
        (None, ("Read",), ("Read",)),
        (("Edit",), ("Read",), ("Read",)),
        (None, ("+Bash",), ("+Bash",)),
        (("Edit",), ("+Bash",), ("Edit", "+Bash")),
    ],
    ids=["only", "replaced", "added", "added-to-only"],
)
def test_tools_replace_or_add(
    before: tuple[str, ...] | None, tools: tuple[str, ...], after: tuple[str, ...]
) -> None:
    """A list replaces that of the definition; names with a plus sign are added to it."""
    changed = with_permission(plan(a=Agent(spec="claude", tools=before)), None, tools)
    assert changed.agents["a"].tools == after


@pytest.mark.parametrize(
    ("spec", "permission", "tools", "words"),
    [
        ("claude", "yes", (), "--permission 'yes' is not known"),
        ("codex", None, ("Read",), "agent a: codex works on files by running commands"),
        ("acp:x", None, ("+mystery",), "agent a: an acp agent cannot be confined"),
        ("model:openai/x", None, ("+shell.exec",), "leave the plus sign out"),
    ],
    ids=["word", "codex", "acp", "chat"],
)
def test_what_an_agent_cannot_be_held_to_is_refused(
    spec: str, permission: str | None, tools: tuple[str, ...], words: str
) -> None:
    """Nothing is accepted and then ignored."""
    with pytest.raises(LoopwrightError, match=words):
        with_permission(plan(a=Agent(spec=spec)), permission, tools)


@pytest.mark.parametrize(("permission", "tools"), [("edit", ()), ("all", ()), (None, ("+Bash",))])
def test_a_request_may_only_take_away(permission: str | None, tools: tuple[str, ...]) -> None:
    """From elsewhere, nothing is allowed that the definition denies."""
    with pytest.raises(NotAllowed):
        with_permission(plan(a=Agent(spec="claude")), permission, tools, strict=True)
    narrowed = with_permission(plan(a=Agent(spec="claude")), "ask", ("Read",), strict=True)
    assert narrowed.agents["a"].tools == ("Read",)


def test_programs_that_are_only_told() -> None:
    """A plain program learns its permission from variables; people are warned about it."""
    given = with_permission(plan(a=Agent(spec="jsonl:x"), b=Agent(spec="claude")), "edit", ())
    (warning,) = unenforced_permissions(given)
    assert warning.startswith("agent a reads its permission")


@pytest.mark.item("zenflow-73", "zenflow-74")
def test_tools_are_given_in_the_words_of_what_is_behind_an_agent() -> None:
    """The same list of tools is understood by a chat model and by a coding agent."""
    here = Path.cwd()
    agent = Agent(tools=("bash", "read", "webfetch", "websearch"), deny_tools=("grep",))
    found = {
        spec: bind_agents(plan(a=agent), default=spec, named={}, base=here, cwd=here).agents["a"]
        for spec in ("model:ollama/llama3", "claude", "command:true")
    }
    chat = found["model:ollama/llama3"]
    assert chat.tools == ("shell.exec", "fs.read", "web.fetch")
    assert chat.deny_tools == ("fs.search",)
    assert found["claude"].tools == ("Bash", "Read", "WebFetch", "WebSearch")
    assert found["claude"].deny_tools == ("Grep",)
    assert found["command:true"].tools == agent.tools
    assert unenforced_permissions(plan(a=chat)) == [
        "agent a has no tool websearch: chat models do not have it here"
    ]


@pytest.mark.item("zenflow-74")
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("command:true", "nothing enforces it"),
        ("jsonl:true", "nothing enforces it"),
        ("acp:true", "does not ask is not kept"),
    ],
)
def test_denied_tools_that_nothing_enforces_cause_a_warning(spec: str, words: str) -> None:
    """A security key is never ignored in silence."""
    [warning] = unenforced_permissions(plan(a=Agent(spec=spec, deny_tools=("bash",))))
    assert words in warning
    assert unenforced_permissions(plan(a=Agent(spec=spec))) == []
