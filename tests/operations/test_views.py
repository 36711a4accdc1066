"""What people and programs are shown: events as they travel, and a run as one object."""

import json
import typing
from datetime import datetime
from typing import Any

import msgspec
import pytest

from loopwright.kernel.event_parts import AgentCall, SleepCall
from loopwright.kernel.events import (
    AnyEvent,
    EffectDone,
    EffectRequested,
    IterationFinished,
    IterationStarted,
    RunFinished,
    RunStarted,
    StepFinished,
    StepStarted,
    Usage,
)
from loopwright.model.actions import AskPerson, CallAgent, LoopGate, Repeat, Step
from loopwright.model.checks import Contains, Judge, Regex
from loopwright.model.plan import Plan
from loopwright.model.record import Blob, literal
from loopwright.ports import NumberedEvent
from loopwright.views.event_records import event_on_wire, text_of, timestamp
from loopwright.views.progress import Progress
from loopwright.views.summary import summary
from tests.kernel.driving import (
    Driver,
    Fail,
    Reply,
    by_iteration,
    drive,
    kind,
    plan_of,
    plan_of_steps,
)
from tests.kernel.test_cycles import begun, call, turn
from tests.kernel.test_cycles import plan as cycle_plan

CALL = CallAgent(agent="worker")
KINDS = typing.get_args(AnyEvent)


def is_record(of: object) -> bool:
    return isinstance(of, type) and issubclass(of, msgspec.Struct)


def sample(event_type: type[msgspec.Struct]) -> AnyEvent:
    """An event of this kind with its required fields filled."""
    fields: dict[str, object] = {}
    for info in msgspec.structs.fields(event_type):
        if info.required and typing.get_origin(info.type) is typing.Literal:
            fields[info.name] = typing.get_args(info.type)[0]
        elif info.required:
            fields[info.name] = {
                "at": 1_700_000_000_123,
                "path": "dev.0",
                "call": AgentCall(agent="worker"),
                "error": {"type": "exit"},
                "answers": ["approve"],
                "status": "completed",
                "outcome": "completed",
                "verdict": "pass",
                "decision": "approve",
                "index": 0,
                "dropped": 1,
                "attempt": 2,
                "becomes": {},
                "kept": 2,
            }.get(info.name, {} if is_record(info.type) else "x")
    return msgspec.convert(msgspec.to_builtins(fields), event_type)  # type: ignore[return-value]


# -- events ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("event_type", KINDS, ids=lambda one: str(one.__struct_config__.tag))
def test_every_event_travels_with_run_number_time_kind_and_path(
    event_type: type[msgspec.Struct],
) -> None:
    """The five fields come first in every event, and all of it is JSON."""
    event = sample(event_type)
    wire = event_on_wire("run_1", NumberedEvent(7, event))
    assert list(wire)[:5] == ["run", "seq", "at", "kind", "path"]
    assert (wire["run"], wire["seq"], wire["kind"]) == ("run_1", 7, kind(event))
    assert wire["at"] == "2023-11-14T22:13:20.123Z"
    assert wire["path"] == ("dev.0" if hasattr(event, "path") else "")
    assert json.loads(json.dumps(wire)).keys() == wire.keys()


def test_times_are_rfc_3339_in_utc() -> None:
    """A time keeps its milliseconds and can be read by anybody."""
    assert timestamp(0) == "1970-01-01T00:00:00.000Z"
    assert datetime.fromisoformat(timestamp(1_700_000_000_001)).timestamp() == 1_700_000_000.001


def test_an_event_of_an_iteration_carries_its_iteration() -> None:
    """Passes are counted from 1; an event outside of an iteration has no number."""
    inside = IterationStarted(at=1, path="main.0", iteration=1)
    outside = StepFinished(at=1, path="main", status="completed")
    assert event_on_wire("r", NumberedEvent(1, inside))["iteration"] == 1
    assert "iteration" not in event_on_wire("r", NumberedEvent(1, outside))


def test_what_is_not_empty_is_said() -> None:
    """A value that happens to be our default is on the wire: readers do not know defaults."""
    wire = event_on_wire("r", NumberedEvent(1, IterationFinished(at=1, path="main.0", iteration=1)))
    assert (wire["status"], wire["done"]) == ("completed", False)
    assert "output" not in wire


def test_results_are_objects() -> None:
    """A structured result is JSON on the wire, not a text that holds JSON."""
    done = EffectDone(at=1, path="a", effect="a/agent#1", result='{"n":1}', usage=Usage(usd=0.5))
    wire = event_on_wire("r", NumberedEvent(1, done))
    assert wire["result"] == {"n": 1}
    assert wire["usage"] == {"usd": 0.5}


