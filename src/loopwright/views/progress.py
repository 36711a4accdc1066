"""A run while it is followed: events in, one line for each event and a live view out.

One `Progress` follows one run. `take` folds an event and returns its line, or None if the event
is not worth a line. Nothing here makes decisions.
"""

import shlex
from dataclasses import dataclass, field
from typing import assert_never

from loopwright.kernel.bodies.repeat import learning_of
from loopwright.kernel.effects import SHORTAGE
from loopwright.kernel.event_parts import (
    AgentCall,
    CommandCall,
    DiffStat,
    LookupCall,
    MatchCall,
    ModelCall,
    SleepCall,
    Snapshot,
    SnapshotCall,
    ToolCall,
)
from loopwright.kernel.events import (
    NO_USAGE,
    AnyEvent,
    CancelRequested,
    CheckVerdict,
    EffectActivity,
    EffectDone,
    EffectFailed,
    EffectRepeated,
    EffectRequested,
    GateAnswered,
    GateOpened,
    HistoryCompressed,
    IterationFinished,
    IterationStarted,
    MessageDropped,
    RunEdited,
    RunFinished,
    RunForked,
    RunPaused,
    RunReopened,
    RunResumed,
    RunStarted,
    StepFinished,
    StepKept,
    StepSkipped,
    StepStarted,
    TurnTaken,
    Usage,
    Verdict,
)
from loopwright.kernel.fold import apply
from loopwright.kernel.snapshots import name_files
from loopwright.kernel.state import State
from loopwright.model.ids import (
    AGENT_CALL,
    COMMAND_CALL,
    SCRIPT_CALL,
    TURN,
    BackoffPurpose,
    is_inside,
    parent_path,
)
from loopwright.model.plan import Plan
from loopwright.ports import Delta, NumberedEvent
from loopwright.ports.headline import current_loop, is_turn, iterations_text
from loopwright.views.event_records import edited
from loopwright.views.formats import PERSON, PROTECT, place_words, shown_evidence
from loopwright.views.iterations import stat_words
from loopwright.views.status_text import (
    check_label,
    check_result,
    decided,
    resumed_words,
    verdict_by,
)
from loopwright.views.summary import ReadText, final_line, seen_output, written
from loopwright.views.transcript import (
    ActivityCounts,
    compressed_words,
    notable_words,
    note_line,
    repeat_words,
    turn_words,
)


def change_words(state: State, event: RunEdited | RunReopened | StepKept) -> tuple[str, str]:
    """A change on one line, and its text."""
    if isinstance(event, StepKept):
        how = "left out" if event.reason == "skipped" else "kept as it was"
        return f"{place_words(event.path)}: {how}", ""
    by = f" by {event.by}" if event.by else ""
    if isinstance(event, RunEdited):
        return f"changed{by}: {', '.join(edited(event))}", ""
    match event.stage:
        case "retry":
            return f"tries again what it stopped at{by}", event.note
        case "skip":
            return f"leaves out what it stopped at{by}", event.note
        case _:
            return resumed_words(state, event), ""


TEXT_CHARS = 8_000
EVIDENCE_CHARS = 2_000
LEARNING_CHARS = 300
STOPPED_CALL = "the call was stopped"
WORK = (
    AGENT_CALL,
    COMMAND_CALL,
    SCRIPT_CALL,
    TURN,
)  # the goal of an iteration; a judge only refers to it


# Events whose lines describe them with the state before them, if they have one.
_SHOWN_BEFORE = frozenset((EffectDone, EffectFailed, IterationFinished, CheckVerdict))


@dataclass(frozen=True, slots=True)
class ProgressLine:
    """One event as text; `good` is None for an event that is neither good nor bad."""

    text: str
    good: bool | None = None
    detail: str = ""


@dataclass(slots=True)
class CheckSeen:
    """A check of the newest iteration and its result."""

    label: str
    verdict: Verdict
    evidence: str
    by: str = ""  # the person who decided


@dataclass(slots=True)
class IterationSeen:
    """An iteration and its result."""

    path: str
    number: int
    learning: str = ""
    checks: list[CheckSeen] = field(default_factory=list)
    status: str = "running"
    done: bool = False
    error: str = ""
    activity: ActivityCounts = field(default_factory=ActivityCounts)
    status_line: str = ""  # a status of the agent after which it did nothing else
    tree: str = ""  # the snapshot after its body
    changed: DiffStat | None = None
    usage: Usage = NO_USAGE


