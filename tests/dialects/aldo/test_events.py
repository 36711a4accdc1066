"""What happened, in the words of this dialect: order, payloads, ends."""

import msgspec
import pytest

from loopwright.dialects.aldo import events as payloads
from loopwright.dialects.aldo.events import AldoEvent, Rendering
from loopwright.dialects.aldo.results import result_of
from loopwright.kernel.bodies import conversation
from loopwright.kernel.events import GateOpened
from loopwright.model.chat import RequestedCall
from tests.dialects.aldo.cases import plan_of, spec
from tests.dialects.aldo.running import BROKEN, Stage, call, done, says, turn
from tests.dialects.aldo.test_lower import LOOP, ROUNDS, RULES, TOOLS, composite
from tests.kernel.driving import Fail, Reply

AGENT = spec(LOOP + RULES + TOOLS, usd="0.5")


def names(events: list[AldoEvent]) -> list[str]:
    return [one.type for one in events]


def only(events: list[AldoEvent], name: str) -> dict[str, object]:
    """The payload of the only event of this name; of ends, without what they all carry."""
    [one] = [one for one in events if one.type == name]
    payload = dict(one.payload)
    if name in ("run.terminated_by", "run.completed"):
        assert (type(payload.pop("ok")), "output" in payload) == (bool, True)
        assert "provider" in payload.pop("usage")  # type: ignore[operator]
    if name == "run.terminated_by":
        payload.pop("output")
    return payload


def test_one_cycle_with_a_tool() -> None:
    """The events of a run of one cycle, in order, with all that they carry."""
    stage = Stage(
        plan_of(AGENT),
        lambda *_: turn("compiling", call("c1", argv=["tsc"]), usd=0.01, finish="tool_calls"),
    ).run()
    told = stage.events()
    at = told[3].at
    result = {"stdout": "tsc: ok"}
    part = {"callId": "c1", "tool": "shell.exec", "args": {"argv": ["tsc"]}}
    usage = {"tokensIn": 10, "tokensOut": 5, "usd": 0.01}
    assert [(one.type, one.payload) for one in told] == [
        ("run.started", {"ref": {"name": "worker", "version": "1.0.0"}, "id": "r_test"}),
        ("checkpoint", {"id": "main.0"}),
        ("cycle.start", {"cycle": 1, "maxCycles": 3, "messages": 2}),
        ("usage", {"provider": "a", "model": "m", **usage, "at": at}),
        (
            "model.response",
            {
                "cycle": 1,
                "textLength": 9,
                "toolCalls": [{"tool": "shell.exec", "callId": "c1"}],
                "finishReason": "tool_use",
                "usage": usage,
            },
        ),
        (
            "message",
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "compiling"}, {"type": "tool_call", **part}],
            },
        ),
        ("tool_call", part),
        (
            "tool_result",
            {"callId": "c1", "tool": "shell.exec", "result": result, "isError": False},
        ),
        (
            "tool.results",
            {"cycle": 1, "results": [{"callId": "c1", "tool": "shell.exec", "isError": False}]},
        ),
        (
            "run.terminated_by",
            {
                "reason": "tool-result",
                "detail": {
                    "tool": "shell.exec",
                    "callId": "c1",
                    "match": {"exit_code": 0, "contains": "tsc"},
                },
                "ok": True,
                "output": "compiling",
                "usage": {"provider": "a", "model": "m", **usage},
            },
        ),
        (
            "run.completed",
            {
                "finishReason": "tool_use",
                "output": "compiling",
                "terminatedBy": "tool-result",
                "cycles": 1,
                "ok": True,
                "usage": {"provider": "a", "model": "m", **usage},
            },
        ),
    ]


def test_an_event_gives_the_same_events_live() -> None:
    """Following a run event by event tells the same as reading it at its end."""
    stage = Stage(plan_of(AGENT), lambda *_: turn("x", call("c1"), usd=0.01)).run()
    live = Rendering(stage.plan, stage.read)
    told = [e for f in stage.driver.events for e in live.events(msgspec.to_builtins(f))]
    assert told == stage.events()


