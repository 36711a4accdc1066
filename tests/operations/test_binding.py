"""Binding: every agent gets something to run, every input a value, or the start is refused."""

import re
from pathlib import Path

import pytest

from loopwright.errors import DefinitionError, LoopwrightError
from loopwright.model.actions import CallAgent, Repeat, RunCommand, Step, Steps
from loopwright.model.plan import Agent, Coordinator, Input, Plan
from loopwright.model.record import literal
from loopwright.operations.agents.backends import (
    bind_agents,
    bind_inputs,
    check_message,
    check_scripts,
)
from loopwright.operations.agents.permissions import limit_warnings

CODER = Step(id="code", action=CallAgent(agent="coder"))
REVIEW = Step(id="review", action=CallAgent(agent="reviewer", prompt=literal("Look.")))


def plan(*steps: Step, **more: object) -> Plan:
    return Plan(name="t", steps=steps or (CODER,), **more)  # type: ignore[arg-type]


def bound(what: Plan, folder: Path, default: str | None = None, **named: str) -> dict[str, str]:
    found = bind_agents(what, default=default, named=named, base=folder / "def", cwd=folder)
    return {name: agent.spec or "" for name, agent in found.agents.items()}


def test_what_the_file_says_is_used(tmp_path: Path) -> None:
    """Without a choice each agent runs what the definition names."""
    agents = {"coder": Agent(spec="command:cat")}
    assert bound(plan(agents=agents), tmp_path) == {"coder": "command:cat"}


def test_a_named_choice_beats_the_default_beats_the_file(tmp_path: Path) -> None:
    """The nearer the choice to the person who starts, the more it counts."""
    agents = {"coder": Agent(spec="command:a"), "reviewer": Agent(spec="command:b")}
    what = plan(CODER, REVIEW, agents=agents)
    assert bound(what, tmp_path, "command:d", reviewer="command:n") == {
        "coder": "command:d",
        "reviewer": "command:n",
    }


def test_the_rest_of_an_agent_stays(tmp_path: Path) -> None:
    """Only what stands behind an agent is chosen; what it is told is the definition's."""
    agents = {"coder": Agent(spec="command:a", system="Be brief.", env={"X": "1"})}
    found = bind_agents(
        plan(agents=agents), default="command:d", named={}, base=tmp_path, cwd=tmp_path
    )
    assert found.agents["coder"] == Agent(spec="command:d", system="Be brief.", env={"X": "1"})


def test_agents_are_found_wherever_they_are_called(tmp_path: Path) -> None:
    """An agent that is only called, in a loop or a graph, is bound too."""
    body = Steps(steps=(CODER, REVIEW, Step(id="x", action=RunCommand(argv=("true",)))))
    what = plan(Step(id="main", action=Repeat(body=body, max=2)))
    assert set(bound(what, tmp_path, "command:d")) == {"coder", "reviewer"}


def test_a_coordinator_may_be_given_at_the_start(tmp_path: Path) -> None:
    """Named for a plan without one it coordinates; an agent of that name is only bound."""
    given = bind_agents(
        plan(), default="command:d", named={"coordinator": "command:c"}, base=tmp_path, cwd=tmp_path
    )
    assert given.coordinator == Coordinator(agent="coordinator")
    assert given.agents["coordinator"].spec == "command:c"
    own = plan(agents={"coordinator": Agent()})
    assert bound(own, tmp_path, "command:d", coordinator="command:c")["coordinator"] == "command:c"
    assert (
        bind_agents(
            own,
            default="command:d",
            named={"coordinator": "command:c"},
            base=tmp_path,
            cwd=tmp_path,
        ).coordinator
        is None
    )


def test_a_coordinator_of_the_plan_is_bound(tmp_path: Path) -> None:
    """Like every agent it needs something behind it."""
    what = plan(coordinator=Coordinator(agent="lead"))
    assert bound(what, tmp_path, "command:d")["lead"] == "command:d"


