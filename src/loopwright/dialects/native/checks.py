"""Checks and conditions: their form in a definition, and their lowering to the plan.

`until` ends a loop; `when` decides whether a step runs.
"""

from collections.abc import Callable
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
    CHECK_HINT,
    CHECKED_HINT,
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
from loopwright.dialects.native.parts import JsonSchema, NativeModel, PersonField, PersonSpec
from loopwright.dialects.native.templates import parse, parse_ref
from loopwright.model.actions import Cel, Compare, Condition, EveryOf, Operator, SomeOf
from loopwright.model.checks import (
    AllOf,
    AnyOf,
    Approval,
    Cap,
    Check,
    CommandCheck,
    Contains,
    Expr,
    Goal,
    Judge,
    NoCalls,
    OutputSchema,
    PersonCheck,
    Regex,
    ResultField,
    ResultPath,
    ScriptCheck,
    Signal,
    SpendCheck,
    ToolResultCheck,
)
from loopwright.model.record import Ref, Template
from loopwright.syntax.patterns import (
    PatternFault,
    javascript_problem,
    pattern_engine,
    pattern_fault,
)
from loopwright.syntax.validation import Maybe, fault

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
    if isinstance(found, PatternFault):
        raise fault(found.code, found.sentence(), hint=found.hint)
    return pattern


def _something(text: str) -> str:
    if not text:
        raise fault("matches-everything", "any output contains an empty text")
    return text


class GoalSpec(NativeModel):
    """An agent that decides whether the goal is reached."""

    agent: Maybe[SpecLine] = Field(default=None, description="Name of an agent, or its spec.")
    prompt: Prose = Field(
        default="", description="What the agent checks. Default: whether the task is done."
    )


class JudgeSpec(GoalSpec):
    """An agent that judges each iteration: it answers `done`, with a reason for the next
    iteration.
    """

    result_schema: Maybe[JsonSchema] = Field(
        default=None,
        alias="schema",
        description="A JSON Schema of its answer, with a required boolean `done`.",
    )
    on_error: Literal["continue", "fail"] = Field(
        default="continue",
        description="What happens if the judge gives no valid answer twice. `continue`: the check "
        "counts as broken. `fail`: the loop fails.",
    )


class ApprovalSpec(NativeModel):
    """The approval of the stage that reviews."""

    stage: Maybe[Line] = Field(default=None, description="Id of the stage. Default: the last.")
    words: bool = Field(
        default=False,
        description="If the stage gives no verdict, accept an approval in plain words; negated or "
        "conditional words never approve.",
    )
    criteria: Prose = Field(default="", description="Criteria for the approval.")


def _true_is_approval(value: object) -> object:
    return {} if value is True else value


Approves: TypeAlias = Annotated[
    ApprovalSpec,
    BeforeValidator(_true_is_approval, json_schema_input_type=ApprovalSpec | Literal[True]),
]


class ToolSpec(NativeModel):
    """The expected result of a tool call; all given conditions must be true."""

    name: Line = Field(description="Name of the tool; a short name also matches the full one.")
    exit_code: Maybe[Annotated[int, Field(ge=-255, le=255)]] = Field(
        default=None, description="Its exit code."
    )
    contains: Maybe[Annotated[str, AfterValidator(_something)]] = Field(
        default=None, description="A text in its output."
    )


def _name_is_tool(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


Tool: TypeAlias = Annotated[
    ToolSpec, BeforeValidator(_name_is_tool, json_schema_input_type=ToolSpec | str)
]


class TextCheckSpec(NativeModel):
    """Checks on the text of the output."""

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
        description="With signal: also match it in a tag anywhere, alone on any line, or as the "
        "last word; such tags are removed from the output.",
    )
    regex: Maybe[Annotated[str, AfterValidator(_pattern)]] = Field(
        default=None, description="A pattern found in the output; see engine."
    )
    contains: Maybe[Annotated[str, AfterValidator(_something)]] = Field(
        default=None, description="A text found in the output."
    )
    ignore_case: bool = Field(default=False, description="With regex or contains.")


class ProgramCheckSpec(NativeModel):
    """Checks that run a program or a script."""

    command: Maybe[Commands] = Field(
        default=None,
        description="A program, run without a shell, that ends with code 0. Several, joined by "
        "`&&` in one text, run in this order until one fails.",
    )
    script: Maybe[ScriptText] = Field(default=None, description="A script that ends with code 0.")
    interpreter: Maybe[Line] = Field(default=None, description="With script; default bash.")
    on_timeout: Literal["fail", "error"] = Field(
        default="fail",
        description="With script, at its timeout: `fail`: the check has not passed; `error`: the "
        "check is broken.",
    )
    on_missing: Literal["error", "fail"] = Field(
        default="error",
        description="With script, when it ends with code 126 or 127 because a program in it is "
        "missing or cannot be executed: `error`: the check is broken; `fail`: it has not passed.",
    )
    env: Maybe[dict[EnvName, str]] = Field(
        default=None,
        description="With script: environment variables; their values can contain references.",
    )
    timeout: Maybe[Duration] = Field(
        default=None, description="With command, default 10m; with script, default 2m."
    )
    done_codes: Maybe[Annotated[list[Annotated[int, Field(ge=0, le=255)]], Field(min_length=1)]] = (
        Field(default=None, description="With command: the exit codes that pass. Default [0].")
    )


