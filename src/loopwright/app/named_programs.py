"""The programs that a plan names, and whether the worktree of a run has them."""

import asyncio
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from loopwright.agents.clis.table import CLIS
from loopwright.app.agent_titles import agent_title
from loopwright.app.plugins import PREFIX
from loopwright.errors import LoopwrightError
from loopwright.kernel.facts import Worktree
from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    Origin,
    Repeat,
    Rework,
    RunCommand,
    RunScript,
    Step,
    Steps,
)
from loopwright.model.checks import Command, Goal, Judge, Script, leaves
from loopwright.model.plan import Agent, Plan
from loopwright.ports import Worktrees
from loopwright.programs.environment import CannotStart, resolve_program
from loopwright.programs.specs import Spec, parse_spec


@dataclass(frozen=True, slots=True)
class NamedProgram:
    """A program by its first word, for what it is named, and whether something comes before it."""

    program: str
    what: str
    later: bool
    maybe: bool
    fix: str = ""
    agent: str = ""
    in_first_step: bool = False  # if `later`: nothing but the body of its own loop comes before
    check_of: str = ""  # the step whose loop it checks
    origin: Origin | None = None  # where that step, or the one that it is, was written

    @property
    def title(self) -> str:
        """What it is, with the step of a check."""
        return f"step {self.check_of}: {self.what}" if self.check_of else self.what

    def title_in(self, file: str) -> str:
        """The same with the file of the definition, and the place in it where that is known. An
        agent is left as it is: it may come from elsewhere.
        """
        if not file or not (self.check_of or self.what.startswith("step ")):
            return self.title
        place = f":{self.origin.line}:{self.origin.column}" if self.origin else ""
        return f"{file}{place}: {self.title}"


async def create_worktree(
    worktrees: Worktrees, run: str, plan: Plan, workspace: Path
) -> tuple[Path, Worktree]:
    """Make the worktree of a run. It is removed again if a program that the plan names by a
    relative path is not in it: a worktree has only committed files, and lies elsewhere.
    """
    folder, made = await worktrees.create(run, workspace)
    try:
        await asyncio.to_thread(_check_committed, plan, workspace, partial(_is_program, folder))
    except LoopwrightError:
        await worktrees.discard(made)
        raise
    return folder, made


async def check_worktree(worktrees: Worktrees, plan: Plan, workspace: Path) -> None:
    """Refuse the programs that `create_worktree` would refuse, without making a worktree."""
    paths = [one.program for one in find_programs(plan) if _is_relative(one)]
    found = await worktrees.committed(workspace, paths) if paths else ()
    if found is not None:
        _check_committed(plan, workspace, found.__contains__)


def worktree_warnings(plan: Plan, folder: Path, workspace: Path) -> list[str]:
    """Programs that are in the checkout `workspace` and not in the worktree `folder`, but may be
    created there by an earlier step of the run.
    """
    missing = (
        one
        for one in find_programs(plan)
        if _is_relative(one)
        and not one.maybe
        and _is_program(workspace, one.program)
        and not _is_program(folder, one.program)
    )
    return [f"{one.title}: {_not_committed(one)} (so far)" for one in missing]


def _check_committed(plan: Plan, workspace: Path, is_there: Callable[[str], bool]) -> None:
    for one in find_programs(plan):
        if not _is_relative(one) or one.maybe or is_there(one.program):
            continue
        place = Path(os.path.normpath(workspace.absolute() / one.program))
        if not place.is_relative_to(workspace.absolute()):
            said, hint = f"{one.program} leads out of the worktree", "write its whole path"
        elif one.later and not (one.in_first_step and _is_program(workspace, one.program)):
            continue  # the run may create it
        else:
            said, hint = _not_committed(one), "commit it, or write its whole path"
        raise LoopwrightError(f"{one.title}: {said}", code="no-program", hint=f"{hint}: {place}")


def _not_committed(one: NamedProgram) -> str:
    return f"{one.program} is not in the worktree, which has only committed files"


def _is_relative(one: NamedProgram) -> bool:
    return "/" in one.program and not os.path.isabs(one.program)


def _is_program(folder: Path, program: str) -> bool:
    try:
        resolve_program(program, str(folder), None)
    except CannotStart:
        return False
    return True


