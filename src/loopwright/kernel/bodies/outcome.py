"""The outcome of a body, or None while it is open: a call, a loop or a graph of steps.

These are functions of the state alone: calling one twice gives the same answer, and a crash
between two events changes nothing, because what is due is always recomputed from the state.
"""

from collections.abc import Iterator
from typing import assert_never

import msgspec

from loopwright.kernel.bodies.conversation import cycle_outcome
from loopwright.kernel.effects import has_next_attempt
from loopwright.kernel.event_parts import HOME_BUDGET, Failure
from loopwright.kernel.events import EffectDone, EffectFailed
from loopwright.kernel.frames import (
    Body,
    CycleBody,
    GateState,
    LeafBody,
    RepeatBody,
    Result,
    StepsBody,
    has_turns,
    passes_made,
)
from loopwright.kernel.limits import (
    cap,
    ended_by_budget,
    is_cut_off,
    loop_over_budget,
    out_of_time,
    over_budget,
    stalled,
)
from loopwright.kernel.references import items_of, missing_value
from loopwright.kernel.state import KernelServices, State, is_full
from loopwright.model.actions import Action, AskPerson, CallAgent, FailStep, RunScript, Wait
from loopwright.model.checks import Expr, Goal, Judge, Signal, leaves
from loopwright.model.ids import item_path
from loopwright.model.plan import Plan
from loopwright.model.record import JsonValue, Text


def each_outcome(state: State, body: RepeatBody, senses: KernelServices) -> Result | None:
    each = body.action.each
    assert each is not None
    items = items_of(state, body, each, senses)
    if isinstance(items, Failure):
        return Result("failed", items.type, error=items)
    if body.deadline_hit:
        return _each_result(body, items, senses, out_of_time(state.plan))
    if body.active:
        return None
    if body.spoiled is not None and each.on_item_error == "stop":
        return _each_result(body, items, senses, body.spoiled)
    over = loop_over_budget(state, body)
    spent = Result("exhausted", "budget", error=Failure("budget", over)) if over else None
    if body.finished < len(items):
        return None if spent is None else _each_result(body, items, senses, spent)
    failed = body.spoiled if each.on_item_error == "fail" else None
    # An item that a budget around the loop has ended is not an item error that may be ignored.
    ended = (one.status for one in body.item_results if one is not None)
    cut_off = spent if "exhausted" in ended else None
    return _each_result(body, items, senses, failed or cut_off or Result("completed", "items"))


def _each_result(
    body: RepeatBody, items: list[JsonValue], senses: KernelServices, ended: Result
) -> Result:
    if body.action.output == "list":
        said = [_element(body, index, senses) for index in range(len(items))]
        output = senses.keep(msgspec.json.encode(said).decode())
        made = body.finished + len(body.active)
        return msgspec.structs.replace(ended, output=output, result=None, iterations=made)
    rows = []
    last: Text | None = None
    parts: list[str] = []
    for index, item in enumerate(items):
        done = body.item_results[index] if index < len(body.item_results) else None
        text = senses.read(done.output) if done else ""
        status = done.status if done else "cancelled"
        name = item_path(body.owner.path, index)
        row = {"id": name, "index": index, "item": item, "status": status, "content": text}
        if done is not None and done.result is not None:
            row["result"] = msgspec.Raw(senses.read(done.result).encode())
        if done is not None and done.error is not None:
            row["error"] = {"type": done.error.type, "detail": done.error.detail}
        rows.append(row)
        if done is not None and done.status == "completed":
            last = done.output
            parts.append(f"## Item {index}\n\n{text}")
    if body.action.output == "all":
        last = senses.keep("\n\n".join(parts))
    return Result(
        status=ended.status,
        reason=ended.reason,
        output=last,
        result=senses.keep(msgspec.json.encode({"iterations": rows}).decode()),
        error=ended.error,
        iterations=body.finished + len(body.active),
    )


def _element(body: RepeatBody, index: int, senses: KernelServices) -> object:
    """What an item came to, as an element of a list: its result, else what it said, and of one that
    did not complete, why. A text that is a JSON object or array stands there as such.
    """
    done = body.item_results[index] if index < len(body.item_results) else None
    if done is None or done.status != "completed":
        why = done.error.detail if done is not None and done.error is not None else ""
        status = done.status if done is not None else "cancelled"
        entry: dict[str, object] = {"error": why or status, "status": status}
        mark = body.action.each.failed_key if body.action.each is not None else ""
        return {mark: True, **entry} if mark else entry
    text = senses.read(done.output if done.result is None else done.result)
    try:
        value: JsonValue = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    return value if isinstance(value, dict | list) or done.result is not None else text


def steps_outcome(body: StepsBody, senses: KernelServices) -> Result | None:
    """A graph ends with its last step, or at once when a failure aborts it."""
    action = body.index.action
    if body.failed is not None and action.on_failure == "abort":
        return _steps_result(body)
    if len(body.results) < len(action.steps):
        return None
    ended = _steps_result(body)
    if action.output != "list":
        return ended
    outputs = [senses.read(body.results[step.id].output) for step in action.steps]
    listed = senses.keep(msgspec.json.encode(outputs).decode())
    return msgspec.structs.replace(ended, output=listed, result=None)