class ResultCheckSpec(NativeModel):
    """Checks on the structured result, by an expression or by an agent."""

    expr: Maybe[Expression] = Field(
        default=None,
        description="An expression (CEL) that is true.",
        examples=["steps.review.content.contains('LGTM')"],
    )
    on_error: Maybe[Literal["fail", "count"]] = Field(
        default=None,
        description="With expr, when it cannot be evaluated: the loop fails (default), or the "
        "check counts as broken.",
    )
    judge: Maybe[Annotated[JudgeSpec, CHECKED_HINT]] = Field(
        default=None, description="An agent decides that the task is done."
    )
    goal: Maybe[Annotated[GoalSpec, CHECKED_HINT]] = Field(
        default=None, description="An agent decides that the goal is reached."
    )
    result_field: Maybe[Line] = Field(
        default=None, description="A field of the structured result that is exactly true."
    )
    result_schema: Maybe[JsonSchema] = Field(
        default=None, alias="schema", description="A JSON Schema that the result fits."
    )
    result_path: Maybe[list[str | Annotated[int, Field(ge=0)]]] = Field(
        default=None,
        description="Path of keys and list indexes in the answer. The check passes if there is "
        "a value "
        "that is not false, 0, null or an empty text.",
        examples=[["review", "done"]],
    )


