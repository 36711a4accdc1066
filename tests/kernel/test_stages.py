"""Loops of stages: what approves, what reaches a goal, what a limit means, and in which order."""

import pytest

from loopwright.kernel.bodies.repeat import outcome_line
from loopwright.kernel.checks import is_unfit, read_goal_verdict
from loopwright.kernel.event_parts import LookupCall
from loopwright.kernel.events import (
    CancelRequested,
    CheckVerdict,
    EffectRequested,
    IterationFinished,
    RunPaused,
    RunResumed,
    StepSkipped,
)
from loopwright.kernel.gates import reports_blocked
from loopwright.kernel.state import PendingEffect
from loopwright.model.actions import Action, CallAgent, LoopGate, Repeat, Step, Steps
from loopwright.model.checks import Approval, Cap, Goal
from loopwright.model.plan import Plan
from loopwright.model.policy import Limits, StageOutputs
from loopwright.model.record import literal
from tests.kernel.driving import (
    Driver,
    Fail,
    Reply,
    Script,
    ScriptedAnswer,
    by_effect,
    plan_of,
    say,
)

STAGES = Steps(
    steps=(
        Step(id="code", action=CallAgent(agent="coder")),
        Step(id="review", action=CallAgent(agent="reviewer"), needs=("code",)),
    )
)
WORDS = Approval(words=True)
GOAL = Goal(agent="judge")


def loop(body: Action = STAGES, **changes: object) -> Repeat:
    fields = {"body": body, "max": 3, "until": WORDS, "memory": StageOutputs(), "broken_after": 0}
    return Repeat(**(fields | changes))  # type: ignore[arg-type]


def reviews(*said: ScriptedAnswer | str) -> Script:
    """The n-th review is the n-th text, the last one again and again."""

    def script(request: EffectRequested) -> ScriptedAnswer:
        if "review" not in request.effect and "check" not in request.effect:
            return Reply("Code.")
        return say(said[min((request.iteration or 1) - 1, len(said) - 1)])

    return script


def judged(said: ScriptedAnswer | str) -> Script:
    """Every stage works, and the evaluator always says the same."""

    def script(request: EffectRequested) -> ScriptedAnswer:
        return say(said) if "check" in request.effect else Reply("Code.")

    return script


def ran(repeat: Repeat, script: Script) -> Driver:
    return Driver(plan_of(repeat), script).run()


def end(driver: Driver) -> tuple[str, str, int]:
    finished = driver.state.finished
    assert finished is not None
    passes = sum(isinstance(event, IterationFinished) for event in driver.events)
    return finished.outcome, finished.reason, passes


@pytest.mark.item("coqui-29", "coqui-30")
@pytest.mark.parametrize(
    ("said", "ended"),
    [
        pytest.param(("APPROVED",), ("completed", "approved", 1), id="at once"),
        pytest.param(("NEEDS CHANGES", "APPROVED"), ("completed", "approved", 2), id="later"),
        pytest.param(("no", "no", "LGTM"), ("completed", "approved", 3), id="in the last round"),
        pytest.param(("no",), ("exhausted", "max_iterations", 3), id="never"),
    ],
)
def test_the_last_round_is_judged_before_the_cap(
    said: tuple[str, ...], ended: tuple[str, str, int]
) -> None:
    """An approval in the last round is an approval; without one the limit is the reason."""
    assert end(ran(loop(), reviews(*said))) == ended