def may_come(named: NamedProgram, why: CannotStart, folder: Path) -> bool:
    """Whether the run itself may bring a program before it is needed."""
    if named.maybe:
        return True
    if not named.later or "/" not in named.program or why.problem == "is-a-directory":
        return False
    return (folder / named.program).resolve().is_relative_to(folder.resolve())


def programs_named(plan: Plan) -> list[str]:
    """Everything on this machine that a plan would start: programs, and servers of tools."""
    found = {named.program for named in find_programs(plan)}
    for agent in plan.agents.values():
        if (agent.spec or "").startswith(PREFIX):
            found.add(str(agent.spec))
        servers = agent.options.get("mcp")
        for one in servers if isinstance(servers, list) else ():
            found.add(f"mcp {one.get('server') if isinstance(one, dict) else one}")
    return sorted(found)


def find_programs(plan: Plan) -> Iterator[NamedProgram]:
    agents = plan.agents
    for step in plan.steps:
        yield from _of_step(step, agents, later=False, maybe=False)
    if plan.coordinator is not None:
        name = plan.coordinator.agent
        yield from programs_of_agent(name, agents, later=False, maybe=False)


def _of_step(
    step: Step, agents: Mapping[str, Agent], *, later: bool, maybe: bool
) -> Iterator[NamedProgram]:
    later, maybe = later or bool(step.needs), maybe or step.when is not None
    for one in _of_action(step.action, agents, step.id, later=later, maybe=maybe):
        yield one if one.origin else replace(one, origin=step.origin)


def _of_action(
    action: Action, agents: Mapping[str, Agent], step: str, *, later: bool, maybe: bool
) -> Iterator[NamedProgram]:
    match action:
        case CallAgent(agent=name):
            yield from programs_of_agent(name, agents, later=later, maybe=maybe)
        case AskPerson(on_reject=Rework(agent=name)):
            yield from programs_of_agent(name, agents, later=True, maybe=maybe)
        case RunCommand(argv=(program, *_)):
            yield NamedProgram(program, f"step {step}", later, maybe)
        case RunScript(interpreter=program):
            yield NamedProgram(program, f"step {step}", later, maybe)
        case Repeat(body=body):
            yield from _of_action(body, agents, step, later=later, maybe=maybe)
            for one in _of_checks(action, agents, maybe=maybe):
                name = step if one.what.startswith("check ") else ""
                yield replace(one, in_first_step=not later, check_of=name)
        case Steps(steps=steps):
            for inner in steps:
                yield from _of_step(inner, agents, later=later, maybe=maybe)
        case _:
            return


def _of_checks(loop: Repeat, agents: Mapping[str, Agent], *, maybe: bool) -> Iterator[NamedProgram]:
    """A check is asked after the body of a pass, unless it is asked before the first one too. Where
    a check that cannot be asked ends no loop, a definition may name what is not here.
    """
    later, maybe = not loop.check_first, maybe or loop.broken_after == 0
    for leaf in leaves(loop.until):
        match leaf:
            case Command(argv=(program, *_)):
                yield NamedProgram(program, f"check `{shlex.join(leaf.argv)}`", later, maybe)
            case Script(interpreter=program):
                yield NamedProgram(program, "check script", later, maybe)
            case Judge(agent=name) | Goal(agent=name):
                yield from programs_of_agent(name, agents, later=True, maybe=maybe)
            case _:
                continue


def programs_of_agent(
    name: str, agents: Mapping[str, Agent], *, later: bool, maybe: bool
) -> Iterator[NamedProgram]:
    agent = agents.get(name)
    spec = parse_spec(agent.spec or "") if agent is not None else None
    if not isinstance(spec, Spec):
        return
    if spec.kind in CLIS:
        cli = CLIS[spec.kind]
        yield NamedProgram(cli.name, f"agent {name}", later, maybe, cli.install, agent=name)
    elif spec.kind in ("acp", "command", "jsonl") and spec.argv:
        title = agent_title(name, agents)
        what = f"agent {name}" if title == name else f"agent `{title}`"
        yield NamedProgram(spec.argv[0], what, later, maybe)
