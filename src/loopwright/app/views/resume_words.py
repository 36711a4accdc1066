"""Where a run continues when it is resumed, and the commands that resume it, in words."""

from loopwright.app.views.place_words import place_words
from loopwright.app.views.usage import cost_text, money
from loopwright.kernel.facts import RunReopened
from loopwright.kernel.frames import RepeatBody, StepOwner, has_turns
from loopwright.kernel.limits import COST_UNKNOWN, cap, used_up
from loopwright.kernel.reasons import HOME_BUDGET
from loopwright.kernel.resumption import is_at_cap, unfinished_places
from loopwright.kernel.state import State
from loopwright.model.actions import Stop
from loopwright.model.plan import only_repeat

RESUMABLE = ("failed", "exhausted", "cancelled")
"""How a run must have ended to be resumed."""


def capped_loops(state: State) -> list[RepeatBody]:
    """The loops that ended because they had made all their iterations."""
    bodies = [place.body for place in unfinished_places(state.root.body)]
    return [body for body in bodies if isinstance(body, RepeatBody) and is_at_cap(body)]


def is_stopped_by_plan(state: State) -> bool:
    """Whether a step of the definition stopped the run: it would do so again."""
    bodies = (place.body for place in unfinished_places(state.root.body))
    return any(isinstance(getattr(body, "action", None), Stop) for body in bodies)


def next_iteration(body: RepeatBody) -> int:
    """The number of the iteration with which a loop continues, from 1."""
    numbers = [number for number in body.unfinished if number >= 0]
    return (min(numbers) if numbers else body.finished) + 1


def resume_point(state: State) -> str:
    """Where a run that has ended, or that was just resumed, continues: `iteration 3 of 5`, or its
    unfinished steps. Empty when nothing of it has begun.
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
        done = sum(one is not None and one.status == "completed" for one in body.item_results)
        return f"{done} items are kept" if done != 1 else "1 item is kept"
    most = cap(body)
    opening = state.opening
    if state.finished is None and opening is not None and opening.passes is not None:
        most = opening.passes
    what = "turn" if has_turns(body) else "iteration"
    return f"{what} {next_iteration(body)}{f' of {most}' if most else ''}"


def resumed_words(state: State, fact: RunReopened) -> str:
    """How a run was resumed, from the state right after it: `resumed at iteration 3 of 5`."""
    by = f" by {fact.by}" if fact.by else ""
    if fact.mode == "restart":
        loop = only_repeat(state.plan) if len(state.plan.steps) == 1 else None
        where = "at iteration 1" if loop is not None and loop.each is None else "at its first step"
        return f"{state.run} restarted {where}{by}{_spent(state)}"
    point = resume_point(state)
    if not point and fact.mode and len(state.plan.steps) == 1:
        point = "iteration 1"  # of a loop that failed at its cap
    return f"{state.run} resumed{f' at {point}' if point else ''}{by}{_spent(state)}"


def _spent(state: State) -> str:
    """` (spent $0.40 of $5.00)`, where money was spent or is limited."""
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
    if is_stopped_by_home_budget(state):
        return (
            "continues it once the budget of all runs allows more: wait for the next day (UTC), or "
            "raise [budget] in the settings"
        )
    return "continues it"


def is_stopped_by_home_budget(state: State) -> bool:
    """Whether what all runs may use together ended a run."""
    return state.finished is not None and state.finished.reason == HOME_BUDGET


def _met_unknown_cost(state: State) -> bool:
    """Whether a run failed because a limit in USD cannot be enforced for one of its agents."""
    error = state.finished.error if state.finished is not None else None
    return error is not None and error.detail.startswith(COST_UNKNOWN) and not state.plan.uncovered


def _met_deadline(state: State) -> bool:
    return state.finished is not None and state.finished.reason == "deadline"


def duration_text(ms: int) -> str:
    """A duration as `--time` takes it: `90s`, `5m`, `2h`."""
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if ms >= size and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"


def _more_usd(state: State) -> str:
    most = max(state.plan.limits.usd or 0.0, state.root.spent.usd)
    return f"usd={max(0.01, round(2 * most, 2)):g}"
