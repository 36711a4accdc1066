"""The sandbox level of a run: who decides it, and what is refused before anything starts."""

from pathlib import Path

import msgspec
import pytest

from loopwright.agents import coding_agents
from loopwright.agents.sandbox.bubblewrap import INSTALL
from loopwright.errors import LoopwrightError, NotAllowed
from loopwright.model.actions import CallAgent, Repeat, Step
from loopwright.model.checks import CommandCheck
from loopwright.model.plan import Agent, Plan
from loopwright.model.sandbox import SandboxLevel
from loopwright.operations import workspace_rules
from loopwright.operations.settings import Settings, SettingsSources, load_settings
from loopwright.operations.workspace_rules import (
    SandboxRules,
    agent_levels,
    policy_of,
    stricter_level,
    unconfined_note,
)

MISSING = f"bwrap is not installed; {INSTALL}"


def plan(
    spec: str = "command:true", *, level: SandboxLevel | None = None, check: bool = False
) -> Plan:
    """A plan with one agent, and a check command if wanted."""
    call = CallAgent(agent="worker")
    action = Repeat(body=call, max=2, until=CommandCheck(argv=("true",))) if check else call
    steps = (Step(id="main", action=action),)
    return Plan(name="p", steps=steps, agents={"worker": Agent(spec=spec)}, sandbox=level)


@pytest.mark.item("bnd-l1")
@pytest.mark.parametrize(
    ("default", "chosen", "asked", "level"),
    [
        ("guard", None, None, "guard"),
        ("guard", "off", None, "off"),
        ("workspace", "guard", None, "guard"),
        ("off", None, "readonly", "readonly"),
        ("guard", "off", "workspace", "workspace"),
        ("guard", "none", "workspace", "none"),
    ],
)
def test_the_level_of_a_run(
    default: SandboxLevel,
    chosen: SandboxLevel | None,
    asked: SandboxLevel | None,
    level: SandboxLevel,
) -> None:
    """An option replaces the setting; the definition can only be stricter."""
    decided = SandboxRules(default=default).decide(plan(level=asked), chosen)
    assert decided.sandbox == level
    assert SandboxRules(default=default).decide(decided).sandbox in (level, default)


@pytest.mark.item("bnd-l1")
def test_another_level_for_a_resumed_run_keeps_that_of_the_definition() -> None:
    """Whoever resumes a run may choose again, but not less than the definition asks for."""
    rules = SandboxRules()
    assert rules.change(rules.decide(plan("script:x"), "readonly"), "off") == "off"
    held = rules.decide(plan("script:x", level="workspace"), "none")
    assert (held.sandbox, rules.change(held, "off")) == ("none", "workspace")
    same = rules.decide(plan("script:x", level="workspace"), "workspace")
    assert rules.change(same, "off") == "workspace"


@pytest.mark.item("bnd-l4")
@pytest.mark.parametrize(
    ("level", "served", "allowed", "code"),
    [
        ("guard", False, False, None),
        ("guard", True, False, "no-sandbox"),
        ("guard", True, True, None),
        ("workspace", False, True, "no-sandbox"),
        ("readonly", False, True, "no-sandbox"),
        ("none", True, True, "no-sandbox"),
        ("off", False, False, None),
        ("off", True, False, "unsandboxed"),
        ("off", True, True, None),
    ],
)
@pytest.mark.parametrize("check", [False, True], ids=["agent", "command"])
def test_what_is_refused_without_bubblewrap(
    monkeypatch: pytest.MonkeyPatch,
    level: SandboxLevel,
    served: bool,
    allowed: bool,
    code: str | None,
    check: bool,
) -> None:
    """Programs are not started at a level that cannot be enforced; `guard` has an exception."""
    monkeypatch.setattr(workspace_rules, "works", lambda: MISSING)
    rules = SandboxRules(served=served, allow_unsandboxed=allowed)
    what = plan("script:x.yaml" if check else "command:true", level=level, check=check)
    if code is None:
        rules.check(what)
        return
    with pytest.raises(LoopwrightError) as refused:
        rules.check(what)
    assert refused.value.code == code
    assert refused.value.hint
    if refused.value.hint.startswith(INSTALL):  # the remedy is in the hint alone
        assert INSTALL not in refused.value.message


