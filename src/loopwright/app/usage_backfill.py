"""Usage of runs from before it was written with their events: added up once."""

from dataclasses import replace

from loopwright.errors import NotFound, StorageError
from loopwright.kernel.facts import RunEdited, RunStarted
from loopwright.model.plan import stored_plan
from loopwright.ports import EventLog
from loopwright.runtime.headline import usage_rows


def meter_old_runs(log: EventLog) -> list[str]:
    """Add up the usage of runs that an older version recorded. A damaged run is left out; the
    answer names those that could not be added up.
    """
    left: list[str] = []
    for run in log.unmetered():
        try:
            _meter(log, run)
        except (StorageError, NotFound):
            left.append(run)
    return left


def _meter(log: EventLog, run: str) -> None:
    facts = [one.fact for one in log.read(run)]
    headline = log.row(run).headline
    labels: tuple[str, ...] = ()
    surface = ""
    for fact in facts:
        if isinstance(fact, RunStarted):
            labels = fact.labels
            surface = stored_plan(log.blob, fact.plan).settings.get("surface", "")
        elif isinstance(fact, RunEdited) and fact.labels is not None:
            labels = fact.labels
    log.replace_usage(
        run, replace(headline, labels=labels, surface=surface), usage_rows(run, facts)
    )
