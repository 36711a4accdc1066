"""A run as it comes: facts in, lines and a live picture out. Nothing here decides.

One `Progress` follows one run. `take` folds a fact and answers with the line that tells it, or with
nothing when it is not worth one.
"""

import shlex
from dataclasses import dataclass, field

from loopwright.app.views.activity import (
    ActivityCounts,
    notable_words,
    note_line,
    repeat_words,
)
from loopwright.app.views.changes import change_words
from loopwright.app.views.correspondence import written
from loopwright.app.views.final_line import final_line
from loopwright.app.views.place_words import place_words
from loopwright.app.views.signs import PERSON, PROTECT, shown_evidence
from loopwright.app.views.summary import ReadText, current_loop
from loopwright.app.views.turns import compressed_words, is_turn, turn_words
from loopwright.app.views.words import (
    check_label,
    check_result,
    decided,
    passes_text,
    seen_output,
    verdict_by,
)
from loopwright.app.views.workspace_history import stat_words
from loopwright.kernel.calls import (
    AgentCall,
    CommandCall,
    ModelCall,
    SleepCall,
    SnapshotCall,
    ToolCall,
)
from loopwright.kernel.facts import (
    NO_USAGE,
    AnyFact,
    CancelRequested,
    CheckVerdict,
    DiffStat,
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
    Snapshot,
    StepFinished,
    StepKept,
    StepSkipped,
    StepStarted,
    TurnTaken,
    Usage,
    Verdict,
)
from loopwright.kernel.fold import apply
from loopwright.kernel.learning import learning_of
from loopwright.kernel.retry import SHORTAGE
from loopwright.kernel.snapshots import name_files
from loopwright.kernel.state import State
from loopwright.model.ids import is_inside, parent_path
from loopwright.model.plan import Plan
from loopwright.ports import Delta, Numbered

