"""Approvals, events and the tree of a run in the shapes of ALDO.

Approvals list everything that a run waits for, not only tool calls; what is not a call has the
id of its gate. A run can be continued from a checkpoint as a new run. Events are in the format
of the system of the definition, as a stream and in pages. Systems without a format of their own
get our events.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from starlette.responses import Response

from loopwright.errors import Conflict, NotFound
from loopwright.http.events import (
    EventsQuery,
    StreamOptions,
    cursor,
    streamed,
    wants_stream,
)
from loopwright.http.operation_routes import app_of, caller_of
from loopwright.http.requests import Answer, Body, Route, RouteFamily, RouteRequest
from loopwright.http.responses import RequestRefusal, unfit_is_bad
from loopwright.kernel.reopened_runs import places
from loopwright.model.actions import Decision
from loopwright.model.record import JsonValue
from loopwright.operations.loops.dialect_events import (
    DialectEventFeed,
    is_pass,
)
from loopwright.operations.problems import ProblemReport
from loopwright.operations.run_groups import OnDisconnect
from loopwright.operations.runs import Service
from loopwright.operations.use_cases import run_changes
from loopwright.operations.use_cases.gates import NamedAnswer, answer_named, list_waiting
from loopwright.operations.use_cases.operation import RunReference
from loopwright.operations.use_cases.run_changes import ForkRun
from loopwright.operations.use_cases.run_queries import events_of
from loopwright.operations.use_cases.run_views import read_cycles
from loopwright.views.event_records import timestamp


def place_before(service: Service, run: str, checkpoint: str | None) -> str:
    """The finished path of a checkpoint; without one, the newest. A checkpoint is
    named by the cycle that begins with it.
    """
    found = places([numbered.event for numbered in service.events(run)])
    good = [place for place, how in found.items() if how == "completed" and is_pass(place)]
    if checkpoint is None:
        if not good:
            raise Conflict(f"{run} has no finished cycle yet", code="not-finished")
        return good[-1]
    around, _, number = checkpoint.rpartition(".")
    if not around or not number.isdecimal():
        raise NotFound(f"{run} has no checkpoint {checkpoint[:80]!a}", code="unknown-place")
    if int(number[:9]) == 0:
        raise Conflict(
            "there is no cycle before the first one", code="not-finished", hint="start a new run"
        )
    return f"{around}.{int(number[:9]) - 1}"


BASE = "/v1/runs/{run}"


class ApproveCallBody(Body):
    """An approval of one call."""

    callId: Annotated[str, msgspec.Meta(min_length=1)]
    reason: str = ""


class RejectBody(Body):
    """A rejection of one call, with a reason for the model."""

    callId: Annotated[str, msgspec.Meta(min_length=1)]
    reason: Annotated[str, msgspec.Meta(min_length=1)]


class EditMessageBody(Body):
    """Continue from a checkpoint with another text; without one, from the newest."""

    newText: Annotated[str, msgspec.Meta(min_length=1)]
    checkpointId: str | None = None
    allowUnknownCost: bool = False
    onDisconnect: OnDisconnect | None = None


class SwapBody(Body):
    """Continue from a checkpoint with another model; without one, from the newest."""

    model: Annotated[str, msgspec.Meta(min_length=1)]
    checkpointId: str | None = None
    allowUnknownCost: bool = False
    onDisconnect: OnDisconnect | None = None


class PendingApproval(msgspec.Struct):
    """What waits: a call, or something else that a person is asked. That has the id of its gate,
    no tool, and what is asked as its reason.
    """

    runId: str
    callId: str
    tool: str
    args: JsonValue
    reason: str | None
    gateId: str
    message: str
    answers: list[str]


class ApprovalList(msgspec.Struct):
    """Everything that a run waits for."""

    approvals: list[PendingApproval]


class ApprovalResolved(msgspec.Struct):
    """What was decided."""

    runId: str
    callId: str
    kind: str
    approver: str
    reason: str | None
    at: str


class ContinuedRun(msgspec.Struct):
    """A new run that continues from another, which does not change."""

    runId: str
    newRunId: str
    place: str


class ErrorText(msgspec.Struct, omit_defaults=True):
    """What went wrong; `message` ends with the hint, where there is one."""

    code: str
    message: str
    hint: str | None = None


class ApprovalFailure(msgspec.Struct):
    """A refusal."""

    error: ErrorText


async def listed(request: RouteRequest) -> Answer:
    return ApprovalList(approvals=await _pending(request))


async def approved(request: RouteRequest) -> Answer:
    body = request.body(ApproveCallBody)
    return await _decide(request, body.callId, "approve", body.reason)


async def rejected(request: RouteRequest) -> Answer:
    body = request.body(RejectBody)
    return await _decide(request, body.callId, "reject", body.reason)


async def _pending(request: RouteRequest) -> list[PendingApproval]:
    """The open gates of a run, with the calls that they are about."""
    run, app = request.params["run"], request.context.part(app_of)
    found = await list_waiting(app, caller_of(request.who), RunReference(run=run))
    return [
        PendingApproval(
            runId=run,
            callId=one.call.id,
            tool=one.call.tool,
            args=one.call.arguments,
            reason=one.call.reason,
            gateId=one.gate,
            message=one.message,
            answers=one.answers,
        )
        for one in found
    ]


async def _decide(request: RouteRequest, call_id: str, decision: Decision, reason: str) -> Answer:
    pending = await _pending(request)
    gates = [one.gateId for one in pending if call_id in (one.callId, one.gateId)]
    if not gates:
        raise NotFound(
            f"nothing with the id {call_id[:80]!a} waits for an approval", code="approval_not_found"
        )
    context, who = request.context, request.who.name
    reply = NamedAnswer(decision=decision, text=reason)
    await answer_named(context.part(app_of), caller_of(request.who), gates[0], reply)
    return ApprovalResolved(
        runId=request.params["run"],
        callId=call_id,
        kind="approved" if decision == "approve" else "rejected",
        approver=who,
        reason=reason or None,
        at=timestamp(context.clock.now_ms()),
    )


# -- forks ----------------------------------------------------------------------------------------


async def edited(request: RouteRequest) -> Answer:
    body = request.body(EditMessageBody)
    wanted = ForkRun(
        run=request.params["run"],
        edit=body.newText,
        allow_unknown_cost=body.allowUnknownCost,
        on_disconnect=body.onDisconnect,
    )
    return await _continued(request, body.checkpointId, wanted)


async def swapped(request: RouteRequest) -> Answer:
    body = request.body(SwapBody)
    wanted = ForkRun(
        run=request.params["run"],
        model=body.model,
        allow_unknown_cost=body.allowUnknownCost,
        on_disconnect=body.onDisconnect,
    )
    return await _continued(request, body.checkpointId, wanted)


async def _continued(request: RouteRequest, checkpoint: str | None, wanted: ForkRun) -> Answer:
    place = place_before(request.context.service, wanted.run, checkpoint)
    wanted = msgspec.structs.replace(wanted, at=place)
    forked = await run_changes.fork(request.context.part(app_of), caller_of(request.who), wanted)
    return ContinuedRun(runId=wanted.run, newRunId=forked.run, place=place)


def refuse(problem: ProblemReport, headers: Mapping[str, str]) -> Response:
    """A refusal in the shape of this family; what does not fit is 400 here."""
    status = unfit_is_bad(problem)
    hint = f" ({problem.hint})" if problem.hint else ""
    payload = ApprovalFailure(
        error=ErrorText(problem.code, f"{problem.detail}{hint}", problem.hint)
    )
    body = msgspec.json.encode(payload)
    return Response(body, status, headers=dict(headers), media_type="application/json")


FAMILY = RouteFamily(
    name="approvals",
    prefix="/v1/",
    refuse=refuse,
    failure=ApprovalFailure,
    routes=(
        Route(
            method="GET",
            path=f"{BASE}/approvals",
            handle=listed,
            need="viewer",
            say="What a run waits for: tool calls that need an approval, and every other gate",
            answer=ApprovalList,
        ),
        Route(
            method="POST",
            path=f"{BASE}/approve",
            handle=approved,
            need="editor",
            say="Let a tool call be run, or approve what another gate asks about",
            body=ApproveCallBody,
            answer=ApprovalResolved,
        ),
        Route(
            method="POST",
            path=f"{BASE}/reject",
            handle=rejected,
            need="editor",
            say="Refuse a tool call, or reject what another gate asks about, and say why",
            body=RejectBody,
            answer=ApprovalResolved,
        ),
        Route(
            method="POST",
            path=f"{BASE}/edit-and-resume",
            handle=edited,
            need="editor",
            say="Continue from a checkpoint with another message, as a new run",
            body=EditMessageBody,
            answer=ContinuedRun,
            draining="refuse",
        ),
        Route(
            method="POST",
            path=f"{BASE}/swap-model",
            handle=swapped,
            need="editor",
            say="Continue from a checkpoint with another model, as a new run",
            body=SwapBody,
            answer=ContinuedRun,
            draining="refuse",
        ),
    ),
)


MOST = 1_000


class NarrationQuery(EventsQuery):
    """From which number on, and how many at most; `cursor` is where a page ended. With `own` a
    run whose system has no words of its own is refused.
    """

    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST)] = MOST
    cursor: str | None = None
    own: bool = False


class Events(msgspec.Struct):
    """A page of what happened; `next` is the cursor of the one after it."""

    runId: str
    events: list[dict[str, JsonValue]]
    seq: int
    next: str | None


class CycleTree(msgspec.Struct):
    """The cycles of a run, loop by loop."""

    runId: str
    status: str
    parentRunId: str | None
    loops: list[dict[str, JsonValue]]


async def events(request: RouteRequest) -> Answer:
    run, query = request.params["run"], request.query(NarrationQuery)
    request.context.here.log.row(run)  # refused before anything is sent, if there is none
    teller = DialectEventFeed(request.context.service, run, own=query.own)
    if not wants_stream(request.request):
        return await _page(request, teller, query)
    after = cursor(request.request, query.after)
    options = StreamOptions(after=after, records=teller.take, whole=True, has_names=True)
    return await streamed(request, run, options)


async def _page(request: RouteRequest, teller: DialectEventFeed, query: NarrationQuery) -> Answer:
    """The most events of a page. One log event may become several, so a page can end between
    them.
    """
    context, run = request.context, teller.run
    after, passed = query.after or 0, 0
    if query.cursor is not None:
        after, passed = _place(context.cursors.place(_kind(run), query.cursor))
    found: list[dict[str, JsonValue]] = []
    more = None
    async for one in events_of(context.service, run):
        events = teller.take(one)
        if one.seq <= after:
            continue
        skip = passed if one.seq == after + 1 else 0
        room = query.limit - len(found)
        found += events[skip : skip + room]
        if len(events) - skip > room:
            more = context.cursors.after(_kind(run), f"{one.seq - 1}.{skip + room}")
            break
    return Events(runId=run, events=found, seq=context.here.log.version(run), next=more)


def _kind(run: str) -> str:
    return f"dialect-events {run}"


def _place(text: str) -> tuple[int, int]:
    after, dot, passed = text.partition(".")
    if not (dot and after.isdecimal() and passed.isdecimal()):
        raise RequestRefusal(
            400, "bad-cursor", "this cursor belongs to another list", hint="begin without one"
        )
    return int(after), int(passed)


async def tree(request: RouteRequest) -> Answer:
    app, caller = request.context.part(app_of), caller_of(request.who)
    found = await read_cycles(app, caller, RunReference(run=request.params["run"]))
    return CycleTree(
        runId=found.run, status=found.status, parentRunId=found.parent, loops=found.loops
    )


DIALECT_EVENTS_FAMILY = RouteFamily(
    name="dialect events",
    prefix="/v1/runs/",
    refuse=refuse,
    failure=ApprovalFailure,
    routes=(
        Route(
            method="GET",
            path=f"{BASE}/events",
            handle=events,
            need="viewer",
            say="What happened, in the words of the definition's own system where it has some",
            query=NarrationQuery,
            answer=Events,
            streams=True,
            also=(204,),
        ),
        Route(
            method="GET",
            path=f"{BASE}/tree",
            handle=tree,
            need="viewer",
            say="A run loop by loop and cycle by cycle",
            answer=CycleTree,
        ),
    ),
)
