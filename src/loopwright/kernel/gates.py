"""Gates: questions to a person, for approvals, limits, tool calls and blocked steps.

The id of a gate is derived, and its digest covers what the person sees. A step that reports
that it is blocked, or that did not leave a required artifact, opens a gate before anything else
starts.
"""

import re
from hashlib import blake2b
from typing import Literal, TypeAlias, assert_never

import msgspec

from loopwright.kernel.event_parts import Failure, LookupCall
from loopwright.kernel.events import AnyEvent, GateClosed, GateOpened, StepRetried
from loopwright.kernel.frames import (
    CycleBody,
    GateState,
    IterationOwner,
    LeafBody,
    Owner,
    RepeatBody,
    Result,
    RunOwner,
    StepOwner,
)
from loopwright.kernel.messages import CANCELLED
from loopwright.kernel.references import fill
from loopwright.kernel.snapshots import gate_snapshot, violation
from loopwright.kernel.state import KernelServices, State, cap, enclosing_iteration, request_effect
from loopwright.model.actions import AskPerson, LoopGate
from loopwright.model.ids import ARTIFACT
from loopwright.model.record import Blob, Text, literal

About: TypeAlias = Literal["pass", "step", "cap", "tool", "blocked"]


def open_gate(
    state: State,
    owner: Owner,
    about: About,
    gate: LoopGate,
    services: KernelServices,
    *,
    output: Text | None = None,
) -> GateOpened:
    """The event that asks a person about a place."""
    text = fill(state, owner, gate.message, services) or _default_message(owner, about)
    if words := violation(state):
        text = f"{text}\n{words[0].upper()}{words[1:]}. Approving accepts them as they are now."
    if about == "pass" and gate.grants and isinstance(owner, IterationOwner):
        text += _limit_words(owner)
    number = _gates_before(owner, about)
    identity = f"{state.run}\n{owner.inside}\n{about}\n{number}{_opening_suffix(owner)}"
    return GateOpened(
        at=state.now,
        path=owner.inside,
        iteration=owner.iteration,
        gate=f"gate_{blake2b(identity.encode(), digest_size=10).hexdigest()}",
        digest=_digest(text, output),
        message=text,
        answers=gate.answers,
        about=about,
        output=output,
        snapshot=gate_snapshot(state, owner) if state.snapshots.on else None,
    )


def ends_by_itself(gate: GateState) -> bool:
    """Whether a run continues after a while if a question is not answered."""
    owner = gate.owner
    action = owner.step.action if isinstance(owner, StepOwner) else None
    return isinstance(action, AskPerson) and action.expired is not None


def tool_gate(run: str, effect: str, message: str, about: str, number: int) -> tuple[str, str]:
    """Id and digest of a question that an effect asks: the same after a restart, so an answer that
    was given before it counts.
    """
    digest = _digest(message, about)
    identity = f"{run}\n{effect}\ntool\n{digest}\n{number}"
    return f"gate_{blake2b(identity.encode(), digest_size=10).hexdigest()}", digest


def about_call(
    state: State, owner: Owner, call: int, message: str, arguments: str, services: KernelServices
) -> GateOpened:
    """The event that asks a person about one tool call of a turn."""
    output = services.keep(arguments)
    return GateOpened(
        at=state.now,
        path=owner.inside,
        iteration=owner.iteration,
        gate=call_gate(state.run, owner.inside, call, _opening_suffix(owner)),
        digest=_digest(message, output),
        message=message,
        answers=("approve", "reject"),
        about="tool",
        output=output,
        call=call,
    )


def call_gate(run: str, path: str, call: int, again: str = "") -> str:
    """Id of the question about one tool call of a turn."""
    identity = f"{run}\n{path}\ntool\n{call}{again}"
    return f"gate_{blake2b(identity.encode(), digest_size=10).hexdigest()}"


def _opening_suffix(owner: Owner) -> str:
    """What tells the gates of a place that began again in a resumed run from those before."""
    openings = 1 if isinstance(owner, RunOwner) else owner.openings
    return f"\n{openings}" if openings > 1 else ""


def _gates_before(owner: Owner, about: About) -> int:
    """How many gates of this kind the place has had, so that each has an id of its own."""
    if about == "cap" and isinstance(owner.body, RepeatBody):
        return owner.body.progress.extra
    if about == "pass" and isinstance(owner, IterationOwner):
        return sum(note.check == "person" for note in owner.checks.notes)
    if about == "blocked" and isinstance(owner, StepOwner):
        return owner.tries
    assert isinstance(owner.body, LeafBody), f"no {about} is asked about here"
    return owner.body.rejections


def _default_message(owner: Owner, about: About) -> str:
    if about == "cap":
        return "The iteration limit is reached and the checks have not passed. Accept the result?"
    if about == "blocked":
        return (
            "The agent reports that it is blocked. Try again with a note, continue anyway, "
            "or end it?"
        )
    if about == "pass" and isinstance(owner, IterationOwner) and _is_stuck(owner):
        times = owner.parent.progress.unmet + 1
        return (
            f"Blocked: {times} iteration{'s' if times > 1 else ''} in a row did not pass. "
            "Continue with a note, accept the result as it is, or end it?"
        )
    if about == "pass":
        return f"Review iteration {owner.iteration}. Accept?"
    return "Continue?"


def _limit_words(owner: IterationOwner) -> str:
    """What an answer means after the last iteration that a loop may make."""
    most = cap(owner.parent)
    if most is None or owner.parent.finished + 1 < most:
        return ""
    return (
        f"\nThis was iteration {most} of {most}, the limit: `continue` raises it by one and starts "
        "another iteration; with `approve` the loop ends at its limit."
    )


