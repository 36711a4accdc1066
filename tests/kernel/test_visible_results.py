"""Results of an iteration that others can use, required values, and the output of a graph."""

from typing import Any

import pytest

from loopwright.kernel.effects import is_retried
from loopwright.kernel.event_parts import Failure
from loopwright.kernel.events import (
    EffectRequested,
    GateOpened,
    IterationFinished,
    IterationStarted,
    StepFinished,
    Usage,
)
from loopwright.kernel.frames import Spent
from loopwright.kernel.references import fill, missing_value
from loopwright.kernel.signal import has_signal, why_not_signalled, without_signal
from loopwright.model.actions import AskPerson, CallAgent, LoopGate, Repeat, RunScript, Steps
from loopwright.model.checks import AnyOf, Cap, Contains, ScriptCheck, Signal
from loopwright.model.policy import Retry
from loopwright.model.record import Lit, Ref
from tests.kernel.driving import (
    Driver,
    Fail,
    Reply,
    by_effect,
    by_iteration,
    decisions,
    drive,
    plan_of,
    plan_of_steps,
)
from tests.kernel.invariants import broken_laws
from tests.kernel.shapes import WORK, step

TAG = "<promise>DONE</promise>"
ANYWHERE = Signal(word="DONE", anywhere=True)
ASKED = f"Work.\nWhen nothing is left, say {TAG}\nAlone:\n{TAG}"


# -- signals anywhere ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "given"),
    [
        (TAG, True),
        (f"ok {TAG} bye", True),
        (f"{TAG}\n```\n{TAG}\n```", True),
        ("<a>\n DONE\n</a>", True),
        ("it is DONE", True),
        ("x\nDONE,\ny", True),
        (f"<promise>not yet</promise> {TAG}", True),
        (f"Alone, as asked:\n{TAG}", True),
        ("", False),
        ("nothing of the kind", False),
        ("UNDONE", False),
        ("it is not DONE", False),
        ("DONE is what I said, and not more", False),
        (f"I did not need to change the docs, so this is it: {TAG}", True),
        (f"```\n{TAG}\n```", True),
        (f"`{TAG}`", True),
        (f"{TAG} if it works", True),
        (f"When nothing is left, say {TAG}", True),
        ("```\nDONE", False),
        ("`<done>DONE</done>`", False),
        ("I'll say <done>DONE</done>", False),
        ("<a>DONE</b>", False),
    ],
)
def test_a_signal_anywhere(text: str, given: bool) -> None:
    """Always in promise tags; else on a line or at the end, not in code, denials or conditions."""
    assert has_signal(text, "DONE", ASKED, anywhere=True) is given


COMPLETING = [
    "I did not need to touch docs: DONE",
    "I did not change anything else, all stories are DONE",
    "I did not change anything else; everything is DONE.",
    "I didn\u2019t touch the tests, so it is DONE",
    "I did not touch the docs but everything is DONE",
    "I did not touch the docs and all stories are DONE",
    "No problems were found, all stories are DONE",
    "There is nothing left to be done: DONE",
    "I checked it once more, and all is DONE!",
    "I would not change more - the work is DONE",
    "I could not reproduce it before. Now it is DONE",
    "The tests do not fail any more. DONE",
    "Story 3 was not there yet\nDONE",
    "**DONE**",
    "all fixed\n**DONE**",
    "all fixed\n__DONE__.",
    "all fixed\n*DONE.*\nbye",
    "All stories are **DONE**.",
    "**All stories are DONE**",
    "I did not change the docs: **DONE**",
]
NOT_COMPLETING = [
    "not DONE",
    "this is not yet DONE",
    "I cannot say DONE",
    "I cannot say: DONE",
    "I cannot yet say that, all in all, it is DONE",
    "I do not think, honestly, it is DONE",
    "I don't believe it is tested and it is DONE",
    "This is not, as far as I know, DONE",
    "It is not yet, unfortunately, DONE",
    "It isn't, DONE",
    "It is not true: all stories are DONE",
    "Not all stories, only some, are DONE",
    "None of the stories is DONE",
    "I checked all of them, no story is DONE",
    "Almost DONE",
    "The status is not: DONE",
    "Status: not DONE",
    "Status: almost DONE",
    "Tests: not finished; docs: DONE",
    "Tests are not finished; DONE",
    "The tests are not run, docs: DONE",
    "It is not tested and DONE",
    "It is not so DONE",
    "Once the tests pass, it is DONE",
    "Once the tests pass, I say: DONE",
    "When the tests pass: DONE",
    "I will fix the rest, then DONE",
    "I will fix the rest and then it is DONE",
    "The last line will be: DONE",
    "I doubt that it is DONE",
    "It is unclear whether it is DONE",
    "This is not **DONE**",
    "**not DONE**",
    "**NOT YET DONE**",
    "**DONE",
    "*UNDONE*",
    "```\n**DONE**\n```",
    "It is <a>DONE</a>, but not yet tested",
    "It is <a>DONE</a>, once the tests pass",
]