def test_the_ceiling() -> None:
    """After the last cycle: its reason and the last text; nudges count as messages."""
    stage = Stage(plan_of(AGENT), says("hm")).run()
    told = stage.events()
    assert only(told, "run.terminated_by") == {"reason": "maxCycles", "detail": {"cycles": 3}}
    ended = {"finishReason": "stop", "output": "hm", "terminatedBy": "maxCycles", "cycles": 3}
    assert only(told, "run.completed") == ended
    starts = [one.payload for one in told if one.type == "cycle.start"]
    assert [(one["cycle"], one["messages"]) for one in starts] == [(1, 2), (2, 4), (3, 6)]


@pytest.mark.item("aldo-15", "aldo-26")
@pytest.mark.parametrize(
    ("text", "speak", "reason", "detail", "finish"),
    [
        pytest.param(
            AGENT,
            turn("<task-complete>"),
            "text-includes",
            {"trigger": "<task-complete>"},
            "stop",
            id="text",
        ),
        pytest.param(
            AGENT,
            turn("x", usd=0.6, finish="length"),
            "budget-exhausted",
            {"usd": 0.6, "cap": 0.5},
            "budget",
            id="declared budget",
        ),
        pytest.param(
            spec(LOOP, usd="0.5"),
            turn("x", usd=0.6),
            "budget-exhausted",
            {"usd": 0.6, "cap": 0.5},
            "budget",
            id="limit",
        ),
        pytest.param(
            spec(LOOP + "termination: {text_mention: ENOUGH}\n"),
            turn("enough", finish="refused"),
            "textMention",
            {"trigger": "ENOUGH"},
            "error",
            id="mention",
        ),
        pytest.param(
            spec(LOOP + "  termination_conditions: [{kind: no-tool-calls}]\n"),
            turn("x"),
            "no-tool-calls",
            {},
            "stop",
            id="no tool calls",
        ),
        pytest.param(
            spec(LOOP + "  termination_conditions: [{kind: command, run: [npm, test]}]\n"),
            turn("x"),
            "command",
            {"evidence": "3 passed"},
            "stop",
            id="command",
        ),
    ],
)
def test_what_ended_it(
    text: str, speak: Reply, reason: str, detail: dict[str, object], finish: str
) -> None:
    """Each kind of end has its reason with its own detail, and stands in the last event too."""
    stage = Stage(plan_of(text), lambda *_: speak)
    inner = stage.driver.script
    stage.driver.script = lambda r: Reply("3 passed", code=0) if "check" in r.effect else inner(r)
    told = stage.run().events()
    assert only(told, "run.terminated_by") == {"reason": reason, "detail": detail}
    last = only(told, "run.completed")
    assert (last["terminatedBy"], last["finishReason"]) == (reason, finish)
    assert names(told)[-2:] == ["run.terminated_by", "run.completed"]


def test_a_tool_result_with_a_text_alone() -> None:
    """The detail has what was asked for, and no more."""
    rule = "  termination_conditions: [{kind: tool-result, tool: exec, match: {contains: ok}}]\n"
    stage = Stage(plan_of(spec(LOOP + rule + TOOLS)), lambda *_: turn("", call("c1"))).run()
    detail = only(stage.events(), "run.terminated_by")["detail"]
    assert detail == {"tool": "shell.exec", "callId": "c1", "match": {"contains": "ok"}}


def test_a_plain_run_is_ended_by_nothing() -> None:
    """It has simply finished."""
    told = Stage(plan_of(spec()), says("fine")).run().events()
    assert "run.terminated_by" not in names(told)
    assert only(told, "run.completed") == {"finishReason": "stop", "output": "fine", "cycles": 1}


def test_another_end_is_reported_by_its_own_name() -> None:
    """A reason that this dialect has no word for is passed on."""
    stage = Stage(plan_of(AGENT), lambda *_: None)
    stage.driver.start()
    rendering = Rendering(stage.plan, stage.read)
    for event in stage.driver.events:
        list(rendering.events(msgspec.to_builtins(event)))
    ended = {"kind": "step.finished", "at": 9, "path": "main", "status": "exhausted"}
    [one] = rendering.events({**ended, "reason": "deadline", "iterations": 1})
    assert (one.payload["reason"], one.payload["detail"]) == ("deadline", {})


# -- tools and people ------------------------------------------------------------------------------

GATED = spec(
    LOOP + "tools: {native: [{ref: shell.exec}, {ref: fs.read}], approvals: {shell.exec: always}, "
    "permissions: {filesystem: full}}\n"
)


