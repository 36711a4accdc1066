"""Traces: the spans of runs that this process drives, handed to OpenTelemetry while they run.

Traces are a view of the log: nothing else knows of them, and a collector that is away costs a run
nothing. They are told to whom, and how, by the variables that every program with OpenTelemetry
has (`OTEL_…`); without one of them, and without the extra `otel`, there are none.
"""

import asyncio
import contextlib
import logging
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol

from loopwright import __version__
from loopwright.app.service import Service
from loopwright.app.views.spans import Span, Spans
from loopwright.errors import LoopwrightError
from loopwright.kernel.facts import RunFinished
from loopwright.runtime.driver import LocalDriver

SWITCHES = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_TRACES_EXPORTER",
)
LOOK_SECONDS = 0.5
CLOSE_SECONDS = 2.0
MOST_KNOWN = 10_000
_LOG = logging.getLogger("loopwright.server.tracing")


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether anybody wants traces."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return False
    return any(environment.get(name, "").strip() for name in SWITCHES)


class Exporter(Protocol):
    """Takes spans, and lets go of them in its own time."""

    def take(self, span: Span) -> None: ...

    def close(self) -> None: ...


class OpenTelemetry:
    """Spans to OpenTelemetry's own exporter, which works in a thread of its own."""

    def __init__(
        self, exporter: object = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._api: Any = import_module("opentelemetry.trace")
        self._sdk: Any = import_module("opentelemetry.sdk.trace")
        export: Any = import_module("opentelemetry.sdk.trace.export")
        resources: Any = import_module("opentelemetry.sdk.resources")
        named = resources.Resource({"service.name": "loopwright", "service.version": __version__})
        told = resources.OTELResourceDetector().detect()  # by the environment, where it says more
        provider = self._sdk.TracerProvider(resource=named.merge(told))
        self._sampler, self._resource = provider.sampler, provider.resource
        scope: Any = import_module("opentelemetry.sdk.util.instrumentation")
        self._scope = scope.InstrumentationScope("loopwright", __version__)
        made = exporter if exporter is not None else _exporter(environment or {})
        self._processor = export.BatchSpanProcessor(made)

    def take(self, span: Span) -> None:
        kinds = self._api.SpanKind
        kind = kinds.CLIENT if span.kind == "client" else kinds.INTERNAL
        sampled = self._sampler.should_sample(
            None, span.trace, span.name, kind
        ).decision.is_sampled()
        if not sampled:
            return
        code = self._api.StatusCode.ERROR if span.error else self._api.StatusCode.UNSET
        readable = self._sdk.ReadableSpan(
            name=span.name,
            context=self._context(span, span.id),
            parent=None if span.parent is None else self._context(span, span.parent),
            resource=self._resource,
            attributes=span.values,
            kind=kind,
            status=self._api.Status(code),
            start_time=span.start * 1_000_000,
            end_time=span.end * 1_000_000,
            instrumentation_scope=self._scope,
        )
        self._processor.on_end(readable)

    def _context(self, span: Span, number: int) -> object:
        flags = self._api.TraceFlags(self._api.TraceFlags.SAMPLED)
        return self._api.SpanContext(span.trace, number, is_remote=False, trace_flags=flags)

    def close(self) -> None:
        """Hand over what is left, for a bounded time: a collector may be away."""
        ending = threading.Thread(target=self._processor.shutdown, daemon=True)
        ending.start()
        ending.join(CLOSE_SECONDS)


def _exporter(environment: Mapping[str, str]) -> object:
    if environment.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "console":
        console: object = import_module("opentelemetry.sdk.trace.export").ConsoleSpanExporter(
            out=sys.stderr
        )
        return console
    room = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    made: object = room.OTLPSpanExporter()
    return made


class Tracing:
    """Follows the runs that a driver drives."""

    def __init__(self, service: Service, driver: LocalDriver, exporter: Exporter) -> None:
        self._service, self._driver, self._exporter = service, driver, exporter
        self._since = service.clock.now_ms()
        self._spans: dict[str, Spans] = {}
        self._seen: dict[str, int] = {}
        self._told: OrderedDict[str, int] = OrderedDict()  # up to which fact spans were handed over
        self._moved: set[str] = set()
        self._look: asyncio.TimerHandle | None = None

    def written(self, run: str, _version: int) -> None:
        """A run was written to by this process."""
        self._moved.add(run)
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self.look)

    def look(self) -> None:
        """Hand over what has ended since the last look."""
        self._look = None
        moved, self._moved = self._moved, set()
        for run in moved:
            try:
                self._follow(run)
            except LoopwrightError as error:  # the run tells it itself
                _LOG.warning("no spans of %s: %s", run, error.message)
                self._forget(run)

    def _is_ours(self, run: str) -> bool:
        """Whether this process drives a run, or did so to its end."""
        owner = self._service.log.row(run).owner
        return owner is not None and owner.token == self._driver.token

    def _follow(self, run: str) -> None:
        if run not in self._spans and not self._is_ours(run):
            return
        facts = self._service.log.read(run, after=self._seen.get(run, 0))
        if run not in self._spans and facts:
            self._spans[run] = Spans(run, self._service.plan(facts[0].fact))
        before = self._told.get(run, 0)
        for numbered in facts:
            for span in self._spans[run].take(numbered):
                # What ended before this process began was handed over by another one.
                if numbered.seq > before and span.end >= self._since:
                    self._exporter.take(span)
            self._seen[run] = numbered.seq
        if facts:
            self._told[run] = facts[-1].seq
            self._told.move_to_end(run)
        ended = bool(facts) and isinstance(facts[-1].fact, RunFinished)
        if ended or not self._driver.is_driving(run):  # it waits; memory is for what moves
            self._forget(run)

    def _forget(self, run: str) -> None:
        self._spans.pop(run, None)
        self._seen.pop(run, None)
        while len(self._told) > MOST_KNOWN:
            self._told.popitem(last=False)

    def close(self) -> None:
        if self._look is not None:
            self._look.cancel()
        self.look()
        self._exporter.close()


@contextmanager
def traced(
    service: Service,
    driver: LocalDriver,
    environment: Mapping[str, str],
    make: Callable[..., Exporter] = OpenTelemetry,
) -> Iterator[Tracing | None]:
    """Traces of the runs of a driver, if anybody wants them."""
    exporter: Exporter | None = None
    if wanted(environment):
        try:
            exporter = make(environment=environment)
        except ModuleNotFoundError as missing:
            hint = "pip install 'loopwright[otel]'"
            _LOG.warning("no traces: %s is not installed; %s", missing.name, hint)
    if exporter is None:
        yield None
        return
    tracing = Tracing(service, driver, exporter)
    end = service.log.subscribe(tracing.written)
    try:
        yield tracing
    finally:
        end()
        with contextlib.suppress(LoopwrightError):
            tracing.close()