class Progress:
    """One run, followed."""

    def __init__(self, plan: Plan, read: ReadText, *, words: bool = True) -> None:
        self.state = State(plan)
        self.seen = 0
        self.passes: list[IterationSeen] = []
        self.said = ""
        self.asked: dict[str, GateOpened] = {}
        self.started_at = 0
        self._read = read
        self._words = words  # whether the lines are used, which are a third of the work
        self._calls: dict[str, str] = {}
        self._snapshots: set[str] = set()  # effects that take one
        self._cut_off: list[
            IterationSeen
        ] = []  # ended from outside: the next snapshot has their files
        # the place where a change of protected files was shown
        self._protect_shown: set[str] = set()
        self._watch_shown: tuple[str, tuple[str, ...]] = ("", ())  # the place, and the files
        self._open: dict[str, IterationSeen] = {}
        self._turns_told: set[str] = set()
        self._doing: dict[str, str] = {}
        self._status: dict[str, str] = {}  # by effect: its newest note
        self._shortage = ""  # the exhausted resources of the machine, as a message
        self.total_activity = ActivityCounts()

    def take(self, numbered: NumberedEvent) -> ProgressLine | None:
        """Fold one event, which must be the next one, and return its lines."""
        event = numbered.event
        if isinstance(event, RunReopened):
            self._cut_off.clear()
        line = self._before(event)
        used = self.state.usage
        apply(self.state, event)
        self.state.queues.agenda.clear()
        if self.state.usage is not used:
            self._note_usage(getattr(event, "path", ""), self.state.usage - used)
        self.seen = numbered.seq
        if line is not None or type(event) in _SHOWN_BEFORE:
            return line
        return self._after(event)

    def hear(self, delta: Delta) -> None:
        """Process live text of an agent."""
        if delta.kind == "note":
            self._status[delta.effect] = delta.text
            return
        self._status.pop(delta.effect, None)
        text = f"\n[{delta.text}]\n" if delta.kind == "tool" else delta.text
        self.said = (self.said + text)[-TEXT_CHARS:]
        if delta.kind == "tool":
            self._doing[delta.effect] = delta.text

    @property
    def newest(self) -> IterationSeen | None:
        return self.passes[-1] if self.passes else None

    # -- events described with the state before them -------------------------------------------

    def _before(self, event: AnyEvent) -> ProgressLine | None:
        match event:
            case CheckVerdict() if not is_turn(self.state, event.path):
                return self._verdict(event)
            case EffectDone() | EffectFailed():
                return self._answered(event)
            case IterationFinished():
                return self._end_iteration(event)
            case _:
                return None

    def _verdict(self, event: CheckVerdict) -> ProgressLine | None:
        label = check_label(self.state, event.path, event.index, event.check)
        evidence = self._read(event.evidence)[-EVIDENCE_CHARS:]
        seen = self._open.get(event.path)
        if seen is not None:
            by = verdict_by(self.state, event) if event.check == PERSON else ""
            seen.checks.append(CheckSeen(label, event.verdict, evidence, by))
        if event.check == PROTECT and event.path in self._protect_shown:
            self._protect_shown.discard(event.path)
            return None  # shown with the snapshot
        place = self._label_of(event.path, event.iteration)
        words = check_result(self.state, event)
        below = shown_evidence(event.check, evidence)
        return ProgressLine(f"{place}: {words}", good=event.verdict == "pass", detail=below)

    def _answered(self, event: EffectDone | EffectFailed) -> ProgressLine | None:
        if isinstance(event, EffectDone) and event.snapshot is not None:
            self._calls.pop(event.effect, None)
            return self._snapshot(event, event.snapshot)
        what = self._calls.pop(event.effect, "")
        self._doing.pop(event.effect, None)
        self._status.pop(event.effect, None)
        if isinstance(event, EffectFailed) and event.effect in self._snapshots:
            return self._snapshot_failed(event)
        purpose = event.purpose
        if isinstance(event, EffectFailed) and event.error.type == SHORTAGE:
            self._shortage = event.error.detail.partition(":")[0]
            return ProgressLine(
                f"{self._label_of(event.path, event.iteration)}: {event.error.detail}"
            )
        seen = self._open.get(event.path)
        if seen is not None and purpose in WORK and (event.output or purpose == AGENT_CALL):
            output = self._seen_output(event)
            seen.learning = learning_of(output, event.iteration or 1, LEARNING_CHARS)
            if not output.strip() and _is_cancelled(event):  # its text was not recorded
                seen.learning = _stopped_words(seen)
        if not what.startswith("agent"):
            note = event.note if isinstance(event, EffectDone) else ""
            return (
                ProgressLine(f"{self._label_of(event.path, event.iteration)}: {note}")
                if note
                else None
            )
        if isinstance(event, EffectDone) or _is_cancelled(event):
            return None
        place = self._label_of(event.path, event.iteration)
        text = f"{place}: {what} failed ({event.error.type})"
        return ProgressLine(text, good=False, detail=event.error.detail)

    def _seen_output(self, event: EffectDone | EffectFailed) -> str:
        """The output of a call without the texts that are for its loop alone."""
        if self.state.plan_index.has_signals:
            return seen_output(self.state, event, self._read)
        return self._read(event.output)

    def _snapshot(self, event: EffectDone, snapshot: Snapshot) -> ProgressLine | None:
        """Protected files and files of checks that changed are shown at once."""
        for seen in self._cut_off:
            if is_inside(seen.path, event.path):
                seen.tree, seen.changed = snapshot.tree, snapshot.changed
        place = self._label_of(event.path, event.iteration)
        if snapshot.protected:
            named = name_files(snapshot.protected, snapshot.protected_count)
            self._protect_shown.add(event.path)
            return ProgressLine(f"{place}: protected files changed: {named}", good=False)
        texts, self._watch_shown = self._watch_shown, (event.path, snapshot.watched)
        if snapshot.watched and self._watch_shown != texts:  # again after the checks
            named = name_files(snapshot.watched, len(snapshot.watched))
            return ProgressLine(
                f"{place}: warning: {named} changed; the check depends on it", good=False
            )
        return None

    def _snapshot_failed(self, event: EffectFailed) -> ProgressLine | None:
        """Without its snapshot it is not known what an iteration changed."""
        if _is_cancelled(event):
            return None
        seen, place = self._open.get(event.path), self._label_of(event.path, event.iteration)
        what = "this iteration" if seen is not None else place or "the run"
        text = (
            f"the snapshot of the workspace failed: {event.error.detail}; "
            f"the changes of {what} are not recorded separately"
        )
        if seen is not None:
            seen.activity.warnings[text] = None
        return ProgressLine(f"{place}{': ' if place else ''}warning: {text}", good=False)

    def _end_iteration(self, event: IterationFinished) -> ProgressLine | None:
        seen = self._open.pop(event.path, None)
        if seen is None:
            return None
        seen.status, seen.done = event.status, event.done
        seen.tree, seen.changed = event.tree, event.changed
        if event.status == "cancelled" and not event.tree:
            self._cut_off.append(seen)
        seen.error = event.error.detail if event.error is not None else ""
        if event.output is not None:
            seen.learning = learning_of(event.output, event.iteration or 1, LEARNING_CHARS)
        place, texts = self._label_of(event.path, event.iteration), event.path in self._turns_told
        self._turns_told.discard(event.path)
        if event.status == "completed":
            if texts:  # the turn was the iteration, and has been shown with its calls
                return None
            changed = (
                f" · {stat_words(event.changed)}" if event.changed and event.changed.files else ""
            )
            said = f": {seen.learning}" if seen.learning else " ended"
            return ProgressLine(f"{place}{said}{changed}")
        return ProgressLine(f"{place}: {event.status}", good=False)

    # -- events described with the state after them ---------------------------------------------

    def _after(self, event: AnyEvent) -> ProgressLine | None:
        match event:
            case RunStarted():
                self.started_at = event.at
                return ProgressLine(f"{event.run} started: {event.name}")
            case IterationStarted() if is_turn(self.state, event.path):
                return None
            case TurnTaken() | HistoryCompressed():
                return self._conversed(event)
            case IterationStarted():
                self.said = ""
                self._begin_iteration(event)
                return ProgressLine(f"{self._label_of(event.path, event.iteration)} started")
            case EffectRequested():
                return self._note_call(event)
            case EffectActivity():
                return self._note_activity(event)
            case EffectRepeated():
                return self._note_repeat(event)
            case GateOpened():
                self.asked[event.gate] = event
                words = self._blocked(event) if event.about == "blocked" else ""
                detail = f"{words}\n{event.gate}" if words else event.gate
                return ProgressLine(f"waiting for a decision: {event.message}", detail=detail)
            case GateAnswered():
                return ProgressLine(f"answered{_by(event.by)}: {decided(event)}", detail=event.text)
            case _:
                return self._step_or_run(event)

    def _note_repeat(self, event: EffectRepeated) -> ProgressLine | None:
        """A call that was interrupted with the process that drove the run is made again."""
        pending = self.state.pending.get(event.effect)
        if pending is None:
            return None
        attempt, seen = pending.repeats + 1, self._iteration_of(event.path)
        if seen is not None:
            seen.activity.warnings[repeat_words(attempt)] = None
        what = self._calls.get(event.effect, "call")
        place = self._label_of(event.path, event.iteration)
        return ProgressLine(
            f"resuming {place}, attempt {attempt}: the call of {what} was interrupted"
        )

    def _iteration_of(self, path: str) -> IterationSeen | None:
        """The innermost open iteration around a place."""
        while path and path not in self._open:
            path = path.rpartition(".")[0]
        return self._open.get(path)

    def _note_usage(self, path: str, usage: Usage) -> None:
        """Count what a call used for every iteration around it."""
        while path:
            seen = self._open.get(path)
            if seen is not None:
                seen.usage = seen.usage + usage
            path = parent_path(path)

    def _note_activity(self, event: EffectActivity) -> ProgressLine | None:
        """Count the activity of an agent, for its iteration and for the run. A denied permission
        and a status of the agent produce a line.
        """
        self.total_activity.take(event)
        seen = self._iteration_of(event.path)
        if seen is not None:
            seen.activity.take(event)
            if event.entries:
                newest = event.entries[-1]
                seen.status_line = newest.text if newest.kind == "status" else ""
        if event.entries and event.effect in self._snapshots:
            words = event.entries[-1].text
            self._calls[event.effect] = words.lower()
            return ProgressLine(words)
        if event.entries and event.effect in self._calls:
            self._doing[event.effect] = note_line(event.entries[-1])
        first, *more = notable_words(event) or ("",)
        if not first:
            return None
        who = self._calls.get(event.effect, event.path)
        return ProgressLine(f"{who}: {first}", good=False, detail="\n".join(more))

    def _begin_iteration(self, event: IterationStarted) -> None:
        """Note an iteration; one that continues after the run was resumed is the same one."""
        before = (one for one in reversed(self.passes) if one.path == event.path)
        seen = next(before, None) if event.resumed else None
        if seen is None:
            seen = IterationSeen(event.path, event.iteration or 0)
            self.passes.append(seen)
        seen.status, seen.error = "running", ""
        self._open[event.path] = seen
        self._cut_off.clear()

    def _blocked(self, event: GateOpened) -> str:
        """The result of a step that waits for a person: it is the result of its iteration
        so far.
        """
        said = self._read(event.output).strip()
        seen = self._open.get(event.path.rpartition(".")[0])
        if seen is not None:
            seen.learning = learning_of(said, seen.number, LEARNING_CHARS)
        return said

    def _conversed(self, event: TurnTaken | HistoryCompressed) -> ProgressLine | None:
        if isinstance(event, HistoryCompressed):
            return ProgressLine(
                f"{self._label_of(event.path, event.iteration)}: {compressed_words(event)}"
            )
        words = turn_words(self.state, event, self._read)
        turn = is_turn(self.state, event.path)
        place = f"turn {event.iteration}" if turn else self._label_of(event.path, event.iteration)
        step = f"step {event.path.rpartition('.')[0]}, " if turn and self._has_steps else ""
        if not words:
            return None
        self._turns_told.add(event.path)
        return ProgressLine(f"{step}{place}: {words}")

    def _step_or_run(self, event: AnyEvent) -> ProgressLine | None:
        match event:
            case StepStarted() | StepFinished() | StepSkipped():
                return self._step(event)
            case RunPaused():
                return ProgressLine("pausing: calls under way are completed")
            case RunResumed():
                return ProgressLine("resumed")
            case StepKept() | RunEdited() | RunReopened():
                text, detail = change_words(self.state, event)
                return ProgressLine(text, detail=detail)
            case RunForked():
                self.started_at = event.at
                text = f"forked{_by(event.by)} from {event.parent} after {place_words(event.place)}"
                return ProgressLine(text, detail=event.text)
            case CancelRequested():
                why = "" if event.reason == "stopped" else f": {event.reason}"
                return ProgressLine(f"is being stopped{_by(event.by)}{why}")
            case RunFinished():
                return ProgressLine(final_line(self.state), event.outcome == "completed")
            case _:
                return self._message(event)

    def _step(self, event: StepStarted | StepFinished | StepSkipped) -> ProgressLine | None:
        """A step; if a run is one loop, the steps of its iterations."""
        place = place_words(event.path) or f"step {event.path}"
        if not self._has_steps:
            inside, _, name = event.path.rpartition(".")
            seen = self._open.get(inside)
            if seen is None:
                return None
            place = f"{self._label_of(inside, seen.number)}: {name}"
        if isinstance(event, StepStarted):
            return ProgressLine(f"{place} started")
        reason = f" ({event.reason})" if event.reason not in ("", "done") else ""
        if isinstance(event, StepSkipped) and event.error is not None:
            reason = f" ({event.reason}: {event.error.detail})"
        good = event.status == "completed" if isinstance(event, StepFinished) else None
        return ProgressLine(f"{place}: {event.status}{reason}", good)

    def _message(self, event: AnyEvent) -> ProgressLine | None:
        texts = written(event, self._read)
        if texts is None:
            return None
        title, text = texts
        dropped = isinstance(event, MessageDropped)
        return ProgressLine(f"{title}: {text}" if text else title, good=False if dropped else None)

    def _note_call(self, event: EffectRequested) -> ProgressLine | None:
        if isinstance(event.call, SleepCall) and self._shortage:
            self._status[event.effect] = self._shortage
        else:
            self._shortage = ""
        match event.call:
            case SleepCall(until=until) if isinstance(event.purpose, BackoffPurpose):
                wait = (until - event.at) / 1_000
                return ProgressLine(
                    f"{self._label_of(event.path, event.iteration)}: retrying in {wait:g} s"
                )
            case AgentCall(agent=agent) | ModelCall(agent=agent):
                self._calls[event.effect] = f"agent {agent}"
                self.said = ""
            case SnapshotCall():
                self._snapshots.add(event.effect)
            case ToolCall(tool=tool):
                self._calls[event.effect] = tool
            case CommandCall(argv=argv):
                self._calls[event.effect] = shlex.join(argv)
            case SleepCall() | LookupCall() | MatchCall():
                pass
            case _:
                assert_never(event.call)
        return None

    @property
    def _has_steps(self) -> bool:
        return len(self.state.plan.steps) > 1

    @property
    def activity(self) -> str:
        """What is being done right now."""
        working = [
            f"{what}: {self._doing[effect]}" if effect in self._doing else what
            for effect, what in self._calls.items()
            if effect in self.state.pending
        ]
        return ", ".join(working)

    @property
    def status(self) -> str:
        """The latest status reports of the running agents."""
        texts = (words for effect, words in self._status.items() if effect in self.state.pending)
        return ", ".join(dict.fromkeys(texts))

    def _label_of(self, path: str, iteration: int | None) -> str:
        if not self._words:
            return path
        loop = current_loop(self.state)
        if not self._has_steps and loop is not None and path.startswith(f"{loop.owner.inside}."):
            most = iterations_text(self.state).partition("/")[2]
            first, *below = path.removeprefix(f"{loop.owner.inside}.").split(".")
            if not any(part.partition("~")[0].isdecimal() for part in below):
                return f"iteration {iteration}{f'/{most}' if most else ''}"
            outer, inner = place_words(first), place_words(".".join(below))
            return f"{outer}{f'/{most}' if most else ''}, {inner}"
        return place_words(path) or path


def _stopped_words(seen: IterationSeen) -> str:
    status = f"; the agent's last status: {seen.status_line}" if seen.status_line else ""
    return f"({STOPPED_CALL}{status})"


def _is_cancelled(event: EffectDone | EffectFailed) -> bool:
    return isinstance(event, EffectFailed) and event.error.type == "cancelled"


def _by(somebody: str) -> str:
    return f" by {somebody}" if somebody else ""
