"""One pass for each item of a list."""

from __future__ import annotations

import json

import pytest

from loopwright.kernel.events import IterationStarted, Usage
from loopwright.model.actions import Each, Repeat, Step
from loopwright.model.policy import Limits
from loopwright.model.record import ItemsExpr, ItemsFrom, LiteralItems, Ref
from tests.kernel.driving import (
    Driver,
    Fail,
    Reply,
    by_effect,
    drive,
    plan_of,
    plan_of_steps,
)
from tests.kernel.invariants import broken_laws
from tests.kernel.shapes import WORK, over, rows, step


def test_items_in_order() -> None:
    """Results come in the order of the list, in whichever order the answers came."""
    answers = by_effect({f"main[{n}]/agent#1": f"r{n}" for n in range(4)})
    run = Driver(over("a", "b", "c", "d"), answers, order=lambda choices: choices - 1).run()
    assert run.ended == ("completed", "items", "r3")
    assert [(r["index"], r["item"], r["status"], r["content"]) for r in rows(run)] == [
        (0, "a", "completed", "r0"),
        (1, "b", "completed", "r1"),
        (2, "c", "completed", "r2"),
        (3, "d", "completed", "r3"),
    ]
    assert run.passes == 4
    assert broken_laws(run.events) == []


def test_all_outputs_of_items() -> None:
    """With `all`, each item that completed has a heading."""
    answers = by_effect({"main[0]/agent#1": "zero", "main[1]/agent#1": Fail()}, default="two")
    run = drive(over(1, 2, 3, output="all", on_item_error="continue"), answers)
    assert run.ended == ("completed", "items", "## Item 0\n\nzero\n\n## Item 2\n\ntwo")


@pytest.mark.item("archon-88")
@pytest.mark.parametrize(
    ("key", "mark"), [("", {}), ("archon_failed", {"archon_failed": True})], ids=["none", "key"]
)
def test_failed_item_of_a_list_has_the_mark(key: str, mark: dict[str, bool]) -> None:
    """The entry of a failed item begins with the key; entries of others are their outputs."""
    answers = by_effect({"main[0]/agent#1": "zero", "main[1]/agent#1": Fail()})
    plan = over(1, 2, output="list", on_item_error="continue", failed_key=key)
    made = json.loads(str(drive(plan, answers).ended[2]))
    assert made[0] == "zero"
    assert made[1] == {**mark, "error": made[1]["error"], "status": "failed"}


@pytest.mark.parametrize("parallel", [1, 2, 3, None])
def test_never_more_at_once_than_allowed(parallel: int | None) -> None:
    """At no moment are more iterations under way than the definition allows."""
    run = drive(over(*range(7), parallel=parallel))
    most, open_now = 0, 0
    for event in run.events:
        open_now += isinstance(event, IterationStarted)
        most = max(most, open_now)
        open_now -= type(event).__name__ == "IterationFinished"
    assert most == (parallel or 7)
    assert run.end.outcome == "completed"


def test_a_long_list_is_begun_in_parts() -> None:
    """Without a number a hundred passes are under way at most."""
    run = Driver(over(*range(150)), by_effect({}, default=None)).start()
    assert len(run.state.pending) == 100


@pytest.mark.parametrize(
    ("policy", "ended", "begun"),
    [
        pytest.param("stop", ("failed", "error", "ok"), 2, id="stop"),
        pytest.param("continue", ("completed", "items", "ok"), 4, id="continue"),
        pytest.param("fail", ("failed", "error", "ok"), 4, id="fail"),
    ],
)
def test_failing_items(policy: str, ended: object, begun: int) -> None:
    """A failing item ends the loop, at once or after the others, or is one row among them."""
    plan = over(*"abcd", parallel=1, on_item_error=policy)
    run = drive(plan, by_effect({"main[1]/agent#1": Fail("agent", "broke")}))
    assert run.ended == ended
    assert len(run.of(IterationStarted)) == begun
    row = rows(run)[1]
    assert (row["status"], row["error"]) == ("failed", {"type": "agent", "detail": "broke"})
    assert [r["status"] for r in rows(run)][2:] == ["cancelled" if begun == 2 else "completed"] * 2
    if policy == "stop":
        assert run.end.error is not None
        assert run.end.error.detail == "broke"


