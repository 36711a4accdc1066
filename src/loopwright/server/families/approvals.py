"""Runs of models with tools: what waits for an approval, what happened, and going on elsewhere."""

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Annotated

import msgspec
from starlette.responses import Response, StreamingResponse

from loopwright.app.checkpoints import place_before
from loopwright.app.forking import Fork, fork
from loopwright.app.moments import timestamp
from loopwright.app.problems import Problem
from loopwright.app.views.asked import asked_call
from loopwright.app.views.cycles import cycle_tree
from loopwright.app.views.telling import Teller, told
from loopwright.errors import NotFound
from loopwright.model.actions import Decision
from loopwright.model.record import JsonValue
from loopwright.ports import OPEN_STATUSES
from loopwright.server.families.events import EventsQuery, cursor, wants_stream
from loopwright.server.families.runs import check_open
from loopwright.server.routes import Answer, Asked, Body, Family, Route
from loopwright.server.streaming import BEAT, STREAM, Quiet

BASE = "/v1/runs/{run}"
AT_ONCE = 500
UNFIT = 422


class ApproveBody(Body):
    """An approval of one call."""

    callId: Annotated[str, msgspec.Meta(min_length=1)]
    reason: str = ""


class RejectBody(Body):
    """A rejection of one call, with a reason that the model is told."""

    callId: Annotated[str, msgspec.Meta(min_length=1)]
    reason: Annotated[str, msgspec.Meta(min_length=1)]


class EditBody(Body):
    """Go on from a checkpoint with other words; without one, from the newest."""

    newText: Annotated[str, msgspec.Meta(min_length=1)]
    checkpointId: str | None = None


class SwapBody(Body):
    """Go on from a checkpoint with another model; without one, from the newest."""

    model: Annotated[str, msgspec.Meta(min_length=1)]
    checkpointId: str | None = None


class Pending(msgspec.Struct):
    """A call that waits."""

    runId: str
    callId: str
    tool: str
    args: JsonValue
    reason: str | None


class Approvals(msgspec.Struct):
    """All calls of a run that wait."""

    approvals: list[Pending]


class Resolved(msgspec.Struct):
    """A call that was decided about."""

    runId: str
    callId: str
    kind: str
    approver: str
    reason: str | None
    at: str


class Events(msgspec.Struct):
    """What happened, in the words of the definition's own system."""

    runId: str
    events: list[dict[str, JsonValue]]
    seq: int


class Tree(msgspec.Struct):
    """The cycles of a run, loop by loop."""

    runId: str
    status: str
    parentRunId: str | None
    loops: list[dict[str, JsonValue]]


class Taken(msgspec.Struct):
    """A new run that goes on from another, which stays as it is."""

    runId: str
    newRunId: str
    place: str


class ErrorText(msgspec.Struct, omit_defaults=True):
    """What went wrong; `message` ends with the hint, where there is one."""

    code: str
    message: str
    hint: str | None = None


class Failure(msgspec.Struct):
    """A refusal."""

    error: ErrorText


async def listed(asked: Asked) -> Answer:
    pending = await _pending(asked)
    return Approvals(approvals=[one for _, one in pending])


async def approved(asked: Asked) -> Answer:
    body = asked.body(ApproveBody)
    return await _decide(asked, body.callId, "approve", body.reason)


async def rejected(asked: Asked) -> Answer:
    body = asked.body(RejectBody)
    return await _decide(asked, body.callId, "reject", body.reason)


async def _pending(asked: Asked) -> list[tuple[str, Pending]]:
    """The gates of a run that are about calls, with the calls."""
    run, service = asked.params["run"], asked.context.service
    picture = await asked.context.gallery.picture(run)
    found: list[tuple[str, Pending]] = []
    for name, gate in picture.state.gates.items():
        call = asked_call(gate, service.read_text)
        if call is not None:
            reason = call["reason"]
            one = Pending(
                runId=run,
                callId=str(call["id"]),
                tool=str(call["tool"]),
                args=call["arguments"],
                reason=reason if isinstance(reason, str) else None,
            )
            found.append((name, one))
    return found


async def _decide(asked: Asked, call_id: str, decision: Decision, reason: str) -> Answer:
    gates = [name for name, one in await _pending(asked) if one.callId == call_id]
    if not gates:
        raise NotFound(f"no call {call_id[:80]!a} waits for an approval", code="approval_not_found")
    context, who = asked.context, asked.who.name
    await context.service.answer(gates[0], decision, text=reason, by=who)
    return Resolved(
        runId=asked.params["run"],
        callId=call_id,
        kind="approved" if decision == "approve" else "rejected",
        approver=who,
        reason=reason or None,
        at=timestamp(context.clock.now_ms()),
    )


# -- what happened ---------------------------------------------------------------------------------


