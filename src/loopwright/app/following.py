"""Following a run that anybody may drive: facts as they are written, from any number on."""

import time
from collections.abc import Callable, Iterator

from loopwright.app.service import Service
from loopwright.kernel.facts import RunFinished
from loopwright.ports import Numbered

POLL_S = 0.1


def follow(
    service: Service, run: str, after: int = 0, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Numbered]:
    """Every fact of a run with a number above `after`; ends with the run."""
    while True:
        for numbered in service.facts(run, after=after):
            after = numbered.seq
            yield numbered
        if _has_ended(service, run, after):
            return
        while not service.log.changed():
            sleep(POLL_S)


def _has_ended(service: Service, run: str, seen: int) -> bool:
    """Whether everything was seen, and the last of it ended the run."""
    version = service.log.version(run)
    if version > seen:
        return False
    newest = service.facts(run, after=version - 1)
    return bool(newest) and isinstance(newest[-1].fact, RunFinished)