def test_first_failing_item_speaks() -> None:
    """Of several failing items the first to fail says why the loop ended."""
    run = Driver(over(*range(3))).start()
    for number, detail in ((2, "third"), (0, "first"), (1, "second")):
        run.answer(f"main[{number}]/agent#1", Fail("agent", detail))
    assert run.end.error is not None
    assert run.end.error.detail == "third"


def test_items_under_way_finish_after_a_failure() -> None:
    """What has begun is not thrown away when another item fails; nothing new begins."""
    run = Driver(over(*range(5), parallel=2)).start()
    run.answer("main[0]/agent#1", Fail())
    assert sorted(run.state.pending) == ["main[1]/agent#1"]
    run.answer("main[1]/agent#1", "late")
    assert run.ended == ("failed", "error", "late")


@pytest.mark.parametrize(
    ("items", "reason", "detail"),
    [
        pytest.param(
            ItemsFrom(ref=Ref(of="input", name="text")),
            "not-a-list",
            'found a text: "abc"',
            id="text",
        ),
        pytest.param(
            ItemsFrom(ref=Ref(of="input", name="no")), "not-a-list", "nothing", id="nothing"
        ),
        pytest.param(
            ItemsFrom(ref=Ref(of="message")), "not-a-list", 'a text: "mmm', id="stored text"
        ),
        pytest.param(ItemsExpr(expr="x"), "not-a-list", "x", id="unknown name"),
        pytest.param(ItemsExpr(expr="1 + 1"), "not-a-list", "list", id="a number"),
        pytest.param(
            LiteralItems(values=(1, 2, 3, 4)), "too-many-items", "4 items, at most 3", id="many"
        ),
    ],
)
def test_bad_lists(items: object, reason: str, detail: str) -> None:
    """Something that is not a list, or too long a one, fails the step before anything begins."""
    plan = plan_of(Repeat(body=WORK, each=Each(items=items, max_items=3)))
    run = drive(plan, inputs={"text": "abc"}, message="m" * 500)
    assert run.ended[:2] == ("failed", reason)
    assert run.end.error is not None
    assert detail in run.end.error.detail
    assert run.of(IterationStarted) == []


@pytest.mark.parametrize(
    ("said", "words"),
    [
        pytest.param("none\ntoday", 'found a text: "none\\ntoday"', id="no JSON"),
        pytest.param('{"a": [1]}', 'found an object: {"a":[1]}', id="object"),
        pytest.param("7", "found a number: 7", id="number"),
        pytest.param("true", "found true", id="yes or no"),
        pytest.param("", "found nothing", id="nothing"),
        pytest.param("x" * 500, f'found a text: "{"x" * 78}…', id="long"),
    ],
)
def test_what_a_step_said_is_no_list(said: str, words: str) -> None:
    """The failure shows what was said, cut where it is long."""
    items = ItemsFrom(ref=Ref(of="result", name="a"))
    steps = (
        Step(id="a", action=WORK),
        Step(id="b", action=Repeat(body=WORK, each=Each(items=items)), needs=("a",)),
    )
    run = drive(plan_of_steps(*steps), script=lambda _: Reply(said))
    assert run.end.error is not None
    assert run.end.error.detail == f"step 'b' failed: the items must be a list, {words}"


@pytest.mark.parametrize(
    ("ref", "inputs"),
    [
        pytest.param(Ref(of="input", name="list"), {"list": "[1, 2]"}, id="short"),
        pytest.param(Ref(of="message"), {}, id="stored"),
    ],
)
def test_a_text_that_is_a_list(ref: Ref, inputs: dict[str, object]) -> None:
    """A list that was written down as JSON is that list."""
    message = f"[1, 2]{' ' * 500}"
    plan = plan_of(Repeat(body=WORK, each=Each(items=ItemsFrom(ref=ref))))
    run = drive(plan, inputs=inputs, message=message)
    assert [row["item"] for row in rows(run)] == [1, 2]


