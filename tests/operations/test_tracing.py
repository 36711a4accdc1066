"""Traces: what this process drives is handed to OpenTelemetry, once, and only when it is wanted."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from loopwright.kernel.events import Usage
from loopwright.model.actions import AskPerson, CallAgent, Repeat
from loopwright.model.plan import Agent, Plan
from loopwright.model.record import literal
from loopwright.operations.run_request import RunStart
from loopwright.operations.settings import Settings
from loopwright.operations.traces import OpenTelemetry, Span, traced, wanted
from loopwright.operations.wiring import local
from loopwright.ports import Answer, EffectJob, EffectSuccess
from tests.engine.world import Process, World, run
from tests.support.plans import plan_of, step

ON = {"OTEL_TRACES_EXPORTER": "otlp"}
WORK = CallAgent(agent="worker", prompt=literal("SECRET"))
LOOP = plan_of(
    step("main", Repeat(body=WORK, max=2, at_cap="complete")),
    step("ask", AskPerson(message=literal("SECRET?")), needs=("main",)),
)


def answered(_job: EffectJob) -> Answer:
    return EffectSuccess(output="SECRET", usage=Usage(input_tokens=7, output_tokens=3))


class Kept:
    """Spans as they are handed over."""

    def __init__(self, **_: object) -> None:
        self.spans: list[Span] = []

    def take(self, span: Span) -> None:
        self.spans.append(span)

    def close(self) -> None: ...


@contextmanager
def traces(process: Process, kept: Kept) -> Iterator[None]:
    with traced(process.service, process.driver, ON, lambda **_: kept):
        yield


@pytest.mark.parametrize(
    ("environment", "on"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, False),
        ({"OTEL_SDK_DISABLED": "TRUE", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, False),
    ],
)
def test_when_there_are_traces(environment: dict[str, str], on: bool) -> None:
    """The variables that every program has switch them on and off."""
    assert wanted(environment) is on


def test_spans_of_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have ids, parents, times, kinds and a resource, as exporters expect them."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    memory = InMemorySpanExporter()
    exporter = OpenTelemetry(memory)
    exporter.take(
        Span(
            "chat x", 5, 7, 6, start=1_000, end=1_250, kind="client", error="auth", values={"a": 1}
        )
    )
    exporter.close()
    [span] = memory.get_finished_spans()
    assert (span.context.trace_id, span.context.span_id, span.parent.span_id) == (5, 7, 6)
    assert (span.start_time, span.end_time) == (1_000_000_000, 1_250_000_000)
    assert (span.kind.name, span.status.status_code.name) == ("CLIENT", "ERROR")
    assert span.attributes == {"a": 1}
    assert span.resource.attributes["service.name"] == "loopwright"
    assert span.resource.attributes["deployment.environment"] == "test"


def test_sampling_is_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler that takes nothing takes nothing."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    memory = InMemorySpanExporter()
    exporter = OpenTelemetry(memory)
    exporter.take(Span("step", 5, 7, None, start=1, end=2))
    exporter.close()
    assert memory.get_finished_spans() == ()


def test_each_span_is_reported_once() -> None:
    """A run that waits is let go of, and goes on in another process: together they tell every span
    once, and those that are about what nobody drives are nobody's.
    """

    async def body() -> None:
        world, kept = World(), Kept()
        first = world.process(answered)
        with traces(first, kept):
            name = await first.start(LOOP)
            await first.driver.rest(name)
        told = [span.name for span in kept.spans]
        assert told.count("invoke_agent worker") == 2
        assert told[-1] == "step main"
        world.kill(first)
        second = world.process(answered)
        second.clock.advance(1_000)
        with traces(second, kept):
            second.service.recover()
            await second.service.answer(name, "approve")
            await second.driver.rest(name)
        after = [span.name for span in kept.spans][len(told) :]
        assert after == ["wait for a person", "step ask", "invoke_workflow test"]
        assert len({span.id for span in kept.spans}) == len(kept.spans)
        assert "SECRET" not in repr(kept.spans)

    run(body())


def test_a_looker_reports_nothing() -> None:
    """Whoever only writes an answer into a run of another process has no spans of it."""

    async def body() -> None:
        world, kept = World(), Kept()
        first, second = world.process(answered), world.process(answered)
        name = await first.start(LOOP)
        await first.driver.rest(name)
        with traces(second, kept):
            await second.looker.answer(name, "approve")
        assert kept.spans == []

    run(body())


def test_without_the_library(caplog: pytest.LogCaptureFixture) -> None:
    """Traces that are wanted and cannot be made are told about once; runs go on."""

    def missing(**_: object) -> Kept:
        raise ModuleNotFoundError("no", name="opentelemetry.sdk")

    process = World().process(answered)
    with traced(process.service, process.driver, ON, missing) as tracing:
        assert tracing is None
    assert "pip install 'loopwright[otel]'" in caplog.text


class Collector(BaseHTTPRequestHandler):
    """Keeps what it is sent."""

    got: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


def test_a_real_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans of a run go to the address in the environment; texts of people and agents do not."""
    Collector.got = []
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        replies = tmp_path / "replies.json"
        replies.write_text(json.dumps({"replies": [{"text": "SECRET"}] * 2}))
        agent = Agent(spec=f"script:{replies}")
        plan = Plan(name="traced-loop", steps=LOOP.steps[:1], agents={"worker": agent})

        async def body() -> None:
            async with local(Settings(home=tmp_path / "home")) as here:
                name = await here.service.start(
                    RunStart(plan=plan, workspace=tmp_path, message="SECRET")
                )
                await here.driver.rest(name)

        asyncio.run(body())
        server.shutdown()
    assert {path for path, _ in Collector.got} == {"/v1/traces"}
    sent = b"".join(body for _, body in Collector.got)
    for word in (b"invoke_workflow traced-loop", b"invoke_agent worker", b"service.name"):
        assert word in sent
    assert b"SECRET" not in sent
