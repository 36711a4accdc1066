"""A run as one object, as printed by `run --json` and `show`, and its one-line summary.

The line has the same format for every outcome and interface:

✓ Completed in 3 iterations · 20 s · $0.89 · 3 files changed (+12 −4) · pytest -q passed

Unknown parts are left out; an unknown cost is shown as unknown. Verdicts of checks are in words
(`pytest -q failed (exit code 1)`). A gate about a tool call shows the tool and its arguments.
"""

import shlex
from collections.abc import Callable

import msgspec

from loopwright.errors import StorageError
from loopwright.kernel.event_parts import Failure
from loopwright.kernel.events import (
    AnyEvent,
    CoordinatorFinalized,
    CoordinatorNarrated,
    EffectDone,
    EffectFailed,
    MessageDelivered,
    MessageDropped,
    MessageSent,
    RunFinished,
    RunStarted,
    Usage,
    Verdict,
)
from loopwright.kernel.fold import fold
from loopwright.kernel.frames import (
    CheckNote,
    GateState,
    Owner,
    RepeatBody,
    Result,
    StepOwner,
)
from loopwright.kernel.references import hidden_word
from loopwright.kernel.reopened_runs import at_cap
from loopwright.kernel.signal import without_signal
from loopwright.kernel.snapshots import has_unrecorded
from loopwright.kernel.state import ANY_AGENT, State, enclosing_iteration, iterations_made
from loopwright.kernel.state import PERSON as ANY_PERSON
from loopwright.model.actions import Repeat
from loopwright.model.checks import (
    Approval,
    CommandCheck,
    Contains,
    Expr,
    Goal,
    Judge,
    OutputSchema,
    Regex,
    ScriptCheck,
    Signal,
    leaves,
)
from loopwright.model.plan import stored_plan
from loopwright.model.record import JsonValue, Text
from loopwright.ports import EventLog
from loopwright.ports.headline import (
    asked_call,
    figures_of,
    iterations,
    most_iterations,
    run_usage,
    status_of,
)
from loopwright.views.event_records import text_of
from loopwright.views.formats import (
    PERSON,
    PROTECT,
    SIGNS,
    VERDICTS,
    figures_amounts,
    money,
    person_words,
    place_words,
    protect_words,
    without_signs,
)
from loopwright.views.run_responses import (
    CheckView,
    ErrorItem,
    GateItem,
    RunSummary,
    StepSummary,
    gate_call,
    gate_exposure,
    workspace_changes,
)

DETAIL_CHARS = 60
_PLAIN: dict[type, tuple[str, str]] = {
    Signal: ("agent signalled completion", "no completion signal"),
    OutputSchema: ("result matches its schema", "result does not match its schema"),
    Judge: ("judge accepted the result", "judge did not accept the result"),
    Goal: ("goal met", "goal not met"),
    Approval: ("reviewer approved", "reviewer did not approve"),
    Expr: ("expression is true", "expression is not true"),
}


def check_phrase(
    leaf: object,
    check: str,
    verdict: Verdict,
    *,
    code: int | None = None,
    by: str = "",
    quoted: bool = False,
) -> str:
    """The result of a check. `check` is its kind, for a check without its own text; a command line
    is put in backquotes inside a sentence.
    """
    if check == PERSON:
        return person_words(verdict, by)
    words = _PLAIN.get(type(leaf)) or _about_text(leaf)
    if words is not None and verdict in ("pass", "fail"):
        return words[0] if verdict == "pass" else words[1]
    line = program(leaf)
    shown = f"`{line}`" if quoted and isinstance(leaf, CommandCheck) else line or check
    return f"{shown} {verdict_word(verdict, code)}"


def verdict_word(verdict: Verdict, code: int | None = None) -> str:
    """A verdict as a verb."""
    if verdict == "fail":
        return f"failed (exit code {code})" if code else "failed"
    return VERDICTS.get(verdict, verdict)


def program(leaf: object) -> str:
    """The command line of a check, or its replacement."""
    if isinstance(leaf, CommandCheck):
        return _cut(shlex.join(leaf.argv))
    return "check script" if isinstance(leaf, ScriptCheck) else ""


def _about_text(leaf: object) -> tuple[str, str] | None:
    if isinstance(leaf, Contains):
        return (
            f"output contains {_cut(leaf.text)!r}",
            f"output does not contain {_cut(leaf.text)!r}",
        )
    if isinstance(leaf, Regex):
        shown = _cut(leaf.pattern)
        return f"output matches {shown}", f"output does not match {shown}"
    return None


