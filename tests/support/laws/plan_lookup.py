"""Look up the action of the plan for a path of a run."""

import re
from typing import NamedTuple

from loopwright.kernel.state import conversation
from loopwright.model.actions import Action, CallAgent, Repeat, Step, Steps
from loopwright.model.plan import Agent, Plan

_PARTS = re.compile(r"([a-z][a-z0-9_-]*)(?:~\d+)?|(?:^|\.)-?\d+|\[\d+\]")


class PlanPlace(NamedTuple):
    """What is done at a place, and the step whose policies hold there."""

    action: Action
    step: Step | None


def action_at(plan: Plan, path: str) -> PlanPlace:
    """What the plan says about a place. The path must be one of a run of this plan."""
    found = PlanPlace(Steps(steps=plan.steps), None)
    for part in _PARTS.finditer(path):
        if part[1] is not None:
            assert isinstance(found.action, Steps), path
            [inner] = [step for step in found.action.steps if step.id == part[1]]
            found = PlanPlace(inner.action, inner)
        else:
            found = PlanPlace(_loop(plan, found.action).body, found.step)
    return found


def loop_at(plan: Plan, path: str) -> Repeat:
    """The loop at a place."""
    return _loop(plan, action_at(plan, path).action)


def _loop(plan: Plan, action: Action) -> Repeat:
    """A loop as it was written, or the conversation that a call of a chat model is."""
    if isinstance(action, CallAgent):
        return conversation(plan.agents.get(action.agent, Agent()), action)
    assert isinstance(action, Repeat), action
    return action
