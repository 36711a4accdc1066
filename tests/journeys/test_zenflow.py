"""Loops of a ZenFlow workflow that repeat: how they stop, what an iteration sees, what they hand
on.
"""

import pytest

from loopwright.kernel.events import CheckVerdict, IterationStarted
from tests.journeys.flows import JUDGE, USED, Cast, Played, Words, failure, flow, play

DONE: Words = {"done": True, "reason": "fine"}
NOT_YET: Words = {"done": False, "reason": "more tests"}


def one(loop: str, *, more: str = "", after: str = "") -> str:
    """A workflow whose only step is repeated, and a step after it."""
    step = f"  - {{id: dev, agent: w, instructions: Fix it., loop: {{{loop}}}{more}}}\n"
    return flow(step + after, agents=JUDGE)


def two(loop: str, *, after: str = "") -> str:
    """A loop of two inner steps."""
    steps = f"""
  - id: dev
    loop:
      {loop}
      steps:
        - {{id: code, agent: w, instructions: Write it.}}
        - {{id: review, agent: w, instructions: Review it., dependsOn: [code]}}
"""
    return flow(steps + after, agents=JUDGE)


AFTER = "  - {id: after, agent: w, instructions: Sum up., dependsOn: [dev]}\n"


# -- how a loop stops ------------------------------------------------------------------------------


@pytest.mark.item("zenflow-15")
def test_without_a_stop_rule_all_iterations_are_made() -> None:
    """Exactly so many calls, and the step is complete."""
    played = play(one("maxIterations: 3"))
    assert played.calls == ["dev.0", "dev.1", "dev.2"]
    assert (played.ended, played.end.outcome) == ({"dev": "completed"}, "completed")


@pytest.mark.item("zenflow-16")
def test_until_counts_iterations_from_0() -> None:
    """`iteration >= 1` is true after the second iteration."""
    played = play(one("maxIterations: 9, until: iteration >= 1"))
    assert played.calls == ["dev.0", "dev.1"]
    assert played.ended == {"dev": "completed"}


@pytest.mark.item("zenflow-17")
def test_a_true_expression_spares_the_judge() -> None:
    """The judge is asked only after an iteration whose expression was false."""
    loop = "maxIterations: 5, until: content.contains('LGTM'), untilAgent: judge"
    played = play(one(loop), {"dev.1": "LGTM", "dev.0/judge": NOT_YET})
    assert played.calls == ["dev.0", "dev.0/judge", "dev.1"]
    assert played.ended == {"dev": "completed"}


@pytest.mark.item("zenflow-18")
def test_the_judge_ends_the_loop() -> None:
    """Where the expression is false, the judge's done decides."""
    loop = "maxIterations: 5, until: 'false', untilAgent: judge"
    played = play(one(loop), {"dev.0/judge": NOT_YET, "dev.1/judge": DONE})
    assert played.calls == ["dev.0", "dev.0/judge", "dev.1", "dev.1/judge"]
    assert (played.ended, played.finished("dev").reason) == ({"dev": "completed"}, "judge")


@pytest.mark.parametrize(
    ("loop", "told", "untold"),
    [
        pytest.param(
            "until: content == 'x', untilAgent: judge",
            ["until (content == 'x')", "the judge judge never answered done"],
            [],
            id="both",
            marks=pytest.mark.item("zenflow-19"),
        ),
        pytest.param(
            "until: content == 'x'",
            ["until (content == 'x') was never true"],
            ["judge"],
            id="until",
            marks=pytest.mark.item("zenflow-20"),
        ),
        pytest.param(
            "untilAgent: judge",
            ["the judge judge never answered done"],
            ["until"],
            id="judge",
            marks=pytest.mark.item("zenflow-20"),
        ),
    ],
)
def test_a_loop_that_uses_up_its_iterations_fails(
    loop: str, told: list[str], untold: list[str]
) -> None:
    """With a stop rule the cap is a failure, which names what was not met."""
    judged = {f"dev.{n}/judge": NOT_YET for n in range(2)}
    played = play(one(f"maxIterations: 2, {loop}"), judged)
    assert played.ended == {"dev": "failed"}
    assert played.finished("dev").reason == "max_iterations"
    error = played.error("dev")
    assert "2 of 2 iterations" in error
    assert [words for words in told if words not in error] == []
    assert [words for words in untold if words in error] == []


