"""What a loop keeps of a pass that has ended: its result, its verdicts, and one line."""

import msgspec

from loopwright.kernel import turns
from loopwright.kernel.answers import note_gate
from loopwright.kernel.frames import (
    CycleBody,
    ItemResult,
    PassOwner,
    RepeatBody,
    Result,
    StepsBody,
)
from loopwright.kernel.learning import learning_of, outcome_line
from loopwright.model.memory import ProgressLog, StageOutputs
from loopwright.model.record import Text

LEARNINGS_KEPT = 1_000
"""How many learnings a loop that shows only the most recent ones keeps at least."""


def settle_item(repeat: RepeatBody, number: int, ended: Result) -> None:
    while len(repeat.item_results) <= number:
        repeat.item_results.append(None)
    repeat.item_results[number] = ItemResult(
        status=ended.status, output=ended.output, result=ended.result, error=ended.error
    )
    if ended.status != "completed" and repeat.spoiled is None:
        repeat.spoiled = ended
    repeat.last = ended


def settle_pass(repeat: RepeatBody, owner: PassOwner, ended: Result, *, done: bool) -> None:
    if ended.status == "cancelled":
        # Ended from outside, it has no result: what the pass before left stays the last one.
        kept = repeat.last or Result("cancelled")
        repeat.last = msgspec.structs.replace(ended, output=kept.output, result=kept.result)
        return
    same = repeat.last is not None and ended.output == repeat.last.output
    repeat.identical = repeat.identical + 1 if same else 1
    broken = bool(owner.notes) and any(note.verdict == "error" for note in owner.notes)
    repeat.broken = repeat.broken + 1 if broken else 0
    repeat.last = ended
    repeat.last_done = done
    repeat.last_checks = owner.notes
    gate = owner.gate or owner.heard
    repeat.unmet = 0 if gate is not None else repeat.unmet + 1
    repeat.feedback = gate.text if gate is not None and gate.decision else ""
    note_gate(repeat, owner, done=done)
    memory = repeat.action.memory
    if type(memory) is ProgressLog or repeat.action.output == "learning":
        size = memory.chars if type(memory) is ProgressLog else 300
        repeat.learnings.append(learning_of(ended.output, owner.iteration, size))
        if type(memory) is ProgressLog and memory.total:
            _forget(repeat)
    elif type(memory) is StageOutputs:
        repeat.learnings.append(outcome_line(ended.output, _decided(owner, done=done)))
        _forget(repeat)
    body = owner.body
    if type(body) is CycleBody:
        turns.remember_turn(repeat, body, done=done)
    repeat.last_steps = dict(body.results) if type(body) is StepsBody else {}
    if repeat.action.output == "all":
        repeat.outputs.append(_said_in(owner, ended))


def _forget(repeat: RepeatBody) -> None:
    """Drop learnings that no prompt shows any more; a new list, since a kept loop may share it."""
    if len(repeat.learnings) >= 2 * LEARNINGS_KEPT:
        repeat.learnings = repeat.learnings[LEARNINGS_KEPT:]
        repeat.forgotten += LEARNINGS_KEPT


def _decided(owner: PassOwner, *, done: bool) -> str:
    """What the checks made of a pass, in a word."""
    names = {note.check for note in owner.notes}
    if "approval" in names:
        return "approved" if done else "not approved"
    return ("goal reached" if done else "goal not reached") if "goal" in names else ""


def _said_in(owner: PassOwner, ended: Result) -> list[tuple[str, Text]]:
    """Everything that was said in a pass, with the step or the judge that said it."""
    if isinstance(owner.body, StepsBody):
        results = owner.body.results
        order = [step.id for step in owner.body.index.action.steps]
        said = [(name, results[name].output) for name in order if name in results]
    else:
        said = [("", ended.output)]
    judged = [("judge", note.evidence) for note in owner.notes if note.check == "judge"]
    return [(name, text) for name, text in [*said, *judged] if text]
