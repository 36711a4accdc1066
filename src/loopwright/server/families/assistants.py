"""Assistants and their loops, in the envelope of the system that they come from."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from loopwright.app.access import DENIED
from loopwright.app.assistants import Assistant, Assistants, Edit, decoded_criteria
from loopwright.app.loops import LoopStory
from loopwright.app.moments import timestamp
from loopwright.app.problems import Problem
from loopwright.model.record import JsonValue
from loopwright.server.assistant_shapes import (
    ApproveBody,
    ChangeBody,
    CreateBody,
    Failed,
    LoopAnswer,
    ManyAssistants,
    OneAssistant,
    ResolvedAnswer,
    StartBody,
    StatusAnswer,
    WrittenAssistant,
)
from loopwright.server.bodies import strict_json
from loopwright.server.looping import Looping
from loopwright.server.paging import PageQuery, paged
from loopwright.server.refusals import Refusal, assistant_refusal, unfit_is_bad
from loopwright.server.routes import Answer, Asked, Family, NoBody, Route

BASE = "/api/agents"
OURS = {"agent": "agent", "workspace": "workspace", "onDisconnect": "parting"}
REPLACED = ("id", "createdAt", "updatedAt", "status", "userId")
"""Fields of an exported assistant that this server sets itself."""

POLICY = "POLICY_ERROR"


# -- assistants ------------------------------------------------------------------------------------


async def listed(asked: Asked) -> Answer:
    page = paged(asked, "assistants", _looping(asked).assistants.all(), lambda one: one.id)
    return {**_good([_shown(one) for one in page.entries]), "next": page.next}


async def created(asked: Asked) -> Answer:
    assistants, edit = _looping(asked).assistants, _edit(asked, CreateBody)
    made = assistants.create(edit, by=asked.who.name)
    return {**_good(_shown(made)), "warnings": _warnings(assistants, made)}


async def shown(asked: Asked) -> Answer:
    return _good(_shown(_looping(asked).assistants.get(asked.params["agent"])))


async def changed(asked: Asked) -> Answer:
    assistants, edit = _looping(asked).assistants, _edit(asked, ChangeBody)
    found = await assistants.change(asked.params["agent"], edit, by=asked.who.name)
    return {**_good(_shown(found)), "warnings": _warnings(assistants, found)}


async def deleted(asked: Asked) -> Answer:
    _looping(asked).assistants.delete(asked.params["agent"], by=asked.who.name)
    return _good({"id": asked.params["agent"]})


# -- loops -----------------------------------------------------------------------------------------


async def started(asked: Asked) -> Answer:
    body, agent_id = asked.body(StartBody), asked.params["agent"]
    if asked.context.closing.is_set():
        raise Refusal(503, "draining", "the server is about to stop", headers={"Retry-After": "5"})
    await _looping(asked).start(
        agent_id,
        body.message,
        by=asked.who.name,
        parting=body.onDisconnect,
        allow_unknown_cost=body.allowUnknownCost,
    )
    return _good({"agentId": agent_id, "status": "started"})


async def stopped(asked: Asked) -> Answer:
    agent_id = asked.params["agent"]
    _looping(asked).known(agent_id)
    _, word = await _looping(asked).stop(agent_id, by=asked.who.name)
    return _good({"agentId": agent_id, "status": word})


async def status(asked: Asked) -> Answer:
    agent_id = asked.params["agent"]
    _looping(asked).known(agent_id)
    story = await _looping(asked).story(agent_id)
    return _good(status_of(agent_id, story))


async def approved(asked: Asked) -> Answer:
    body = asked.body(ApproveBody)
    _looping(asked).known(asked.params["agent"])
    await _looping(asked).assistants.review(
        asked.params["agent"],
        body.loopId,
        approved=body.approved,
        by=asked.who.name,
        text=body.text,
    )
    return _good({"resolved": True})


def status_of(agent_id: str, story: LoopStory | None) -> dict[str, JsonValue]:
    """How the loop of an assistant stands."""
    if story is None:
        nothing = {"run": None, "pending": None, "output": None, "error": None}
        return {"agentId": agent_id, "active": False, "state": None, **nothing}
    review = next(iter((story.reviews or story.questions).values()), None)
    return {
        "agentId": agent_id,
        "active": story.active,
        "state": story.state(),
        "run": story.run,
        "pending": review,
        "output": story.final_output if story.final_output is not None else story.last_output,
        "error": story.error,
    }


# -- shapes ----------------------------------------------------------------------------------------


def _looping(asked: Asked) -> Looping:
    return asked.context.part(Looping)


def _good(data: object) -> dict[str, object]:
    return {"success": True, "data": data}


def _edit(asked: Asked, kind: type[ChangeBody]) -> Edit:
    body, sent = asked.body(kind), strict_json(asked.raw)
    assert isinstance(sent, dict), "it was read as a body"
    given: dict[str, Any] = {
        name: msgspec.to_builtins(value)
        for name in body.__struct_fields__
        if (value := getattr(body, name)) is not UNSET
    }
    given = {**{name: value for name, value in sent.items() if name not in given}, **given}
    ours = {OURS[name]: given.pop(name) for name in OURS if name in given}
    kept = {name: value for name, value in given.items() if name not in REPLACED}
    return Edit(document=decoded_criteria(kept), ours=ours)


def _warnings(assistants: Assistants, made: Assistant) -> list[JsonValue]:
    """What is doubtful about an assistant: fields without effect, a pattern that never matches."""
    found = assistants.definition(made).warnings
    return [{"code": one.code, "message": one.message, "hint": one.hint} for one in found]


def _shown(assistant: Assistant) -> dict[str, JsonValue]:
    return {
        "id": assistant.id,
        **assistant.document,
        "agent": assistant.agent,
        "workspace": assistant.workspace,
        "onDisconnect": assistant.parting,
        "createdAt": timestamp(assistant.created_at),
        "updatedAt": timestamp(assistant.updated_at),
    }


def refuse(problem: Problem, headers: Mapping[str, str]) -> Response:
    """A refusal in the envelope of this family; what does not fit is 400 here."""
    status = unfit_is_bad(problem)
    if problem.code == "deactivated":
        status = 403
    told = Failed(
        success=False,
        error=assistant_refusal(problem),
        code=POLICY if problem.detail == DENIED else problem.code,
    )
    body = msgspec.json.encode(told)
    return Response(body, status, headers=dict(headers), media_type="application/json")


FAMILY = Family(
    name="assistants",
    prefix=BASE,
    refuse=refuse,
    failure=Failed,
    routes=(
        Route(
            method="GET",
            path=BASE,
            handle=listed,
            need="viewer",
            say="All assistants",
            query=PageQuery,
            answer=ManyAssistants,
        ),
        Route(
            method="POST",
            path=BASE,
            handle=created,
            need="editor",
            say="Make an assistant, with the settings of its loop",
            body=CreateBody,
            answer=WrittenAssistant,
            status=201,
        ),
        Route(
            method="GET",
            path=f"{BASE}/{{agent}}",
            handle=shown,
            need="viewer",
            say="One assistant",
            answer=OneAssistant,
        ),
        Route(
            method="PATCH",
            path=f"{BASE}/{{agent}}",
            handle=changed,
            need="editor",
            say="Change an assistant; a loop under way sees it with its next pass",
            body=ChangeBody,
            answer=WrittenAssistant,
        ),
        Route(
            method="DELETE",
            path=f"{BASE}/{{agent}}",
            handle=deleted,
            need="editor",
            say="Delete an assistant that has no loop under way",
        ),
        Route(
            method="POST",
            path=f"{BASE}/{{agent}}/loop/start",
            handle=started,
            need="editor",
            say="Start the loop of an assistant",
            body=StartBody,
            answer=LoopAnswer,
            status=202,
        ),
        Route(
            method="POST",
            path=f"{BASE}/{{agent}}/loop/stop",
            handle=stopped,
            need="editor",
            say="End the loop of an assistant now",
            body=NoBody,
            answer=LoopAnswer,
        ),
        Route(
            method="GET",
            path=f"{BASE}/{{agent}}/loop/status",
            handle=status,
            need="viewer",
            say="How the loop of an assistant stands",
            answer=StatusAnswer,
        ),
        Route(
            method="POST",
            path=f"{BASE}/{{agent}}/loop/approve",
            handle=approved,
            need="editor",
            say="Answer the review that a loop waits for",
            body=ApproveBody,
            answer=ResolvedAnswer,
        ),
    ),
)
