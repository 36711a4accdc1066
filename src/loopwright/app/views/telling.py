"""A run in the words of the system that its definition was written for."""

from collections.abc import Iterable, Iterator

import msgspec

from loopwright.app.dialects import ASSISTANTS, rendering
from loopwright.app.loops import LoopStory, Told
from loopwright.app.moments import timestamp
from loopwright.app.service import Service
from loopwright.app.views.wire import fact_on_wire
from loopwright.errors import LoopwrightError
from loopwright.model.ids import MAIN
from loopwright.model.record import Blob, JsonValue
from loopwright.ports import Numbered


class Teller:
    """Follows one run fact by fact, from the first on. Where a dialect has no words of its own its
    facts are told as they are, unless `own` words are insisted on.
    """

    def __init__(self, service: Service, run: str, *, own: bool = True) -> None:
        plan = service.plan((service.log.read(run, limit=1) or service.facts(run))[0].fact)
        self._story = LoopStory(service, run) if plan.dialect == ASSISTANTS else None
        rendered = rendering(plan.dialect, plan, lambda text: service.read_text(_text(text)))
        if rendered is None and self._story is None and own:
            raise LoopwrightError(
                f"the dialect {plan.dialect} has no events of its own",
                code="no-events",
                hint=f"`loopwright events {run}` shows the events",
            )
        self.run = run
        self._rendered = rendered

    def take(self, numbered: Numbered) -> list[dict[str, JsonValue]]:
        """What the next fact is in the words of the dialect; `seq` is its number."""
        if self._story is not None:
            told = ((one, one.engine_payload()) for one in self._story.take(numbered))
            return [_of_loop(self.run, one, body) for one, body in told if body is not None]
        if self._rendered is None:
            return [_as_it_is(self.run, numbered)]
        events = self._rendered.events(msgspec.to_builtins(numbered.fact))
        if getattr(self._rendered, "is_flat", False):
            return [
                {
                    "type": event.type,
                    "timestamp": timestamp(event.at),
                    "runId": self.run,
                    **event.payload,
                    "seq": numbered.seq,
                }
                for event in events
            ]
        return [
            {
                "run": self.run,
                "seq": numbered.seq,
                "at": timestamp(event.at),
                "type": event.type,
                "path": event.path,
                "payload": event.payload,
            }
            for event in events
        ]


def _of_loop(run: str, one: Told, payload: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {
        "run": run,
        "seq": one.seq,
        "at": timestamp(one.at),
        "type": one.name,
        "path": MAIN,
        "payload": payload,
    }


def _as_it_is(run: str, numbered: Numbered) -> dict[str, JsonValue]:
    fact = fact_on_wire(run, numbered)
    first: dict[str, JsonValue] = {name: fact.pop(name) for name in ("run", "seq", "at")}
    return {**first, "type": fact.pop("kind"), "path": fact.pop("path"), "payload": fact}


def told(
    service: Service, run: str, facts: Iterable[Numbered], after: int
) -> Iterator[dict[str, JsonValue]]:
    """The events of a run, of which `facts` are all from the first; those up to `after` are left
    out. `seq` is the number of the fact that an event tells.
    """
    teller = Teller(service, run)
    for numbered in facts:
        events = teller.take(numbered)
        if numbered.seq > after:
            yield from events


def _text(value: JsonValue) -> str | Blob | None:
    """A text as it stands in a fact."""
    return msgspec.convert(value, Blob) if isinstance(value, dict) else str(value or "")
