"""Stub answers of a dry run: how agents, checks and people may answer in a simulated run.

Checks that read an agent's answer, conditions and computed lists are unknown before the agent
has answered. A dry run treats them like commands, and the scenario provides the result.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

import msgspec

from loopwright.kernel.bodies.conversation import SUBMIT
from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    Cel,
    Decision,
    Each,
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
from loopwright.model.chat import AssistantMessage, CallPart, ModelTurn, RequestedCall, TextPart
from loopwright.model.checks import (
    AllOf,
    AnyOf,
    Cap,
    Check,
    CommandCheck,
    Expr,
    Goal,
    Judge,
    PersonCheck,
    ScriptCheck,
    SpendCheck,
    leaves,
)
from loopwright.model.plan import Agent, Plan, all_limits
from loopwright.model.policy import ConversationHistory
from loopwright.model.record import JsonValue, LiteralItems

STUB_ITEMS = 2
STUB = "stub-check"
_QUESTIONS = (Cap, CommandCheck, ScriptCheck, Judge, Goal, PersonCheck, SpendCheck)
_BREAKABLE = (CommandCheck, ScriptCheck, Judge, Goal, Expr)
_BY_TYPE: dict[str, JsonValue] = {
    "string": "text",
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "null": None,
    "array": [],
}


@dataclass(frozen=True, slots=True)
class Stubs:
    """What a rehearsal assumes: all conditions hold or none does; lists are short or long."""

    conditions: bool = True
    long_lists: bool = False

    def plan(self, plan: Plan) -> Plan:
        """The plan as it can be simulated."""
        # Whatever the backend of an agent is, a call of it is one call here.
        agents = {
            name: msgspec.structs.replace(one, spec=None) for name, one in plan.agents.items()
        }
        steps = tuple(map(self._step, plan.steps))
        return msgspec.structs.replace(plan, steps=steps, agents=agents)

    def _step(self, step: Step) -> Step:
        when = step.when
        if when is not None:
            when = None if self.conditions else Cel(text="false")
        return msgspec.structs.replace(step, when=when, action=self._action(step.action))

    def _action(self, action: Action) -> Action:
        match action:
            case Steps(steps=steps):
                return msgspec.structs.replace(action, steps=tuple(map(self._step, steps)))
            case Repeat():
                return msgspec.structs.replace(
                    action,
                    body=self._action(action.body),
                    until=_check(action.until),
                    each=self._each(action.each),
                )
            case CallAgent() | ModelCycle() | RunCommand() | RunScript():
                return action
            case AskPerson() | Wait() | StopRun() | FailStep():
                return action
            case _:
                assert_never(action)

    def _each(self, each: Each | None) -> Each | None:
        if each is None or isinstance(each.items, LiteralItems):
            return each
        count = each.max_items if self.long_lists else STUB_ITEMS
        return msgspec.structs.replace(each, items=LiteralItems(values=tuple(range(count))))


def _check(check: Check) -> Check:
    if isinstance(check, AnyOf | AllOf):
        return msgspec.structs.replace(check, parts=tuple(map(_check, check.parts)))
    if isinstance(check, _QUESTIONS):
        return check
    return CommandCheck(argv=(STUB, str(type(check).__struct_config__.tag)))


def can_break(check: Check) -> bool:
    """Whether something of it may not be askable; what only reads a text always is."""
    return any(isinstance(leaf, _BREAKABLE) for leaf in leaves(check))


def stub_turn(agent: Agent | None, text: str, schema: JsonValue, *, ends: bool) -> ModelTurn:
    """A turn of a chat model. One that does not end the conversation asks for a tool, if there is
    one that a person must see first for that; a result that is wanted is handed in.
    """
    wanted: list[RequestedCall] = []
    if schema is not None and ends:
        wanted.append(RequestedCall(id="stub-result", tool=SUBMIT, arguments=sample(schema)))
    tool = None if ends else _tool(agent)
    if tool is not None:
        wanted.append(RequestedCall(id="stub", tool=tool, arguments={}, paths=None))
    parts = [
        CallPart(id=one.id, tool=one.tool, args=msgspec.json.encode(one.arguments).decode())
        for one in wanted
    ]
    message = AssistantMessage(parts=(TextPart(text=text), *parts))
    return ModelTurn(message=message, calls=tuple(wanted), model=STUB)


def approved_tools(agent: Agent) -> list[str]:
    """The tools of an agent that a person must see before they are used."""
    return [tool for tool, rule in agent.approvals.items() if rule != "never"]


def _tool(agent: Agent | None) -> str | None:
    if agent is None:
        return STUB
    return next(iter([*approved_tools(agent), *(agent.tools or ()), STUB]))


def sample(schema: JsonValue) -> JsonValue:
    """A small value of the kind that a JSON Schema describes."""
    if not isinstance(schema, dict):
        return {}
    for known in ("const", "default"):
        if known in schema:
            return schema[known]
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return choices[0]
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        kind = kind[0] if kind else "object"
    if kind != "object":
        return _BY_TYPE.get(str(kind))
    properties = schema.get("properties")
    named = properties if isinstance(properties, dict) else {}
    return {name: sample(value) for name, value in named.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """How the world answers."""

    name: str
    checks: bool = True  # whether checks pass
    at_last: bool = False  # checks pass in the last allowed iteration, and not before
    broken: bool = False  # checks cannot be run
    fails: str | None = None  # the step whose agent or program fails
    tries: bool = False  # every call works with its last try only
    person: tuple[Decision, ...] = ("approve",)  # the first of these that a gate takes
    conditions: bool = True
    long_lists: bool = False  # lists that are computed are as long as they may be
    late: bool = False  # nothing answers, only time passes
    dear: bool = False  # calls use up every budget


BUDGET_SCENARIO = "the budget runs out"
_GO_ON: tuple[Decision, ...] = ("continue", "approve")
WORST = (
    Scenario(name="at worst", checks=False, tries=True, person=_GO_ON, long_lists=True),
    Scenario(name="at worst", at_last=True, tries=True, person=_GO_ON, long_lists=True),
)


def scenarios(plan: Plan) -> Iterator[Scenario]:
    """Every scenario that a plan can have."""
    steps = list(_all_steps(plan.steps))
    actions = [action for step in steps for action in _actions(step.action)]
    loops = [action for action in actions if isinstance(action, Repeat)]
    checked = [loop for loop in loops if not isinstance(loop.until, Cap)]
    yield Scenario(name="everything works")
    if checked:
        yield Scenario(name="no check ever passes", checks=False, person=_GO_ON)
    if any(can_break(loop.until) for loop in checked):
        yield Scenario(name="no check can be run", broken=True, person=_GO_ON)
    if _asks(actions) or _has_approvals(plan, actions):
        # A person who decides together with other checks is asked when those have passed.
        together = any(_asks_after_checks(loop) for loop in loops)
        yield Scenario(name="a person rejects", person=("reject",), checks=together)
        yield Scenario(name="a person asks for more", person=("continue", "approve"))
    for step in steps:
        if not any(isinstance(one, Steps | AskPerson) for one in _actions(step.action)):
            yield Scenario(name=f"{step.id} fails", fails=step.id)
    if any(step.when is not None for step in steps):
        yield Scenario(name="no condition holds", conditions=False)
    limits = all_limits(plan)
    if any(one.wall_ms is not None or one.pass_wall_ms is not None for one in limits):
        yield Scenario(name="the time runs out", late=True)
    if any(one.usd is not None or one.tokens is not None for one in limits):
        yield Scenario(name=BUDGET_SCENARIO, dear=True, checks=False, person=_GO_ON)


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
                or any(isinstance(leaf, PersonCheck) for leaf in leaves(one.until))
            )
        )
        for one in actions
    )


def _asks_after_checks(loop: Repeat) -> bool:
    people = any(isinstance(leaf, PersonCheck) for leaf in leaves(loop.until))
    return people and not isinstance(loop.until, AnyOf)


def _has_approvals(plan: Plan, actions: list[Action]) -> bool:
    """Whether a person may be asked about a tool of a chat model."""
    agents = [plan.agents.get(one.agent) for one in actions if isinstance(one, ModelCycle)]
    return any(approved_tools(agent) for agent in agents if agent is not None)


def assumed(plan: Plan) -> Iterator[str]:
    """What a rehearsal takes for granted, in words."""
    for step in _all_steps(plan.steps):
        for action in _actions(step.action):
            if not isinstance(action, Repeat):
                continue
            each, memory = action.each, action.memory
            if each is not None and not isinstance(each.items, LiteralItems):
                yield f"{step.id}: a list of {STUB_ITEMS} items, of at most {each.max_items}"
            if isinstance(memory, ConversationHistory) and memory.strategy == "periodic-summary":
                yield f"{step.id}: no summary is needed, of at most {memory.summaries} more calls"
