"""Before a run starts: whether the programs that it names are here.

A missing program is reported before anything is created, not in the first iteration. What the run
itself may still create gives only a warning: a file of the workspace that an earlier step may
write, and a program that only a step with a condition needs.
"""

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from loopwright.agents.clis.arguments import own_variables
from loopwright.agents.clis.table import CLIS
from loopwright.app.agents_found import is_signed_out
from loopwright.app.named_programs import (
    NamedProgram,
    find_programs,
    may_come,
    programs_of_agent,
)
from loopwright.app.run_request import Start
from loopwright.errors import LoopwrightError
from loopwright.model.plan import Agent, Plan
from loopwright.programs.environment import (
    CannotStart,
    agent_environment,
    find_shadowed,
    resolve_program,
)
from loopwright.programs.given import handed_on
from loopwright.programs.specs import Spec, parse_spec


def preflight(
    start: Start, environment: Mapping[str, str] | None = None, *, checks: str = "check"
) -> list[str]:
    """Refuse a run whose programs are missing; warn about those that the run may still create.
    `checks` is what its check commands are called, such as the option that they were given with.
    """
    env = os.environ if environment is None else environment
    named = [_called(one, checks) for one in find_programs(start.plan)]
    warnings = _looked_for(named, start.workspace, env, file=start.file)
    _check_signed_in(named, start, env)
    return warnings


def dry_run_warnings(
    start: Start, environment: Mapping[str, str] | None = None, *, checks: str = "check"
) -> list[str]:
    """The warnings of `preflight`, and what it would refuse as a warning too."""
    env = os.environ if environment is None else environment
    named = [_called(one, checks) for one in find_programs(start.plan)]
    return _looked_for(named, start.workspace, env, file=start.file, refuse=False)


def shadow_warnings(
    start: Start, environment: Mapping[str, str] | None = None, *, checks: str = "check"
) -> list[str]:
    """Programs that are not the ones that a shell would run: those of the workspace are not looked
    up, since an agent could put its own there.
    """
    env = os.environ if environment is None else environment
    folder, found = str(start.workspace.absolute()), dict[str, None]()
    for one in find_programs(start.plan):
        shadowed = find_shadowed(one.program, folder, env.get("PATH"))
        if shadowed is not None:
            mine, taken = shadowed
            what, path = _called(one, checks).what, _short(mine, folder)
            words = (
                f"{what} runs {taken}, and not {mine}, which is first on PATH: bare names are not "
                f"looked up in the workspace; write {path} to run that one"
            )
            found[words] = None
    return list(found)


def _short(file: str, folder: str) -> str:
    """The path as it is written in a command."""
    short = os.path.relpath(file, folder)
    if short.startswith(".."):
        return file
    return short if "/" in short else f"./{short}"


def _called(one: NamedProgram, checks: str) -> NamedProgram:
    """The program by the option that it was given with, which says where it is from."""
    if checks == "check" or not one.what.startswith("check `"):
        return one
    return replace(one, what=one.what.replace("check", checks, 1), check_of="")


def preflight_checks(start: Start, environment: Mapping[str, str] | None = None) -> None:
    """Refuse a run whose check commands cannot be started. Agents are not
    checked: where a server runs them, a person sees why a call failed.
    """
    env = os.environ if environment is None else environment
    named = (one for one in find_programs(start.plan) if one.what.startswith("check "))
    _looked_for(named, start.workspace, env, file=start.file)


def preflight_agents(agents: Mapping[str, Agent], workspace: Path, passed: Sequence[str]) -> None:
    """Refuse agents that take the place of others in a run, if their programs are not here or not
    signed in. `passed` names the variables that the run hands on.
    """
    found = [
        one for name in agents for one in programs_of_agent(name, agents, later=False, maybe=False)
    ]
    _looked_for(found, workspace, os.environ)
    _SignIn(agents, workspace.absolute(), os.environ, _picked(passed, os.environ)).check(found)


def missing_programs(plan: Plan, workspace: Path) -> list[str]:
    """What a plan names that is not installed on this machine. Paths are left out: what they lead
    to depends on the workspace of a run.
    """
    folder, path = str(workspace.absolute()), os.environ.get("PATH")
    found: dict[str, None] = {}
    for one in find_programs(plan):
        if "/" in one.program:
            continue
        try:
            resolve_program(one.program, folder, path)
        except CannotStart as why:
            found[f"{one.title}: {why.detail}"] = None
    return list(found)


async def check_sign_in(start: Start) -> None:
    """Refuse a run with a coding CLI that is known not to be signed in. The program is asked in a
    thread, so that a server answers others meanwhile.
    """
    named = [one for one in find_programs(start.plan) if one.agent]
    if named:
        await asyncio.to_thread(_check_signed_in, named, start, os.environ)


def _check_signed_in(named: Iterable[NamedProgram], start: Start, base: Mapping[str, str]) -> None:
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

    def check(self, named: Iterable[NamedProgram]) -> None:
        for one in named:
            if one.agent and not one.maybe:
                self._check(one, self.agents[one.agent])

    def _check(self, named: NamedProgram, agent: Agent) -> None:
        spec = parse_spec(agent.spec or "")
        # Arguments of the author may name a provider or settings that need no sign-in.
        if not isinstance(spec, Spec) or spec.argv or _has_variables(self.workspace):
            return
        cli = CLIS[spec.kind]
        # Variables of the definition may lead the program to settings that start others, and where
        # bubblewrap does not work it is asked without a sandbox.
        if not set(agent.env) <= set(cli.credentials):
            return
        handed = handed_on(self.base, agent)
        own = {**own_variables(cli.name, self.base), **self.passed, **handed, **agent.env}
        env = agent_environment(self.base, {**cli.fixed, **own}, {})
        key = (cli.name, *sorted(own.items()))
        if key not in self.asked:
            self.asked[key] = is_signed_out(cli, env, str(self.workspace))
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


def _looked_for(
    named: Iterable[NamedProgram],
    workspace: Path,
    env: Mapping[str, str],
    *,
    file: str = "",
    refuse: bool = True,
) -> list[str]:
    folder = str(workspace.absolute())
    warnings: dict[str, None] = {}
    for one in named:
        try:
            resolve_program(one.program, folder, env.get("PATH"))
        except CannotStart as why:
            words = f"{one.title_in(file)}: {why.detail.replace('/./', '/')}"
            if may_come(one, why, Path(folder)):
                warnings[f"{words} (so far)"] = None
            elif not refuse:
                warnings[f"{words}; the run would not start"] = None
            else:
                fix = one.fix or _fix(one, why)
                raise LoopwrightError(words, code="no-program", hint=fix) from None
    return list(warnings)


def _fix(named: NamedProgram, why: CannotStart) -> str | None:
    if why.problem != "program-not-found" or "/" not in named.program:
        return None  # the words have it
    return "a path is taken from the workspace; write the whole path of a program elsewhere"
