"""Traces: spans of the runs that this process drives, exported with OpenTelemetry while they run.

Spans are computed from the events, with names by the conventions for generative AI. They
contain names, numbers, times and error types, but no text of prompts or answers. Ids are
derived from run and place, so the same events give the same spans. An unavailable collector
costs a run nothing. Export is configured with the `OTEL_…` variables and needs the extra
`otel`; without either there are no traces. The OpenTelemetry library is loaded by name.
"""

import asyncio
import contextlib
import hashlib
import logging
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, Protocol, TypeAlias, assert_never

from loopwright import __version__
from loopwright.engine.driver import LocalDriver
from loopwright.errors import LoopwrightError
from loopwright.kernel.event_parts import (
    AgentCall,
    AnyCall,
    CommandCall,
    Failure,
    LookupCall,
    MatchCall,
    ModelCall,
    SleepCall,
    SnapshotCall,
    ToolCall,
)
from loopwright.kernel.events import (
    AgentChanged,
    AnyEvent,
    EffectDone,
    EffectFailed,
    EffectRequested,
    GateAnswered,
    GateClosed,
    GateOpened,
    IterationFinished,
    IterationStarted,
    RunFinished,
    RunReopened,
    RunStarted,
    StepFinished,
    StepStarted,
    TurnTaken,
    Usage,
)
from loopwright.model.ids import parent_path
from loopwright.model.plan import CHAT, Agent, Plan
from loopwright.operations.runs import Service
from loopwright.ports import NumberedEvent

Value: TypeAlias = str | int | float | bool | tuple[str, ...]
_TRY = re.compile(r"~\d+$")
_RUN = ""
PROVIDERS = {
    "claude": "anthropic",
    "codex": "openai",
    "gemini": "gcp.gemini",
    "google": "gcp.gemini",
    "mistral": "mistral_ai",
    "openai-responses": "openai",
    "xai": "x_ai",
}
"""As the conventions call them, where that is another word than ours."""


@dataclass(slots=True)
class Span:
    """Something that took time. Times are milliseconds since the epoch."""

    name: str
    trace: int
    id: int
    parent: int | None
    start: int
    kind: Literal["internal", "client"] = "internal"
    end: int = 0
    seq: int = 0  # of the event that ended it
    error: str = ""  # what kind of failure
    values: dict[str, Value] = field(default_factory=dict)


