"""How people name the iterations of a run: `2`, and `2~1` for iteration 2 of the first try.

A run has more than one try of a loop after `resume --restart`, or where a step that is a loop is
retried. A plain number is that of the newest try.
"""

from collections.abc import Iterable

from loopwright.errors import LoopwrightError, NotFound
from loopwright.kernel.facts import AnyFact, IterationStarted
from loopwright.model.ids import logical_path, loop_path, parse_iteration, try_number


class IterationNames:
    """The iterations of the outermost loops that a run has started."""

    def __init__(self, started: Iterable[tuple[str, int | None]] = ()) -> None:
        self._loops: dict[str, dict[int, set[int]]] = {}  # numbers, by loop and try
        for path, number in started:
            self.add(path, number)

    def add(self, path: str, number: int | None) -> None:
        """An iteration begins. `number` counts where the path has no number of its own."""
        found = iteration_of(path, number)
        if found is not None and found > 0:
            tries = self._loops.setdefault(_loop(path), {})
            tries.setdefault(try_number(path), set()).add(found)

    @property
    def has_tries(self) -> bool:
        """Whether a number alone may stand for iterations of more than one try."""
        return any(len(tries) > 1 or max(tries) > 1 for tries in self._loops.values())

    def name(self, path: str, number: int) -> str:
        """The name of an iteration that stands for no other one."""
        return f"{number}~{try_number(path)}" if self.has_tries else str(number)

    def is_current(self, path: str, number: int) -> bool:
        """Whether a number alone stands for this iteration."""
        found = iteration_of(path, number) or 0
        return self._current(_loop(path), found) == try_number(path)

    def _current(self, loop: str, number: int) -> int | None:
        """The try that a number alone stands for: the newest one. Where that did not begin with
        iteration 1, it continues the one before.
        """
        tries = self._loops.get(loop, {})
        for attempt in sorted(tries, reverse=True):
            if number >= min(tries[attempt]):
                return attempt if number in tries[attempt] else None
        return None

    def find(self, run: str, wanted: str, *, future: bool = False) -> tuple[int, int | None]:
        """The number and the try that a name stands for; the try is None where there is only one.
        With `future`, it need not have begun.
        """
        named = parse_iteration(wanted)
        if named is None or named[0] == 0:
            raise bad_name(wanted, self.hint())
        number, attempt = named
        if attempt is None and self.has_tries:
            found = [self._current(loop, number) for loop in self._loops]
            newest = max(max(tries) for tries in self._loops.values())
            attempt = next((one for one in reversed(found) if one is not None), newest)
        if self._loops and not future and not self._has(number, attempt):
            raise NotFound(
                f"{run} has no iteration {wanted}", code="no-such-iteration", hint=self.hint()
            )
        return number, attempt

    def _has(self, number: int, attempt: int | None) -> bool:
        return any(
            number in numbers and attempt in (None, one)
            for tries in self._loops.values()
            for one, numbers in tries.items()
        )

    def hint(self) -> str:
        """Which names there are."""
        if not self._loops:
            return "iterations count from 1"
        found: dict[int, set[int]] = {}
        for tries in self._loops.values():
            for attempt, numbers in tries.items():
                found.setdefault(attempt, set()).update(numbers)
        if not self.has_tries:
            [numbers] = found.values()
            return f"there {_range(numbers)}"
        ranges = [_range(found[one], f"~{one}").partition(" ")[2] for one in sorted(found)]
        return f"there are {', '.join(ranges)}; a plain number is of the newest try"


def started_iterations(facts: Iterable[AnyFact]) -> IterationNames:
    """The names of the iterations that these events tell of."""
    return IterationNames(
        (fact.path, fact.iteration) for fact in facts if isinstance(fact, IterationStarted)
    )


def iteration_of(path: str, iteration: int | None) -> int | None:
    """The iteration, from 1, of the outermost loop: the one that people count. Turns of a chat
    model and loops inside of a step count for themselves.
    """
    for part in path.split("."):
        if part.isdecimal():
            return int(part) + 1
    return iteration


def is_in_iteration(
    path: str, iteration: int | None, wanted: tuple[int | None, int | None]
) -> bool:
    """Whether a place belongs to an iteration: its number and try, where they are given."""
    number, attempt = wanted
    if number is not None and number != iteration_of(path, iteration):
        return False
    return attempt is None or attempt == try_number(path)


def bad_name(wanted: object, hint: str) -> LoopwrightError:
    """The error for a text that is not the name of an iteration."""
    return LoopwrightError(
        f"{wanted!r} is not the name of an iteration, such as 2, or 2~1 for iteration 2 of try 1",
        code="bad-iteration",
        hint=hint,
    )


def _loop(path: str) -> str:
    return logical_path(loop_path(path))


def _range(numbers: set[int], end: str = "") -> str:
    first, last = min(numbers), max(numbers)
    return f"is {first}{end}" if first == last else f"are {first}{end} to {last}{end}"
