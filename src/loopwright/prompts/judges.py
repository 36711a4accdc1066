"""Judges and evaluators: what a judge is shown, and how an evaluation scores a finished run.

A judge in a loop sees the goal, the result of the iteration and the form of the answer. It reports
`done` as a value, not in prose. Its earlier verdicts are in its prompt, so that it can see whether
its objections were met.

An evaluation computes the result of a run from its events. This module calls no model: the caller
matches patterns, validates values against schemas and sends the question to the judge. This module
composes the question and scores the reply.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from loopwright.kernel.bodies.conversation import rejected, turned_away
from loopwright.kernel.checks import last_json_object
from loopwright.kernel.event_parts import CallNote, ModelCall, ToolCall
from loopwright.kernel.events import (
    AnyEvent,
    EffectDone,
    EffectFailed,
    EffectRequested,
    GateAnswered,
    GateOpened,
    RunFinished,
    TurnTaken,
)
from loopwright.kernel.frames import IterationOwner, LeafBody, StepsBody, ToolAnswer
from loopwright.kernel.references import CallPrompt, fill, request_text
from loopwright.kernel.state import KernelServices, State
from loopwright.model.checks import Goal, Judge
from loopwright.model.record import JsonValue, Text
from loopwright.prompts.sections import clip

VERDICT: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"done": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["done"],
}
OUTPUT_CHARS = 32_000
_WORDS = (
    "If you cannot, let the first line be ACHIEVED or NOT_ACHIEVED and nothing else, and say why "
    "below it.",
)


def compose_judge(
    state: State, owner: IterationOwner, leaf: Judge | Goal, services: KernelServices
) -> CallPrompt:
    """The prompt of the judge of an iteration."""
    schema = (leaf.schema if isinstance(leaf, Judge) else None) or VERDICT
    sections = [
        fill(state, owner, leaf.prompt, services)
        or "Judge whether the task below is done. Look at the work, not at what is claimed.",
        f"## Task\n\n{request_text(state, owner, (), services)}",
        f"## Iteration {owner.iteration}",
        *_work(owner, services),
        *_before(owner, services),
        _form(schema, forced=owner.checks.tries > 1),
        *(_WORDS if isinstance(leaf, Goal) else ()),
    ]
    return CallPrompt(text="\n\n".join(sections), schema=schema)


def _work(owner: IterationOwner, services: KernelServices) -> list[str]:
    body = owner.body
    if isinstance(body, StepsBody):
        order = [step.id for step in body.index.action.steps if step.id in body.results]
        texts: list[tuple[str, Text | None, Text | None]] = [
            (name, body.results[name].output, body.results[name].result) for name in order
        ]
    elif isinstance(body, LeafBody) and body.answer is not None:
        texts = [("Output", body.answer.output, body.answer.result)]
    else:
        texts = []
    parts: list[str] = []
    for name, output, result in texts:
        parts.append(f"### {name}\n\n{clip(services.read(output), OUTPUT_CHARS)}")
        if result is not None:
            parts.append(f"#### Result of {name}\n\n{clip(services.read(result), OUTPUT_CHARS)}")
    return parts


def _before(owner: IterationOwner, services: KernelServices) -> list[str]:
    words = [note for note in owner.parent.progress.last_checks if note.check in ("judge", "goal")]
    return [
        f"## Judge Feedback (Iteration {owner.iteration - 1})\n\n{services.read(note.evidence)}"
        for note in words
        if note.evidence
    ]


def _form(schema: dict[str, JsonValue], *, forced: bool) -> str:
    shown = msgspec.json.encode(schema).decode()
    first = "The answer before did not have this form. " if forced else ""
    return (
        f"## Answer\n\n{first}Answer with one JSON object that fits this schema: `done` is true "
        f"only when nothing is left to do.\n\n{shown}"
    )


PASSING = 0.8
"""The minimum score of a rubric or a judge that counts as passed."""

_SCORE = re.compile(r"\bSCORE\s*[:=]?\s*(\d+(?:\.\d+)?)(\s*%|\s*/\s*(\d+))?", re.IGNORECASE)
_YES_NO = re.compile(r"\b(YES|NO)\b", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\{\{\s*(output|expected|input)\s*\}\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedRun:
    """The result of a run. `terminated_by` is the reason of its end, empty while it is open."""

    text: str = ""
    final_tool_result: str | None = None
    final_tool_failed: bool = False
    cycles: int = 0
    terminated_by: str = ""

    @property
    def composed(self) -> str:
        """The text followed by the last tool's result, so that a claim can be compared with it."""
        if self.final_tool_result is None:
            return self.text
        head = "[final tool result: failed]" if self.final_tool_failed else "[final tool result]"
        return f"{self.text}\n\n{head}\n{self.final_tool_result}"


