"""Two processes at one home: what the one does between two steps of the other."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from loopwright.operations.accounts.access import Access
from loopwright.operations.accounts.people import People
from loopwright.operations.data_directory import open_log
from loopwright.operations.settings import Settings
from loopwright.testing.fakes import FakeClock


@contextmanager
def connections(folder: Path) -> Iterator[Callable[[], People]]:
    """Makes people of one home, each over a connection of its own."""
    settings = Settings(home=folder / "home", durability="normal")
    with ExitStack() as stack:
        yield lambda: People(Access(stack.enter_context(closing(open_log(settings))), FakeClock()))


class Interrupted:
    """Cards between which and their reader somebody else comes, once, at a moment."""

    def __init__(self, records: Any, moment: str, other: Callable[[], object]) -> None:
        self._records, self._moment, self._other = records, moment, [other]

    def _now(self, moment: str) -> None:
        if moment == self._moment and self._other:
            self._other.pop()()

    def record(self, kind: str, key: str) -> Any:
        self._now(f"before {kind}")
        found = self._records.record(kind, key)
        self._now(f"after {kind}")
        return found

    def records(self, kind: str, **how: Any) -> Any:
        found = self._records.records(kind, **how)
        self._now(f"after all {kind}")
        return found

    def change(self, *what: Any, **how: Any) -> None:
        self._now("before change")
        self._records.change(*what, **how)