SAID_CHARS = 8_000
EVIDENCE_CHARS = 2_000
LEARNING_CHARS = 300
STOPPED_CALL = "the call was stopped"
WORK = ("agent", "command", "model", "script")  # what a pass is about; a judge only speaks of it


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that happened, in words; `good` is None for what is neither good nor bad."""

    text: str
    good: bool | None = None
    detail: str = ""


@dataclass(slots=True)
class CheckSeen:
    """A check of the newest pass and what it said."""

    label: str
    verdict: Verdict
    evidence: str
    by: str = ""  # the person who decided


@dataclass(slots=True)
class PassSeen:
    """A pass and what came of it."""

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
        self.passes: list[PassSeen] = []
        self.said = ""
        self.asked: dict[str, GateOpened] = {}
        self.started_at = 0
        self._read = read
        self._words = words  # whether anybody wants the lines, a third of the work
        self._calls: dict[str, str] = {}
        self._snapshots: set[str] = set()  # effects that take one
        self._cut_off: list[PassSeen] = []  # ended from outside: the next snapshot has their files
        self._protect_shown: set[str] = set()  # where a change of protected files was shown
        self._watch_shown: tuple[str, tuple[str, ...]] = ("", ())  # where, and which files
        self._open: dict[str, PassSeen] = {}
        self._turns_told: set[str] = set()
        self._doing: dict[str, str] = {}
        self._status: dict[str, str] = {}  # by effect: its newest note
        self._shortage = ""  # what the machine has none of, in words
        self.total_activity = ActivityCounts()

    def take(self, numbered: Numbered) -> Line | None:
        """Fold one fact, which must be the next one, and put it into words."""
        fact = numbered.fact
        if isinstance(fact, RunReopened):
            self._cut_off.clear()
        line = self._before(fact)
        used = self.state.usage
        apply(self.state, fact)
        self.state.agenda.clear()
        if self.state.usage is not used:
            self._note_usage(getattr(fact, "path", ""), self.state.usage - used)
        self.seen = numbered.seq
        return line or self._after(fact)

    def hear(self, delta: Delta) -> None:
        """Take what an agent says right now."""
        if delta.kind == "note":
            self._status[delta.effect] = delta.text
            return
        self._status.pop(delta.effect, None)
        text = f"\n[{delta.text}]\n" if delta.kind == "tool" else delta.text
        self.said = (self.said + text)[-SAID_CHARS:]
        if delta.kind == "tool":
            self._doing[delta.effect] = delta.text

    @property
    def newest(self) -> PassSeen | None:
        return self.passes[-1] if self.passes else None

    # -- facts that are told by what was known before them -----------------------------------------

    def _before(self, fact: AnyFact) -> Line | None:
        match fact:
            case CheckVerdict() if not is_turn(self.state, fact.path):
                return self._verdict(fact)
            case EffectDone() | EffectFailed():
                return self._answered(fact)
            case IterationFinished():
                return self._pass_finished(fact)
            case _:
                return None

    def _verdict(self, fact: CheckVerdict) -> Line | None:
        label = check_label(self.state, fact.path, fact.index, fact.check)
        evidence = self._read(fact.evidence)[-EVIDENCE_CHARS:]
        seen = self._open.get(fact.path)
        if seen is not None:
            by = verdict_by(self.state, fact) if fact.check == PERSON else ""
            seen.checks.append(CheckSeen(label, fact.verdict, evidence, by))
        if fact.check == PROTECT and fact.path in self._protect_shown:
            self._protect_shown.discard(fact.path)
            return None  # shown with the snapshot
        place = self._pass_label(fact.path, fact.iteration)
        words = check_result(self.state, fact)
        below = shown_evidence(fact.check, evidence)
        return Line(f"{place}: {words}", good=fact.verdict == "pass", detail=below)

    def _answered(self, fact: EffectDone | EffectFailed) -> Line | None:
        if isinstance(fact, EffectDone) and fact.snapshot is not None:
            self._calls.pop(fact.effect, None)
            return self._snapshot(fact, fact.snapshot)
        what = self._calls.pop(fact.effect, "")
        self._doing.pop(fact.effect, None)
        self._status.pop(fact.effect, None)
        if isinstance(fact, EffectFailed) and fact.effect in self._snapshots:
            return self._snapshot_failed(fact)
        purpose = fact.effect.rpartition("/")[2].partition("#")[0]
        if isinstance(fact, EffectFailed) and fact.error.type == SHORTAGE:
            self._shortage = fact.error.detail.partition(":")[0]
            return Line(f"{self._pass_label(fact.path, fact.iteration)}: {fact.error.detail}")
        seen = self._open.get(fact.path)
        if seen is not None and purpose in WORK and (fact.output or purpose == "agent"):
            output = seen_output(self.state, fact, self._read)
            seen.learning = learning_of(output, fact.iteration or 1, LEARNING_CHARS)
            if not output.strip() and _is_cancelled(fact):  # what it had said is not recorded
                seen.learning = _stopped_words(seen)
        if not what.startswith("agent"):
            note = fact.note if isinstance(fact, EffectDone) else ""
            return Line(f"{self._pass_label(fact.path, fact.iteration)}: {note}") if note else None
        if isinstance(fact, EffectDone) or _is_cancelled(fact):
            return None
        place = self._pass_label(fact.path, fact.iteration)
        text = f"{place}: {what} failed ({fact.error.type})"
        return Line(text, good=False, detail=fact.error.detail)

    def _snapshot(self, fact: EffectDone, snapshot: Snapshot) -> Line | None:
        """Protected files and files of checks that changed are shown at once."""
        for seen in self._cut_off:
            if is_inside(seen.path, fact.path):
                seen.tree, seen.changed = snapshot.tree, snapshot.changed
        place = self._pass_label(fact.path, fact.iteration)
        if snapshot.protected:
            named = name_files(snapshot.protected, snapshot.protected_count)
            self._protect_shown.add(fact.path)
            return Line(f"{place}: protected files changed: {named}", good=False)
        told, self._watch_shown = self._watch_shown, (fact.path, snapshot.watched)
        if snapshot.watched and self._watch_shown != told:  # again after the checks
            named = name_files(snapshot.watched, len(snapshot.watched))
            return Line(f"{place}: warning: {named} changed; the check depends on it", good=False)
        return None

    def _snapshot_failed(self, fact: EffectFailed) -> Line | None:
        """Without its snapshot it is not known what an iteration changed."""
        if _is_cancelled(fact):
            return None
        seen, place = self._open.get(fact.path), self._pass_label(fact.path, fact.iteration)
        what = "this iteration" if seen is not None else place or "the run"
        text = (
            f"the snapshot of the workspace failed: {fact.error.detail}; "
            f"the changes of {what} are not recorded separately"
        )
        if seen is not None:
            seen.activity.warnings[text] = None
        return Line(f"{place}{': ' if place else ''}warning: {text}", good=False)

    def _pass_finished(self, fact: IterationFinished) -> Line | None:
        seen = self._open.pop(fact.path, None)
        if seen is None:
            return None
        seen.status, seen.done = fact.status, fact.done
        seen.tree, seen.changed = fact.tree, fact.changed
        if fact.status == "cancelled" and not fact.tree:
            self._cut_off.append(seen)
        seen.error = fact.error.detail if fact.error is not None else ""
        if fact.output is not None:
            seen.learning = learning_of(fact.output, fact.iteration or 1, LEARNING_CHARS)
        place, told = self._pass_label(fact.path, fact.iteration), fact.path in self._turns_told
        self._turns_told.discard(fact.path)
        if fact.status == "completed":
            if told:  # the turn was the pass, and has been told with its calls
                return None
            changed = (
                f" · {stat_words(fact.changed)}" if fact.changed and fact.changed.files else ""
            )
            said = f": {seen.learning}" if seen.learning else " ended"
            return Line(f"{place}{said}{changed}")
        return Line(f"{place}: {fact.status}", good=False)

    # -- facts that are told by what is known after them -------------------------------------------

    def _after(self, fact: AnyFact) -> Line | None:
        match fact:
            case RunStarted():
                self.started_at = fact.at
                return Line(f"{fact.run} started: {fact.name}")
            case IterationStarted() if is_turn(self.state, fact.path):
                return None
            case TurnTaken() | HistoryCompressed():
                return self._conversed(fact)
            case IterationStarted():
                self.said = ""
                self._begin_pass(fact)
                return Line(f"{self._pass_label(fact.path, fact.iteration)} started")
            case EffectRequested():
                return self._note_call(fact)
            case EffectActivity():
                return self._note_activity(fact)
            case EffectRepeated():
                return self._note_repeat(fact)
            case GateOpened():
                self.asked[fact.gate] = fact
                words = self._blocked(fact) if fact.about == "blocked" else ""
                detail = f"{words}\n{fact.gate}" if words else fact.gate
                return Line(f"waiting for a decision: {fact.message}", detail=detail)
            case GateAnswered():
                return Line(f"answered{_by(fact.by)}: {decided(fact)}", detail=fact.text)
            case _:
                return self._step_or_run(fact)

    def _note_repeat(self, fact: EffectRepeated) -> Line | None:
        """A call that was interrupted with the process that drove the run is made again."""
        pending = self.state.pending.get(fact.effect)
        if pending is None:
            return None
        attempt, seen = pending.repeats + 1, self._pass_around(fact.path)
        if seen is not None:
            seen.activity.warnings[repeat_words(attempt)] = None
        what = self._calls.get(fact.effect, "call")
        place = self._pass_label(fact.path, fact.iteration)
        return Line(f"resuming {place}, attempt {attempt}: the call of {what} was interrupted")

    def _pass_around(self, path: str) -> PassSeen | None:
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

    def _note_activity(self, fact: EffectActivity) -> Line | None:
        """Count what an agent did, for its iteration and for the run. A denied permission and a
        status of the agent are worth a line.
        """
        self.total_activity.take(fact)
        seen = self._pass_around(fact.path)
        if seen is not None:
            seen.activity.take(fact)
            if fact.entries:
                newest = fact.entries[-1]
                seen.status_line = newest.text if newest.kind == "status" else ""
        if fact.entries and fact.effect in self._snapshots:
            words = fact.entries[-1].text
            self._calls[fact.effect] = words.lower()
            return Line(words)
        if fact.entries and fact.effect in self._calls:
            self._doing[fact.effect] = note_line(fact.entries[-1])
        first, *more = notable_words(fact) or ("",)
        if not first:
            return None
        who = self._calls.get(fact.effect, fact.path)
        return Line(f"{who}: {first}", good=False, detail="\n".join(more))

    def _begin_pass(self, fact: IterationStarted) -> None:
        """Note an iteration; one that continues after the run was resumed is the same one."""
        before = (one for one in reversed(self.passes) if one.path == fact.path)
        seen = next(before, None) if fact.resumed else None
        if seen is None:
            seen = PassSeen(fact.path, fact.iteration or 0)
            self.passes.append(seen)
        seen.status, seen.error = "running", ""
        self._open[fact.path] = seen
        self._cut_off.clear()

    def _blocked(self, fact: GateOpened) -> str:
        """What a step says that waits for somebody: that is what its pass has come to."""
        said = self._read(fact.output).strip()
        seen = self._open.get(fact.path.rpartition(".")[0])
        if seen is not None:
            seen.learning = learning_of(said, seen.number, LEARNING_CHARS)
        return said

    def _conversed(self, fact: TurnTaken | HistoryCompressed) -> Line | None:
        if isinstance(fact, HistoryCompressed):
            return Line(f"{self._pass_label(fact.path, fact.iteration)}: {compressed_words(fact)}")
        words = turn_words(self.state, fact, self._read)
        turn = is_turn(self.state, fact.path)
        place = f"turn {fact.iteration}" if turn else self._pass_label(fact.path, fact.iteration)
        step = f"step {fact.path.rpartition('.')[0]}, " if turn and self._has_steps else ""
        if not words:
            return None
        self._turns_told.add(fact.path)
        return Line(f"{step}{place}: {words}")

    def _step_or_run(self, fact: AnyFact) -> Line | None:
        match fact:
            case StepStarted() | StepFinished() | StepSkipped():
                return self._step(fact)
            case RunPaused():
                return Line("pausing: calls under way are completed")
            case RunResumed():
                return Line("resumed")
            case StepKept() | RunEdited() | RunReopened():
                text, detail = change_words(self.state, fact)
                return Line(text, detail=detail)
            case RunForked():
                self.started_at = fact.at
                text = f"forked{_by(fact.by)} from {fact.parent} after {place_words(fact.place)}"
                return Line(text, detail=fact.text)
            case CancelRequested():
                why = "" if fact.reason == "stopped" else f": {fact.reason}"
                return Line(f"is being stopped{_by(fact.by)}{why}")
            case RunFinished():
                return Line(final_line(self.state), fact.outcome == "completed")
            case _:
                return self._message(fact)

    def _step(self, fact: StepStarted | StepFinished | StepSkipped) -> Line | None:
        """A step; where a run is one loop, the steps of its passes."""
        place = place_words(fact.path) or f"step {fact.path}"
        if not self._has_steps:
            inside, _, name = fact.path.rpartition(".")
            seen = self._open.get(inside)
            if seen is None:
                return None
            place = f"{self._pass_label(inside, seen.number)}: {name}"
        if isinstance(fact, StepStarted):
            return Line(f"{place} started")
        reason = f" ({fact.reason})" if fact.reason not in ("", "done") else ""
        good = fact.status == "completed" if isinstance(fact, StepFinished) else None
        return Line(f"{place}: {fact.status}{reason}", good)

    def _message(self, fact: AnyFact) -> Line | None:
        told = written(fact, self._read)
        if told is None:
            return None
        title, text = told
        dropped = isinstance(fact, MessageDropped)
        return Line(f"{title}: {text}" if text else title, good=False if dropped else None)

    def _note_call(self, fact: EffectRequested) -> Line | None:
        if isinstance(fact.call, SleepCall) and self._shortage:
            self._status[fact.effect] = self._shortage
        else:
            self._shortage = ""
        match fact.call:
            case SleepCall(until=until) if "/backoff#" in fact.effect:
                wait = (until - fact.at) / 1_000
                return Line(
                    f"{self._pass_label(fact.path, fact.iteration)}: retrying in {wait:g} s"
                )
            case AgentCall(agent=agent) | ModelCall(agent=agent):
                self._calls[fact.effect] = f"agent {agent}"
                self.said = ""
            case SnapshotCall():
                self._snapshots.add(fact.effect)
            case ToolCall(tool=tool):
                self._calls[fact.effect] = tool
            case CommandCall(argv=argv):
                self._calls[fact.effect] = shlex.join(argv)
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
        """What the agents that work right now have said last about their own state."""
        told = (words for effect, words in self._status.items() if effect in self.state.pending)
        return ", ".join(dict.fromkeys(told))

    def _pass_label(self, path: str, iteration: int | None) -> str:
        if not self._words:
            return path
        loop = current_loop(self.state)
        if not self._has_steps and loop is not None and path.startswith(f"{loop.owner.inside}."):
            most = passes_text(self.state).partition("/")[2]
            first, *below = path.removeprefix(f"{loop.owner.inside}.").split(".")
            if not any(part.partition("~")[0].isdecimal() for part in below):
                return f"iteration {iteration}{f'/{most}' if most else ''}"
            outer, inner = place_words(first), place_words(".".join(below))
            return f"{outer}{f'/{most}' if most else ''}, {inner}"
        return place_words(path) or path


def _stopped_words(seen: PassSeen) -> str:
    status = f"; the agent's last status: {seen.status_line}" if seen.status_line else ""
    return f"({STOPPED_CALL}{status})"


def _is_cancelled(fact: EffectDone | EffectFailed) -> bool:
    return isinstance(fact, EffectFailed) and fact.error.type == "cancelled"


def _by(somebody: str) -> str:
    return f" by {somebody}" if somebody else ""