@pytest.mark.item("archon-11")
@pytest.mark.parametrize("text", COMPLETING)
def test_a_denial_in_another_clause_does_not_deny_the_signal(text: str) -> None:
    """Only the clause around a plain signal denies it; emphasis does not hide it."""
    assert why_not_signalled(text, "DONE", "Work.") is None


@pytest.mark.item("archon-11")
@pytest.mark.parametrize("text", NOT_COMPLETING)
def test_a_denial_or_condition_that_reaches_the_signal_counts(text: str) -> None:
    """In its clause, left open in front of it, or as the condition of the sentence."""
    assert why_not_signalled(text, "DONE", "Work.") is not None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", ""),
        ("nothing of the kind", ""),
        ("UNDONE", ""),
        ("it is not DONE", "the sentence around DONE denies it"),
        ("say DONE later, DONE", "the sentence around DONE denies it"),
        ("```\nDONE\n```", "DONE is inside a block of code"),
        ("Say:\nDONE", "DONE repeats the instructions"),
        ("the word DONE says it", "DONE is inside a sentence"),
    ],
)
def test_the_verdict_says_why_a_candidate_does_not_count(text: str, why: str) -> None:
    """The reason names the text; where nothing looks like the signal, there is none."""
    found = why_not_signalled(text, "DONE", "Say:\nDONE")
    assert found is not None
    assert found.startswith(why)
    assert bool(found) is bool(why)


def test_an_odd_line_of_the_instructions_is_an_echo() -> None:
    """A line with more than the signal that was copied as a whole is not meant."""
    asked = "First.\nFinish with great care DONE"
    assert not has_signal("Finish with great care DONE", "DONE", asked, anywhere=True)
    assert has_signal("Finish with great care DONE", "DONE", "", anywhere=True)


def test_long_texts_of_tags_are_looked_at_quickly() -> None:
    """Looking costs time in the length of the text, however many tags are in it."""
    text = "not <done>DONE</done> yet\n" * 20_000
    assert not has_signal(text, "DONE", anywhere=True)
    assert without_signal(text, "DONE") == ("not  yet\n" * 20_000).strip()


def test_only_the_signal_is_taken_out() -> None:
    """Other tags and plain words stay; a text without tags is left as it is."""
    assert without_signal(f"a <b>x</b> {TAG} DONE ", "DONE") == "a <b>x</b>  DONE"
    assert without_signal("<div>done</div>", "DONE") == ""
    assert without_signal(" DONE ", "DONE") == " DONE "


# -- what others see -------------------------------------------------------------------------------


@pytest.mark.parametrize("until", [ANYWHERE, AnyOf(parts=(Contains(text="zzz"), ANYWHERE))])
def test_the_output_of_an_iteration_is_without_its_signal(until: Signal | AnyOf) -> None:
    """The loop hears it, the record of the call has it, and nobody after it sees it."""
    run = drive(plan_of(Repeat(body=WORK, max=3, until=until)), by_iteration(f"said {TAG}"))
    assert run.ended == ("completed", "signal", "said")
    assert run.of(IterationFinished)[0].output == "said"
    assert broken_laws(run.events) == []


def test_long_outputs_are_stored_without_it_too() -> None:
    """A text that stands in the store is seen without its signal."""
    text = "x" * 500
    run = drive(plan_of(Repeat(body=WORK, max=3, until=ANYWHERE)), by_iteration(f"{text}{TAG}"))
    assert run.texts.read(run.of(StepFinished)[0].output) == text