class Spans:
    """The spans of one run, event by event."""

    def __init__(self, run: str, plan: Plan) -> None:
        self._run, self._agents = run, dict(plan.agents)
        self._trace = _number(run, 16)
        self._open: dict[str, Span] = {}
        self._answered: dict[str, Span] = {}  # turns of models that the engine has not read yet
        self._reopened = 0

    def take(self, numbered: NumberedEvent) -> Iterator[Span]:
        """Take the next event; the spans that ended with it."""
        event = numbered.event
        for span in self._taken(event):
            span.end, span.seq = span.end or event.at, numbered.seq
            yield span

    def _taken(self, event: AnyEvent) -> Iterator[Span]:
        match event:
            case RunStarted():
                self._begin_run(event.name, event.at, dialect=event.dialect)
            case RunReopened():
                self._reopened += 1
                self._begin_run(self._run, event.at, dialect="")
            case AgentChanged():
                self._agents[event.agent] = event.becomes
            case StepStarted():
                self._begin(
                    event.path, f"step {event.path}", event.at, {"loopwright.step": event.path}
                )
            case IterationStarted():
                values: dict[str, Value] = {"loopwright.iteration": event.iteration or 0}
                self._begin(event.path, f"pass {event.path}", event.at, values)
            case EffectRequested():
                self._request(event)
            case GateOpened():
                values = {"loopwright.gate": event.gate, "loopwright.gate.about": event.about}
                self._begin(event.gate, "wait for a person", event.at, values, inside=event.path)
            case _:
                yield from self._ended(event)

    def _ended(self, event: AnyEvent) -> Iterator[Span]:
        match event:
            case StepFinished() | IterationFinished():
                values: dict[str, Value] = {"loopwright.status": event.status}
                yield from self._end(event.path, values, event.error)
            case EffectDone() | EffectFailed():
                yield from self._answer(event)
            case TurnTaken():
                yield from self._turn(event)
            case GateAnswered():
                yield from self._end(event.gate, {"loopwright.gate.decision": event.decision})
            case GateClosed():
                yield from self._end(event.gate, {"loopwright.gate.decision": "none"})
            case RunFinished():
                yield from self._end_run(event)
            case _:
                return

    # -- the run -------------------------------------------------------------------------------

    def _begin_run(self, name: str, at: int, *, dialect: str) -> None:
        values: dict[str, Value] = {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.workflow.name": name,
            "loopwright.run": self._run,
        }
        if dialect:
            values["loopwright.dialect"] = dialect
        self._begin(_RUN, f"invoke_workflow {name}", at, values)

    def _end_run(self, event: RunFinished) -> Iterator[Span]:
        """Whatever is open ends with it, from the inside out."""
        yield from list(self._answered.values())
        self._answered.clear()
        for key in [key for key in reversed(self._open) if key != _RUN]:
            yield from self._end(key, {"loopwright.status": "cancelled"})
        values: dict[str, Value] = {
            "loopwright.outcome": event.outcome,
            "loopwright.reason": event.reason,
        }
        yield from self._end(_RUN, values, event.error)

    # -- effects -------------------------------------------------------------------------------

    def _request(self, event: EffectRequested) -> None:
        found = self._called(event.call)
        if found is not None:
            name, values = found
            span = self._begin(event.effect, name, event.at, values, inside=event.path)
            span.kind = "client" if isinstance(event.call, ModelCall) else "internal"

    def _called(self, call: AnyCall) -> tuple[str, dict[str, Value]] | None:
        match call:
            case AgentCall():
                who = {"gen_ai.agent.name": call.agent, **self._model(call.agent)}
                values = {"gen_ai.operation.name": "invoke_agent", **who}
                return f"invoke_agent {call.agent}", {**values, "loopwright.role": call.role}
            case ModelCall():
                model = self._model(call.agent)
                who = {"gen_ai.agent.name": call.agent, **model}
                name = f"chat {model.get('gen_ai.request.model', '')}".rstrip()
                return name, {"gen_ai.operation.name": "chat", **who, "loopwright.role": call.role}
            case ToolCall():
                values = {
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": call.tool,
                    "gen_ai.tool.type": "function",
                    "gen_ai.agent.name": call.agent,
                }
                if call.call:
                    values["gen_ai.tool.call.id"] = call.call
                return f"execute_tool {call.tool}", values
            case CommandCall():
                program = call.argv[0].rpartition("/")[2]
                return f"command {program}", {"process.executable.name": program}
            case SleepCall() | SnapshotCall() | LookupCall() | MatchCall():
                return None
            case _:
                assert_never(call)

    def _model(self, name: str) -> dict[str, Value]:
        """The provider and the model behind an agent, as far as they are known."""
        agent = self._agents.get(name, Agent())
        spec = agent.spec or ""
        if spec.startswith(CHAT):
            provider, _, model = spec.removeprefix(CHAT).partition("/")
        else:
            provider, model = spec.partition(":")[0], ""
        known: dict[str, Value] = {}
        if provider:
            known["gen_ai.provider.name"] = PROVIDERS.get(provider, provider)
        if agent.model or model:
            known["gen_ai.request.model"] = agent.model or model
        return known

    def _answer(self, event: EffectDone | EffectFailed) -> Iterator[Span]:
        failure = event.error if isinstance(event, EffectFailed) else None
        values = _used(event.usage)
        if event.code is not None:
            values["process.exit.code"] = event.code
        for span in self._end(event.effect, values, failure):
            if failure is None and span.values.get("loopwright.role") == "turn":
                span.end = event.at
                self._answered[event.effect] = span
            else:
                yield span

    def _turn(self, event: TurnTaken) -> Iterator[Span]:
        """What the engine has read in the answer of a model."""
        span = self._answered.pop(event.effect, None)
        if span is not None:
            span.values["gen_ai.response.finish_reasons"] = (event.finish,)
            if event.model:
                span.values["gen_ai.response.model"] = event.model
            yield span

    # -- opening and closing -------------------------------------------------------------------

    def _begin(
        self, key: str, name: str, at: int, values: dict[str, Value], *, inside: str | None = None
    ) -> Span:
        around = parent_path(key) if inside is None else inside
        span = Span(
            name=name,
            trace=self._trace,
            id=_number(f"{self._run} {key} {self._reopened}", 8),
            parent=self._around(around) if key != _RUN else None,
            start=at,
            values=values,
        )
        self._open[key] = span
        return span

    def _around(self, path: str) -> int | None:
        """The nearest place that is open."""
        while True:
            for key in (path, _TRY.sub("", path)):
                if key in self._open:
                    return self._open[key].id
            if not path:
                return None
            path = parent_path(path)

    def _end(
        self, key: str, values: dict[str, Value], failure: Failure | None = None
    ) -> Iterator[Span]:
        span = self._open.pop(key, None)
        if span is not None:
            span.values.update(values)
            if failure is not None:
                span.error = failure.type
                span.values["error.type"] = failure.type
            yield span


def _used(usage: Usage | None) -> dict[str, Value]:
    if usage is None:
        return {}
    values: dict[str, Value] = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
    }
    return {**values, "loopwright.usage.usd": usage.usd} if usage.usd else values


def _number(text: str, size: int) -> int:
    """A number that is always the same for a text, and never zero."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size], "big") or 1


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
        detected = (
            resources.OTELResourceDetector().detect()
        )  # by the environment, where it says more
        provider = self._sdk.TracerProvider(resource=named.merge(detected))
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
        """Export the remaining spans, for a bounded time: a collector may be unreachable."""
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
        self._exported: OrderedDict[str, int] = OrderedDict()  # number of the last exported event
        self._moved: set[str] = set()
        self._look: asyncio.TimerHandle | None = None

    def written(self, run: str, _version: int) -> None:
        """A run was written to by this process."""
        self._moved.add(run)
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self.look)

    def look(self) -> None:
        """Export the spans that have ended since the last export."""
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
        events = self._service.log.read(run, after=self._seen.get(run, 0))
        if run not in self._spans and events:
            self._spans[run] = Spans(run, self._service.plan(events[0].event))
        before = self._exported.get(run, 0)
        for numbered in events:
            for span in self._spans[run].take(numbered):
                # Spans that ended before this process started were exported by another one.
                if numbered.seq > before and span.end >= self._since:
                    self._exporter.take(span)
            self._seen[run] = numbered.seq
        if events:
            self._exported[run] = events[-1].seq
            self._exported.move_to_end(run)
        ended = bool(events) and isinstance(events[-1].event, RunFinished)
        if ended or not self._driver.is_driving(run):  # it waits; memory is for what moves
            self._forget(run)

    def _forget(self, run: str) -> None:
        self._spans.pop(run, None)
        self._seen.pop(run, None)
        while len(self._exported) > MOST_KNOWN:
            self._exported.popitem(last=False)

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
