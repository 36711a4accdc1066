"""Steps that wait for one another: ids used twice, names that are unknown, circles.

Works on steps as they were written, before they are known to be right, so that these problems
stand in the same report as all others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from loopwright.syntax.diagnostic import Diagnostic
from loopwright.syntax.document import Document
from loopwright.syntax.words import did_you_mean

_MOST_SHOWN = 12


class StepAt(Protocol):
    """A step as it was written. `before` is what `ended_before` has found, None until then."""

    before: set[str] | None

    @property
    def path(self) -> tuple[str | int, ...]:
        """Where it stands."""

    @property
    def value(self) -> Mapping[str, object]:
        """All that it says."""

    @property
    def id(self) -> str:
        """Its name; empty where it has none."""

    @property
    def needs(self) -> Sequence[str]:
        """The steps that it waits for."""


Step = TypeVar("Step", bound=StepAt)


@dataclass(frozen=True, slots=True)
class Wording:
    """How a language speaks of its steps. `key` is where one names those that it waits for;
    `twice` and `unknown` are its codes for an id of two steps and for a name of none.
    """

    key: str
    twice: str
    unknown: str
    step: str = "step"
    needs: str = "needs"
    edges: str = "dependencies"


def needs_of(value: Mapping[str, object], key: str) -> list[str]:
    """The names that a step lists under a key, as far as they are names."""
    return [need for _, need in _listed(value, key)]


def graph_problems(
    document: Document,
    steps: Sequence[Step],
    words: Wording,
    *,
    advice: Callable[[Step, str, list[str]], str | None],
) -> Iterator[Diagnostic]:
    """All that is wrong with who waits for whom among steps that can see one another.

    `advice` is the hint about a name that none of them has; it is given the step, the name and
    the names of all others.
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
    """The hint for a name that nothing has: the one that was probably meant, or all there are."""
    return did_you_mean(word, names) or known_names(names)


def known_names(names: Sequence[str]) -> str | None:
    """The hint that lists what there is, if there is anything."""
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
    """The names under a key, each with its place in the list."""
    written = value.get(key)
    listed = enumerate(written if isinstance(written, list) else ())
    return [(number, need) for number, need in listed if isinstance(need, str)]


def _doubles(
    document: Document, steps: Sequence[Step], words: Wording, by_id: Mapping[str, Step]
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


def _circle(document: Document, words: Wording, by_id: Mapping[str, Step]) -> Iterator[Diagnostic]:
    """One circle is told, with its path; the others show when it is gone."""
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
    for ended in free:  # grows while it is walked
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
