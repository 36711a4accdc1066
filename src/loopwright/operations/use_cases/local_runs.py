"""Runs, for the person at this machine: start what was prepared here, resume all runs. No server
offers these operations: they have no route. Every start imports this module, so it imports little.
"""

from typing import TYPE_CHECKING

import msgspec

from loopwright.operations.api_types import Request
from loopwright.operations.run_request import RunStart
from loopwright.operations.run_start import launch_run
from loopwright.operations.run_workspaces import resume_warnings, start_notes
from loopwright.operations.use_cases.operation import App, Caller, operation

if TYPE_CHECKING:
    from loopwright.operations.run_control import ResumedRun


class PreparedStart(Request):
    """A run that was prepared and checked in this process."""

    is_valid = True

    start: RunStart


class ResumeAll(Request):
    """A request without fields."""


class CreatedRun(msgspec.Struct):
    """A new run, and what people should know about it."""

    run: str
    notes: list[str]


class ResumedAll(msgspec.Struct):
    """The runs that were resumed, what people should know about them, and why others were not."""

    runs: "list[ResumedRun]"
    warnings: list[str]
    problems: list[str]


@operation(
    "runs.start_prepared",
    "command",
    "editor",
    "Start a run that was prepared in this process",
    audit=("run.started",),
    draining="refuse",
)
async def start_prepared(app: App, _caller: Caller, request: PreparedStart) -> CreatedRun:
    """Start a run. Its programs were checked when it was prepared."""
    run = await launch_run(app.service, request.start, is_checked=True)
    return CreatedRun(run, start_notes(app.service, run))


@operation(
    "runs.resume_all",
    "command",
    "editor",
    "Resume every run that is paused or that no process drives",
    audit=("run.resumed",),
    draining="refuse",
)
async def resume_all(app: App, _caller: Caller, _request: ResumeAll) -> ResumedAll:
    """Resume all runs, here or at the local server. Runs in the same folder are named once."""
    assert app.here is not None, "this process drives no runs"
    from loopwright.operations.run_control import resume_all as resume_runs  # noqa: PLC0415 - starts need less

    taken, warnings = await resume_runs(app.here), list[str]()
    for number, one in enumerate(taken):
        others = [earlier.run for earlier in taken[:number]]
        found = resume_warnings(app.service, one.run)
        warnings += [words for words in found if not any(run in words for run in others)]
    problems = [f"{run}: {problem}" for run, problem in app.here.driver.problems]
    return ResumedAll(taken, [f"warning: {one}" for one in warnings], problems)


OPERATIONS = (start_prepared, resume_all)
