"""Assistants: stored agents with a loop, as RondoFlow has them, and their loops.

They have no route of their own in the table: `http/compat/rondoflow.py` and the socket serve them
with the payloads of that system.
"""

import os

import msgspec

from loopwright.operations.accounts.access import acting_as
from loopwright.operations.api_types import Request
from loopwright.operations.loops.assistants import AssistantEdit, StoredAssistant
from loopwright.operations.loops.dialect_events import LoopStory
from loopwright.operations.loops.loop_disconnects import Looping
from loopwright.operations.messages import ConversationMessage, assistant_start, model_of
from loopwright.operations.problems import rendered
from loopwright.operations.run_groups import OnDisconnect
from loopwright.operations.run_start import launch_run
from loopwright.operations.run_workspaces import start_warnings
from loopwright.operations.use_cases import gates, runs
from loopwright.operations.use_cases.gates import NamedAnswer
from loopwright.operations.use_cases.operation import (
    App,
    Caller,
    PageRequest,
    RunReference,
    operation,
    page_of,
)
from loopwright.syntax.document import Diagnostic
from loopwright.views.run_responses import RunSummary, StoppedRun


class AssistantReference(Request):
    """An assistant, by its id."""

    agent: str


class CreateAssistant(Request):
    """The settings of a new assistant."""

    edit: AssistantEdit


class ChangeAssistant(AssistantReference):
    """What changes of an assistant."""

    edit: AssistantEdit


class StartAssistant(AssistantReference, kw_only=True):
    """The message that a loop is started with, and what happens when its starter disconnects:
    `otherwise` counts where neither this request nor the assistant says it.
    """

    message: str
    on_disconnect: OnDisconnect | None = None
    otherwise: OnDisconnect | None = None
    allow_unknown_cost: bool = False


class AnswerConversation(Request):
    """A conversation, whose last message is answered."""

    messages: tuple[ConversationMessage, ...]


class ReviewAssistant(AssistantReference):
    """The answer to a review that a loop waits for."""

    loop: str
    approved: bool
    text: str = ""


class AssistantPage(msgspec.Struct):
    """A page of assistants."""

    assistants: list[StoredAssistant]
    next: str | None


class CheckedAssistant(msgspec.Struct):
    """An assistant that was stored, and what is doubtful about it."""

    assistant: StoredAssistant
    warnings: list[Diagnostic]


class StartedAssistant(msgspec.Struct):
    """A loop that was started, with what is doubtful about it."""

    run: str
    warnings: list[str]


class AssistantStatus(msgspec.Struct):
    """The loop of an assistant, or the last one that it had."""

    story: LoopStory | None


def looping_of(app: App) -> Looping:
    """The assistants of a data directory and their loops; a part of an `App`."""
    return Looping(app.service, app.records, app.settings, app.workspace)


@operation("assistants.list", "query", "viewer", "All assistants")
async def list_assistants(app: App, _caller: Caller, request: PageRequest) -> AssistantPage:
    """A page of the assistants, by id."""
    page = page_of(
        app.cursors,
        "assistants",
        app.part(looping_of).assistants.all(),
        lambda one: one.id,
        limit=request.limit,
        cursor=request.cursor,
    )
    return AssistantPage(assistants=page.entries, next=page.next)


@operation("assistants.show", "query", "viewer", "One assistant")
async def show(app: App, _caller: Caller, request: AssistantReference) -> StoredAssistant:
    """One assistant."""
    return app.part(looping_of).assistants.get(request.agent)


@operation(
    "assistants.create",
    "command",
    "editor",
    "Create an assistant with the settings of its loop",
    audit=("assistant.created",),
    draining="serve",
)
async def create(app: App, caller: Caller, request: CreateAssistant) -> CheckedAssistant:
    """Store a new assistant."""
    assistants = app.part(looping_of).assistants
    made = assistants.create(request.edit, by=caller.name)
    return CheckedAssistant(assistant=made, warnings=assistants.warnings(made))


