"""Programs of agents: those that a plan names, plugins, and the coding CLIs on this machine.

Plugins are agents that other distributions provide with entry points of the group
`loopwright.agents`. An entry point names an object with `API = 1`, `ARGV` (the program and its
arguments) and optionally `SPEAKS` (`text`, `jsonl` or `acp`); the agent is `plugin:NAME`. Its
command line is copied into the run at the start, so the run does not need the plugin later. A
plugin that cannot be loaded is disabled, with the reason, and does not affect others.

The version and sign-in status of a coding CLI come from the CLI itself, at no cost.
"""

import asyncio
import os
import re
import shlex
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, assert_never

import msgspec

from loopwright.agents.clis.catalogue import CLIS, Cli, own_places
from loopwright.agents.clis.loose_json import at, text
from loopwright.agents.processes.process import ProgramStart
from loopwright.agents.program_files import CannotStart, resolve_program
from loopwright.agents.sandbox.bubblewrap import Confinement, works
from loopwright.agents.specs import Spec, parse_spec
from loopwright.errors import LoopwrightError
from loopwright.kernel.event_parts import Worktree
from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    FailStep,
    ModelCycle,
    Origin,
    Repeat,
    Rework,
    RunCommand,
    RunScript,
    Step,
    Steps,
    StopRun,
    Wait,
)
from loopwright.model.checks import (
    Approval,
    Cap,
    CommandCheck,
    Contains,
    Expr,
    Goal,
    Judge,
    NoCalls,
    OutputSchema,
    PersonCheck,
    Regex,
    ResultField,
    ResultPath,
    ScriptCheck,
    Signal,
    SpendCheck,
    ToolResultCheck,
    leaves,
)
from loopwright.model.plan import Agent, Plan
from loopwright.model.sandbox import SandboxLevel
from loopwright.operations.workspace_rules import user_sandbox
from loopwright.ports import Worktrees
from loopwright.views.formats import agent_title

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "loopwright.agents"
API = 1
PREFIX = "plugin:"
_KINDS = {"text": "command", "jsonl": "jsonl", "acp": "acp"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """An agent of another distribution, or why there is none of this name."""

    name: str
    origin: str
    spec: str = ""
    problem: str = ""


def plugins() -> list[Plugin]:
    """Every plugin that is installed, each looked at by itself."""
    return list(_all())


def plugin_spec(text: str) -> str:
    """The spec that `plugin:NAME ARG…` is replaced by."""
    name, _, rest = text.removeprefix(PREFIX).strip().partition(" ")
    known = _points()
    if name not in known:
        near = get_close_matches(name, known, n=1)
        there = ", ".join(sorted(known)) or "none is installed"
        hint = f"did you mean {near[0]}?" if near else f"there are: {there}"
        raise LoopwrightError(f"no plugin {name!r}", code="no-plugin", hint=hint)
    found = _loaded(known[name])
    if found.problem:
        raise LoopwrightError(
            f"plugin {name!r} is off: {found.problem}",
            code="plugin-off",
            hint=f"fix or remove {found.origin}; `loopwright doctor` checks all of them",
        )
    return f"{found.spec} {rest}".strip()


def _all() -> Iterator[Plugin]:
    for _, point in sorted(_points().items()):
        yield _loaded(point)


def _points() -> "dict[str, EntryPoint]":
    from importlib.metadata import entry_points  # noqa: PLC0415 - takes time to load

    return {point.name: point for point in entry_points(group=GROUP)}


def _loaded(point: "EntryPoint") -> Plugin:
    origin = point.dist.name if point.dist is not None else point.value
    try:
        spec = _spec_of(point.load())
    except (Exception, SystemExit) as error:  # whatever it does, it is the plugin alone that is off
        why = f"{type(error).__name__}: {error}".rstrip(": ")
        return Plugin(name=point.name, origin=origin, problem=why[:300])
    return Plugin(name=point.name, origin=origin, spec=spec)


def _spec_of(found: object) -> str:
    api = getattr(found, "API", None)
    if api != API:
        raise LoopwrightError(f"it is made for API {api!r}, and this version has API {API}")
    argv = getattr(found, "ARGV", None)
    if not isinstance(argv, list | tuple) or not argv or not all(map(_is_word, argv)):
        raise LoopwrightError("its ARGV is not a list of texts")
    speaks = getattr(found, "SPEAKS", "text")
    if speaks not in _KINDS:
        raise LoopwrightError(f"it speaks {speaks!r}, and not one of {', '.join(_KINDS)}")
    return f"{_KINDS[speaks]}:{shlex.join(argv)}"


def _is_word(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value and bool(value)


@dataclass(frozen=True, slots=True)
class NamedProgram:
    """A program by its first word, for what it is named, and whether something comes before it."""

    program: str
    what: str
    later: bool
    maybe: bool
    fix: str = ""
    agent: str = ""
    in_first_step: bool = False  # if `later`: only the body of its own loop comes before
    check_of: str = ""  # the step whose loop it checks
    origin: Origin | None = None  # where that step, or the one that it is, was written

    @property
    def title(self) -> str:
        """What it is, with the step of a check."""
        return f"step {self.check_of}: {self.what}" if self.check_of else self.what

    def title_in(self, file: str) -> str:
        """The same with the file of the definition, and the place in it where that is known. An
        agent is left as it is: it may be another file.
        """
        if not file or not (self.check_of or self.what.startswith("step ")):
            return self.title
        place = f":{self.origin.line}:{self.origin.column}" if self.origin else ""
        return f"{file}{place}: {self.title}"


async def create_worktree(
    worktrees: Worktrees, run: str, plan: Plan, workspace: Path
) -> tuple[Path, Worktree]:
    """Make the worktree of a run. It is removed again if a program that the plan names by a
    relative path is not in it: a worktree has only committed files, and is in another folder.
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
            answer, hint = f"{one.program} leads out of the worktree", "write its whole path"
        elif one.later and not (one.in_first_step and _is_program(workspace, one.program)):
            continue  # the run may create it
        else:
            answer, hint = _not_committed(one), "commit it, or write its whole path"
        raise LoopwrightError(f"{one.title}: {answer}", code="no-program", hint=f"{hint}: {place}")


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
        case RunCommand() | AskPerson() | ModelCycle() | Wait() | StopRun() | FailStep():
            return
        case _:
            assert_never(action)


def _of_checks(loop: Repeat, agents: Mapping[str, Agent], *, maybe: bool) -> Iterator[NamedProgram]:
    """A check is asked after the body of an iteration, unless it is asked before the first one too.
    Where a check that cannot be asked ends no loop, a definition may name what is not here.
    """
    later, maybe = not loop.check_first, maybe or loop.broken_after == 0
    for leaf in leaves(loop.until):
        match leaf:
            case CommandCheck(argv=(program, *_)):
                yield NamedProgram(program, f"check `{shlex.join(leaf.argv)}`", later, maybe)
            case ScriptCheck(interpreter=program):
                yield NamedProgram(program, "check script", later, maybe)
            case Judge(agent=name) | Goal(agent=name):
                yield from programs_of_agent(name, agents, later=True, maybe=maybe)
            case CommandCheck() | Cap() | Regex() | Contains() | Signal() | OutputSchema():
                continue
            case Expr() | ResultField() | ResultPath() | Approval() | PersonCheck():
                continue
            case ToolResultCheck() | NoCalls() | SpendCheck():
                continue
            case _:
                assert_never(leaf)


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


ASK_SECONDS = 40.0

SignedIn = Literal["yes", "no", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCli:
    """A coding CLI as it is found here."""

    cli: Cli
    path: str | None = None
    version: str = ""
    signed_in: SignedIn = "unknown"
    by: str = ""

    @property
    def state(self) -> Literal["ok", "none", "warn"]:
        if self.path is None:
            return "none"
        return "warn" if self.signed_in == "no" or not self.version else "ok"

    @property
    def why(self) -> str:
        if self.path is None:
            return "not installed"
        if not self.version:
            return f"{self.path} does not tell its version"
        words = {"yes": "signed in", "no": "not signed in", "unknown": "sign-in not known"}
        by = f" ({self.by})" if self.by else ""
        return f"{self.cli.title} {self.version}, {words[self.signed_in]}{by}"

    @property
    def fix(self) -> str:
        if self.path is None:
            return f"only if you want to use it: {self.cli.install}"
        if not self.version:
            return f"try `{self.cli.name} --version`; {self.cli.install}"
        return "" if self.signed_in == "yes" else self.cli.sign_in


def look(environment: Mapping[str, str] | None = None) -> Iterator[FoundCli]:
    """All of them, asked at the same time."""
    env = os.environ if environment is None else environment
    with ThreadPoolExecutor(max_workers=len(CLIS)) as pool:
        yield from pool.map(lambda cli: _found(cli, env), CLIS.values())


def _found(cli: Cli, env: Mapping[str, str]) -> FoundCli:
    path = _find(cli, env, os.getcwd())
    if path is None:
        return FoundCli(cli=cli)
    answer = _run_cli(cli, env, path, "--version")
    version = (
        re.search(r"\d+\.\d+\S*", answer[1]) if answer is not None and answer[0] == 0 else None
    )
    if version is None:
        return FoundCli(cli=cli, path=path)
    signed_in, by = _signed_in(cli, path, env)
    return FoundCli(cli=cli, path=path, version=version.group(), signed_in=signed_in, by=by)


def _find(cli: Cli, env: Mapping[str, str], workspace: str) -> str | None:
    """The file of a program, never one in the workspace: an agent may have written that."""
    try:
        return resolve_program(cli.name, workspace, env.get("PATH"))
    except CannotStart:
        return None


def _signed_in(cli: Cli, path: str, env: Mapping[str, str]) -> tuple[SignedIn, str]:
    for name in cli.credentials:
        if env.get(name):
            return "yes", name
    return _LOOKS[cli.name](path, env), ""


def is_signed_out(cli: Cli, env: Mapping[str, str], workspace: str) -> bool:
    """Whether a program is known not to be signed in. A script of the user around a program
    is not asked: it may do anything, and it decides about its sign-in itself.
    """
    path = _find(cli, env, workspace)
    if path is None or any(env.get(name) for name in cli.credentials) or _is_own_script(path):
        return False
    return _LOOKS[cli.name](path, env) == "no"


def _is_own_script(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            first = file.readline(200)
    except OSError:
        return True
    return first.startswith(b"#!") and not any(name in first for name in (b"node", b"bun", b"deno"))


def _run_cli(cli: Cli, env: Mapping[str, str], *argv: str) -> tuple[int, str] | None:
    """Exit code and standard output of a program, or None when it does not answer. It is started in
    an empty folder: the settings of a project are not meant. An agent may have changed its own
    settings, or the program itself, so it is in a sandbox where there can be one.
    """
    level: SandboxLevel = "workspace" if works() is None else "off"
    confinement = Confinement(level=level, configuration=own_places(cli.name, env))
    try:
        with tempfile.TemporaryDirectory(prefix="loopwright-") as folder:
            program = ProgramStart(argv=argv, cwd=folder, env=dict(env))
            done = user_sandbox().ask(program, confinement, ASK_SECONDS)
    except (CannotStart, OSError, subprocess.SubprocessError):
        return None
    return done.returncode, done.stdout.decode(errors="replace")


def _claude(path: str, env: Mapping[str, str]) -> SignedIn:
    answer = _run_cli(CLIS["claude"], env, path, "auth", "status")
    try:
        known = at(msgspec.json.decode(answer[1] if answer else ""), "loggedIn")
    except msgspec.DecodeError:
        return "unknown"
    return "yes" if known is True else "no" if known is False else "unknown"


def _codex(path: str, env: Mapping[str, str]) -> SignedIn:
    answer = _run_cli(CLIS["codex"], env, path, "login", "status")
    if answer is None:
        return "unknown"
    if answer[0] == 0:
        return "yes"
    return "unknown" if _codex_has_provider(env) else "no"


def _codex_has_provider(env: Mapping[str, str]) -> bool:
    """Whether the settings of Codex name a provider of their own, which may need no sign-in."""
    home = Path(env.get("CODEX_HOME") or Path(env.get("HOME") or "/") / ".codex")
    try:
        settings = tomllib.loads((home / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return "model_provider" in settings or "profile" in settings


def _opencode(path: str, env: Mapping[str, str]) -> SignedIn:
    """It counts its credentials; without any it still has models of its own."""
    answer = _run_cli(CLIS["opencode"], env, path, "auth", "list")
    counted = re.search(r"(\d+) credentials?\b", answer[1]) if answer is not None else None
    if counted is None:
        return "unknown"
    return "yes" if int(counted.group(1)) else "unknown"


def _gemini(_: str, env: Mapping[str, str]) -> SignedIn:
    """It has no command for it; what it keeps of a sign-in is a file. A key may also be in a file
    of variables, and the credentials of a cloud may be anywhere.
    """
    home = env.get("HOME")
    if not home:
        return "unknown"
    folder = Path(home) / ".gemini"
    if (folder / "oauth_creds.json").is_file():
        return "yes"
    elsewhere = [folder / ".env", Path(home) / ".env", folder / "gemini-credentials.json"]
    others = ("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA", "GOOGLE_APPLICATION_CREDENTIALS")
    if any(env.get(name) for name in others) or any(file.is_file() for file in elsewhere):
        return "unknown"
    return "unknown" if _gemini_method(folder) not in _GEMINI_KNOWN else "no"


_GEMINI_KNOWN = ("", "oauth-personal", "gemini-api-key")


def _gemini_method(folder: Path) -> str:
    """How it signs in, as its settings say; empty if they say nothing."""
    try:
        settings = msgspec.json.decode((folder / "settings.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return ""
    return text(settings, "security", "auth", "selectedType")


_LOOKS: dict[str, Callable[[str, Mapping[str, str]], SignedIn]] = {
    "claude": _claude,
    "codex": _codex,
    "gemini": _gemini,
    "opencode": _opencode,
}
