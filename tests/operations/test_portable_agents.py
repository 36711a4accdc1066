"""Providers, models and options that a machine may not have: mapped, replaced, or named."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from loopwright.agents.clis.command_line import CommandLineRequest, command_line
from loopwright.errors import LoopwrightError
from loopwright.model.plan import Agent, Plan
from loopwright.operations.agents.backends import Fallback, bind_agents
from loopwright.operations.agents.permissions import unsupported_options
from loopwright.operations.settings import SettingsSources, load_settings
from tests.dialects.archon.reading import flow, lowered


def plan_of(head: str, node: str = "prompt: Go") -> Plan:
    plan, _ = lowered(flow(f"{{id: a, {node}}}", head=head))
    assert plan is not None
    return plan


def bound(
    head: str,
    *,
    default: str | None = None,
    models: Mapping[str, str] | None = None,
    agent: str | None = None,
) -> Agent:
    here = Path.cwd()
    fallback = Fallback(agent, models or {})
    plan = bind_agents(
        plan_of(head), default=default, named={}, base=here, cwd=here, fallback=fallback
    )
    return plan.agents["assistant"]


@pytest.mark.item("archon-72")
@pytest.mark.parametrize(
    ("head", "models", "spec", "model"),
    [
        ("provider: claude\nmodel: small", {}, "claude", "haiku"),
        ("provider: claude\nmodel: large", {}, "claude", "opus"),
        ("provider: codex\nmodel: medium", {}, "codex", None),
        ("provider: claude\nmodel: small", {"small": "codex"}, "codex", None),
        ("provider: pi\nmodel: x/y", {"pi": "claude"}, "claude", "x/y"),
        ("provider: pi\nmodel: x", {"pi/x": "codex", "pi": "claude"}, "codex", "x"),
        ('model: "@fast"', {"@fast": "gemini"}, "gemini", None),
    ],
)
def test_settings_map_tiers_aliases_and_providers(
    head: str, models: dict[str, str], spec: str, model: str | None
) -> None:
    """What the settings map, they decide; claude has models for the tiers."""
    made = bound(head, models=models)
    assert (made.spec, made.model) == (spec, model)


@pytest.mark.item("archon-72")
@pytest.mark.parametrize(
    ("head", "words"),
    [("provider: pi", "the provider 'pi'"), ('model: "@fast"', "the model alias @fast")],
)
def test_a_run_names_what_is_missing(head: str, words: str) -> None:
    """The error names the agent and what it lacks, and the hint says what to do."""
    with pytest.raises(LoopwrightError, match=words) as caught:
        bound(head)
    assert "assistant" in caught.value.message
    assert "--agent" in (caught.value.hint or "")
    assert "[models]" in (caught.value.hint or "")


@pytest.mark.item("archon-72")
@pytest.mark.parametrize("head", ["provider: pi\nmodel: large", 'model: "@fast"', "model: small"])
def test_a_chosen_agent_replaces_what_the_file_says(head: str) -> None:
    """A tier or an alias is not a model of the agent that a run is given."""
    made = bound(head, default="command:cat")
    assert (made.spec, made.model) == ("command:cat", None)


@pytest.mark.item("archon-72")
def test_models_are_read_from_the_settings(tmp_path: Path) -> None:
    """A table of agents; a program is refused, since a file of a project may be an agent's."""
    (tmp_path / "loopwright.toml").write_text('[models]\nsmall = "codex"\n"@fast" = "claude"\n')
    place = SettingsSources(env={}, cwd=tmp_path, user_file=tmp_path / "none.toml")
    assert load_settings(place=place).settings.models == {"small": "codex", "@fast": "claude"}
    (tmp_path / "loopwright.toml").write_text('[models]\nsmall = "command:./evil"\n')
    with pytest.raises(LoopwrightError, match=r"models\.small"):
        load_settings(place=place)


@pytest.mark.item("archon-73")
def test_claude_gets_the_options_of_a_node() -> None:
    """Hooks print their fixed answers, servers and agents are given as JSON."""
    hooks = {"PreToolUse": [{"matcher": "Write", "response": {"decision": "it's no"}}]}
    options = {
        "mcp": {"files": {"command": "mcp-files"}},
        "hooks": hooks,
        "agents": {"brief": {"description": "d", "prompt": "p"}},
        "fallbackModel": "haiku",
        "betas": ["b1"],
    }
    agent = Agent(spec="claude", options=options)  # type: ignore[arg-type]
    argv = command_line("claude", CommandLineRequest(prompt="Go", agent=agent)).argv
    assert '{"mcpServers":{"files":{"command":"mcp-files"}}}' in argv
    assert argv[argv.index("--fallback-model") + 1] == "haiku"
    assert argv[argv.index("--betas") + 1] == "b1"
    settings = argv[argv.index("--settings") + 1]
    assert '"matcher":"Write"' in settings
    assert "printf %s '{" in settings
    assert "brief" in argv[argv.index("--agents") + 1]


@pytest.mark.item("archon-73")
def test_options_that_an_agent_does_not_use_are_named() -> None:
    """A run warns about each agent, with its program and the options."""
    node = "prompt: Go, skills: [a], hooks: {Stop: []}, allowed_tools: [Read]"
    written = plan_of("provider: claude", node)
    here = Path.cwd()
    for spec, unused in (
        ("claude", ["skills"]),
        ("codex", ["skills, hooks, allowed_tools"]),
        ("command:cat", ["skills, hooks"]),
    ):
        made = bind_agents(written, default=spec, named={}, base=here, cwd=here)
        kind = spec.partition(":")[0]
        expected = [f"agent a ({kind}) does not use: {words}" for words in unused]
        assert unsupported_options(written, made) == expected
