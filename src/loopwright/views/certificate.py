"""The certificate of a run: which checks decided, on which tree, and whether protected files are
unchanged. It is derived from the events alone, so it cannot say anything else than they do.
"""

import shlex
from collections.abc import Callable, Iterable

import msgspec

from loopwright.kernel.event_parts import CommandCall
from loopwright.kernel.events import (
    AnyEvent,
    CheckVerdict,
    EffectDone,
    EffectFailed,
    EffectRequested,
    GateAnswered,
    IterationFinished,
    RunFinished,
    RunReopened,
    RunStarted,
)
from loopwright.kernel.fold import apply
from loopwright.kernel.snapshots import PROTECT, violation
from loopwright.kernel.state import State
from loopwright.model.ids import CheckPurpose, parent_path
from loopwright.model.plan import Plan
from loopwright.model.record import Text
from loopwright.model.sandbox import NO_MATCH
from loopwright.ports import RunReader
from loopwright.views.formats import PERSON, person_words
from loopwright.views.iterations import WorkspaceHistory
from loopwright.views.run_responses import ChangedDependency

EVIDENCE_CHARS = 600
_VERDICTS = {"pass": "passed", "fail": "failed", "timed_out": "timed out"}
ReadText = Callable[[Text | None], str]


class CertifiedCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One check: in the iteration that completed a loop, else the last time that it was made."""

    check: str
    command: tuple[str, ...] | None
    exit_code: int | None
    verdict: str
    evidence: str
    tree: str | None
    path: str
    iteration: int | None
    by: str | msgspec.UnsetType = msgspec.UNSET  # the person who decided


class ProtectedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Whether protected files are unchanged, and who accepted changes of them. `status` is
    unchanged, changed, unverified, accepted, unmatched, or null when no file is protected.
    """

    patterns: tuple[str, ...]
    status: str | None
    detail: str
    accepted_by: tuple[str, ...]
    accepted_files: tuple[str, ...]  # as a message


class RunCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """What decided a run, as its events tell; `head` is that of the hash chain over them."""

    run: str
    outcome: str | None  # null while the run has not ended
    reason: str
    checks: tuple[CertifiedCheck, ...]
    protected: ProtectedFiles
    changed_dependencies: tuple[ChangedDependency, ...]
    first_tree: str | None
    final_tree: str | None
    events: int
    head: str


class Certifier:
    """Makes the certificate of one run, event by event."""

    def __init__(self, plan: Plan, read: ReadText) -> None:
        self._state = State(plan)
        self._read = read
        self._history = WorkspaceHistory()
        self._commands: dict[str, CommandCall] = {}
        self._codes: dict[str, tuple[tuple[str, ...], int | None]] = {}
        self._verdicts: dict[str, list[CertifiedCheck]] = {}
        self._last: dict[str, tuple[CertifiedCheck, ...]] = {}
        self._newest: dict[tuple[str, int], CertifiedCheck] = {}
        self._accepted: list[str] = []
        self._accepted_files: dict[str, None] = {}
        self._decided_by: dict[str, str] = {}  # by place: who answered its newest gate
        self._events = 0
        self._unmatched = ""  # patterns of protected files that matched none at the start
        self._run = self._outcome = self._reason = ""

    def take(self, event: AnyEvent) -> None:
        before = violation(self._state)
        self._history.take(event)
        self._unmatched = self._unmatched or _unmatched(event)
        apply(self._state, event)
        self._state.queues.agenda.clear()
        self._events += 1
        self._note_decision(event)
        match event:
            case RunStarted():
                self._run = event.run
            case EffectRequested(call=CommandCall() as call):
                self._commands[event.effect] = call
            case EffectDone() | EffectFailed() if event.effect in self._commands:
                call = self._commands.pop(event.effect)
                if isinstance(event.purpose, CheckPurpose):
                    self._codes[f"{event.path}:{event.purpose.index}"] = (call.argv, event.code)
            case CheckVerdict():
                made = self._certified(event)
                self._verdicts.setdefault(event.path, []).append(made)
                self._newest[_loop_of(event.path), event.index] = made
            case IterationFinished():
                found = self._verdicts.pop(event.path, [])
                self._last[_loop_of(event.path)] = tuple(found)
            case RunReopened(mode="restart"):
                self._newest.clear()
            case GateAnswered() if before and not violation(self._state):
                self._accepted.append(event.by)
                self._accepted_files[before.removeprefix("protected files changed: ")] = None
            case RunFinished():
                self._outcome, self._reason = event.outcome, event.reason
            case _:
                pass

    def _note_decision(self, event: AnyEvent) -> None:
        if isinstance(event, GateAnswered):
            self._decided_by[event.path] = event.by

    def _certified(self, event: CheckVerdict) -> CertifiedCheck:
        by = self._decided_by.get(event.path) if event.check == PERSON else None
        argv, code = self._codes.pop(f"{event.path}:{event.index}", ((), None))
        return CertifiedCheck(
            check=event.check,
            verdict=event.verdict,
            path=event.path,
            iteration=event.iteration,
            tree=event.tree or None,
            command=argv or None,
            exit_code=code,
            evidence=self._read(event.evidence)[-EVIDENCE_CHARS:],
            by=by or msgspec.UNSET,
        )

    def certificate(self, head: str) -> RunCertificate:
        words = violation(self._state)
        protect = self._state.plan.workspace.protect
        if not protect:
            status = ""
        elif self._state.snapshots.problem or not self._history.first:
            status = "unverified"
        elif words:
            status = "changed"
        else:
            status = "accepted" if self._accepted else "unchanged"
            if self._unmatched:
                status, words = "unmatched", self._unmatched
        checks = [one for found in self._last.values() for one in found]
        if self._outcome != "completed":
            checks = list(self._newest.values())
        watched = dict.fromkeys((path, where) for where, path in self._history.watched)
        return RunCertificate(
            run=self._run,
            outcome=self._outcome or None,
            reason=self._reason,
            checks=tuple(one for one in checks if _counts(one)),
            protected=ProtectedFiles(
                patterns=protect,
                status=status or None,
                detail=words,
                accepted_by=tuple(self._accepted),
                accepted_files=tuple(self._accepted_files),
            ),
            changed_dependencies=tuple(ChangedDependency(*one) for one in watched),
            first_tree=self._history.first or None,
            final_tree=self._history.last or None,
            events=self._events,
            head=head,
        )