@pytest.mark.parametrize(
    ("reply", "approves"),
    [
        pytest.param(Reply("x", result='{"approved":true,"findings":[]}'), True, id="result"),
        pytest.param(Reply("APPROVED", result='{"approved":false}'), False, id="result first"),
        pytest.param(Reply('Fine.\n{"approved": true}'), True, id="at the end"),
        pytest.param(Reply('```json\n{"approved": true}\n```\n'), True, id="in a fence at the end"),
        pytest.param(Reply('LGTM {"approved": false, "findings": ["x"]}'), False, id="no"),
        pytest.param(Reply('{"approved": "true"}'), False, id="a text is no yes"),
        pytest.param(Reply('{"approved": 1}'), False, id="a number is no yes"),
        pytest.param(Reply('{"approved": null}'), False, id="nothing is no yes"),
        pytest.param(
            Reply('{"approved": true, "findings": [{"severity": "critical", "summary": "x"}]}'),
            False,
            id="with a grave finding",
        ),
        pytest.param(
            Reply(
                '{"approved": true, "findings": [{"severity": "Minor", "summary": "x"}, "y", 3]}'
            ),
            True,
            id="with small ones",
        ),
        pytest.param(Reply('{"approved": false}\n{"approved": true}'), True, id="the last counts"),
        pytest.param(
            Reply('Say {"approved": true} if it is good. It needs work.'), False, id="beside a no"
        ),
        pytest.param(Reply('{"approved": true} and nothing else to say'), True, id="beside praise"),
        pytest.param(Reply('{"approved": <true or false>}'), False, id="a form is no verdict"),
        pytest.param(Reply('{"other": 1} {"a'), False, id="other objects"),
    ],
)
def test_the_structured_verdict_comes_first(reply: Reply, approves: bool) -> None:
    """An object with `approved` decides, wherever words point; a rejection beside it vetoes."""
    driver = ran(loop(max=1), reviews(reply))
    assert end(driver)[1] == ("approved" if approves else "max_iterations")


def test_words_count_only_where_that_is_said() -> None:
    """Without `words` nothing but the structured verdict approves."""
    driver = ran(loop(until=Approval(), max=1), reviews("APPROVED"))
    assert end(driver) == ("exhausted", "max_iterations", 1)
    (verdict,) = [event for event in driver.events if isinstance(event, CheckVerdict)]
    assert "there is no verdict" in str(verdict.evidence)


def test_findings_are_in_the_verdict() -> None:
    """What was found is kept with the verdict, each on a line."""
    findings = (
        '[{"severity":"important","summary":"no test","location":"a.py"},'
        '{"message":"slow"},{"title":7},"plain",5]'
    )
    said = f'{{"approved": false, "findings": {findings}}}'
    driver = ran(loop(max=1), reviews(said))
    (verdict,) = [event for event in driver.events if isinstance(event, CheckVerdict)]
    assert driver.texts.read(verdict.evidence).splitlines() == [
        "the verdict is approved: false",
        "- important: no test (a.py)",
        "- slow",
        '- {"title":7}',
        "- plain",
        "- 5",
    ]


def test_the_stage_that_is_named_reviews() -> None:
    """Not the last one, where another is named; nobody where it has not spoken."""
    script = by_effect({"main.0.code/agent#1": "APPROVED", "main.0.review/agent#1": "no"})
    assert end(ran(loop(until=Approval(stage="code", words=True)), script))[1] == "approved"
    single = loop(CallAgent(agent="coder"), until=Approval(stage="gone", words=True), max=1)
    assert end(ran(single, reviews("APPROVED")))[1] == "max_iterations"
    alone = by_effect({"main.0/agent#1": "APPROVED"})
    assert end(ran(single, alone))[1] == "approved"


def test_a_copy_of_the_request_approves_nothing() -> None:
    """A reviewer that repeats what it was asked has not answered."""
    body = Steps(
        steps=(
            Step(
                id="review",
                action=CallAgent(agent="r", prompt=literal("Say APPROVED when all is well")),
            ),
        )
    )
    driver = ran(loop(body, max=1), reviews("Say APPROVED when all is well"))
    assert end(driver)[1] == "max_iterations"


# -- goals -----------------------------------------------------------------------------------------


@pytest.mark.item("coqui-35")
@pytest.mark.parametrize(
    ("said", "ended"),
    [
        pytest.param(Reply(result='{"done":true}'), ("completed", "goal", 1), id="done"),
        pytest.param(
            Reply(result='{"done":false}'), ("exhausted", "max_iterations", 3), id="not done"
        ),
        pytest.param(
            Fail("bad_result", text="ACHIEVED\nAll of it."), ("completed", "goal", 1), id="words"
        ),
        pytest.param(
            Fail("bad_result", text="NOT ACHIEVED\nHalf of it."),
            ("exhausted", "max_iterations", 3),
            id="not, with a blank",
        ),
        pytest.param(
            Fail("bad_result", text="I think it is ACHIEVED"),
            ("exhausted", "max_iterations", 3),
            id="in a sentence",
        ),
        pytest.param(Fail(), ("exhausted", "max_iterations", 3), id="cannot be asked"),
    ],
)
def test_goals_are_read_strictly(said: ScriptedAnswer, ended: tuple[str, str, int]) -> None:
    """Only a clear yes reaches a goal; an evaluator that fails lets the loop go on, counted."""
    assert end(ran(loop(until=GOAL), judged(said))) == ended


