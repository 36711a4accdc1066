"""Addresses of messages: which step a message is for, and whether that step can still read it.

A step is addressed as in events (`dev.0.review`, `each[2].deploy`), without its iteration
(`dev.review`), or by its bare id when only one step has it. A loop of steps is not an address:
it does not read messages itself.
"""

import re
from typing import TypeAlias, assert_never

import msgspec

from loopwright.kernel.event_parts import DropReason
from loopwright.kernel.frames import Owner, RepeatBody, Result, StepOwner, StepsBody
from loopwright.kernel.state import Reader, State, StepDirectory
from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    FailStep,
    ModelCycle,
    Repeat,
    RunCommand,
    RunScript,
    Step,
    Steps,
    StopRun,
    Wait,
)
from loopwright.model.ids import child_path, item_path, last_id, logical_path
from loopwright.model.plan import Plan

MOST_KNOWN = 50
_ITEM = re.compile(r"\[(\d+)\]")


class UnreachableAddress(msgspec.Struct, frozen=True):
    """This address reaches no agent or person; `why` says why not."""

    reason: DropReason
    detail: str
    known: tuple[str, ...] = ()


class RunningStep(msgspec.Struct, frozen=True):
    """The step is under way."""

    owner: Owner


class FutureStep(msgspec.Struct, frozen=True):
    """The step has yet to begin, for the first time or once more."""


class EndedStep(msgspec.Struct, frozen=True):
    """The step has ended and does not begin again; `step` is the step of the plan that it is."""

    status: str
    step: Step | None = None
    result: Result | None = None


AddressedStep: TypeAlias = RunningStep | FutureStep | EndedStep | UnreachableAddress


def directory_of(plan: Plan) -> StepDirectory:
    found = StepDirectory()
    for step in plan.steps:
        _enter(found, step.action, step.id)
    for pattern in found.kinds:
        found.by_last.setdefault(last_id(pattern).replace("[]", ""), []).append(pattern)
    return found


def _enter(found: StepDirectory, action: Action, pattern: str) -> None:
    match action:
        case Steps(steps=steps):
            found.kinds[pattern] = "container"
            for step in steps:
                _enter(found, step.action, child_path(pattern, step.id))
        case Repeat(body=body, each=each) if each is not None:
            found.kinds[pattern] = "container"
            _enter(found, body, f"{pattern}[]")
        case Repeat(body=body):
            _enter(found, body, pattern)
        case CallAgent():
            found.kinds[pattern] = "agent"
        case RunCommand() | RunScript() | AskPerson() | Wait() | StopRun() | FailStep():
            found.kinds[pattern] = "other"
        case ModelCycle():
            found.kinds[pattern] = "other"
        case _:
            assert_never(action)


def directory(state: State) -> StepDirectory:
    """The directory of a run's plan, made once."""
    if state.plan_index.directory is None:
        state.plan_index.directory = directory_of(state.plan)
    return state.plan_index.directory


# -- from an address to a step ---------------------------------------------------------------------


def resolve_address(state: State, written: str) -> str | UnreachableAddress:
    """The step that an address names, whatever its iteration, or why there is none."""
    addresses = directory(state)
    key = logical_path(written.strip())
    kind = addresses.kinds.get(_ITEM.sub("[]", key))
    if kind is None:
        return _by_bare_name(state, key, written)
    return key if kind == "agent" else _deaf(state, key, kind)


def _deaf(state: State, key: str, kind: Reader) -> UnreachableAddress:
    if kind == "other":
        return UnreachableAddress("not-an-agent", f"{key} is not an agent and reads no messages")
    inside = [one for one in reachable(state) if one.startswith((f"{key}.", f"{key}["))]
    return UnreachableAddress(
        "container", f"{key} is made of other steps and reads no messages itself", tuple(inside)
    )


def _by_bare_name(state: State, key: str, written: str) -> str | UnreachableAddress:
    patterns = directory(state).by_last.get(key, []) if key else []
    agents = [one for one in patterns if directory(state).kinds[one] == "agent"]
    if patterns and not agents:
        return _deaf(state, patterns[0], directory(state).kinds[patterns[0]])
    found = [one for pattern in agents for one in _instances(state, pattern)]
    open_ones = [one for one in found if not isinstance(locate(state, one), EndedStep)] or found
    if len(open_ones) == 1:
        return open_ones[0]
    if open_ones:
        names = tuple(_shown(state, one) for one in open_ones[:MOST_KNOWN])
        return UnreachableAddress("ambiguous", f"{key} may be any of {', '.join(names)}", names)
    return UnreachableAddress(
        "unknown-step", f"there is no step {written[:100]!r}", tuple(reachable(state)[:MOST_KNOWN])
    )