def _loop_of(path: str) -> str:
    return parent_path(path).partition("~")[0]


def _unmatched(event: AnyEvent) -> str:
    """The patterns of protected files that match none, as the first snapshot says it."""
    if isinstance(event, EffectDone) and event.snapshot and event.note.startswith(NO_MATCH):
        return event.note
    return ""


def _counts(check: CertifiedCheck) -> bool:
    """The result for protected files is stated once, for the whole run."""
    return check.check != PROTECT


def certify(plan: Plan, events: Iterable[AnyEvent], read: ReadText, head: str) -> RunCertificate:
    """The certificate of a run that has these events."""
    made = Certifier(plan, read)
    for event in events:
        made.take(event)
    return made.certificate(head)


def run_certificate(service: RunReader, run: str) -> RunCertificate:
    """The certificate of a run of the log."""
    events = service.events(run)
    plan = service.plan(events[0].event)
    head = service.log.head(run)
    return certify(plan, (one.event for one in events), service.read_text, head)


def certificate_lines(made: RunCertificate) -> list[str]:
    """A certificate for people."""
    lines = [f"certificate of {made.run}: {made.outcome or 'not finished'}"]
    if made.outcome != "completed":
        last = "; the last verdict of each check was:" if made.checks else ""
        lines.append(f"  the run did not complete{last}")
    lines += [f"  {_check_line(one)}" for one in made.checks] or ["  no check was run"]
    lines += [f"  {line}" for line in _file_lines(made)]
    if made.final_tree:
        lines.append(f"  final tree {made.final_tree}")
    return [*lines, f"  {made.events} events, hash chain {made.head}"]


def _check_line(one: CertifiedCheck) -> str:
    what = f"`{shlex.join(one.command)}`" if one.command else one.check
    code = f", exit code {one.exit_code}" if one.exit_code is not None else ""
    verdict = _VERDICTS.get(one.verdict, one.verdict)
    if one.check == PERSON:
        what, verdict = person_words(one.verdict, one.by or ""), ""
    where = f"iteration {one.iteration}" if one.iteration else one.path
    tree = f"tree {one.tree}" if one.tree else "files not recorded"
    return f"{f'{what} {verdict}'.rstrip()}{code} ({where}, {tree})"


def _file_lines(made: RunCertificate) -> list[str]:
    lines: list[str] = []
    protected = made.protected
    named = ", ".join(protected.patterns)
    who = ", ".join(one or "a person" for one in protected.accepted_by)
    match protected.status:
        case None:
            pass
        case "unchanged":
            lines.append(f"protected files are unchanged: {named}")
        case "accepted":
            files = ", ".join(protected.accepted_files) or named
            lines.append(f"protected files changed, accepted by {who}: {files}")
        case _:
            lines.append(protected.detail or f"protected files are not verified: {named}")
    for one in made.changed_dependencies:
        where = f"iteration {one.iteration}" if one.iteration else "the run"
        lines.append(f"{one.path} changed in {where}; the check depends on it")
    return lines
