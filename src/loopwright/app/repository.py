"""What a plan wants to know about its surroundings, found out when a run starts."""

import subprocess
from pathlib import Path

import msgspec

from loopwright.errors import LoopwrightError, StorageError
from loopwright.model.plan import Plan
from loopwright.syntax.characters import escaped
from loopwright.syntax.refs import ref_problem

ARTIFACTS = "artifacts"
_BASE = "base_branch"
_USUAL = ("main", "master")
_SECONDS = 10


def with_surroundings(plan: Plan, workspace: Path, given: str | None = None) -> Plan:
    """The plan with the values of its settings that only the workspace, or whoever starts the run,
    can tell. A name that is none is refused, wherever it comes from.
    """
    if given is not None:
        _check(given)
    if plan.settings.get(_BASE) != "":
        return plan  # not asked for, or said already
    found = base_branch(workspace) or "" if given is None else given
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


def with_artifacts(plan: Plan, place: Path | None, run: str) -> Plan:
    """The plan with the folder that its texts speak of, made before anything starts."""
    if place is None or ARTIFACTS not in plan.settings:
        return plan
    folder = place / run
    try:
        folder.mkdir(parents=True, mode=0o700)
    except OSError as error:
        raise StorageError(f"{folder} cannot be made: {error.strerror or error}") from error
    return msgspec.structs.replace(plan, settings={**plan.settings, ARTIFACTS: str(folder)})


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
            ["git", "-C", str(workspace), *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = done.stdout.decode(errors="replace").strip()
    return said if done.returncode == 0 and said else None
