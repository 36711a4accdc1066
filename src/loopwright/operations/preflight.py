"""Checks before a run starts: its programs, the process that drives it, and this machine.

A missing program is reported before anything is created, not in the first iteration. A file
that an earlier step may create, or a program of a conditional step, gives only a warning. A
loop is not created if no process would drive it. The pulse records when background loops of the
server last ran. Leftover processes and clock changes are detected without changing anything.
"""

import asyncio
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from loopwright.agents.calls import passed_on_variables
from loopwright.agents.clis.catalogue import CLIS
from loopwright.agents.clis.command_line import own_variables
from loopwright.agents.program_files import (
    CannotStart,
    agent_environment,
    find_shadowed,
    resolve_program,
)
from loopwright.agents.specs import Spec, parse_spec
from loopwright.engine.driver import LocalDriver
from loopwright.errors import Conflict, LoopwrightError
from loopwright.model.plan import Agent, Plan
from loopwright.operations.agents.programs import (
    NamedProgram,
    find_programs,
    is_signed_out,
    may_come,
    programs_of_agent,
)
from loopwright.operations.run_request import RunStart
from loopwright.ports import EventLog
from loopwright.views.event_records import timestamp


def preflight(
    start: RunStart, environment: Mapping[str, str] | None = None, *, checks: str = "check"
) -> list[str]:
    """Refuse a run whose programs are missing; warn about those that the run may still create.
    `checks` is what its check commands are called, such as the option that they were given with.
    """
    start.check_workspace()
    env = os.environ if environment is None else environment
    named = [_called(one, checks) for one in find_programs(start.plan)]
    warnings = _looked_for(named, start.workspace, env, file=start.file)
    _check_signed_in(named, start, env)
    return warnings


def dry_run_warnings(
    start: RunStart, environment: Mapping[str, str] | None = None, *, checks: str = "check"
) -> list[str]:
    """The warnings of `preflight`, and what it would refuse as a warning too."""
    env = os.environ if environment is None else environment
    named = [_called(one, checks) for one in find_programs(start.plan)]
    return _looked_for(named, start.workspace, env, file=start.file, refuse=False)


def shadow_warnings(
    start: RunStart, environment: Mapping[str, str] | None = None, *, checks: str = "check"
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


async def check_programs(start: RunStart) -> None:
    """Refuse a run if a program of an agent or a check is missing, or a coding CLI is known not to
    be signed in. What `preflight` only warns about may fail in the run. This happens in a thread,
    so that a server answers others meanwhile.
    """
    await asyncio.to_thread(preflight, start)


def preflight_agents(agents: Mapping[str, Agent], workspace: Path, passed: Sequence[str]) -> None:
    """Refuse agents that take the place of others in a run, if their programs are not here or not
    signed in. `passed` names the variables that the run passes on.
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


def _check_signed_in(
    named: Iterable[NamedProgram], start: RunStart, base: Mapping[str, str]
) -> None:
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
        handed = passed_on_variables(self.base, agent)
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
    return "a path is taken from the workspace; for another program write its whole path"


STALE_MS = 15_000
YOUNG_MS = 10_000

TASKS = "tasks"  # the thread that performs and records: it sends heartbeats when it has time
LOOPS = "loops"  # takes up runs that no process drives


@dataclass(slots=True)
class Pulse:
    """When each of them last went round."""

    began: int
    beats: dict[str, int] = field(default_factory=dict)

    def beat(self, name: str, now: int) -> None:
        self.beats[name] = now

    def is_ready(self, name: str, now: int) -> bool:
        """Whether it went round lately, or is too young to have."""
        last = self.beats.get(name)
        if last is None:
            return now - self.began < YOUNG_MS
        return now - last <= STALE_MS


def fingerprint(place: Path) -> str:
    """A name for a folder that tells two apart and does not say where they are."""
    return hashlib.sha256(str(place.resolve()).encode()).hexdigest()[:16]


def check_worker(driver: LocalDriver, workspace: Path, now: int) -> None:
    """Refuse a start in this process unless its worker lives and the workspace is there."""
    if driver.is_closed:
        raise _refusal("the worker of this process has been closed")
    if now - driver.looked_at > STALE_MS:
        silent = (now - driver.looked_at) // 1_000
        raise _refusal(f"the worker of this process has not responded for {silent} s")
    if not workspace.is_dir():
        raise _refusal(f"the workspace {workspace} is not there")


def check_health(answer: object, url: str) -> None:
    """Refuse a start at a server whose health says that loops would not move. A server that does
    not tell is believed.
    """
    health = answer if isinstance(answer, Mapping) else {}
    if health.get("status", "ok") != "ok":
        raise _refusal(f"{url} says that it is {health['status']}")
    managers = health.get("managers")
    for name, one in managers.items() if isinstance(managers, Mapping) else ():
        if isinstance(one, Mapping) and one.get("ready") is False:
            last = one.get("last_tick_at") or "its start"
            raise _refusal(f"{url}: its {name} have not moved since {last}")


def _refusal(why: str) -> Conflict:
    return Conflict(
        f"nothing was started: {why}",
        code="no-worker",
        hint="start it again (`loopwright mcp`, `loopwright repl`, `loopwright serve`), then retry",
    )


NEWEST = 20  # runs that are compared
AHEAD_MS = 300_000
LONG_MS = 300 * 86_400_000
CLOCK_FIX = "if that surprises you, set the clock: time limits, tokens and signatures depend on it"


def clock_problem(log: EventLog, now_ms: int) -> str:
    """What of the times that were recorded does not fit this clock; empty when they all do."""
    newest = max((row.headline.updated_at for row in log.rows(limit=NEWEST)), default=None)
    if newest is None:
        return ""
    if newest > now_ms + AHEAD_MS:
        return (
            f"the clock says {timestamp(now_ms)}, and the newest record is of {timestamp(newest)}"
        )
    if newest < now_ms - LONG_MS:
        days = (now_ms - newest) // 86_400_000
        return f"by the clock nothing was recorded for {days} days, since {timestamp(newest)}"
    return ""


def jump_words(jump_ms: int) -> str:
    """A jump of the clock while a process lives, for a log."""
    where = "forward" if jump_ms > 0 else "back"
    return (
        f"the clock of this machine was set {where} by {abs(jump_ms) // 1_000} seconds; times and "
        "limits here are not adjusted until the next start"
    )
