"""What people write where something is decided: `until` ends a loop, `when` lets a step run."""

from typing import Annotated, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    ValidationInfo,
    WithJsonSchema,
)

from loopwright.dialects.native.fields import (
    LOOSE,
    Commands,
    Duration,
    EnvName,
    Expression,
    Line,
    Prose,
    ScriptText,
    SpecLine,
)
from loopwright.dialects.native.hints import ASKED_HINT, CHECK_HINT
from loopwright.dialects.native.parts import JsonSchema, Person, Surface
from loopwright.syntax.fields import Maybe, fault
from loopwright.syntax.patterns import Fault, javascript_problem, pattern_engine, pattern_fault

# -- until -----------------------------------------------------------------------------------------


def _pattern(pattern: str, info: ValidationInfo) -> str:
    if info.data.get("invalid"):
        return pattern
    if info.data.get("engine") == "javascript":
        problem = javascript_problem(pattern)
        if problem is not None:
            raise fault("bad-regex", f"not a pattern of JavaScript: {problem}")
        return pattern
    linear = info.data.get("engine") == "linear"
    found = pattern_fault(pattern) if linear else pattern_engine(pattern)
    if isinstance(found, Fault):
        raise fault(found.code, found.sentence(), hint=found.hint)
    return pattern


def _something(text: str) -> str:
    if not text:
        raise fault("matches-everything", "any output contains an empty text")
    return text


class GoalSpec(Surface):
    """An agent that says whether the goal is reached."""

    agent: Maybe[SpecLine] = Field(
        default=None, description="Name of an agent, or what stands behind it."
    )
    prompt: Prose = Field(
        default="", description="What it looks for. Default: whether the task is done."
    )


class JudgeSpec(GoalSpec):
    """An agent that looks at each pass and answers `done`, with a reason for the next pass."""

    result_schema: Maybe[JsonSchema] = Field(
        default=None,
        alias="schema",
        description="A JSON Schema of its answer, with a required boolean `done`.",
    )
    on_error: Literal["continue", "fail"] = Field(
        default="continue",
        description="What it means that it gave no answer twice: `continue` counts it as broken.",
    )


class ApprovalSpec(Surface):
    """The stage that reviews has approved."""

    stage: Maybe[Line] = Field(default=None, description="Which one. Default: the last.")
    words: bool = Field(
        default=False,
        description="Plain words count too where it gives no verdict; what is denied or put under "
        "a condition never approves.",
    )
    criteria: Prose = Field(default="", description="What approved means.")


def _true_is_approval(value: object) -> object:
    return {} if value is True else value


Approves: TypeAlias = Annotated[
    ApprovalSpec,
    BeforeValidator(_true_is_approval, json_schema_input_type=ApprovalSpec | Literal[True]),
]


class ToolSpec(Surface):
    """What a tool must have answered; all that is given has to hold."""

    name: Line = Field(description="The tool; a short name stands for its long one too.")
    exit_code: Maybe[Annotated[int, Field(ge=-255, le=255)]] = Field(
        default=None, description="The code that it ended with."
    )
    contains: Maybe[Annotated[str, AfterValidator(_something)]] = Field(
        default=None, description="A text in its answer."
    )


