"""All histories by name, and a command that shows what two kernels make of one of them.

`python -m tests.kernel_differential.histories generated 17` goes through it with the current kernel
and the frozen one, and prints the moves, the events, and the first difference if there is one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from tests.golden.catalogue import LOGS, read_plan
from tests.kernel_differential.generated import generated
from tests.kernel_differential.harness import (
    Difference,
    History,
    Kernel,
    Move,
    Player,
    compare,
    compare_prefixes,
    compared_kernel,
    current_kernel,
)
from tests.kernel_differential.simulated import simulated, talking

SOURCES = ("generated", "simulated", "generated", "talking", "generated")
"""The n-th history comes from the source at n modulo their number."""
GOLDEN = sorted(path.stem for path in LOGS.glob("*.jsonl"))


def golden(name: str) -> History:
    """A golden log: each of its events is one move, and nothing is decided on the way."""
    lines = (LOGS / f"{name}.jsonl").read_bytes().splitlines()
    moves = [Move(events=(line,), settles=False) for line in lines]
    return History(name=f"golden {name}", plan=read_plan(name), moves=moves)


def numbered(number: int, kernel: Kernel) -> list[History]:
    """The runs of the n-th history."""
    return histories_of(SOURCES[number % len(SOURCES)], str(number), kernel)


def histories_of(source: str, name: str, kernel: Kernel) -> list[History]:
    """The histories that a source makes of a seed, or of the name of a golden log."""
    match source:
        case "golden":
            return [golden(name)]
        case "simulated":
            return simulated(int(name))
        case "talking":
            return talking(int(name))
        case _:
            return [generated(int(name), kernel)]


def difference_in(history: History, a: Kernel, b: Kernel) -> Difference | None:
    """The first difference between two kernels in a history."""
    by_events = history.name.startswith("golden ")
    return compare_prefixes(history, a, b) if by_events else compare(history, a, b)


def differences(numbers: Iterable[int], a: Kernel, b: Kernel) -> Iterator[Difference]:
    """The first difference in each of these histories that has one."""
    for number in numbers:
        for history in numbered(number, a):
            found = difference_in(history, a, b)
            if found is not None:
                yield found


def told(history: History, kernel: Kernel) -> Iterator[str]:
    """The moves of a history with what a kernel says about each."""
    player = Player(kernel, history)
    for number, move in enumerate(history.moves, 1):
        detail = " ".join(map(str, move.detail))
        yield f"move {number} at {move.at}: {move.kind} {detail}"
        yield from (f"    {event.decode()}" for event in move.events)
        yield from (f"    -> {event.decode()}" for event in player.move(move))


def main(arguments: list[str]) -> None:
    """Show a history by its source and its seed or name."""
    source, name = arguments
    a, b = current_kernel(), compared_kernel()
    for history in histories_of(source, name, a):
        found = difference_in(history, a, b)
        ending = found.report() if found is not None else "no difference"
        sys.stdout.write("\n".join([history.name, *told(history, a), ending, ""]))


if __name__ == "__main__":
    main(sys.argv[1:])
