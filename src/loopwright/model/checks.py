"""Checks: the records that decide when a loop is done, combined by any and all.

A check returns a verdict: pass, fail, error (it could not run), timed_out, rejected. Checks run in
the order in which they are written. In `any` the first check that passes decides. In `all` the
cheap checks all run, so that a run shows every verdict; a judge or a gate only starts if all checks
before it passed. A loop with `checks: until_decided` stops at the first failure instead.
"""

from typing import Literal, TypeAlias

from loopwright.model.policy import CheckOrder
from loopwright.model.record import JsonValue, Record, Template


class Cap(Record, frozen=True, kw_only=True, tag="cap", tag_field="check"):
    """Never passes: only the maximum number of iterations ends the loop."""


class Regex(Record, frozen=True, kw_only=True, tag="regex", tag_field="check"):
    """The output matches a pattern somewhere. The linear engine (RE2) lacks look-around and
    back-references; the JavaScript engine has them, backtracks, and runs under a time limit.
    """

    pattern: str
    ignore_case: bool = False
    engine: Literal["linear", "javascript"] = "linear"
    invalid: bool = False  # kept as written but never matches: the author's system allows it


class Contains(Record, frozen=True, kw_only=True, tag="contains", tag_field="check"):
    """The output contains this text."""

    text: str
    ignore_case: bool = False


class Signal(Record, frozen=True, kw_only=True, tag="signal", tag_field="check"):
    """The agent's signal: the word alone on the last line, bare or inside a tag.

    With `anywhere` it may be alone on any line, at the end of the text, or inside a tag anywhere;
    such tags are removed from the output that people and later steps see.
    """

    word: str
    anywhere: bool = False


class OutputSchema(Record, frozen=True, kw_only=True, tag="schema", tag_field="check"):
    """The structured result fits a JSON Schema."""

    schema: dict[str, JsonValue]


class CommandCheck(Record, frozen=True, kw_only=True, tag="command", tag_field="check"):
    """A program of the author, outside the agent's control, ends with code 0."""

    argv: tuple[str, ...]
    timeout_ms: int = 600_000
    done_codes: tuple[int, ...] = (0,)


class ScriptCheck(Record, frozen=True, kw_only=True, tag="script", tag_field="check"):
    """A shell script of the author ends with code 0; it receives values through the environment
    only.
    """

    text: str
    interpreter: str = "bash"
    timeout_ms: int = 120_000
    env: dict[str, Template] = {}
    on_timeout: Literal["fail", "error"] = "fail"  # not passed, or the check is broken
    on_missing: Literal["error", "fail"] = "error"  # the same if a program in it is missing


class Expr(Record, frozen=True, kw_only=True, tag="expr", tag_field="check"):
    """An expression over the state of the loop is true. One that cannot be evaluated ends the loop
    as failed, or counts as a broken check.
    """

    text: str
    on_error: Literal["fail", "count"] = "fail"


class ResultField(Record, frozen=True, kw_only=True, tag="field", tag_field="check"):
    """A field of the structured result is exactly true."""

    field: str


class ResultPath(Record, frozen=True, kw_only=True, tag="path", tag_field="check"):
    """The value at this path of the answer exists and is not false, 0, null or an empty text. The
    answer is the structured result, else the JSON in the output, else the output itself.
    """

    path: tuple[str | int, ...] = ()


class Judge(Record, frozen=True, kw_only=True, tag="judge", tag_field="check"):
    """Another agent judges the work and answers `done`."""

    agent: str
    prompt: Template = ()
    schema: dict[str, JsonValue] | None = None
    on_error: Literal["continue", "fail"] = "continue"


class Goal(Record, frozen=True, kw_only=True, tag="goal", tag_field="check"):
    """An evaluator decides whether the goal is reached; `prompt` describes the goal."""

    agent: str
    prompt: Template = ()


class Approval(Record, frozen=True, kw_only=True, tag="approval", tag_field="check"):
    """The reviewing stage approved: by its structured verdict, or, with `words`, by its text. It is
    the last stage unless one is named; `criteria` describes what approval requires.
    """

    stage: str | None = None
    words: bool = False
    criteria: Template = ()


class ToolResultCheck(Record, frozen=True, kw_only=True, tag="tool-result", tag_field="check"):
    """A tool call of this iteration had the expected result."""

    tool: str
    exit_code: int | None = None
    contains: str | None = None


class NoCalls(Record, frozen=True, kw_only=True, tag="no-calls", tag_field="check"):
    """The model called no tool in this iteration, or has submitted its result."""


class SpendCheck(Record, frozen=True, kw_only=True, tag="spend", tag_field="check"):
    """The loop has spent this amount. It ends as exhausted, since no check says that it is done."""

    usd: float


class PersonCheck(Record, frozen=True, kw_only=True, tag="person", tag_field="check"):
    """A person reviews the iteration: approve ends the loop, reject fails it, continue gives
    feedback.
    """

    message: Template = ()
    answers: tuple[Literal["approve", "reject", "continue"], ...] = (
        "approve",
        "reject",
        "continue",
    )
    rejected: str = "rejected by a person"


class AnyOf(Record, frozen=True, kw_only=True, tag="any", tag_field="check"):
    """Passes as soon as one part passes."""

    parts: tuple["Check", ...]


class AllOf(Record, frozen=True, kw_only=True, tag="all", tag_field="check"):
    """Passes if every part passes. `until_decided`: no further check runs after the first
    failure.
    """

    parts: tuple["Check", ...]
    order: CheckOrder = "all"


Leaf: TypeAlias = (
    Cap
    | Regex
    | Contains
    | Signal
    | OutputSchema
    | CommandCheck
    | ScriptCheck
    | Expr
    | ResultField
    | ResultPath
    | Judge
    | Goal
    | Approval
    | ToolResultCheck
    | NoCalls
    | SpendCheck
    | PersonCheck
)
Check: TypeAlias = Leaf | AnyOf | AllOf
_COMPOUND = (AnyOf, AllOf)


def leaves(check: Check) -> tuple[Leaf, ...]:
    """The single checks of a tree in the order in which they are written."""
    if isinstance(check, _COMPOUND):
        return tuple(leaf for part in check.parts for leaf in leaves(part))
    return (check,)