@pytest.mark.item("aldo-33", "aldo-34", "aldo-36")
def test_each_held_call_is_reported_and_resolved_on_its_own() -> None:
    """A free sibling goes on meanwhile; a rejection is a result with its reason."""
    wanted = turn(
        "",
        call("c1", reason="to build"),
        call("c2", "fs.read"),
        call("c3"),
    )

    def people(gate: GateOpened) -> tuple[str, str]:
        return ("approve", "") if gate.gate == gates[0] else ("reject", "too risky")

    stage = Stage(plan_of(GATED), lambda *_: wanted, people=people)  # type: ignore[arg-type]
    stage.driver.start()
    stage.driver.step()
    gates = [one.gate for one in stage.driver.events if isinstance(one, GateOpened)]
    for _ in range(4):
        stage.driver.step()
    told = [one for one in stage.events() if one.type.startswith("tool")]
    asked = {"runId": "r_test", "tool": "shell.exec"}
    pending = [one.payload for one in told if one.type == "tool.pending_approval"]
    assert pending == [
        {**asked, "callId": "c1", "args": {"reason": "to build"}, "reason": "to build"},
        {**asked, "callId": "c3", "args": {}, "reason": None},
    ]
    resolved = {one.payload["callId"]: one for one in told if one.type == "tool.approval_resolved"}
    by = {"runId": "r_test", "approver": "ann"}
    assert resolved["c1"].payload == {
        **by,
        "callId": "c1",
        "kind": "approved",
        "at": resolved["c1"].at,
    }
    assert resolved["c3"].payload == {
        **by,
        "callId": "c3",
        "kind": "rejected",
        "reason": "too risky",
        "at": resolved["c3"].at,
    }
    results = {one.payload["callId"]: one.payload for one in told if one.type == "tool_result"}
    assert results["c3"]["result"] == {"rejected": True, "reason": "too risky", "approver": "ann"}
    assert [one["isError"] for one in only(told, "tool.results")["results"]] == [  # type: ignore[attr-defined]
        False,
        False,
        True,
    ]
    assert told[-1].type == "tool.results"


def test_failures_of_tools_are_results() -> None:
    """What a tool threw, what it said when it failed, and a call that nobody can run."""
    wanted = turn(
        "",
        call("c1"),
        call("c2"),
        RequestedCall(id="c3", tool="shell.exce", problem="there is no tool shell.exce"),
    )

    def tool(asked: object) -> object:
        first = asked.call == "c1"  # type: ignore[attr-defined]
        return Fail("tool", "no such file") if first else Fail("tool", "broke", text="said a lot")

    stage = Stage(plan_of(spec(LOOP.replace("3", "1") + TOOLS)), lambda *_: wanted, tool=tool)  # type: ignore[arg-type]
    told = stage.run().events()
    results = {one.payload["callId"]: one.payload for one in told if one.type == "tool_result"}
    assert {name: (one["result"], one["isError"]) for name, one in results.items()} == {
        "c1": ({"error": "no such file"}, True),
        "c2": ("said a lot", True),
        "c3": ({"error": "there is no tool shell.exce"}, True),
    }


def test_a_result_that_is_submitted() -> None:
    """The engine answers it; the words are the ones that the model is told."""
    assert (payloads.SUBMIT, payloads.ACCEPTED) == (conversation.SUBMIT, conversation.ACCEPTED)
    assert msgspec.json.decode(conversation.ONCE) == payloads.ALREADY_SUBMITTED
    wanted = turn("", call("c1", payloads.SUBMIT), call("c2", payloads.SUBMIT))
    told = Stage(plan_of(spec(LOOP.replace("3", "1"))), lambda *_: wanted).run().events()
    results = [one.payload for one in told if one.type == "tool_result"]
    assert [(one["result"], one["isError"]) for one in results] == [
        (payloads.ACCEPTED, False),
        (payloads.ALREADY_SUBMITTED, True),
    ]


def test_a_turn_of_nothing_has_no_message() -> None:
    """The response is told, an empty message is not."""
    told = Stage(plan_of(spec(LOOP.replace("3", "1"))), says("")).run().events()
    assert "message" not in names(told)
    assert only(told, "model.response")["textLength"] == 0


