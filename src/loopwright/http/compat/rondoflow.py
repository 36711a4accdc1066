"""Assistants and their loops, with the requests and responses of RondoFlow."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from loopwright.http.operation_routes import app_of, caller_of
from loopwright.http.requests import (
    Answer,
    Body,
    NoBody,
    PageQuery,
    Route,
    RouteFamily,
    RouteRequest,
    strict_json,
)
from loopwright.http.responses import assistant_refusal, unfit_is_bad
from loopwright.model.record import JsonValue
from loopwright.operations.accounts.access import DENIED
from loopwright.operations.loops.assistants import (
    AssistantEdit,
    StoredAssistant,
    decoded_criteria,
)
from loopwright.operations.loops.dialect_events import LoopStory
from loopwright.operations.problems import ProblemReport
from loopwright.operations.use_cases import assistants
from loopwright.operations.use_cases.operation import App, Caller, PageRequest
from loopwright.views.event_records import timestamp

Text: TypeAlias = str | UnsetType | None
Parting: TypeAlias = Literal["keep", "teardown"] | UnsetType | None


class LoopCriteria(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """When a loop is done; `manual` and `max_iterations` need no value."""

    type: Literal["max_iterations", "regex", "test_pass", "manual"]
    value: str | None = None


class AssistantLoopBudget(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a whole loop may use."""

    usd: float | None = None
    tokens: int | None = None
    minutes: int | None = None


class ChangeAssistantBody(Body, forbid_unknown_fields=False, kw_only=True):
    """Settings of an assistant; what is left out stays as it is. Further fields, as exports have
    them, are kept with a warning; a misspelt setting of the loop is refused.
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | UnsetType = UNSET
    description: Text = UNSET
    persona: Text = UNSET
    systemPrompt: Text = UNSET
    model: Text = UNSET
    tools: list[str] | UnsetType | None = UNSET
    allowedTools: list[str] | UnsetType | None = UNSET
    budget: float | UnsetType | None = UNSET
    loopBudget: AssistantLoopBudget | UnsetType | None = UNSET
    loopEnabled: bool | UnsetType = UNSET
    loopCriteria: LoopCriteria | str | UnsetType | None = UNSET  # a text: JSON, as in a database
    maxIterations: Annotated[int, msgspec.Meta(ge=1, le=100)] | UnsetType = UNSET
    agent: Text = UNSET
    workspace: Text = UNSET
    onDisconnect: Parting = UNSET


class CreateBody(ChangeAssistantBody, kw_only=True):
    """A new assistant, with the settings of its loop if it shall have one."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class StartAssistantLoopBody(Body):
    """What a loop is started with."""

    message: Annotated[str, msgspec.Meta(min_length=1)]
    onDisconnect: Literal["keep", "teardown"] | None = None
    allowUnknownCost: bool = False  # limits in USD need not cover agents of unknown cost


class AnswerReviewBody(Body):
    """The answer to a review."""

    loopId: Annotated[str, msgspec.Meta(min_length=1)]
    approved: bool
    text: str = ""


class AssistantData(msgspec.Struct):
    """An assistant."""

    id: str
    name: str
    loopEnabled: bool
    loopCriteria: LoopCriteria | None
    maxIterations: int
    agent: str | None
    workspace: str | None
    onDisconnect: Literal["keep", "teardown"] | None
    createdAt: str
    updatedAt: str


class OneAssistant(msgspec.Struct):
    """The envelope of one assistant."""

    success: bool
    data: AssistantData


class Warned(msgspec.Struct):
    """Something doubtful about an assistant."""

    code: str
    message: str
    hint: str | None


class WrittenAssistant(msgspec.Struct):
    """The envelope of an assistant that was made or changed."""

    success: bool
    data: AssistantData
    warnings: list[Warned]


class ManyAssistants(msgspec.Struct):
    """The envelope of all assistants; `next` is the cursor of those that follow."""

    success: bool
    data: list[AssistantData]
    next: str | None


class LoopData(msgspec.Struct):
    """The result of a request to start a loop."""

    agentId: str
    status: str


class LoopAnswer(msgspec.Struct):
    """The envelope of that."""

    success: bool
    data: LoopData


class LoopStateData(msgspec.Struct):
    """The state of a loop."""

    agentId: str
    sessionId: str
    iteration: int
    maxIterations: int
    criteria: LoopCriteria
    status: Literal["running", "paused", "completed", "failed"]
    progressLog: list[str]


class ReviewData(msgspec.Struct):
    """A review that a loop waits for."""

    loopId: str
    iteration: int
    output: str


class StatusData(msgspec.Struct):
    """Whether an assistant has an active loop, and its state; else how its last one ended."""

    agentId: str
    active: bool
    state: LoopStateData | None
    run: str | None
    pending: ReviewData | None
    output: str | None
    error: str | None


class StatusAnswer(msgspec.Struct):
    """The envelope of that."""

    success: bool
    data: StatusData


class ReviewResolved(msgspec.Struct):
    """A review that was answered."""

    resolved: bool


class ResolvedAnswer(msgspec.Struct):
    """The envelope of that."""

    success: bool
    data: ReviewResolved


class AssistantFailure(msgspec.Struct):
    """The envelope of every refusal."""

    success: bool
    error: str
    code: str


BASE = "/api/agents"
OURS = {"agent": "agent", "workspace": "workspace", "onDisconnect": "parting"}
REPLACED = ("id", "createdAt", "updatedAt", "status", "userId")
"""Fields of an exported assistant that this server sets itself."""

