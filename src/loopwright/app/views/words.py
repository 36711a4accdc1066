"""A run in words: how it stands, why it ended, what can be done next."""

from loopwright.app.dialects import OF_LOOPS
from loopwright.app.views.summary import ReadText, current_loop, iterations, seen_text
from loopwright.kernel.facts import EffectDone, EffectFailed, GateAnswered
from loopwright.kernel.frames import GateState, RepeatBody
from loopwright.kernel.limits import cap
from loopwright.kernel.reopening import REOPENED, at_cap, stopped_half_way
from loopwright.kernel.state import State
from loopwright.model.actions import Decision, Repeat
from loopwright.model.checks import AllOf, AnyOf, Approval, Check, Contains, leaves
from loopwright.model.plan import only_repeat
from loopwright.runtime.headline import status_of

_DONE = {
    "signal": "the agent gave its signal",
    "regex": "the output matches the pattern",
    "contains": "the output has the text in it",
    "command": "the check command succeeded",
    "schema": "the result fits its schema",
    "script": "the check script succeeded",
    "judge": "the judge said done",
    "goal": "the goal is met",
    "person": "a person approved",
    "expr": "the expression holds",
    "approved": "a person approved",
    "items": "every item was gone through",
    "max_iterations": "all passes were made",
}
_REVIEWED = "the reviewer approved"
_LIMITS = {
    "max_iterations": "Stopped at the cap",
    "budget": "Stopped by the budget",
    "home_budget": "Stopped by the budget of all runs here",
    "deadline": "Stopped by the time limit",
    "stalled": "Stopped: the passes no longer change anything",
}
_FAILED = {
    "check_broken": "Failed: the check could not be asked",
    "rejected": "Failed: a person rejected it",
    "max_iterations": "Failed at the cap",
}
_WITH = {" REASON": " with a reason", " TEXT": " with a text"}


def headline(state: State, *, left_behind: bool = False) -> str:
    """One sentence about a run; `left_behind` says that it should move and nobody moves it."""
    status, passes = status_of(state), _passes(state)
    if status == "waiting":
        count = len(state.gates)
        what = "a person's decision" if count == 1 else f"{count} decisions"
        return f"Waits for {what}{passes}"
    if status == "paused":
        return f"Paused{passes}"
    if status == "running":
        return f"{'Left behind' if left_behind else 'Under way'}{passes}"
    return _ended(state, passes)


def _ended(state: State, passes: str) -> str:
    finished = state.finished
    assert finished is not None
    reason, detail = finished.reason, finished.error.detail if finished.error else ""
    match finished.outcome:
        case "completed":
            why = _why_done(state, reason)
            return f"Completed{passes}{f': {why}' if why else ''}"
        case "exhausted":
            return f"{_LIMITS.get(reason, f'Stopped by a limit ({reason})')}{passes}"
        case "failed":
            known = _FAILED.get(reason, "Failed")
            return f"{known}{passes}{f': {detail}' if detail else ''}"
        case "cancelled":
            return f"Stopped{passes}{'' if reason == 'stopped' else f': {reason}'}"


def _why_done(state: State, reason: str) -> str | None:
    """Why a run is done. Of several checks that had to hold together, all are told."""
    loop = only_repeat(state.plan)
    if reason == "approved" and _is_reviewed(state):
        return _REVIEWED
    if loop is None or not isinstance(loop.until, AllOf) or reason not in _DONE:
        return _DONE.get(reason)
    tags = (str(type(leaf).__struct_config__.tag) for leaf in leaves(loop.until))
    parts = dict.fromkeys(_DONE.get(tag, f"the check {tag} passed") for tag in tags)
    return " and ".join(parts) if _is_flat(loop.until) else _DONE[reason]


def _is_flat(check: Check) -> bool:
    """Whether nothing inside is a choice, so that every part has held."""
    if isinstance(check, AllOf):
        return all(_is_flat(part) for part in check.parts)
    return not isinstance(check, AnyOf)


