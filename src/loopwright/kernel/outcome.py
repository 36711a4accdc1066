"""Outcome: how a body has ended, read off its frame, or None while it is under way.

Functions of the state alone: asking twice gives the same answer, and a crash between two facts
changes nothing, because what is due is always recomputed from what is there.
"""

from collections.abc import Iterator
from typing import assert_never

import msgspec

from loopwright.kernel.cycles import cycle_outcome
from loopwright.kernel.each import each_outcome
from loopwright.kernel.facts import EffectDone, EffectFailed, Failure
from loopwright.kernel.frames import (
    Body,
    CycleBody,
    LeafBody,
    RepeatBody,
    Result,
    StepsBody,
    has_turns,
    passes_made,
)
from loopwright.kernel.graph_outcome import steps_outcome
from loopwright.kernel.limits import (
    cap,
    ended_by_budget,
    is_cut_off,
    loop_over_budget,
    out_of_time,
    over_budget,
    stalled,
)
from loopwright.kernel.reasons import HOME_BUDGET
from loopwright.kernel.state import Senses, State, is_full
from loopwright.kernel.texts import missing_value
from loopwright.kernel.trying import goes_on
from loopwright.model.actions import Action, AskPerson, CallAgent, FailStep, RunScript, Wait
from loopwright.model.checks import Expr, Goal, Judge, Signal, leaves
from loopwright.model.record import JsonValue, Text

MAX_PARALLEL_ITEMS = 100
"""The most passes over items that are under way at once when the definition names no number."""


_DETAIL_CHARS = 500
NO_ANSWER = Failure("empty_answer", "the agent answered with nothing at all")


def outcome(state: State, body: Body, senses: Senses) -> Result | None:
    """How a body has ended, or None."""
    if type(body) is LeafBody:
        return leaf_outcome(state, body, senses) or _unable(state, body, senses)
    if type(body) is RepeatBody:
        if body.action.each is not None:
            return each_outcome(state, body, senses)
        return repeat_outcome(state, body, senses)
    if type(body) is StepsBody:
        return steps_outcome(body, senses)
    assert type(body) is CycleBody
    return cycle_outcome(state, body)


def leaf_output(body: LeafBody | CycleBody) -> tuple[Text | None, Text | None]:
    """Output and structured result of a single call, also of one that failed half-way."""
    if type(body) is CycleBody:
        turn = body.answer or body.failure
        return ((turn.output or body.submitted) if turn is not None else None), body.submitted
    assert type(body) is LeafBody
    if type(body.action) is AskPerson:
        said = _gate_outcome(body)
        return (said.output if said is not None else None), None
    if body.answer is not None:
        return body.answer.output, body.answer.result
    if body.failure is not None:
        return body.failure.output, None
    return None, None


# -- a single call ---------------------------------------------------------------------------------


def leaf_outcome(state: State, body: LeafBody, senses: Senses) -> Result | None:
    if body.answer is not None:
        return _answered(body.action, body.answer, senses)
    if body.pending is not None:
        return None
    if type(body.action) is AskPerson:
        return _gate_outcome(body) or _rework_outcome(state, body, body.action)
    if body.failure is not None:
        if body.failure.error.outer:
            return ended_by_budget(body.failure)
        if goes_on(body, body.failure.error):
            return _budget_outcome(state, body)
        if _ended_by_silence(body):
            return Result("completed", "idle_timeout", output=body.failure.output)
        if _is_left_out(body):
            return Result("skipped", "timeout", error=body.failure.error)
        return _failed(body.failure)
    return _budget_outcome(state, body)


def _answered(action: Action, answer: EffectDone, senses: Senses) -> Result:
    if says_nothing(action, answer):
        return Result("failed", "error", error=NO_ANSWER)
    if type(action) is RunScript and action.schema is not None:
        return _checked(action.schema, answer.output, senses)
    said = answer.output
    if type(action) is Wait and action.output is not None:
        said = action.output
    return Result("completed", "done", output=said, result=answer.result)


def _checked(schema: dict[str, JsonValue], output: Text | None, senses: Senses) -> Result:
    """How a script ended whose output must be JSON of a certain form."""
    said = senses.read(output).strip() if output is not None else ""
    try:
        value: JsonValue = msgspec.json.decode(said)
    except (msgspec.DecodeError, RecursionError):
        problem: str | None = "it is no JSON"
    else:
        problem = senses.schema_problem(schema, value)
    if problem is None:
        return Result("completed", "done", output=output, result=output)
    detail = f"what the script printed does not fit its schema: {problem}"[:_DETAIL_CHARS]
    return Result("failed", "error", output=output, error=Failure("bad_result", detail))