def _speaker(body: StepsBody) -> Result | None:
    """The step whose output is that of the graph: the one that it names, the last that completed,
    or the first that completed with words and that no other step needs.
    """
    steps, returns = body.index.action.steps, body.index.action.returns
    if returns is not None:
        named = body.results.get(returns)
        return named if named is not None and named.status == "completed" else None
    if body.index.action.output != "sink":
        ended = (body.results.get(step.id) for step in reversed(steps))
        return next((one for one in ended if one is not None and one.status == "completed"), None)
    sinks = [body.results.get(s.id) for n, s in enumerate(steps) if not body.index.dependents[n]]
    done = [one for one in sinks if one is not None and one.status == "completed"]
    return next((one for one in done if one.output), done[0] if done else None)


def _steps_result(body: StepsBody) -> Result:
    """The worst of what the steps came to, with the words of the one that speaks for all."""
    speaker = _speaker(body)
    output = speaker.output if speaker is not None else None
    result = speaker.result if speaker is not None else None
    worst = _worst(body)
    if worst is None and body.index.action.given is not None and not _has_completed(body):
        return _nothing_completed(Result("failed"))
    if worst is None:
        return Result("completed", _completed_reason(body), output=output, result=result)
    keep = worst.output if len(body.index.action.steps) == 1 else output
    kept = worst.result if len(body.index.action.steps) == 1 else result
    return Result(worst.status, worst.reason, output=keep, result=kept, error=worst.error)


def _has_completed(body: StepsBody) -> bool:
    return any(result.status == "completed" for result in body.results.values())


def _completed_reason(body: StepsBody) -> str:
    """One step's reason is the graph's reason; of several, or of one that only was allowed to
    fail, none speaks for all.
    """
    reasons = [result.reason for result in body.results.values() if result.status == "completed"]
    return reasons[0] if len(body.results) == len(reasons) == 1 else "done"


def _worst(body: StepsBody) -> Result | None:
    action = body.index.action
    for status in ("failed", "exhausted", "cancelled"):
        for step in action.steps:
            ended = body.results.get(step.id)
            if ended is None or ended.status != status or step.on_error == "continue":
                continue
            named = len(action.steps) > 1 or action.given is not None
            return _naming(step.id, ended) if named else ended
    return None


def _naming(step: str, ended: Result) -> Result:
    """A failure whose error names the step; the innermost step is named."""
    failed = ended.status == "failed" and ended.error is not None
    if not failed or ended.error is None or ended.error.detail.startswith("step '"):
        return ended
    detail = f"step '{step}' failed: {ended.error.detail}"
    error = msgspec.structs.replace(ended.error, detail=detail)
    return msgspec.structs.replace(ended, error=error)


def run_result(plan: Plan, body: StepsBody, ended: Result) -> Result:
    """What a run of steps came to, by the rule of its plan."""
    statuses = [result.status for result in body.results.values()]
    if plan.outcome == "worst" or body.owner.deadline_hit:
        return ended
    bad = [status for status in statuses if status in ("failed", "exhausted", "cancelled")]
    if plan.outcome == "partial" and bad and "completed" in statuses:
        return msgspec.structs.replace(ended, status="failed", reason="partial")
    if plan.outcome == "partial" and bad:
        return msgspec.structs.replace(ended, status="failed")
    if plan.outcome == "some_completed" and not bad and "completed" not in statuses:
        return _nothing_completed(ended)
    if plan.outcome == "some_completed":
        named = (_naming(name, one) for name, one in body.results.items() if one.error is not None)
        worst = next((one for one in named if one.status == ended.status), None)
        return ended if worst is None else msgspec.structs.replace(ended, error=worst.error)
    return ended


def _nothing_completed(ended: Result) -> Result:
    error = Failure("nothing_completed", "no step completed")
    return msgspec.structs.replace(ended, status="failed", reason="nothing_completed", error=error)


MAX_PARALLEL_ITEMS = 100
"""The most passes over items that are under way at once when the definition names no number."""


_DETAIL_CHARS = 500
NO_ANSWER = Failure("empty_answer", "the agent answered with nothing at all")


def outcome(state: State, body: Body, senses: KernelServices) -> Result | None:
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


def leaf_outcome(state: State, body: LeafBody, senses: KernelServices) -> Result | None:
    if body.answer is not None:
        return _answered(body.action, body.answer, senses)
    if body.pending is not None:
        return None
    if type(body.action) is AskPerson:
        return _gate_outcome(body) or _rework_outcome(state, body, body.action)
    if body.failure is not None:
        if body.failure.error.outer:
            return ended_by_budget(body.failure)
        if has_next_attempt(body, body.failure.error):
            return _budget_outcome(state, body)
        if _ended_by_silence(body):
            return Result("completed", "idle_timeout", output=body.failure.output)
        if _is_left_out(body):
            return Result("skipped", "timeout", error=body.failure.error)
        return _failed(body.failure)
    return _budget_outcome(state, body)


