"""Report to callers the result of their appends, and notify subscribers of new events."""

import asyncio
from collections.abc import Callable, Sequence

from loopwright.errors import LoopwrightError
from loopwright.ports import Append
from loopwright.stores.append_validation import Done, PendingAppend

Answer = tuple[PendingAppend, LoopwrightError | None]
Watcher = Callable[[str, int], None]


async def submit_appends(submit: Callable[[Append, Done], None], append: Append) -> None:
    """Submit and wait for the answer. Being cancelled ends the waiting, not the append."""
    told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None) -> None:
        if told.done():
            return
        if error is None:
            told.set_result(None)
        else:
            told.set_exception(error)

    submit(append, done)
    await told


class Subscribers:
    """Belongs to the thread of the event loop."""

    def __init__(self) -> None:
        self._watchers: list[Watcher] = []

    def subscribe(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` with run and version after every append; the returned function
        ends that.
        """

        # Compared by identity of the entry, so that the same watcher may be added twice.
        def entry(run: str, version: int) -> None:
            watcher(run, version)

        self._watchers.append(entry)

        def unsubscribe() -> None:
            if entry in self._watchers:
                self._watchers.remove(entry)

        return unsubscribe

    def tell(self, answers: Sequence[Answer]) -> None:
        """Notify everyone; a callback that raises does not affect the others."""
        errors: list[Exception] = []
        for entry, refusal in answers:
            try:
                entry.done(refusal)
            except Exception as error:
                errors.append(error)
            if refusal is None and entry.count and self._watchers:
                errors += self._shown(entry.append.run, entry.append.expected + entry.count)
        _raise(errors)

    def moved(self, run: str, version: int) -> None:
        """Notify watchers of writes by other processes."""
        _raise(self._shown(run, version))

    def _shown(self, run: str, version: int) -> list[Exception]:
        errors: list[Exception] = []
        for watcher in tuple(self._watchers):
            try:
                watcher(run, version)
            except Exception as error:
                errors.append(error)
        return errors


def _raise(errors: list[Exception]) -> None:
    if errors:
        raise ExceptionGroup("callbacks of the log failed", errors)