def test_a_long_text_travels_by_name() -> None:
    """Stored content is named with its size and its head."""
    blob = Blob(blob="abc", size=9_000, head="start")
    done = EffectDone(at=1, path="a", effect="a/agent#1", output=blob, result=blob)
    wire = event_on_wire("r", NumberedEvent(1, done))
    assert wire["output"] == {"blob": "abc", "size": 9_000, "head": "start"}
    assert wire["result"] == wire["output"]
    assert [text_of(blob), text_of("x"), text_of(None)] == ["start", "x", ""]


def test_a_call_says_what_it_asks() -> None:
    """The call of an effect keeps its kind."""
    event = EffectRequested(at=1, path="a", effect="a/wait#1", call=SleepCall(until=5))
    assert event_on_wire("r", NumberedEvent(1, event))["call"] == {"do": "sleep", "until": 5}


def test_a_run_is_named_once() -> None:
    """The id of the run in its first event is the one in front."""
    first = RunStarted(at=1, run="run_1", plan="p", name="t")
    assert event_on_wire("run_1", NumberedEvent(1, first))["run"] == "run_1"


# -- the run as one object -------------------------------------------------------------------------

KEYS = [
    "run",
    "status",
    "summary",
    "reason",
    "output",
    "result",
    "iterations",
    "steps",
    "usage",
    "uncovered",
    "labels",
    "gates",
    "checks",
    "error",
]
STEP_KEYS = ["status", "reason", "output", "result", "iterations", "error"]
GATED = plan_of(Repeat(body=CALL, max=3, gate=LoopGate(message=literal("Good?"))))


def at_gate() -> Driver:
    driver = Driver(GATED).start()
    driver.answer("main.0/agent#1", "draft")
    return driver


def paused() -> Driver:
    driver = at_gate()
    driver.pause()
    return driver


def stopped() -> Driver:
    driver = at_gate()
    driver.cancel()
    return driver


def failing(_: EffectRequested) -> Fail:
    return Fail("exit", "code 3")


STATES = {
    "running": (lambda: Driver(plan_of(Repeat(body=CALL, max=3))).start(), "", "", 1),
    "waiting": (at_gate, "gate", "draft", 1),
    "paused": (paused, "gate", "draft", 1),
    "completed": (lambda: drive(plan_of(CALL), by_iteration("done")), "done", "done", 0),
    "exhausted": (
        lambda: drive(plan_of(Repeat(body=CALL, max=2)), by_iteration("x")),
        "max_iterations",
        "x",
        2,
    ),
    "failed": (lambda: drive(plan_of(Repeat(body=CALL, max=2)), failing), "error", "", 1),
    "cancelled": (stopped, "stopped", "", 1),
}


def shown(driver: Driver) -> dict[str, Any]:
    """The summary of a run, as it is written to JSON."""
    found: dict[str, Any] = msgspec.to_builtins(summary(driver.state, driver.texts.read))
    return found


@pytest.mark.parametrize("status", STATES)
def test_a_summary_has_the_same_keys_in_every_state(status: str) -> None:
    """Whatever the run is at, programs find every key, with its kind of value."""
    make, reason, output, iterations = STATES[status]
    driver = make()
    told = shown(driver)
    assert list(told) == KEYS
    assert (told["status"], told["reason"]) == (status, reason)
    assert (told["output"], told["iterations"]) == (output, iterations)
    assert told["usage"] == {
        "input_tokens": 0,
        "output_tokens": 0,
        "usd": 0.0,
        "unpriced_calls": 0,
        "cost": "$0.00",
    }
    steps = told["steps"]
    assert isinstance(steps, dict)
    assert list(steps) == ["main"]
    assert list(steps["main"]) == STEP_KEYS
    assert json.loads(json.dumps(told)) == told


def test_a_gate_is_shown_with_what_it_asks() -> None:
    """An open gate has its id, its place and its message."""
    driver = at_gate()
    (gate,) = shown(driver)["gates"]
    assert (gate["path"], gate["message"]) == ("main.0", "Good?")
    assert gate["id"] in driver.state.gates


def test_checks_of_the_newest_iteration_are_shown() -> None:
    """Each check has its kind, verdict and evidence; those of earlier iterations are gone."""
    until = Regex(pattern=r"DONE \d")
    driver = Driver(plan_of(Repeat(body=CALL, max=3, until=until))).start()
    assert shown(driver)["checks"] == []
    driver.answer("main.0/agent#1", "not yet")
    [first] = shown(driver)["checks"]
    assert (first["check"], first["verdict"]) == ("regex", "fail")
    driver.answer("main.1/agent#1", "it is DONE 2")
    [last] = shown(driver)["checks"]
    assert last == {"check": "regex", "verdict": "pass", "evidence": "DONE 2"}


