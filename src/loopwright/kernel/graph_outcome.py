"""What a graph of steps came to, and the run itself by the rule of its plan."""

import msgspec

from loopwright.kernel.facts import Failure
from loopwright.kernel.frames import Result, StepsBody
from loopwright.kernel.state import Senses
from loopwright.model.plan import Plan


def steps_outcome(body: StepsBody, senses: Senses) -> Result | None:
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
