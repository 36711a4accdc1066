"""Planted bugs: for each guard of the engine one version without it.

Most are edits of the text of a function, so that a guard that moves takes its planted bug along or
makes it fail loudly. The changed code takes the place of the old for as long as the test needs.
"""

from __future__ import annotations

import inspect
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from msgspec.structs import replace

from loopwright.engine.actor import Actor
from loopwright.gateway.turns import ModelTurns
from loopwright.kernel import checks, decide, effects, fold, iteration, limits, state
from loopwright.kernel.bodies import call, dispatch, history, steps
from loopwright.kernel.bodies import conversation as approvals
from loopwright.kernel.bodies import conversation as cycles
from loopwright.kernel.bodies import conversation as turns
from loopwright.operations.runs import Service
from loopwright.ports import Append, headline
from loopwright.prompts import conversation
from loopwright.stores.appends import PendingAppend, encode_append
from loopwright.stores.sqlite import tables
from loopwright.stores.sqlite.writer import GroupCommit, Writer
from tests.support.memory_log import MemoryLog

Old = Callable[..., Any]

for_good = ExitStack()


@dataclass(frozen=True)
class Mutant:
    """One guard taken away: by new text in place of old, or by another function."""

    function: Old
    old: str = ""
    new: str = ""
    instead: Old | None = None

    @contextmanager
    def planted(self) -> Iterator[None]:
        function = self.function
        assert isinstance(function, FunctionType)
        before = function.__code__
        changed = self.instead or self._edited()
        assert isinstance(changed, FunctionType)
        # Code runs with the names of the module that it is planted in.
        missing = changed.__globals__.keys() - function.__globals__.keys()
        function.__globals__.update({name: changed.__globals__[name] for name in missing})
        function.__code__ = changed.__code__
        try:
            yield
        finally:
            function.__code__ = before
            for name in missing:
                del function.__globals__[name]

    def _edited(self) -> Old:
        source = textwrap.dedent(inspect.getsource(self.function))
        name = self.function.__qualname__
        assert source.count(self.old) == 1, f"{name} has changed: plant its bug anew"
        names = dict(self.function.__globals__)
        exec(source.replace(self.old, self.new), names)  # noqa: S102 - a text of our own
        edited: Old = names[self.function.__name__]
        return edited


def apply(name: str) -> None:
    """Plant a bug in this process for good."""
    for_good.enter_context({**BEFORE_DEATH, **BEFORE_DEATH_WITH_TOOLS}[name].planted())


# -- those that an edit cannot make ----------------------------------------------------------------


def _commit_next_in_two(self: Any) -> None:
    """Events first; what lists show of them in a transaction of its own."""
    if not self._waiting:
        return
    entry = self._waiting.popleft()
    refusal = self._refusal(entry.append)
    if refusal is None:
        self._commit(stripped(entry, known=entry.append.expected > 0))
        self._deliver(lambda: MemoryLog._commit(self, rest_of(entry)))
    self._deliver(lambda: self._telling.tell([(entry, refusal)]))


def stripped(entry: PendingAppend, *, known: bool) -> PendingAppend:
    """An append without its views, as far as the store takes one."""
    bare = replace(entry.append, gates_opened=(), gates_closed=())
    return _as_pending(replace(bare, headline=None) if known else bare, entry.done)


def rest_of(entry: PendingAppend) -> PendingAppend:
    append: Append = replace(entry.append, events=(), blobs={})
    return _as_pending(append, entry.done)


def _as_pending(append: Append, done: Any) -> PendingAppend:
    count = len(append.events)
    return PendingAppend(append, done, count, encode_append(append) if count else b"")


def _write_in_two(self: Any, appends: Any) -> None:
    """The same for a file: two commits where there should be one."""
    if not appends:
        return
    entries = [entry for _, entry in appends]
    events = [stripped(entry, known=entry.append.expected > 0) for entry in entries]
    answers = self.ledger.transact(lambda db: GroupCommit(db, self.ledger).write(events))
    views = [
        rest_of(
            _as_pending(replace(entry.append, expected=entry.append.expected + entry.count), print)
        )
        for entry, answer in zip(entries, answers, strict=True)
        if answer is None
    ]
    self.ledger.transact(lambda db: GroupCommit(db, self.ledger).write(views))
    self._resolve(appends, answers)


def _write_after_telling(self: Any, appends: Any) -> None:
    """Says that it is durable, and only then makes it so."""
    if not appends:
        return
    entries = [entry for _, entry in appends]
    self._resolve(appends, [None] * len(entries))
    time.sleep(0.005)  # the news must be able to arrive
    self.ledger.transact(lambda db: GroupCommit(db, self.ledger).write(entries))


# -- the list --------------------------------------------------------------------------------------