def test_a_plain_signal_hides_nothing() -> None:
    """Only a loop that looks anywhere keeps its tags to itself."""
    run = drive(
        plan_of(Repeat(body=WORK, max=3, until=Signal(word="DONE"))), by_iteration(f"a\n{TAG}")
    )
    assert run.ended[2] == f"a\n{TAG}"
    assert run.of(IterationFinished)[0].output is None


def group(*steps: object, until: object = ANYWHERE, **more: object) -> Repeat:
    graph = Steps(steps=steps, output="sink")  # type: ignore[arg-type]
    return Repeat(body=graph, until=until, max=3, **more)  # type: ignore[arg-type]


def test_steps_of_an_iteration_do_not_see_it_either() -> None:
    """A later step of the same iteration and of the next one reads what was said without the
    tag.
    """
    reads = (Ref(of="output", name="a"), Lit(text="|"), Ref(of="previous_output", name="a"))
    plan = plan_of(group(step("a"), step("b", "a", action=CallAgent(agent="a", prompt=reads))))
    said = {"main.0.a/agent#1": f"one {TAG}", "main.1.b/agent#1": None}
    run = Driver(plan, by_effect(said, "two")).run()
    place = run.state.owners["main.1.b"]
    assert fill(run.state, place, reads, run.texts) == "two|one"


def test_references_to_the_iteration_before_look_outward() -> None:
    """From an inner loop a step of the outer one is found; what there is not is nothing."""
    inner = Repeat(body=Steps(steps=(step("x"),)), max=2, until=Cap(), at_cap="complete")
    outer = group(step("a"), step("in", "a", action=inner), until=Cap(), gate=LoopGate())
    said = {"main.1.in.0.x/agent#1": None, "main.0.a/agent#1": '{"n": 1}'}
    run = Driver(plan_of(outer), by_effect(said), decisions(("continue", "more"))).run()
    place = run.state.owners["main.1.in.0.x"]

    def seen(**ref: str) -> str:
        return fill(run.state, place, (Ref(**ref),), run.texts)  # type: ignore[arg-type]

    assert seen(of="previous_output", name="a") == '{"n": 1}'
    assert seen(of="previous_result", name="a", field="n") == "1"
    assert seen(of="previous_output", name="x") == ""
    assert seen(of="previous_output", name="nobody") == ""
    assert seen(of="feedback") == "more"


# -- values that must be there ---------------------------------------------------------------------

READER = CallAgent(agent="a", prompt=(Ref(of="result", name="a", field="n"),))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        pytest.param('{"n": null}', None, id="there"),
        pytest.param("[1]", "not a JSON object", id="a list"),
        pytest.param("plain", "not a JSON object", id="plain text"),
        pytest.param('{"m": 1, "k": 2}', "it has m, k", id="other fields"),
        pytest.param(Reply("x", result="{}"), None, id="declared"),
    ],
)
def test_a_field_must_be_there(said: object, why: str | None) -> None:
    """Where nothing is no value, the reader is told what there is instead."""
    plan = plan_of_steps(step("a"), step("b", "a", action=READER), missing="fail")
    run = Driver(plan, by_effect({"a/agent#1": said, "b/agent#1": None})).run()  # type: ignore[dict-item]
    found = missing_value(run.state, run.state.owners["b"], READER.prompt, run.texts)
    assert found is None if why is None else why in (found or "")


def test_what_never_ran_has_said_nothing() -> None:
    """A field of a step that has not ended is nothing, and no mistake; so are other references."""
    plan = plan_of_steps(step("b"), missing="fail", settings={"docs_dir": "docs/"})
    run = Driver(plan, by_effect({}, None)).run()
    refs = (
        Ref(of="result", name="b", field="n"),
        Ref(of="previous_result", name="b", field="n"),
        Ref(of="message"),
        Ref(of="setting", name="docs_dir"),
    )
    assert missing_value(run.state, run.state.owners["b"], refs, run.texts) is None
    gone = (Ref(of="setting", name="base_branch"),)
    found = missing_value(run.state, run.state.owners["b"], gone, run.texts)
    assert found == "no base branch is known"


