"""Which step an address means, and how that step stands."""

from __future__ import annotations

import pytest

from loopwright.kernel.addresses import (
    EndedStep,
    FutureStep,
    RunningStep,
    UnreachableAddress,
    locate,
    reachable,
    resolve_address,
)
from loopwright.model.actions import CallAgent, Each, Repeat, RunCommand, Step, Steps
from loopwright.model.ids import judge_path, logical_path
from loopwright.model.plan import Plan
from loopwright.model.record import LiteralItems
from tests.kernel.driving import Driver, plan_of_steps

WORK = CallAgent(agent="a")
EACH = Each(items=LiteralItems(values=("x", "y", "z")), parallel=2)


def inner(*names: str) -> Steps:
    return Steps(steps=tuple(Step(id=name, action=WORK) for name in names))


PLAN = plan_of_steps(
    Step(id="first", action=WORK),
    Step(id="dev", action=Repeat(body=inner("code", "review"), max=3)),
    Step(id="each", action=Repeat(body=inner("deploy"), each=EACH)),
    Step(id="one", action=Repeat(body=WORK, max=2)),
    Step(id="all", action=Repeat(body=WORK, each=EACH)),
    Step(id="make", action=RunCommand(argv=("make",))),
    Step(id="sub", action=inner("review")),
    Step(id="later", action=WORK, needs=("first",)),
    Step(id="deep", action=Repeat(body=Repeat(body=WORK, max=2), max=2), needs=("first",)),
)


def begun(plan: Plan = PLAN) -> Driver:
    return Driver(plan).start()


@pytest.mark.parametrize(
    ("path", "logical"),
    [
        ("dev.0.review", "dev.review"),
        ("dev~2.13.review", "dev.review"),
        ("dev.0.in.1.x", "dev.in.x"),
        ("each[3].deploy", "each[3].deploy"),
        ("out.1.each[0].deploy", "out.each[0].deploy"),
        ("out.2[3]", "out[3]"),
        ("one.0", "one"),
        ("one", "one"),
        ("main.-1", "main"),
        ("v2.step-3", "v2.step-3"),
    ],
)
def test_a_step_whatever_its_pass(path: str, logical: str) -> None:
    """Passes and tries are left out of a name, items are not."""
    assert logical_path(path) == logical
    assert judge_path("dev") == "dev.judge"


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("first", "first"),
        (" first ", "first"),
        ("dev.0.code", "dev.code"),
        ("dev.7.code", "dev.code"),
        ("dev.code", "dev.code"),
        ("code", "dev.code"),
        ("each[1].deploy", "each[1].deploy"),
        ("one", "one"),
        ("one.1", "one"),
        ("all[0]", "all[0]"),
        ("sub.review", "sub.review"),
        ("deep.0.1", "deep"),
    ],
)
def test_an_address_that_is_understood(address: str, key: str) -> None:
    """By the name in events, without the iteration, or bare where that fits one step."""
    assert resolve_address(begun().state, address) == key


@pytest.mark.parametrize(
    ("address", "reason", "known"),
    [
        ("nobody", "unknown-step", None),
        ("", "unknown-step", None),
        ("dev.nobody", "unknown-step", None),
        ("review", "ambiguous", ("dev.0.review", "sub.review")),
        ("deploy", "ambiguous", ("each[0].deploy", "each[1].deploy")),
        ("dev", "container", ("dev.0.code", "dev.0.review")),
        ("each", "container", ("each[0].deploy", "each[1].deploy")),
        ("each[0]", "container", ("each[0].deploy",)),
        ("sub", "container", ("sub.review",)),
        ("make", "not-an-agent", ()),
    ],
)
def test_an_address_that_is_not(address: str, reason: str, known: tuple[str, ...] | None) -> None:
    """The reason has a name, and what would be understood is listed."""
    state = begun().state
    found = resolve_address(state, address)
    assert isinstance(found, UnreachableAddress)
    assert found.reason == reason
    assert found.known == (tuple(reachable(state)) if known is None else known)