def _name_is_tool(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


Tool: TypeAlias = Annotated[
    ToolSpec, BeforeValidator(_name_is_tool, json_schema_input_type=ToolSpec | str)
]


class CheckSpec(Surface):
    """What ends a loop: exactly one kind of check, or `any` or `all` of several."""

    invalid: bool = Field(
        default=False, description="With regex: kept as written, never matches (from conversion)."
    )
    engine: Maybe[Literal["linear", "javascript"]] = Field(
        default=None,
        description="With regex: what runs the pattern. By default RE2, or JavaScript's engine "
        "under a time limit for look-around, back-references and large repetitions.",
    )
    signal: Maybe[Line] = Field(
        default=None, description="A word alone on the last line of the output.", examples=["DONE"]
    )
    anywhere: bool = Field(
        default=False,
        description="With signal: also in a tag anywhere, alone on any line, or as the last word; "
        "its tags are then seen by the loop alone.",
    )
    regex: Maybe[Annotated[str, AfterValidator(_pattern)]] = Field(
        default=None, description="A pattern found in the output; see engine."
    )
    contains: Maybe[Annotated[str, AfterValidator(_something)]] = Field(
        default=None, description="A text found in the output."
    )
    ignore_case: bool = Field(default=False, description="With regex or contains.")
    command: Maybe[Commands] = Field(
        default=None,
        description="A program, run without a shell, that ends with code 0. Several, joined by "
        "`&&` in one text, run in this order until one fails.",
    )
    script: Maybe[ScriptText] = Field(
        default=None, description="A script of yours that ends with code 0."
    )
    interpreter: Maybe[Line] = Field(default=None, description="With script; default bash.")
    on_timeout: Literal["fail", "error"] = Field(
        default="fail",
        description="With script, when it takes too long: it has not passed, or it is broken.",
    )
    on_missing: Literal["error", "fail"] = Field(
        default="error",
        description="With script, when it ends with code 126 or 127, since a program in it is "
        "missing or cannot be executed: it is broken, or it has not passed.",
    )
    env: Maybe[dict[EnvName, str]] = Field(
        default=None, description="With script: variables; these texts take references."
    )
    timeout: Maybe[Duration] = Field(
        default=None, description="With command, default 10m; with script, default 2m."
    )
    done_codes: Maybe[Annotated[list[Annotated[int, Field(ge=0, le=255)]], Field(min_length=1)]] = (
        Field(default=None, description="With command: the exit codes that pass. Default [0].")
    )
    expr: Maybe[Expression] = Field(
        default=None,
        description="An expression (CEL) that is true.",
        examples=["steps.review.content.contains('LGTM')"],
    )
    on_error: Maybe[Literal["fail", "count"]] = Field(
        default=None,
        description="With expr, when it has no value: the loop fails (default), or it is counted "
        "as a broken check.",
    )
    judge: Maybe[Annotated[JudgeSpec, ASKED_HINT]] = Field(
        default=None, description="An agent says that it is done."
    )
    goal: Maybe[Annotated[GoalSpec, ASKED_HINT]] = Field(
        default=None, description="An agent says that the goal is reached."
    )
    result_field: Maybe[Line] = Field(
        default=None, description="A field of the structured result that is exactly true."
    )
    result_schema: Maybe[JsonSchema] = Field(
        default=None, alias="schema", description="A JSON Schema that the result fits."
    )
    result_path: Maybe[list[str | Annotated[int, Field(ge=0)]]] = Field(
        default=None,
        description="What stands at these keys and places of the answer is there and is not "
        "false, 0, null or an empty text.",
        examples=[["review", "done"]],
    )
    tool: Maybe[Tool] = Field(
        default=None,
        description="With a cycle: a tool of this pass answered so.",
        examples=[{"name": "shell.exec", "exit_code": 0}],
    )
    no_calls: Maybe[Literal[True]] = Field(
        default=None, description="With a cycle: the model asked for no tool."
    )
    spend: Maybe[Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]] = Field(
        default=None,
        description="The loop has spent at least so many USD and ends as exhausted.",
    )
    person: Maybe[Person] = Field(default=None, description="A person approves.")
    manual: Maybe[Person] = Field(default=None, description="Another word for person.")
    cap: Maybe[Literal[True]] = Field(default=None, description="Only the number of passes.")
    any: Maybe[Annotated[list[Annotated["CheckSpec", CHECK_HINT]], Field(min_length=1)]] = Field(
        default=None, description="One of these passes."
    )
    all: Maybe[Annotated[list[Annotated["CheckSpec", CHECK_HINT]], Field(min_length=1)]] = Field(
        default=None, description="All of these pass."
    )
    approval: Maybe[Approves] = Field(
        default=None, description="The last step, or the one named, has approved."
    )


# -- when ------------------------------------------------------------------------------------------


def _number(value: JsonValue, info: ValidationInfo) -> JsonValue:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number and info.context != LOOSE:
        raise fault("wrong-type", f"{info.field_name} compares numbers", hint="write a number")
    return value


Number: TypeAlias = Annotated[
    JsonValue, AfterValidator(_number), WithJsonSchema({"type": "number"})
]


class WhenSpec(Surface):
    """Whether a step runs: an expression, a comparison, or `any` or `all` of several."""

    expr: Maybe[Expression] = Field(
        default=None,
        description="An expression (CEL) that is true. A text in the place of the mapping is one.",
        examples=["steps.triage.result.kind == 'bug'"],
    )
    missing: Maybe[Literal[False, "error"]] = Field(
        default=None,
        description="With expr, when it asks for something that is not there: `false`, or an "
        "error (default).",
    )
    value: Maybe[Line] = Field(
        default=None,
        description="What is compared: a reference without braces.",
        examples=["input.target", "steps.triage.result.kind"],
    )
    equals: JsonValue = Field(default=None, description="With value: it is this, as text.")
    not_equals: JsonValue = Field(default=None, description="With value: it is not this.")
    below: Number = Field(default=None, description="With value: a smaller number.")
    above: Number = Field(default=None, description="With value: a greater number.")
    at_most: Number = Field(default=None, description="With value: this number or a smaller one.")
    at_least: Number = Field(default=None, description="With value: this number or a greater one.")
    any: Maybe[Annotated[list["When"], Field(min_length=1)]] = Field(
        default=None, description="One of these holds; looked at in order."
    )
    all: Maybe[Annotated[list["When"], Field(min_length=1)]] = Field(
        default=None, description="All of these hold; looked at in order."
    )


def _text_is_expr(value: object) -> object:
    return {"expr": value} if isinstance(value, str) else value


When: TypeAlias = Annotated[
    WhenSpec, BeforeValidator(_text_is_expr, json_schema_input_type=WhenSpec | str)
]
WhenSpec.model_rebuild()