IN_SIMULATION: dict[str, Mutant] = {
    "version check off": Mutant(
        MemoryLog._refusal, "if append.expected != version:", "if append.expected > 10**9:"
    ),
    "fence off": Mutant(
        MemoryLog._refusal,
        "if append.token is not None and (owner is None or owner.token != append.token):",
        "if append.expected > 10**9:",
    ),
    "events and views in two transactions": Mutant(
        MemoryLog._commit_next, instead=_commit_next_in_two
    ),
    "exclusive key off": Mutant(
        MemoryLog._refusal,
        "return appends.key_in_use_error(headline.key, name)",
        "return None",
    ),
    "gap in the numbers": Mutant(
        MemoryLog._commit,
        "first, last = run.version + 1, run",
        "first, last = run.version + 2, 1 + run",
    ),
    "cursor off by one": Mutant(MemoryLog.read, "if one.seq > after", "if one.seq > after + 1"),
    "runs of the living are taken": Mutant(
        tables.live_owners, "owner.token != claimant.token and alive(owner)", "False"
    ),
    "runs of the dead are not taken": Mutant(
        tables.live_owners,
        "owner.token != claimant.token and alive(owner)",
        "owner.token != claimant.token",
    ),
    "gate decided without compare-and-set": Mutant(
        Service.answer,
        "raise not_open(self.log, gate.gate)",
        "pass",
    ),
    "late answers accepted": Mutant(
        Actor._take_answers, "if event.effect in self.state.pending:", "if event is not None:"
    ),
    "effect begun before its request is durable": Mutant(
        Actor.step,
        "    self.busy = True\n",
        "    for event in batch:\n"
        "        if isinstance(event, EffectRequested) and event.effect in state.pending:\n"
        "            self._begin(state.pending[event.effect])\n"
        "    self.busy = True\n",
    ),
    "answers lost when an append is refused": Mutant(
        Actor._not_appended, "self.inbox = self._unsaved + self.inbox", "pass"
    ),
    "content lost when an append is refused": Mutant(
        Actor._not_appended, "self.texts.give_back(self._blobs)", "pass"
    ),
    "going on before the storage is back": Mutant(
        Actor._wait_for_storage, "self.busy = True", "self.busy = False"
    ),
    "timers early": Mutant(Actor._sleep, "if call.until <= clock", "if call.until - 900 <= clock"),
    "a failed try ends the pass": Mutant(
        call._ended,
        "if has_next_attempt(body, body.failure.error):",
        "if body.attempt > 10**9:",
    ),
    "a failed try counts as a pass": Mutant(
        call._failed,
        'return Result("failed", "error", output=failure.output or None, error=failure.error)',
        'return Result("completed", "done")',
    ),
    "cap off by one": Mutant(
        state.cap, "max + body.progress.extra", "max + body.progress.extra + 1"
    ),
    "budget ignored": Mutant(
        limits.used_up, "spent.tokens >= limits.tokens", "spent.tokens > 10**9"
    ),
    "failed calls cost nothing": Mutant(
        dispatch._agent_answered,
        "if event.usage is not None or pending.used is not None:",
        "if event.usage is not None and isinstance(event, EffectDone):",
    ),
    "what is pending stays open at a stop": Mutant(
        effects.withdraw,
        "if effect is None or effect not in state.pending:",
        "if state is not None:",
    ),
    "stop does not stop": Mutant(
        decide.decide, "if state.control.cancel is not None:", "if state.version < 0:"
    ),
    "no limit on calls at once": Mutant(
        state.is_full, "state.agents.calls >= state.plan.parallel", "state.version < 0"
    ),
    "a new try of a step forgets the run": Mutant(
        fold._step_retried,
        "if owner.inside != owner.path:\n        del state.owners[owner.inside]",
        'state.owners.pop("", None)',
    ),
    "one try of a step too many": Mutant(
        decide._begins_anew,
        "owner.tries - owner.first_try + 1 < retry.attempts",
        "owner.tries - owner.first_try < retry.attempts",
    ),
    "judges do not wait for a place": Mutant(
        iteration._ask_judge, "if has_to_wait(state, owner):", "if state.version < 0:"
    ),
    "a judge is asked until it answers": Mutant(
        iteration._asks_again,
        "tries >= JUDGE_TRIES",
        "owner.checks.tries >= 10",
    ),
    "work after the last rejection": Mutant(
        call.is_worked_on,
        "body.rejections < action.on_reject.attempts",
        "body.rejections <= action.on_reject.attempts",
    ),
    "steps begin whatever was before": Mutant(
        steps.next_events,
        "not _may_start(step, [body.results[need] for need in step.needs])",
        "state.version < 0",
    ),
    "one check of all is enough": Mutant(
        checks._weigh_all,
        'return ChecksDecision("fail") if failed else ChecksDecision("pass", reason)',
        'return ChecksDecision("pass", reason) if reason or not failed else ChecksDecision("fail")',
    ),
    "a person is not asked again": Mutant(
        call.note_answer, "body.gate = None", "body.answer = event"
    ),
    "an edit shows what it saw before": Mutant(Service.change_agent, '"unchanged"', '"waiting"'),
    "inbox keeps answered gates": Mutant(
        headline.gate_changes, "closed.append(closed_gate(state.run, event))", "pass"
    ),
}
"""Caught by the simulation."""