# -- ends that are none of the agent's -------------------------------------------------------------


@pytest.mark.item("aldo-19")
def test_a_stop_is_reported_once_and_last() -> None:
    """No event comes after it."""
    stage = Stage(plan_of(GATED), lambda *_: turn("", call("c1")), people=lambda _: None)
    stage.driver.run()
    stage.driver.cancel("changed my mind")
    stage.driver.cancel("again")
    told = stage.events()
    assert names(told).count("run.cancelled") == 1
    assert told[-1].payload == {"reason": "changed my mind"}


def test_a_model_that_cannot_answer() -> None:
    """The last event is the error; what the try has cost is told."""
    failed = Fail("auth", "no key", usage=msgspec.structs.replace(turn("", usd=1).usage, usd=0.2))  # type: ignore[type-var]
    told = Stage(plan_of(AGENT), lambda *_: failed).run().events()
    assert names(told)[-2:] == ["usage", "error"]
    assert told[-1].payload == {"message": "no key"}
    assert only(told, "usage")["provider"] == ""


@pytest.mark.item("aldo-45")
@pytest.mark.parametrize("strategy", ["rolling-window", "periodic-summary"])
def test_a_conversation_that_was_made_shorter(strategy: str) -> None:
    """It belongs to the cycle before, and stands before the next one begins."""
    loop = LOOP.replace("3", "6", 1).replace("8000", "1500").replace("rolling-window", strategy)
    stage = Stage(
        plan_of(spec(loop + TOOLS)),
        lambda _, cycle, __: turn("y" * 1_500, call(f"c{cycle}")),
        tool=lambda _: done("z" * 600),
    ).run()
    told = stage.events()
    at = names(told).index("history.compressed")
    [first, *_] = [one.payload for one in told if one.type == "history.compressed"]
    assert names(told)[at + 1 : at + 3] == ["checkpoint", "cycle.start"]
    assert told[at + 2].payload["cycle"] == first["cycle"] + 1  # type: ignore[operator]
    assert told[at + 2].payload["messages"] == first["messagesAfter"]
    kept = first["messagesBefore"] - first["droppedMessages"]  # type: ignore[operator]
    assert first["keptMessages"] == kept
    summed = strategy == "periodic-summary"
    assert first["messagesAfter"] == kept + summed
    assert first.get("summarisedTo") == ("in short" if summed else None)
    assert first["strategy"] == strategy


def test_a_cycle_that_is_tried_again_begins_once() -> None:
    """The provider found the conversation too long: it is cut inside of the same cycle."""
    tries: list[int] = []

    def speak(agent: str, cycle: int, asked: str) -> object:
        tries.append(cycle)
        return Fail("overflow", "too long") if tries == [1, 2] else turn("hm", call(f"c{cycle}"))

    told = Stage(plan_of(spec(LOOP + TOOLS)), speak).run().events()  # type: ignore[arg-type]
    assert tries == [1, 2, 2, 3]
    assert [one.payload["cycle"] for one in told if one.type == "cycle.start"] == [1, 2, 3]
    assert only(told, "history.compressed")["cycle"] == 2


# -- several agents --------------------------------------------------------------------------------


def test_children_are_reported_with_their_results() -> None:
    """Each begins and ends under its alias; the list is the output of the whole."""
    plan = plan_of(composite("parallel", "a", "b"), a=spec(name="a"), b=spec(LOOP, name="b"))
    told = Stage(plan, says("x")).run().events()
    own = [(one.type, one.payload) for one in told if one.type.startswith("composite")]
    assert own == [
        ("composite.child_started", {"alias": "a"}),
        ("composite.child_started", {"alias": "b"}),
        ("composite.child_completed", {"alias": "a", "output": "x"}),
        ("composite.child_completed", {"alias": "b", "output": "x"}),
    ]
    [ceiling] = [one for one in told if one.type == "run.terminated_by"]
    assert ceiling.path == "main.b"
    assert only(told, "run.completed") == {"output": ["x", "x"], "finishReason": "stop"}


