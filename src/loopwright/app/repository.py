"""What a plan wants to know about its surroundings, found out when a run starts."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import msgspec

from loopwright.errors import LoopwrightError, StorageError
from loopwright.model.actions import Action, CallAgent, Repeat, Step, Steps
from loopwright.model.plan import Plan, agent_calls
from loopwright.syntax.characters import escaped
from loopwright.syntax.refs import ref_problem
from loopwright.workspaces.git import git_program

ARTIFACTS = "artifacts"
STATE = "state"
_BASE = "base_branch"
_USUAL = ("main", "master")
_SECONDS = 10
_NO_TRACE = dict.fromkeys(("GIT_TRACE2", "GIT_TRACE2_EVENT", "GIT_TRACE2_PERF"), "0")
"""Settings that an agent can change name files for traces; variables come before settings."""


def with_surroundings(plan: Plan, workspace: Path, given: str | None = None) -> Plan:
    """The plan with the values of its settings that only the workspace, or whoever starts the run,
    can tell. A name that is none is refused, wherever it comes from.
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
            f"{escaped(branch[:60])!s} is no name of a branch: {problem}",
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
    is; None when nobody can tell.
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
    said = done.stdout.decode(errors="replace").strip()
    return said if done.returncode == 0 and said else None


# -- files of the context --------------------------------------------------------------------------

CONTEXT_FILES = "context_files"
"""The setting of a plan whose context files stand beside its definition."""


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
            case _:
                return action

    def in_step(step: Step) -> Step:
        return msgspec.structs.replace(step, action=moved(step.action))

    return msgspec.structs.replace(plan, steps=tuple(map(in_step, plan.steps)))


def hidden_context_files(plan: Plan, workspace: Path, folder: Path) -> list[str]:
    """Warnings about context files that stand beside the definition, outside of the workspace."""
    if plan.settings.get(CONTEXT_FILES) != "definition":
        return []
    names = dict.fromkeys(name for call in agent_calls(plan) for name in call.context_files)
    return [
        f"{name} is beside the definition but outside of the workspace {workspace}, so agents are "
        "not shown it; copy it there, or start with --workspace"
        for name in names
        if not (workspace / name).exists() and (folder / name).is_file()
    ]
