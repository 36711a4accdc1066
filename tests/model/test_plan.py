"""The Plan on disk: what is written is what is read."""

from __future__ import annotations

import typing

import msgspec
import pytest
from hypothesis import given, settings

from loopwright.model import actions, checks, policy
from loopwright.model.actions import Action, CallAgent, Condition, Origin, Repeat, Step, Steps, Wait
from loopwright.model.plan import (
    PLAN_VERSION,
    Agent,
    Plan,
    decode_plan,
    encode_agent,
    encode_plan,
    only_repeat,
    unplaced,
)
from loopwright.model.policy import Memory
from loopwright.model.record import Record
from tests.model.plans import one_step, plans

WORK = CallAgent(agent="a")
LOOP = Repeat(body=WORK, max=2)


@settings(max_examples=80)
@given(plan=plans())
def test_any_plan_round_trips(plan: Plan) -> None:
    """Encoding and decoding gives an equal plan, and equal bytes the second time."""
    data = encode_plan(plan)
    again = decode_plan(data)
    assert again == plan
    assert encode_plan(again) == data


def test_defaults_take_no_room() -> None:
    """What is as by default is not written."""
    plan = one_step(Wait(ms=1))
    assert (
        encode_plan(plan) == b'{"name":"t","steps":[{"id":"main","action":{"do":"wait","ms":1}}]}'
    )


@pytest.mark.parametrize(
    ("agent", "written"),
    [
        pytest.param(Agent(), b"{}", id="nothing said"),
        pytest.param(
            Agent(spec="model:a/b", system=""), b'{"spec":"model:a/b"}', id="said as by default"
        ),
        pytest.param(
            Agent(options={"n": 1}, max_usd=0.5), b'{"max_usd":0.5,"options":{"n":1}}', id="more"
        ),
    ],
)
def test_an_agent_alone(agent: Agent, written: bytes) -> None:
    """What is said of an agent, and nothing else, tells it from others."""
    assert encode_agent(agent) == written


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b'{"name":"t","steps":[],"colour":1}', id="unknown field of the plan"),
        pytest.param(
            b'{"name":"t","steps":[{"id":"a","action":{"do":"wait","ms":1,"x":1}}]}',
            id="unknown field of an action",
        ),
        pytest.param(
            b'{"name":"t","steps":[{"id":"a","action":{"do":"dance"}}]}', id="unknown action"
        ),
        pytest.param(
            b'{"name":"t","steps":[{"id":"a","action":{"do":"wait","ms":"1"}}]}', id="text as ms"
        ),
        pytest.param(b'{"steps":[]}', id="no name"),
        pytest.param(b"{", id="not JSON"),
    ],
)
def test_what_is_not_a_plan_is_refused(text: bytes) -> None:
    """Nothing unknown, mistyped or missing becomes a plan."""
    with pytest.raises(msgspec.DecodeError):
        decode_plan(text)


def test_records_are_frozen() -> None:
    """A plan never changes."""
    with pytest.raises(AttributeError):
        one_step(WORK).name = "other"


def test_version_is_known() -> None:
    """Every plan says which version of the model it was written for."""
    assert one_step(WORK).version == PLAN_VERSION


def tags(union: object) -> dict[str, type[Record]]:
    return {kind.__struct_config__.tag: kind for kind in typing.get_args(union)}


@pytest.mark.parametrize(
    ("union", "expected"),
    [
        pytest.param(
            Action,
            "agent command cycle fail gate repeat script steps stop wait",
            id="actions",
        ),
        pytest.param(
            checks.Check,
            "all any approval cap command contains expr field goal judge no-calls path person"
            " regex schema script signal spend tool-result",
            id="checks",
        ),
        pytest.param(
            Memory, "history none previous-output progress-log session stages", id="memories"
        ),
    ],
)
def test_names_on_disk(union: object, expected: str) -> None:
    """The tag of each kind is written to disk for ever and has one meaning."""
    assert sorted(tags(union)) == expected.split()


def test_modules_hide_no_kind() -> None:
    """Every record with a tag belongs to a union: nothing can be written that cannot be read."""
    known = set(typing.get_args(Action)) | set(typing.get_args(checks.Check))
    known |= set(typing.get_args(Memory)) | set(typing.get_args(Condition))
    found = {
        value
        for module in (actions, checks, policy)
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Record)
        and value.__struct_config__.tag is not None
        and value.__module__ == module.__name__
    }
    assert found <= known


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        pytest.param((Step(id="a", action=LOOP),), True, id="one loop"),
        pytest.param((Step(id="a", action=WORK),), False, id="no loop"),
        pytest.param((Step(id="a", action=LOOP), Step(id="b", action=LOOP)), False, id="two loops"),
        pytest.param(
            (Step(id="a", action=WORK), Step(id="b", action=LOOP)), True, id="a loop among steps"
        ),
        pytest.param(
            (Step(id="a", action=Steps(steps=(Step(id="b", action=LOOP),))),),
            True,
            id="a loop inside a graph",
        ),
        pytest.param(
            (Step(id="a", action=Repeat(body=LOOP, max=2)),), True, id="a loop in a loop is inner"
        ),
    ],
)
def test_the_only_loop(steps: tuple[Step, ...], found: bool) -> None:
    """A plan has a loop to show when exactly one is outermost."""
    loop = only_repeat(Plan(name="t", steps=steps))
    assert isinstance(loop, Repeat) is found


def test_agents_start_with_nothing_decided() -> None:
    """An agent that is only named leaves every choice open."""
    assert Agent() == Agent(spec=None, tools=None, env={}, options={})


def test_places_can_be_left_out() -> None:
    """At any depth, and nothing else is."""

    def plan(origin: Origin | None) -> Plan:
        inner = Step(id="b", action=WORK, origin=origin)
        outer = Step(id="a", action=Repeat(body=Steps(steps=(inner,)), max=2), origin=origin)
        return Plan(name="t", steps=(outer,))

    placed = plan(Origin(line=3, column=1))
    assert unplaced(placed) == plan(None) != placed
