"""A run as spans of a trace, read off its facts; names by the conventions for generative AI.

Nothing that anybody wrote or said is in them: names, numbers, times and kinds of failure alone. Ids
are made from the run and the place, so whoever reads the same facts makes the same spans.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from loopwright.kernel.calls import AgentCall, AnyCall, CommandCall, ModelCall, ToolCall
from loopwright.kernel.facts import (
    AgentChanged,
    AnyFact,
    EffectDone,
    EffectFailed,
    EffectRequested,
    Failure,
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
from loopwright.ports import Numbered

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
    seq: int = 0  # of the fact that ended it
    error: str = ""  # what kind of failure
    values: dict[str, Value] = field(default_factory=dict)


class Spans:
    """The spans of one run, fact by fact."""

    def __init__(self, run: str, plan: Plan) -> None:
        self._run, self._agents = run, dict(plan.agents)
        self._trace = _number(run, 16)
        self._open: dict[str, Span] = {}
        self._answered: dict[str, Span] = {}  # turns of models that the engine has not read yet
        self._reopened = 0

    def take(self, numbered: Numbered) -> Iterator[Span]:
        """Take the next fact; the spans that ended with it."""
        fact = numbered.fact
        for span in self._taken(fact):
            span.end, span.seq = span.end or fact.at, numbered.seq
            yield span

    def _taken(self, fact: AnyFact) -> Iterator[Span]:
        match fact:
            case RunStarted():
                self._begin_run(fact.name, fact.at, dialect=fact.dialect)
            case RunReopened():
                self._reopened += 1
                self._begin_run(self._run, fact.at, dialect="")
            case AgentChanged():
                self._agents[fact.agent] = fact.becomes
            case StepStarted():
                self._begin(fact.path, f"step {fact.path}", fact.at, {"loopwright.step": fact.path})
            case IterationStarted():
                values: dict[str, Value] = {"loopwright.iteration": fact.iteration or 0}
                self._begin(fact.path, f"pass {fact.path}", fact.at, values)
            case EffectRequested():
                self._request(fact)
            case GateOpened():
                values = {"loopwright.gate": fact.gate, "loopwright.gate.about": fact.about}
                self._begin(fact.gate, "wait for a person", fact.at, values, inside=fact.path)
            case _:
                yield from self._ended(fact)

    def _ended(self, fact: AnyFact) -> Iterator[Span]:
        match fact:
            case StepFinished() | IterationFinished():
                values: dict[str, Value] = {"loopwright.status": fact.status}
                yield from self._end(fact.path, values, fact.error)
            case EffectDone() | EffectFailed():
                yield from self._answer(fact)
            case TurnTaken():
                yield from self._turn(fact)
            case GateAnswered():
                yield from self._end(fact.gate, {"loopwright.gate.decision": fact.decision})
            case GateClosed():
                yield from self._end(fact.gate, {"loopwright.gate.decision": "none"})
            case RunFinished():
                yield from self._end_run(fact)
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

    def _end_run(self, fact: RunFinished) -> Iterator[Span]:
        """Whatever is open ends with it, from the inside out."""
        yield from list(self._answered.values())
        self._answered.clear()
        for key in [key for key in reversed(self._open) if key != _RUN]:
            yield from self._end(key, {"loopwright.status": "cancelled"})
        values: dict[str, Value] = {
            "loopwright.outcome": fact.outcome,
            "loopwright.reason": fact.reason,
        }
        yield from self._end(_RUN, values, fact.error)

    # -- effects -------------------------------------------------------------------------------

    def _request(self, fact: EffectRequested) -> None:
        found = self._called(fact.call)
        if found is not None:
            name, values = found
            span = self._begin(fact.effect, name, fact.at, values, inside=fact.path)
            span.kind = "client" if isinstance(fact.call, ModelCall) else "internal"

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
            case _:
                return None

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

    def _answer(self, fact: EffectDone | EffectFailed) -> Iterator[Span]:
        failure = fact.error if isinstance(fact, EffectFailed) else None
        values = _used(fact.usage)
        if fact.code is not None:
            values["process.exit.code"] = fact.code
        for span in self._end(fact.effect, values, failure):
            if failure is None and span.values.get("loopwright.role") == "turn":
                span.end = fact.at
                self._answered[fact.effect] = span
            else:
                yield span

    def _turn(self, fact: TurnTaken) -> Iterator[Span]:
        """What the engine has read in the answer of a model."""
        span = self._answered.pop(fact.effect, None)
        if span is not None:
            span.values["gen_ai.response.finish_reasons"] = (fact.finish,)
            if fact.model:
                span.values["gen_ai.response.model"] = fact.model
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
