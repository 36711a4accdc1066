"""References between the steps of a document: dependencies, and expressions that name steps.

Finds duplicate ids, unknown names, circular dependencies and invalid expressions. It uses the steps
before validation, so that these problems are part of the same report.

The CEL evaluator is slow to load, so this module must not import `cel`: it is imported with the
first expression.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar

from loopwright.syntax.document import Diagnostic, Document, Position, did_you_mean

if TYPE_CHECKING:
    from loopwright.syntax.cel import CelProblem

_MOST_SHOWN = 12


class WrittenStep(Protocol):
    """A step as written. `before` is the result of `ended_before`, None until then."""

    before: set[str] | None

    @property
    def path(self) -> tuple[str | int, ...]:
        """Its position."""

    @property
    def value(self) -> Mapping[str, object]:
        """Its whole content."""

    @property
    def id(self) -> str:
        """Its name; empty if it has none."""

    @property
    def needs(self) -> Sequence[str]:
        """The steps that it waits for."""


Step = TypeVar("Step", bound=WrittenStep)


@dataclass(frozen=True, slots=True)
class GraphWording:
    """The terms of a dialect for steps. `key` is where a step names its dependencies; `twice` and
    `unknown` are the codes for a duplicate id and for an unknown name.
    """

    key: str
    twice: str
    unknown: str
    step: str = "step"
    needs: str = "needs"
    edges: str = "dependencies"


def needs_of(value: Mapping[str, object], key: str) -> list[str]:
    """The names that a step lists under a key, without values that are not names."""
    return [need for _, need in _listed(value, key)]


def graph_problems(
    document: Document,
    steps: Sequence[Step],
    words: GraphWording,
    *,
    advice: Callable[[Step, str, list[str]], str | None],
) -> Iterator[Diagnostic]:
    """All problems of the dependencies among steps that can see one another.

    `advice` is the hint for an unknown name; it receives the step, the name and the names of all
    others.
    """
    by_id: dict[str, Step] = {}
    for step in steps:
        if step.id:
            by_id.setdefault(step.id, step)
    yield from _doubles(document, steps, words, by_id)
    for step in steps:
        for number, need in _listed(step.value, words.key):
            place = (*step.path, words.key, number)
            if need == step.id:
                message = f"{need} {words.needs} itself: {need} → {need}"
                yield document.error("cycle", message, at=place)
            elif need not in by_id:
                message = f"no {words.step} here is called {need[:60]}"
                hint = advice(step, need, [one for one in by_id if one != step.id])
                yield document.error(words.unknown, message, at=place, hint=hint)
    yield from _circle(document, words, by_id)


def near_or_known(word: str, names: Sequence[str]) -> str | None:
    """The hint for an unknown name: the one that was probably meant, or all of them."""
    return did_you_mean(word, names) or known_names(names)


def known_names(names: Sequence[str]) -> str | None:
    """The hint that lists the existing names, if there are any."""
    if not names:
        return None
    once = list(dict.fromkeys(names))
    more = ", …" if len(once) > _MOST_SHOWN else ""
    return f"known: {', '.join(once[:_MOST_SHOWN])}{more}"


def ended_before(step: Step, by_id: Mapping[str, Step]) -> set[str]:
    """All steps of a graph that have ended when this one starts."""
    if step.before is not None:
        return step.before
    found: set[str] = set()
    todo = list(step.needs)
    while todo:
        need = todo.pop()
        if need not in by_id or need in found:
            continue
        found.add(need)
        further = by_id[need].before
        if further is None:
            todo += by_id[need].needs
        else:
            found |= further
    step.before = found
    return found


def _listed(value: Mapping[str, object], key: str) -> list[tuple[int, str]]:
    """The names under a key, each with its position in the list."""
    written = value.get(key)
    listed = enumerate(written if isinstance(written, list) else ())
    return [(number, need) for number, need in listed if isinstance(need, str)]


def _doubles(
    document: Document, steps: Sequence[Step], words: GraphWording, by_id: Mapping[str, Step]
) -> Iterator[Diagnostic]:
    for step in steps:
        first = by_id.get(step.id, step)
        if first is not step:
            here, there = (document.at((*one.path, "id")).line for one in (step, first))
            message = f"{step.id} is the id of the {words.step}s on lines {there} and {here}"
            if here == there:
                message = f"{step.id} is the id of two {words.step}s on line {here}"
            hint = f"give each {words.step} its own id"
            yield document.error(words.twice, message, at=(*step.path, "id"), hint=hint)


def _circle(
    document: Document, words: GraphWording, by_id: Mapping[str, Step]
) -> Iterator[Diagnostic]:
    """One cycle is reported, with its path; others show when it is fixed."""
    waiting = _waiting(by_id)
    if not waiting:
        return
    name = next(iter(waiting))
    trail: dict[str, None] = {}
    while name not in trail:
        trail[name] = None
        name = waiting[name][0]
    passed = list(trail)
    around = [*passed[passed.index(name) :], name]
    step = by_id[around[0]]
    number = next(at for at, need in _listed(step.value, words.key) if need == around[1])
    shown = around if len(around) <= _MOST_SHOWN else [*around[:6], "…", *around[-5:]]
    message = f"{words.step}s wait for one another: {' → '.join(shown)}"
    hint = f"remove one of these {words.edges}"
    yield document.error("cycle", message, at=(*step.path, words.key, number), hint=hint)


def _waiting(by_id: Mapping[str, Step]) -> dict[str, list[str]]:
    """Steps that can never start because each waits for another of them."""
    waiting = {
        name: [need for need in dict.fromkeys(step.needs) if need in by_id and need != name]
        for name, step in by_id.items()
    }
    waiters: dict[str, list[str]] = {}
    for name, needs in waiting.items():
        for need in needs:
            waiters.setdefault(need, []).append(name)
    missing = {name: len(needs) for name, needs in waiting.items()}
    free = [name for name, count in missing.items() if not count]
    for ended in free:  # grows during the iteration
        for name in waiters.get(ended, ()):
            missing[name] -= 1
            if not missing[name]:
                free.append(name)
    stuck = waiting.keys() - set(free)
    return {
        name: [need for need in needs if need in stuck]
        for name, needs in waiting.items()
        if name in stuck
    }


Wants: TypeAlias = Literal["bool", "list"]

_ID = re.compile(r"['\"]?([A-Za-z0-9_-]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """An expression and its position. `ids` are the steps that it can use, `late` those that exist
    but may not have ended; `waiting` is the key that makes a step wait for them.
    """

    path: Sequence[str | int]
    text: str
    wants: Wants
    ids: frozenset[str]
    late: Collection[str] = ()
    waiting: str = "needs"


def expression_problems(document: Document, one: Expression) -> Iterator[Diagnostic]:
    """All problems of an expression."""
    from loopwright.syntax.cel import compile_cel  # noqa: PLC0415 - most definitions have none

    made = compile_cel(one.text, step_ids=one.ids, wants=one.wants)
    for problem in made if isinstance(made, list) else ():
        yield _diagnostic(document, one, problem)


def _diagnostic(document: Document, one: Expression, problem: "CelProblem") -> Diagnostic:
    line, column = place_in_text(document, one.path, one.text, problem.offset)
    message, hint = problem.message, problem.hint
    named = _ID.match(one.text, problem.offset)
    if problem.code == "unknown-step" and named and named[1] in one.late:
        message = f"{named[1]} may not have ended when this is evaluated"
        hint = f"add {one.waiting}: [{named[1]}]"
    return Diagnostic(document.file, line, column, problem.code, message, hint)


def place_in_text(
    document: Document, path: Sequence[str | int], text: str, offset: int
) -> Position:
    """The position of a character of a text, if the file contains the text unchanged."""
    node, _ = document._walk(path)
    source, begin = document._source, node.offset
    before = text[:offset]
    row = text.split("\n")[before.count("\n")]
    if source.text[begin : begin + 1] in ("|", ">"):
        start = source.text.find(row, begin)
    else:
        quoted = source.text.startswith(("'", '"'), begin)
        start = source.text.find(row, begin + quoted, begin + quoted + len(row))
    if start < 0 or not row.strip():
        return document.at(path)
    return source.position(start + len(before) - (before.rfind("\n") + 1))
