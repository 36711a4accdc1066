"""Which runs are loops. All of them are in one registry, by whichever door they were started and in
whichever language their definition was written: every run whose plan repeats something is one.
"""

from collections import OrderedDict

from loopwright.app.dialects import ASSISTANTS, OF_LOOPS
from loopwright.app.service import Service
from loopwright.errors import NotFound, StorageError
from loopwright.kernel.facts import RunStarted
from loopwright.model.actions import Action, Repeat, Steps
from loopwright.ports import RunRow

ALWAYS = (ASSISTANTS, OF_LOOPS)  # languages that have nothing else
MOST_KNOWN = 10_000
_KNOWN: OrderedDict[str, bool] = OrderedDict()  # by the name of the plan, which is what it says


def loop_row(service: Service, run: str) -> RunRow:
    """A loop by its whole id; NotFound for a run that repeats nothing too."""
    row = service.log.row(run)
    if not is_loop(service, row):
        raise NotFound(f"{row.run} is no loop: it repeats nothing")
    return row


def is_loop(service: Service, row: RunRow) -> bool:
    """Whether a run repeats something; one whose facts cannot be read is none."""
    if row.headline.dialect in ALWAYS:
        return True
    try:
        first = service.log.read(row.run, limit=1)
        return bool(first) and isinstance(first[0].fact, RunStarted) and _is(service, first[0].fact)
    except StorageError:
        return False


def _is(service: Service, started: RunStarted) -> bool:
    known = _KNOWN.get(started.plan)
    if known is None:
        known = any(_repeats(step.action) for step in service.plan(started).steps)
        _KNOWN[started.plan] = known
        if len(_KNOWN) > MOST_KNOWN:
            _KNOWN.popitem(last=False)
    return known


def _repeats(action: Action) -> bool:
    if isinstance(action, Steps):
        return any(_repeats(step.action) for step in action.steps)
    return isinstance(action, Repeat)