def reachable(state: State) -> list[str]:
    """Ids that a message can be sent to now; an active call has the id that it has in events."""
    addresses = directory(state)
    found = [
        one
        for pattern, kind in addresses.kinds.items()
        if kind == "agent"
        for one in _instances(state, pattern)
    ]
    return [_shown(state, one) for one in found if _takes(locate(state, one))]


def _takes(where: AddressedStep) -> bool:
    return isinstance(where, RunningStep | FutureStep) or (
        isinstance(where, EndedStep) and is_wakeable(where)
    )


def is_wakeable(where: EndedStep) -> bool:
    """Whether a step that has ended can be called again to answer."""
    return where.step is not None and where.status == "completed"


def _shown(state: State, key: str) -> str:
    where = locate(state, key)
    return where.owner.path if isinstance(where, RunningStep) else key


def _instances(state: State, pattern: str) -> list[str]:
    """The steps behind a pattern: itself, or one for each item that is under way."""
    if "[]" not in pattern:
        return [pattern]
    keys = {logical_path(path) for path in state.owners}
    return sorted(key for key in keys if _ITEM.sub("[]", key) == pattern)


# -- from a step to its state ---------------------------------------------------------------------


def locate(state: State, key: str) -> AddressedStep:
    """The current state of a step, found from the top down."""
    return _locate(state.root.body, key.split("."), first=True)


def _locate(graph: StepsBody, parts: list[str], *, first: bool) -> AddressedStep:
    name, *numbers = _ITEM.sub(r".\1", parts[0]).split(".")
    last = len(parts) == 1
    owner = graph.active.get(name)
    if owner is None:
        return _not_active(graph, name, first=first, last=last and not numbers)
    place = _inside(owner, [int(number) for number in numbers], last=last)
    if last or not isinstance(place, RunningStep):
        return place
    assert isinstance(place.owner.body, StepsBody)
    return _locate(place.owner.body, parts[1:], first=False)


def _not_active(graph: StepsBody, name: str, *, first: bool, last: bool) -> AddressedStep:
    ended = graph.results.get(name)
    if ended is None or (not first and _comes_again(graph.owner)):
        return FutureStep()
    step = graph.index.action.steps[graph.index.at[name]]
    return EndedStep(ended.status, step if first and last else None, ended)


def _comes_again(owner: Owner) -> bool:
    """Whether a path is an iteration of a counted loop, or inside one: another one may follow."""
    place: Owner | None = owner
    while place is not None and place.parent is not None:
        if isinstance(place.parent, RepeatBody) and place.parent.action.each is None:
            return True
        place = place.parent.owner
    return False


def _inside(owner: StepOwner, numbers: list[int], *, last: bool) -> AddressedStep:
    """The active iteration of a loop, selected by the named items."""
    place: Owner = owner
    wanted = list(numbers)
    while isinstance(place.body, RepeatBody):
        repeat = place.body
        if repeat.action.each is not None:
            if not wanted:
                return UnreachableAddress("container", f"{place.path} has one pass for each item")
            number = wanted.pop(0)
            if number not in repeat.active:
                return _item(repeat, number)
            place = repeat.active[number]
        elif last and not wanted and not isinstance(repeat.action.body, Repeat):
            return RunningStep(place)  # a loop of one call is that call, whatever its iteration
        elif not repeat.active:
            return FutureStep()
        else:
            place = next(iter(repeat.active.values()))
    return RunningStep(place)


def _item(repeat: RepeatBody, number: int) -> AddressedStep:
    if number < repeat.started:
        if _comes_again(repeat.owner):
            return FutureStep()
        done = repeat.items.results[number] if number < len(repeat.items.results) else None
        return EndedStep(done.status if done else "cancelled")
    if repeat.items.values is not None and number >= len(repeat.items.values):
        path = item_path(repeat.owner.path, number)
        return UnreachableAddress(
            "unknown-step", f"there is no item {path}: {len(repeat.items.values)} items"
        )
    return FutureStep()
