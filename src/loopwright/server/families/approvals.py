"""Approvals: what a run waits for, the answers, and going on elsewhere. Whatever waits is here, not
tool calls alone: what is no call goes by the id of its gate.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import msgspec
from starlette.responses import Response

from loopwright.app.assistants import Parting
from loopwright.app.checkpoints import place_before
from loopwright.app.forking import Fork, fork
from loopwright.app.moments import timestamp
from loopwright.app.problems import Problem
from loopwright.app.views.asked import asked_call
from loopwright.errors import NotFound
from loopwright.kernel.frames import GateState
from loopwright.model.actions import Decision
from loopwright.model.record import JsonValue
from loopwright.server.families.run_forks import beside
from loopwright.server.families.runs import check_open
from loopwright.server.refusals import unfit_is_bad
from loopwright.server.routes import Answer, Asked, Body, Family, Route

BASE = "/v1/runs/{run}"


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
    allowUnknownCost: bool = False
    onDisconnect: Parting | None = None


class SwapBody(Body):
    """Go on from a checkpoint with another model; without one, from the newest."""

    model: Annotated[str, msgspec.Meta(min_length=1)]
    checkpointId: str | None = None
    allowUnknownCost: bool = False
    onDisconnect: Parting | None = None


class Pending(msgspec.Struct):
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


class Approvals(msgspec.Struct):
    """Everything that a run waits for."""

    approvals: list[Pending]


class Resolved(msgspec.Struct):
    """What was decided."""

    runId: str
    callId: str
    kind: str
    approver: str
    reason: str | None
    at: str


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
    """The open gates of a run, with the calls that they are about."""
    run, service = asked.params["run"], asked.context.service
    picture = await asked.context.gallery.picture(run)
    found: list[tuple[str, Pending]] = []
    for name, gate in picture.state.gates.items():
        call = asked_call(gate, service.read_text) or _no_call(gate)
        reason = call["reason"]
        one = Pending(
            runId=run,
            callId=str(call["id"]),
            tool=str(call["tool"]),
            args=call["arguments"],
            reason=reason if isinstance(reason, str) else None,
            gateId=name,
            message=gate.message,
            answers=list(gate.answers),
        )
        found.append((name, one))
    return found


def _no_call(gate: GateState) -> dict[str, JsonValue]:
    return {"id": gate.gate, "tool": "", "arguments": {}, "reason": gate.message}


async def _decide(asked: Asked, call_id: str, decision: Decision, reason: str) -> Answer:
    gates = [name for name, one in await _pending(asked) if call_id in (one.callId, name)]
    if not gates:
        raise NotFound(
            f"nothing with the id {call_id[:80]!a} waits for an approval", code="approval_not_found"
        )
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


# -- going on elsewhere ----------------------------------------------------------------------------


async def edited(asked: Asked) -> Answer:
    body = asked.body(EditBody)
    wish = Fork(
        at=None,
        edit=body.newText,
        beside=beside(asked, body.onDisconnect),
        allow_unknown_cost=body.allowUnknownCost,
    )
    return await _taken_up(asked, body.checkpointId, wish)


async def swapped(asked: Asked) -> Answer:
    body = asked.body(SwapBody)
    wish = Fork(
        at=None,
        model=body.model,
        beside=beside(asked, body.onDisconnect),
        allow_unknown_cost=body.allowUnknownCost,
    )
    return await _taken_up(asked, body.checkpointId, wish)


async def _taken_up(asked: Asked, checkpoint: str | None, wish: Fork) -> Answer:
    check_open(asked)
    context, run = asked.context, asked.params["run"]
    place = place_before(context.service, run, checkpoint)
    wish = replace(wish, at=place, workspaces=context.here.workspaces)
    new, _ = await fork(context.service, run, wish, by=asked.who.name)
    return Taken(runId=run, newRunId=new, place=place)


def refuse(problem: Problem, headers: Mapping[str, str]) -> Response:
    """A refusal in the shape of this family; what does not fit is 400 here."""
    status = unfit_is_bad(problem)
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
            say="What a run waits for: tool calls that need an approval, and every other gate",
            answer=Approvals,
        ),
        Route(
            method="POST",
            path=f"{BASE}/approve",
            handle=approved,
            need="editor",
            say="Let a tool call be run, or approve what another gate asks about",
            body=ApproveBody,
            answer=Resolved,
        ),
        Route(
            method="POST",
            path=f"{BASE}/reject",
            handle=rejected,
            need="editor",
            say="Refuse a tool call, or reject what another gate asks about, and say why",
            body=RejectBody,
            answer=Resolved,
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
