"""The source text of CEL expressions: tokens, names, rewritten step ids, and problem messages.

The evaluator has its own parser; this one exists because `steps.list-services` is a subtraction
there, and because a program should know which steps it reads. Names are read from tokens, so
texts and comments are never mistaken for names.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple, TypeAlias

from loopwright.syntax.document import clip, did_you_mean, one_of

Kind: TypeAlias = Literal["name", "step", "text", "number", "sign", "other", "end"]


class CelToken(NamedTuple):
    """A piece of the expression. `step` is what follows `steps.` and is not a call."""

    kind: Kind
    text: str
    start: int

    @property
    def end(self) -> int:
        """The offset after it."""
        return self.start + len(self.text)


END = CelToken("end", "", -1)

_SKIPPED = re.compile(r"(?:[ \t\n\f\r]|//[^\n]*)*")
# Everything up to the next character that cannot be part of an id, so that the longest id is read.
_STEP = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_LITERAL = re.compile(r"(?P<raw>[rR]?)(?P<quote>'{3}|\"{3}|'|\")(?P<body>.*)(?P=quote)", re.DOTALL)
_KINDS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (
        "text",
        re.compile(
            r"(?:[rR][bB]?|[bB][rR])"
            r"(?:'{3}.*?'{3}|\"{3}.*?\"{3}|'[^'\n\r]*'|\"[^\"\n\r]*\")"
            r"|[bB]?"
            r"(?:'{3}(?:[^\\]|\\.)*?'{3}|\"{3}(?:[^\\]|\\.)*?\"{3}"
            r"|'(?:[^'\\\n\r]|\\.)*'|\"(?:[^\"\\\n\r]|\\.)*\")",
            re.DOTALL,
        ),
    ),
    (
        "number",
        re.compile(
            r"0x[0-9a-fA-F]+[uU]?|[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?"
            r"|[0-9]+(?:[eE][+-]?[0-9]+|[uU])?"
        ),
    ),
    ("sign", re.compile(r"&&|\|\||[=!<>]=|[-+*/%<>!?:.,()\[\]{}]|in(?![A-Za-z0-9_])")),
    ("name", re.compile(r"[A-Za-z_][A-Za-z0-9_]*|`[^`\n\r]+`")),
    ("other", re.compile(r".", re.DOTALL)),
)


def tokens(text: str) -> list[CelToken]:
    """The tokens of the text, without whitespace and comments. Nothing is rejected here."""
    found: list[CelToken] = []
    position = _skip(text, 0)
    while position < len(text):
        found.append(_after_steps(text, position, found) or _token(text, position))
        position = _skip(text, found[-1].end)
    return found


def at(found: Sequence[CelToken], index: int) -> CelToken:
    """The token of that index, or the end when there is none."""
    return found[index] if 0 <= index < len(found) else END


def is_free(found: Sequence[CelToken], index: int) -> bool:
    """Whether the name is a variable, and not a field of what precedes it."""
    before = index - 1
    if at(found, before).text == "?" and at(found, before - 1).text == ".":
        before -= 1
    return at(found, before).text != "." or not _ends_value(at(found, before - 1))


def is_name(found: Sequence[CelToken], index: int, name: str) -> bool:
    """Whether this variable is at that position."""
    token = at(found, index)
    return token.kind == "name" and token.text == name and is_free(found, index)


def literal(token: CelToken) -> str | None:
    """The value of a text token, if it has no escapes."""
    match = _LITERAL.fullmatch(token.text)
    if match is None or ("\\" in token.text and not match["raw"]):
        return None
    return match["body"]


def _skip(text: str, position: int) -> int:
    match = _SKIPPED.match(text, position)
    return match.end() if match else position


def _after_steps(text: str, position: int, found: list[CelToken]) -> CelToken | None:
    """The dot and the id in `steps.id` and `steps.?id`, if they are at that position."""
    last = len(found) - 1
    if text[position] == "." and is_name(found, last, "steps"):
        return CelToken("sign", ".", position)  # not the beginning of a number such as .5
    dot = last - 1 if at(found, last).text == "?" else last
    if at(found, dot).text != "." or not is_name(found, dot - 1, "steps"):
        return None
    match = _STEP.match(text, position)
    if match is None:
        return None
    called = "-" not in match[0] and text.startswith("(", _skip(text, match.end()))
    return None if called else CelToken("step", match[0], position)


def _token(text: str, position: int) -> CelToken:
    return next(
        CelToken(kind, match[0], position)
        for kind, pattern in _KINDS
        if (match := pattern.match(text, position))
    )


def _ends_value(token: CelToken) -> bool:
    return token.kind in {"name", "step", "text", "number"} or token.text in {")", "]", "}"}


STEP_FIELDS = ("content", "result", "status")

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_SELECTABLE = {"in", "true", "false", "null"}
_LOOPS = {"all", "exists", "exists_one", "filter", "map"}
_BUILDERS = {"map", "optMap", "optFlatMap"}


class TextEdit(NamedTuple):
    """Characters of the original text, and their replacement in the rewritten one."""

    start: int
    end: int
    text: str


class StepReference(NamedTuple):
    """A step named by its id. Without a field it is the step as a whole, or whether it exists."""

    step: str
    start: int
    field: str | None = None
    field_start: int = 0
    whole: bool = False


class _Selected(NamedTuple):
    name: str
    start: int
    next: int


def rewrite_ids(text: str, step_ids: Collection[str]) -> str:
    """The expression with `steps.some-id` written as `steps['some-id']` for every known id.

    Directly within `has(…)`, which requires a field and no index, the id is put between backticks.
    """
    return apply(text, edits(tokens(text), step_ids))


def edits(found: Sequence[CelToken], step_ids: Collection[str] | None = None) -> list[TextEdit]:
    """The edits that make ids readable for CEL; without `step_ids` every id, known or not."""
    return [
        _edit(found, index)
        for index, token in enumerate(found)
        if token.kind == "step"
        and (not _PLAIN_NAME.fullmatch(token.text) or token.text in _NOT_SELECTABLE)
        and (step_ids is None or token.text in step_ids)
    ]


def apply(text: str, changes: Sequence[TextEdit]) -> str:
    """The text with the edits, which are in order, applied."""
    parts, position = [], 0
    for edit in changes:
        parts += [text[position : edit.start], edit.text]
        position = edit.end
    return "".join([*parts, text[position:]])


def original_offset(changes: Sequence[TextEdit], offset: int) -> int:
    """The original position of a character of the rewritten text."""
    shift = 0
    for edit in changes:
        begin = edit.start + shift
        if offset < begin:
            break
        if offset < begin + len(edit.text):
            return edit.start
        shift += len(edit.text) - (edit.end - edit.start)
    return offset - shift


def references(found: Sequence[CelToken]) -> Iterator[StepReference | None]:
    """Each use of `steps`; None where it may be any step."""
    for index in range(len(found)):
        if is_name(found, index, "steps"):
            yield _reference(found, index)


def free_names(found: Sequence[CelToken]) -> set[str]:
    """Names of variables."""
    return {t.text for i, t in enumerate(found) if t.kind == "name" and is_free(found, i)}


def loop_variables(found: Sequence[CelToken]) -> Iterator[CelToken]:
    """The name of the item in each loop."""
    for index in _calls(found, _LOOPS | _BUILDERS):
        if at(found, index + 2).kind == "name" and at(found, index + 3).text == ",":
            yield found[index + 2]


def loops(found: Sequence[CelToken]) -> bool:
    """Whether there is a loop over the items of a list or map."""
    return any(_calls(found, _LOOPS))


def growth(found: Sequence[CelToken]) -> int:
    """How often the result of the loops may contain a value, in the worst case.

    Each loop that builds values multiplies its item by the number of times it names it, and the
    next one multiplies that: `.map(a, a + a)` twenty times turns one value into a million.
    """
    return prod(max(1, _mentions(found, index)) for index in _calls(found, _BUILDERS))


def _edit(found: Sequence[CelToken], index: int) -> TextEdit:
    step = found[index]
    optional = found[index - 1].text == "?"
    dot = found[index - 2 if optional else index - 1]
    mark = "?" if optional else ""
    around = (at(found, index - 4).text, at(found, index - 3).text, at(found, index + 1).text)
    if around == ("has", "(", ")"):
        return TextEdit(dot.start, step.end, f".`{step.text}`")
    return TextEdit(dot.start, step.end, f"[{mark}'{step.text}']")


def _reference(found: Sequence[CelToken], index: int) -> StepReference | None:
    step = _selected(found, index + 1)
    if step is None:
        return _membership(found, index)
    field = _selected(found, step.next)
    if field is None:
        return StepReference(step.name, step.start, whole=True)
    return StepReference(step.name, step.start, field.name, field.start)


def _selected(found: Sequence[CelToken], index: int) -> _Selected | None:
    """What `.name`, `.?name`, `['name']` or `[?'name']` selects at that position."""
    opening = at(found, index).text
    index += 2 if at(found, index + 1).text == "?" else 1
    token = at(found, index)
    if opening == "." and token.kind in {"name", "step"} and at(found, index + 1).text != "(":
        return _Selected(token.text.strip("`"), token.start, index + 1)
    if opening == "[" and token.kind == "text" and at(found, index + 1).text == "]":
        name = literal(token)
        return None if name is None else _Selected(name, token.start, index + 2)
    return None


def _membership(found: Sequence[CelToken], index: int) -> StepReference | None:
    """The id in `'id' in steps`, if the text is the whole left side."""
    text = at(found, index - 2)
    alone = at(found, index - 3).text in {"", "(", "[", "{", ",", "&&", "||", "?", ":"}
    untouched = at(found, index + 1).text not in {".", "["}
    if at(found, index - 1).text != "in" or text.kind != "text" or not (alone and untouched):
        return None
    name = literal(text)
    return None if name is None else StepReference(name, text.start)


def _calls(found: Sequence[CelToken], names: set[str]) -> Iterator[int]:
    for index, token in enumerate(found):
        if token.text in names and not is_free(found, index) and at(found, index + 1).text == "(":
            yield index


def _mentions(found: Sequence[CelToken], index: int) -> int:
    """How often the loop that is called at that position names its item."""
    item, depth, count = at(found, index + 2).text, 0, -1
    for place in range(index + 1, len(found)):
        text = found[place].text
        depth += (text in {"(", "[", "{"}) - (text in {")", "]", "}"})
        if depth == 0:
            break
        count += text == item and is_free(found, place)
    return count


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
    """Why an expression is rejected. `offset` counts characters of the original text."""

    message: str
    offset: int
    code: Code
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class WrittenExpression:
    """An expression as its author wrote it and as the evaluator received it, and the names that it
    may use.
    """

    rewritten: str
    edits: Sequence[TextEdit]
    tokens: Sequence[CelToken]
    step_ids: frozenset[str]
    variables: frozenset[str]


def step_problem(reference: StepReference, step_ids: Collection[str]) -> CelProblem | None:
    """The problem with a step named by its id."""
    if reference.step not in step_ids:
        known = sorted(step_ids)
        hint = did_you_mean(reference.step, known) or (
            f"known here: {clip(', '.join(known))}" if known else "no step can be named here"
        )
        message = f"there is no step {clip(reference.step)} here"
        return CelProblem(message, reference.start, "unknown-step", hint)
    if reference.field is not None and reference.field not in STEP_FIELDS:
        behind = f"fields of a result are behind it: steps.{reference.step}.result.…"
        said = "the text of a step is its content" if reference.field == "output" else None
        hint = said or did_you_mean(reference.field, STEP_FIELDS) or behind
        message = f"a step has {', '.join(STEP_FIELDS)}, but no {clip(reference.field)}"
        return CelProblem(message, reference.field_start, "unknown-name", hint)
    return None


def explain(report: str, written: WrittenExpression) -> list[CelProblem]:
    """The problems that the evaluator reports when it compiles an expression."""
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
            break  # errors after the first are about text that is not understood any more
    if not problems:
        problems.append(CelProblem(f"not understood: {clip(report)}", 0, "cel-syntax"))
    causes = [problem for problem in problems if "*error*" not in problem.message]
    return list(dict.fromkeys(causes or problems))[:MAX_PROBLEMS]


def _problem(message: str, offset: int, written: WrittenExpression) -> CelProblem:
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


def _undeclared(name: str, offset: int, written: WrittenExpression) -> CelProblem:
    """The evaluator points at the dot or bracket after a name; the author looks for the name."""
    for index, token in reversed(list(enumerate(written.tokens))):
        if token.start <= offset and token.text == name:
            hint = next(_name_hints(index, written))
            return CelProblem(_unknown(index, written), token.start, "unknown-name", hint)
    return CelProblem(f"there is no {clip(name)}", offset, "unknown-name")


def _unknown(index: int, written: WrittenExpression) -> str:
    name = clip(written.tokens[index].text)
    return f"there is no {'function ' if _called(index, written) else ''}{name} here"


def _called(index: int, written: WrittenExpression) -> bool:
    return at(written.tokens, index + 1).text == "("


def _name_hints(index: int, written: WrittenExpression) -> Iterator[str]:
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
        yield f"write a name with a hyphen in brackets: ['{hyphened}']"
    variables = sorted(written.variables)
    nothing = "no name can be used here"
    yield did_you_mean(name, variables) or (
        f"known here: {one_of(variables)}" if variables else nothing
    )
