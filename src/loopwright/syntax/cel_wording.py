"""What the evaluator has against an expression, in words for its author."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from loopwright.syntax.cel_names import STEP_FIELDS, Edit, Reference, original_offset
from loopwright.syntax.cel_tokens import Token, at
from loopwright.syntax.words import clip, did_you_mean, one_of

Code: TypeAlias = Literal["cel-syntax", "unknown-name", "unknown-step", "cel-type", "too-complex"]

FUNCTIONS = (
    *("all", "bool", "bytes", "contains", "double", "duration", "dyn", "endsWith", "exists"),
    *("exists_one", "filter", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear"),
    *("getFullYear", "getHours", "getMilliseconds", "getMinutes", "getMonth", "getSeconds", "has"),
    *("hasValue", "int", "map", "matches", "optFlatMap", "optMap", "or", "orValue", "size"),
    *("startsWith", "string", "timestamp", "type", "uint", "value"),
)
MAX_PROBLEMS = 10

_REPORT = re.compile(
    r"^(?:INVALID_ARGUMENT: )?ERROR: <input>:(-?\d+):(-?\d+): (.*?)"
    r"(?=\n \| |\nERROR: <input>| \[INVALID_ARGUMENT\]\Z|\Z)",
    re.DOTALL | re.MULTILINE,
)
_TOO_DEEP = "INVALID_ARGUMENT: ERROR: <input>:-1:-1: Exceeded max recursion"
_UNDECLARED = re.compile(r"undeclared reference to '\.?([^'.]*)")
_OVERLOAD = re.compile(r"found no matching overload for '(.*?)' applied to '\((.*)\)'")
_UNEXPECTED = re.compile(r"(?:mismatched|extraneous) input '(.*?)' expecting|no viable .* '(.*)'")
_UNREADABLE = re.compile(r"token recognition error at: '(.*?)'?\Z", re.DOTALL)
_OPERATORS = {"_?_:_": "? :", "_[_]": "[ ]", "@in": "in", "-_": "-", "!_": "!"}
_INSTEAD = {
    "=": "compare with ==",
    "&": "write && for and",
    "|": "write || for or",
    "and": "write && for and",
    "or": "write || for or",
    "not": "write ! for not",
    "'": "close the quote; a text ends on the line where it begins",
    '"': "close the quote; a text ends on the line where it begins",
}


@dataclass(frozen=True, slots=True)
class CelProblem:
    """Why an expression is refused. `offset` counts characters of the text as it was written."""

    message: str
    offset: int
    code: Code
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """An expression as its author wrote it and as the evaluator got it, and what it may name."""

    rewritten: str
    edits: Sequence[Edit]
    tokens: Sequence[Token]
    step_ids: frozenset[str]
    variables: frozenset[str]


def step_problem(reference: Reference, step_ids: Collection[str]) -> CelProblem | None:
    """What is wrong with a step named by its id."""
    if reference.step not in step_ids:
        known = sorted(step_ids)
        hint = did_you_mean(reference.step, known) or (
            f"known here: {clip(', '.join(known))}" if known else "no step can be named here"
        )
        message = f"there is no step {clip(reference.step)} here"
        return CelProblem(message, reference.start, "unknown-step", hint)
    if reference.field is not None and reference.field not in STEP_FIELDS:
        behind = f"fields of a result are behind it: steps.{reference.step}.result.…"
        said = "what a step said is its content" if reference.field == "output" else None
        hint = said or did_you_mean(reference.field, STEP_FIELDS) or behind
        message = f"a step has {', '.join(STEP_FIELDS)}, but no {clip(reference.field)}"
        return CelProblem(message, reference.field_start, "unknown-name", hint)
    return None


def explain(report: str, written: Written) -> list[CelProblem]:
    """The problems that the evaluator reports when it compiles."""
    if report.startswith(("CANCELLED: ", _TOO_DEEP)):
        hint = "split it, or let a step compute part of it"
        return [CelProblem("the expression is nested too deeply", 0, "too-complex", hint)]
    problems: list[CelProblem] = []
    lines = [0, *(m.end() for m in re.finditer("\n", written.rewritten))]
    for line, column, message in _REPORT.findall(report):
        begin = lines[min(max(int(line), 1), len(lines)) - 1]
        offset = original_offset(written.edits, begin + max(int(column), 1) - 1)
        problems.append(_problem(message, offset, written))
        if problems[-1].code == "cel-syntax":
            break  # what comes after the first is about text that is not understood any more
    if not problems:
        problems.append(CelProblem(f"not understood: {clip(report)}", 0, "cel-syntax"))
    causes = [problem for problem in problems if "*error*" not in problem.message]
    return list(dict.fromkeys(causes or problems))[:MAX_PROBLEMS]


def _problem(message: str, offset: int, written: Written) -> CelProblem:
    if match := _UNDECLARED.match(message):
        return _undeclared(match[1], offset, written)
    if match := _OVERLOAD.match(message):
        operator = _OPERATORS.get(match[1], match[1].strip("_"))
        kinds = " and ".join(match[2].split(", ")) if match[2].count("(") == 0 else match[2]
        return CelProblem(f"{operator} does not work on {kinds}", offset, "cel-type")
    if "operand of a select" in message:
        return CelProblem(message, offset, "cel-type")
    return _syntax(message.removeprefix("Syntax error: "), offset)


def _syntax(message: str, offset: int) -> CelProblem:
    hint = None
    if match := _UNREADABLE.match(message):
        message, hint = f"cannot read {clip(match[1])}", _INSTEAD.get(match[1][:1])
    elif match := _UNEXPECTED.match(message):
        word = match[1] or match[2]
        hint = _INSTEAD.get(word)
        message = f"did not expect {clip(word)}"
        if word == "<EOF>":
            message = "the expression ends too early"
    elif message.startswith("has()"):
        message, hint = "has() wants a field", "for example has(steps.review.result)"
    return CelProblem(message.replace("'<EOF>'", "the end"), offset, "cel-syntax", hint)


def _undeclared(name: str, offset: int, written: Written) -> CelProblem:
    """The evaluator points at the dot or bracket behind a name; the author looks for the name."""
    for index, token in reversed(list(enumerate(written.tokens))):
        if token.start <= offset and token.text == name:
            hint = next(_name_hints(index, written))
            return CelProblem(_unknown(index, written), token.start, "unknown-name", hint)
    return CelProblem(f"there is no {clip(name)}", offset, "unknown-name")


def _unknown(index: int, written: Written) -> str:
    name = clip(written.tokens[index].text)
    return f"there is no {'function ' if _called(index, written) else ''}{name} here"


def _called(index: int, written: Written) -> bool:
    return at(written.tokens, index + 1).text == "("


def _name_hints(index: int, written: Written) -> Iterator[str]:
    name = written.tokens[index].text
    if _called(index, written):
        yield did_you_mean(name, FUNCTIONS) or f"known here: {', '.join(FUNCTIONS)}"
    if name in written.step_ids:
        yield f"did you mean steps.{name}?"
    minus, before = at(written.tokens, index - 1), at(written.tokens, index - 2)
    if minus.text == "-" and before.end == minus.start and before.kind == "name":
        hyphened = f"{before.text}-{name}"
        if hyphened in written.step_ids:
            yield f"did you mean steps.{hyphened}?"
        yield f"a name with a hyphen stands in brackets: ['{hyphened}']"
    variables = sorted(written.variables)
    nothing = "no name can be used here"
    yield did_you_mean(name, variables) or (
        f"known here: {one_of(variables)}" if variables else nothing
    )