def test_a_child_that_failed() -> None:
    """It is told with its error; what it kept from running is not told as failed."""
    plan = plan_of(composite("sequential", "a", "b"), a=spec(name="a"), b=spec(name="b"))
    told = Stage(plan, lambda *_: BROKEN).run().events()
    assert only(told, "composite.child_failed") == {"alias": "a", "error": "no key"}
    assert names(told)[-1] == "error"
    said = Stage(plan, says("x")).run().events()
    assert only(said, "run.completed") == {"output": "x", "finishReason": "stop"}


@pytest.mark.parametrize(
    ("usd", "terminate", "rounds", "terminated", "why"),
    [
        pytest.param("0", "$", 1, True, "terminate", id="terminated"),
        pytest.param("0", "'false'", 3, False, "maxRounds", id="rounds used up"),
        pytest.param("0.3", "'false'", 2, False, "budget", id="money used up"),
    ],
)
def test_rounds(usd: str, terminate: str, rounds: int, terminated: bool, why: str) -> None:
    """Each round is told, and the result says how many there were and why they ended."""
    text = composite("iterative", "a", more=ROUNDS % terminate, usd=usd)
    stage = Stage(plan_of(text, a=spec(name="a")), lambda *_: turn("x", usd=0.15)).run()
    told = stage.events()
    told_rounds = [one.payload for one in told if one.type == "composite.iteration"]
    assert [one["round"] for one in told_rounds] == list(range(1, rounds + 1))
    assert told_rounds[-1]["terminated"] is terminated
    value = {"rounds": rounds, "output": "x", "terminated": terminated, "terminateReason": why}
    assert only(told, "run.completed") == {"output": value, "finishReason": "stop"}


@pytest.mark.parametrize(
    ("outcome", "answer"),
    [
        ("completed", {"ok": True, "output": "text"}),
        ("exhausted", {"ok": True, "output": "text"}),
        ("cancelled", {"ok": False, "output": {"cancelled": True, "reason": "why"}}),
        ("failed", {"ok": False, "output": {"error": "broke"}}),
    ],
)
def test_what_a_run_answers_with(outcome: str, answer: object) -> None:
    """A ceiling is no failure here; a stop and an error are."""
    assert result_of(outcome, reason="why", output="text", error="broke") == answer  # type: ignore[arg-type]


def test_events_of_other_places_are_none_of_ours() -> None:
    """What happens outside of a loop of cycles has no event."""
    rendering = Rendering(plan_of(AGENT), str)
    place = {"at": 1, "path": "elsewhere.0", "iteration": 1, "effect": "elsewhere.0/model#1"}
    for kind, more in {
        "effect.requested": {"call": {"do": "model", "agent": "a"}},
        "effect.done": {},
        "turn.taken": {},
        "gate.opened": {"gate": "g", "call": 1},
        "gate.answered": {"gate": "g", "decision": "approve"},
        "history.compressed": {},
        "check.verdict": {"verdict": "pass"},
        "iteration.finished": {},
        "iteration.started": {},
    }.items():
        assert list(rendering.events({**place, "kind": kind, **more})) == []


@pytest.mark.item("aldo-58")
def test_a_stop_of_a_team() -> None:
    """Children that were stopped have neither completed nor failed."""
    plan = plan_of(composite("parallel", "a"), a=spec(name="a"))
    stage = Stage(plan, lambda *_: None)
    stage.driver.start()
    stage.driver.cancel()
    ended = [one.type for one in stage.events()]
    assert ended == [
        "run.started",
        "composite.child_started",
        "checkpoint",
        "cycle.start",
        "run.cancelled",
    ]


@pytest.mark.item("aldo-27")
def test_the_budget_of_all_runs() -> None:
    """It has its own reason with the amounts, where they are of money, and is not ok."""
    text = spec(LOOP)
    for words, amounts in (("spent 2.5 of 2 USD today", (2.0, 2.5)), ("used 9 of 8", (None, None))):
        told = (
            Stage(plan_of(text), lambda *_, words=words: Fail("home_budget", words)).run().events()
        )
        ended = only(told, "run.terminated_by")
        assert ended["reason"] == "tenant-budget-exhausted"
        detail = ended["detail"]
        assert (detail["capUsd"], detail["totalUsd"], detail["message"]) == (*amounts, words)
        last = only(told, "run.completed")
        assert (last["output"], last["finishReason"], last["cycles"]) == ("", "budget", 0)
    assert result_of("exhausted", reason="home_budget") == {"ok": False, "output": ""}
