"""Templates filled from the state of a run: by structure, once."""

from __future__ import annotations

import pytest

from loopwright.kernel.references import fill, request_text, resolve, step_result
from loopwright.kernel.state import State, enclosing_iteration
from loopwright.model.actions import (
    AskPerson,
    CallAgent,
    Each,
    Repeat,
    Rework,
    Step,
    Steps,
    StopRun,
)
from loopwright.model.checks import PersonCheck
from loopwright.model.plan import Plan
from loopwright.model.record import ItemsFrom, Lit, LiteralItems, Ref, Template, literal
from tests.kernel.driving import Driver, Reply, by_effect, decisions, plan_of

AGENT = CallAgent(agent="a")
RESULT = '{"n": 7, "rows": [{"id": "x"}, {"id": "y"}], "deep": {"er": true}, "none": null}'


def midway() -> Driver:
    """A run inside pass 2 of a loop, with a step before it and one inside."""
    body = Steps(
        steps=(
            Step(id="draft", action=AGENT),
            Step(id="first", action=AGENT),
            Step(id="inner", action=AGENT, needs=("first",)),
        )
    )
    plan = Plan(
        name="t",
        steps=(
            Step(id="plain", action=AGENT),
            Step(id="first", action=AGENT, needs=("plain",)),
            Step(id="loop", action=Repeat(body=body, max=5, until=PersonCheck()), needs=("first",)),
        ),
    )
    answers = {
        "first/agent#1": Reply("outer text", result=RESULT),
        "loop.0.inner/agent#1": Reply("pass one"),
        "loop.1.first/agent#1": Reply("x" * 500, result="not json"),
        "loop.1.draft/agent#1": None,
        "loop.1.inner/agent#1": None,
    }
    inputs = {"name": "Ann", "list": [1, 2], "map": {"a": {"b": [10, 20]}}}
    people = decisions(("continue", "use tabs"))
    return Driver(plan, by_effect(answers), people, inputs=inputs, message="Fix it").run()


RUN = midway()


def filled(template: Template, place: str = "loop.1.inner") -> str:
    return fill(RUN.state, RUN.state.owners[place], template, RUN.texts)


@pytest.mark.parametrize(
    ("ref", "place", "text"),
    [
        pytest.param(Ref(of="message"), "", "Fix it", id="message"),
        pytest.param(Ref(of="run"), "", "r_test", id="run"),
        pytest.param(Ref(of="workspace"), "", "/ws", id="workspace"),
        pytest.param(Ref(of="input", name="name"), "", "Ann", id="input"),
        pytest.param(Ref(of="input", name="other"), "", "", id="input that was not given"),
        pytest.param(Ref(of="input"), "", "", id="input without a name"),
        pytest.param(Ref(of="input", name="map", field="a.b.1"), "", "20", id="input by a path"),
        pytest.param(Ref(of="input", name="map", field="a.b.9"), "", "", id="path beyond a list"),
        pytest.param(Ref(of="input", name="map", field="a.b.x"), "", "", id="word in a list"),
        pytest.param(
            Ref(of="input", name="map", field=f"a.b.{'9' * 5_000}"), "", "", id="endless number"
        ),
        pytest.param(Ref(of="input", name="map", field="a.b.\u00b2"), "", "", id="raised number"),
        pytest.param(Ref(of="input", name="name", field="x"), "", "", id="path into a text"),
        pytest.param(Ref(of="input", name="list"), "", "[1,2]", id="list as JSON"),
        pytest.param(Ref(of="output", name="first"), "loop", "outer text", id="output"),
        pytest.param(Ref(of="output", name="first"), "loop.1.inner", "x" * 500, id="inner first"),
        pytest.param(Ref(of="output", name="first"), "loop.1", "x" * 500, id="from the pass"),
        pytest.param(Ref(of="output", name="inner"), "loop.1", "", id="output not there yet"),
        pytest.param(Ref(of="output"), "loop", "", id="output of no one"),
        pytest.param(Ref(of="result", name="first", field="n"), "loop", "7", id="result field"),
        pytest.param(
            Ref(of="result", name="first", field="rows.1.id"), "loop", "y", id="deep result field"
        ),
        pytest.param(Ref(of="result", name="first", field="deep"), "loop", '{"er":true}', id="map"),
        pytest.param(Ref(of="result", name="first", field="none"), "loop", "", id="null"),
        pytest.param(Ref(of="result", name="first", field="what"), "loop", "", id="no such field"),
        pytest.param(Ref(of="result", name="ghost"), "loop", "", id="result of no one"),
        pytest.param(Ref(of="result", name="plain"), "loop", "", id="step without a result"),
        pytest.param(
            Ref(of="result", name="first", field="n"), "loop.1.inner", "", id="result is not JSON"
        ),
        pytest.param(Ref(of="iteration"), "loop.1.inner", "2", id="iteration"),
        pytest.param(Ref(of="index"), "loop.1.inner", "", id="index where there is no list"),
        pytest.param(Ref(of="max"), "loop.1.inner", "5", id="max"),
        pytest.param(Ref(of="previous"), "loop.1.inner", "pass one", id="previous"),
        pytest.param(Ref(of="feedback"), "loop.1.inner", "use tabs", id="feedback"),
        pytest.param(Ref(of="item"), "loop.1.inner", "", id="item where there is none"),
        pytest.param(Ref(of="iteration"), "loop", "", id="iteration outside of a pass"),
        pytest.param(Ref(of="item"), "", "", id="item outside of a pass"),
    ],
)
def test_fill(ref: Ref, place: str, text: str) -> None:
    """Each source is found from where it is asked for, or is empty."""
    assert filled((Lit(text="["), ref, Lit(text="]")), place) == f"[{text}]"


