"""From the path of a place to what the plan says there."""

import re
from typing import NamedTuple

from loopwright.model.actions import Action, Repeat, Step, Steps
from loopwright.model.plan import Plan

_PARTS = re.compile(r"([a-z][a-z0-9_-]*)(?:~\d+)?|(?:^|\.)-?\d+|\[\d+\]")


class Whereabouts(NamedTuple):
    """What is done at a place, and the step whose policies hold there."""

    action: Action
    step: Step | None


def action_at(plan: Plan, path: str) -> Whereabouts:
    """What the plan says about a place. The path must be one of a run of this plan."""
    found = Whereabouts(Steps(steps=plan.steps), None)
    for part in _PARTS.finditer(path):
        if part[1] is not None:
            assert isinstance(found.action, Steps), path
            [inner] = [step for step in found.action.steps if step.id == part[1]]
            found = Whereabouts(inner.action, inner)
        else:
            assert isinstance(found.action, Repeat), path
            found = Whereabouts(found.action.body, found.step)
    return found
