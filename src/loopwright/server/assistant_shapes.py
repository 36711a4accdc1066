"""What requests about assistants carry and are answered with, in the words of their own system."""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from loopwright.server.routes import Body

Text: TypeAlias = str | UnsetType | None
Parting: TypeAlias = Literal["keep", "teardown"] | UnsetType | None


class Criteria(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """When a loop is done; `manual` and `max_iterations` need no value."""

    type: Literal["max_iterations", "regex", "test_pass", "manual"]
    value: str | None = None


class Budget(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a whole loop may use."""

    usd: float | None = None
    tokens: int | None = None
    minutes: int | None = None


class ChangeBody(Body, forbid_unknown_fields=False, kw_only=True):
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
    loopBudget: Budget | UnsetType | None = UNSET
    loopEnabled: bool | UnsetType = UNSET
    loopCriteria: Criteria | str | UnsetType | None = UNSET  # a text: JSON, as in a database
    maxIterations: Annotated[int, msgspec.Meta(ge=1, le=100)] | UnsetType = UNSET
    agent: Text = UNSET
    workspace: Text = UNSET
    onDisconnect: Parting = UNSET


class CreateBody(ChangeBody, kw_only=True):
    """A new assistant, with the settings of its loop if it shall have one."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class StartBody(Body):
    """What a loop is started with."""

    message: Annotated[str, msgspec.Meta(min_length=1)]
    onDisconnect: Literal["keep", "teardown"] | None = None
    allowUnknownCost: bool = False  # limits in USD need not cover agents of unknown cost


class ApproveBody(Body):
    """The answer to a review."""

    loopId: Annotated[str, msgspec.Meta(min_length=1)]
    approved: bool
    text: str = ""


class AssistantData(msgspec.Struct):
    """An assistant."""

    id: str
    name: str
    loopEnabled: bool
    loopCriteria: Criteria | None
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
    """What became of a wish for a loop."""

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
    criteria: Criteria
    status: Literal["running", "paused", "completed", "failed"]
    progressLog: list[str]


class ReviewData(msgspec.Struct):
    """A review that a loop waits for."""

    loopId: str
    iteration: int
    output: str


class StatusData(msgspec.Struct):
    """Whether an assistant has a loop, and how it stands; else how its last one ended."""

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


class Resolved(msgspec.Struct):
    """A review that was answered."""

    resolved: bool


class ResolvedAnswer(msgspec.Struct):
    """The envelope of that."""

    success: bool
    data: Resolved


class Failed(msgspec.Struct):
    """The envelope of every refusal."""

    success: bool
    error: str
    code: str
