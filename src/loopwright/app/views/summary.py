"""A run as one object: what `run --json` prints and `show` draws."""

from collections.abc import Callable

import msgspec

from loopwright.app.views.asked import gate_view
from loopwright.app.views.final_line import final_line
from loopwright.app.views.iterations import current_loop as current_loop
from loopwright.app.views.iterations import iterations as iterations
from loopwright.app.views.usage import run_usage_item
from loopwright.kernel.facts import Failure
from loopwright.kernel.frames import (
    CheckNote,
    Owner,
    RepeatBody,
    Result,
    StepOwner,
    passes_made,
)
from loopwright.kernel.scopes import hidden_word
from loopwright.kernel.signal import without_signal
from loopwright.kernel.state import State, enclosing_pass
from loopwright.model.record import JsonValue, Text
from loopwright.runtime.headline import status_of

ReadText = Callable[[Text | None], str]
EVIDENCE_CHARS = 2_000


def summary(state: State, read: ReadText) -> dict[str, JsonValue]:
    """The run as its facts tell it."""
    finished = state.finished
    steps: dict[str, JsonValue] = {
        step.id: _step(state, step.id, read) for step in state.plan.steps
    }
    return {
        "run": state.run,
        "status": status_of(state),
        "summary": final_line(state),
        "reason": finished.reason if finished else _waiting_reason(state),
        "output": read(finished.output) if finished else _last_output(state, read),
        "result": _json(finished.result if finished else None, read),
        "iterations": iterations(state),
        "steps": steps,
        "usage": run_usage_item(state),
        "uncovered": list(state.plan.uncovered),
        "labels": list(state.labels),
        "gates": [gate_view(gate, read) for gate in state.gates.values()],
        "checks": [_check(note, read) for note in state.judged],
        "error": _error(finished.error if finished else None),
    }


def _check(note: CheckNote, read: ReadText) -> dict[str, JsonValue]:
    """A check of the newest iteration: its kind, its verdict, and the end of its evidence."""
    evidence = read(note.evidence)[-EVIDENCE_CHARS:]
    return {"check": note.check, "verdict": note.verdict, "evidence": evidence}


def _step(state: State, name: str, read: ReadText) -> dict[str, JsonValue]:
    body = state.root.body if state.started else None
    ended = body.results.get(name) if body else None
    if ended is not None:
        return _ended(ended, read)
    owner = body.active.get(name) if body else None
    return {
        "status": "running" if owner is not None else "pending",
        "reason": "",
        "output": _active_output(owner, read),
        "result": None,
        "iterations": _passes(owner),
        "error": None,
    }


def _ended(ended: Result, read: ReadText) -> dict[str, JsonValue]:
    return {
        "status": ended.status,
        "reason": ended.reason,
        "output": read(ended.output),
        "result": _json(ended.result, read),
        "iterations": ended.iterations,
        "error": _error(ended.error),
    }


def _passes(owner: StepOwner | None) -> int:
    return passes_made(owner.body) if owner is not None else 0


def _active_output(owner: StepOwner | None, read: ReadText) -> str:
    if owner is None or not isinstance(owner.body, RepeatBody):
        return ""
    for inside in owner.body.active.values():
        answer = getattr(inside.body, "answer", None)
        if answer is not None:
            return seen_text(inside, read(answer.output))
    return read(owner.body.last.output) if owner.body.last else ""


def seen_text(owner: Owner, text: str) -> str:
    """What people see of what was said at a place: words for its loop alone are left out."""
    inside = enclosing_pass(owner)
    word = hidden_word(inside) if inside is not None else None
    return text if word is None else without_signal(text, word)


def _last_output(state: State, read: ReadText) -> str:
    for owner in state.root.body.active.values() if state.started else ():
        text = _active_output(owner, read)
        if text:
            return text
    return ""


def _waiting_reason(state: State) -> str:
    return "gate" if state.gates else ""


def _json(text: Text | None, read: ReadText) -> JsonValue:
    if text is None:
        return None
    value: JsonValue = msgspec.json.decode(read(text))
    return value


def _error(error: Failure | None) -> JsonValue:
    return None if error is None else {"type": error.type, "detail": error.detail}