def _is_reviewed(state: State) -> bool:
    """Whether nobody but the reviewing stage of a loop can have approved."""
    loop = only_repeat(state.plan)
    if loop is None or loop.gate is not None:
        return False
    return isinstance(loop.until, Approval)


def _passes(state: State) -> str:
    """` after 3 of 10 passes`, for a run that is one loop; of a list, its items."""
    made, most, loop = iterations(state), most_passes(state), only_repeat(state.plan)
    if loop is None:
        return ""
    if loop.each is not None:
        items = f"{made} item{'' if made == 1 else 's'}"
        if state.finished is not None:
            return f" after {items}" if made or not state.finished.error else ""
        return f" with {items} begun" if made else ""
    if state.finished is None:
        return f" in pass {made}{f' of {most}' if most else ''}" if made else ""
    of = f" of {most}" if most else ""
    return f" after {made}{of} pass{'' if (most or made) == 1 else 'es'}"


def most_passes(state: State) -> int | None:
    """How many passes the loop of a run may make, with those that a person granted."""
    running = current_loop(state)
    if running is not None:
        return cap(running)
    loop = only_repeat(state.plan)
    capped = at_cap(state)
    if loop is not None and len(capped) == 1:
        return next(iter(capped.values())).most
    most = loop.max if loop is not None else None
    if most is not None and state.passes is not None:
        most = state.passes or None
    # An ended loop has no body any more that knows what was granted to it.
    return None if most is None else max(most, state.raised or 0, iterations(state))


def capped_words(state: State) -> str:
    """How a run goes on whose loop stopped at its cap; nothing for any other run."""
    capped = at_cap(state) if status_of(state) in REOPENED else {}
    if not capped:
        return ""
    kept = max(capped.values(), key=lambda one: one.passes)
    what = "turn" if kept.talk else "pass"
    plural = "" if kept.most == 1 else "s" if kept.talk else "es"
    command = f"loopwright resume {state.run} --max {2 * kept.passes}"
    return f"stopped after {kept.passes} of {kept.most} {what}{plural}; `{command}` goes on"


def goal(state: State) -> str:
    """What the run is for."""
    started = state.started
    if started is not None and started.message:
        return started.message if isinstance(started.message, str) else started.message.head
    written = "".join(getattr(part, "text", "…") for part in state.plan.message)
    return written or state.plan.description or state.plan.name


def passes_text(state: State) -> str:
    """`3/10`, or nothing for a run without a single loop."""
    if only_repeat(state.plan) is None:
        return ""
    most = most_passes(state)
    return f"{iterations(state)}/{most}" if most else str(iterations(state))


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
    owner = state.owners.get(path.rpartition(".")[0])
    body = owner.body if owner is not None else None
    if not isinstance(body, RepeatBody):
        return fallback
    return _label(body.action, index) or fallback


def _label(loop: Repeat, index: int) -> str:
    found = leaves(loop.until)
    if index >= len(found):
        return ""
    leaf = found[index]
    name = str(type(leaf).__struct_config__.tag)
    argv = getattr(leaf, "argv", None)
    if argv:
        return f"{name}: {' '.join(argv)}"
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
        return [f"loopwright logs {run} -f", f"loopwright pause {run}", f"loopwright stop {run}"]
    more = max((f" --max {2 * kept.passes}" for kept in at_cap(state).values()), default="")
    again = [f"loopwright resume {run}{more}"] if status in REOPENED else []
    return [f"loopwright logs {run}", *_stage_commands(state), *again]


def _stage_commands(state: State) -> list[str]:
    """Of a loop of roles that stopped at a stage: try that again, or leave it out."""
    if state.plan.dialect != OF_LOOPS or status_of(state) not in REOPENED:
        return []
    half = stopped_half_way(state).values()
    skip = [f"loopwright skip {state.run}"] if any(one.stuck is not None for one in half) else []
    return [f"loopwright retry {state.run} NOTE", *skip] if half else []
