"""Runs: list them, and show one in detail."""

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

import msgspec

from loopwright.kernel.events import GateAnswered
from loopwright.kernel.state import State
from loopwright.model.plan import Agent
from loopwright.model.policy import Limits
from loopwright.operations.run_lists import driver_pid, is_left_behind, worktree_view
from loopwright.operations.runs import Service
from loopwright.operations.use_cases.lists import list_runs
from loopwright.operations.use_cases.operation import (
    App,
    Caller,
    HttpRoute,
    RunReference,
    operation,
)
from loopwright.operations.workspace_rules import enforced_levels
from loopwright.ports import NumberedEvent, RunRow
from loopwright.ports.headline import figures_of
from loopwright.views.event_records import timestamp
from loopwright.views.formats import usage_amounts
from loopwright.views.progress import IterationSeen
from loopwright.views.run_responses import (
    ChangedDependency,
    CheckView,
    Decided,
    ForkOrigin,
    IterationItem,
    ResumedItem,
    RunLimits,
    RunMessageItem,
    RunPlan,
    RunSnapshot,
    RunSummary,
    WorktreeView,
    change_counts,
    changed_tree,
)
from loopwright.views.run_view import MessageView, Resumed, RunView
from loopwright.views.status_text import goal, next_commands
from loopwright.views.summary import final_line, summary


def run_detail(service: Service, run: str) -> RunSnapshot:
    """One run: its summary, and what a person wants to know besides."""
    picture = RunView(service, run)
    picture.carry_on()
    return detail(service, picture)


def detail(service: Service, picture: RunView) -> RunSnapshot:
    """One run as a picture shows it, with the number of its newest event."""
    row, state, forked = service.log.row(picture.run), picture.state, picture.forked
    head, plan = row.headline, state.plan
    left_behind = is_left_behind(service.log, row)
    worktree = worktree_view(state.started.worktree if state.started else None, row)
    figures = figures_of(state)
    return RunSnapshot(
        seq=picture.seen,
        **msgspec.structs.asdict(summary(state, service.read_text)),
        forked=ForkOrigin(forked.parent, forked.place) if forked else None,
        resumed=[_resumed_item(one) for one in picture.resumed],
        sandbox=enforced_levels(plan),
        agents={name: _backend(agent) for name, agent in plan.agents.items() if agent.spec},
        limits=_limits(plan.limits),
        protect=list(plan.workspace.protect),
        env=list(plan.pass_env),
        name=head.name,
        headline=final_line(
            state, left_behind=left_behind, now_ms=None if left_behind else service.clock.now_ms()
        ),
        goal=goal(state),
        max=figures.max,
        passes=[_iteration_item(seen) for seen in picture.passes],
        iterations_before=picture.iterations_before,
        activity=picture.progress.total_activity.summary(),
        decisions=[_decision_item(one) for one in picture.decisions],
        messages=[_message_item(service, one) for one in picture.messages.values()],
        graph=picture.graph(),
        driver=driver_pid(service.log, row),
        left_behind=left_behind,
        waits_for=figures.waits_for,
        dialect=head.dialect,
        workspace=head.workspace,
        worktree=worktree,
        started_at=timestamp(head.started_at),
        updated_at=timestamp(head.updated_at),
        finished_at=timestamp(head.finished_at) if head.finished_at else None,
        changed=changed_tree(figures),
        changed_dependencies=[ChangedDependency(*one) for one in picture.dependencies],
        next=_next(state, row, worktree, left_behind=left_behind),
    )


def _next(
    state: State, row: RunRow, worktree: WorktreeView | None, *, left_behind: bool
) -> list[str]:
    """A run that no process drives any more has to be taken up before anything else."""
    if left_behind:
        return [f"loopwright resume {row.run}", f"loopwright stop {row.run}"]
    if worktree is None or row.headline.finished_at is None:
        return [*next_commands(state)]
    if not worktree.exists:  # nothing of it can be resumed
        return [f"loopwright logs {row.run}"]
    verb = "discard" if worktree.applied else "apply"
    return [f"loopwright {verb} {row.run}", *next_commands(state)]


def _limits(limits: Limits) -> RunLimits:
    return RunLimits(
        usd=limits.usd, tokens=limits.tokens, time_ms=limits.wall_ms, idle_ms=limits.idle_ms
    )


