"""A single call: an agent, a program, a wait or a question to a person, with its attempts.

`outcome`, `next_events` and `close` decide: they return a result or events. `note_request`,
`note_answer` and `resume` fold: they change the body.
"""

from typing import assert_never

import msgspec

from loopwright.kernel.effects import (
    close_gate,
    has_next_attempt,
    note_backoff_end,
    request_backoff,
    withdraw,
)
from loopwright.kernel.event_parts import HOME_BUDGET, AgentCall, CommandCall, Failure, SleepCall
from loopwright.kernel.events import AnyEvent, CancelRequested, EffectDone, EffectFailed
from loopwright.kernel.frames import GateState, LeafBody, Result
from loopwright.kernel.gates import kept_gate, open_gate
from loopwright.kernel.limits import ended_by_budget, over_budget
from loopwright.kernel.messages import deliver
from loopwright.kernel.references import fill, missing_value
from loopwright.kernel.state import (
    KernelServices,
    PendingEffect,
    State,
    has_to_wait,
    is_full,
    request_effect,
)
from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    FailStep,
    LoopGate,
    ModelCycle,
    Repeat,
    RunCommand,
    RunScript,
    Steps,
    StopRun,
    Wait,
)
from loopwright.model.ids import (
    AGENT_CALL,
    COMMAND_CALL,
    REWORK,
    SCRIPT_CALL,
    WAIT_CALL,
    BackoffPurpose,
    CallPurpose,
    ReworkPurpose,
    last_id,
)
from loopwright.model.record import JsonValue, Text

_DETAIL_CHARS = 500


NO_ANSWER = Failure("empty_answer", "the agent answered with nothing at all")


# -- deciding --------------------------------------------------------------------------------------


def outcome(state: State, body: LeafBody, services: KernelServices) -> Result | None:
    """How a call has ended, or None."""
    if body.answer is not None:
        return _answered(body.action, body.answer, services)
    if body.pending is not None:
        return None
    if type(body.action) is CallAgent and body.failure is None:
        return _budget_outcome(state, body) if state.plan_index.has_budget else None
    return _ended(state, body) or _unable(state, body, services)


def _ended(state: State, body: LeafBody) -> Result | None:
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


def _answered(action: Action, answer: EffectDone, services: KernelServices) -> Result:
    if is_empty_answer(action, answer):
        return Result("failed", "error", error=NO_ANSWER)
    if type(action) is RunScript and action.schema is not None:
        return _checked(action.schema, answer.output, services)
    output = answer.output
    if type(action) is Wait and action.output is not None:
        output = action.output
    return Result("completed", "done", output=output, result=answer.result)


def _checked(schema: dict[str, JsonValue], output: Text | None, services: KernelServices) -> Result:
    """How a script ended whose output must be JSON of a certain form."""
    said = services.read(output).strip() if output is not None else ""
    try:
        value: JsonValue = msgspec.json.decode(said)
    except (msgspec.DecodeError, RecursionError):
        problem: str | None = "it is not JSON"
    else:
        problem = services.schema_problem(schema, value)
    if problem is None:
        return Result("completed", "done", output=output, result=output)
    detail = f"what the script printed does not fit its schema: {problem}"[:_DETAIL_CHARS]
    return Result("failed", "error", output=output, error=Failure("bad_result", detail))


def is_empty_answer(action: Action, answer: EffectDone) -> bool:
    """Whether an answer is empty where one is needed; a long text is stored, and is not empty."""
    if type(action) is not CallAgent or action.on_empty == "answer":
        return False
    return answer.result is None and type(answer.output) is str and not answer.output.strip()


def _ended_by_silence(body: LeafBody) -> bool:
    """Whether a call that became silent counts with its output so far."""
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
        return None  # it waits for its turn, and what is left is compared then
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
        output = msgspec.json.encode(made).decode()
        return Result("completed", made["decision"], output=output, result=output)
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
    """The choice of a person at a gate, and the rest of the person's text."""
    first, _, rest = text.strip().partition(" ")
    word = first.rstrip(":,.").lower()
    named = next((one for one in choices if one.lower() == word), None)
    if named is not None and decision != "reject":
        return {"decision": named, "text": rest.strip()}
    known = decision if decision in choices else choices[0]
    return {"decision": known, "text": text.strip()}


def _unable(state: State, body: LeafBody, services: KernelServices) -> Result | None:
    """What cannot begin has failed: a question that cannot be put would never be answered."""
    if type(body.action) is FailStep:
        return Result("failed", "error", error=Failure("bad_input", body.action.reason))
    if type(body.action) is not AskPerson or body.gate is not None:
        return None
    why = missing_value(state, body.owner, body.action.message, services)
    if why is None:
        return None
    error = Failure("bad_input", f"the question cannot be put: {why}")
    return Result("failed", "error", error=error)


def output_of(body: LeafBody) -> tuple[Text | None, Text | None]:
    """Output and structured result, also of a call that failed half-way."""
    if type(body.action) is AskPerson:
        answer = _gate_outcome(body)
        return (answer.output if answer is not None else None), None
    if body.answer is not None:
        return body.answer.output, body.answer.result
    if body.failure is not None:
        return body.failure.output, None
    return None, None


