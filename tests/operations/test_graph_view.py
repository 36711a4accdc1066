"""The graph of a run: how far each step has come, by its newest iteration."""

import pytest

from loopwright.kernel.events import (
    AnyEvent,
    GateAnswered,
    GateOpened,
    IterationFinished,
    IterationStarted,
    RunFinished,
    RunReopened,
    StepFinished,
    StepSkipped,
    StepStarted,
)
from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    Each,
    ModelCycle,
    Repeat,
    RunCommand,
    RunScript,
    Step,
    Steps,
    StopRun,
    Wait,
)
from loopwright.model.checks import AllOf, CommandCheck, OutputSchema, Signal
from loopwright.model.plan import Plan
from loopwright.model.record import ItemsExpr, LiteralItems
from loopwright.views.run_view import GraphNode, graph, logical

CALL = CallAgent(agent="w")
BODY = Steps(steps=(Step(id="code", action=CALL), Step(id="review", action=CALL, needs=("code",))))
PLAN = Plan(
    name="p",
    steps=(
        Step(id="a", action=CALL),
        Step(id="dev", action=Repeat(body=BODY, max=4), needs=("a",)),
        Step(id="each", action=Repeat(body=CALL, each=Each(items=ItemsExpr(expr="x")))),
    ),
)


def began(path: str) -> StepStarted:
    return StepStarted(at=1, path=path)


def ended(path: str, status: str = "completed") -> StepFinished:
    return StepFinished(at=1, path=path, status=status)  # type: ignore[arg-type]


def a_pass(path: str, number: int) -> IterationStarted:
    return IterationStarted(at=1, path=path, iteration=number)


def standing(*events: AnyEvent) -> dict[str, tuple[str, str]]:
    """Status and passes of every step, by its path."""
    found: dict[str, tuple[str, str]] = {}

    def note(node: GraphNode, before: str) -> None:
        found[f"{before}{node.id}"] = node.status or "", node.passes or ""
        for inner in node.steps:
            note(inner, f"{before}{node.id}.")

    for node in graph(PLAN, events):
        note(node, "")
    return found


def test_before_anything_has_happened() -> None:
    """Loops say how long they may be."""
    assert standing() == {
        "a": ("", ""),
        "dev": ("", "up to 4 iterations"),
        "dev.code": ("", ""),
        "dev.review": ("", ""),
        "each": ("", "up to 1000 items"),
    }


def test_inner_steps_are_those_of_the_newest_pass() -> None:
    """With a new pass they are all ahead again."""
    first = [began("dev"), a_pass("dev.0", 1), began("dev.0.code"), ended("dev.0.code")]
    first += [began("dev.0.review"), ended("dev.0.review", "failed")]
    assert standing(*first)["dev.review"] == ("failed", "")
    found = standing(*first, a_pass("dev.1", 2), began("dev.1.code"))
    assert found["dev"] == ("running", "iteration 2/4")
    assert (found["dev.code"], found["dev.review"]) == (("running", ""), ("", ""))


def test_items_are_counted() -> None:
    """How many are done, of how many that have begun."""
    events: list[AnyEvent] = [began("each"), *[a_pass(f"each[{n}]", n + 1) for n in range(3)]]
    events.append(IterationFinished(at=1, path="each[1]"))
    assert standing(*events)["each"] == ("running", "1/3 items")