@pytest.mark.item("coqui-35")
def test_without_an_evaluator_all_iterations_are_made() -> None:
    """The cap is the end then."""
    assert end(ran(loop(until=Cap()), judged("x"))) == ("exhausted", "max_iterations", 3)


def test_an_evaluator_is_asked_again_only_for_what_cannot_be_read() -> None:
    """Words that say it are an answer; others are asked for once more."""
    clear = ran(loop(until=GOAL, max=1), judged(Fail("bad_result", text="NOT_ACHIEVED")))
    asked = [event for event in clear.events if isinstance(event, EffectRequested)]
    assert sum("check" in event.effect for event in asked) == 1
    vague = ran(loop(until=GOAL, max=1), judged(Fail("bad_result", text="hm")))
    asked = [event for event in vague.events if isinstance(event, EffectRequested)]
    assert sum("check" in event.effect for event in asked) == 2
    assert not is_unfit(vague.answer_event(asked[0], Reply()))


@pytest.mark.parametrize(
    ("text", "yes"),
    [
        pytest.param("ACHIEVED", True, id="plain"),
        pytest.param("**ACHIEVED**\n\nwhy", True, id="emphasis"),
        pytest.param("achieved.", True, id="lower case"),
        pytest.param("NOT_ACHIEVED", False, id="not"),
        pytest.param("NOT ACHIEVED", False, id="with a blank"),
        pytest.param("Not-achieved", False, id="with a hyphen"),
        pytest.param("NOT  ACHIEVED: two tests fail", None, id="more on the line"),
        pytest.param("ACHIEVED?", None, id="a question"),
        pytest.param("UNACHIEVED", None, id="another word"),
        pytest.param("Nearly ACHIEVED", None, id="nearly"),
        pytest.param("The goal\nACHIEVED", None, id="not on the first line"),
        pytest.param("  \n ", None, id="nothing"),
    ],
)
def test_the_first_line_says_whether_a_goal_is_reached(text: str, yes: bool | None) -> None:
    """One of two words alone, or nothing is said."""
    said = read_goal_verdict(text)
    assert (said.yes if said else None) is yes


def test_why_a_goal_is_or_is_not_reached() -> None:
    """The rest is why; without one the line itself stands there."""
    assert getattr(read_goal_verdict("ACHIEVED\n\nAll green.\n"), "why", "") == "All green."
    assert getattr(read_goal_verdict("NOT ACHIEVED"), "why", "") == "NOT ACHIEVED"


# -- time ------------------------------------------------------------------------------------------


def at_the_deadline(repeat: Repeat, answered: list[str]) -> Driver:
    """A loop whose time is up when these calls are answered, and the next is under way."""
    driver = Driver(plan_of(repeat)).start()
    for effect in answered:
        driver.answer(effect, "x")
    driver.fire("main/loop-deadline#1")
    return driver


@pytest.mark.item("coqui-36")
def test_an_iteration_is_finished_when_time_is_up() -> None:
    """The running stage and those after it go on; then no other iteration begins."""
    repeat = loop(until=Cap(), max=None, limits=Limits(wall_ms=60), on_deadline="after_pass")
    driver = at_the_deadline(repeat, [])
    assert driver.state.finished is None
    driver.answer("main.0.code/agent#1", "late")
    driver.answer("main.0.review/agent#1", "later")
    assert end(driver) == ("exhausted", "deadline", 1)


def test_an_approval_in_the_last_iteration_counts_after_the_deadline() -> None:
    """What was approved is approved, also when time was up before."""
    repeat = loop(limits=Limits(wall_ms=60), on_deadline="after_pass")
    driver = at_the_deadline(repeat, ["main.0.code/agent#1"])
    driver.answer("main.0.review/agent#1", "APPROVED")
    assert end(driver) == ("completed", "approved", 1)


