"""The sandbox level of a run: decided once at its start, refused if it cannot be enforced here."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from platformdirs import user_config_path, user_data_path

from loopwright.app.agent_titles import quoted_agent
from loopwright.app.project_files import records_folder
from loopwright.app.settings import PREFIX, Settings
from loopwright.errors import LoopwrightError, NotAllowed
from loopwright.model.access import is_offline
from loopwright.model.actions import Action, Repeat, RunCommand, RunScript, Steps
from loopwright.model.checks import Command, Script, leaves
from loopwright.model.plan import Plan
from loopwright.model.record import JsonValue
from loopwright.model.sandbox import (
    DEFAULT_SANDBOX,
    SandboxLevel,
    command_level,
    effective_level,
    strictest,
)
from loopwright.programs.coding import level_of_cli
from loopwright.programs.files import keep_private
from loopwright.programs.own_programs import own_program_folders
from loopwright.programs.sandbox import INSTALL, Sandbox, SandboxPolicy, works
from loopwright.programs.specs import UNHELD_KINDS, Spec, parse_spec

ALLOW = "allow_unsandboxed"
NOT_CONFINED = "agents run without a sandbox (level `guard` needs bubblewrap): {problem}"
_TOKEN_FILE = "LOOPWRIGHT_TOKEN_FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRules:
    """How the level of a run is decided, and what is refused."""

    default: SandboxLevel = DEFAULT_SANDBOX  # where nobody chose one for the run
    served: bool = False  # by a server, for other people
    allow_unsandboxed: bool = False  # an administrator lets the server run agents without one

    def decide(self, plan: Plan, chosen: SandboxLevel | None = None) -> Plan:
        """The plan with the level of its run: what was chosen for it or is set, or what the
        definition asks for, whichever is stricter.
        """
        level = strictest(chosen or self.default, plan.sandbox)
        least = plan.sandbox_least or plan.sandbox
        return msgspec.structs.replace(plan, sandbox=level, sandbox_least=least)

    def change(self, plan: Plan, chosen: SandboxLevel) -> SandboxLevel:
        """The level of a run from now on, where somebody chooses another one."""
        asked = stricter_level(self.default, chosen) if self.served else chosen
        level = strictest(asked, plan.sandbox_least)
        self.check(msgspec.structs.replace(plan, sandbox=level))
        return level

    def check(self, plan: Plan, *, allow_off: bool = False) -> None:
        """Refuse a plan whose levels cannot be enforced on this machine, before it starts. With
        `allow_off`, an administrator lets its agents run without a sandbox.
        """
        for level, who in _levels(plan):
            if level == "off":
                if not allow_off:
                    self._check_off(who)
                continue
            problem = works()
            if problem is None:
                continue
            if level != "guard":
                raise LoopwrightError(
                    f"{who}: sandbox level `{level}` cannot be enforced here: "
                    + problem.removesuffix(f"; {INSTALL}"),
                    code="no-sandbox",
                    hint=INSTALL,
                )
            if self.served and not self.allow_unsandboxed:
                raise LoopwrightError(
                    f"{who}: this server runs agents in a sandbox only: "
                    + problem.removesuffix(f"; {INSTALL}"),
                    code="no-sandbox",
                    hint=f'{INSTALL}, or set {ALLOW} = "on" in the settings of the server',
                )

    def _check_off(self, who: str) -> None:
        if self.served and not self.allow_unsandboxed:
            raise NotAllowed(
                f"{who}: sandbox level `off` is not allowed on this server",
                code="unsandboxed",
                hint=f'leave it out, or set {ALLOW} = "on" in the settings of the server',
            )


def rules_of(settings: Settings, *, served: bool = False) -> SandboxRules:
    """The rules of a process with these settings."""
    return SandboxRules(
        default=settings.sandbox,
        served=served,
        allow_unsandboxed=settings.allow_unsandboxed == "on",
    )


def policy_of(
    settings: Settings, env: Mapping[str, str] | None = None, *, served: bool = False
) -> SandboxPolicy:
    """What no agent sees, and where its workspace may be in spite of that."""
    token = (os.environ if env is None else env).get(_TOKEN_FILE, "").strip()
    named = (os.environ if env is None else env).get(f"{PREFIX}HOME", "").strip()
    own = [settings.home, user_data_path("loopwright"), user_config_path("loopwright")]
    own += [Path(named).expanduser().absolute()] if named else []
    hidden = (*map(str, own), *([str(Path(token).absolute())] if token else []))
    return SandboxPolicy(
        default=settings.sandbox,
        hidden=tuple(dict.fromkeys(hidden)),
        workspaces=(str(settings.worktrees),),
        artifacts=str(settings.artifacts),
        protected=own_program_folders(),
        records=str(records_folder()),
        fixed_workspaces=served,
        guard_is_optional=not served or settings.allow_unsandboxed == "on",
    )


def keep_files_private(settings: Settings) -> None:
    """Never read files of data directories and of the user's settings for a definition or an agent.
    Before a definition is read, as it may name them.
    """
    keep_private(*policy_of(settings).hidden, records=records_folder())


def stricter_level(own: SandboxLevel, asked: SandboxLevel | None) -> SandboxLevel:
    """The level that somebody elsewhere asks for; refused if it is weaker than our own."""
    if asked is not None and strictest(own, asked) != asked:
        raise NotAllowed(
            f"sandbox level `{asked}` is weaker than `{own}`, which this server has set",
            code="widens",
            hint="leave it out, or start the run on that machine",
        )
    return asked or own


def user_sandbox() -> Sandbox:
    """The sandbox of programs that are started whatever data directory is used: every one that is
    recorded is hidden.
    """
    return Sandbox(policy_of(Settings(home=user_data_path("loopwright"))))


def sandbox_of(settings: Settings) -> Sandbox:
    """The sandbox of a command that starts programs for the person who called it."""
    return Sandbox(policy_of(settings))


def unconfined_note(plan: Plan) -> str | None:
    """One line for a person whose agents run without the sandbox that they should have."""
    if all(level != "guard" for level, _ in _levels(plan)):
        return None
    problem = works()
    return None if problem is None else NOT_CONFINED.format(problem=problem)


def enforced_levels(plan: Plan) -> dict[str, JsonValue]:
    """The levels that programs of a run are started at: of the run, of its commands if they differ,
    and of each agent that is a program.
    """
    commands = command_level(plan.sandbox, plan.settings)
    has_commands = any(_has_commands(step.action) for step in plan.steps)
    shown: dict[str, JsonValue] = {"run": plan.sandbox, "agents": {**agent_levels(plan)}}
    return {**shown, "commands": commands} if has_commands else shown


def agent_levels(plan: Plan) -> dict[str, SandboxLevel]:
    """The level of each agent that is a program."""
    found: dict[str, SandboxLevel] = {}
    for name, agent in plan.agents.items():
        spec = parse_spec(agent.spec or "")
        if not isinstance(spec, Spec) or spec.kind in UNHELD_KINDS:
            continue
        level = effective_level(
            plan.sandbox, requested=agent.sandbox, access=agent.access, offline=is_offline(agent)
        )
        found[name] = level_of_cli(spec.kind, agent, level)
    return found


def _levels(plan: Plan) -> Iterator[tuple[SandboxLevel, str]]:
    """The levels that the programs of a plan are started at, and what they are. The access of a
    role is checked where agents are bound.
    """
    for name, agent in plan.agents.items():
        if _is_program(agent.spec):
            level = effective_level(plan.sandbox, requested=agent.sandbox)
            yield level, quoted_agent(name, plan.agents)
    for step in plan.steps:
        if _has_commands(step.action):
            yield effective_level(command_level(plan.sandbox, plan.settings)), f"step {step.id!r}"


def _is_program(text: str | None) -> bool:
    spec = parse_spec(text or "")
    return isinstance(spec, Spec) and spec.kind not in UNHELD_KINDS


def _has_commands(action: Action) -> bool:
    while isinstance(action, Repeat):
        if any(isinstance(leaf, Command | Script) for leaf in leaves(action.until)):
            return True
        action = action.body
    if isinstance(action, Steps):
        return any(_has_commands(step.action) for step in action.steps)
    return isinstance(action, RunCommand | RunScript)