def test_what_is_inside_of_a_list_replaces_all_items() -> None:
    """One failed item marks the step, however the last one ended; a new pass of one item leaves
    the others as they are.
    """
    call = Step(id="x", action=CALL)
    inner = Step(id="loop", action=Repeat(body=Steps(steps=(call,)), max=2))
    each = Repeat(body=Steps(steps=(call, inner)), each=Each(items=ItemsExpr(expr="x")))
    plan = Plan(name="p", steps=(Step(id="fan", action=each),))
    events: list[AnyEvent] = [began("fan"), *[a_pass(f"fan[{n}]", n + 1) for n in range(3)]]
    events += [ended("fan[0].x"), ended("fan[1].x", "failed")]
    events += [began("fan[0].loop"), a_pass("fan[0].loop.0", 1), ended("fan[0].loop.0.x", "failed")]
    events += [began("fan[2].loop"), a_pass("fan[2].loop.0", 1), ended("fan[2].loop.0.x")]
    [fan] = graph(plan, [*events, began("fan[2].x")])
    assert (fan.steps[0].status, fan.steps[0].passes) == ("running", "1 ok, 1 failed, 1 running")
    [fan] = graph(plan, [*events, ended("fan[2].x"), a_pass("fan[0].loop.1", 2)])
    x, loop = fan.steps
    assert (fan.status, x.status, x.passes) == ("running", "failed", "2 ok, 1 failed")
    assert (loop.steps[0].status, loop.steps[0].passes) == ("completed", None)


def test_questions_and_steps_left_out() -> None:
    """A step at a gate waits until it is answered; a skipped one says so."""
    asked = GateOpened(
        at=1, path="a", gate="g", digest="", message="", answers=("approve",), about="step"
    )
    answered = GateAnswered(at=1, path="a", gate="g", decision="approve")
    skipped = StepSkipped(at=1, path="dev", reason="condition")
    assert standing(began("a"), asked, skipped)["a"][0] == "waiting"
    assert standing(began("a"), asked, answered, skipped)["a"][0] == "running"
    assert standing(began("a"), asked, skipped)["dev"][0] == "skipped"


def test_a_reopened_run_begins_what_did_not_complete() -> None:
    """Under its new names the newest iteration counts."""
    events: list[AnyEvent] = [ended("a"), began("dev"), a_pass("dev.0", 1), began("dev.0.code")]
    events += [ended("dev.0.code", "failed"), ended("dev", "failed")]
    events += [RunFinished(at=1, outcome="failed", reason="error"), RunReopened(at=1)]
    found = standing(*events)
    assert (found["a"][0], found["dev"], found["dev.code"][0]) == (
        "completed",
        ("", "up to 4 iterations"),
        "",
    )
    found = standing(*events, began("dev"), a_pass("dev~2.0", 1), began("dev~2.0.code"))
    assert found["dev.code"] == ("running", "")


@pytest.mark.parametrize(
    ("path", "plain"),
    [
        ("a", "a"),
        ("dev.0.review", "dev.review"),
        ("dev~2.10.each[3].x-1", "dev.each.x-1"),
        ("dev.-1", "dev"),
        ("each[0][1].a", "each.a"),
    ],
)
def test_logical_paths(path: str, plain: str) -> None:
    """Numbers of iterations, items and tries are left out; ids are not."""
    assert logical(path) == plain


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        (CALL, "agent w"),
        (ModelCycle(agent="m"), "agent m"),
        (RunCommand(argv=("make", "all")), "command make"),
        (RunScript(text="true"), "script (bash)"),
        (AskPerson(), "asks a person"),
        (Wait(ms=1_500), "waits 1.5 s"),
        (StopRun(), "ends the run"),
        (BODY, "2 steps"),
        (Repeat(body=CALL, max=3), "agent w"),
        (Repeat(body=BODY, max=3), "repeats"),
        (Repeat(body=CALL, until=Signal(word="DONE")), "agent w, until signal DONE"),
        (
            Repeat(
                body=BODY,
                until=AllOf(parts=(CommandCheck(argv=("pytest", "-q")), OutputSchema(schema={}))),
            ),
            "until command pytest + schema",
        ),
        (
            Repeat(body=BODY, each=Each(items=LiteralItems(values=(1,)), parallel=2)),
            "for each item, 2 at once",
        ),
    ],
)
def test_kinds(action: Action, kind: str) -> None:
    """What a step does, in a few words."""
    [node] = graph(Plan(name="p", steps=(Step(id="a", action=action),)))
    assert node.kind == kind
