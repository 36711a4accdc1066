"""The status of a run as text: why it ended, where it would resume, and the next commands.

Paths in events count from 0 (`main.2`); people count from 1 (`iteration 3`).
"""

import shlex

from loopwright.kernel.bodies.repeat import is_at_cap
from loopwright.kernel.event_parts import HOME_BUDGET
from loopwright.kernel.events import (
    CheckVerdict,
    GateAnswered,
    RunReopened,
)
from loopwright.kernel.frames import (
    GateState,
    IterationOwner,
    RepeatBody,
    StepOwner,
)
from loopwright.kernel.limits import COST_UNKNOWN, used_up
from loopwright.kernel.reopened_runs import stopped_half_way, unfinished_places
from loopwright.kernel.state import State, cap
from loopwright.model.actions import Decision, ModelCycle, Repeat, StopRun
from loopwright.model.checks import Contains, leaves
from loopwright.ports.headline import status_of
from loopwright.views.event_records import text_of
from loopwright.views.formats import PROTECT, cost_text, money, place_words, protect_words
from loopwright.views.summary import check_phrase

RESUMABLE = ("failed", "exhausted", "cancelled")
"""How a run must have ended to be resumed."""


def capped_loops(state: State) -> list[RepeatBody]:
    """The loops that ended because they had made all their iterations."""
    bodies = [place.body for place in unfinished_places(state.root.body)]
    return [body for body in bodies if isinstance(body, RepeatBody) and is_at_cap(body)]


def is_stopped_by_plan(state: State) -> bool:
    """Whether a step of the definition stopped the run: it would do so again."""
    bodies = (place.body for place in unfinished_places(state.root.body))
    return any(isinstance(getattr(body, "action", None), StopRun) for body in bodies)


def next_iteration(body: RepeatBody) -> int:
    """The number of the iteration with which a loop continues, from 1."""
    numbers = [number for number in body.unfinished if number >= 0]
    return (min(numbers) if numbers else body.finished) + 1


def resume_point(state: State) -> str:
    """Where a run that has ended, or that was just resumed, continues: `iteration 3 of 5`, or its
    unfinished steps. Empty if nothing of it has started.
    """
    steps = state.root.body.unfinished
    if len(state.plan.steps) == 1 and steps:
        [owner] = steps.values()
        return _place_in(state, owner) or f"step {owner.step.id}"
    names = [_step_words(state, owner) for owner in steps.values()]
    return " and ".join(names)


def _step_words(state: State, owner: StepOwner) -> str:
    inside = _place_in(state, owner)
    return f"step {owner.step.id} ({inside})" if inside else f"step {owner.step.id}"


def _place_in(state: State, owner: StepOwner) -> str:
    """The iteration, turn or item of a step that is a loop; nothing for any other step."""
    body = owner.body
    if not isinstance(body, RepeatBody):
        return ""
    if body.action.each is not None:
        done = sum(one is not None and one.status == "completed" for one in body.items.results)
        return f"{done} items are kept" if done != 1 else "1 item is kept"
    most = cap(body)
    opening = state.reopenings.last
    if state.finished is None and opening is not None and opening.passes is not None:
        most = opening.passes
    what = "turn" if body.talk.answers_call else "iteration"
    return f"{what} {next_iteration(body)}{f' of {most}' if most else ''}"


def resumed_words(state: State, event: RunReopened) -> str:
    """How a run was resumed, from the state right after it: `resumed at iteration 3 of 5`."""
    by = f" by {event.by}" if event.by else ""
    if event.mode == "restart":
        loop = state.plan_index.loop if len(state.plan.steps) == 1 else None
        where = "at iteration 1" if loop is not None and loop.each is None else "at its first step"
        return f"{state.run} restarted {where}{by}{_spent(state)}"
    point = resume_point(state)
    if not point and event.mode and len(state.plan.steps) == 1:
        point = "iteration 1"  # of a loop that failed at its cap
    return f"{state.run} resumed{f' at {point}' if point else ''}{by}{_spent(state)}"


def _spent(state: State) -> str:
    """` (spent $0.40 of $5.00)`, if money was spent or is limited."""
    limit, used = state.plan.limits.usd, state.usage
    if limit is None and not used.usd:
        return ""
    if used.unpriced and not used.usd:
        return f" (spent an unknown amount; limit {money(limit or 0)})"
    spent = cost_text(used.usd, used.unpriced)
    return f" (spent {spent}{f' of {money(limit)}' if limit is not None else ''})"


def spent_budget(state: State) -> str:
    """Which budget of the run, or of a place that has work left, is used up; empty if none is."""
    words = used_up(state.plan.limits, state.root.spent)
    return words or spent_inside(state)


def spent_inside(state: State) -> str:
    """The same for the places inside the run alone."""
    for place in unfinished_places(state.root.body):
        step = used_up(place.step.limits, place.spent) if isinstance(place, StepOwner) else None
        body = place.body
        loop = used_up(body.action.limits, body.spent) if isinstance(body, RepeatBody) else None
        if step or loop:
            where = place_words(place.path)
            return f"{step or loop}{f' in {where}' if where else ''}"
    return ""


def resume_command(state: State) -> str:
    """The command that resumes a run that has ended, with the flag that it needs."""
    more = max((f" --max {2 * body.finished}" for body in capped_loops(state)), default="")
    limits = state.plan.limits
    if spent_budget(state):
        over_tokens = limits.tokens is not None and state.root.spent.tokens >= limits.tokens
        amount = f"tokens={2 * state.root.spent.tokens}" if over_tokens else _more_usd(state)
        more += f" --budget {amount}"
    elif limits.wall_ms is not None and _met_deadline(state):
        more += f" --time {duration_text(2 * limits.wall_ms)}"
    if _met_unknown_cost(state):
        more += " --allow-unknown-cost"
    return f"loopwright resume {state.run}{more}"


