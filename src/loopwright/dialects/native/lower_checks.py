"""From what decides in a definition to what decides in a plan: checks and conditions."""

from collections.abc import Callable
from typing import TypeAlias

from loopwright.dialects.native.checks import CheckSpec, JudgeSpec, WhenSpec
from loopwright.dialects.native.parts import PersonSpec
from loopwright.dialects.native.templates import parse, parse_ref
from loopwright.model.checks import (
    AllOf,
    AnyOf,
    Approval,
    Cap,
    Check,
    Command,
    Contains,
    Expr,
    Goal,
    Judge,
    NoCalls,
    OutputSchema,
    Person,
    Regex,
    ResultField,
    ResultPath,
    Script,
    Signal,
    Spend,
    ToolResult,
)
from loopwright.model.expr import Cel, Compare, Condition, EveryOf, Operator, SomeOf
from loopwright.model.template import Ref, Template
from loopwright.syntax.patterns import pattern_engine

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
"""Says under which name the plan has the agent that is meant."""


def template(text: str) -> Template:
    """A text with its places to fill."""
    return parse(text)[0]


def templates(texts: dict[str, str] | None) -> dict[str, Template]:
    """Variables of a script."""
    return {name: template(text) for name, text in (texts or {}).items()}


def lower_check(spec: CheckSpec, agent: NameAgent) -> Check:
    """The check that is meant; that exactly one is given has been made sure of before."""
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
            Command(argv=tuple(argv), timeout_ms=timeout_ms, done_codes=codes)
            for argv in spec.command
        ]
        if len(programs) == 1:
            return programs[0]
        return AllOf(parts=tuple(programs), order="until_decided")
    if spec.script is not None:
        return Script(
            text=spec.script,
            interpreter=spec.interpreter or "bash",
            timeout_ms=spec.timeout or SCRIPT_MS,
            env=templates(spec.env),
            on_timeout=spec.on_timeout,
            on_missing=spec.on_missing,
        )
    return None


def _cycle_check(spec: CheckSpec) -> Check | None:
    """What a turn, its tools and its price are looked at for."""
    if spec.tool is not None:
        one = spec.tool
        return ToolResult(tool=one.name, exit_code=one.exit_code, contains=one.contains)
    if spec.no_calls is not None:
        return NoCalls()
    if spec.spend is not None:
        return Spend(usd=spec.spend)
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


def _person(spec: PersonSpec) -> Person:
    return Person(
        message=template(spec.message),
        answers=tuple(spec.answers or ("approve", "reject", "continue")),
        rejected=spec.rejected or "rejected by a person",
    )


def lower_condition(spec: WhenSpec) -> Condition:
    """The condition that is meant; that exactly one is given has been made sure of before."""
    if spec.any is not None:
        return SomeOf(parts=tuple(lower_condition(part) for part in spec.any))
    if spec.all is not None:
        return EveryOf(parts=tuple(lower_condition(part) for part in spec.all))
    if spec.expr is not None:
        return Cel(text=spec.expr, missing="false" if spec.missing is False else "error")
    key = next(key for key in OPERATORS if key in spec.model_fields_set)
    ref = parse_ref(spec.value or "") or Ref(of="run")
    return Compare(ref=ref, op=OPERATORS[key], value=getattr(spec, key))