def test_an_error_has_its_type_and_words() -> None:
    """Why a run failed stands at the run and at the step."""
    driver = drive(plan_of(CALL), failing)
    told = shown(driver)
    assert told["error"] == {"type": "exit", "detail": "code 3"}
    assert told["steps"]["main"]["error"] == told["error"]


def test_steps_show_where_each_of_them_is() -> None:
    """Ended, running, pending and left out are told apart."""
    steps = (
        Step(id="a", action=CALL),
        Step(id="b", action=AskPerson(), needs=("a",)),
        Step(id="c", action=CALL, needs=("b",)),
    )
    driver = Driver(plan_of_steps(*steps)).start()
    driver.answer("a/agent#1", "from a")
    told = shown(driver)["steps"]
    assert [told[name]["status"] for name in "abc"] == ["completed", "running", "pending"]
    assert told["a"]["output"] == "from a"
    driver.decide("reject", "no")
    told = shown(driver)
    assert [told["steps"][name]["status"] for name in "abc"] == ["completed", "failed", "cancelled"]
    assert (told["status"], told["reason"]) == ("failed", "rejected")


def test_usage_is_the_sum_of_all_calls() -> None:
    """Tokens and money of every call count, those of failed ones too."""
    driver = Driver(plan_of(Repeat(body=CALL, max=2))).start()
    usage = Usage(input_tokens=5, output_tokens=2, usd=0.25)
    driver.answer("main.0/agent#1", Reply("x", usage=usage))
    driver.answer("main.1/agent#1", Fail(usage=usage))
    told = shown(driver)
    assert told["usage"] == {
        "input_tokens": 10,
        "output_tokens": 4,
        "usd": 0.5,
        "unpriced_calls": 0,
        "cost": "$0.50",
    }


def test_a_long_output_is_shown_whole() -> None:
    """Stored texts and results are read back."""
    long = "z" * 5_000
    driver = Driver(plan_of(CALL)).start()
    driver.answer("main/agent#1", Reply(long, result='{"n":[1,2]}'))
    told = shown(driver)
    assert (told["output"], told["result"]) == (long, {"n": [1, 2]})
    assert isinstance(driver.of(RunFinished)[0].output, Blob)


def test_two_loops_count_their_iterations_each() -> None:
    """With several loops each step has its own number."""
    steps = (
        Step(id="a", action=Repeat(body=CALL, max=2, at_cap="complete")),
        Step(id="b", action=Repeat(body=CALL, max=3, at_cap="complete")),
    )
    driver = drive(plan_of_steps(*steps))
    told = shown(driver)["steps"]
    assert [told[name]["iterations"] for name in "ab"] == [2, 3]


def test_what_a_judge_says_is_not_what_the_iteration_brought() -> None:
    """An iteration is told by its own output; the judge speaks in its verdict."""
    until = Judge(agent="critic", prompt=literal("Good?"))
    loop = Repeat(body=CallAgent(agent="a"), max=2, until=until)
    plan = Plan(name="x", steps=(Step(id="main", action=loop),))
    events: list[AnyEvent] = [
        RunStarted(at=1, run="run_a", plan="p", name="x"),
        StepStarted(at=1, path="main"),
        IterationStarted(at=1, path="main.0", iteration=1),
        EffectRequested(
            at=1, path="main.0", iteration=1, effect="main.0/agent#1", call=AgentCall(agent="a")
        ),
        EffectDone(at=2, path="main.0", iteration=1, effect="main.0/agent#1", output="a poem"),
        EffectRequested(
            at=2,
            path="main.0",
            iteration=1,
            effect="main.0/check0#1",
            call=AgentCall(agent="critic", role="judge"),
        ),
        EffectDone(at=3, path="main.0", iteration=1, effect="main.0/check0#1", result="{}"),
    ]
    progress = Progress(plan, lambda text: str(text or ""))
    for seq, event in enumerate(events, start=1):
        progress.take(NumberedEvent(seq, event))
    assert progress.passes[0].learning == "a poem"


def test_a_turn_that_is_an_iteration_is_reported_once() -> None:
    """With its calls, and not again when the iteration ends; its check says which text it looks
    for.
    """
    made = cycle_plan(Contains(text="ALL\nDONE"), most=2)
    driver = begun(
        made, turn("I look.", call("c1", arguments={"path": "a.txt"})), turn("I wait.")
    ).run()
    progress = Progress(made, driver.texts.read)
    lines = [
        progress.take(NumberedEvent(seq, event)) for seq, event in enumerate(driver.events, start=1)
    ]
    told = [line.text for line in lines if line is not None]
    assert [text for text in told if "I look." in text] == [
        "iteration 1/2: I look. [fs.read a.txt]"
    ]
    assert [text for text in told if "I wait." in text] == ["iteration 2/2: I wait."]
    assert "iteration 1/2: output does not contain 'ALL DONE'" in told
    assert progress.passes[0].learning == "I look."
