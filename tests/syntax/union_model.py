"""A model with every kind of union, for the tests of this folder."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Signal(Strict):
    signal: str


class Command(Strict):
    command: tuple[str, ...]
    timeout: Annotated[float, Field(gt=0, le=60)] | None = None

    @model_validator(mode="after")
    def _has_program(self) -> "Command":
        if not self.command:
            raise PydanticCustomError("no_program", "names no program", {"at": "command"})
        return self


class All(Strict):
    all: "list[Check]"


Check = Signal | Command | All | str
All.model_rebuild()


class Shell(Strict):
    type: Literal["sh"]
    argv: list[str]


class Code(Strict):
    type: Literal["py"]
    code: str


class Run(Strict):
    run: str


class Ask(Strict):
    ask: str
    whom: str | None = None


class Far(Strict):
    far: int
    unit: str


class Near(Strict):
    near: int
    unit: str


def first_key(value: object) -> str | None:
    return (
        next((k for k in ("run", "ask") if k in value), None) if isinstance(value, dict) else None
    )


class Plan(Strict):
    until: Check = ""
    limit: Literal["unlimited"] | Annotated[int, Field(ge=1)] = 1
    many: Annotated[list[str], Field(min_length=1)] | str = ""
    way: Far | Near | None = None
    tool: Annotated[Shell | Code, Field(discriminator="type")] | None = None
    act: (
        Annotated[Annotated[Run, Tag("run")] | Annotated[Ask, Tag("ask")], Discriminator(first_key)]
        | None
    ) = None