def _backend(agent: Agent) -> str:
    return f"{agent.spec} ({agent.model})" if agent.model else str(agent.spec)


def _resumed_item(one: Resumed) -> ResumedItem:
    return ResumedItem(
        at=timestamp(one.event.at),
        by=one.event.by,
        restarted=one.event.mode == "restart",
        point=one.point,
    )


def _decision_item(answered: GateAnswered) -> Decided:
    return Decided(
        gate=answered.gate,
        path=answered.path,
        decision=answered.decision,
        text=answered.text,
        by=answered.by,
        at=timestamp(answered.at),
    )


def _message_item(service: Service, told: MessageView) -> RunMessageItem:
    sent = told.sent
    return RunMessageItem(
        message=sent.message,
        by=sent.sender,
        to=sent.to,
        text=service.read_text(sent.text),
        state=told.state,
        at=timestamp(sent.at),
    )


def _status_words(seen: IterationSeen) -> str:
    """What an agent says of its own state while it does nothing else."""
    is_waiting = seen.status == "running" and seen.status_line
    return f"(the agent's status: {seen.status_line})" if is_waiting else ""


def _iteration_item(seen: IterationSeen) -> IterationItem:
    return IterationItem(
        path=seen.path,
        iteration=seen.number,
        status=seen.status,
        done=seen.done,
        learning=seen.learning or _status_words(seen),
        error=seen.error or None,
        activity=seen.activity.summary(),
        tree=seen.tree or None,
        changed=change_counts(seen.changed) if seen.changed is not None else None,
        usage=usage_amounts(seen.usage),
        checks=[CheckView(one.label, one.verdict, one.evidence, one.by) for one in seen.checks],
    )


BASE = "/api/v1/runs"
AT_ONCE = 500
_R = TypeVar("_R", bound=RunSummary)


async def run_summary(app: App, run: str, kind: type[_R], **more: object) -> _R:
    """A run as one object, with what an operation adds to it."""
    shown = msgspec.structs.asdict(summary(await app.state(run), app.service.read_text))
    return kind(**shown | more)


async def events_of(service: Service, run: str, after: int = 0) -> AsyncIterator[NumberedEvent]:
    """All events of a run that there are now, above a number; a run without any is damaged."""
    first = service.log.row(run).run
    events = service.log.read(first, after=after, limit=AT_ONCE)
    if not events and not after:
        events = service.events(first)
    while events:
        for one in events:
            yield one
        await asyncio.sleep(0)  # others have their turn
        events = service.log.read(run, after=events[-1].seq, limit=AT_ONCE)


@operation(
    "runs.show",
    "query",
    "viewer",
    "One run, as `run --json` prints it",
    http=HttpRoute("GET", f"{BASE}/{{run}}"),
)
async def show(app: App, _caller: Caller, request: RunReference) -> RunSummary:
    """A run as it is now."""
    return await run_summary(app, request.run, RunSummary)


@operation(
    "runs.snapshot",
    "query",
    "viewer",
    "One run with everything that a page shows, and the number of its newest event",
    http=HttpRoute("GET", f"{BASE}/{{run}}/snapshot"),
)
async def snapshot(app: App, _caller: Caller, request: RunReference) -> RunSnapshot:
    """Everything that a page shows of a run."""
    if app.read_snapshot is None:
        return run_detail(app.service, request.run)
    return await app.read_snapshot(request.run)


@operation(
    "runs.plan",
    "query",
    "viewer",
    "The plan of a run: its steps, agents and limits when it was started",
    http=HttpRoute("GET", f"{BASE}/{{run}}/plan"),
)
async def plan(app: App, _caller: Caller, request: RunReference) -> RunPlan:
    """The plan that the events of a run refer to. Values of variables are not shown."""
    row = app.service.log.row(request.run)
    found = app.service.plan(app.service.events(row.run)[0].event)
    agents = {
        name: msgspec.structs.replace(agent, env=dict.fromkeys(agent.env, "…"))
        for name, agent in found.agents.items()
    }
    shown = msgspec.structs.replace(found, agents=agents)
    return RunPlan(run=row.run, plan=msgspec.to_builtins(shown))


OPERATIONS = (list_runs, show, snapshot, plan)
