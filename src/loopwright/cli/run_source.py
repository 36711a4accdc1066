"""Read one run from the local log or from a remote server; both return the same data."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias
from urllib.parse import quote

import msgspec

from loopwright.cli.formats import open_service
from loopwright.cli.terminal import Terminal
from loopwright.model.ids import iteration_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from loopwright.cli.remote_client import RemoteClient
    from loopwright.model.record import JsonValue
    from loopwright.operations.runs import Service
    from loopwright.ports import Delta, NumberedEvent

    TakeText = Callable[[str, str, str], None]
    """Takes text as it is written: the effect, the kind, the text."""


IterationChoice: TypeAlias = tuple[int | None, int | None]
"""The number of an iteration and its attempt; None means all of them."""


class RunSource(Protocol):
    """One run, to look at."""

    run: str

    def detail(self) -> "dict[str, JsonValue]":
        """Everything that a page shows."""

    def figures(self) -> "dict[str, JsonValue]":
        """What every round, stage and role took and cost."""

    def picture(self) -> str:
        """The same as SVG."""

    def output(self, path: str) -> "dict[str, JsonValue]":
        """The whole text of one step or iteration."""

    def certificate(self) -> "dict[str, JsonValue]":
        """Which checks decided, and on what."""

    def entries(
        self, *, follow: bool, text: "TakeText | None" = None
    ) -> "Iterator[dict[str, JsonValue]]":
        """Text of agents, checks and people. `text` receives what agents write in the meantime.
        Following ends with the run, or when no process drives it any more.
        """

    def activity(
        self, *, iteration: IterationChoice, follow: bool, full: bool, dropped: dict[str, int]
    ) -> "Iterator[dict[str, JsonValue]]":
        """The activity of agents; with `full`, arguments and results are not cut. `dropped`
        receives the number of entries of each call that were not stored.
        """


@contextmanager
def open_run_source(terminal: Terminal, reference: str) -> Iterator[RunSource]:
    """A run by a name that people give it."""
    if terminal.remote is not None:
        yield _RemoteRun(terminal.remote, reference, retry=not terminal.options.no_retry)
        return
    with open_service(terminal) as service:
        yield _LocalRun(service, reference, terminal.settings.home)


class _LocalRun:
    """A run in the log here."""

    def __init__(self, service: "Service", reference: str, home: Path) -> None:
        self.run = service.find(reference)
        self._service, self._home = service, home

    def detail(self) -> "dict[str, JsonValue]":
        from loopwright.operations.run_lists import run_detail  # noqa: PLC0415 - help stays quick

        found: dict[str, JsonValue] = msgspec.to_builtins(run_detail(self._service, self.run))
        return found

    def figures(self) -> "dict[str, JsonValue]":
        from loopwright.views.metrics import run_figures  # noqa: PLC0415 - help stays quick

        found: dict[str, JsonValue] = msgspec.to_builtins(run_figures(self._service, self.run))
        return found

    def picture(self) -> str:
        from loopwright.views.metrics import (  # noqa: PLC0415 - help stays quick
            metrics_chart,
            run_figures,
        )

        title = self._service.log.row(self.run).headline.name
        return metrics_chart(run_figures(self._service, self.run), title=title)

    def output(self, path: str) -> "dict[str, JsonValue]":
        from loopwright.views.run_view import output_at  # noqa: PLC0415 - help stays quick

        found: dict[str, JsonValue] = msgspec.to_builtins(output_at(self._service, self.run, path))
        return found

    def certificate(self) -> "dict[str, JsonValue]":
        from loopwright.views.certificate import run_certificate  # noqa: PLC0415 - quick help

        made: dict[str, JsonValue] = msgspec.to_builtins(run_certificate(self._service, self.run))
        return made

    def entries(
        self, *, follow: bool, text: "TakeText | None" = None
    ) -> "Iterator[dict[str, JsonValue]]":
        from loopwright.views.transcript import RunTranscript  # noqa: PLC0415 - help stays quick

        service, run = self._service, self.run
        transcript = RunTranscript(service.plan(service.events(run)[0].event), service.read_text)
        if follow and text is not None:
            events = self._listening(text)
        else:
            events = self._following() if follow else iter(service.events(run))
        return (
            msgspec.structs.asdict(entry)
            for entry in map(transcript.take, events)
            if entry is not None
        )

    def _following(
        self, sleep: "Callable[[float], None]" = time.sleep
    ) -> "Iterator[NumberedEvent]":
        """The events as they are written, until the run ends or is left without a process."""
        from loopwright.operations.run_tail import DriverWatch  # noqa: PLC0415 - help stays quick
        from loopwright.operations.run_tail import follow as following  # noqa: PLC0415 - quick help

        watch = DriverWatch(self._service, self.run)
        return following(self._service, self.run, sleep=sleep, is_over=watch.is_gone)

    def _listening(self, text: "TakeText") -> "Iterator[NumberedEvent]":
        """The events as they are written. Text that agents write in the meantime is passed on after
        the event that started their call and before the one that ends it.
        """
        from loopwright.kernel.events import (  # noqa: PLC0415 - help stays quick
            EffectDone,
            EffectFailed,
            EffectRequested,
        )
        from loopwright.operations.run_tail import LiveReader  # noqa: PLC0415 - help stays quick

        reader = LiveReader(self._home, self.run)
        held: list[Delta] = []
        open_calls: set[str] = set()
        waited: set[str] = set()  # calls that were under way while we waited

        def listen(seconds: float) -> None:
            waited.update(open_calls)
            owner = self._service.log.row(self.run).owner
            held.extend(reader.read(owner.token if owner is not None else "", seconds))
            ready = [one for one in held if one.effect in open_calls]
            held[:] = [one for one in held if one.effect not in open_calls]
            for delta in ready:
                text(delta.effect, delta.kind, delta.text)

        with closing(reader):
            for numbered in self._following(listen):
                event = numbered.event
                if isinstance(event, EffectRequested):
                    open_calls.add(event.effect)
                elif isinstance(event, EffectDone | EffectFailed):
                    if event.effect in waited:  # the text of earlier calls is in their entries
                        listen(0)
                    open_calls.discard(event.effect)
                yield numbered

    def activity(
        self, *, iteration: IterationChoice, follow: bool, full: bool, dropped: dict[str, int]
    ) -> "Iterator[dict[str, JsonValue]]":
        from loopwright.views.transcript import (  # noqa: PLC0415 - help stays quick
            ActivityFilter,
            activity_items,
            noting_dropped,
        )

        service, run = self._service, self.run
        events = self._following() if follow else iter(service.events(run))
        read = service.read_text if full else None
        wanted = ActivityFilter(iteration=iteration[0], attempt=iteration[1])
        found = activity_items(noting_dropped(events, dropped, wanted), read, wanted)
        return map(msgspec.structs.asdict, found)


class _RemoteRun:
    """A run on a remote server."""

    def __init__(self, remote: "RemoteClient", reference: str, *, retry: bool) -> None:
        self.run = remote.run(reference)
        self._remote, self._retry = remote, retry
        self._base = f"/api/v1/runs/{quote(self.run)}"

    def detail(self) -> "dict[str, JsonValue]":
        found: dict[str, JsonValue] = self._remote.get(f"{self._base}/snapshot")
        return found

    def figures(self) -> "dict[str, JsonValue]":
        found: dict[str, JsonValue] = self._remote.get(f"{self._base}/metrics")
        return found

    def picture(self) -> str:
        return self._remote.text(f"{self._base}/picture")

    def output(self, path: str) -> "dict[str, JsonValue]":
        found: dict[str, JsonValue] = self._remote.get(f"{self._base}/output", path=path)
        return found

    def certificate(self) -> "dict[str, JsonValue]":
        found: dict[str, JsonValue] = self._remote.get(f"{self._base}/certificate")
        return found

    def entries(
        self, *, follow: bool, text: "TakeText | None" = None
    ) -> "Iterator[dict[str, JsonValue]]":
        asks = follow and text is not None
        for one in self._remote.logs(self.run, follow=follow, retry=self._retry, text=asks):
            if one["kind"] != "delta":
                yield one
            elif text is not None:
                text(str(one["effect"]), str(one["said"]), str(one["text"]))

    def activity(
        self, *, iteration: IterationChoice, follow: bool, full: bool, dropped: dict[str, int]
    ) -> "Iterator[dict[str, JsonValue]]":
        if follow:
            from loopwright.views.transcript import (  # noqa: PLC0415 - help stays quick
                ActivityFilter,
                dropped_in,
                items_of_event,
            )

            wanted = ActivityFilter(iteration=iteration[0], attempt=iteration[1])
            for event in self._remote.follow(self.run, 0, retry=self._retry):
                if event["kind"] == "effect.activity":
                    yield from map(msgspec.structs.asdict, items_of_event(event, None, wanted))
                    _count(dropped, dropped_in(event, wanted))
            return
        after: int | None = 0
        while after is not None:
            page = self._remote.get(
                f"{self._base}/activity",
                after=after,
                iteration=iteration_name(*iteration),
                full="true" if full else "false",
            )
            yield from page["entries"]
            _count(dropped, page.get("dropped_by_call", {}))  # an older server does not say
            after = page["next"]


def _count(counts: dict[str, int], more: "Mapping[str, int]") -> None:
    for effect, number in more.items():
        counts[effect] = counts.get(effect, 0) + number
