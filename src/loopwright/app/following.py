"""Following a run that anybody may drive: facts as they are written, from any number on."""

import time
from collections.abc import Callable, Iterator

from loopwright.app.service import Service
from loopwright.app.views.listing import is_left_behind
from loopwright.kernel.facts import RunFinished
from loopwright.ports import Numbered

POLL_S = 0.1
GRACE_S = 10.0  # until a run counts as interrupted: a process may be about to take it up


class DriverWatch:
    """Notices that a run should proceed and that no process drives it."""

    def __init__(self, service: Service, run: str) -> None:
        self._service, self._run = service, run
        self._driven_at = time.monotonic()

    def is_gone(self) -> bool:
        """Whether the run has been without a living process for a while."""
        row = self._service.log.row(self._run)
        if not is_left_behind(self._service.log, row):
            self._driven_at = time.monotonic()
        return time.monotonic() - self._driven_at > GRACE_S


def follow(
    service: Service,
    run: str,
    after: int = 0,
    sleep: Callable[[float], None] = time.sleep,
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[Numbered]:
    """Every event of a run with a number above `after`; ends with the run, or when `is_over` says
    so after all events were read.
    """
    while True:
        for numbered in service.facts(run, after=after):
            after = numbered.seq
            yield numbered
        if _has_ended(service, run, after):
            return
        while not service.log.changed():
            if is_over():
                return
            sleep(POLL_S)


def _has_ended(service: Service, run: str, seen: int) -> bool:
    """Whether everything was seen, and the last of it ended the run."""
    version = service.log.version(run)
    if version > seen:
        return False
    newest = service.facts(run, after=version - 1)
    return bool(newest) and isinstance(newest[-1].fact, RunFinished)
