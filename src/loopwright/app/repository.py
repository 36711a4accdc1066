"""What a plan wants to know about its surroundings, found out when a run starts."""

import subprocess
from pathlib import Path

import msgspec

from loopwright.errors import StorageError
from loopwright.model.plan import Plan

_ARTIFACTS = "artifacts"
_BASE = "base_branch"
_USUAL = ("main", "master")
_SECONDS = 10


def with_surroundings(plan: Plan, workspace: Path) -> Plan:
    """The plan with the values of its settings that only the workspace can tell."""
    if plan.settings.get(_BASE) != "":
        return plan  # not asked for, or said already
    found = base_branch(workspace) or ""
    return msgspec.structs.replace(plan, settings={**plan.settings, _BASE: found})


def with_artifacts(plan: Plan, place: Path | None, run: str) -> Plan:
    """The plan with the folder that its texts speak of, made before anything starts."""
    if place is None or _ARTIFACTS not in plan.settings:
        return plan
    folder = place / run
    try:
        folder.mkdir(parents=True, mode=0o700)
    except OSError as error:
        raise StorageError(f"{folder} cannot be made: {error.strerror or error}") from error
    return msgspec.structs.replace(plan, settings={**plan.settings, _ARTIFACTS: str(folder)})


def base_branch(workspace: Path) -> str | None:
    """The branch that work goes back to: the remote's default one, else a usual name that there
    is; None when nobody can tell.
    """
    named = _git(workspace, "symbolic-ref", "--short", "refs/remotes/origin/HEAD")
    if named:
        return named.removeprefix("origin/")
    for place in ("refs/remotes/origin", "refs/heads"):
        for name in _USUAL:
            if _git(workspace, "rev-parse", "--verify", "--quiet", f"{place}/{name}"):
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