def _answered(action: Action, answer: EffectDone, senses: KernelServices) -> Result:
    if says_nothing(action, answer):
        return Result("failed", "error", error=NO_ANSWER)
    if type(action) is RunScript and action.schema is not None:
        return _checked(action.schema, answer.output, senses)
    said = answer.output
    if type(action) is Wait and action.output is not None:
        said = action.output
    return Result("completed", "done", output=said, result=answer.result)


def _checked(schema: dict[str, JsonValue], output: Text | None, senses: KernelServices) -> Result:
    """How a script ended whose output must be JSON of a certain form."""
    said = senses.read(output).strip() if output is not None else ""
    try:
        value: JsonValue = msgspec.json.decode(said)
    except (msgspec.DecodeError, RecursionError):
        problem: str | None = "it is not JSON"
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
    if not state.plan_index.has_budget or not isinstance(body.action, CallAgent):
        return None
    if is_full(state, body.owner) and (body.failure is None or body.backoff >= body.attempt):
        return None  # it waits for its turn, and what is left is looked at then
    return _nothing_left(state, body)


def _rework_outcome(state: State, body: LeafBody, action: AskPerson) -> Result | None:
    """Work on what was rejected is paid for as any other."""
    if (
        not state.plan_index.has_budget
        or is_full(state, body.owner)
        or not is_worked_on(body, action)
    ):
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
        text = _timed(action.approved, gate) if action.timed else action.approved
    return Result("completed", "approved", output=text)


def _timed(approved: str, gate: GateState) -> str:
    """The output of an approval with how long the person took, and what the person wrote."""
    made: dict[str, JsonValue] = msgspec.json.decode(approved)
    made["waited_ms"] = max(0, gate.answered_at - gate.opened_at)
    if gate.text:
        made["payload"] = gate.text
    return msgspec.json.encode(made).decode()


def chosen(choices: tuple[str, ...], decision: str, text: str) -> dict[str, str]:
    """Which of the choices of a gate a person took, and the rest of what the person said."""
    first, _, rest = text.strip().partition(" ")
    word = first.rstrip(":,.").lower()
    named = next((one for one in choices if one.lower() == word), None)
    if named is not None and decision != "reject":
        return {"decision": named, "text": rest.strip()}
    known = decision if decision in choices else choices[0]
    return {"decision": known, "text": text.strip()}


def _unable(state: State, body: LeafBody, senses: KernelServices) -> Result | None:
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


def repeat_outcome(state: State, body: RepeatBody, senses: KernelServices) -> Result | None:
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


def _call_ended(body: RepeatBody, call: CallAgent, senses: KernelServices) -> Result:
    """A conversation came to its end: that is the answer of a call, like any other."""
    assert body.last is not None
    needed = call.on_empty == "fail" and body.last.result is None
    if needed and not senses.read(body.last.output).strip():
        return _ended(body, senses, "failed", "error", NO_ANSWER)
    return _ended(body, senses, "completed", "done")


def _broken(body: RepeatBody, senses: KernelServices, spent: str | None) -> Result:
    """How a loop ended whose check could not be asked. A judge that was cut off by the budget, or
    was not asked because of it, is not broken.
    """
    if spent is not None:
        return _ended(body, senses, "exhausted", "budget", Failure("budget", spent))
    detail = _broken_words(body, senses)
    return _ended(body, senses, "failed", "check_broken", Failure("check_broken", detail))


def _broken_words(body: RepeatBody, senses: KernelServices) -> str:
    times = "once" if body.broken == 1 else f"{body.broken} times in a row"
    said = [note.evidence for note in body.last_checks if note.verdict == "error"]
    return f"the check could not run {times}: {senses.read(said[-1] if said else None)}"


def _at_cap(body: RepeatBody, senses: KernelServices) -> Result | None:
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


def _asked_at_cap(body: RepeatBody, senses: KernelServices) -> Result | None:
    gate = body.cap_gate
    if gate is None or gate.decision is None:
        return None
    if gate.decision == "approve":
        return _ended(body, senses, "completed", "approved")
    error = Failure("rejected", gate.text or "rejected by a person at the cap")
    return _ended(body, senses, "failed", "rejected", error)


def _ended(
    body: RepeatBody, senses: KernelServices, status: str, reason: str, error: Failure | None = None
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


def _repeat_output(body: RepeatBody, senses: KernelServices, *, met: bool) -> Text | None:
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


def _everything(body: RepeatBody, senses: KernelServices) -> Iterator[str]:
    """All that was said, pass by pass, each part under the name of who said it."""
    for number, said in enumerate(body.outputs, start=1):
        yield f"## Iteration {number}"
        for name, text in said:
            heading = f"Judge Feedback (Iteration {number})" if name == "judge" else name
            yield f"### {heading}\n\n{senses.read(text)}" if name else senses.read(text)
