"""Variables that a person gives to the programs of a run with `--env`.

The plan and the log hold only their names. The values are in a file of their own in the data
directory, readable by its owner alone, so that the local server, a process in the background or a
later `resume` can hand them on. The file is removed when the run completes or is pruned; the file
of a run that may still be resumed is removed after a week.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from loopwright.engine.services import SystemClock
from loopwright.errors import LoopwrightError, StorageError
from loopwright.model.plan import Plan
from loopwright.model.sandbox import is_reserved, is_variable_name
from loopwright.operations.run_request import RunStart
from loopwright.views.event_records import sortable_id

KEPT_SECONDS = 7 * 86_400
GIVEN = "env"  # the setting of a plan with the names that were given, for a later `resume`


def read_variables(given: Sequence[str], base: Mapping[str, str]) -> dict[str, str]:
    """`NAME=VALUE` sets a variable, `NAME` passes on the one of the environment."""
    values: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not is_variable_name(name):
            raise LoopwrightError(
                f"--env: {name[:60]!r} cannot be the name of a variable",
                code="bad-env",
                hint="write --env NAME or --env NAME=VALUE",
            )
        if is_reserved(name):
            message = f"--env: {name} decides what programs load and run, so it cannot be set"
            raise LoopwrightError(message, code="reserved-env", hint="use a name of your own")
        if not equals and name not in base:
            raise LoopwrightError(
                f"--env: {name} is not set in your environment",
                code="missing-env",
                hint=f"export it first, or write --env {name}=VALUE",
            )
        values[name] = value if equals else base[name]
    return values


def env_choices(values: Mapping[str, str]) -> tuple[str, ...]:
    """Variables of a request as they are given one by one."""
    return tuple(f"{name}={value}" for name, value in values.items())


def names_only(given: Sequence[str], where: str) -> tuple[str, ...]:
    """Variables where a value would be recorded: their names, and the values of the environment."""
    for one in given:
        if "=" in one:
            raise LoopwrightError(
                f"--env: {where} would record the value of {one.partition('=')[0][:60]}",
                code="bad-env",
                hint="set the variable in the environment of this process and give its name alone",
            )
    return tuple(given)


def with_variables(plan: Plan, values: Mapping[str, str]) -> Plan:
    """The plan with the names of these variables, for every agent and every command."""
    if not values:
        return plan
    chats = sorted(name for name, agent in plan.agents.items() if agent.is_chat)
    if chats and any(os.environ.get(name) != value for name, value in values.items()):
        raise LoopwrightError(
            f"--env NAME=VALUE does not reach the chat model of agent {chats[0]!r}, which is "
            "called by Loopwright itself",
            code="unsupported-here",
            hint="export the variable before the command and write --env NAME",
        )
    agents = {
        name: msgspec.structs.replace(
            agent, pass_env=tuple(dict.fromkeys((*agent.pass_env, *values)))
        )
        for name, agent in plan.agents.items()
    }
    names = tuple(dict.fromkeys((*plan.pass_env, *values)))
    settings = {**plan.settings, GIVEN: ",".join(values)}
    return msgspec.structs.replace(plan, agents=agents, pass_env=names, settings=settings)


def missing_variables(plan: Plan, values: Mapping[str, str]) -> list[str]:
    """The names that a run was given with `--env` and that have no value."""
    names = [name for name in plan.settings.get(GIVEN, "").split(",") if name]
    return [name for name in names if name not in values and name not in os.environ]


def given_again(plan: Plan, run: str, given: Sequence[str]) -> dict[str, str]:
    """Values for variables that a run was started with; a name that it did not have is refused."""
    names = [name for name in plan.settings.get(GIVEN, "").split(",") if name]
    new = read_variables(given, os.environ)
    unknown = [name for name in new if name not in names]
    if unknown:
        raise LoopwrightError(
            f"--env: {run} was started without {unknown[0]}",
            code="unknown-env",
            hint=f"it was started with {', '.join(names)}" if names else "leave out --env",
        )
    return new


def renewed_variables(
    plan: Plan, run: str, given: Sequence[str], stored: Mapping[str, str]
) -> dict[str, str]:
    """The values for a run that is resumed: those that are stored, and what is given now. Refused
    where one of the names that the run was started with has no value any more.
    """
    values = {**stored, **given_again(plan, run, given)}
    missing = missing_variables(plan, values)
    if missing:
        flags = " ".join(f"--env {name}=VALUE" for name in missing)
        raise LoopwrightError(
            f"{run} was started with --env, and these variables have no value any more: "
            f"{', '.join(missing)}",
            code="missing-env",
            hint=f"give them again: loopwright resume {run} {flags}",
        )
    return values


@contextmanager
def keep_variables(home: Path, start: RunStart) -> Iterator[RunStart]:
    """Store the variables of a run under its id before it starts; if it does not, remove them."""
    if not start.variables:
        yield start
        return
    run = start.run or f"run_{sortable_id(SystemClock().now_ms())}"
    variables = RunVariables(home)
    variables.write(run, start.variables)
    try:
        yield replace(start, run=run)
    except LoopwrightError:
        variables.remove(run)
        raise


class RunVariables:
    """The values of such variables by run, one file for each."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "env"

    def write(self, run: str, values: Mapping[str, str]) -> None:
        """Keep the values of a run that is about to start or to continue."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file(run).unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(self._file(run), flags, 0o600), "w") as stream:
                json.dump(dict(values), stream)
        except OSError as error:
            message = f"the variables of the run cannot be stored in {self._folder}: {error}"
            raise StorageError(message, code="cannot-write") from error

    def read(self, run: str) -> dict[str, str]:
        """The values of a run; empty if it has none any more."""
        try:
            found = json.loads(self._file(run).read_text())
        except (OSError, ValueError):
            return {}
        return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}

    def remove(self, run: str) -> None:
        """Delete the values of a run that has ended finally."""
        if self._folder.is_dir():
            self._file(run).unlink(missing_ok=True)

    def remove_expired(self, is_open: Callable[[str], bool]) -> None:
        """Delete the values of runs that ended more than a week ago, or that never began."""
        if not self._folder.is_dir():
            return
        for file in self._folder.glob("*.json"):
            if file.stat().st_mtime < time.time() - KEPT_SECONDS and not is_open(file.stem):
                file.unlink(missing_ok=True)

    def _file(self, run: str) -> Path:
        return self._folder / f"{Path(run).name}.json"
