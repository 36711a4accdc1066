"""Whether a run takes snapshots of its workspace, decided when it is started."""

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loopwright.errors import LoopwrightError
from loopwright.model.actions import Action, CallAgent, Cycle, Repeat, RunCommand, RunScript, Steps
from loopwright.model.file_patterns import matches_any
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import NO_WORKSPACE_POLICY
from loopwright.programs.protected_paths import unmatched_note, with_link_targets

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
    """Snapshots leave out what is in `.git`, so nobody could say whether it was changed."""
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
    because not all of them are looked at.
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
            if isinstance(action, CallAgent | Cycle) and _writes(plan.agents.get(action.agent)):
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