@operation(
    "assistants.change",
    "command",
    "editor",
    "Change an assistant; a running loop uses it from its next iteration",
    audit=("assistant.changed",),
    draining="serve",
)
async def change(app: App, caller: Caller, request: ChangeAssistant) -> CheckedAssistant:
    """Change an assistant; what is not given stays as it is."""
    assistants = app.part(looping_of).assistants
    changed = await assistants.change(request.agent, request.edit, by=caller.name)
    return CheckedAssistant(assistant=changed, warnings=assistants.warnings(changed))


@operation(
    "assistants.remove",
    "command",
    "editor",
    "Delete an assistant whose loop is not running",
    audit=("assistant.deleted",),
    draining="serve",
)
async def remove(app: App, caller: Caller, request: AssistantReference) -> None:
    """Delete an assistant."""
    app.part(looping_of).assistants.delete(request.agent, by=caller.name)


@operation(
    "assistants.start",
    "command",
    "editor",
    "Start the loop of an assistant",
    audit=("run.start",),
    draining="refuse",
)
async def start(app: App, caller: Caller, request: StartAssistant) -> StartedAssistant:
    """Start a loop, and store who started it for the case that they disconnect."""
    looping = app.part(looping_of)
    run = await looping.start(
        request.agent,
        request.message,
        by=caller.name,
        parting=request.on_disconnect,
        otherwise=request.otherwise,
        allow_unknown_cost=request.allow_unknown_cost,
    )
    assistants = looping.assistants
    definition = assistants.definition(assistants.get(request.agent))
    warnings = [*rendered(definition.warnings), *start_warnings(app.service, run)]
    return StartedAssistant(run=run, warnings=warnings)


@operation(
    "assistants.stop",
    "command",
    "editor",
    "End the loop of an assistant now",
    audit=runs.stop.audit,
    draining="serve",
    waits_seconds=runs.stop.waits_seconds,
)
async def stop(app: App, caller: Caller, request: AssistantReference) -> StoppedRun:
    """End a loop and wait for its end, so that the next one can be started."""
    looping = app.part(looping_of)
    looping.known(request.agent)
    run = looping.assistants.open_run(request.agent)
    return await runs.stop(app, caller, RunReference(run=run))


@operation("assistants.status", "query", "viewer", "The status of the loop of an assistant")
async def status(app: App, _caller: Caller, request: AssistantReference) -> AssistantStatus:
    """The loop of an assistant; NotFound unless there is such an assistant or loop."""
    looping = app.part(looping_of)
    looping.known(request.agent)
    return AssistantStatus(story=await looping.story(request.agent))


@operation(
    "assistants.review",
    "command",
    "editor",
    "Answer the review that the loop of an assistant waits for",
    audit=gates.approve.audit,
    draining="serve",
)
async def review(app: App, caller: Caller, request: ReviewAssistant) -> RunSummary:
    """Approve or reject the result of an iteration."""
    looping = app.part(looping_of)
    looping.known(request.agent)
    gate = looping.assistants.open_review(request.agent, request.loop)
    decision = NamedAnswer(decision="approve" if request.approved else "reject", text=request.text)
    return await gates.answer_named(app, caller, gate, decision)


@operation(
    "assistants.answer",
    "command",
    "editor",
    "Answer the last message of a conversation",
    audit=runs.start.audit,
    draining="refuse",
)
async def answer(app: App, caller: Caller, request: AnswerConversation) -> str:
    """Start the run that answers; its id."""
    model = model_of(os.environ, app.settings.agent)
    start = assistant_start(request.messages, model=model, workspace=app.workspace, by=caller.name)
    with acting_as("admin"):  # its plan and its model are the server's own
        return await launch_run(app.service, start)


OPERATIONS = (
    list_assistants,
    create,
    show,
    change,
    remove,
    start,
    stop,
    status,
    review,
    answer,
)