@dataclass(slots=True)
class _ResultParts:
    """The result so far."""

    read: Callable[[Text | None], str]
    turns: set[str] = field(default_factory=set)
    tools: set[str] = field(default_factory=set)
    passes: set[str] = field(default_factory=set)
    calls: dict[str, tuple[CallNote, ...]] = field(default_factory=dict)
    gates: dict[str, CallNote] = field(default_factory=dict)
    said: str = ""
    output: Text | None = None
    tool: ToolAnswer | None = None
    reason: str = ""

    def add(self, event: AnyEvent) -> None:
        match event:
            case EffectRequested(call=ModelCall(role="turn")):
                self.turns.add(event.effect)
                self.passes.add(event.path)
            case EffectRequested(call=ToolCall()):
                self.tools.add(event.effect)
            case EffectDone() if event.effect in self.turns:
                self.said = self.read(event.output) or self.said
            case EffectDone() | EffectFailed() if event.effect in self.tools:
                self.tool = _tool_answer(event)
            case TurnTaken():
                self._turn(event)
            case GateOpened(call=int() as number):
                self.gates[event.gate] = self.calls[event.path][number - 1]
            case GateAnswered(decision="reject") if event.gate in self.gates:
                self.tool = rejected(self.gates[event.gate], event.text, event.by)
            case RunFinished():
                self.output, self.reason = event.output, event.reason
            case _:
                pass

    def _turn(self, event: TurnTaken) -> None:
        self.calls[event.path] = event.calls
        for note in event.calls:
            if note.problem:
                self.tool = turned_away(note)


def _tool_answer(event: EffectDone | EffectFailed) -> ToolAnswer:
    failed = isinstance(event, EffectFailed)
    text: Text = event.output
    if isinstance(event, EffectFailed) and not text:
        text = msgspec.json.encode({"error": event.error.detail or event.error.type}).decode()
    return ToolAnswer(id="", tool="", text=text, error=failed or event.code not in (None, 0))


def read_result(events: Iterable[AnyEvent], read: Callable[[Text | None], str]) -> EvaluatedRun:
    """The result of a run: its output, else the last text of the model."""
    found = _ResultParts(read)
    for event in events:
        found.add(event)
    tool = found.tool
    return EvaluatedRun(
        text=read(found.output) or found.said,
        final_tool_result=None if tool is None else read(tool.text),
        final_tool_failed=tool is not None and tool.error,
        cycles=len(found.passes),
        terminated_by=found.reason,
    )


# -- evaluators ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The result of an evaluator: a number from 0 to 1, and the reason why it is not higher."""

    score: float
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether the score is high enough."""
        return self.score >= PASSING


def _verdict(why: str | None) -> Score:
    return Score(score=1.0 if why is None else 0.0, detail=why or "")


def contains(text: str, wanted: str) -> Score:
    return _verdict(None if wanted in text else f"{wanted!r} is not in it")


def not_contains(text: str, unwanted: str) -> Score:
    return _verdict(f"{unwanted!r} is in it" if unwanted in text else None)


def regex(text: str, pattern: str, *, matches: Callable[[str, str], bool]) -> Score:
    """`matches` searches a text for a pattern, in time linear in the text."""
    return _verdict(None if matches(pattern, text) else f"{pattern!r} does not match")


def exact(text: str, wanted: str) -> Score:
    """The same, ignoring leading and trailing whitespace."""
    return _verdict(None if text.strip() == wanted.strip() else "it is another text")


def json_schema(
    text: str,
    schema: dict[str, JsonValue],
    *,
    problem: Callable[[dict[str, JsonValue], JsonValue], str | None],
) -> Score:
    """The text is JSON, or contains a JSON object, and matches; `problem` says why it does not."""
    for candidate in (text, last_json_object(text)):
        try:
            value: JsonValue = msgspec.json.decode(candidate or "")
        except (msgspec.DecodeError, RecursionError):
            continue
        return _verdict(problem(schema, value))
    return _verdict("there is no JSON in it")


# -- judges ----------------------------------------------------------------------------------------


def judge_prompt(template: str, *, output: str, expected: str = "", input: str = "") -> str:
    """The question to a judge; substituted values are not scanned for placeholders."""
    values = {"output": output, "expected": expected, "input": input}
    return _PLACEHOLDER.sub(lambda place: values[place[1]], template)


def judge_score(reply: str) -> Score:
    """The score in a judge's reply: YES, NO, or SCORE with a number (0.9, 90 %, 9/10). The last
    occurrence counts; a reply without one has not passed.
    """
    scores = list(_SCORE.finditer(reply))
    if scores:
        return _number(scores[-1])
    words = _YES_NO.findall(reply)
    if not words:
        return _verdict("the reply has neither YES, NO nor SCORE")
    return _verdict(None if words[-1].upper() == "YES" else "the judge answered NO")


def _number(found: "re.Match[str]") -> Score:
    value, unit = float(found[1]), found[2]
    if unit is not None:
        most = float(found[3]) if found[3] else 100.0
        value = value / most if most else 2.0
    if value > 1:
        return _verdict(f"{found[0]} is not a score from 0 to 1")
    return Score(score=value, detail="" if value >= PASSING else f"{value:g} is below {PASSING:g}")