def _is_stuck(owner: IterationOwner) -> bool:
    gate = owner.parent.action.gate
    return gate is not None and gate.after > 0


def _digest(message: str, output: Text | None) -> str:
    shown = output.blob if isinstance(output, Blob) else output or ""
    return blake2b(f"{message}\n{shown}".encode(), digest_size=16).hexdigest()


NO_ARTIFACT = (
    "Blocked: the agent created no artifact, and one is required. Try again with a note, continue "
    "without it, or end it?"
)
NO_OUTPUT = "the agent answered with no text, and a later step needs its output"
LINES = 5
"""How many lines at the beginning are searched."""
_BLOCKED = re.compile(r"[\W_]*status[\W_]*:[\W_]*(?:blocked|needs[ _-]context)\b", re.IGNORECASE)


def reports_blocked(text: str) -> bool:
    """Whether one of the first lines says so."""
    return any(_BLOCKED.match(line) for line in text.lstrip().splitlines()[:LINES])


def check_blocked_step(
    state: State, owner: StepOwner, ended: Result, services: KernelServices
) -> Result | StepRetried | list[AnyEvent]:
    """How a step ended, or what is asked and done first: its agent says that it is blocked, or did
    not leave the artifact that it had to. `StepRetried`: the step starts again when what is open
    inside it has been closed.
    """
    if ended.status != "completed" or ended.reason == CANCELLED:  # cancelled: stopped by a message
        return ended
    if owner.step.needs_output and not services.read(ended.output).strip():
        error = Failure("no-output", NO_OUTPUT)
        return msgspec.structs.replace(ended, status="failed", reason="no_output", error=error)
    blocked = owner.step.on_blocked == "ask" and reports_blocked(services.read(ended.output))
    if owner.gate is None and not blocked and owner.step.needs_artifact:
        return _look(state, owner, ended, services)
    if owner.gate is None:
        return _ask(state, owner, ended, services, LoopGate()) if blocked else ended
    match owner.gate.decision:
        case None:
            return []
        case "approve":
            return ended
        case "continue":
            return _retry_blocked_step(state, owner, ended, blocked=blocked)
        case "reject":
            error = Failure("rejected", owner.gate.text or "blocked, and given up by a person")
            return msgspec.structs.replace(ended, status="failed", reason="rejected", error=error)
        case never:
            assert_never(never)


def _ask(
    state: State, owner: StepOwner, ended: Result, services: KernelServices, gate: LoopGate
) -> list[AnyEvent]:
    return [open_gate(state, owner, "blocked", gate, services, output=ended.output)]


def _look(
    state: State, owner: StepOwner, ended: Result, services: KernelServices
) -> Result | list[AnyEvent]:
    """See whether an artifact is there; a person is asked when it is not."""
    if owner.found:
        return ended
    if owner.found is None:
        return _lookup(state, owner)
    return _ask(state, owner, ended, services, LoopGate(message=literal(NO_ARTIFACT)))


def _lookup(state: State, owner: StepOwner) -> list[AnyEvent]:
    if owner.look is not None:
        return []
    inside = enclosing_iteration(owner)
    since = inside.started_at if inside is not None else 0
    call = LookupCall(since=since)
    return [request_effect(state, owner, ARTIFACT, owner.looks + 1, call)]


def _retry_blocked_step(
    state: State, owner: StepOwner, ended: Result, *, blocked: bool
) -> Result | StepRetried | list[AnyEvent]:
    """Try a step again. One that only lacked an artifact is complete if the artifact was added
    meanwhile.
    """
    if not blocked and (owner.looks == 1 or owner.look is not None):
        return _lookup(state, owner)
    if not blocked and owner.found:
        return ended
    return StepRetried(
        at=state.now, path=owner.path, iteration=owner.iteration, attempt=owner.tries + 1
    )


def kept_gate(gate: GateState | None) -> GateState | None:
    """A gate with a decision that stays; one that was closed or rejected is asked again."""
    return gate if gate is not None and gate.decision in ("approve", "continue") else None


def gate_opened(state: State, event: GateOpened) -> None:
    owner = state.owners[event.path]
    gate = GateState(
        gate=event.gate,
        digest=event.digest,
        message=event.message,
        answers=event.answers,
        opened_at=event.at,
        path=event.path,
        owner=owner,
        effect=event.effect,
        snapshot=event.snapshot,
    )
    state.gates[event.gate] = gate
    if event.call is not None:
        assert isinstance(owner.body, CycleBody)
        gate.call = event.call
        owner.body.gates[event.call] = gate
    elif event.about == "cap":
        assert isinstance(owner.body, RepeatBody)
        owner.body.cap_gate = gate
    elif event.about == "tool":
        pending = state.pending[event.effect]
        pending.gates = {**(pending.gates or {}), event.gate: gate}
    elif event.about == "blocked":
        assert isinstance(owner, StepOwner)
        owner.gate = gate
    elif event.about == "step":
        assert isinstance(owner.body, LeafBody)
        owner.body.gate = gate
    else:
        assert isinstance(owner, IterationOwner)
        owner.gate = gate


def gate_closed(state: State, event: GateClosed) -> None:
    state.queues.stale.pop(event.gate, None)
    gate = state.gates.pop(event.gate, None)
    if gate is None:
        state.ignored += 1
        return
    gate.open = False