NEWS_LOST = Mutant(Actor.absorb, "self._look_again = True", "pass")
"""Caught by a definite order of events; by chance it takes thousands of seeds."""

BEFORE_DEATH: dict[str, Mutant] = {
    "events and views in two transactions": Mutant(Writer._write, instead=_write_in_two),
    "told before it is durable": Mutant(Writer._write, instead=_write_after_telling),
    "effect begun before its request is durable": IN_SIMULATION[
        "effect begun before its request is durable"
    ],
}
"""Caught by the kill walk."""

IN_CONVERSATIONS: dict[str, Mutant] = {
    "nothing is held": Mutant(
        approvals.approval_reason, "match rule_for(call.tool, rules):", 'match "never":'
    ),
    "paths that nobody knows are free": Mutant(
        approvals.approval_reason,
        'case "protected_paths" if call.paths is None:',
        'case "protected_paths" if call.protected and call.paths is None:',
    ),
    "short names fall under no rule": Mutant(
        approvals.rule_for, "if is_rule_for(name, tool)", "if name == tool"
    ),
    "a rejected call is run": Mutant(
        turns.decided, 'if event.decision != "approve":', 'if event.decision == "continue":'
    ),
    "a held call does not wait": Mutant(
        cycles._decide_turn,
        "elif not note.problem and note.tool != SUBMIT:",
        "if not note.problem and note.tool != SUBMIT:",
    ),
    "a held call is asked about by nobody": Mutant(
        cycles._decide_turn,
        "events.append(_ask(state, body, number, note, services))",
        "pass",
    ),
    "every approval is for good": Mutant(turns.decided, "if event.remember:", "if event.at:"),
    "too much is remembered": Mutant(
        turns.decided,
        "state.agents.remembered.add(note.tool)",
        "state.agents.remembered.update(one.tool for one in body.turn.calls)",
    ),
    "arguments of a person are ignored": Mutant(
        turns.decided,
        "note.arguments if event.arguments is None else event.arguments",
        "note.arguments",
    ),
    "a call with a problem is run": Mutant(
        cycles._decide_turn,
        "elif not note.problem and note.tool != SUBMIT:",
        "elif note.tool != SUBMIT:",
    ),
    "the last result that is handed in counts": Mutant(
        turns.turn_taken,
        "elif note.tool == SUBMIT and body.submitted is None:",
        "elif note.tool == SUBMIT:",
    ),
    "a turn ends before its tools": Mutant(
        cycles.outcome,
        "if len(body.answers) < len(body.turn.calls):",
        "if not body.answers and body.turn.calls:",
    ),
    "a cut parts a call from its result": Mutant(
        history._middle, "turns[-KEPT_TURNS] if", "turns[-KEPT_TURNS] + 1 if"
    ),
    "a cut that changes nothing is noted": Mutant(
        cycles._cut_after, "(one.dropped or one.trimmed or overflow)", "repeat.talk.history"
    ),
    "it is cut for as long as it does not fit": Mutant(
        cycles._cut_after, "not body.shortening.overflowed if overflow", "True if overflow"
    ),
    "the task is not first": Mutant(
        conversation.converse,
        "[*before, *seed.messages, *since]",
        "[*before, *since, *seed.messages]",
    ),
    "a turn that says nothing is remembered": Mutant(
        turns.note_turn, "and (body.answer.output or body.turn.calls)", ""
    ),
    "models do not wait for a place": Mutant(
        cycles.next_events, "if has_to_wait(state, body.owner):", "if state.version < 0:"
    ),
    "a model is asked again without a wait": Mutant(
        cycles.next_events, "and body.backoff < body.attempt:", "and state.version < 0:"
    ),
    "tools stay open at a stop": Mutant(
        cycles.close, "for effect in body.asked.values():", "for effect in ():"
    ),
    "questions about tools stay open at a stop": Mutant(
        cycles.close, "for gate in body.gates.values():", "for gate in ():"
    ),
    "a tool is begun again as if it were new": Mutant(
        Actor.perform, "again=again and effect not in mine", "again=False"
    ),
    "a new tool is taken for one that was begun": Mutant(
        Actor.perform, "again=again and effect not in mine", "again=again"
    ),
}
"""Caught by the simulation with chat models."""

BEFORE_DEATH_WITH_TOOLS: dict[str, Mutant] = {
    "a tool that must not be repeated is": Mutant(
        ModelTurns._tool, "if job.again and not tools.repeatable(call.tool):", "if job.run == '':"
    ),
    "a new tool is taken for one that was begun": IN_CONVERSATIONS[
        "a new tool is taken for one that was begun"
    ],
    "nothing is repeated": Mutant(
        ModelTurns._tool, "if job.again and not tools.repeatable(call.tool):", "if job.again:"
    ),
    "a rejected call is run": IN_CONVERSATIONS["a rejected call is run"],
}
"""Caught by the kill walk with chat models and real tools."""