def test_what_is_filled_in_is_not_scanned_again() -> None:
    """A value that looks like a placeholder stays as it is."""
    plan = plan_of(CallAgent(agent="a", prompt=(Ref(of="message"),)))
    run = Driver(plan, message="${input} $message {{x}}").start()
    place = run.state.owners["main"]
    assert fill(run.state, place, plan.steps[0].action.prompt, run.texts) == run.message


@pytest.mark.parametrize(
    ("prompt", "message", "of_plan", "text"),
    [
        pytest.param("own", "run's", "plan's", "own", id="own prompt"),
        pytest.param("", "run's", "plan's", "run's", id="message of the run"),
        pytest.param("", "", "plan's", "plan's", id="message of the plan"),
        pytest.param("", "", "", "", id="nothing"),
    ],
)
def test_request_text(prompt: str, message: str, of_plan: str, text: str) -> None:
    """A place asks with its own prompt, else the run's message, else the plan's."""
    run = Driver(plan_of(AGENT, message=literal(of_plan)), message=message).start()
    place = run.state.owners["main"]
    assert request_text(run.state, place, literal(prompt), run.texts) == text


@pytest.mark.parametrize(
    ("message", "text"),
    [pytest.param("", "Plan says: ", id="none given"), pytest.param("Go", "Go", id="given")],
)
def test_message_is_what_was_asked(message: str, text: str) -> None:
    """The message is the run's, else the plan's, whose own mention of it stays empty."""
    of_plan = (Lit(text="Plan says: "), Ref(of="message"))
    run = Driver(plan_of(AGENT, message=of_plan), message=message).start()
    place = run.state.owners["main"]
    assert fill(run.state, place, (Ref(of="message"),), run.texts) == text


def test_what_a_person_said_when_rejecting() -> None:
    """Whoever works on a rejection is told the last one; elsewhere there is none."""
    action = AskPerson(on_reject=Rework(agent="fixer", attempts=3))
    run = Driver(plan_of(action)).start()
    words = []
    for number, said in enumerate(["too long", "too short"], start=1):
        run.decide("reject", said)
        words.append(resolve(run.state, run.state.owners["main"], Ref(of="rejection"), run.texts))
        run.answer(f"main/rework#{number}", "better")
    assert words == ["too long", "too short"]
    assert resolve(run.state, run.state.root, Ref(of="rejection"), run.texts) == ""


def test_before_the_start_everything_is_empty() -> None:
    """Asking a state that knows nothing yet is no error."""
    state = State(plan_of(AGENT))
    for of in ("message", "workspace", "run"):
        assert resolve(state, state.root, Ref(of=of), RUN.texts) == ""
    assert resolve(state, state.root, Ref(of="input", name="x"), RUN.texts) is None
    assert request_text(state, state.root, (), RUN.texts) == ""


def test_places_around() -> None:
    """A place knows the iteration and the loop around it, the run knows none."""
    inner = RUN.state.owners["loop.1.inner"]
    assert enclosing_iteration(inner) is RUN.state.owners["loop.1"]
    assert enclosing_iteration(inner).parent is RUN.state.owners["loop"].body
    assert enclosing_iteration(RUN.state.root) is None
    assert step_result(inner, "ghost") is None


@pytest.mark.parametrize(
    ("items", "texts"),
    [
        pytest.param(LiteralItems(values=("a", {"k": 1})), ["a:0", '{"k":1}:1'], id="written out"),
        pytest.param(ItemsFrom(ref=Ref(of="input", name="list")), ["1:0", "2:1"], id="input"),
    ],
)
def test_items_reach_the_iterations(items: object, texts: list[str]) -> None:
    """An iteration over a list knows its item and its index, also right after a crash."""
    message = (Ref(of="item"), Lit(text=":"), Ref(of="index"))
    loop = Repeat(body=AskPerson(message=message), each=Each(items=items))
    run = Driver(plan_of(loop), inputs={"list": [1, 2]}).start()
    assert [gate.message for gate in run.open_gates()] == texts
    state = run.cut(len(run.events)).state
    assert [gate.message for gate in state.gates.values()] == texts


def test_items_reach_loops_inside() -> None:
    """In a loop inside of an iteration over a list, the item and its index are still there."""
    message = (Ref(of="item"), Lit(text=":"), Ref(of="index"), Lit(text=":"), Ref(of="iteration"))
    inner = Repeat(body=AskPerson(message=message), max=1)
    loop = Repeat(body=inner, each=Each(items=LiteralItems(values=("a", "b"))))
    run = Driver(plan_of(loop)).start()
    assert [gate.message for gate in run.open_gates()] == ["a:0:1", "b:1:1"]


def test_field_of_an_item() -> None:
    """A field inside an item is found; an item before any deciding, too."""
    loop = Repeat(
        body=StopRun(reason=(Ref(of="item", field="id"),)),
        each=Each(items=LiteralItems(values=({"id": "x"},))),
    )
    run = Driver(plan_of(loop)).run()
    assert run.ended[:2] == ("cancelled", "x")
