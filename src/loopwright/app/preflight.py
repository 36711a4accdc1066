"""Before a run starts: whether the programs that it names are here.

A missing program is reported before anything is created, not in the first iteration. What the run
itself may still create gives only a warning: a file of the workspace that an earlier step may
write, and a program that only a step with a condition needs.
"""

import asyncio
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from loopwright.agents.clis.arguments import own_variables
from loopwright.agents.clis.table import CLIS
from loopwright.app.agents_found import is_signed_out
from loopwright.app.plugins import PREFIX
from loopwright.app.service import Start
from loopwright.errors import LoopwrightError
from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    Repeat,
    Rework,
    RunCommand,
    RunScript,
    Step,
    Steps,
)
from loopwright.model.checks import Command, Goal, Judge, Script, leaves
from loopwright.model.plan import Agent, Plan
from loopwright.programs.environment import CannotStart, agent_environment, resolve_program
from loopwright.programs.given import handed_on
from loopwright.programs.specs import Spec, parse_spec


@dataclass(frozen=True, slots=True)
class _Named:
    """A program by its first word, for what it is named, and whether something comes before it."""

    program: str
    what: str
    later: bool
    maybe: bool
    fix: str = ""
    agent: str = ""


def preflight(
    start: Start, environment: Mapping[str, str] | None = None, *, checks: str = "check"
) -> list[str]:
    """Refuse a run whose programs are missing; warn about those that the run may still create.
    `checks` is what its check commands are called, such as the option that they were given with.
    """
    env = os.environ if environment is None else environment
    named = [_called(one, checks) for one in _programs(start.plan)]
    warnings = _looked_for(named, start.workspace, env)
    _check_signed_in(named, start, env)
    return warnings


def _called(one: _Named, checks: str) -> _Named:
    is_check = one.what.startswith("check `")
    return replace(one, what=one.what.replace("check", checks, 1)) if is_check else one


def preflight_checks(start: Start, environment: Mapping[str, str] | None = None) -> None:
    """Refuse a run whose check commands cannot be started. Agents are not
    checked: where a server runs them, a person sees why a call failed.
    """
    env = os.environ if environment is None else environment
    named = (one for one in _programs(start.plan) if one.what.startswith("check "))
    _looked_for(named, start.workspace, env)


def preflight_agents(agents: Mapping[str, Agent], workspace: Path, passed: Sequence[str]) -> None:
    """Refuse agents that take the place of others in a run, if their programs are not here or not
    signed in. `passed` names the variables that the run hands on.
    """
    found = [one for name in agents for one in _of_agent(name, agents, later=False, maybe=False)]
    _looked_for(found, workspace, os.environ)
    _SignIn(agents, workspace.absolute(), os.environ, _picked(passed, os.environ)).check(found)


async def check_sign_in(start: Start) -> None:
    """Refuse a run with a coding CLI that is known not to be signed in. The program is asked in a
    thread, so that a server answers others meanwhile.
    """
    named = [one for one in _programs(start.plan) if one.agent]
    if named:
        await asyncio.to_thread(_check_signed_in, named, start, os.environ)


def _check_signed_in(named: Iterable[_Named], start: Start, base: Mapping[str, str]) -> None:
    passed = _picked(start.plan.pass_env, {**base, **start.variables})
    _SignIn(start.plan.agents, start.workspace.absolute(), base, passed).check(named)


