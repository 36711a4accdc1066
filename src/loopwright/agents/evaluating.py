"""Evaluating a run: what it came to, read off its facts, and what evaluators say about that.

Nothing is asked here. A pattern is matched and a schema held against a value by whoever has the
means; a judge's reply is scored, and the question to it composed, but sent elsewhere.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from loopwright.kernel.calls import CallNote, ModelCall, ToolCall
from loopwright.kernel.checks import last_json_object
from loopwright.kernel.cycles import rejected, turned_away
from loopwright.kernel.facts import (
    AnyFact,
    EffectDone,
    EffectFailed,
    EffectRequested,
    GateAnswered,
    GateOpened,
    RunFinished,
    TurnTaken,
)
from loopwright.kernel.frames import ToolSaid
from loopwright.model.record import JsonValue, Text

PASSING = 0.8
"""The least score of a rubric or a judge that counts as passed."""

_SCORE = re.compile(r"\bSCORE\s*[:=]?\s*(\d+(?:\.\d+)?)(\s*%|\s*/\s*(\d+))?", re.IGNORECASE)
_YES_NO = re.compile(r"\b(YES|NO)\b", re.IGNORECASE)
_PLACE = re.compile(r"\{\{\s*(output|expected|input)\s*\}\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    """What a run came to. `terminated_by` is the reason of its end, empty while it goes on."""

    text: str = ""
    final_tool_result: str | None = None
    final_tool_failed: bool = False
    cycles: int = 0
    terminated_by: str = ""

    @property
    def composed(self) -> str:
        """The text with the last tool's result below it, so that a claim stands beside what the
        tools said.
        """
        if self.final_tool_result is None:
            return self.text
        head = "[final tool result: failed]" if self.final_tool_failed else "[final tool result]"
        return f"{self.text}\n\n{head}\n{self.final_tool_result}"


@dataclass(slots=True)
class _Gathering:
    """What is known so far."""

    read: Callable[[Text | None], str]
    turns: set[str] = field(default_factory=set)
    tools: set[str] = field(default_factory=set)
    passes: set[str] = field(default_factory=set)
    calls: dict[str, tuple[CallNote, ...]] = field(default_factory=dict)
    gates: dict[str, CallNote] = field(default_factory=dict)
    said: str = ""
    output: Text | None = None
    tool: ToolSaid | None = None
    reason: str = ""

    def add(self, fact: AnyFact) -> None:
        match fact:
            case EffectRequested(call=ModelCall(role="turn")):
                self.turns.add(fact.effect)
                self.passes.add(fact.path)
            case EffectRequested(call=ToolCall()):
                self.tools.add(fact.effect)
            case EffectDone() if fact.effect in self.turns:
                self.said = self.read(fact.output) or self.said
            case EffectDone() | EffectFailed() if fact.effect in self.tools:
                self.tool = _said(fact)
            case TurnTaken():
                self._turn(fact)
            case GateOpened(call=int() as number):
                self.gates[fact.gate] = self.calls[fact.path][number - 1]
            case GateAnswered(decision="reject") if fact.gate in self.gates:
                self.tool = rejected(self.gates[fact.gate], fact.text, fact.by)
            case RunFinished():
                self.output, self.reason = fact.output, fact.reason
            case _:
                pass

    def _turn(self, fact: TurnTaken) -> None:
        self.calls[fact.path] = fact.calls
        for note in fact.calls:
            if note.problem:
                self.tool = turned_away(note)


def _said(fact: EffectDone | EffectFailed) -> ToolSaid:
    failed = isinstance(fact, EffectFailed)
    text: Text = fact.output
    if isinstance(fact, EffectFailed) and not text:
        text = msgspec.json.encode({"error": fact.error.detail or fact.error.type}).decode()
    return ToolSaid(id="", tool="", text=text, error=failed or fact.code not in (None, 0))


def came_to(facts: Iterable[AnyFact], read: Callable[[Text | None], str]) -> Came:
    """What a run came to: its output, else the last thing the model said."""
    found = _Gathering(read)
    for fact in facts:
        found.add(fact)
    tool = found.tool
    return Came(
        text=read(found.output) or found.said,
        final_tool_result=None if tool is None else read(tool.text),
        final_tool_failed=tool is not None and tool.error,
        cycles=len(found.passes),
        terminated_by=found.reason,
    )


# -- evaluators ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What an evaluator says: a number from 0 to 1, and why it is no more than that."""

    score: float
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether that is enough."""
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
    """The same but for blanks around it."""
    return _verdict(None if text.strip() == wanted.strip() else "it is another text")


def json_schema(
    text: str,
    schema: dict[str, JsonValue],
    *,
    problem: Callable[[dict[str, JsonValue], JsonValue], str | None],
) -> Score:
    """The text is JSON, or has a JSON object in it, and that fits; `problem` says why not."""
    for candidate in (text, last_json_object(text)):
        try:
            value: JsonValue = msgspec.json.decode(candidate or "")
        except (msgspec.DecodeError, RecursionError):
            continue
        return _verdict(problem(schema, value))
    return _verdict("there is no JSON in it")


# -- judges ----------------------------------------------------------------------------------------


def judge_prompt(template: str, *, output: str, expected: str = "", input: str = "") -> str:
    """The question to a judge; what is filled in is not looked at again."""
    values = {"output": output, "expected": expected, "input": input}
    return _PLACE.sub(lambda place: values[place[1]], template)


def judged(reply: str) -> Score:
    """The score in a judge's reply: YES, NO, or SCORE with a number (0.9, 90 %, 9/10). The last
    word counts; a reply without one has not passed.
    """
    scores = list(_SCORE.finditer(reply))
    if scores:
        return _number(scores[-1])
    words = _YES_NO.findall(reply)
    if not words:
        return _verdict("the reply has neither YES, NO nor SCORE")
    return _verdict(None if words[-1].upper() == "YES" else "the judge said NO")


def _number(found: "re.Match[str]") -> Score:
    value, unit = float(found[1]), found[2]
    if unit is not None:
        most = float(found[3]) if found[3] else 100.0
        value = value / most if most else 2.0
    if value > 1:
        return _verdict(f"{found[0]} is no score from 0 to 1")
    return Score(score=value, detail="" if value >= PASSING else f"{value:g} is below {PASSING:g}")
