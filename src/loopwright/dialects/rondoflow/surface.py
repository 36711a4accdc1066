"""An assistant document as its own system writes it: persona, tools, budget, loop settings."""

import re
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from loopwright.syntax import check_text

CriterionType: TypeAlias = Literal["max_iterations", "regex", "test_pass", "manual"]

_MOST_CHARACTERS = {"regex": 500}
_DEFAULT_MOST = 200
_COMMAND = re.compile(r"[A-Za-z0-9_ ./-]+")
_SHELL_SIGNS = re.compile(r"[&|;<>$`*?()\"'\\~\n{}!#]")


class Surface(BaseModel):
    """Base: unknown keys are refused, nothing is coerced."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Criteria(Surface):
    """When the loop is done."""

    type: CriterionType = Field(description="Kind of criterion.")
    value: str = Field(description="A pattern for regex, a command for test_pass, else ignored.")

    @model_validator(mode="after")
    def _value_fits_type(self) -> "Criteria":
        most = _MOST_CHARACTERS.get(self.type, _DEFAULT_MOST)
        if len(self.value) > most:
            message = f"value must be text of at most {most} characters, not of {len(self.value)}"
            raise _fault("out_of_range", message)
        if self.type == "test_pass":
            _check_command(self.value)
        return self


def _check_command(value: str) -> None:
    hidden = check_text(value)
    if hidden:
        raise _fault("hidden_character", hidden, hint="delete it and type the word again")
    sign = _SHELL_SIGNS.search(value)
    if sign:
        shown = "a line break" if sign[0] == "\n" else sign[0]
        message = f"{shown} means something to a shell only, and no shell is used"
        hint = "put it into a script file and name that file here"
        raise _fault("shell_syntax", message, hint=hint)
    if not value.strip():
        raise _fault("bad_command", "the command is empty", hint="for example npm test")
    if not _COMMAND.fullmatch(value):
        odd = next(char for char in value if not _COMMAND.fullmatch(char))
        message = f"{odd} cannot be part of the command"
        hint = "letters, digits, blanks and _ . / - can; a script file can hold the rest"
        raise _fault("bad_command", message, hint=hint)


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


class Assistant(Surface):
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
        default=None, alias="allowedTools", description="Another word for tools."
    )
    budget: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        default=None, description="USD that one iteration may cost."
    )
    loop_budget: LoopBudget | None = Field(
        default=None, alias="loopBudget", description="What the whole loop may use."
    )
    loop_enabled: bool = Field(
        default=False, alias="loopEnabled", description="Must be true to start a loop."
    )
    loop_criteria: Criteria | None = Field(
        default=None, alias="loopCriteria", description="Null: only the number of iterations."
    )
    max_iterations: Annotated[int, Field(ge=1, le=100)] = Field(
        default=10, alias="maxIterations", description="The most iterations."
    )