def _picked(names: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    return {name: known[name] for name in names if name in known}


@dataclass(frozen=True, slots=True)
class _SignIn:
    """Refuse a coding CLI that is known not to be signed in, before the first iteration fails. Each
    is asked once, in the environment that it will have.
    """

    agents: Mapping[str, Agent]
    workspace: Path
    base: Mapping[str, str]
    passed: Mapping[str, str]
    asked: dict[tuple[object, ...], bool] = field(default_factory=dict)

    def check(self, named: Iterable[_Named]) -> None:
        for one in named:
            if one.agent and not one.maybe:
                self._check(one, self.agents[one.agent])

    def _check(self, named: _Named, agent: Agent) -> None:
        spec = parse_spec(agent.spec or "")
        # Arguments of the author may name a provider or settings that need no sign-in.
        if not isinstance(spec, Spec) or spec.argv or _has_variables(self.workspace):
            return
        cli = CLIS[spec.kind]
        # Variables of the definition may lead the program to settings that start others, and here
        # it runs without a sandbox.
        if not set(agent.env) <= set(cli.credentials):
            return
        handed = handed_on(self.base, agent)
        own = {**own_variables(cli.name, self.base), **self.passed, **handed, **agent.env}
        env = agent_environment(self.base, {**cli.fixed, **own}, {})
        key = (cli.name, *sorted(own.items()))
        if key not in self.asked:
            self.asked[key] = is_signed_out(cli, env)
        if self.asked[key]:
            raise LoopwrightError(
                f"{named.what}: {cli.title} is not signed in",
                code="agent-not-signed-in",
                hint=cli.sign_in,
            )


def _has_variables(workspace: Path) -> bool:
    """Whether a file of variables is there, in which a program may find a key by itself."""
    folders = (workspace, *workspace.parents)
    return any((place / name).is_file() for place in folders for name in (".env", ".gemini/.env"))


def _looked_for(named: Iterable[_Named], workspace: Path, env: Mapping[str, str]) -> list[str]:
    folder = str(workspace.absolute())
    warnings: dict[str, None] = {}
    for one in named:
        try:
            resolve_program(one.program, folder, env.get("PATH"))
        except CannotStart as why:
            words = f"{one.what}: {why.detail.replace('/./', '/')}"
            if not _may_come(one, why, Path(folder)):
                fix = one.fix or _fix(one, why)
                raise LoopwrightError(words, code="no-program", hint=fix) from None
            warnings[f"{words} (so far)"] = None
    return list(warnings)


def _fix(named: _Named, why: CannotStart) -> str | None:
    if why.problem != "program-not-found" or "/" not in named.program:
        return None  # the words have it
    return "a path is taken from the workspace; write the whole path of a program elsewhere"


def _may_come(named: _Named, why: CannotStart, folder: Path) -> bool:
    """Whether the run itself may bring a program before it is needed."""
    if named.maybe:
        return True
    if not named.later or "/" not in named.program or why.problem == "is-a-directory":
        return False
    return (folder / named.program).resolve().is_relative_to(folder.resolve())


# -- what a plan names -----------------------------------------------------------------------------


def programs_named(plan: Plan) -> list[str]:
    """Everything on this machine that a plan would start: programs, and servers of tools."""
    found = {named.program for named in _programs(plan)}
    for agent in plan.agents.values():
        if (agent.spec or "").startswith(PREFIX):
            found.add(str(agent.spec))
        servers = agent.options.get("mcp")
        for one in servers if isinstance(servers, list) else ():
            found.add(f"mcp {one.get('server') if isinstance(one, dict) else one}")
    return sorted(found)


def _programs(plan: Plan) -> Iterator[_Named]:
    agents = plan.agents
    for step in plan.steps:
        yield from _of_step(step, agents, later=False, maybe=False)
    if plan.coordinator is not None:
        name = plan.coordinator.agent
        yield from _of_agent(name, agents, later=False, maybe=False)


def _of_step(
    step: Step, agents: Mapping[str, Agent], *, later: bool, maybe: bool
) -> Iterator[_Named]:
    later, maybe = later or bool(step.needs), maybe or step.when is not None
    yield from _of_action(step.action, agents, f"step {step.id}", later=later, maybe=maybe)


def _of_action(
    action: Action, agents: Mapping[str, Agent], where: str, *, later: bool, maybe: bool
) -> Iterator[_Named]:
    match action:
        case CallAgent(agent=name):
            yield from _of_agent(name, agents, later=later, maybe=maybe)
        case AskPerson(on_reject=Rework(agent=name)):
            yield from _of_agent(name, agents, later=True, maybe=maybe)
        case RunCommand(argv=(program, *_)):
            yield _Named(program, where, later, maybe)
        case RunScript(interpreter=program):
            yield _Named(program, where, later, maybe)
        case Repeat(body=body):
            yield from _of_action(body, agents, where, later=later, maybe=maybe)
            yield from _of_checks(action, agents, maybe=maybe)
        case Steps(steps=steps):
            for step in steps:
                yield from _of_step(step, agents, later=later, maybe=maybe)
        case _:
            return


def _of_checks(loop: Repeat, agents: Mapping[str, Agent], *, maybe: bool) -> Iterator[_Named]:
    """A check is asked after the body of a pass, unless it is asked before the first one too. Where
    a check that cannot be asked ends no loop, a definition may name what is not here.
    """
    later, maybe = not loop.check_first, maybe or loop.broken_after == 0
    for leaf in leaves(loop.until):
        match leaf:
            case Command(argv=(program, *_)):
                yield _Named(program, f"check `{shlex.join(leaf.argv)}`", later, maybe)
            case Script(interpreter=program):
                yield _Named(program, "check script", later, maybe)
            case Judge(agent=name) | Goal(agent=name):
                yield from _of_agent(name, agents, later=True, maybe=maybe)
            case _:
                continue


def _of_agent(
    name: str, agents: Mapping[str, Agent], *, later: bool, maybe: bool
) -> Iterator[_Named]:
    agent = agents.get(name)
    spec = parse_spec(agent.spec or "") if agent is not None else None
    if not isinstance(spec, Spec):
        return
    if spec.kind in CLIS:
        cli = CLIS[spec.kind]
        yield _Named(cli.name, f"agent {name}", later, maybe, cli.install, agent=name)
    elif spec.kind in ("acp", "command", "jsonl") and spec.argv:
        yield _Named(spec.argv[0], f"agent {name}", later, maybe)