def test_a_failure_after_the_deadline_is_a_failure() -> None:
    """Time being up hides nothing."""
    repeat = loop(limits=Limits(wall_ms=60), on_deadline="after_pass")
    driver = at_the_deadline(repeat, [])
    driver.answer("main.0.code/agent#1", Fail())
    assert end(driver)[:2] == ("failed", "error")


def test_a_stage_is_finished_when_time_is_up() -> None:
    """The running stage goes on to its end, and no other begins."""
    repeat = loop(limits=Limits(ends_at=1_500), on_deadline="after_step")
    driver = at_the_deadline(repeat, [])
    assert driver.state.finished is None
    driver.answer("main.0.code/agent#1", "late")
    assert end(driver) == ("exhausted", "deadline", 1)
    skipped = [event for event in driver.events if isinstance(event, StepSkipped)]
    assert [(event.path, event.status) for event in skipped] == [("main.0.review", "cancelled")]


def test_a_review_under_way_is_read_when_time_is_up() -> None:
    """After the last stage its verdict is taken before the time counts."""
    repeat = loop(until=GOAL, limits=Limits(wall_ms=60), on_deadline="after_step")
    driver = at_the_deadline(repeat, ["main.0.code/agent#1", "main.0.review/agent#1"])
    assert driver.state.finished is None
    driver.answer("main.0/check0#1", Reply(result='{"done":true}'))
    assert end(driver) == ("completed", "goal", 1)


def test_a_single_call_is_a_step_of_its_own() -> None:
    """A loop whose body is one call finishes it."""
    repeat = loop(
        CallAgent(agent="coder"),
        until=Cap(),
        limits=Limits(wall_ms=60),
        on_deadline="after_step",
    )
    driver = at_the_deadline(repeat, [])
    driver.answer("main.0/agent#1", "late")
    assert end(driver) == ("exhausted", "deadline", 1)


def test_everything_stops_at_once_where_that_is_said() -> None:
    """The running stage is withdrawn; of two limits the earlier counts."""
    repeat = loop(until=Cap(), limits=Limits(wall_ms=10_000, ends_at=1_100))
    driver = Driver(plan_of(repeat)).start()
    assert driver.state.queues.timers == {"main/loop-deadline#1": 1_100}
    driver.fire("main/loop-deadline#1")
    assert end(driver) == ("exhausted", "deadline", 1)


@pytest.mark.item("coqui-37")
def test_nothing_ends_a_loop_by_itself_that_waits_for_a_person() -> None:
    """A manual loop makes pass after pass."""
    driver = Driver(plan_of(loop(until=Cap(), max=None)), reviews("APPROVED")).start()
    for _ in range(200):
        assert driver.step()
    assert driver.state.finished is None


# -- blocked ---------------------------------------------------------------------------------------


@pytest.mark.item("coqui-63")
def test_rejections_in_a_row_block_the_loop() -> None:
    """After so many the loop waits for a person, with what was found; nothing more is asked."""
    repeat = loop(max=5, gate=LoopGate(after=2))
    driver = Driver(plan_of(repeat), reviews("Rejected: no test")).run()
    assert driver.state.finished is None
    assert driver.state.pending == {}
    (gate,) = driver.state.gates.values()
    assert gate.path == "main.1"
    assert "2 iterations in a row" in gate.message


@pytest.mark.item("coqui-64")
def test_a_note_lets_it_continue() -> None:
    """The note is told to the next iteration and no other, and the count begins anew."""
    repeat = loop(max=9, gate=LoopGate(after=2))
    driver = Driver(plan_of(repeat), reviews("Rejected")).run()
    (gate,) = driver.open_gates()
    driver.append(driver.decision_event(gate, "continue", "Look at the tests"))
    body = driver.state.owners["main"].body
    assert (body.progress.feedback, body.progress.unmet) == ("Look at the tests", 0)  # type: ignore[union-attr]
    driver.run()
    (gate,) = driver.open_gates()
    assert gate.path == "main.3"
    assert body.progress.feedback == ""  # type: ignore[union-attr]
    driver.append(driver.decision_event(gate, "approve"))
    assert end(driver) == ("completed", "approved", 4)


