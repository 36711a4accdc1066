"""Gates: what a person is asked, under an id that is derived and a digest of what is shown."""

from hashlib import blake2b
from typing import Literal, TypeAlias

from loopwright.kernel.facts import GateOpened
from loopwright.kernel.frames import (
    GateState,
    LeafBody,
    Owner,
    PassOwner,
    RepeatBody,
    RunOwner,
    StepOwner,
)
from loopwright.kernel.limits import cap
from loopwright.kernel.snapshots import gate_snapshot, violation
from loopwright.kernel.state import Senses, State
from loopwright.kernel.texts import fill
from loopwright.model.actions import AskPerson, Gate
from loopwright.model.record import Blob, Text

About: TypeAlias = Literal["pass", "step", "cap", "tool", "blocked"]


def open_gate(
    state: State,
    owner: Owner,
    about: About,
    gate: Gate,
    senses: Senses,
    *,
    output: Text | None = None,
) -> GateOpened:
    """The fact that asks a person about a place."""
    text = fill(state, owner, gate.message, senses) or _default_message(owner, about)
    if words := violation(state):
        text = f"{text}\n{words[0].upper()}{words[1:]}. Approving accepts them as they are now."
    if about == "pass" and gate.grants and isinstance(owner, PassOwner):
        text += _limit_words(owner)
    number = _asked_before(owner, about)
    identity = f"{state.run}\n{owner.inside}\n{about}\n{number}{_again(owner)}"
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
    """Whether a run goes on after a while when nobody answers a question."""
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
    state: State, owner: Owner, call: int, message: str, arguments: str, senses: Senses
) -> GateOpened:
    """The fact that asks a person about one tool call of a turn."""
    output = senses.keep(arguments)
    return GateOpened(
        at=state.now,
        path=owner.inside,
        iteration=owner.iteration,
        gate=call_gate(state.run, owner.inside, call, _again(owner)),
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


def _again(owner: Owner) -> str:
    """What tells the gates of a place that began again in a resumed run from those before."""
    openings = 1 if isinstance(owner, RunOwner) else owner.openings
    return f"\n{openings}" if openings > 1 else ""


def _asked_before(owner: Owner, about: About) -> int:
    """How many gates of this kind the place has had, so that each has an id of its own."""
    if about == "cap" and isinstance(owner.body, RepeatBody):
        return owner.body.extra
    if about == "pass" and isinstance(owner, PassOwner):
        return sum(note.check == "person" for note in owner.notes)
    if about == "blocked" and isinstance(owner, StepOwner):
        return owner.tries
    assert isinstance(owner.body, LeafBody), f"no {about} is asked about here"
    return owner.body.rejections


def _default_message(owner: Owner, about: About) -> str:
    if about == "cap":
        return "The iteration limit is reached and the checks have not passed. Accept the result?"
    if about == "blocked":
        return "Blocked: it says so itself. Try again with a note, go on all the same, or end it?"
    if about == "pass" and isinstance(owner, PassOwner) and _is_stuck(owner):
        times = owner.parent.unmet + 1
        return (
            f"Blocked: {times} iteration{'s' if times > 1 else ''} in a row did not pass. "
            "Go on with a note, accept the result as it is, or end it?"
        )
    if about == "pass":
        return f"Review iteration {owner.iteration}. Accept?"
    return "Go on?"


def _limit_words(owner: PassOwner) -> str:
    """What an answer means after the last iteration that a loop may make."""
    most = cap(owner.parent)
    if most is None or owner.parent.finished + 1 < most:
        return ""
    return (
        f"\nThis was iteration {most} of {most}, the limit: `continue` raises it by one and starts "
        "another iteration; with `approve` the loop ends at its limit."
    )


def _is_stuck(owner: PassOwner) -> bool:
    gate = owner.parent.action.gate
    return gate is not None and gate.after > 0


def _digest(message: str, output: Text | None) -> str:
    shown = output.blob if isinstance(output, Blob) else output or ""
    return blake2b(f"{message}\n{shown}".encode(), digest_size=16).hexdigest()