@pytest.mark.item("zenflow-21")
@pytest.mark.parametrize("until", ["result.ready", "result.ok"], ids=["missing-key", "a-text"])
def test_an_expression_that_cannot_be_evaluated_fails_the_loop(until: str) -> None:
    """After the first iteration, and no other is made."""
    agents = """
  s: {description: Says., resultSchema: {type: object, properties: {ok: {type: string}}}}
"""
    step = f"  - {{id: dev, agent: s, loop: {{maxIterations: 5, until: {until}}}}}"
    played = play(flow(step, agents=agents), {"dev.0": {"ok": "yes"}})
    assert played.calls == ["dev.0"]
    assert (played.ended, played.finished("dev").reason) == ({"dev": "failed"}, "check_broken")


@pytest.mark.item("zenflow-22")
def test_a_judge_that_cannot_be_asked_does_not_end_the_loop() -> None:
    """Its failure is told once, with the number of the iteration, and the next iteration is
    judged.
    """
    said = {"dev.0/judge": failure("model down"), "dev.1/judge": DONE}
    played = play(one("maxIterations: 5, untilAgent: judge"), said)
    assert played.ended == {"dev": "completed"}
    (broken,) = [f for f in verdicts(played) if f.verdict == "error"]
    assert (broken.path, broken.iteration) == ("dev.0", 1)
    assert "model down" in str(broken.evidence)


def verdicts(played: Played) -> list[CheckVerdict]:
    return [event for event in played.events if isinstance(event, CheckVerdict)]


@pytest.mark.item("zenflow-23")
def test_a_judge_that_never_can_be_asked_uses_up_the_iterations() -> None:
    """All iterations are made and the loop fails as one whose judge never answered done."""
    said = {f"dev.{n}/judge": failure() for n in range(4)}
    played = play(one("maxIterations: 4, untilAgent: judge"), said)
    assert played.finished("dev").reason == "max_iterations"
    assert [call for call in played.calls if "/" not in call] == [f"dev.{n}" for n in range(4)]


@pytest.mark.item("zenflow-24")
def test_a_judge_that_only_talks_is_asked_once_more() -> None:
    """The second time it is told what is missing; then it counts as one that failed."""
    played = play(one("maxIterations: 1, untilAgent: judge"), {"dev.0/judge": "Looks fine."})
    assert played.calls == ["dev.0", "dev.0/judge", "dev.0/judge"]
    assert "did not have this form" in played.prompt("dev.0/judge", 1)
    assert [event.verdict for event in verdicts(played)] == ["error"]


@pytest.mark.item("zenflow-25")
def test_a_text_that_says_true_is_not_done() -> None:
    """The schema refuses it, and the loop goes on."""
    said = {f"dev.{n}/judge": {"done": "true"} for n in range(2)}
    played = play(one("maxIterations: 2, untilAgent: judge"), said)
    assert played.ended == {"dev": "failed"}
    assert {event.verdict for event in verdicts(played)} == {"error"}


@pytest.mark.item("zenflow-26")
def test_a_failed_pass_ends_the_loop() -> None:
    """No further iteration, no judge; the loop has failed and what needs it is cancelled."""
    said = {"dev.0/judge": NOT_YET, "dev.1": failure("no disk")}
    played = play(one("maxIterations: 5, untilAgent: judge", after=AFTER), said)
    assert played.calls == ["dev.0", "dev.0/judge", "dev.1"]
    assert played.ended == {"dev": "failed", "after": "cancelled"}
    assert "no disk" in played.error("dev")


# -- time, and what is used ------------------------------------------------------------------------


@pytest.mark.item("zenflow-27")
def test_the_delay_lies_between_iterations() -> None:
    """None before the first, none after the last."""
    played = play(one("maxIterations: 5, delay: 10s, until: iteration == 2"))
    begun = [event.at for event in played.events if isinstance(event, IterationStarted)]
    first = played.events[0].at
    assert [at - first for at in begun] == [0, 10_000, 20_000]
    assert played.end.at == begun[-1]


