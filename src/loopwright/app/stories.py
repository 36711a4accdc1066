"""The stories of a plan: how agents, checks and people may answer in a run of it."""

from collections.abc import Iterator
from dataclasses import dataclass

from loopwright.app.stubs import STUB_ITEMS, asked_tools, can_break
from loopwright.model.actions import (
    Action,
    AskPerson,
    Cycle,
    Decision,
    Repeat,
    Step,
    Steps,
)
from loopwright.model.checks import AnyOf, Cap, Person, leaves
from loopwright.model.memory import History
from loopwright.model.plan import Plan, all_limits
from loopwright.model.template import Items


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """How the world answers."""

    name: str
    checks: bool = True  # whether checks pass
    at_last: bool = False  # checks pass in the last pass that is allowed, and not before
    broken: bool = False  # checks cannot be run
    fails: str | None = None  # the step whose agent or program fails
    tries: bool = False  # every call works with its last try only
    person: tuple[Decision, ...] = ("approve",)  # the first of these that a gate takes
    conditions: bool = True
    long_lists: bool = False  # lists that are computed are as long as they may be
    late: bool = False  # nothing answers, only time passes
    dear: bool = False  # calls use up every budget


BUDGET_STORY = "the budget runs out"
_GO_ON: tuple[Decision, ...] = ("continue", "approve")
WORST = (
    Story(name="at worst", checks=False, tries=True, person=_GO_ON, long_lists=True),
    Story(name="at worst", at_last=True, tries=True, person=_GO_ON, long_lists=True),
)


def stories(plan: Plan) -> Iterator[Story]:
    """Every story that a plan can have."""
    steps = list(_all_steps(plan.steps))
    actions = [action for step in steps for action in _actions(step.action)]
    loops = [action for action in actions if isinstance(action, Repeat)]
    checked = [loop for loop in loops if not isinstance(loop.until, Cap)]
    yield Story(name="everything works")
    if checked:
        yield Story(name="no check ever passes", checks=False, person=_GO_ON)
    if any(can_break(loop.until) for loop in checked):
        yield Story(name="no check can be run", broken=True, person=_GO_ON)
    if _asks(actions) or _has_approvals(plan, actions):
        # A person who decides together with other checks is asked when those have passed.
        together = any(_asks_after_checks(loop) for loop in loops)
        yield Story(name="a person rejects", person=("reject",), checks=together)
        yield Story(name="a person asks for more", person=("continue", "approve"))
    for step in steps:
        if not any(isinstance(one, Steps | AskPerson) for one in _actions(step.action)):
            yield Story(name=f"{step.id} fails", fails=step.id)
    if any(step.when is not None for step in steps):
        yield Story(name="no condition holds", conditions=False)
    limits = all_limits(plan)
    if any(one.wall_ms is not None or one.pass_wall_ms is not None for one in limits):
        yield Story(name="the time runs out", late=True)
    if any(one.usd is not None or one.tokens is not None for one in limits):
        yield Story(name=BUDGET_STORY, dear=True, checks=False, person=_GO_ON)


def _all_steps(steps: tuple[Step, ...]) -> Iterator[Step]:
    for step in steps:
        yield step
        for action in _actions(step.action):
            if isinstance(action, Steps):
                yield from _all_steps(action.steps)


def _actions(action: Action) -> Iterator[Action]:
    """An action and the bodies of its loops; steps inside are steps of their own."""
    yield action
    if isinstance(action, Repeat):
        yield from _actions(action.body)


def _asks(actions: list[Action]) -> bool:
    return any(
        isinstance(one, AskPerson)
        or (
            isinstance(one, Repeat)
            and (
                one.gate is not None
                or one.at_cap == "ask"
                or any(isinstance(leaf, Person) for leaf in leaves(one.until))
            )
        )
        for one in actions
    )


def _asks_after_checks(loop: Repeat) -> bool:
    people = any(isinstance(leaf, Person) for leaf in leaves(loop.until))
    return people and not isinstance(loop.until, AnyOf)


def _has_approvals(plan: Plan, actions: list[Action]) -> bool:
    """Whether a person may be asked about a tool of a chat model."""
    agents = [plan.agents.get(one.agent) for one in actions if isinstance(one, Cycle)]
    return any(asked_tools(agent) for agent in agents if agent is not None)


def assumed(plan: Plan) -> Iterator[str]:
    """What a rehearsal takes for granted, in words."""
    for step in _all_steps(plan.steps):
        for action in _actions(step.action):
            if not isinstance(action, Repeat):
                continue
            each, memory = action.each, action.memory
            if each is not None and not isinstance(each.items, Items):
                yield f"{step.id}: a list of {STUB_ITEMS} items, of at most {each.max_items}"
            if isinstance(memory, History) and memory.strategy == "periodic-summary":
                yield f"{step.id}: no summary is needed, of at most {memory.summaries} more calls"