def test_a_field_of_the_iteration_before_must_be_there() -> None:
    """In the first iteration there is none before; later its text must have the field."""
    ref = (Ref(of="previous_result", name="a", field="n"),)
    plan = plan_of(group(step("a")), missing="fail")
    run = Driver(plan, by_effect({"main.1.a/agent#1": None}, "plain")).run()
    found = missing_value(run.state, run.state.owners["main.1.a"], ref, run.texts)
    assert "not a JSON object" in (found or "")


NOWHERE = (Ref(of="setting", name="base_branch"),)


@pytest.mark.parametrize(
    "action",
    [
        AskPerson(message=NOWHERE),
        Repeat(body=WORK, max=2, gate=LoopGate(message=NOWHERE)),
    ],
    ids=["approval", "gate"],
)
def test_a_question_without_its_value_is_not_put(action: AskPerson | Repeat) -> None:
    """It fails its step, since nobody would ever answer it."""
    run = drive(plan_of(action, missing="fail"), by_iteration("x"))
    assert run.ended[:2] == ("failed", "error")
    assert "no base branch is known" in (run.end.error.detail if run.end.error else "")
    assert run.of(GateOpened) == []
    assert broken_laws(run.events) == []


def test_a_question_with_its_value_is_put() -> None:
    """What can be asked is asked."""
    action = AskPerson(message=NOWHERE)
    plan = plan_of(action, missing="fail", settings={"base_branch": "main"})
    run = drive(plan, by_iteration("x"), decisions("approve"))
    assert run.of(GateOpened)[0].message == "main"


# -- calls that end in odd ways --------------------------------------------------------------------

PATIENT = CallAgent(agent="a", on_idle="answer", on_empty="fail")
SILENT = Fail(type="idle_timeout", detail="silent", text="half")


def test_silence_may_end_an_iteration_and_not_its_loop() -> None:
    """What was said counts; the record says why the iteration ended."""
    run = drive(plan_of(Repeat(body=PATIENT, max=3, until=ANYWHERE)), by_iteration(SILENT, TAG))
    assert run.ended[:2] == ("completed", "signal")
    assert [one.reason for one in run.of(IterationFinished)] == ["idle_timeout", "signal"]
    assert drive(plan_of(Repeat(body=WORK, max=3)), by_iteration(SILENT)).ended[0] == "failed"
    other = drive(plan_of(Repeat(body=PATIENT, max=3)), by_iteration(Fail()))
    assert other.ended[0] == "failed"


@pytest.mark.parametrize(
    ("said", "ended"),
    [
        (Reply(" \n"), "failed"),
        (Reply("", result="{}"), "exhausted"),
        (Reply(" " * 500), "exhausted"),
        (Reply("x"), "exhausted"),
    ],
    ids=["blank", "a result", "long", "words"],
)
def test_saying_nothing_may_be_a_failure(said: Reply, ended: str) -> None:
    """An answer without words and without a result fails the iteration where one is needed."""
    assert drive(plan_of(Repeat(body=PATIENT, max=2)), by_iteration(said)).ended[0] == ended


def test_a_check_that_takes_too_long_may_be_broken() -> None:
    """Where that is said, the loop ends and tells what the check was waiting for."""
    slow = Fail(type="wall_timeout", detail="after 120 s")
    for on_timeout, ended in (("error", "failed"), ("fail", "exhausted")):
        check = ScriptCheck(text="x", on_timeout=on_timeout)  # type: ignore[arg-type]
        loop = Repeat(body=WORK, max=2, until=check, broken_after=1)
        run = drive(plan_of(loop), by_iteration("x", commands=[slow]))
        assert run.ended[0] == ended
        if ended == "failed":
            assert run.end.error == Failure(
                "check_broken", "the check could not run once: after 120 s"
            )


@pytest.mark.parametrize(
    ("settings", "ended"),
    [
        ({}, "failed"),
        ({"on_missing": "fail"}, "exhausted"),
        ({"on_timeout": "error"}, "exhausted"),  # plans from before `on_missing` was there
    ],
)
@pytest.mark.parametrize("code", [126, 127])
def test_a_missing_program_may_be_an_ordinary_failure(
    settings: dict[str, Any], ended: str, code: int
) -> None:
    """A script that cannot run a program is a broken check, unless every code is "not yet"."""
    loop = Repeat(body=WORK, max=2, until=ScriptCheck(text="x", **settings), broken_after=1)
    run = drive(plan_of(loop), by_iteration("x", commands=[Reply("", code=code)]))
    assert run.ended[0] == ended