def test_the_last_round_blocks_nothing() -> None:
    """The cap comes first: nobody is asked about what cannot go on."""
    driver = ran(loop(max=2, gate=LoopGate(after=2)), reviews("Rejected"))
    assert end(driver) == ("exhausted", "max_iterations", 2)
    endless = Driver(plan_of(loop(max=None, gate=LoopGate(after=1))), reviews("Rejected")).run()
    (gate,) = endless.open_gates()
    assert "1 iteration in a row" in gate.message


BLOCKING = Steps(
    steps=(
        Step(id="code", action=CallAgent(agent="coder"), on_blocked="ask"),
        Step(id="review", action=CallAgent(agent="reviewer"), needs=("code",)),
    )
)


def blocked() -> Driver:
    driver = Driver(plan_of(loop(BLOCKING)), reviews("APPROVED")).start()
    driver.answer("main.0.code/agent#1", "# Report\n**STATUS: BLOCKED**\nno access")
    return driver


@pytest.mark.item("coqui-65")
def test_a_stage_that_says_it_is_blocked_holds_the_loop() -> None:
    """A person is asked before the next stage, and nothing runs meanwhile."""
    driver = blocked()
    (gate,) = driver.open_gates()
    assert (gate.path, driver.state.pending) == ("main.0.code", {})
    driver.append(driver.decision_event(gate, "continue", "Use the other key"))
    assert driver.state.owners["main.0.code"].note == "Use the other key"  # type: ignore[union-attr]
    driver.answer("main.0.code~2/agent#1", "STATUS: NEEDS_CONTEXT")
    (again,) = driver.open_gates()
    assert again.gate != gate.gate
    driver.append(driver.decision_event(again, "approve"))
    driver.run()
    assert end(driver) == ("completed", "approved", 1)


def test_a_blocked_stage_can_be_given_up_or_stopped() -> None:
    """A rejection fails the loop; a stop closes the question."""
    driver = blocked()
    (gate,) = driver.open_gates()
    driver.append(driver.decision_event(gate, "reject"))
    assert end(driver)[:2] == ("failed", "rejected")
    stopped = blocked()
    stopped.append(CancelRequested(at=stopped.clock))
    assert end(stopped)[0] == "cancelled"
    assert stopped.state.gates == {}


LEAVING = Steps(
    steps=(
        Step(id="code", action=CallAgent(agent="coder"), on_blocked="ask", needs_artifact=True),
        Step(id="review", action=CallAgent(agent="reviewer"), needs=("code",)),
    )
)


def left(*found: bool) -> Driver:
    """The first stage has ended, and each look finds something or nothing."""
    driver = Driver(plan_of(loop(LEAVING)), reviews("APPROVED")).start()
    driver.answer("main.0.code/agent#1", "Code.")
    for number, there in enumerate(found, start=1):
        driver.answer(f"main.0.code/artifact#{number}", Reply(code=0 if there else 1))
    return driver


@pytest.mark.item("coqui-66")
def test_a_stage_that_left_its_artifact_continues() -> None:
    """It is looked for once, since the beginning of the iteration."""
    driver = left()
    assert [one.since for one in map(_call, driver.state.pending.values())] == [1_000]
    assert end(left(True).run()) == ("completed", "approved", 1)


def _call(pending: PendingEffect) -> LookupCall:
    assert isinstance(pending.call, LookupCall)
    return pending.call


@pytest.mark.item("coqui-66")
def test_a_missing_artifact_is_looked_for_again_before_the_stage_is() -> None:
    """What was supplied meanwhile is enough; else the stage is asked anew, and looked at anew."""
    driver = left(False)
    (gate,) = driver.open_gates()
    assert "artifact" in gate.message
    driver.append(driver.decision_event(gate, "continue", "leave it"))
    driver.answer("main.0.code/artifact#2", Reply(code=0))
    assert end(driver.run()) == ("completed", "approved", 1)
    missing = left(False)
    (gate,) = missing.open_gates()
    missing.append(missing.decision_event(gate, "continue"))
    missing.answer("main.0.code/artifact#2", Fail())
    assert list(missing.state.pending) == ["main.0.code~2/agent#1"]
    missing.answer("main.0.code~2/agent#1", "Code.")
    assert list(missing.state.pending) == ["main.0.code~2/artifact#1"]