def says_nothing(action: Action, answer: EffectDone) -> bool:
    """Whether an answer is empty where one is needed; a long text is stored, and is not empty."""
    if type(action) is not CallAgent or action.on_empty == "answer":
        return False
    return answer.result is None and type(answer.output) is str and not answer.output.strip()


def _ended_by_silence(body: LeafBody) -> bool:
    """Whether a call that fell silent counts with what it had said."""
    assert body.failure is not None
    takes = isinstance(body.action, CallAgent) and body.action.on_idle == "answer"
    return takes and body.failure.error.type == "idle_timeout"


def _is_left_out(body: LeafBody) -> bool:
    """Whether a script that took too long counts as one that did not run."""
    assert body.failure is not None
    optional = isinstance(body.action, RunScript) and body.action.on_timeout == "skip"
    return optional and body.failure.error.type == "wall_timeout"


def _budget_outcome(state: State, body: LeafBody) -> Result | None:
    if not state.has_budget or not isinstance(body.action, CallAgent):
        return None
    if is_full(state, body.owner) and (body.failure is None or body.backoff >= body.attempt):
        return None  # it waits for its turn, and what is left is looked at then
    return _nothing_left(state, body)


def _rework_outcome(state: State, body: LeafBody, action: AskPerson) -> Result | None:
    """Work on what was rejected is paid for as any other."""
    if not state.has_budget or is_full(state, body.owner) or not is_worked_on(body, action):
        return None
    return _nothing_left(state, body)


def _nothing_left(state: State, body: LeafBody) -> Result | None:
    spent = over_budget(state, body.owner)
    if spent is None:
        return None
    return Result("exhausted", "budget", error=Failure(type="budget", detail=spent))


def is_worked_on(body: LeafBody, action: AskPerson) -> bool:
    """Whether an agent is to work on what a person has rejected."""
    if action.on_reject is None or body.gate is None or body.gate.decision != "reject":
        return False
    return body.rejections < action.on_reject.attempts


def _failed(failure: EffectFailed) -> Result:
    if failure.error.type == "cancelled":
        return Result("cancelled", failure.error.detail, output=failure.output)
    if failure.error.type == HOME_BUDGET:
        return Result("exhausted", HOME_BUDGET, error=failure.error)
    return Result("failed", "error", output=failure.output or None, error=failure.error)


def _gate_outcome(body: LeafBody) -> Result | None:
    gate, action = body.gate, body.action
    assert isinstance(action, AskPerson)
    if body.failure is not None:
        return _failed(body.failure)
    if gate is None or gate.decision is None:
        return None
    if action.choices and (gate.decision != "reject" or "reject" in action.choices):
        made = chosen(action.choices, gate.decision, gate.text)
        said = msgspec.json.encode(made).decode()
        return Result("completed", made["decision"], output=said, result=said)
    if gate.decision == "reject":
        if is_worked_on(body, action):
            return None
        if action.reject == "cancel":
            return None  # the whole run is ended
        detail = gate.text or "rejected by a person"
        return Result("failed", "rejected", error=Failure(type="rejected", detail=detail))
    text = gate.text if action.capture else None
    if action.approved is not None:
        text = action.approved
    return Result("completed", "approved", output=text)


def chosen(choices: tuple[str, ...], decision: str, text: str) -> dict[str, str]:
    """Which of the choices of a gate a person took, and the rest of what the person said."""
    first, _, rest = text.strip().partition(" ")
    word = first.rstrip(":,.").lower()
    named = next((one for one in choices if one.lower() == word), None)
    if named is not None and decision != "reject":
        return {"decision": named, "text": rest.strip()}
    known = decision if decision in choices else choices[0]
    return {"decision": known, "text": text.strip()}


def _unable(state: State, body: LeafBody, senses: Senses) -> Result | None:
    """What cannot begin has failed: a question that cannot be put would never be answered."""
    if type(body.action) is FailStep:
        return Result("failed", "error", error=Failure("bad_input", body.action.reason))
    if type(body.action) is not AskPerson or body.gate is not None:
        return None
    why = missing_value(state, body.owner, body.action.message, senses)
    if why is None:
        return None
    error = Failure("bad_input", f"the question cannot be put: {why}")
    return Result("failed", "error", error=error)


# -- a loop ----------------------------------------------------------------------------------------


def repeat_outcome(state: State, body: RepeatBody, senses: Senses) -> Result | None:
    """The stop rules of a loop in their order: the first that holds ends it.

    What the last pass came to is looked at before any limit, so a loop that is done on its last
    allowed pass is done.
    """
    last = body.last
    if is_cut_off(body) and (body.active or not _is_settled(body)):
        late = out_of_time(state.plan)
        return _ended(body, senses, late.status, late.reason, late.error)
    if body.active or last is None:
        return None
    if body.last_done and body.call is not None:
        return _call_ended(body, body.call, senses)
    if body.last_done:
        return _ended(body, senses, "completed", last.reason)
    if last.status != "completed":
        return _ended(body, senses, last.status, last.reason, last.error)
    spent = loop_over_budget(state, body)
    if body.action.broken_after and body.broken >= body.action.broken_after:
        return _broken(body, senses, spent)
    if stalled(body):
        detail = f"{body.identical} iterations in a row gave the same result"
        return _ended(body, senses, "exhausted", "stalled", Failure("stalled", detail))
    most = cap(body)
    if most is not None and body.finished >= most:
        return _at_cap(body, senses)
    if spent is not None:
        return _ended(body, senses, "exhausted", "budget", Failure("budget", spent))
    return None