def test_scripts_may_be_read_from_stdin() -> None:
    """A runner that reads a program from stdin gets it there, and only its options as words."""
    script = RunScript(text="print(1)", interpreter="uv", flags=("run", "-"), by_stdin=True)
    [request] = drive(plan_of(script)).of(EffectRequested)
    assert (request.call.argv, request.call.stdin) == (("uv", "run", "-"), "print(1)")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("detail", "kind", "again"),
    [
        ("HTTP 503 from upstream", "agent", True),
        ("line 5030", "agent", False),
        ("503, and unauthorized", "agent", False),
        ("Unauthorized", "rate_limited", False),
        ("whatever", "rate_limited", True),
    ],
)
def test_words_decide_about_another_try(detail: str, kind: str, again: bool) -> None:
    """Some make it worth it, and some vain whatever else is said; parts of words do not count."""
    policy = Retry(attempts=2, if_says=("503",), unless_says=("unauthorized",))
    assert is_retried(policy, Failure(kind, detail)) is again


# -- people ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grants", "answer", "passes", "ended"),
    [
        (True, ("approve", ""), 1, "failed"),  # an approval does not raise the limit
        (True, ("continue", "more"), 3, "completed"),
        (False, ("approve", ""), 1, "failed"),
    ],
)
def test_iterations_after_the_last(
    grants: bool, answer: tuple[str, str], passes: int, ended: str
) -> None:
    """Where a gate grants them, `continue` after the last iteration gives another one."""
    gate = LoopGate(approve_continues=True, grants=grants)
    loop = Repeat(body=WORK, max=1, until=ANYWHERE, gate=gate, at_cap="fail")
    run = drive(plan_of(loop), by_iteration("a", "b", TAG), decisions(answer))  # type: ignore[arg-type]
    assert (run.passes, run.ended[0]) == (passes, ended)
    assert [one.of for one in run.of(IterationStarted)] == list(range(1, passes + 1))


def test_a_bare_approval_says_approved() -> None:
    """The next iteration reads that, where approvals ask for another iteration."""
    gate = LoopGate(approve_continues=True)
    loop = Repeat(body=WORK, max=5, until=ANYWHERE, gate=gate)
    run = Driver(plan_of(loop), by_iteration("a", None), decisions("approve")).run()
    place = run.state.owners["main.1"]
    assert fill(run.state, place, (Ref(of="feedback"),), run.texts) == "Approved"


# -- graphs and sums -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "speaks"),
    [
        ({}, "ok"),
        ({"a/agent#1": "", "c/agent#1": "from c"}, "from c"),
        ({"b/agent#1": "", "c/agent#1": ""}, ""),
        ({"b/agent#1": Fail(), "c/agent#1": Fail()}, None),
    ],
    ids=["first", "first with words", "none with words", "none"],
)
def test_a_graph_may_speak_with_its_first_end(said: dict[str, object], speaks: str | None) -> None:
    """The first completed step, as written, that no other needs and that said something."""
    plan = plan_of_steps(step("a"), step("b", "a"), step("c"), output="sink")
    table = {"a/agent#1": "from a", **said}
    if "b/agent#1" not in table and speaks == "from c":
        table["b/agent#1"] = ""
    run = drive(plan, by_effect(table, "ok"))  # type: ignore[arg-type]
    assert run.end.output == speaks


def test_the_end_of_a_step_reports_what_was_used() -> None:
    """All of its iterations together, and nothing where nothing was used."""
    used = Usage(input_tokens=2, output_tokens=1, usd=0.5)
    run = drive(plan_of(Repeat(body=WORK, max=2)), by_iteration(Reply("x", usage=used)))
    assert run.of(StepFinished)[0].usage == Usage(input_tokens=4, output_tokens=2, usd=1.0)
    assert drive(plan_of(WORK)).of(StepFinished)[0].usage is None
    assert Spent(input_tokens=2, output_tokens=3).tokens == 5
