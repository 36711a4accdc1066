"""Plans by chance: every word of the model that the kernel decides, each loop with an end.

Everything comes from the dice that are passed in. What a step may speak of is what it needs, as in
a definition that passes validation; some of it is not there when it is looked for, on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    Cel,
    Compare,
    Condition,
    Each,
    EveryOf,
    LoopGate,
    Repeat,
    Rework,
    RunCommand,
    RunScript,
    SomeOf,
    Step,
    Steps,
    StopRun,
    Wait,
)
from loopwright.model.checks import (
    AllOf,
    AnyOf,
    Cap,
    Check,
    CommandCheck,
    Contains,
    Expr,
    Goal,
    Judge,
    OutputSchema,
    PersonCheck,
    Regex,
    ResultField,
    ScriptCheck,
    Signal,
)
from loopwright.model.plan import Agent, Input, Plan
from loopwright.model.policy import (
    FailureKind,
    Limits,
    NoMemory,
    PreviousOutput,
    ProgressLog,
    Retry,
    SameSession,
    StageOutputs,
)
from loopwright.model.record import (
    ItemsExpr,
    ItemsFrom,
    ItemSource,
    JsonValue,
    LiteralItems,
    Ref,
    literal,
)

Names = tuple[str, ...]

JOINS = (
    *["all_success"] * 4,
    "all_done",
    "one_success",
    "finished_ok",
    "none_failed_min_one_success",
)
MEMORIES = (
    NoMemory(),
    ProgressLog(),
    PreviousOutput(),
    PreviousOutput(by_step=True),
    StageOutputs(),
    SameSession(),
)
OF_THE_PLACE = (
    *("message", "input", "run", "setting", "workspace", "rejection", "item", "index"),
    *("iteration", "max", "previous", "feedback"),
)
RETRIED: tuple[tuple[FailureKind, ...], ...] = (
    ("overloaded", "rate_limited"),
    ("overloaded", "rate_limited"),
    ("any",),
    ("exit", "agent"),
)


def random_plan(dice: Random) -> Plan:
    """A plan that ends by itself: every loop has a cap or a list."""
    return Plan(
        name="chance",
        steps=_steps(dice, 2, ()),
        agents={name: Agent() for name in ("worker", "judge", "fixer")},
        inputs={"n": Input(default=3)},
        message=literal("make it work"),
        on_failure=dice.choice(("cascade", "cascade", "skip", "abort")),
        parallel=dice.choice((None, None, 1, 2)),
        outcome=dice.choice(("worst", "worst", "some_completed", "partial")),
        limits=Limits(
            wall_ms=dice.choice((None, None, None, 60_000)),
            tokens=dice.choice((None, None, None, 30)),
            usd=dice.choice((None, None, None, 0.05)),
        ),
    )


def _steps(dice: Random, depth: int, around: Names) -> tuple[Step, ...]:
    """Steps in a graph; `around` are the ids that can be seen from outside of it."""
    ids = [f"s{depth}{n}" for n in range(dice.choice((1, 1, 2, 3, 4)))]
    steps = []
    for n, id in enumerate(ids):
        needs = tuple(before for before in ids[:n] if dice.random() < 0.4)
        seen = needs + around
        steps.append(
            Step(
                id=id,
                action=_action(dice, depth, seen),
                needs=needs,
                when=_condition(dice, seen, 1) if dice.random() < 0.2 else None,
                when_error=dice.choice(("fail", "skip")),
                join=dice.choice(JOINS),
                retry=Retry(
                    attempts=dice.choice((1, 2, 3)),
                    base_ms=dice.choice((5, 1_000)),
                    on=dice.choice(RETRIED),
                ),
                limits=Limits(wall_ms=dice.choice((None, None, None, 5_000))),
                on_error=dice.choice(("fail", "fail", "continue")),
            )
        )
    return tuple(steps)


# -- actions ---------------------------------------------------------------------------------------


def _action(dice: Random, depth: int, seen: Names) -> Action:
    kind = dice.random()
    if depth and kind < 0.28:
        return _repeat(dice, depth, seen)
    if depth and kind < 0.43:
        return _each(dice, depth, seen)
    if depth and kind < 0.52:
        return Steps(
            steps=_steps(dice, depth - 1, seen),
            on_failure=dice.choice(("cascade", "skip", "abort")),
        )
    return _single(dice, seen)


def _single(dice: Random, seen: Names) -> Action:
    kind = dice.random()
    if kind < 0.15:
        return AskPerson(
            message=literal("go on?"),
            capture=dice.random() < 0.5,
            on_reject=dice.choice((None, Rework(agent="fixer", attempts=dice.choice((1, 2, 3))))),
            reject=dice.choice(("fail", "fail", "cancel")),
        )
    if kind < 0.26:
        return Wait(ms=dice.choice((0, 10, 700, 20_000)))
    if kind < 0.38:
        return RunCommand(argv=("work",))
    if kind < 0.50:
        return RunScript(text="work", env={"WHAT": (_ref(dice, seen),)})
    if kind < 0.52:
        return StopRun(reason=literal("the plan says so"))
    return CallAgent(
        agent="worker",
        prompt=dice.choice(((), (_ref(dice, seen),))),
        session=dice.choice(("fresh", "thread")),
        show_needs=dice.random() < 0.2,
    )


def _repeat(dice: Random, depth: int, seen: Names) -> Repeat:
    return Repeat(
        body=_action(dice, depth - 1, seen),
        max=dice.choice((1, 2, 3)),
        until=_check(dice, 2, seen),
        memory=dice.choice(MEMORIES),
        gate=_gate(dice) if dice.random() < 0.25 else None,
        at_cap=dice.choice(("exhaust", "complete", "fail", "ask")),
        output=dice.choice(("last", "last", "all", "learning", "result")),
        delay_ms=dice.choice((0, 0, 50, 3_000)),
        limits=Limits(
            wall_ms=dice.choice((None, None, 8_000)),
            pass_wall_ms=dice.choice((None, None, 2_000)),
            identical=dice.choice((None, None, 2)),
        ),
        broken_after=dice.choice((0, 1, 3)),
        check_first=dice.random() < 0.15,
    )


def _gate(dice: Random) -> LoopGate:
    return LoopGate(
        first_always=dice.random() < 0.4,
        approve_continues=dice.random() < 0.4,
        reject=dice.choice(("fail", "fail", "cancel")),
    )


def _each(dice: Random, depth: int, seen: Names) -> Repeat:
    return Repeat(
        body=_action(dice, depth - 1, seen),
        each=Each(
            items=_items(dice, seen),
            parallel=dice.choice((None, 1, 2)),
            max_items=dice.choice((3, 1_000)),
            on_item_error=dice.choice(("stop", "continue")),
        ),
        output=dice.choice(("last", "all")),
        limits=Limits(
            wall_ms=dice.choice((None, None, 8_000)), tokens=dice.choice((None, None, 40))
        ),
    )


# -- what is spoken of -----------------------------------------------------------------------------


def _ref(dice: Random, seen: Names) -> Ref:
    """Something that a template can be filled with, whether it is there or not."""
    if seen and dice.random() < 0.5:
        name = dice.choice(seen)
        return dice.choice(
            (
                Ref(of="output", name=name),
                Ref(of="result", name=name, field="n"),
                Ref(of="previous_output", name=name),
                Ref(of="previous_result", name=name, field="items.0"),
            )
        )
    of = dice.choice(OF_THE_PLACE)
    return Ref(of=of, name="n" if of == "input" else None)


def _items(dice: Random, seen: Names) -> ItemSource:
    kind = dice.random()
    if kind < 0.55 or not seen:
        return LiteralItems(values=tuple(range(dice.choice((0, 1, 2, 4)))))
    step = dice.choice(seen)
    if kind < 0.75:
        return ItemsFrom(ref=Ref(of="result", name=step, field="items"))
    texts = (f"steps.{step}.result.items", f"[steps.{step}.status, 'b']", f"steps.{step}.content")
    return ItemsExpr(expr=dice.choice(texts))


def _expression(dice: Random, seen: Names) -> str:
    """True, false, not to be evaluated, or about something that is not there."""
    texts = ["iteration >= 1", "content.contains('DONE')", "result.done == true", "1 / 0 > 1"]
    if seen:
        step = dice.choice(seen)
        texts += [
            f"steps.{step}.status == 'completed'",
            f"steps.{step}.result.n > 1",
            f"has(steps.{step}.result.done)",
        ]
    return dice.choice(texts)


def _condition(dice: Random, seen: Names, depth: int) -> Condition:
    kind = dice.random()
    if depth and kind < 0.3:
        parts = tuple(_condition(dice, seen, depth - 1) for _ in range(2))
        return dice.choice((EveryOf, SomeOf))(parts=parts)
    if kind < 0.6:
        return Cel(text=_expression(dice, seen), missing=dice.choice(("false", "error")))
    value: JsonValue = dice.choice(("ok", "DONE", 1, True, None))
    return Compare(
        ref=_ref(dice, seen), op=dice.choice(("==", "==", "!=", "<", ">", "<=", ">=")), value=value
    )


# -- checks ----------------------------------------------------------------------------------------


def _check(dice: Random, depth: int, seen: Names) -> Check:
    if depth and dice.random() < 0.25:
        parts = tuple(_check(dice, depth - 1, seen) for _ in range(dice.choice((1, 2, 3))))
        return dice.choice((AnyOf, AllOf))(parts=parts)
    return dice.choice(_LEAVES)(dice, seen)


_LEAVES: tuple[Callable[[Random, Names], Check], ...] = (
    lambda dice, seen: CommandCheck(argv=("check",), done_codes=dice.choice(((0,), (0, 3)))),
    lambda dice, seen: CommandCheck(argv=("check",)),
    lambda dice, seen: ScriptCheck(text="check", env={"WHAT": (_ref(dice, seen),)}),
    lambda dice, seen: Contains(text="done", ignore_case=dice.random() < 0.5),
    lambda dice, seen: Regex(pattern="D.NE", invalid=dice.random() < 0.1),
    lambda dice, seen: Signal(word="DONE"),
    lambda dice, seen: OutputSchema(schema={"required": ["done"]}),
    lambda dice, seen: ResultField(field="done"),
    lambda dice, seen: Judge(agent="judge", on_error=dice.choice(("continue", "fail"))),
    lambda dice, seen: Judge(agent="judge"),
    lambda dice, seen: Goal(agent="judge"),
    lambda dice, seen: Expr(
        text=_expression(dice, seen), on_error=dice.choice(("fail", "count", "count"))
    ),
    lambda dice, seen: PersonCheck(),
    lambda dice, seen: Cap(),
)