def _cut(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= DETAIL_CHARS else f"{flat[: DETAIL_CHARS - 1].rstrip()}…"


FIRST_TOKEN = "first-start"  # as in app.access, which takes longer to load
REASON_CHARS = 120
MOST_CHECKS = 3
_LIMITS = {
    "budget": "Stopped by the budget",
    "home_budget": "Stopped by the budget of all runs",
    "deadline": "Stopped by the time limit",
    "stalled": "Stopped without further changes",
}
_FAILED = {"check_broken": "the check could not run"}


def final_line(
    state: State,
    *,
    signs: bool = True,
    left_behind: bool = False,
    details: bool = True,
    now_ms: int | None = None,
) -> str:
    """Describe a run in one line. `left_behind` marks a run that no process drives; without
    `details` the text of an error is left out, which may repeat what an agent printed. `now_ms`
    is the time for a run that is running, whose last event may be long ago.
    """
    status = status_of(state)
    what = _interrupted(state) if left_behind else _outcome(state, status, details=details)
    parts = [what, _elapsed(state, now_ms), cost(run_usage(state)), _changes(state)]
    if status != "running":
        parts += _checks(state, status)
    # Names of files may contain line ends: an agent could forge a line with them.
    text = " ".join(" · ".join(part for part in parts if part).splitlines())
    line = f"{SIGNS[status]} {text}"
    return line if signs else without_signs(line)


def final_line_at(log: EventLog, run: str, seq: int, *, details: bool = False) -> str:
    """The line of a run as it was after an event."""
    events = [one.event for one in log.read(run, limit=seq)]
    first = events[0] if events else None
    if not isinstance(first, RunStarted):
        raise StorageError(f"the log of {run} has no beginning", code="damaged")
    return final_line(fold(stored_plan(log.blob, first.plan), events), details=details)


# -- what happened ---------------------------------------------------------------------------------


def _outcome(state: State, status: str, *, details: bool) -> str:
    finished = state.finished
    if finished is None:
        return _unfinished(state, status)
    if status == "completed":
        return _completed(state)
    if status == "exhausted":
        return _exhausted(state, finished)
    if status == "failed":
        return _failed(state, finished, details=details)
    by = _person(state.control.cancel.by) if state.control.cancel is not None else ""
    words = f"Stopped{f' by {by}' if by else ''}{_place(state)}"
    return words if finished.reason == "stopped" else f"{words}: {_short(finished.reason)}"


def _unfinished(state: State, status: str) -> str:
    place = _place(state)
    if status == "waiting":
        count = len(state.gates)
        return f"Waiting for {'a decision' if count == 1 else f'{count} decisions'}{place}"
    if status == "paused":
        return f"Paused{place}"
    return f"Running{place.replace(' in ', ' ', 1)}"


def _interrupted(state: State) -> str:
    return f"Interrupted{_place(state)}"


def _completed(state: State) -> str:
    loop, made = _loop(state), iterations(state)
    if loop is None:
        return f"Completed{_steps(state)}"
    if loop.each is not None:
        return f"Completed {_count(made, 'item')}"
    finished = state.finished
    if finished and finished.reason == "max_iterations" and _has_failed_checks(state):
        return f"Completed at {_limit(state)}"
    return f"Completed in {_count(made, 'iteration')}" if made else "Completed without an iteration"


def _has_failed_checks(state: State) -> bool:
    return any(one.verdict not in ("pass", "approved") for one in state.latest.notes)


def _exhausted(state: State, finished: RunFinished) -> str:
    if finished.reason == "max_iterations" and _loop(state) is not None:
        return f"Stopped at {_limit(state)}"
    capped = [one.most for one in at_cap(state).values()]
    if finished.reason == "max_iterations" and len(state.plan.steps) == 1:
        match capped:
            case [int() as most]:
                return f"Stopped at the limit of {_count(most, 'turn')}"
            case _:
                pass
    words = _LIMITS.get(finished.reason, f"Stopped by a limit ({finished.reason})")
    return f"{words}{_place(state)}"


def _failed(state: State, finished: RunFinished, *, details: bool) -> str:
    if finished.reason == "max_iterations" and _loop(state) is not None:
        return f"Failed at {_limit(state)}"
    error = finished.error
    why = _FAILED.get(finished.reason, "")
    if finished.reason == "rejected":
        by = next((one.by for one in state.latest.notes if one.verdict == "rejected"), "")
        why = f"rejected by {_person(by) or 'a person'}"
        text = error.detail if error is not None and details else ""
        why += "" if not text or text.startswith("rejected by a person") else f": {_short(text)}"
    elif error is not None and details and error.detail:
        text = _short(error.detail, 2 * REASON_CHARS if why else REASON_CHARS)
        why = f"{why}: {text}" if why and not text.startswith(why) else text
    elif error is not None and not why:
        why = error.type.replace("_", " ")
    return f"Failed{_place(state)}{f': {why}' if why else ''}"


def _person(name: str) -> str:
    """The name of a person; the first token belongs to no named person."""
    return "the first administrator" if name == FIRST_TOKEN else name


def _limit(state: State) -> str:
    return f"the limit of {_count(most_iterations(state) or iterations(state), 'iteration')}"


def _loop(state: State) -> Repeat | None:
    """The loop of a run that consists of one loop."""
    steps = state.plan.steps
    action = steps[0].action if len(steps) == 1 else None
    return action if isinstance(action, Repeat) and not action.is_one_call else None


def _place(state: State) -> str:
    """` in iteration 3 of 5`; for a graph, how many of its steps have ended."""
    loop, made = _loop(state), iterations(state)
    if loop is None:
        steps = _steps(state)
        return steps and f" after{steps}"
    if loop.each is not None:
        return f" after {_count(made, 'item')}" if made else ""
    most = most_iterations(state)
    return f" in iteration {made}{f' of {most}' if most else ''}" if made else ""


def _steps(state: State) -> str:
    """` 5 of 6 steps`, or nothing for a run of one step."""
    total = len(state.plan.steps)
    if total < 2 or not state.started:
        return ""
    done = sum(one.status == "completed" for one in state.root.body.results.values())
    if state.finished and state.finished.outcome == "completed" and done == total:
        return f" {total} steps"
    return f" {done} of {total} steps"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _short(text: str, chars: int = REASON_CHARS) -> str:
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    first = lines[0] if lines else ""
    return first if len(first) <= chars else f"{first[: chars - 1].rstrip()}…"


# -- figures ---------------------------------------------------------------------------------------


def _elapsed(state: State, now_ms: int | None) -> str:
    if state.started is None:
        return ""
    silent_ms = max(0, now_ms - state.now) if now_ms and status_of(state) == "running" else 0
    return elapsed(state.elapsed_ms + silent_ms)


def elapsed(ms: int) -> str:
    """A length of time: `0.4 s`, `20 s`, `5 min 20 s`, `2 h 5 min`."""
    seconds = max(0, ms) / 1_000
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    minutes, rest = divmod(total, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def cost(usage: Usage) -> str:
    """What was spent: `$0.89`, `$0.40 + unknown` or `cost unknown`; nothing for no usage."""
    spent = money(usage.usd)
    if usage.unpriced:
        return f"{spent} + unknown" if usage.usd else "cost unknown"
    used = usage.usd or usage.input_tokens or usage.output_tokens
    return spent if used else ""


def _changes(state: State) -> str:
    """The files that differ between the first and the newest snapshot of the workspace."""
    if state.snapshots.newest is None:
        return ""
    total, unknown = state.snapshots.newest.total, has_unrecorded(state)
    words = "" if unknown else "no files changed"
    if total.files:
        words = (
            f"{_count(total.files, 'file')} changed (+{total.insertions:,} \N{MINUS SIGN}"
            f"{total.deletions:,})"
        )
    if not unknown or (state.finished is None and not state.snapshots.problem):
        return words
    newest, since = state.latest.iteration, state.snapshots.failed_since
    where = f"changes of iteration {newest.iteration}" if newest else "later changes"
    if newest and 0 < since < newest.iteration:
        where = f"changes since iteration {since}"
    return f"{words}, {where} were not recorded" if words else f"{where} were not recorded"


def _checks(state: State, status: str) -> list[str]:
    """The newest verdicts: of a completed run those that passed, else those that did not. Verdicts
    about an earlier iteration than the last one are named as such: the files have changed since.
    """
    loop = _loop(state)
    if loop is None:
        return []
    judged = [one for one in state.latest.notes if one.verdict != "rejected"]  # the outcome says so
    notes = [one for one in judged if (one.verdict == "pass") == (status == "completed")] or judged
    found = leaves(loop.until)
    earlier = _earlier(state)
    phrases = dict.fromkeys(_phrase(found, note, code=not earlier) for note in notes)
    shown = list(phrases)[:MOST_CHECKS]
    more = len(phrases) - len(shown)
    shown += [f"{more} more check{'' if more == 1 else 's'}"] if more else []
    return [earlier.format(", ".join(shown))] if earlier and shown else shown


def _earlier(state: State) -> str:
    """The introduction of verdicts that are not about the last iteration; empty otherwise."""
    judged, newest = state.latest.notes_of, state.latest.iteration
    if judged is None or newest is None or judged is newest:
        return ""
    where = f"iteration {judged.iteration}" if judged.number >= 0 else "before the first iteration"
    if judged.parent is not newest.parent and judged.number >= 0:
        where = "before the restart"
    words = f"{where}: {{}}"
    if state.finished is None:
        return words
    return f"not checked in iteration {newest.iteration} ({words})"


def _phrase(found: tuple[object, ...], note: CheckNote, *, code: bool) -> str:
    leaf = found[note.index] if note.index < len(found) and note.check != "person" else None
    exit_code = note.code if code else None
    if note.check == PROTECT:
        return protect_words(note.verdict, text_of(note.evidence))
    return check_phrase(leaf, note.check, note.verdict, code=exit_code, by=note.by)


ReadText = Callable[[Text | None], str]
EVIDENCE_CHARS = 2_000


def gate_item(gate: GateState, read: ReadText) -> GateItem:
    """An open gate as one object."""
    asked = asked_call(gate)
    call = None if asked is None else gate_call(asked, read)
    marks, shown = gate_exposure(gate.message, call)
    return GateItem(
        id=gate.gate,
        path=gate.path,
        message=gate.message,
        digest=gate.digest,
        snapshot=workspace_changes(gate.snapshot) if gate.snapshot is not None else None,
        call=call,
        marks=marks,
        shown=shown,
    )


def summary(state: State, read: ReadText) -> RunSummary:
    """The run according to its events."""
    finished = state.finished
    return RunSummary(
        run=state.run,
        status=status_of(state),
        summary=final_line(state),
        reason=finished.reason if finished else _waiting_reason(state),
        output=read(finished.output) if finished else _last_output(state, read),
        result=_json(finished.result if finished else None, read),
        iterations=iterations(state),
        steps={step.id: _step(state, step.id, read) for step in state.plan.steps},
        usage=figures_amounts(figures_of(state)),
        uncovered=list(state.plan.uncovered),
        labels=list(state.control.labels),
        gates=[gate_item(gate, read) for gate in state.gates.values()],
        checks=[_check(note, read) for note in state.latest.notes],
        error=_error(finished.error if finished else None),
    )


def _check(note: CheckNote, read: ReadText) -> CheckView:
    """A check of the newest iteration: its kind, its verdict, and the end of its evidence."""
    evidence = read(note.evidence)[-EVIDENCE_CHARS:]
    return CheckView(check=note.check, verdict=note.verdict, evidence=evidence)


def _step(state: State, name: str, read: ReadText) -> StepSummary:
    body = state.root.body if state.started else None
    ended = body.results.get(name) if body else None
    if ended is not None:
        return _ended(ended, read)
    owner = body.active.get(name) if body else None
    return StepSummary(
        status="running" if owner is not None else "pending",
        reason="",
        output=_active_output(owner, read),
        result=None,
        iterations=_passes(owner),
        error=None,
    )


def _ended(ended: Result, read: ReadText) -> StepSummary:
    return StepSummary(
        status=ended.status,
        reason=ended.reason,
        output=read(ended.output),
        result=_json(ended.result, read),
        iterations=ended.iterations,
        error=_error(ended.error),
    )


def _passes(owner: StepOwner | None) -> int:
    return iterations_made(owner.body) if owner is not None else 0


def _active_output(owner: StepOwner | None, read: ReadText) -> str:
    if owner is None or not isinstance(owner.body, RepeatBody):
        return ""
    for inside in owner.body.active.values():
        answer = getattr(inside.body, "answer", None)
        if answer is not None:
            return seen_text(inside, read(answer.output))
    return read(owner.body.progress.last.output) if owner.body.progress.last else ""


def seen_text(owner: Owner, text: str) -> str:
    """The part of an output that people see: texts for its loop alone are removed."""
    inside = enclosing_iteration(owner)
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


def _error(error: Failure | None) -> ErrorItem | None:
    return None if error is None else ErrorItem(error.type, error.detail)


def seen_output(state: State, event: EffectDone | EffectFailed, read: ReadText) -> str:
    """The part of an answer that people see: texts for its loop alone are removed."""
    text, owner = read(event.output), state.owners.get(event.path)
    return text if owner is None else seen_text(owner, text)


def written(event: AnyEvent, read: ReadText) -> tuple[str, str] | None:
    """A title and a text, or nothing for an event without a message."""
    match event:
        case MessageSent(intent="tell"):
            to = "" if event.to == ANY_AGENT else f" to {event.to}"
            return f"message from {event.sender or ANY_PERSON}{to}", read(event.text)
        case MessageDelivered(to="*"):
            to = place_words(event.path) or "the run"
            return f"message {', '.join(event.messages)} delivered to {to}", ""
        case MessageSent():
            what = {"cancel": "cancel", "reply": "reply"}.get(event.intent, "message")
            return f"{what} {event.sender or 'somebody'} → {event.to}", read(event.text)
        case MessageDropped():
            return f"message to {event.to} dropped ({event.reason})", event.detail
        case CoordinatorNarrated():
            return "coordinator", read(event.text)
        case CoordinatorFinalized():
            return "coordinator sums up", read(event.summary)
        case _:
            return None
