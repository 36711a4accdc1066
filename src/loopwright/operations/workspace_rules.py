"""Rules of a run's workspace, decided at its start: sandbox level, snapshots, project context.

A sandbox level that cannot be enforced here is refused. Git commands that follow the settings
of a repository run in a sandbox too (level `guard`, without the data directory): settings and
attributes name programs that Git starts, such as filters and merge drivers, and an agent may
have written them.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import assert_never

import msgspec
from platformdirs import user_config_path, user_data_path

from loopwright.agents.coding_agents import level_of_cli
from loopwright.agents.files import keep_private
from loopwright.agents.processes.process import ProgramStart, open_filter
from loopwright.agents.program_files import own_program_folders
from loopwright.agents.sandbox.bubblewrap import (
    INSTALL,
    Confinement,
    Sandbox,
    SandboxPolicy,
    remedy,
    works,
)
from loopwright.agents.snapshots import unmatched_note, with_link_targets
from loopwright.agents.specs import UNHELD_KINDS, Spec, parse_spec
from loopwright.errors import LoopwrightError, NotAllowed, StorageError
from loopwright.model.access import is_offline
from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    FailStep,
    ModelCycle,
    Repeat,
    RunCommand,
    RunScript,
    Step,
    Steps,
    StopRun,
    Wait,
)
from loopwright.model.checks import CommandCheck, ScriptCheck, leaves
from loopwright.model.plan import Agent, Plan, agent_calls
from loopwright.model.policy import NO_WORKSPACE_POLICY
from loopwright.model.sandbox import (
    DEFAULT_SANDBOX,
    SandboxLevel,
    command_level,
    effective_level,
    matches_any,
    strictest,
)
from loopwright.operations.settings import PREFIX, Settings
from loopwright.operations.settings_files import records_folder
from loopwright.syntax.document import escaped
from loopwright.syntax.notations import ref_problem
from loopwright.views.formats import quoted_agent
from loopwright.views.run_responses import SandboxLevels
from loopwright.workspaces.git import Confine, GitStart, git_program

ALLOW = "allow_unsandboxed"
NOT_CONFINED = "agents run without a sandbox (level `guard` needs bubblewrap): {problem}"
_TOKEN_FILE = "LOOPWRIGHT_TOKEN_FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRules:
    """How the level of a run is decided, and what is refused."""

    default: SandboxLevel = DEFAULT_SANDBOX  # if none was chosen for the run
    served: bool = False  # by a server, for other people
    allow_unsandboxed: bool = False  # an administrator lets the server run agents without one

    def decide(self, plan: Plan, chosen: SandboxLevel | None = None) -> Plan:
        """The plan with the level of its run: what was chosen for it or is set, or what the
        definition asks for, whichever is stricter.
        """
        level = strictest(chosen or self.default, plan.sandbox)
        least = plan.sandbox_least or plan.sandbox
        if (level, least) == (plan.sandbox, plan.sandbox_least):
            return plan
        return msgspec.structs.replace(plan, sandbox=level, sandbox_least=least)

    def change(self, plan: Plan, chosen: SandboxLevel) -> SandboxLevel:
        """The new sandbox level of a run, if another one was chosen."""
        requested = stricter_level(self.default, chosen) if self.served else chosen
        level = strictest(requested, plan.sandbox_least)
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
                    hint=remedy(),
                )
            if self.served and not self.allow_unsandboxed:
                raise LoopwrightError(
                    f"{who}: this server runs agents in a sandbox only: "
                    + problem.removesuffix(f"; {INSTALL}"),
                    code="no-sandbox",
                    hint=f'{remedy()}, or set {ALLOW} = "on" in the settings of the server',
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


def stricter_level(own: SandboxLevel, requested: SandboxLevel | None) -> SandboxLevel:
    """The level that a remote caller asks for; refused if it is weaker than that of the server."""
    if requested is not None and strictest(own, requested) != requested:
        raise NotAllowed(
            f"sandbox level `{requested}` is weaker than `{own}`, which this server has set",
            code="widens",
            hint="leave it out, or start the run on that machine",
        )
    return requested or own


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


def enforced_levels(plan: Plan) -> SandboxLevels:
    """The levels that programs of a run are started at: of the run, of its commands if they differ,
    and of each agent that is a program.
    """
    commands = command_level(plan.sandbox, plan.settings)
    has_commands = any(_has_commands(step.action) for step in plan.steps)
    levels = SandboxLevels(run=plan.sandbox, agents=agent_levels(plan))
    if has_commands:
        levels.commands = commands
    return levels


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
    if not text:
        return False
    spec = parse_spec(text)
    return isinstance(spec, Spec) and spec.kind not in UNHELD_KINDS


def _has_commands(action: Action) -> bool:
    while isinstance(action, Repeat):
        if any(isinstance(leaf, CommandCheck | ScriptCheck) for leaf in leaves(action.until)):
            return True
        action = action.body
    if isinstance(action, Steps):
        return any(_has_commands(step.action) for step in action.steps)
    return isinstance(action, RunCommand | RunScript)


def confine_git(settings: Settings) -> Confine:
    """What puts Git into a sandbox that shows the worktrees of runs and nothing else of the data
    directory. Where bubblewrap does not work, Git is started as it is.
    """
    sandbox = Sandbox(replace(policy_of(settings), guard_is_optional=True))
    folder_of_worktrees = settings.worktrees

    @contextmanager
    def confine(start: GitStart, folder: Path) -> Iterator[GitStart]:
        folder_of_worktrees.mkdir(parents=True, exist_ok=True, mode=0o700)
        program = ProgramStart(
            argv=tuple(os.fsdecode(word) for word in start.argv),
            cwd=str(folder_of_worktrees),
            env=start.env,
        )
        confinement = Confinement(level="guard", start=str(folder))
        with sandbox.confined(program, confinement) as confined:
            if not confined.in_sandbox:
                yield start
                return
            with open_filter(confined.call_filter) as fds:
                words = [word for one in fds for word in ("--seccomp", str(one))]
                argv = [confined.argv[0], *words, *confined.argv[1:]]
                yield GitStart(argv, confined.env, (*start.fds, *fds))

    return confine


ARTIFACTS = "artifacts"
STATE = "state"
_BASE = "base_branch"
_USUAL = ("main", "master")
_SECONDS = 10
_NO_TRACE = dict.fromkeys(("GIT_TRACE2", "GIT_TRACE2_EVENT", "GIT_TRACE2_PERF"), "0")
"""Settings that an agent can change name files for traces; variables come before settings."""


def with_surroundings(plan: Plan, workspace: Path, given: str | None = None) -> Plan:
    """The plan with the values of its settings that only the workspace, or the caller who starts
    the run, can tell. A name that is none is refused, wherever it comes from.
    """
    if given is not None:
        _check(given)
    known = plan.settings.get(_BASE)
    if known is None:
        return plan  # not asked for
    found = given or known or base_branch(workspace) or ""
    if found:
        _check(found)
    return msgspec.structs.replace(plan, settings={**plan.settings, _BASE: found})


def _check(branch: str) -> None:
    problem = ref_problem(branch)
    if problem is not None:
        raise LoopwrightError(
            f"{escaped(branch[:60])!s} is not a name of a branch: {problem}",
            code="bad-ref",
            hint="name another with --base-branch NAME",
        )


def with_artifacts(plan: Plan, place: Path | None, run: str, workspace: Path) -> Plan:
    """The plan with the folders that its texts name, made before anything starts: one for the
    artifacts of this run, and one in the project for the state that all its runs share.
    """
    made = dict(plan.settings)
    if ARTIFACTS in made and place is not None:
        made[ARTIFACTS] = str(_make_folder(place / run, is_new=True))
    if STATE in made:
        made[STATE] = str(_make_state_folder(workspace, made[STATE]))
    return msgspec.structs.replace(plan, settings=made) if made != plan.settings else plan


def _make_state_folder(workspace: Path, name: str) -> Path:
    """The folder of this name in the main checkout, also for runs in another one. Git does not see
    it.
    """
    common = _git(workspace, "rev-parse", "--path-format=absolute", "--git-common-dir")
    is_usual = common is not None and Path(common).name == ".git"
    project = Path(common).parent if common is not None and is_usual else workspace.absolute()
    folder = project / name
    if not folder.resolve().is_relative_to(project.resolve()):  # an agent may have made that link
        raise LoopwrightError(
            f"{folder} is a link that leads out of the project",
            code="outside-project",
            hint="put a folder in its place",
        )
    _make_folder(folder, is_new=False)
    with suppress(FileExistsError), (folder / ".gitignore").open("x", encoding="utf-8") as ignore:
        ignore.write("*\n")
    return folder


def _make_folder(folder: Path, *, is_new: bool) -> Path:
    try:
        folder.mkdir(parents=True, mode=0o700, exist_ok=not is_new)
    except OSError as error:
        raise StorageError(f"{folder} cannot be made: {error.strerror or error}") from error
    return folder


def base_branch(workspace: Path) -> str | None:
    """The branch that work goes back to: the remote's default one, else a usual name that there
    is; None if unknown.
    """
    named = _git(workspace, "symbolic-ref", "--short", "--", "refs/remotes/origin/HEAD")
    if named:
        return named.removeprefix("origin/")
    for place in ("refs/remotes/origin", "refs/heads"):
        for name in _USUAL:
            ref = f"{place}/{name}"
            if _git(workspace, "rev-parse", "--verify", "--quiet", "--end-of-options", ref):
                return name
    return None


def _git(workspace: Path, *args: str) -> str | None:
    """What git says, or None when it has nothing to say: no repository, no such thing, no git."""
    try:
        done = subprocess.run(
            [git_program(), "-C", str(workspace), *args],
            env={**os.environ, **_NO_TRACE},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (LoopwrightError, OSError, subprocess.TimeoutExpired):
        return None
    output = done.stdout.decode(errors="replace").strip()
    return output if done.returncode == 0 and output else None


# -- files of the context --------------------------------------------------------------------------

CONTEXT_FILES = "context_files"
"""The setting of a plan whose context files are beside its definition."""


def with_context_files(plan: Plan, workspace: Path, folder: Path) -> Plan:
    """The plan with its context files named from the workspace on. A definition may name them from
    its own `folder` on: what is not there is looked for in the workspace.
    """
    if plan.settings.get(CONTEXT_FILES) != "definition":
        return plan
    root = workspace.resolve()
    prefix = folder.resolve()
    prefix = prefix.relative_to(root) if prefix.is_relative_to(root) else Path()

    def found(name: str) -> str:
        beside = prefix / name
        return str(beside) if (root / beside).exists() or not (root / name).exists() else name

    def moved(action: Action) -> Action:
        match action:
            case CallAgent(context_files=names) if names:
                return msgspec.structs.replace(action, context_files=tuple(map(found, names)))
            case Repeat(body=body):
                return msgspec.structs.replace(action, body=moved(body))
            case Steps(steps=steps):
                return msgspec.structs.replace(action, steps=tuple(map(in_step, steps)))
            case CallAgent() | ModelCycle() | RunCommand() | RunScript():
                return action
            case AskPerson() | Wait() | StopRun() | FailStep():
                return action
            case _:
                assert_never(action)

    def in_step(step: Step) -> Step:
        return msgspec.structs.replace(step, action=moved(step.action))

    return msgspec.structs.replace(plan, steps=tuple(map(in_step, plan.steps)))


def hidden_context_files(plan: Plan, workspace: Path, folder: Path) -> list[str]:
    """Warnings about context files that are beside the definition, outside of the workspace."""
    if plan.settings.get(CONTEXT_FILES) != "definition":
        return []
    names = dict.fromkeys(name for call in agent_calls(plan) for name in call.context_files)
    return [
        f"{name} is beside the definition but outside of the workspace {workspace}, so agents are "
        "not shown it; copy it there, or start with --workspace"
        for name in names
        if not (workspace / name).exists() and (folder / name).is_file()
    ]


MOST_FILES = 100_000
READ_ONLY = ("readonly", "minimal")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotChoice:
    """What the person or program that starts a run says about snapshots. `off` wins over the
    definition; `protect` is added to its protected files.
    """

    off: bool = False
    protect: Sequence[str] = ()


NO_CHOICE = SnapshotChoice()


def decide_snapshots(
    plan: Plan, workspace: Path, choice: SnapshotChoice, *, default: bool
) -> tuple[Plan, str]:
    """The plan with its decision, and a note for people where snapshots are not taken although
    they would be by default. Protected files need snapshots: without them the run is refused.
    `default` counts where neither the definition nor the choice says anything.
    """
    policy = plan.workspace
    patterns = tuple(dict.fromkeys((*policy.protect, *map(_pattern, choice.protect))))
    _refuse_git(patterns)
    protect = with_link_targets(workspace, patterns)
    wanted = False if choice.off else policy.snapshots
    if wanted is False and protect:
        raise LoopwrightError(
            "protected files need snapshots, which are switched off",
            code="protect-needs-snapshots",
            hint="take snapshots, or start the run without protected files",
        )
    needed = wanted or bool(protect)
    if wanted is None:
        wanted = bool(protect) or (default and _can_write(plan))
    problem = _problem(workspace) if wanted else ""
    if problem and needed:
        raise _refused(problem, protected=bool(protect))
    taken = wanted and not problem
    note = f"no snapshots are taken: {problem}" if problem else unmatched_note(workspace, protect)
    if taken == bool(policy.snapshots) and protect == policy.protect:
        return plan, note
    changed = msgspec.structs.replace(policy, snapshots=taken or None, protect=protect)
    if changed == NO_WORKSPACE_POLICY:
        changed = NO_WORKSPACE_POLICY  # this very record is left out of an encoded plan
    return msgspec.structs.replace(plan, workspace=changed), note


def _refuse_git(patterns: Sequence[str]) -> None:
    """Snapshots leave out what is in `.git`, so changes there could not be seen."""
    for pattern in patterns:
        if ".git" in pattern.casefold().replace("\\", "/").split("/"):
            raise LoopwrightError(
                f'"{pattern}" cannot be protected: snapshots have no files of .git',
                code="protect-needs-snapshots",
                hint="name files of the project, such as tests/**",
            )


def _refused(problem: str, *, protected: bool) -> LoopwrightError:
    if protected:
        message = f"protected files need snapshots, which cannot be taken: {problem}"
        return LoopwrightError(message, code="protect-needs-snapshots", hint=_hint(problem))
    message = f"snapshots cannot be taken: {problem}"
    return LoopwrightError(message, code="no-snapshots-here", hint=_hint(problem))


def unmatched_patterns(patterns: Sequence[str], workspace: Path) -> list[str]:
    """Patterns that match no file of a workspace. In a folder with very many files none is named,
    because not all of them are checked.
    """
    left, seen = list(patterns), 0
    for folder, folders, files in os.walk(workspace):
        if not left:
            break
        folders[:] = [name for name in folders if name != ".git"]
        inside = Path(folder).relative_to(workspace)
        for name in files:
            path = (inside / name).as_posix()
            left = [one for one in left if not matches_any((one,), path)]
        seen += len(files)
        if seen > MOST_FILES:
            return []
    return left


def _pattern(text: str) -> str:
    parts = text.replace("\\", "/").split("/")
    if not text.strip() or text.startswith(("/", "~")) or ".." in parts:
        raise LoopwrightError(
            f'--protect: "{text}" is not a pattern of files inside the workspace',
            code="outside-workspace",
            hint="write it relative to the workspace: tests/**",
        )
    return text


def _problem(workspace: Path) -> str:
    folder = workspace.resolve()
    if folder == folder.parent:
        return f"{folder} is the root of the file system"
    if folder == Path.home().resolve():
        return f"{folder} is your home directory"
    return "" if shutil.which("git") else "Git is not installed"


def _hint(problem: str) -> str:
    if problem.startswith("Git"):
        return "install Git 2.32 or newer"
    return "start the run in the folder of a project, or name one with --workspace DIR"


def _can_write(plan: Plan) -> bool:
    """Whether anything of a plan can write files: a program, or an agent that is not held to
    reading. Answers of a script write nothing.
    """
    for step in plan.steps:
        for action in _actions(step.action):
            if isinstance(action, RunCommand | RunScript):
                return True
            if isinstance(action, CallAgent | ModelCycle) and _writes(
                plan.agents.get(action.agent)
            ):
                return True
    return False


def _writes(agent: Agent | None) -> bool:
    if agent is None:
        return True
    if agent.access in READ_ONLY or (agent.spec or "").startswith("script:"):
        return False
    return not (agent.is_chat and agent.tools == ())  # such a model only answers


def _actions(action: Action) -> Iterator[Action]:
    while isinstance(action, Repeat):
        action = action.body
    if isinstance(action, Steps):
        for step in action.steps:
            yield from _actions(step.action)
    else:
        yield action
