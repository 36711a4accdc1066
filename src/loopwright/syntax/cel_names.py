"""What an expression names: its variables, its steps and their fields; ids made readable for CEL.

All of it is read from tokens, so texts and comments are never mistaken for names.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from math import prod
from typing import NamedTuple

from loopwright.syntax.cel_tokens import Token, at, is_free, is_name, literal, tokens

STEP_FIELDS = ("content", "result", "status")

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_SELECTABLE = {"in", "true", "false", "null"}
_LOOPS = {"all", "exists", "exists_one", "filter", "map"}
_BUILDERS = {"map", "optMap", "optFlatMap"}


class Edit(NamedTuple):
    """Characters of the original text, and what stands for them in the rewritten one."""

    start: int
    end: int
    text: str


class Reference(NamedTuple):
    """A step named by its id. Without a field it is the step as a whole, or whether it is there."""

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

    Directly within `has(…)`, which wants a field and no index, the id is put between backticks.
    """
    return apply(text, edits(tokens(text), step_ids))


def edits(found: Sequence[Token], step_ids: Collection[str] | None = None) -> list[Edit]:
    """What makes ids readable for CEL; without `step_ids` every id, known or not."""
    return [
        _edit(found, index)
        for index, token in enumerate(found)
        if token.kind == "step"
        and (not _PLAIN_NAME.fullmatch(token.text) or token.text in _NOT_SELECTABLE)
        and (step_ids is None or token.text in step_ids)
    ]


def apply(text: str, changes: Sequence[Edit]) -> str:
    """The text with the edits, which are in order, applied."""
    parts, position = [], 0
    for edit in changes:
        parts += [text[position : edit.start], edit.text]
        position = edit.end
    return "".join([*parts, text[position:]])


def original_offset(changes: Sequence[Edit], offset: int) -> int:
    """Where a character of the rewritten text stands in the original."""
    shift = 0
    for edit in changes:
        begin = edit.start + shift
        if offset < begin:
            break
        if offset < begin + len(edit.text):
            return edit.start
        shift += len(edit.text) - (edit.end - edit.start)
    return offset - shift


def references(found: Sequence[Token]) -> Iterator[Reference | None]:
    """Each use of `steps`; None where it may be any step."""
    for index in range(len(found)):
        if is_name(found, index, "steps"):
            yield _reference(found, index)


def free_names(found: Sequence[Token]) -> set[str]:
    """Names that stand for themselves."""
    return {t.text for i, t in enumerate(found) if t.kind == "name" and is_free(found, i)}


def loop_variables(found: Sequence[Token]) -> Iterator[Token]:
    """The name that each loop gives to its items."""
    for index in _calls(found, _LOOPS | _BUILDERS):
        if at(found, index + 2).kind == "name" and at(found, index + 3).text == ",":
            yield found[index + 2]


def loops(found: Sequence[Token]) -> bool:
    """Whether something is done for each item of a list or map."""
    return any(_calls(found, _LOOPS))


def growth(found: Sequence[Token]) -> int:
    """How often a value may be contained in what the loops make of it, at worst.

    Each loop that builds values multiplies its item by the number of times it names it, and the
    next one multiplies that: `.map(a, a + a)` twenty times over makes a million of one.
    """
    return prod(max(1, _mentions(found, index)) for index in _calls(found, _BUILDERS))


def _edit(found: Sequence[Token], index: int) -> Edit:
    step = found[index]
    optional = found[index - 1].text == "?"
    dot = found[index - 2 if optional else index - 1]
    mark = "?" if optional else ""
    around = (at(found, index - 4).text, at(found, index - 3).text, at(found, index + 1).text)
    if around == ("has", "(", ")"):
        return Edit(dot.start, step.end, f".`{step.text}`")
    return Edit(dot.start, step.end, f"[{mark}'{step.text}']")


def _reference(found: Sequence[Token], index: int) -> Reference | None:
    step = _selected(found, index + 1)
    if step is None:
        return _membership(found, index)
    field = _selected(found, step.next)
    if field is None:
        return Reference(step.name, step.start, whole=True)
    return Reference(step.name, step.start, field.name, field.start)


def _selected(found: Sequence[Token], index: int) -> _Selected | None:
    """What `.name`, `.?name`, `['name']` or `[?'name']` selects there."""
    opening = at(found, index).text
    index += 2 if at(found, index + 1).text == "?" else 1
    token = at(found, index)
    if opening == "." and token.kind in {"name", "step"} and at(found, index + 1).text != "(":
        return _Selected(token.text.strip("`"), token.start, index + 1)
    if opening == "[" and token.kind == "text" and at(found, index + 1).text == "]":
        name = literal(token)
        return None if name is None else _Selected(name, token.start, index + 2)
    return None


def _membership(found: Sequence[Token], index: int) -> Reference | None:
    """The id in `'id' in steps`, where the text is all there is on the left."""
    text = at(found, index - 2)
    alone = at(found, index - 3).text in {"", "(", "[", "{", ",", "&&", "||", "?", ":"}
    untouched = at(found, index + 1).text not in {".", "["}
    if at(found, index - 1).text != "in" or text.kind != "text" or not (alone and untouched):
        return None
    name = literal(text)
    return None if name is None else Reference(name, text.start)


def _calls(found: Sequence[Token], names: set[str]) -> Iterator[int]:
    for index, token in enumerate(found):
        if token.text in names and not is_free(found, index) and at(found, index + 1).text == "(":
            yield index


def _mentions(found: Sequence[Token], index: int) -> int:
    """How often the loop that is called there names its item."""
    item, depth, count = at(found, index + 2).text, 0, -1
    for place in range(index + 1, len(found)):
        text = found[place].text
        depth += (text in {"(", "[", "{"}) - (text in {")", "]", "}"})
        if depth == 0:
            break
        count += text == item and is_free(found, place)
    return count