def resume_hint(state: State) -> str:
    """The same for a run that can be resumed; empty for any other."""
    ended = state.finished
    if ended is None or ended.outcome not in RESUMABLE or is_stopped_by_plan(state):
        return ""
    return restore_command(state) or resume_command(state)


def restore_command(state: State) -> str:
    """The command that writes the newest recorded files of a run that ended because its workspace
    is gone: it cannot be resumed without them.
    """
    ended, known = state.finished, state.snapshots
    gone = ended is not None and ended.error is not None and ended.error.type == "workspace_gone"
    if not gone or not known.last:
        return ""
    wanted = "0" if known.last == known.first else known.last
    return f"loopwright restore {state.run} {wanted} --to DIR"


def resume_note(state: State) -> str:
    """What the command for resuming a run does, and when it can succeed."""
    if restore_command(state):
        return "writes the files of its newest snapshot, since its workspace is gone"
    if is_stopped_by_shared_budget(state):
        return (
            "continues it once the budget of all runs allows more: wait for the next day (UTC), or "
            "raise [budget] in the settings"
        )
    return "continues it"


def is_stopped_by_shared_budget(state: State) -> bool:
    """Whether what all runs may use together ended a run."""
    return state.finished is not None and state.finished.reason == HOME_BUDGET


def _met_unknown_cost(state: State) -> bool:
    """Whether a run failed because a limit in USD cannot be enforced for one of its agents."""
    error = state.finished.error if state.finished is not None else None
    return error is not None and error.detail.startswith(COST_UNKNOWN) and not state.plan.uncovered


def _met_deadline(state: State) -> bool:
    return state.finished is not None and state.finished.reason == "deadline"


def duration_text(ms: int) -> str:
    """A duration in the format of `--time`: `90s`, `5m`, `2h`."""
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if ms >= size and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"


def _more_usd(state: State) -> str:
    most = max(state.plan.limits.usd or 0.0, state.root.spent.usd)
    return f"usd={max(0.01, round(2 * most, 2)):g}"


COQUI = "coqui"  # its loops are retried stage by stage
_WITH = {" REASON": " with a reason", " TEXT": " with a text"}


def capped_words(state: State) -> str:
    """How a run whose loop stopped at its cap can continue; empty for any other run."""
    capped = capped_loops(state) if status_of(state) in RESUMABLE else []
    if not capped:
        return ""
    body = max(capped, key=lambda one: one.finished)
    what = "turn" if isinstance(body.action.body, ModelCycle) else "iteration"
    most = cap(body)
    of = f"{body.finished} of {most} {what}{'' if most == 1 else 's'}"
    return f"stopped after {of}; `{resume_command(state)}` continues it"


def goal(state: State) -> str:
    """The purpose of the run."""
    started = state.started
    if started is not None and started.message:
        return started.message if isinstance(started.message, str) else started.message.head
    written = "".join(getattr(part, "text", "…") for part in state.plan.message)
    return written or state.plan.description or state.plan.name


def decided(event: GateAnswered) -> str:
    """A decision as text: `approve with other arguments`."""
    edited = " with other arguments" if event.arguments is not None else ""
    return f"{event.decision}{edited}{', and from now on' if event.remember else ''}"


def check_label(state: State, path: str, index: int, fallback: str) -> str:
    """A check by what it asks, for people: `command: pytest -q`."""
    loop = _loop_at(state, path)
    return fallback if loop is None else _label(loop, index) or fallback


def check_result(state: State, event: CheckVerdict) -> str:
    """A verdict that is not folded yet, as text: "`pytest -q` failed (exit code 1)"."""
    if event.check == PROTECT:
        return protect_words(event.verdict, text_of(event.evidence))
    loop, owner = _loop_at(state, event.path), state.owners.get(event.path)
    found = leaves(loop.until) if loop is not None else ()
    leaf = found[event.index] if event.index < len(found) else None
    answer = owner.checks.answer if isinstance(owner, IterationOwner) else None
    return check_phrase(
        leaf,
        event.check,
        event.verdict,
        code=answer.code if answer is not None else None,
        by=verdict_by(state, event),
        quoted=True,
    )


def verdict_by(state: State, event: CheckVerdict) -> str:
    """Who gave a verdict that is not folded yet."""
    owner = state.owners.get(event.path)
    gate = owner.gate if isinstance(owner, IterationOwner) else None
    return gate.by if gate is not None else event.by


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
    """The text that a decision requires."""
    if verb == "reject" and gate.call is not None:
        return " REASON"
    return " TEXT" if verb == "continue" else ""


def answering(gate: GateState, suffix: str = "") -> str:
    """How a gate can be answered, in one line: a command, which ends with the suffix, and what else
    it takes.
    """
    first, *others = gate.answers
    also = [_in_words(verb, gate) for verb in others]
    if gate.call is not None:
        also.insert(0, "with other arguments: --arguments JSON")
    command = f"loopwright {first} {gate.gate}{_words_for(first, gate)}{suffix}"
    return f"{command}   ({', '.join(f'or {one}' for one in also)})" if also else command


def _in_words(verb: Decision, gate: GateState) -> str:
    return f"{verb}{_WITH.get(_words_for(verb, gate), '')}"


def next_commands(state: State) -> list[str]:
    """The possible next actions of a person for a run."""
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
    again = ["loopwright spend"] if is_stopped_by_shared_budget(state) else []
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
