"""A loop at this moment: where it is, what each stage has spent, what happened last."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from loopwright.app.moments import timestamp
from loopwright.app.registry import loop_row
from loopwright.app.service import Service
from loopwright.app.views.loops import Seen, loop_status, seen
from loopwright.app.views.role_cycles import Cycle, Stage, cycles_of, stages_of
from loopwright.app.views.usage import usage_item
from loopwright.app.views.wire import fact_on_wire
from loopwright.app.views.words import goal as goal_of
from loopwright.kernel.facts import AnyFact, EffectDone, EffectFailed, Usage
from loopwright.kernel.state import State
from loopwright.model.actions import CallAgent, Steps
from loopwright.model.plan import Plan, only_repeat
from loopwright.model.record import JsonValue

RECENT = 50
_STAGE_DEPTH = 3  # `main.0.plan`: the loop, the iteration, the stage


@dataclass(slots=True)
class Spending:
    """What stages have used, by iteration and stage, and whoever else has worked."""

    known: frozenset[str]
    stages: dict[tuple[int, str], Usage] = field(default_factory=dict)
    judging: Usage = field(default_factory=Usage)
    other: Usage = field(default_factory=Usage)  # of a loop whose passes have no stages

    def take(self, path: str, used: Usage) -> None:
        parts = path.split(".")
        if not self.known:
            self.other = self.other + used
            return
        if not _in_stage(parts, self.known):
            self.judging = self.judging + used
            return
        key = int(parts[1]) + 1, parts[2].partition("~")[0]
        self.stages[key] = self.stages.get(key, Usage()) + used


def _in_stage(parts: Sequence[str], known: frozenset[str]) -> bool:
    long_enough = len(parts) >= _STAGE_DEPTH and parts[1].isdecimal()
    return long_enough and parts[2].partition("~")[0] in known


def spending(plan: Plan, facts: Iterable[AnyFact]) -> Spending:
    """What the calls of a loop have used, each where it was made; tries count together."""
    told = Spending(frozenset(one.id for one in stages_of(plan)))
    for fact in facts:
        if isinstance(fact, EffectDone | EffectFailed) and fact.usage is not None:
            told.take(fact.path, fact.usage)
    return told


def live(service: Service, reference: str) -> dict[str, JsonValue]:
    """How a loop stands."""
    row = loop_row(service, service.find(reference))
    numbered = service.facts(row.run)
    facts = [one.fact for one in numbered]
    state = service.state(row.run)
    told = seen(state.plan, facts, service.read_text)
    spent = spending(state.plan, facts)
    until = row.headline.finished_at or service.clock.now_ms()
    stages = _stages(state, cycles_of(state.plan, facts, service.read_text), spent)
    recent: list[JsonValue] = [fact_on_wire(row.run, one) for one in numbered[-RECENT:][::-1]]
    return {
        "loop": {
            "id": row.run,
            "definition": row.headline.name,
            "status": loop_status(row),
            "goal": goal_of(state),
            "labels": [*state.labels],
            "metadata": {**state.metadata, "dispatch": told.dispatch(loop_status(row))},
        },
        "position": {
            "iteration": told.iteration,
            "max_iterations": told.most,
            "stage": told.stage,
            "stage_count": len(told.stages),
        },
        "current_stage": _current(state, told, facts),
        "budget": {
            **_figures([*spent.stages.values(), spent.other]),
            "judging_tokens": _tokens(spent.judging),
            "iterations": {"used": told.iteration, "max": told.most},
            "elapsed_seconds": round((until - row.headline.started_at) / 1_000, 3),
        },
        "stages": stages,
        "recent_events": recent,
    }


def _stages(state: State, cycles: Sequence[Cycle], spent: Spending) -> list[JsonValue]:
    """Every stage of every iteration; also one that was made anew since, for what it has cost."""
    plan = {one.id: one for one in stages_of(state.plan)}
    shown: dict[tuple[int, str], Stage] = {
        (cycle.number, stage.id): stage for cycle in cycles for stage in cycle.stages
    }
    rows: list[JsonValue] = []
    for key in sorted({*shown, *spent.stages}, key=lambda key: (key[0], plan[key[1]].index)):
        stage = shown.get(key) or plan[key[1]]
        status = stage.status if key in shown else "replaced"
        figures = _figures([spent.stages.get(key, Usage())])
        rows.append({**stage.as_dict(), "status": status, "iteration": key[0], **figures})
    return rows


def _current(state: State, told: Seen, facts: Sequence[AnyFact]) -> dict[str, JsonValue] | None:
    """The stage that is under way, who works on it, and when something was heard of it last."""
    if not told.stages or told.stages[told.stage].status != "running":
        return None
    stage = told.stages[told.stage]
    agent = state.plan.agents.get(_agent(state, stage.id))
    last = max((fact.at for fact in facts if _is_inside(fact, told.asked)), default=told.at)
    return {
        **stage.as_dict(),
        "model": (agent.model or agent.spec) if agent is not None else None,
        "task_id": told.task,
        "stage_id": told.asked,
        "last_event_at": timestamp(last),
    }


def _agent(state: State, stage: str) -> str:
    loop = only_repeat(state.plan)
    steps = loop.body.steps if loop is not None and isinstance(loop.body, Steps) else ()
    calls = {one.id: one.action.agent for one in steps if isinstance(one.action, CallAgent)}
    return calls.get(stage, "")


def _is_inside(fact: AnyFact, place: str) -> bool:
    path = str(getattr(fact, "path", ""))
    return bool(place) and (path == place or path.startswith(f"{place}."))


def _figures(used: Iterable[Usage]) -> dict[str, JsonValue]:
    total = Usage()
    for one in used:
        total = total + one
    return {
        "tokens": _tokens(total),
        **usage_item(total),
    }


def _tokens(used: Usage) -> int:
    return used.input_tokens + used.output_tokens