@pytest.mark.parametrize(
    ("default", "named", "code", "words"),
    [
        pytest.param(None, {}, "no-agent", "--agent SPEC", id="nothing behind it"),
        pytest.param("model:x", {}, "bad-agent", "model:PROVIDER/NAME", id="no model"),
        pytest.param("comand:x", {}, "bad-agent", "did you mean command?", id="typo"),
        pytest.param("command:a && b", {}, "shell-syntax", "'coder': && means", id="and"),
        pytest.param("jsonl:a | b", {}, "shell-syntax", "| means", id="pipe"),
        pytest.param("acp:a; b", {}, "shell-syntax", "; means", id="semicolon"),
        pytest.param("command:a > b", {}, "shell-syntax", "> means", id="redirection"),
        pytest.param("command:a $HOME", {}, "shell-syntax", "$ means", id="variable"),
        pytest.param("command:A=b c", {}, "shell-syntax", "A=b sets a variable", id="assignment"),
        pytest.param(None, {"coder": "command:a && b"}, "shell-syntax", "&& means", id="named"),
        pytest.param(
            None, {"codr": "command:x"}, "unknown-agent", "did you mean coder?", id="name"
        ),
        pytest.param(None, {"zzz": "command:x"}, "unknown-agent", "it has coder", id="other name"),
    ],
)
def test_an_agent_that_cannot_run_is_refused(
    tmp_path: Path, default: str | None, named: dict[str, str], code: str, words: str
) -> None:
    """The refusal names the agent's problem and the fix, before anything starts."""
    with pytest.raises(LoopwrightError) as refused:
        bound(plan(), tmp_path, default, **named)
    assert refused.value.code == code
    assert words in str(refused.value)


def test_a_script_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    """After the permission to read it, so that a server does not say which files exist."""
    made = {name: Agent(spec=f"script:{tmp_path / name}.yaml") for name in ("there", "missing")}
    (tmp_path / "there.yaml").write_text("replies: []")
    check_scripts({"there": made["there"], "coder": Agent(spec="command:cat")})
    with pytest.raises(
        LoopwrightError, match=r"agent 'missing': no file .*missing\.yaml"
    ) as refused:
        check_scripts(made)
    assert refused.value.code == "bad-agent"


@pytest.mark.parametrize("spec", ["command:sh -c 'a && b | c'", "claude", 'jsonl:a "b;c"'])
def test_quoted_signs_of_a_shell_are_arguments(tmp_path: Path, spec: str) -> None:
    """Only what a shell would act on is refused; quoted text is an argument."""
    assert bound(plan(), tmp_path, spec) == {"coder": spec}


@pytest.mark.parametrize(
    ("spec", "more", "words"),
    [
        ("codex", {"tools": ("Read",)}, "agent 'coder': codex works on files by running"),
        ("claude", {"permission": "root"}, "claude knows no permission 'root'"),
        ("acp:x", {"deny_tools": ("mystery",)}, "cannot be confined"),
    ],
)
def test_rights_that_nobody_can_hold_are_refused(
    tmp_path: Path, spec: str, more: dict[str, object], words: str
) -> None:
    """An agent that is given what its program cannot be held to is refused before it runs."""
    agents = {"coder": Agent(spec=spec, **more)}  # type: ignore[arg-type]
    with pytest.raises(LoopwrightError, match=re.escape(words)) as refused:
        bound(plan(agents=agents), tmp_path)
    assert refused.value.code == "bad-agent"


def test_scripts_are_looked_for_where_they_are_named(tmp_path: Path) -> None:
    """A script of the definition lies beside it, one of the command line in the current folder."""
    beside = tmp_path / "def" / "replies.yaml"
    beside.parent.mkdir()
    beside.write_text("replies: []")
    here = tmp_path / "mine.yaml"
    here.write_text("replies: []")
    agents = {"coder": Agent(spec="script:replies.yaml")}
    assert bound(plan(agents=agents), tmp_path) == {"coder": f"script:{beside}"}
    assert bound(plan(agents=agents), tmp_path, "script:mine.yaml") == {"coder": f"script:{here}"}