@pytest.mark.item("zenflow-28")
@pytest.mark.parametrize("last", [DONE, NOT_YET], ids=["completed", "failed"])
def test_iterations_and_judges_are_counted_together(last: Words) -> None:
    """What a loop used is the sum over its workers and its judges, however it ends."""
    said = {"dev.0/judge": NOT_YET, "dev.1/judge": last}
    played = play(one("maxIterations: 2, untilAgent: judge"), said)
    used = played.process.state(played.run).usage
    assert (used.input_tokens, used.output_tokens) == (
        4 * USED.input_tokens,
        4 * USED.output_tokens,
    )


# -- what an iteration sees ------------------------------------------------------------------------


@pytest.mark.item("zenflow-29")
def test_an_iteration_sees_the_one_before() -> None:
    """The output of pass 1 stands in the prompt of pass 2 under its number."""
    played = play(one("maxIterations: 2"), {"dev.0": "half of it"})
    assert "half of it" not in played.prompt("dev.0")
    assert "(Iteration 1)\n\nhalf of it" in played.prompt("dev.1")


@pytest.mark.item("zenflow-30")
def test_inner_steps_receive_the_number_of_their_iteration() -> None:
    """From 1, and from the first iteration on."""
    played = play(two("maxIterations: 2"))
    assert "## Iteration 1" in played.prompt("dev.0.code")
    assert "## Iteration 2" in played.prompt("dev.1.code")


def test_inner_steps_see_the_iteration_before_the_judge_and_the_needs_of_the_loop() -> None:
    """Every inner step of pass 2, not only the first one."""
    text = flow(
        """
  - {id: design, agent: w}
  - id: dev
    dependsOn: [design]
    loop:
      maxIterations: 2
      untilAgent: judge
      steps:
        - {id: code, agent: w}
        - {id: review, agent: w, dependsOn: [code]}
""",
        agents=JUDGE,
    )
    said: dict[str, Words] = {
        "design": "the drawing",
        "dev.0.code": "first code",
        "dev.0.review": "first look",
        "dev.0/judge": NOT_YET,
        "dev.1/judge": DONE,
    }
    played = play(text, said)
    for place in ("dev.1.code", "dev.1.review"):
        prompt = played.prompt(place)
        for words in ("the drawing", "first code", "first look", "more tests"):
            assert words in prompt, (place, words)


# -- what a loop hands on --------------------------------------------------------------------------


@pytest.mark.item("zenflow-31")
def test_the_last_inner_step_of_the_last_iteration_is_the_content() -> None:
    """Declaration order decides, not who ended last."""
    text = flow("""
  - id: dev
    loop:
      maxIterations: 2
      steps:
        - {id: late, agent: w, dependsOn: [early]}
        - {id: early, agent: w}
""")
    said = {f"dev.{n}.{name}": f"{name} {n}" for n in range(2) for name in ("early", "late")}
    assert play(text, said).content("dev") == "early 1"


@pytest.mark.item("zenflow-32")
def test_cumulative_content_is_everything_in_order() -> None:
    """Every iteration, every inner step and every word of the judge."""
    said: dict[str, Words] = {
        f"dev.{n}.{name}": f"{name}-{n}" for n in range(2) for name in ("code", "review")
    }
    said |= {"dev.0/judge": NOT_YET, "dev.1/judge": DONE}
    loop = "\n      ".join(["maxIterations: 3", "outputMode: cumulative", "untilAgent: judge"])
    played = play(two(loop), said)
    content = played.content("dev")
    parts = ["Iteration 1", "code-0", "review-0", "more tests"]
    parts += ["Iteration 2", "code-1", "review-1", "fine"]
    places = [content.index(part) for part in parts]
    assert places == sorted(places)


LONG = "a" * 40_000 + "THE END"
MARK = "[… truncated"