POLICY = "POLICY_ERROR"


# -- assistants ------------------------------------------------------------------------------------


async def listed(request: RouteRequest) -> Answer:
    query = request.query(PageQuery)
    wanted = PageRequest(limit=query.limit, cursor=query.cursor)
    page = await assistants.list_assistants(*_call(request), wanted)
    return {**_good([_shown(one) for one in page.assistants]), "next": page.next}


async def created(request: RouteRequest) -> Answer:
    wanted = assistants.CreateAssistant(edit=_edit(request, CreateBody))
    return _checked(await assistants.create(*_call(request), wanted))


async def shown(request: RouteRequest) -> Answer:
    return _good(_shown(await assistants.show(*_call(request), _reference(request))))


async def changed(request: RouteRequest) -> Answer:
    edit = _edit(request, ChangeAssistantBody)
    wanted = assistants.ChangeAssistant(agent=request.params["agent"], edit=edit)
    return _checked(await assistants.change(*_call(request), wanted))


async def deleted(request: RouteRequest) -> Answer:
    await assistants.remove(*_call(request), _reference(request))
    return _good({"id": request.params["agent"]})


# -- loops -----------------------------------------------------------------------------------------


async def started(request: RouteRequest) -> Answer:
    body, agent_id = request.body(StartAssistantLoopBody), request.params["agent"]
    wanted = assistants.StartAssistant(
        agent=agent_id,
        message=body.message,
        on_disconnect=body.onDisconnect,
        allow_unknown_cost=body.allowUnknownCost,
    )
    await assistants.start(*_call(request), wanted)
    return _good({"agentId": agent_id, "status": "started"})


async def stopped(request: RouteRequest) -> Answer:
    stopped_run = await assistants.stop(*_call(request), _reference(request))
    return _good({"agentId": request.params["agent"], "status": stopped_run.stop})


async def status(request: RouteRequest) -> Answer:
    found = await assistants.status(*_call(request), _reference(request))
    return _good(status_of(request.params["agent"], found.story))


async def approved(request: RouteRequest) -> Answer:
    body = request.body(AnswerReviewBody)
    wanted = assistants.ReviewAssistant(
        agent=request.params["agent"], loop=body.loopId, approved=body.approved, text=body.text
    )
    await assistants.review(*_call(request), wanted)
    return _good({"resolved": True})


def status_of(agent_id: str, story: LoopStory | None) -> dict[str, JsonValue]:
    """The status of the loop of an assistant."""
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


def _call(request: RouteRequest) -> tuple[App, Caller]:
    return request.context.part(app_of), caller_of(request.who)


def _reference(request: RouteRequest) -> assistants.AssistantReference:
    return assistants.AssistantReference(agent=request.params["agent"])


def _good(data: object) -> dict[str, object]:
    return {"success": True, "data": data}


def _edit(request: RouteRequest, kind: type[ChangeAssistantBody]) -> AssistantEdit:
    body, sent = request.body(kind), strict_json(request.raw)
    assert isinstance(sent, dict), "it was read as a body"
    given: dict[str, Any] = {
        name: msgspec.to_builtins(value)
        for name in body.__struct_fields__
        if (value := getattr(body, name)) is not UNSET
    }
    given = {**{name: value for name, value in sent.items() if name not in given}, **given}
    ours = {OURS[name]: given.pop(name) for name in OURS if name in given}
    kept = {name: value for name, value in given.items() if name not in REPLACED}
    return AssistantEdit(document=decoded_criteria(kept), ours=ours)


def _checked(stored: assistants.CheckedAssistant) -> dict[str, object]:
    warnings = [
        {"code": one.code, "message": one.message, "hint": one.hint} for one in stored.warnings
    ]
    return {**_good(_shown(stored.assistant)), "warnings": warnings}


def _shown(assistant: StoredAssistant) -> dict[str, JsonValue]:
    return {
        "id": assistant.id,
        **assistant.document,
        "agent": assistant.agent,
        "workspace": assistant.workspace,
        "onDisconnect": assistant.parting,
        "createdAt": timestamp(assistant.created_at),
        "updatedAt": timestamp(assistant.updated_at),
    }


def refuse(problem: ProblemReport, headers: Mapping[str, str]) -> Response:
    """A refusal in the envelope of this family; what does not fit is 400 here."""
    status = unfit_is_bad(problem)
    if problem.code == "deactivated":
        status = 403
    failure = AssistantFailure(
        success=False,
        error=assistant_refusal(problem),
        code=POLICY if problem.detail == DENIED else problem.code,
    )
    body = msgspec.json.encode(failure)
    return Response(body, status, headers=dict(headers), media_type="application/json")


FAMILY = RouteFamily(
    name="assistants",
    prefix=BASE,
    refuse=refuse,
    failure=AssistantFailure,
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
            say="Change an assistant; an active loop uses the change from its next iteration",
            body=ChangeAssistantBody,
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
            body=StartAssistantLoopBody,
            answer=LoopAnswer,
            status=202,
            draining="refuse",
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
            say="The status of the loop of an assistant",
            answer=StatusAnswer,
        ),
        Route(
            method="POST",
            path=f"{BASE}/{{agent}}/loop/approve",
            handle=approved,
            need="editor",
            say="Answer the review that a loop waits for",
            body=AnswerReviewBody,
            answer=ResolvedAnswer,
        ),
    ),
)
