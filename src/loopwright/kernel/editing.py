"""Editing: what somebody changes about a run while it is under way. What begins later sees it."""

import msgspec

from loopwright.kernel.facts import RunEdited
from loopwright.kernel.frames import RepeatBody, StepOwner
from loopwright.kernel.state import State
from loopwright.model.actions import Cycle
from loopwright.model.record import JsonValue


def run_edited(state: State, fact: RunEdited) -> None:
    """Let an edit count from now on."""
    if fact.message is not None and state.started is not None:
        state.started = msgspec.structs.replace(state.started, message=fact.message)
    if fact.metadata is not None:
        state.metadata = merged(state.metadata, fact.metadata)
    if fact.labels is not None:
        state.labels = fact.labels
    if fact.passes is not None:
        state.passes = fact.passes
        for owner in state.root.body.active.values():
            set_cap(state, owner)
            state.touch(owner)


def set_cap(state: State, owner: StepOwner) -> None:
    """Let a loop of the plan make as many passes as somebody has said since the run started."""
    body = owner.body
    if state.passes is None or not isinstance(body, RepeatBody):
        return
    if body.action.each is None and not isinstance(body.action.body, Cycle):
        body.action = msgspec.structs.replace(body.action, max=state.passes or None)
        body.extra = 0


def merged(before: dict[str, JsonValue], patch: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """An object with another laid over it: objects key by key, null takes a key away, and anything
    else, a list too, stands in place of what was there.
    """
    made = dict(before)
    for name, value in patch.items():
        old = made.get(name)
        if value is None:
            made.pop(name, None)
        elif isinstance(value, dict):
            made[name] = merged(old if isinstance(old, dict) else {}, value)
        else:
            made[name] = value
    return made