@pytest.mark.item("bnd-l4")
def test_a_run_without_programs_needs_no_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers from a file start nothing, so nothing has to be confined and nobody is warned."""
    monkeypatch.setattr(workspace_rules, "works", lambda: MISSING)
    what = plan("script:x.yaml", level="none")
    SandboxRules(served=True).check(what)
    assert unconfined_note(plan("script:x.yaml", level="guard")) is None
    assert MISSING in (unconfined_note(plan(level="guard")) or "")


@pytest.mark.item("bnd-l1")
@pytest.mark.parametrize("asked", ["off", "guard"])
def test_nobody_elsewhere_asks_for_a_weaker_level(asked: SandboxLevel) -> None:
    """A request can only be stricter than what the server has set."""
    with pytest.raises(NotAllowed, match="weaker"):
        stricter_level("workspace", asked)
    assert stricter_level("workspace", "none") == "none"
    assert stricter_level("workspace", None) == "workspace"


@pytest.mark.item("bnd-l3")
def test_what_no_agent_sees(tmp_path: Path) -> None:
    """The data directory, also the usual one, the settings and a file with a token."""
    token = tmp_path / "token"
    policy = policy_of(Settings(home=tmp_path / "data"), {"LOOPWRIGHT_TOKEN_FILE": str(token)})
    assert {str(tmp_path / "data"), str(token)} < set(policy.hidden)
    assert len(policy.hidden) == 4
    assert policy.workspaces == (str(tmp_path / "data" / "worktrees"),)


@pytest.mark.item("bnd-l1")
@pytest.mark.parametrize(
    ("env", "project", "own", "level", "warned"),
    [
        ({}, "", "", "guard", False),
        ({}, 'sandbox = "off"', "", "guard", True),
        ({}, 'sandbox = "readonly"', "", "readonly", False),
        ({}, 'sandbox = "guard"', 'sandbox = "workspace"', "workspace", True),
        ({}, "", 'sandbox = "off"', "off", False),
        ({}, 'sandbox = "none"', 'sandbox = "off"', "none", False),
        ({"LOOPWRIGHT_SANDBOX": "off"}, 'sandbox = "none"', "", "off", False),
        ({}, 'allow_unsandboxed = "on"', "", "guard", True),
    ],
)
def test_a_project_cannot_loosen_the_sandbox(
    tmp_path: Path, env: dict[str, str], project: str, own: str, level: str, warned: bool
) -> None:
    """An agent may have written its files; what is ignored is said."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "loopwright.toml").write_text(project)
    user = tmp_path / "config.toml"
    user.write_text(own)
    found = load_settings(place=SettingsSources(env=env, cwd=tmp_path / "project", user_file=user))
    assert found.settings.sandbox == level
    assert found.settings.allow_unsandboxed == "off"
    assert any("is ignored" in one for one in found.warnings) is warned


@pytest.mark.item("bnd-l10")
def test_the_levels_that_a_run_shows_are_those_that_its_programs_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Offline agents, roles and coding CLIs whose own sandbox is left out are named by theirs."""
    monkeypatch.setattr(coding_agents, "works", lambda: None)
    monkeypatch.setattr(coding_agents.os, "geteuid", lambda: 0)
    agents = {
        "plain": Agent(spec="command:cat"),
        "offline": Agent(spec="command:cat", options={"network": "none"}),
        "strict": Agent(spec="claude", sandbox="readonly"),
        "codex": Agent(spec="codex"),
        "model": Agent(spec="model:openai/gpt-5"),
    }
    made = Plan(name="p", steps=(), agents=agents, sandbox="guard")
    levels = {"plain": "guard", "offline": "guard", "strict": "readonly", "codex": "workspace"}
    assert agent_levels(made) == levels
    assert agent_levels(msgspec.structs.replace(made, sandbox="off"))["codex"] == "off"