def next_events(state: State, body: LeafBody, services: KernelServices) -> list[AnyEvent]:
    """What a call requests next; nothing while it waits."""
    if body.pending is not None:
        return []
    if type(body.action) is AskPerson:
        return _proceed_gate(state, body, body.action, services)
    if type(body.action) is StopRun:
        reason = fill(state, body.owner, body.action.reason, services) or "stopped"
        return [] if state.control.cancel else [CancelRequested(at=state.now, reason=reason)]
    if body.failure is not None and body.backoff < body.attempt:
        return [request_backoff(state, body)]
    return _next_try(state, body)


def _proceed_gate(
    state: State, body: LeafBody, action: AskPerson, services: KernelServices
) -> list[AnyEvent]:
    """Ask; after a rejection that is to be worked on, let the agent work and ask again."""
    if body.gate is None:
        gate = LoopGate(message=action.message, answers=action.answers)
        return [open_gate(state, body.owner, "step", gate, services)]
    if body.gate.decision != "reject" or "reject" in action.choices:
        return []
    if action.on_reject is not None and is_worked_on(body, action):
        if has_to_wait(state, body.owner):
            return []
        call = AgentCall(agent=action.on_reject.agent)
        return [request_effect(state, body.owner, REWORK, body.rejections, call)]
    assert action.reject == "cancel", "any other rejection has ended the step"
    return [CancelRequested(at=state.now, reason="rejected")]


def _next_try(state: State, body: LeafBody) -> list[AnyEvent]:
    owner, number, action = body.owner, body.attempt + 1, body.action
    if type(action) is CallAgent:
        if has_to_wait(state, owner):
            return []
        request = request_effect(state, owner, AGENT_CALL, number, AgentCall(agent=action.agent))
        if state.mail.inboxes:
            return [*deliver(state, owner, request.effect), request]
        return [request]
    match action:
        case Wait(ms=ms):
            wait = SleepCall(until=state.now + ms)
            return [request_effect(state, owner, WAIT_CALL, number, wait)]
        case RunCommand(argv=argv, timeout_ms=timeout_ms, env=env):
            call = CommandCall(argv=argv, timeout_ms=timeout_ms, env=env)
            return [request_effect(state, owner, COMMAND_CALL, number, call)]
        case RunScript() as script:
            return [request_effect(state, owner, SCRIPT_CALL, number, _script_call(script))]
        case AskPerson() | StopRun() | FailStep() | Steps() | Repeat() | ModelCycle():
            raise AssertionError(f"{type(action).__name__} is not a call")
        case CallAgent():
            raise AssertionError("the call of an agent was requested above")
        case _:
            assert_never(action)


def _script_call(script: RunScript) -> CommandCall:
    argv = (script.interpreter, *script.flags)
    if script.by_stdin:
        return CommandCall(argv=argv, timeout_ms=script.timeout_ms, stdin=script.text)
    return CommandCall(argv=(*argv, script.text), timeout_ms=script.timeout_ms)


def close(state: State, body: LeafBody, why: str) -> list[AnyEvent]:
    """End what is open in a call."""
    return [
        *withdraw(state, body.owner, body.pending, why),
        *close_gate(state, body.gate, why),
    ]


# -- folding ---------------------------------------------------------------------------------------


def note_request(body: LeafBody, pending: PendingEffect) -> None:
    body.pending = pending.effect
    if isinstance(pending.purpose, CallPurpose):
        body.attempt = pending.attempt


def note_answer(body: LeafBody, pending: PendingEffect, event: EffectDone | EffectFailed) -> None:
    body.pending = None
    if isinstance(pending.purpose, BackoffPurpose):
        note_backoff_end(body, pending.attempt, event.at)
    elif isinstance(pending.purpose, ReworkPurpose) and type(event) is EffectDone:
        body.gate = None  # what was rejected has been worked on: ask again
    elif type(event) is EffectFailed:
        body.failure = event
    elif event.code not in (0, None) and isinstance(body.action, RunCommand | RunScript):
        body.failure = _bad_exit(event, body.action)
    else:
        body.answer = event


def _bad_exit(event: EffectDone, action: RunCommand | RunScript) -> EffectFailed:
    """A step's program that ended with another code than 0: a failure that a retry may name."""
    return EffectFailed(
        at=event.at,
        path=event.path,
        iteration=event.iteration,
        effect=event.effect,
        error=Failure("exit", _exit_words(event, action)),
        output=event.output,
        code=event.code,
    )


def _exit_words(event: EffectDone, action: RunCommand | RunScript) -> str:
    words = f"the command ended with code {event.code}"
    if isinstance(action, RunScript):
        step = last_id(event.path)
        words = f"step '{step}' failed: {action.interpreter} exited with code {event.code}"
    return f"{words}: {event.note}" if event.note else words


def resume(body: LeafBody) -> None:
    """Let a call that did not complete be made again."""
    body.pending = body.failure = None
    body.earlier = body.attempt - body.parks
    if body.answer is not None and _failed_with(body.action, body.answer):
        body.answer = None
    body.gate = kept_gate(body.gate)


def _failed_with(action: Action, answer: EffectDone) -> bool:
    """Whether an answer is why a step has failed: nothing, or what does not fit a schema."""
    if isinstance(action, RunScript):
        return action.schema is not None
    return is_empty_answer(action, answer)