def test_a_bare_name_of_a_container_alone_is_a_container() -> None:
    """A bare name that only fits a loop inside another is refused as a loop."""
    nested = Step(
        id="dev", action=Repeat(body=Steps(steps=(Step(id="in", action=inner("x")),)), max=1)
    )
    found = resolve_address(begun(plan_of_steps(nested)).state, "in")
    assert isinstance(found, UnreachableAddress)
    assert found.reason == "container"


def test_a_bare_name_means_the_step_that_still_reads() -> None:
    """Of two steps of one name, the one that has ended does not make it ambiguous."""
    plan = plan_of_steps(
        Step(id="p", action=Repeat(body=inner("w"), max=1, at_cap="complete")),
        Step(id="q", action=Repeat(body=inner("w"), max=1), needs=("p",)),
    )
    run = begun(plan)
    run.answer("p.0.w/agent#1", "x")
    assert resolve_address(run.state, "w") == "q.w"


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("first", RunningStep),
        ("dev.code", RunningStep),
        ("each[0].deploy", RunningStep),
        ("each[2].deploy", FutureStep),
        ("each[9].deploy", UnreachableAddress),
        ("each.deploy", UnreachableAddress),
        ("all[1]", RunningStep),
        ("all[2]", FutureStep),
        ("one", RunningStep),
        ("later", FutureStep),
        ("deep", FutureStep),
    ],
)
def test_where_a_step_is(key: str, kind: type) -> None:
    """Under way, still to come, or not there at all."""
    assert type(locate(begun().state, key)) is kind


def test_a_step_that_has_ended() -> None:
    """Over at the top; inside a loop another iteration may come, inside an item none does."""
    run = begun()
    run.answer("first/agent#1", "x")
    run.answer("dev.0.code/agent#1", "x")
    run.answer("each[0].deploy/agent#1", "x")
    run.answer("all[0]/agent#1", "x")
    state = run.state
    top, item = locate(state, "first"), locate(state, "each[0].deploy")
    assert isinstance(top, EndedStep)
    assert top.step is not None
    assert isinstance(item, EndedStep)
    assert (item.step, item.status) == (None, "completed")
    assert isinstance(locate(state, "all[0]"), EndedStep)
    assert isinstance(locate(state, "dev.code"), FutureStep)
    assert isinstance(locate(state, "deep"), RunningStep)


def test_between_two_iterations_a_step_is_still_to_come() -> None:
    """A loop that waits before its next iteration has nothing under way; its items come again."""
    each = Step(id="e", action=Repeat(body=WORK, each=EACH))
    rest = Step(id="r", action=WORK)
    body = Steps(steps=(each, rest))
    plan = plan_of_steps(Step(id="dev", action=Repeat(body=body, max=2, delay_ms=1_000)))
    run = begun(plan)
    run.answer("dev.0.e[0]/agent#1", "x")
    assert isinstance(locate(run.state, "dev.e[0]"), FutureStep)
    for effect in ("dev.0.e[1]/agent#1", "dev.0.e[2]/agent#1", "dev.0.r/agent#1"):
        run.answer(effect, "x")
    assert isinstance(locate(run.state, "dev.r"), FutureStep)


def test_an_item_that_was_cut_short_is_over() -> None:
    """An item without a result of its own counts as cancelled."""
    run = begun(plan_of_steps(Step(id="all", action=Repeat(body=inner("d"), each=EACH))))
    repeat = run.state.root.body.active["all"].body
    assert isinstance(repeat, type(repeat))
    run.answer("all[1].d/agent#1", "x")
    where = locate(run.state, "all[1].d")
    assert isinstance(where, EndedStep)
    repeat.started = 3  # type: ignore[union-attr]
    repeat.active.pop(0)  # type: ignore[union-attr]
    repeat.items.results.clear()  # type: ignore[union-attr]
    gone = locate(run.state, "all[0].d")
    assert isinstance(gone, EndedStep)
    assert gone.status == "cancelled"
