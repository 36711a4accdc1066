"""Events of a run in the forms in which interfaces return them."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Literal, TypeAlias

import msgspec

from loopwright.model.record import JsonValue
from loopwright.operations.runs import Service
from loopwright.ports import NumberedEvent
from loopwright.views.event_records import event_on_wire

View: TypeAlias = Literal["events", "words", "transcript", "dialect"]
"""How the events of a run are returned: as records, as records with the line that a terminal shows
(`told`), as entries of the transcript, or as the system of its definition names them.
"""

Records: TypeAlias = list[dict[str, JsonValue]]


def event_view(service: Service, run: str, view: View) -> Callable[[NumberedEvent], Records]:
    """A function that returns the records of an event. Unless the view is `events`, it has to be
    called with every event, from the first.
    """
    match view:
        case "events":
            return lambda one: [event_on_wire(run, one)]
        case "words":
            return _in_words(service, run)
        case "transcript":
            return _in_transcript(service, run)
        case "dialect":
            from loopwright.operations.loops.dialect_events import DialectEventFeed  # noqa: PLC0415 - rarely needed

            return DialectEventFeed(service, run).take


def _in_words(service: Service, run: str) -> Callable[[NumberedEvent], Records]:
    from loopwright.views.progress import Progress  # noqa: PLC0415 - needed by this view only

    progress = Progress(service.plan(_first(service, run).event), service.read_text)

    def take(one: NumberedEvent) -> Records:
        line = progress.take(one)
        words: dict[str, JsonValue] = {"told": asdict(line)} if line is not None else {}
        return [event_on_wire(run, one) | words]

    return take


def _in_transcript(service: Service, run: str) -> Callable[[NumberedEvent], Records]:
    from loopwright.views.transcript import RunTranscript  # noqa: PLC0415 - needed by this view only

    transcript = RunTranscript(service.plan(_first(service, run).event), service.read_text)

    def take(one: NumberedEvent) -> Records:
        entry = transcript.take(one)
        return [] if entry is None else [msgspec.structs.asdict(entry)]

    return take


def _first(service: Service, run: str) -> NumberedEvent:
    found = service.log.read(run, limit=1) or service.events(run)  # which reports what is wrong
    return found[0]