@pytest.mark.item("zenflow-33")
def test_cumulative_content_is_not_cut() -> None:
    """More than 16 KB of it reach the next step whole; of a plain loop they do not."""
    whole = play(one("maxIterations: 1, outputMode: cumulative", after=AFTER), {"dev.0": LONG})
    assert LONG in whole.prompt("after")
    cut = play(one("maxIterations: 1", after=AFTER), {"dev.0": LONG})
    assert "THE END" not in cut.prompt("after")
    assert MARK in cut.prompt("after")


@pytest.mark.item("zenflow-33")
def test_a_prompt_has_an_end() -> None:
    """120 KB hold for cumulative content too; what is asked stays, and the cut is told."""
    huge = "b" * 300_000
    played = play(one("maxIterations: 1, outputMode: cumulative", after=AFTER), {"dev.0": huge})
    prompt = played.prompt("after")
    assert len(prompt.encode()) <= 120 * 1_024
    assert prompt.startswith("Sum up.")
    assert MARK in prompt


PAIR = """
  - {id: big, agent: w}
  - {id: after, agent: w, instructions: Sum up., dependsOn: [big]}
"""


@pytest.mark.item("zenflow-34")
@pytest.mark.parametrize("letter", ["a", "ä", "€", "😀"], ids=["1", "2", "3", "4"])
def test_a_long_dependency_keeps_its_head(letter: str) -> None:
    """16 KB of it, no broken character, and a word on the cut after it."""
    said = "HEAD" + "x" + letter * 20_000
    prompt = play(flow(PAIR), {"big": said}).prompt("after")
    shown = prompt.partition("### big\n\n")[2]
    head, found, rest = shown.partition(f"\n{MARK}")
    assert found
    assert "bytes left out" in rest
    assert said.startswith(head)
    assert 16_384 - 4 < len(head.encode()) <= 16_384


@pytest.mark.item("zenflow-35")
def test_a_large_result_keeps_its_small_fields() -> None:
    """It arrives as an object that says that it was cut."""
    agents = "  s: {description: Says., resultSchema: {type: object}}"
    value: Words = {"name": "auth", "log": "z" * 40_000, "count": 3}
    prompt = play(flow(PAIR.replace("agent: w}", "agent: s}", 1), agents=agents), {"big": value})
    result = prompt.prompt("after").partition("Result:\n\n")[2]
    assert '"name":"auth"' in result
    assert '"count":3' in result
    assert '"_truncated":true' in result
    assert "zzz" not in result


def test_the_cast_counts_calls() -> None:
    """The helper itself: nobody is at work when a run has ended."""
    cast: Cast = play(one("maxIterations: 2")).cast
    assert (cast.under_way, cast.peak, len(cast.jobs)) == (0, 1, 2)


# -- what the document prints ----------------------------------------------------------------------


@pytest.mark.item("zenflow-76")
@pytest.mark.parametrize(
    ("said", "feedback"),
    [
        ('None found.\n{"done": false, "reason": "add tests"}', "add tests\n\nNone found."),
        ('```json\n{"done": false, "reason": "add tests"}\n```', "add tests"),
        ('Please add tests.\n{"done": false, "reason": "add tests"}', "Please add tests."),
        ('Almost.\n{"done": false}', "Almost."),
        ("It looks unfinished.", "It looks unfinished."),
    ],
    ids=["both", "reason", "reason-in-content", "content", "no-answer"],
)  # fmt: skip
def test_the_next_iteration_sees_what_the_judge_said_once(said: str, feedback: str) -> None:
    """Its content and its reason, in one section, and no JSON."""
    says = {"dev.0/judge": said, "dev.1/judge": DONE}
    played = play(two("maxIterations: 3\n      untilAgent: judge"), says)
    assert played.ended["dev"] == "completed"
    for place in ("dev.1.code", "dev.1.review"):
        prompt = played.prompt(place)
        section = prompt.partition("## Judge Feedback\n\n")[2].partition("\n\n## ")[0]
        assert section.endswith(feedback)
        assert [prompt.count(words) for words in feedback.split("\n\n")] == [1] * len(
            feedback.split("\n\n")
        )
        assert '"done"' not in section