async def events(asked: Asked) -> Answer:
    run, query = asked.params["run"], asked.query(EventsQuery)
    log, service = asked.context.here.log, asked.context.service
    row = log.row(run)
    teller = Teller(service, run)
    if wants_stream(asked.request):
        stream = _stream(asked, teller, cursor(asked.request, query.after))
        return StreamingResponse(stream, media_type=STREAM, headers={"X-Accel-Buffering": "no"})
    found = list(told(service, run, log.read(run), query.after or 0))
    return Events(runId=run, events=found, seq=row.version)


async def _stream(asked: Asked, teller: Teller, after: int) -> AsyncIterator[bytes]:
    """Everything after a number, then what comes; a late comer reads the stored order."""
    context, run, seen = asked.context, teller.run, 0
    log, quiet = context.here.log, Quiet(context.serving.limits)
    yield b"retry: 1000\n\n"
    while not context.closing.is_set() and context.people.still(asked.who):
        facts = log.read(run, after=seen, limit=AT_ONCE)
        lines = [line for one in facts for line in _lines(teller.take(one), after)]
        if lines:
            yield b"".join(lines)
            quiet.over()
        seen = facts[-1].seq if facts else seen
        if len(facts) == AT_ONCE:
            continue
        if seen >= log.version(run) and log.row(run).headline.status not in OPEN_STATUSES:
            return
        await context.feed.moved(run, seen, quiet.patience)
        if quiet.too_long:
            yield BEAT
            quiet.over()


def _lines(events: list[dict[str, JsonValue]], after: int) -> Iterator[bytes]:
    for event in events:
        seq = event["seq"]
        assert isinstance(seq, int)
        if seq > after:
            kind = str(event["type"]).encode()
            yield b"id: %d\nevent: %s\ndata: %s\n\n" % (seq, kind, msgspec.json.encode(event))


async def tree(asked: Asked) -> Answer:
    run, context = asked.params["run"], asked.context
    row = context.here.log.row(run)
    picture = await context.gallery.picture(run)
    loops = cycle_tree(told(context.service, run, context.here.log.read(run), 0))
    parent = picture.forked.parent if picture.forked is not None else None
    return Tree(runId=run, status=row.headline.status, parentRunId=parent, loops=loops)


# -- going on elsewhere ----------------------------------------------------------------------------


async def edited(asked: Asked) -> Answer:
    body = asked.body(EditBody)
    return await _taken_up(asked, body.checkpointId, Fork(at=None, edit=body.newText))


async def swapped(asked: Asked) -> Answer:
    body = asked.body(SwapBody)
    return await _taken_up(asked, body.checkpointId, Fork(at=None, model=body.model))


async def _taken_up(asked: Asked, checkpoint: str | None, wish: Fork) -> Answer:
    check_open(asked)
    context, run = asked.context, asked.params["run"]
    place = place_before(context.service, run, checkpoint)
    wanted = Fork(at=place, model=wish.model, edit=wish.edit)
    new, _ = await fork(context.service, run, wanted, by=asked.who.name)
    return Taken(runId=run, newRunId=new, place=place)


def refuse(problem: Problem, headers: Mapping[str, str]) -> Response:
    """A refusal in the shape of this family; what does not fit is 400 here."""
    status = 400 if problem.status == UNFIT else problem.status
    hint = f" ({problem.hint})" if problem.hint else ""
    told = Failure(error=ErrorText(problem.code, f"{problem.detail}{hint}", problem.hint))
    body = msgspec.json.encode(told)
    return Response(body, status, headers=dict(headers), media_type="application/json")


FAMILY = Family(
    name="approvals",
    prefix="/v1/",
    refuse=refuse,
    failure=Failure,
    routes=(
        Route(
            method="GET",
            path=f"{BASE}/approvals",
            handle=listed,
            need="viewer",
            say="Tool calls of a run that wait for an approval",
            answer=Approvals,
        ),
        Route(
            method="POST",
            path=f"{BASE}/approve",
            handle=approved,
            need="editor",
            say="Let a tool call be run",
            body=ApproveBody,
            answer=Resolved,
        ),
        Route(
            method="POST",
            path=f"{BASE}/reject",
            handle=rejected,
            need="editor",
            say="Do not let a tool call be run, and say why",
            body=RejectBody,
            answer=Resolved,
        ),
        Route(
            method="GET",
            path=f"{BASE}/events",
            handle=events,
            need="viewer",
            say="What happened, in the words of the definition's own system",
            query=EventsQuery,
            answer=Events,
            streams=True,
        ),
        Route(
            method="GET",
            path=f"{BASE}/tree",
            handle=tree,
            need="viewer",
            say="A run cycle by cycle",
            answer=Tree,
        ),
        Route(
            method="POST",
            path=f"{BASE}/edit-and-resume",
            handle=edited,
            need="editor",
            say="Go on from a checkpoint with other words, as a new run",
            body=EditBody,
            answer=Taken,
        ),
        Route(
            method="POST",
            path=f"{BASE}/swap-model",
            handle=swapped,
            need="editor",
            say="Go on from a checkpoint with another model, as a new run",
            body=SwapBody,
            answer=Taken,
        ),
    ),
)
