"""What was said in a run, in order: agents, checks, people."""

import shlex
from dataclasses import dataclass
from typing import Literal, TypeAlias

from loopwright.app.views.activity import ActivityCounts, counts_words, note_line, repeat_words
from loopwright.app.views.correspondence import written
from loopwright.app.views.final_line import final_line
from loopwright.app.views.signs import shown_evidence
from loopwright.app.views.summary import ReadText
from loopwright.app.views.turns import compressed_words, is_turn
from loopwright.app.views.words import check_result, decided, seen_output
from loopwright.kernel.calls import AgentCall, CommandCall, ModelCall, ToolCall
from loopwright.kernel.facts import (
    ActivityNote,
    AnyFact,
    CheckVerdict,
    EffectActivity,
    EffectDone,
    EffectFailed,
    EffectRepeated,
    EffectRequested,
    GateAnswered,
    GateOpened,
    HistoryCompressed,
    RunFinished,
)
from loopwright.kernel.fold import apply
from loopwright.kernel.state import State
from loopwright.model.plan import Plan
from loopwright.model.record import JsonValue
from loopwright.ports import Numbered

ARGUMENT_CHARS = 200
STDERR_LINES = 10

Kind: TypeAlias = Literal["agent", "command", "tool", "check", "person", "message", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that was said."""

    kind: Kind
    seq: int
    path: str
    iteration: int | None
    title: str
    text: str

    def as_dict(self) -> dict[str, JsonValue]:
        return {
            "kind": self.kind,
            "seq": self.seq,
            "path": self.path,
            "iteration": self.iteration,
            "title": self.title,
            "text": self.text,
        }


class Logbook:
    """Facts in, entries out."""

    def __init__(self, plan: Plan, read: ReadText) -> None:
        self._state = State(plan)
        self._read = read
        self._calls: dict[str, EffectRequested] = {}
        self._activity: dict[str, ActivityCounts] = {}

    def take(self, numbered: Numbered) -> Entry | None:
        """Fold the next fact; the entry it makes, if it says something."""
        fact = numbered.fact
        said = self._said(fact)
        apply(self._state, fact)
        self._state.agenda.clear()
        if isinstance(fact, RunFinished):
            said = ("end", final_line(self._state), fact.error.detail if fact.error else "")
        if said is None:
            return None
        kind, title, text = said
        return Entry(
            kind=kind,
            seq=numbered.seq,
            path=getattr(fact, "path", ""),
            iteration=getattr(fact, "iteration", None),
            title=title,
            text=text,
        )

    def _said(self, fact: AnyFact) -> tuple[Kind, str, str] | None:
        match fact:
            case EffectRequested():
                self._calls[fact.effect] = fact
                return None
            case EffectActivity():
                self._activity.setdefault(fact.effect, ActivityCounts()).take(fact)
                return self._reported(fact)
            case EffectRepeated():
                return self._repeated(fact)
            case EffectDone() | EffectFailed():
                return self._answered(fact)
            case CheckVerdict() if is_turn(self._state, fact.path):
                return None
            case CheckVerdict():
                text = shown_evidence(fact.check, self._read(fact.evidence))
                return "check", check_result(self._state, fact), text
            case HistoryCompressed():
                return "message", "conversation", compressed_words(fact)
            case GateOpened():
                about = f"\n{self._read(fact.output)}" if fact.call is not None else ""
                return "person", f"asked ({fact.gate})", f"{fact.message}{about}"
            case GateAnswered():
                return "person", f"{decided(fact)} by {fact.by or 'somebody'}", fact.text
            case _:
                told = written(fact, self._read)
                return None if told is None else ("message", *told)

    def _repeated(self, fact: EffectRepeated) -> tuple[Kind, str, str] | None:
        """Before the event is applied: it is one more attempt."""
        pending = self._state.pending.get(fact.effect)
        if pending is None:
            return None
        agent = getattr(pending.call, "agent", "")
        return "agent", f"agent {agent}: interrupted", repeat_words(pending.repeats + 2)

    def _reported(self, fact: EffectActivity) -> tuple[Kind, str, str] | None:
        """What people should see of activity: denied permissions with what allows them,
        warnings, and the end of standard error.
        """
        texts = {
            "permission denied": [
                note.text or note_line(note) for note in fact.entries if note.kind == "denied"
            ],
            "warning": [note.text for note in fact.entries if note.kind == "warning"],
            "standard error": [
                self._last_lines(note) for note in fact.entries if note.kind == "stderr"
            ],
        }
        titles = [title for title, found in texts.items() if found]
        if not titles:
            return None
        asked = self._calls.get(fact.effect)
        agent = getattr(asked.call, "agent", "") if asked is not None else ""
        text = "\n".join(line for title in titles for line in texts[title])
        return "agent", f"agent {agent}: {', '.join(titles)}", text

    def _last_lines(self, note: ActivityNote) -> str:
        lines = self._read(note.result).splitlines()
        more = len(lines) - STDERR_LINES
        left_out = [f"({more} lines before; `logs --tools --json` has them)"] if more > 0 else []
        return "\n".join([*left_out, *lines[-STDERR_LINES:]])

    def _answered(
        self, fact: EffectDone | EffectFailed
    ) -> tuple[Literal["agent", "command", "tool"], str, str] | None:
        asked = self._calls.pop(fact.effect, None)
        did = self._activity.pop(fact.effect, ActivityCounts())
        output = seen_output(self._state, fact, self._read)
        problem = fact.error if isinstance(fact, EffectFailed) else None
        if problem is not None:
            output = "\n".join(text for text in (output, problem.detail) if text)
        failed = f" failed ({problem.type})" if problem else ""
        match asked.call if asked else None:
            case AgentCall(agent=agent) | ModelCall(agent=agent):
                words = counts_words(did.as_dict())
                return "agent", f"agent {agent}{failed}{f', {words}' if words else ''}", output
            case ToolCall(tool=tool, arguments=arguments):
                return "tool", f"{tool} {self._read(arguments)[:ARGUMENT_CHARS]}{failed}", output
            case CommandCall(argv=argv) if "/check" not in fact.effect:
                return "command", f"{shlex.join(argv)}{failed}", output
            case _:
                return None