@pytest.mark.parametrize(
    ("expr", "items"),
    [
        pytest.param("[1, 2]", [1, 2], id="written out"),
        pytest.param("steps.find.result.files", ["a", "b"], id="a result"),
        pytest.param("steps.find.result.files.filter(f, f != 'a')", ["b"], id="a part of it"),
    ],
)
def test_a_list_by_an_expression(expr: str, items: list[object]) -> None:
    """An expression sees the results of the steps before, and makes the list."""
    loop = Repeat(body=WORK, each=Each(items=ItemsExpr(expr=expr)))
    plan = plan_of_steps(step("find"), step("fix", "find", action=loop))
    run = drive(plan, by_effect({"find/agent#1": Reply("", result='{"files": ["a", "b"]}')}))
    assert [row["item"] for row in rows(run)] == items


SAID = [
    pytest.param("plain", '"plain"', id="text"),
    pytest.param('{"a": [1]}', '{"a":[1]}', id="an object"),
    pytest.param("[1, 2]", "[1,2]", id="a list"),
    pytest.param("12", '"12"', id="a number is text"),
    pytest.param("", '""', id="nothing"),
    pytest.param(Reply("said", result="7"), "7", id="a result"),
    pytest.param(Reply("said", result="no json"), '"no json"', id="a result that is none"),
    pytest.param(Fail("agent", "broke"), '{"error":"broke","status":"failed"}', id="a failure"),
    pytest.param(Fail("agent", ""), '{"error":"failed","status":"failed"}', id="without words"),
]


@pytest.mark.parametrize(("said", "element"), SAID)
def test_a_list_of_what_was_said(said: object, element: str) -> None:
    """Each item is an element in its order: what it said, as JSON if it is, or why it failed."""
    plan = over("x", "y", output="list", on_item_error="continue")
    run = drive(plan, by_effect({"main[0]/agent#1": said}, default="end"))
    assert run.ended == ("completed", "items", f'[{element},"end"]')
    assert run.end.result is None
    assert broken_laws(run.events) == []


def test_a_list_of_which_not_all_was_begun() -> None:
    """What was never begun is an element too."""
    plan = over("x", "y", output="list", parallel=1)
    run = drive(plan, by_effect({}, default=Fail("agent", "broke")))
    left = '{"error":"cancelled","status":"cancelled"}'
    assert run.ended == ("failed", "error", f'[{{"error":"broke","status":"failed"}},{left}]')


def test_empty_list() -> None:
    """Nothing to do is done."""
    run = drive(over())
    assert run.ended == ("completed", "items", "")
    assert drive(over(output="list")).ended == ("completed", "items", "[]")
    assert rows(run) == []


def test_list_of_an_earlier_step() -> None:
    """The list may come from the structured result of a step before."""
    plan = plan_of_steps(
        step("find"),
        step(
            "fix",
            "find",
            action=Repeat(
                body=WORK,
                each=Each(items=ItemsFrom(ref=Ref(of="result", name="find", field="files"))),
            ),
        ),
    )
    run = drive(plan, by_effect({"find/agent#1": Reply("", result='{"files": ["a", "b"]}')}))
    assert run.end.outcome == "completed"
    assert [f.path for f in run.of(IterationStarted)] == ["fix[0]", "fix[1]"]


SPEND = Reply("x", usage=Usage(0, 0, 0.5))


@pytest.mark.parametrize("policy", ["stop", "continue"])
@pytest.mark.parametrize("parallel", [1, 2, 3])
def test_budget_of_items(policy: str, parallel: int) -> None:
    """No item begins when the money is used up, and that is what the end says."""
    plan = over(*range(6), parallel=parallel, on_item_error=policy, limits=Limits(usd=0.5))
    run = drive(plan, by_effect({}, default=SPEND))
    assert run.ended == ("exhausted", "budget", "x")
    assert len(run.of(IterationStarted)) == parallel
    assert run.end.error is not None


def test_items_of_items() -> None:
    """A list inside an iteration over a list."""
    inner = Repeat(body=WORK, each=Each(items=LiteralItems(values=(1, 2))))
    run = drive(plan_of(Repeat(body=inner, each=Each(items=LiteralItems(values=("a", "b"))))))
    assert {f.path for f in run.of(IterationStarted)} == {
        "main[0]", "main[1]", "main[0][0]", "main[0][1]", "main[1][0]", "main[1][1]",
    }  # fmt: skip
    assert run.end.outcome == "completed"