INPUTS = {"env": Input(), "n": Input(required=False, default=3), "m": Input(required=False)}


def test_inputs_are_what_was_given_and_then_defaults() -> None:
    """Each input of the definition has a value, also one that is empty."""
    assert bind_inputs(plan(inputs=INPUTS), {"env": "prod"}) == {"env": "prod", "n": 3, "m": None}
    assert bind_inputs(plan(inputs=INPUTS), {"env": "", "n": None})["n"] is None


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ({}, "missing-input", "--input env=VALUE"),
        ({"env": 1, "evn": 2}, "unknown-input", "did you mean env?"),
        ({"env": 1, "zzzz": 2}, "unknown-input", "its inputs are "),
    ],
    ids=["missing", "typo", "unknown"],
)
def test_wrong_inputs_are_refused(given: dict[str, object], code: str, words: str) -> None:
    """What is missing and what is unknown are told by name."""
    with pytest.raises(LoopwrightError) as refused:
        bind_inputs(plan(inputs=INPUTS), given)  # type: ignore[arg-type]
    assert refused.value.code == code
    assert words in str(refused.value)


@pytest.mark.item("rondoflow-6", "rondoflow-58")
@pytest.mark.parametrize("message", ["", "  \n\t"], ids=["empty", "blanks"])
def test_an_empty_message_is_refused(message: str) -> None:
    """Somebody who gives a message says something with it, whatever the definition has."""
    for what in (plan(), plan(REVIEW), plan(message=literal("Goal."))):
        with pytest.raises(DefinitionError, match="empty"):
            check_message(what, message)


@pytest.mark.item("rondoflow-6")
def test_a_missing_message_is_refused_where_one_is_needed() -> None:
    """Without message, goal and prompt there would be nothing to ask."""
    loop = plan(Step(id="main", action=Repeat(body=Steps(steps=(REVIEW, CODER)), max=1)))
    for what in (plan(), loop):
        with pytest.raises(DefinitionError, match="no message"):
            check_message(what, None)


@pytest.mark.parametrize(
    "what",
    [
        plan(REVIEW),
        plan(message=literal("Goal.")),
        plan(Step(id="x", action=RunCommand(argv=("true",)))),
    ],
    ids=["own prompt", "goal", "no agent"],
)
def test_a_message_may_be_missing_where_none_is_needed(what: Plan) -> None:
    """A definition that says itself what to do needs no message."""
    assert check_message(what, None) == ""


def test_a_message_is_kept_exactly() -> None:
    """Nothing is trimmed off a message."""
    assert check_message(plan(), "  Do it.\n") == "  Do it.\n"


@pytest.mark.item("zenflow-73")
@pytest.mark.parametrize(
    ("spec", "model", "own"),
    [
        ("claude", "bedrock/anthropic.claude-sonnet-4-6", "claude-sonnet-4-6"),
        ("claude", "anthropic.claude-sonnet-4-6", "anthropic.claude-sonnet-4-6"),
        ("claude", "opus", "opus"),
        ("claude", "gemini-2.5-flash", None),
        ("codex", "azure/gpt-5", "gpt-5"),
        ("codex", "claude-opus-4-6", None),
        ("gemini", "google/gemini-2.5-flash", "gemini-2.5-flash"),
        ("opencode", "bedrock/anthropic.claude-sonnet-4-6", "bedrock/anthropic.claude-sonnet-4-6"),
        ("command:true", "azure/gpt-5", "azure/gpt-5"),
    ],
)
def test_a_model_of_another_vendor_is_left_out(
    tmp_path: Path, spec: str, model: str, own: str | None
) -> None:
    """A program of one vendor is given the names that it knows; the start says what is left out."""
    plan = Plan(name="p", steps=(), agents={"a": Agent(model=model)})
    bound = bind_agents(plan, default=spec, named={}, base=tmp_path, cwd=tmp_path)
    assert bound.agents["a"].model == own
    warned = [one for one in limit_warnings(bound, tmp_path) if "does not have the model" in one]
    assert bool(warned) is (own is None)
