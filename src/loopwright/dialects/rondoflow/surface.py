"""An assistant document as its own system writes it: persona, tools, budget, loop settings."""

import re
from typing import Annotated, Literal, TypeAlias, TypeGuard

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from loopwright.syntax.characters import check_text

CriterionType: TypeAlias = Literal["max_iterations", "regex", "test_pass", "manual"]

_MOST_CHARACTERS = {"regex": 500}
_DEFAULT_MOST = 200
_NEEDS_VALUE = {"regex": "a pattern, for example DONE", "test_pass": "for example npm test"}

EXPORTED: frozenset[str] = frozenset(
    (
        *("agentId", "avatar", "canvasX", "canvasY", "category", "createdAt", "externalFolders"),
        *("icon", "isFacilitator", "isFavorite", "mcpAssignments", "mcpServers", "memories"),
        *("memoryEnabled", "moderatedTables", "nodeId", "order", "participations"),
        *("permissionMode", "policies", "provider", "providerConfig", "purpose", "scope"),
        *("sessions", "skills", "status", "tags", "teamEnabled", "updatedAt", "user", "userId"),
        "version",
    )
)
"""Fields of an assistant in exports, responses and catalogs that are not about its loop."""

UNAPPLIED: frozenset[str] = frozenset(
    (
        *("externalFolders", "mcpAssignments", "mcpServers", "memories", "policies", "provider"),
        *("providerConfig", "scope", "skills"),
    )
)
"""Those that would change what the assistant may do or knows."""


class Surface(BaseModel):
    """Base: nothing is coerced."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Exported(Surface):
    """Base of what other systems export: more fields than the loop needs are let through."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class Criteria(Exported):
    """When the loop is done."""

    type: CriterionType = Field(description="Kind of criterion.")
    value: str | None = Field(
        default=None,
        description="A pattern for regex, a command for test_pass; the others need none.",
    )

    @model_validator(mode="after")
    def _value_fits_type(self) -> "Criteria":
        if self.value is None:
            if self.type in _NEEDS_VALUE:
                message = f"value is required for {self.type}"
                raise _fault("missing_field", message, hint=_NEEDS_VALUE[self.type])
            return self
        most = _MOST_CHARACTERS.get(self.type, _DEFAULT_MOST)
        if len(self.value) > most:
            message = f"value must be text of at most {most} characters, not of {len(self.value)}"
            raise _fault("out_of_range", message)
        if self.type == "test_pass":
            _check_command(self.value)
        return self


def _check_command(value: str) -> None:
    hidden = check_text(re.sub(r"\s", " ", value))
    if hidden:
        raise _fault("hidden_character", hidden, hint="delete it and type the word again")
    if not value.strip():
        raise _fault("bad_command", "the command is empty", hint=_NEEDS_VALUE["test_pass"])


def _fault(code: str, message: str, *, hint: str | None = None) -> PydanticCustomError:
    context: dict[str, object] = {"text": message, "at": "value"}
    return PydanticCustomError(code, "{text}", context | ({"hint": hint} if hint else {}))


class LoopBudget(Surface):
    """What the whole loop may use; the budget of the assistant is for one iteration."""

    usd: Annotated[float, Field(gt=0, le=1_000_000)] | None = Field(
        default=None, description="Money."
    )
    tokens: Annotated[int, Field(ge=1)] | None = Field(default=None, description="Tokens.")
    minutes: Annotated[int, Field(ge=1, le=525_600)] | None = Field(
        default=None, description="Time."
    )


def is_budget(value: object) -> TypeGuard[float]:
    """Whether a value of a policy is an amount of USD."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value < float("inf")


def _off_if_null(value: object) -> object:
    return False if value is None else value


class Assistant(Exported):
    """One assistant, many attempts."""

    id: str | None = Field(default=None, description="Id in the system it comes from.")
    name: Annotated[str, Field(min_length=1, max_length=200)] = Field(description="Its name.")
    description: str | None = Field(default=None, description="What it is for.")
    persona: str | None = Field(default=None, description="Standing instructions.")
    system_prompt: str | None = Field(
        default=None, alias="systemPrompt", description="Another word for persona."
    )
    model: str | None = Field(default=None, description="Model to use.")
    tools: list[str] | None = Field(default=None, description="The only tools it may use.")
    allowed_tools: list[str] | None = Field(
        default=None,
        alias="allowedTools",
        description="Another word for tools; none or * is all that the agent has.",
    )
    budget: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        default=None, description="USD that one iteration may cost."
    )
    loop_budget: LoopBudget | None = Field(
        default=None, alias="loopBudget", description="What the whole loop may use."
    )
    loop_enabled: Annotated[
        bool, BeforeValidator(_off_if_null, json_schema_input_type=bool | None)
    ] = Field(default=False, alias="loopEnabled", description="Must be true to start a loop.")
    loop_criteria: Criteria | None = Field(
        default=None, alias="loopCriteria", description="Null: only the number of iterations."
    )
    max_iterations: Annotated[int, Field(ge=1, le=100)] = Field(
        default=10, alias="maxIterations", description="The most iterations."
    )