def test_a_look_that_is_under_way_is_waited_for() -> None:
    """Whatever else happens meanwhile: before the question, while it is open, and after it."""

    def touched(driver: Driver) -> Driver:
        driver.append(RunPaused(at=driver.clock))
        driver.append(RunResumed(at=driver.clock))
        return driver

    driver = touched(left())
    assert list(driver.state.pending) == ["main.0.code/artifact#1"]
    driver.answer("main.0.code/artifact#1", Reply(code=1))
    (gate,) = touched(driver).open_gates()
    driver.append(driver.decision_event(gate, "continue"))
    assert list(touched(driver).state.pending) == ["main.0.code/artifact#2"]
    driver.answer("main.0.code/artifact#2", Reply(code=0))
    assert end(driver.run()) == ("completed", "approved", 1)


def test_a_missing_artifact_can_be_done_without_or_given_up() -> None:
    """An approval goes on, a rejection ends it, and a stop ends the look."""
    driver = left(False)
    (gate,) = driver.open_gates()
    driver.append(driver.decision_event(gate, "approve"))
    assert end(driver.run()) == ("completed", "approved", 1)
    rejected = left(False)
    (gate,) = rejected.open_gates()
    rejected.append(rejected.decision_event(gate, "reject"))
    assert end(rejected)[:2] == ("failed", "rejected")
    stopped = left()
    stopped.append(CancelRequested(at=stopped.clock))
    assert end(stopped)[0] == "cancelled"
    assert stopped.state.pending == {}


def test_an_artifact_may_be_required_outside_of_a_loop() -> None:
    """Then it may be of any age; and a failed step leaves nothing."""
    alone = Plan(
        name="p", steps=(Step(id="code", action=CallAgent(agent="coder"), needs_artifact=True),)
    )
    driver = Driver(alone).start()
    driver.answer("code/agent#1", "Code.")
    assert [one.since for one in map(_call, driver.state.pending.values())] == [0]
    broken = Driver(alone, by_effect({"code/agent#1": Fail()})).run()
    assert broken.state.finished is not None
    assert broken.state.finished.outcome == "failed"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("STATUS: BLOCKED", True, id="plain"),
        pytest.param("\n\n> Status: needs context", True, id="quoted"),
        pytest.param("a\nb\nc\nd\nSTATUS: BLOCKED", True, id="fifth line"),
        pytest.param("a\nb\nc\nd\ne\nSTATUS: BLOCKED", False, id="sixth line"),
        pytest.param("The STATUS: BLOCKED mark is not set", False, id="in a sentence"),
        pytest.param("STATUS: DONE", False, id="done"),
        pytest.param("", False, id="nothing"),
    ],
)
def test_how_a_stage_says_that_it_is_blocked(text: str, says: bool) -> None:
    """On a line of its own, among the first."""
    assert reports_blocked(text) is says


# -- what is remembered ----------------------------------------------------------------------------


def test_one_line_for_each_iteration() -> None:
    """What was decided, and how the last words begin."""
    driver = Driver(plan_of(loop()), reviews("Needs changes: a\nb", "LGTM")).start()
    for _ in range(3):
        driver.step()
    body = driver.state.owners["main"].body
    assert body.memory.learnings == ["not approved: Needs changes: a"]  # type: ignore[union-attr]
    assert outcome_line(None, "") == "(no output)"
    assert outcome_line("\n\n  x" + "y" * 500, "goal not reached") == (
        "goal not reached: x" + "y" * 199
    )


@pytest.mark.parametrize(
    ("until", "said", "line"),
    [
        pytest.param(GOAL, Reply(result='{"done":false}'), "goal not reached: Code.", id="goal"),
        pytest.param(Cap(), Reply("x"), "x", id="nothing decides"),
    ],
)
def test_the_line_says_what_decides(until: Goal | Cap, said: ScriptedAnswer, line: str) -> None:
    """A goal is named as such; where nothing decides, the words stand alone."""
    body = Steps(steps=(Step(id="review", action=CallAgent(agent="r")),))

    def script(request: EffectRequested) -> ScriptedAnswer:
        return said if "check" in request.effect or until == Cap() else Reply("Code.")

    driver = Driver(plan_of(loop(body, until=until)), script).start()
    while not driver.state.owners["main"].body.memory.learnings:
        driver.step()
    assert driver.state.owners["main"].body.memory.learnings == [line]  # type: ignore[union-attr]