# The fields keep the order of these classes from right to left.
class CheckSpec(ResultCheckSpec, ProgramCheckSpec, TextCheckSpec):
    """What ends a loop: exactly one kind of check, or `any` or `all` of several."""

    tool: Maybe[Tool] = Field(
        default=None,
        description="With a cycle: a tool call of this iteration had this result.",
        examples=[{"name": "shell.exec", "exit_code": 0}],
    )
    no_calls: Maybe[Literal[True]] = Field(
        default=None, description="With a cycle: the model called no tool."
    )
    spend: Maybe[Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]] = Field(
        default=None,
        description="The loop has spent at least this amount in USD and ends as exhausted.",
    )
    person: Maybe[PersonField] = Field(default=None, description="A person approves.")
    manual: Maybe[PersonField] = Field(default=None, description="An alias of `person`.")
    cap: Maybe[Literal[True]] = Field(
        default=None, description="No check: only the maximum number of iterations ends the loop."
    )
    any: Maybe[Annotated[list[Annotated["CheckSpec", CHECK_HINT]], Field(min_length=1)]] = Field(
        default=None, description="At least one of these checks passes."
    )
    all: Maybe[Annotated[list[Annotated["CheckSpec", CHECK_HINT]], Field(min_length=1)]] = Field(
        default=None, description="All of these checks pass."
    )
    approval: Maybe[Approves] = Field(
        default=None, description="The last stage, or the named one, has approved."
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


class WhenSpec(NativeModel):
    """Whether a step runs: an expression, a comparison, or `any` or `all` of several."""

    expr: Maybe[Expression] = Field(
        default=None,
        description="An expression (CEL) that is true. A plain text instead of the mapping is an "
        "expression.",
        examples=["steps.triage.result.kind == 'bug'"],
    )
    missing: Maybe[Literal[False, "error"]] = Field(
        default=None,
        description="With expr, when a field is missing: `false`, or an error (default).",
    )
    value: Maybe[Line] = Field(
        default=None,
        description="The value to compare: a reference without braces.",
        examples=["input.target", "steps.triage.result.kind"],
    )
    equals: JsonValue = Field(
        default=None, description="With value: it equals this, compared as text."
    )
    not_equals: JsonValue = Field(
        default=None, description="With value: it differs from this, compared as text."
    )
    below: Number = Field(default=None, description="With value: it is less than this number.")
    above: Number = Field(default=None, description="With value: it is greater than this number.")
    at_most: Number = Field(default=None, description="With value: it is at most this number.")
    at_least: Number = Field(default=None, description="With value: it is at least this number.")
    any: Maybe[Annotated[list["When"], Field(min_length=1)]] = Field(
        default=None, description="At least one of these conditions is true; evaluated in order."
    )
    all: Maybe[Annotated[list["When"], Field(min_length=1)]] = Field(
        default=None, description="All of these conditions are true; evaluated in order."
    )


def _text_is_expr(value: object) -> object:
    return {"expr": value} if isinstance(value, str) else value


When: TypeAlias = Annotated[
    WhenSpec, BeforeValidator(_text_is_expr, json_schema_input_type=WhenSpec | str)
]
WhenSpec.model_rebuild()


COMMAND_MS = 600_000
SCRIPT_MS = 120_000

OPERATORS: dict[str, Operator] = {
    "equals": "==",
    "not_equals": "!=",
    "below": "<",
    "above": ">",
    "at_most": "<=",
    "at_least": ">=",
}

NameAgent: TypeAlias = Callable[[str | None], str]
"""The name that an agent has in the plan."""


def template(text: str) -> Template:
    """A text with references."""
    return parse(text)[0]


def templates(texts: dict[str, str] | None) -> dict[str, Template]:
    """Environment variables of a script."""
    return {name: template(text) for name, text in (texts or {}).items()}


def lower_check(spec: CheckSpec, agent: NameAgent) -> Check:
    """The check that a definition specifies; an earlier rule ensures that it is exactly one."""
    if spec.any is not None:
        return AnyOf(parts=tuple(lower_check(part, agent) for part in spec.any))
    if spec.all is not None:
        return AllOf(parts=tuple(lower_check(part, agent) for part in spec.all))
    person = spec.person or spec.manual
    if person is not None:
        return _person(person)
    if spec.judge is not None:
        return _judge(spec.judge, agent)
    if spec.goal is not None:
        return Goal(agent=agent(spec.goal.agent), prompt=template(spec.goal.prompt))
    if spec.approval is not None:
        one = spec.approval
        return Approval(stage=one.stage, words=one.words, criteria=template(one.criteria))
    return _program_check(spec) or _cycle_check(spec) or _text_check(spec)


def _judge(spec: JudgeSpec, agent: NameAgent) -> Judge:
    return Judge(
        agent=agent(spec.agent),
        prompt=template(spec.prompt),
        schema=spec.result_schema,
        on_error=spec.on_error,
    )


def _program_check(spec: CheckSpec) -> Check | None:
    if spec.command is not None:
        timeout_ms, codes = spec.timeout or COMMAND_MS, tuple(spec.done_codes or (0,))
        programs = [
            CommandCheck(argv=tuple(argv), timeout_ms=timeout_ms, done_codes=codes)
            for argv in spec.command
        ]
        if len(programs) == 1:
            return programs[0]
        return AllOf(parts=tuple(programs), order="until_decided")
    if spec.script is not None:
        return ScriptCheck(
            text=spec.script,
            interpreter=spec.interpreter or "bash",
            timeout_ms=spec.timeout or SCRIPT_MS,
            env=templates(spec.env),
            on_timeout=spec.on_timeout,
            on_missing=spec.on_missing,
        )
    return None


def _cycle_check(spec: CheckSpec) -> Check | None:
    """Checks on a turn, its tool calls and its cost."""
    if spec.tool is not None:
        one = spec.tool
        return ToolResultCheck(tool=one.name, exit_code=one.exit_code, contains=one.contains)
    if spec.no_calls is not None:
        return NoCalls()
    if spec.spend is not None:
        return SpendCheck(usd=spec.spend)
    return None


def _text_check(spec: CheckSpec) -> Check:
    if spec.signal is not None:
        return Signal(word=spec.signal, anywhere=spec.anywhere)
    if spec.regex is not None:
        found = spec.engine or pattern_engine(spec.regex)
        return Regex(
            pattern=spec.regex,
            ignore_case=spec.ignore_case,
            engine="javascript" if found == "javascript" else "linear",
            invalid=spec.invalid,
        )
    if spec.contains is not None:
        return Contains(text=spec.contains, ignore_case=spec.ignore_case)
    if spec.expr is not None:
        return Expr(text=spec.expr, on_error=spec.on_error or "fail")
    if spec.result_field is not None:
        return ResultField(field=spec.result_field)
    if spec.result_path is not None:
        return ResultPath(path=tuple(spec.result_path))
    if spec.result_schema is not None:
        return OutputSchema(schema=spec.result_schema)
    return Cap()


def _person(spec: PersonSpec) -> PersonCheck:
    return PersonCheck(
        message=template(spec.message),
        answers=tuple(spec.answers or ("approve", "reject", "continue")),
        rejected=spec.rejected or "rejected by a person",
    )


def lower_condition(spec: WhenSpec) -> Condition:
    """The condition that a definition specifies; an earlier rule ensures that it is exactly one."""
    if spec.any is not None:
        return SomeOf(parts=tuple(lower_condition(part) for part in spec.any))
    if spec.all is not None:
        return EveryOf(parts=tuple(lower_condition(part) for part in spec.all))
    if spec.expr is not None:
        return Cel(text=spec.expr, missing="false" if spec.missing is False else "error")
    key = next(key for key in OPERATORS if key in spec.model_fields_set)
    ref = parse_ref(spec.value or "") or Ref(of="run")
    return Compare(ref=ref, op=OPERATORS[key], value=getattr(spec, key))
