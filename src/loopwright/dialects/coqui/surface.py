"""The form of a Coqui loop definition: its roles, what ends the loop, and its parameters.

Parameters are `{{name}}` in any text of a definition and in the goal. Inserted values are not
searched for further parameters, and an undeclared parameter is left unchanged.

Numbers may be written in quotes, because a parameter can only be in a text. Unknown keys have been
dropped with a warning before a value is validated here (`rules.py`).

The JSON Schema of the format, for editors, is generated from these models.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationInfo,
    WithJsonSchema,
)

from loopwright.model.actions import MAX_ITERATIONS
from loopwright.model.record import JsonValue as SchemaValue
from loopwright.model.record import Lit, Ref, Template
from loopwright.syntax.document import clip, show
from loopwright.syntax.notations import point_ms, span_ms
from loopwright.syntax.validation import HIDDEN, Maybe, fault, visible


def recognise(value: object) -> int:
    """From 0 (not mine) to 100."""
    if not isinstance(value, dict):
        return 0
    if "termination_condition" in value:
        return 100
    return 60 if isinstance(value.get("roles"), list) else 0


_PLACE = re.compile(r"\{\{[ \t]*([A-Za-z][A-Za-z0-9_]*)[ \t]*\}\}")


def names_in(text: str) -> Iterator[str]:
    """The parameters in a text."""
    return (found[1] for found in _PLACE.finditer(text))


def only_name(text: str) -> str | None:
    """The parameter that a text consists of, if it consists of one."""
    found = _PLACE.fullmatch(text.strip())
    return found[1] if found else None


def filled(text: str, values: Mapping[str, object]) -> str:
    """The text with all places filled for which there is a value."""

    def value(place: "re.Match[str]") -> str:
        return str(values[place[1]]) if place[1] in values else place[0]

    return _PLACE.sub(value, text)


def template(text: str, declared: Mapping[str, object]) -> Template:
    """The text with a reference for each declared parameter."""
    parts: list[Lit | Ref] = []
    literal, at = "", 0
    for place in _PLACE.finditer(text):
        literal += text[at : place.start()]
        at = place.end()
        if place[1] not in declared:
            literal += place[0]
            continue
        parts += [Lit(text=literal)] if literal else []
        parts.append(Ref(of="input", name=place[1]))
        literal = ""
    literal += text[at:]
    return (*parts, Lit(text=literal)) if literal else tuple(parts)


MAX_STEPS = 100
DEFAULT_ITERATIONS = 1
"""Of a definition that does not say what ends it."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_PARAMETER = re.compile(r"[a-z][a-z0-9_]*")
_WHOLE = re.compile(r"\s*[+]?[0-9]{1,12}\s*")
_NUMBER = re.compile(r"\s*[+-]?[0-9]+(?:\.[0-9]+)?\s*")
_LONGEST = 63


