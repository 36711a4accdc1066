"""Stubs: what a rehearsal puts in the place of the world.

Checks that read what an agent said, conditions and lists that are computed cannot be known before
the agent has spoken. In a rehearsal they are asked like commands, and the story says the answer.
"""

from dataclasses import dataclass

import msgspec

from loopwright.kernel.cycles import SUBMIT
from loopwright.model.actions import Action, Each, Repeat, Step, Steps
from loopwright.model.checks import (
    AllOf,
    AnyOf,
    Cap,
    Check,
    Command,
    Expr,
    Goal,
    Judge,
    Person,
    Script,
    Spend,
    leaves,
)
from loopwright.model.expr import Cel
from loopwright.model.messages import AssistantMessage, CallPart, TextPart
from loopwright.model.plan import Agent, Plan
from loopwright.model.record import JsonValue
from loopwright.model.template import Items
from loopwright.model.turns import Turn, WantedCall

STUB_ITEMS = 2
STUB = "stub-check"
_ASKED = (Cap, Command, Script, Judge, Goal, Person, Spend)
_BREAKABLE = (Command, Script, Judge, Goal, Expr)
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
        """The plan as it can be rehearsed."""
        # Whatever stands behind an agent, a call of it is one call here.
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
            case _:
                return action

    def _each(self, each: Each | None) -> Each | None:
        if each is None or isinstance(each.items, Items):
            return each
        count = each.max_items if self.long_lists else STUB_ITEMS
        return msgspec.structs.replace(each, items=Items(values=tuple(range(count))))


def _check(check: Check) -> Check:
    match check:
        case AnyOf(parts=parts) | AllOf(parts=parts):
            return msgspec.structs.replace(check, parts=tuple(map(_check, parts)))
        case _ if isinstance(check, _ASKED):
            return check
        case _:
            return Command(argv=(STUB, str(type(check).__struct_config__.tag)))


def can_break(check: Check) -> bool:
    """Whether something of it may not be askable; what only reads a text always is."""
    return any(isinstance(leaf, _BREAKABLE) for leaf in leaves(check))


def stub_turn(agent: Agent | None, text: str, schema: JsonValue, *, ends: bool) -> Turn:
    """A turn of a chat model. One that does not end the conversation asks for a tool, if there is
    one that a person must see first for that; a result that is wanted is handed in.
    """
    wanted: list[WantedCall] = []
    if schema is not None and ends:
        wanted.append(WantedCall(id="stub-result", tool=SUBMIT, arguments=sample(schema)))
    tool = None if ends else _tool(agent)
    if tool is not None:
        wanted.append(WantedCall(id="stub", tool=tool, arguments={}, paths=None))
    parts = [
        CallPart(id=one.id, tool=one.tool, args=msgspec.json.encode(one.arguments).decode())
        for one in wanted
    ]
    message = AssistantMessage(parts=(TextPart(text=text), *parts))
    return Turn(message=message, calls=tuple(wanted), model=STUB)


def asked_tools(agent: Agent) -> list[str]:
    """The tools of an agent that a person must see before they are used."""
    return [tool for tool, rule in agent.approvals.items() if rule != "never"]


def _tool(agent: Agent | None) -> str | None:
    if agent is None:
        return STUB
    return next(iter([*asked_tools(agent), *(agent.tools or ()), STUB]))


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