def _is_settled(body: RepeatBody) -> bool:
    """Whether the pass that was finished after the time was up says itself how the loop ended."""
    last = body.last
    if last is None or body.action.on_deadline == "stop":
        return False
    return body.last_done or last.status in ("failed", "exhausted")


def _call_ended(body: RepeatBody, call: CallAgent, senses: Senses) -> Result:
    """A conversation came to its end: that is the answer of a call, like any other."""
    assert body.last is not None
    needed = call.on_empty == "fail" and body.last.result is None
    if needed and not senses.read(body.last.output).strip():
        return _ended(body, senses, "failed", "error", NO_ANSWER)
    return _ended(body, senses, "completed", "done")


def _broken(body: RepeatBody, senses: Senses, spent: str | None) -> Result:
    """How a loop ended whose check could not be asked. A judge that was cut off by the budget, or
    was not asked because of it, is not broken.
    """
    if spent is not None:
        return _ended(body, senses, "exhausted", "budget", Failure("budget", spent))
    detail = _broken_words(body, senses)
    return _ended(body, senses, "failed", "check_broken", Failure("check_broken", detail))


def _broken_words(body: RepeatBody, senses: Senses) -> str:
    times = "once" if body.broken == 1 else f"{body.broken} times in a row"
    said = [note.evidence for note in body.last_checks if note.verdict == "error"]
    return f"the check could not run {times}: {senses.read(said[-1] if said else None)}"


def _at_cap(body: RepeatBody, senses: Senses) -> Result | None:
    what = "turns" if has_turns(body) else "iterations"
    detail = f"{body.finished} of {cap(body)} {what} made and {_unmet(body)}"
    match body.action.at_cap:
        case "complete":
            return _ended(body, senses, "completed", "max_iterations")
        case "fail":
            error = Failure("max_iterations", detail)
            return _ended(body, senses, "failed", "max_iterations", error)
        case "exhaust":
            return _ended(body, senses, "exhausted", "max_iterations")
        case "ask":
            return _asked_at_cap(body, senses)
        case never:
            assert_never(never)


def _unmet(body: RepeatBody) -> str:
    """What would have ended the loop, in words."""
    words: list[str] = []
    for leaf in leaves(body.action.until):
        match leaf:
            case Expr(text=text):
                words.append(f"until ({text}) was never true")
            case Signal(word=word):
                words.append(f"the signal {word} was not given")
            case Judge(agent=agent) | Goal(agent=agent):
                words.append(f"the judge {agent} never said done")
            case _:
                words.append("the check has not passed")
    return ", ".join(dict.fromkeys(words))


def _asked_at_cap(body: RepeatBody, senses: Senses) -> Result | None:
    gate = body.cap_gate
    if gate is None or gate.decision is None:
        return None
    if gate.decision == "approve":
        return _ended(body, senses, "completed", "approved")
    error = Failure("rejected", gate.text or "rejected by a person at the cap")
    return _ended(body, senses, "failed", "rejected", error)


def _ended(
    body: RepeatBody, senses: Senses, status: str, reason: str, error: Failure | None = None
) -> Result:
    last = body.last
    return msgspec.structs.replace(
        Result("completed", reason),
        status=status,
        output=_repeat_output(body, senses, met=body.last_done or reason == "approved"),
        result=last.result if last else None,
        error=error,
        iterations=passes_made(body),
    )


def _repeat_output(body: RepeatBody, senses: Senses, *, met: bool) -> Text | None:
    if body.last is None:
        return None
    match body.action.output:
        case "all" if body.outputs:
            return senses.keep("\n\n".join(_everything(body, senses)))
        case "learning" if body.learnings and not met:
            return body.learnings[-1]
        case "result":
            return body.last.result
        case _:
            return body.last.output


def _everything(body: RepeatBody, senses: Senses) -> Iterator[str]:
    """All that was said, pass by pass, each part under the name of who said it."""
    for number, said in enumerate(body.outputs, start=1):
        yield f"## Iteration {number}"
        for name, text in said:
            heading = f"Judge Feedback (Iteration {number})" if name == "judge" else name
            yield f"### {heading}\n\n{senses.read(text)}" if name else senses.read(text)