class CoquiModel(BaseModel):
    """Base: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


# -- texts -----------------------------------------------------------------------------------------


def _name(text: str) -> str:
    visible(text)
    if _NAME.fullmatch(text) and len(text) <= _LONGEST:
        return text
    better = re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-")
    hint = "use a-z, 0-9, - and _, first a letter or a digit"
    hint += f": {better}" if _NAME.fullmatch(better) and len(better) <= _LONGEST else ""
    raise fault("bad-id", f'"{clip(text)}" cannot be a name', hint=hint)


def _role(text: str) -> str:
    return text if any(names_in(text)) else _name(text)


def _parameter(text: str) -> str:
    if not _PARAMETER.fullmatch(text) or len(text) > _LONGEST:
        message = f'"{clip(text)}" cannot be the name of a parameter'
        raise fault("bad-id", message, hint="use a-z, 0-9 and _, first a letter")
    return text


def _check_text(text: str, info: ValidationInfo) -> str:
    if not text.strip():
        raise fault("missing-field", f"{info.field_name} is empty")
    return text


Name: TypeAlias = Annotated[
    str,
    AfterValidator(_name),
    WithJsonSchema({"type": "string", "pattern": f"^{_NAME.pattern}$", "maxLength": _LONGEST}),
]
Role: TypeAlias = Annotated[str, AfterValidator(_role)]
ParameterName: TypeAlias = Annotated[
    str,
    AfterValidator(_parameter),
    WithJsonSchema({"type": "string", "pattern": f"^{_PARAMETER.pattern}$"}),
]
Prose: TypeAlias = Annotated[str, Field(max_length=100_000), AfterValidator(_check_text)]


# -- numbers, which may be a place for a parameter -------------------------------------------------


def whole(value: object, most: int) -> int | str | None:
    """A whole number from 1 to `most`, also in quotes, or a place for a parameter."""
    if isinstance(value, str) and only_name(value) is not None:
        return value.strip()
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    good = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
    return value if good and isinstance(value, int) else None


def _counted(most: int) -> BeforeValidator:
    def count(value: object, info: ValidationInfo) -> object:
        found = whole(value, most)
        if found is None:
            words = f"{info.field_name} must be a whole number from 1 to {most}, not {show(value)}"
            raise fault("out-of-range", words, hint="or a place for a parameter: {{rounds}}")
        return found

    return BeforeValidator(count)


_COUNT_SCHEMA = WithJsonSchema({"type": ["integer", "string"], "minimum": 1})
Rounds: TypeAlias = Annotated[Any, _counted(MAX_ITERATIONS), _COUNT_SCHEMA]
Steps: TypeAlias = Annotated[Any, _counted(10_000), _COUNT_SCHEMA]
Seconds: TypeAlias = Annotated[Any, _counted(604_800), _COUNT_SCHEMA]


def _threshold(value: object) -> object:
    if isinstance(value, str) and only_name(value) is not None:
        return value.strip()
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise fault("wrong-type", f"threshold must be a number, not {show(value)}")
    return float(value)


def moment_ms(value: object) -> int | None:
    """A point in time; one without a zone is in UTC."""
    found = point_ms(value)
    return point_ms(f"{value.strip()}Z") if found is None and isinstance(value, str) else found


def _moment(value: object) -> object:
    """Seconds, or a point in time; a place for a parameter is checked later."""
    if isinstance(value, str) and only_name(value) is not None:
        return value.strip()
    if span_ms(value) is None and moment_ms(value) is None:
        message = f"time_bound needs seconds or a point in time, not {show(value)}"
        raise fault("bad-value", message, hint='value: 3600, or value: "2027-01-31T18:00:00Z"')
    return value


Moment: TypeAlias = Annotated[
    Any, BeforeValidator(_moment), WithJsonSchema({"type": ["number", "string"]})
]

# -- stages ----------------------------------------------------------------------------------------


def _index(value: object, info: ValidationInfo) -> object:
    """A whole number from 0 on, also in quotes."""
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        message = f"{info.field_name} must be a whole number, not {show(value)}"
        raise fault("wrong-type", message)
    return value


Index: TypeAlias = Annotated[
    Any, BeforeValidator(_index), WithJsonSchema({"type": ["integer", "string"]})
]


class StageSpec(CoquiModel):
    """One stage: a role and its task."""

    name: Maybe[Annotated[str, Field(min_length=1, max_length=100)]] = Field(
        default=None, description="What the stage is called. Default: its role."
    )
    role: Maybe[Role] = Field(
        default=None, description="The role that works here. Default: the name.", examples=["coder"]
    )
    prompt: Prose = Field(description="What it has to do.")
    skills: list[Annotated[str, Field(min_length=1)]] = Field(
        default=[], description="Skills that it is given."
    )
    max_iterations: Maybe[Steps] = Field(
        default=None, description="The most steps that the agent may make. Default 48, at most 100."
    )
    max_seconds: Maybe[Seconds] = Field(
        default=None, description="So long it may take. Default 3600; it has failed then."
    )
    max_silence: Maybe[Seconds] = Field(
        default=None, description="So many seconds it may say nothing. Default 900."
    )
    order: Maybe[Index] = Field(
        default=None,
        description="Its place in the iteration. Default: its place in the list. Stages with the "
        "same number keep the order of the list.",
    )
    gate: bool = Field(
        default=False, description="This stage reviews. Default: the last stage does."
    )
    requires_artifact_from: Maybe[Index] = Field(
        default=None,
        description="Index of an earlier stage, counted from 0, whose output this stage needs: "
        "without output, that stage fails.",
    )
    requires_explicit_evidence: bool = Field(
        default=False,
        description="The stage before this one must leave an artifact, as with its "
        "`artifact_required`.",
    )
    artifact_required: bool = Field(
        default=False,
        description="It must leave an artifact, besides what it says; else the loop is blocked.",
    )
    memory_required: bool = Field(
        default=False, description="Has no effect: Loopwright does not check memories."
    )


class ParameterSpec(CoquiModel):
    """A value that is given by name when the loop starts."""

    name: ParameterName = Field(description="Its name.")
    description: str = Field(default="", description="What it is for.")
    required: bool = Field(default=True, description="Whether it must be given.")
    default: Maybe[str | int | float | bool] = Field(
        default=None, description="Its value when none is given; one that is optional needs it."
    )


# -- termination -----------------------------------------------------------------------------------


class Review(CoquiModel):
    """The approval criteria, and the maximum number of attempts."""

    criteria: Prose = Field(description="What approved means.")
    max_review_rounds: Rounds = Field(default=5, description="The most rounds.")


def _text_is_criteria(value: object) -> object:
    return {"criteria": value} if isinstance(value, str) else value


class EvaluationBound(CoquiModel):
    """The last stage approves."""

    type: Literal["evaluation_bound"]
    value: Annotated[
        Review, BeforeValidator(_text_is_criteria, json_schema_input_type=Review | str)
    ] = Field(description="The criteria.")


class Iterations(CoquiModel):
    """A number of iterations."""

    max_iterations: Rounds = Field(description="So many.")


def _number_is_iterations(value: object) -> object:
    return value if isinstance(value, dict) else {"max_iterations": value}


class IterationBound(CoquiModel):
    """This many iterations were made."""

    type: Literal["iteration_bound"]
    value: Annotated[
        Iterations,
        BeforeValidator(_number_is_iterations, json_schema_input_type=Iterations | int | str),
    ] = Field(description="How many.")


class Time(CoquiModel):
    """When time is up."""

    limit: Moment = Field(description="Seconds, or a point in time with its zone.")
    enforce: Literal["iteration", "stage", "now"] = Field(
        default="iteration",
        description="What happens to the work then: the iteration is finished (default), only the "
        "running stage is, or that is stopped at once.",
    )


def _plain_is_limit(value: object) -> object:
    return value if isinstance(value, dict) else {"limit": value}


class TimeBound(CoquiModel):
    """Time is up."""

    type: Literal["time_bound"]
    value: Annotated[
        Time, BeforeValidator(_plain_is_limit, json_schema_input_type=Time | float | str)
    ] = Field(description="When.", examples=[3600, "2027-01-31T18:00:00Z"])


class GoalValue(CoquiModel):
    """The goal criteria, and the maximum number of attempts."""

    goal_prompt: Maybe[Prose] = Field(default=None, description="What reached means.")
    max_iterations: Rounds = Field(description="The most iterations.")
    evaluator: Maybe[Role] = Field(
        default=None,
        description="The role that judges; `none`: no role does, and all iterations run.",
    )


class GoalBound(CoquiModel):
    """An evaluator says that the goal is reached."""

    type: Literal["goal_bound"]
    value: GoalValue = Field(description="The goal.")


class ToolValue(CoquiModel):
    """A tool whose answer is a number."""

    tool: Annotated[str, Field(min_length=1)] = Field(description="The tool.")
    arguments: dict[str, JsonValue] = Field(default={}, description="What it is called with.")
    operator: Literal[">=", ">", "<=", "<", "==", "!="] = Field(description="How to compare.")
    threshold: Annotated[Any, BeforeValidator(_threshold), WithJsonSchema({"type": "number"})] = (
        Field(description="With what.")
    )
    max_iterations: Rounds = Field(description="The most iterations.")


class ToolBound(CoquiModel):
    """A tool measures it."""

    type: Literal["tool_bound"]
    value: ToolValue = Field(description="The tool, and what it must say.")


class Manual(CoquiModel):
    """Only a person ends it."""

    type: Literal["manual"]
    value: JsonValue = Field(default=None, description="Nothing.")


Termination: TypeAlias = Annotated[
    EvaluationBound | IterationBound | TimeBound | GoalBound | ToolBound | Manual,
    Field(discriminator="type"),
]


class CoquiDefinition(CoquiModel):
    """A loop of roles."""

    name: Name = Field(description="What it is called.", examples=["docs-review"])
    description: str = Field(default="", description="What it is for.")
    roles: Annotated[list[StageSpec], Field(min_length=1, max_length=100)] = Field(
        description="The stages; `order` sorts them."
    )
    termination_condition: Maybe[Termination] = Field(
        default=None,
        description="What ends the loop. Default: one iteration, with a warning.",
    )
    parameters: list[ParameterSpec] = Field(
        default=[], description="Values that fill {{name}} in any text."
    )
    max_rework_attempts: Maybe[Rounds] = Field(
        default=None,
        description="After so many rejected rounds in a row the loop is blocked until a person "
        "decides. Default: the loop continues to its last iteration.",
    )
    on_question: Maybe[str] = Field(
        default=None,
        description="`block`: a stage that begins with STATUS: NEEDS_CONTEXT blocks the loop until "
        "a person answers. That is done without it too; other values have no effect.",
    )


_EXAMPLE: SchemaValue = {
    "name": "docs-review",
    "description": "A writer and a reviewer take turns",
    "roles": [
        {"name": "write", "role": "coder", "prompt": "Write the page that the goal asks for."},
        {"name": "review", "role": "reviewer", "prompt": "Read it as a newcomer would."},
    ],
    "termination_condition": {
        "type": "evaluation_bound",
        "value": {"criteria": "A newcomer can follow it", "max_review_rounds": 3},
    },
}


def json_schema() -> dict[str, SchemaValue]:
    """Draft 7, which every editor knows."""
    template = "#/definitions/{model}"
    made = cast("dict[str, SchemaValue]", CoquiDefinition.model_json_schema(ref_template=template))
    definitions = cast("dict[str, SchemaValue]", made.pop("$defs", {}))
    head: dict[str, SchemaValue] = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Coqui loop definition",
    }
    return {
        **made,
        **head,
        "examples": [_EXAMPLE],
        "definitions": {name: _shown(one) for name, one in definitions.items()},
    }


def _shown(definition: SchemaValue) -> SchemaValue:
    """Without words that are known and refused."""
    assert isinstance(definition, dict)
    properties = definition.get("properties")
    if not isinstance(properties, dict):
        return definition
    kept = {
        name: one
        for name, one in properties.items()
        if not (isinstance(one, dict) and HIDDEN in one)
    }
    return {**definition, "properties": kept}
