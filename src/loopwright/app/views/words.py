"""A run in words: how it stands, why it ended, what can be done next."""

import shlex

from loopwright.app.views.check_words import check_phrase
from loopwright.app.views.iterations import most_passes as most_passes
from loopwright.app.views.iterations import passes_text as passes_text
from loopwright.app.views.resume_words import (
    RESUMABLE,
    capped_loops,
    is_stopped_by_home_budget,
    resume_command,
    resume_hint,
)
from loopwright.app.views.signs import PROTECT, protect_words
from loopwright.app.views.summary import ReadText, seen_text
from loopwright.app.views.wire import text_of
from loopwright.kernel.facts import CheckVerdict, EffectDone, EffectFailed, GateAnswered
from loopwright.kernel.frames import GateState, PassOwner, RepeatBody
from loopwright.kernel.limits import cap
from loopwright.kernel.reopening import stopped_half_way
from loopwright.kernel.retry import SHORTAGE
from loopwright.kernel.state import State
from loopwright.model.actions import Cycle, Decision, Repeat
from loopwright.model.checks import Contains, leaves
from loopwright.runtime.headline import status_of

COQUI = "coqui"  # its loops are retried stage by stage
_WITH = {" REASON": " with a reason", " TEXT": " with a text"}


def capped_words(state: State) -> str:
    """How a run goes on whose loop stopped at its cap; nothing for any other run."""
    capped = capped_loops(state) if status_of(state) in RESUMABLE else []
    if not capped:
        return ""
    body = max(capped, key=lambda one: one.finished)
    what = "turn" if isinstance(body.action.body, Cycle) else "iteration"
    most = cap(body)
    of = f"{body.finished} of {most} {what}{'' if most == 1 else 's'}"
    return f"stopped after {of}; `{resume_command(state)}` continues it"


def goal(state: State) -> str:
    """What the run is for."""
    started = state.started
    if started is not None and started.message:
        return started.message if isinstance(started.message, str) else started.message.head
    written = "".join(getattr(part, "text", "…") for part in state.plan.message)
    return written or state.plan.description or state.plan.name


def waits_for(state: State) -> str | None:
    """What a run waits for that neither an agent nor a person gives it: `waiting for file
    descriptors`, or `rate limited`.
    """
    for effect in state.timers:
        pending = state.pending.get(effect)
        if pending is None or pending.purpose not in ("backoff", "park"):
            continue
        answer = getattr(pending.owner, "check_answer", None) or getattr(
            pending.owner.body, "failure", None
        )
        if not isinstance(answer, EffectFailed):
            continue
        if answer.error.type == SHORTAGE:
            return answer.error.detail.partition(":")[0]
        if answer.error.type == "rate_limited":
            return "rate limited"
    return None


def seen_output(state: State, fact: EffectDone | EffectFailed, read: ReadText) -> str:
    """What people see of an answer: what it says to its loop alone is left out."""
    text, owner = read(fact.output), state.owners.get(fact.path)
    return text if owner is None else seen_text(owner, text)


def decided(fact: GateAnswered) -> str:
    """A decision in words: `approve with other arguments`."""
    edited = " with other arguments" if fact.arguments is not None else ""
    return f"{fact.decision}{edited}{', and from now on' if fact.remember else ''}"


def check_label(state: State, path: str, index: int, fallback: str) -> str:
    """A check by what it asks, for people: `command: pytest -q`."""
    loop = _loop_at(state, path)
    return fallback if loop is None else _label(loop, index) or fallback


def check_result(state: State, fact: CheckVerdict) -> str:
    """A verdict that is not folded yet, in words: "`pytest -q` failed (exit code 1)"."""
    if fact.check == PROTECT:
        return protect_words(fact.verdict, text_of(fact.evidence))
    loop, owner = _loop_at(state, fact.path), state.owners.get(fact.path)
    found = leaves(loop.until) if loop is not None else ()
    leaf = found[fact.index] if fact.index < len(found) else None
    answer = owner.check_answer if isinstance(owner, PassOwner) else None
    return check_phrase(
        leaf,
        fact.check,
        fact.verdict,
        code=answer.code if answer is not None else None,
        by=verdict_by(state, fact),
        quoted=True,
    )


def verdict_by(state: State, fact: CheckVerdict) -> str:
    """Who gave a verdict that is not folded yet."""
    owner = state.owners.get(fact.path)
    gate = owner.gate if isinstance(owner, PassOwner) else None
    return gate.by if gate is not None else fact.by


def _loop_at(state: State, path: str) -> Repeat | None:
    owner = state.owners.get(path.rpartition(".")[0])
    body = owner.body if owner is not None else None
    return body.action if isinstance(body, RepeatBody) else None


def _label(loop: Repeat, index: int) -> str:
    found = leaves(loop.until)
    if index >= len(found):
        return ""
    leaf = found[index]
    name = str(type(leaf).__struct_config__.tag)
    argv = getattr(leaf, "argv", None)
    if argv:
        return f"{name}: {shlex.join(argv)}"
    what = leaf.text if isinstance(leaf, Contains) else getattr(leaf, "pattern", "")
    detail = " ".join(str(what or getattr(leaf, "word", "")).split())
    return f"{name}: {detail}" if detail else name


def _words_for(verb: Decision, gate: GateState) -> str:
    """What must be said with a decision."""
    if verb == "reject" and gate.call is not None:
        return " REASON"
    return " TEXT" if verb == "continue" else ""


def answering(gate: GateState) -> str:
    """How a gate can be answered, in one line: a command, and what else it takes."""
    first, *others = gate.answers
    also = [_in_words(verb, gate) for verb in others]
    if gate.call is not None:
        also.insert(0, "with other arguments: --arguments JSON")
    command = f"loopwright {first} {gate.gate}{_words_for(first, gate)}"
    return f"{command}   ({', '.join(f'or {one}' for one in also)})" if also else command


def _in_words(verb: Decision, gate: GateState) -> str:
    return f"{verb}{_WITH.get(_words_for(verb, gate), '')}"


def next_commands(state: State) -> list[str]:
    """What a person may want to do with a run now."""
    status, run = status_of(state), state.run
    if status == "waiting":
        return [
            f"loopwright {verb} {gate.gate}{_words_for(verb, gate)}"
            for gate in state.gates.values()
            for verb in gate.answers
        ]
    if status == "paused":
        return [f"loopwright resume {run}", f"loopwright stop {run}"]
    if status == "running":
        return [f"loopwright watch {run}", f"loopwright pause {run}", f"loopwright stop {run}"]
    again = ["loopwright spend"] if is_stopped_by_home_budget(state) else []
    again += [words] if (words := resume_hint(state)) else []
    return [f"loopwright logs {run}", *_diff_command(state), *_stage_commands(state), *again]


def _diff_command(state: State) -> list[str]:
    latest = state.snapshots.latest
    changed = latest is not None and latest.total.files
    return [f"loopwright diff {state.run}"] if changed else []


def _stage_commands(state: State) -> list[str]:
    """Of a loop of roles that stopped at a stage: try that again, or leave it out."""
    if state.plan.dialect != COQUI or status_of(state) not in ("failed", "exhausted"):
        return []
    half = stopped_half_way(state).values()
    skip = [f"loopwright skip {state.run}"] if any(one.stuck is not None for one in half) else []
    return [f"loopwright retry {state.run} NOTE", *skip] if half else []
