"""What the engine itself tracks: outputs of stages as artifacts, rounds of loops as sprints.

Both are read off the facts and the plan, so there is no second truth that could fall behind them.
Ids are derived from the place, and stay the same however often they are asked for.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec

from loopwright.app.views.summary import ReadText
from loopwright.kernel.facts import (
    AnyFact,
    IterationFinished,
    IterationStarted,
    RunStarted,
    StepFinished,
    StepSkipped,
    StepStarted,
)
from loopwright.model.actions import Action, CallAgent, Cycle, Repeat, Steps
from loopwright.model.ids import last_id, parent_path, pass_number
from loopwright.model.plan import Plan
from loopwright.model.trackers import LOOP_OUTPUT, Item, Kind, Values

LINE_CHARS = 200


@dataclass(slots=True)
class Rounds:
    """What was made in one run, in the order in which it was made."""

    artifacts: list[Item] = field(default_factory=list)
    sprints: list[Item] = field(default_factory=list)

    def of(self, kind: Kind) -> list[Item]:
        return {"artifact": self.artifacts, "sprint": self.sprints}.get(kind, [])


def rounds_of(plan: Plan, facts: Iterable[AnyFact], read: ReadText) -> Rounds:
    """The rounds of a run and what its stages said."""
    reading = _Reading(plan, read)
    for fact in facts:
        reading.take(fact)
    return Rounds(artifacts=reading.artifacts, sprints=list(reading.sprints.values()))


class _Reading:
    def __init__(self, plan: Plan, read: ReadText) -> None:
        self._read = read
        self._loops = {
            step.id: step.action
            for step in plan.steps
            if isinstance(step.action, Repeat) and not isinstance(step.action.body, Cycle)
        }
        self._plan = plan
        self._run, self._scope = "", ""
        self._lines: dict[str, list[str]] = {}  # by round, one for each of its stages
        self.artifacts: list[Item] = []
        self.sprints: dict[str, Item] = {}

    def take(self, fact: AnyFact) -> None:
        match fact:
            case RunStarted(run=run, session=session):
                self._run, self._scope = run, session or run
            case IterationStarted(path=path) if self._loop(parent_path(path)) is not None:
                self._settle(parent_path(path), "rejected")
                if fact.resumed and path in self.sprints:
                    self._move(path, "in_progress")
                else:
                    self._begin(path, fact)
            case IterationFinished(path=path) if path in self.sprints:
                if isinstance(self._body(path), CallAgent):
                    self._stage(fact, path, last_id(parent_path(path)))
                self._move(path, "complete" if fact.done else "review")
            case StepStarted(path=path) | StepSkipped(path=path):
                self._lines.setdefault(parent_path(path), [])
            case StepFinished(path=path) if parent_path(path) in self.sprints:
                self._stage(fact, parent_path(path), last_id(path))
            case StepFinished(path=path, status=status) if self._loop(path) is not None:
                ended = status in ("completed", "exhausted")
                self._settle(path, "complete" if ended else "rejected")
            case _:
                pass

    def _loop(self, path: str) -> Repeat | None:
        """The loop at a place, when it is one of the run itself; tries of it count as one."""
        return self._loops.get(path.partition("~")[0])

    def _body(self, round_path: str) -> Action | None:
        loop = self._loop(parent_path(round_path))
        return loop.body if loop is not None else None

    # -- sprints

    def _begin(self, path: str, fact: IterationStarted) -> None:
        number = fact.iteration or pass_number(path) + 1
        values: Values = {
            "title": f"{self._plan.name} — iteration {number}",
            "status": "in_progress",
            "iteration": number,
            "run": self._run,
            "created_by": "engine",
        }
        self.sprints[path] = self._item("sprint", path, fact.at, values)

    def _settle(self, loop: str, becomes: str) -> None:
        """Decide about the rounds of a loop that nobody has decided about."""
        for path, sprint in self.sprints.items():
            if parent_path(path) == loop and sprint.text("status") in ("in_progress", "review"):
                self._move(path, becomes)

    def _move(self, path: str, becomes: str) -> None:
        sprint = self.sprints[path]
        values = {**sprint.values, "status": becomes, "summary": "\n".join(self._told(path))}
        self.sprints[path] = msgspec.structs.replace(
            sprint, values=values, version=sprint.version + 1
        )

    def _told(self, path: str) -> list[str]:
        return self._lines.get(path, [])

    # -- artifacts

    def _stage(self, fact: StepFinished | IterationFinished, around: str, step: str) -> None:
        number, index, role = self._stage_of(around, step)
        output = self._read(fact.output) if fact.output is not None else ""
        first = next((line.strip() for line in output.splitlines() if line.strip()), "")
        lines = self._lines.setdefault(around, [])
        lines.append(f"- {role} [{fact.status}]: {first[:LINE_CHARS]}")
        if fact.status != "completed" or not output.strip():
            return
        values: Values = {
            "type": LOOP_OUTPUT,
            "title": f"Loop output: {role} (iter {number}, stage {index})",
            "content": output,
            "role": role,
            "iteration": number,
            "stage": index,
            "run": self._run,
            "path": fact.path,
            "created_by": "engine",
        }
        self.artifacts.append(self._item("artifact", fact.path, fact.at, values))

    def _stage_of(self, around: str, step: str) -> tuple[int, int, str]:
        """The number of the round, the place of a stage in it from 0, and its role."""
        body = self._body(around)
        steps = body.steps if isinstance(body, Steps) else ()
        found = next(((n, one) for n, one in enumerate(steps) if one.id == step), None)
        index, action = (found[0], found[1].action) if found is not None else (0, body)
        return pass_number(around) + 1, index, self._role(action, step)

    def _role(self, action: Action | None, step: str) -> str:
        while isinstance(action, Repeat):
            action = action.body
        if not isinstance(action, CallAgent | Cycle):
            return step
        agent = self._plan.agents.get(action.agent)
        return (agent.role if agent is not None else None) or action.agent

    def _item(self, kind: Kind, path: str, at: int, values: Values) -> Item:
        name = blake2b(f"{self._run}/{kind}/{path}".encode(), digest_size=16).hexdigest()
        return Item(scope=self._scope, kind=kind, id=name, at=at, values=values)
