"""A loop of stages as one sheet: the loop, its iterations and their stages, read off its facts."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from loopwright.app.service import Service, row_ended
from loopwright.app.views.loops import Seen, loop_status, seen, shown_time
from loopwright.app.views.role_cycles import Cycle, Stage, cycles_of, stages_of
from loopwright.app.views.stage_moves import RUNNING, Move, StageMoves
from loopwright.app.views.words import goal as goal_of
from loopwright.kernel.facts import GateOpened
from loopwright.kernel.fold import fold
from loopwright.kernel.state import State
from loopwright.model.checks import Approval, Goal, leaves
from loopwright.model.plan import only_repeat
from loopwright.model.record import JsonValue
from loopwright.model.template import Lit
from loopwright.ports import Numbered, RunRow

RESULT_CHARS = 2_000
CUT = "\n[… cut: read the whole of it in the run]"
FIRST_CHARS = 200

Part = dict[str, JsonValue]


@dataclass(slots=True)
class Times:
    """When a stage began and ended, the last time it ran."""

    started: int | None = None
    ended: int | None = None


@dataclass(slots=True)
class Sheet:
    """A loop as it is now."""

    row: RunRow
    state: State
    seen: Seen
    cycles: list[Cycle]
    blocked: Part | None = None
    times: dict[tuple[int, int], Times] = field(default_factory=dict)

    # -- the loop

    @property
    def status(self) -> str:
        return loop_status(self.row)

    def loop(self) -> Part:
        head, started = self.row.headline, self.state.started
        assert started is not None, "a run begins with this"
        parameters: JsonValue = dict(started.inputs)
        return {
            "id": self.row.run,
            "definition_name": head.name,
            "session_id": head.session or None,
            "project_id": started.project or None,
            "goal": goal_of(self.state),
            "status": self.status,
            "outcome": head.status if row_ended(self.row) else None,
            "reason": head.reason or None,
            "current_iteration": max(self.seen.iteration, 1),
            "current_stage": self.seen.stage,
            "max_iterations": self.seen.most,
            "termination_criteria": self._criteria(),
            "configuration": {"plan": started.plan, "resolved_parameters": parameters},
            "started_at": shown_time(head.started_at),
            "completed_at": shown_time(head.finished_at),
            "last_activity_at": shown_time(head.updated_at),
            "metadata": self._metadata(),
            "labels": [*self.state.labels],
            "origin": "conversation" if head.session else "headless",
            "escalation": self.blocked,
            "started_by": started.by,
        }

    def _metadata(self) -> Part:
        return {**self.state.metadata, "dispatch": self.seen.dispatch(self.status)}

    def _criteria(self) -> str | None:
        """What approved or reached means, with the parameters of the loop."""
        started = self.state.started
        inputs = started.inputs if started is not None else {}
        loop = only_repeat(self.state.plan)
        for check in leaves(loop.until) if loop is not None and loop.until is not None else ():
            if isinstance(check, Approval | Goal):
                words = check.criteria if isinstance(check, Approval) else check.prompt
                parts = (
                    part.text if isinstance(part, Lit) else str(inputs.get(part.name or "", ""))
                    for part in words
                )
                return "".join(parts) or None
        return None

    # -- iterations and stages

    def newest(self) -> Cycle:
        """The newest iteration; before the first has begun, the first as it will be."""
        if self.cycles:
            return self.cycles[-1]
        return Cycle(1, stages_of(self.state.plan), self.row.headline.started_at)

    def iteration(self, cycle: Cycle) -> Part:
        run = self.row.run
        return {
            "id": cycle.name(run),
            "loop_id": run,
            "iteration_number": cycle.number,
            "status": cycle.status,
            "outcome_summary": _outcome(cycle) if cycle.finished_at is not None else None,
            "started_at": shown_time(cycle.started_at),
            "completed_at": shown_time(cycle.finished_at),
            "duration_seconds": cycle.seconds,
            "stage_count": len(cycle.stages),
            "completed_stage_count": cycle.completed,
        }

    def stages(self, cycle: Cycle) -> list[JsonValue]:
        return [self._stage(cycle, one) for one in cycle.stages]

    def _stage(self, cycle: Cycle, stage: Stage) -> Part:
        name, times = cycle.name(self.row.run), self.times.get((cycle.number, stage.index), Times())
        return {
            "id": f"{name}.{stage.index}",
            "iteration_id": name,
            "stage_index": stage.index,
            "name": stage.id,
            "role": stage.role,
            "status": stage.status,
            "result_summary": _cut(stage.summary) or None,
            "started_at": shown_time(times.started),
            "completed_at": shown_time(times.ended),
        }

    def in_full(self, cycle: Cycle) -> Part:
        return {**self.iteration(cycle), "stages": self.stages(cycle)}


def sheet(service: Service, row: RunRow) -> Sheet:
    """The sheet of a loop."""
    numbered = service.facts(row.run)
    facts = [one.fact for one in numbered]
    plan = service.plan(facts[0])
    now = row.headline.finished_at or service.clock.now_ms()
    made = Sheet(
        row=row,
        state=fold(plan, facts),
        seen=seen(plan, facts, service.read_text),
        cycles=cycles_of(plan, facts, service.read_text, now=now),
    )
    made.blocked = _escalation(made.state, numbered)
    moves = StageMoves(plan)
    for one in numbered:
        move = moves.take(one)
        if move is not None:
            _time(made.times, move)
    return made


def _time(times: dict[tuple[int, int], Times], move: Move) -> None:
    known = times.setdefault((move.iteration, move.index), Times())
    if move.status == RUNNING:
        known.started, known.ended = move.at, None
    else:
        known.ended = move.at


def _escalation(state: State, facts: Sequence[Numbered]) -> Part | None:
    """Why a loop is blocked, and the gate whose answer lets it go on."""
    for one in reversed(facts):
        fact = one.fact
        if isinstance(fact, GateOpened) and fact.gate in state.gates:
            answers: list[JsonValue] = list(fact.answers)
            return {
                "gate": fact.gate,
                "about": fact.about,
                "reason": fact.message,
                "answers": answers,
                "at": shown_time(fact.at),
            }
    return None


def _cut(text: str) -> str:
    return text if len(text) <= RESULT_CHARS else text[:RESULT_CHARS] + CUT


def _outcome(cycle: Cycle) -> str:
    lines = []
    for one in cycle.stages:
        first = one.summary.strip().splitlines()[:1]
        lines.append(f"- {one.role} [{one.status}]: {first[0][:FIRST_CHARS] if first else ''}")
    return "\n".join(lines)
