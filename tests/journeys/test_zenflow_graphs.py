"""Steps of a ZenFlow workflow: conditions, failures, tries, time, structured results."""

from pathlib import Path

import pytest

from loopwright.errors import DefinitionError
from loopwright.kernel.events import (
    CancelRequested,
    RunFinished,
    StepFinished,
    StepRetried,
    StepSkipped,
    StepStarted,
)
from tests.engine.world import World, quiet, run
from tests.journeys.flows import (
    Cast,
    Played,
    Says,
    Words,
    by_path,
    failure,
    flow,
    named,
    plan_in,
    plan_of,
    play,
    with_text,
)

RESULT = """
  r: {description: Decides., resultSchema: {type: object}}
"""


# -- conditions ------------------------------------------------------------------------------------


def under(condition: str) -> str:
    """A loop that runs under a condition on the step before it."""
    return flow(
        f"""
  - {{id: plan, agent: r}}
  - id: dev
    agent: w
    dependsOn: [plan]
    condition: "{condition}"
    loop: {{maxIterations: 2}}
  - {{id: after, agent: w, dependsOn: [dev]}}
""",
        agents=RESULT,
    )


@pytest.mark.item("zenflow-48")
def test_a_false_condition_skips_the_loop() -> None:
    """No iteration is made, and what needs it runs."""
    played = play(under("steps.plan.result.go"), {"plan": {"go": False}})
    assert played.calls == ["plan", "after"]
    assert played.ended == {"plan": "completed", "dev": "skipped", "after": "completed"}


def test_a_true_condition_lets_it_run() -> None:
    """Looked at when the step before has ended."""
    played = play(under("steps.plan.result.go"), {"plan": {"go": True}})
    assert played.calls == ["plan", "dev.0", "dev.1", "after"]


@pytest.mark.item("zenflow-49")
def test_a_condition_on_a_missing_key_skips() -> None:
    """No iteration is made, and what needs the loop runs."""
    missing = play(under("steps.plan.result.go"), {"plan": {}})
    assert missing.calls == ["plan", "after"]
    assert missing.ended == {"plan": "completed", "dev": "skipped", "after": "completed"}


@pytest.mark.item("zenflow-49")
def test_a_condition_with_a_syntax_error_fails() -> None:
    """The file is refused where it stands; a plan that has it all the same fails at the step."""
    with pytest.raises(DefinitionError, match=r"flow\.yaml") as refused:
        play(under("steps.plan.result.("))
    assert [problem.line for problem in refused.value.problems] == [11]
    plan = plan_of(under("steps.plan.result.go"))
    played = play(with_text(plan, "result.go", "result.("), {"plan": {"go": True}})
    assert played.calls == ["plan"]
    assert played.ended == {"plan": "completed", "dev": "failed", "after": "cancelled"}
    assert "did not expect .(" in played.error("dev")


def test_a_condition_that_is_no_yes_or_no_fails() -> None:
    """It is not taken for either."""
    text = play(under("steps.plan.result.go"), {"plan": {"go": "maybe"}})
    assert text.ended == {"plan": "completed", "dev": "failed", "after": "cancelled"}


# -- failures --------------------------------------------------------------------------------------

BRANCHES = """
  - {id: bad, agent: w}
  - {id: next, agent: w, dependsOn: [bad]}
  - {id: last, agent: w, dependsOn: [next]}
  - {id: other, agent: w}
  - {id: beyond, agent: w, dependsOn: [other]}
"""


@pytest.mark.item("zenflow-50")
@pytest.mark.parametrize(
    ("policy", "spoiled"), [("cascade", "cancelled"), ("skip-dependents", "skipped")]
)
def test_what_needs_a_failed_step(policy: str, spoiled: str) -> None:
    """It is cancelled or skipped all the way down, and other branches go on."""
    played = play(flow(BRANCHES, options=f"{{onStepFailure: {policy}}}"), {"bad": failure()})
    assert played.ended == {
        "bad": "failed",
        "next": spoiled,
        "last": spoiled,
        "other": "completed",
        "beyond": "completed",
    }


@pytest.mark.item("zenflow-50")
def test_abort_ends_everything() -> None:
    """Work under way is stopped, and nothing else begins."""
    said: dict[str, Words] = {"bad": failure(), "other": None}
    played = play(flow(BRANCHES, options="{onStepFailure: abort}"), said)
    assert sorted(played.calls) == ["bad", "other"]
    assert played.ended["bad"] == "failed"
    rest = {name: played.ended.get(name, "cancelled") for name in ("next", "last", "other")}
    assert set(rest.values()) == {"cancelled"}
    assert (played.end.outcome, played.cast.under_way) == ("failed", 0)


@pytest.mark.item("zenflow-51")
@pytest.mark.parametrize(
    ("steps", "outcome", "reason"),
    [
        pytest.param({"a": "ok", "b": "ok"}, "completed", "done", id="completed"),
        pytest.param({"a": "ok", "b": failure()}, "failed", "partial", id="partial"),
        pytest.param({"a": failure(), "b": failure()}, "failed", "error", id="failed"),
    ],
)
def test_expected_result_of_a_run(steps: dict[str, Words], outcome: str, reason: str) -> None:
    """Some failed beside some that completed is partial; none completed is failed."""
    played = play(flow("  - {id: a, agent: w}\n  - {id: b, agent: w}"), steps)
    assert (played.end.outcome, played.end.reason) == (outcome, reason)


@pytest.mark.item("zenflow-51")
def test_all_skipped_is_completed() -> None:
    """Nothing was to be done, so nothing failed."""
    played = play(flow("  - {id: a, agent: w, condition: 'false'}"))
    assert (played.ended, played.end.outcome) == ({"a": "skipped"}, "completed")


# -- tries and time --------------------------------------------------------------------------------


def failing_once(place: str) -> Says:
    """Everything works, but for the first call at a place."""
    seen: list[str] = []

    def says(job: object) -> Words:
        here = named(job)  # type: ignore[arg-type]
        first = here == place and here not in seen
        seen.append(here)
        return failure() if first else "ok"

    return says


@pytest.mark.item("zenflow-52")
def test_retries_begin_a_loop_anew() -> None:
    """From its first iteration on; a second try that works completes the step."""
    step = "  - {id: dev, agent: w, retries: 1, loop: {maxIterations: 2}}"
    played = play(flow(step), failing_once("dev.1"))
    assert len(played.calls) == 4
    assert [event.attempt for event in played.events if isinstance(event, StepRetried)] == [2]
    assert played.ended == {"dev": "completed"}


@pytest.mark.item("zenflow-53")
@pytest.mark.parametrize("loop", ["maxIterations: 9", "forEach: [1, 2]"], ids=["repeat", "list"])
def test_a_loop_ends_with_its_time(loop: str) -> None:
    """All iterations together; the call that hangs is ended and what needs the loop is
    cancelled.
    """
    steps = f"""
  - {{id: dev, agent: w, timeout: 30s, loop: {{{loop}}}}}
  - {{id: after, agent: w, dependsOn: [dev]}}
"""
    says = by_path({"dev.1": None, "dev[1]": None})
    played = play(flow(steps), says)
    assert played.ended == {"dev": "failed", "after": "cancelled"}
    assert played.finished("dev").reason == "deadline"
    assert played.finished("dev").at - played.events[0].at == 30_000
    assert (played.end.outcome, played.end.at) == ("failed", played.finished("dev").at)
    assert played.cast.under_way == 0


@pytest.mark.item("zenflow-53")
def test_a_new_try_of_a_loop_has_what_is_left_of_its_time() -> None:
    """A try that failed after a while leaves less to the next one."""
    loop = "loop: {maxIterations: 2, iterationTimeout: 20s}"
    played = play(
        flow(f"  - {{id: dev, agent: w, timeout: 30s, retries: 9, {loop}}}"), lambda _: None
    )
    assert played.ended == {"dev": "failed"}
    assert [event.attempt for event in played.events if isinstance(event, StepRetried)] == [2]
    assert played.end.at - played.events[0].at == 30_000


@pytest.mark.item("zenflow-53")
def test_the_time_of_a_loop_is_that_of_all_its_tries() -> None:
    """A loop whose time is over is not begun anew, however many retries are left."""
    step = "  - {id: dev, agent: w, timeout: 30s, retries: 3, loop: {maxIterations: 2}}"
    played = play(flow(step), {"dev.0": None})
    assert played.ended == {"dev": "failed"}
    assert len(played.calls) == 1
    assert played.end.at - played.events[0].at == 30_000


def test_the_time_of_an_iteration_is_that_of_a_try() -> None:
    """An iteration that took too long fails the loop, which is begun anew while retries are
    left.
    """
    loop = "loop: {maxIterations: 2, iterationTimeout: 10s}"
    played = play(flow(f"  - {{id: dev, agent: w, retries: 1, {loop}}}"), {"dev.0": None})
    assert [event.attempt for event in played.events if isinstance(event, StepRetried)] == [2]


@pytest.mark.item("zenflow-54")
def test_a_run_ends_with_its_time() -> None:
    """What is under way is ended, what has not begun is cancelled, what is done stays done."""
    steps = """
  - {id: quick, agent: w}
  - {id: slow, agent: w}
  - {id: loop, agent: w, loop: {maxIterations: 3}}
  - {id: next, agent: w, dependsOn: [slow]}
  - {id: last, agent: w, dependsOn: [next, quick], loop: {maxIterations: 3}}
"""
    played = play(flow(steps, options="{timeout: 1m}"), {"slow": None, "loop.1": None})
    assert sorted(played.calls) == ["loop.0", "loop.1", "quick", "slow"]
    assert played.end.at - played.events[0].at == 60_000
    assert (played.end.outcome, played.end.reason) == ("exhausted", "deadline")
    assert played.cast.under_way == 0
    assert played.ended == {
        "quick": "completed",
        "slow": "cancelled",
        "loop": "cancelled",
        "next": "cancelled",
        "last": "cancelled",
    }
    begun = {event.path for event in played.events if isinstance(event, StepStarted)}
    assert begun == {"quick", "slow", "loop"}


@pytest.mark.item("zenflow-27")
def test_a_run_can_be_stopped_while_a_loop_waits() -> None:
    """At once, not when the delay is over."""

    async def body() -> None:
        process = World().process(performer=Cast(by_path({})))
        plan = plan_of(flow("  - {id: a, agent: w, loop: {maxIterations: 3, delay: 1h}}"))
        name = await process.start(plan)
        await quiet()
        assert await process.service.stop(name)
        await quiet()
        end = process.events(name)[-1]
        assert isinstance(end, RunFinished)
        assert (end.outcome, end.at) == ("cancelled", process.events(name)[0].at)

    run(body())


# -- structured results ----------------------------------------------------------------------------

COUNTED = """
  c:
    description: Counts.
    resultSchema:
      type: object
      required: [count]
      properties:
        count: {type: integer}
        rows: {type: array, items: {type: object, properties: {n: {type: number}}}}
"""


def counting(*answers: Words) -> Played:
    """A step whose agent gives these answers, one for each time it is asked."""
    left = list(answers)
    steps = "  - {id: a, agent: c}\n  - {id: b, agent: w}"
    return play(
        flow(steps, agents=COUNTED), lambda job: left.pop(0) if named(job) == "a" else "plain"
    )


@pytest.mark.item("zenflow-57")
def test_whole_numbers() -> None:
    """3.0 is one, 3.7 is none, and a problem inside names its place."""
    assert counting({"count": 3.0}).result("a") == {"count": 3}
    halves: Words = {"count": 3.7}
    assert "count" in counting(halves, halves).error("a")
    nested: Words = {"count": 1, "rows": [{"n": 1}, {"n": "x"}]}
    assert "rows/1/n" in counting(nested, nested).error("a")


def test_an_answer_that_does_not_fit_is_asked_for_once_more() -> None:
    """With the reason, and the second answer counts."""
    played = counting({"count": "three"}, {"count": 3})
    assert "count: 'three' is not of type 'integer'" in played.prompt("a", 1)
    assert (played.ended["a"], played.result("a")) == ("completed", {"count": 3})


@pytest.mark.item("zenflow-58")
def test_a_result_that_is_never_given() -> None:
    """With a schema the step fails for its own reason; without one a plain answer completes."""
    played = counting("I counted.", "Really.")
    assert played.ended == {"a": "failed", "b": "completed"}
    error = played.finished("a").error
    assert error is not None
    assert error.type == "bad_result"


# -- the log ---------------------------------------------------------------------------------------


@pytest.mark.item("zenflow-66")
@pytest.mark.parametrize("bad", ["none", "bad", "other"])
def test_every_place_ends_once(bad: str) -> None:
    """The run's end is the last event, and each step has one end of its own."""
    played = play(flow(BRANCHES), {bad: failure()})
    assert isinstance(played.events[-1], RunFinished)
    ends = [event.path for event in played.events if isinstance(event, StepFinished | StepSkipped)]
    assert sorted(ends) == ["bad", "beyond", "last", "next", "other"]
    assert not any(isinstance(event, CancelRequested) for event in played.events)


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.item("zenflow-72")
@pytest.mark.parametrize("reference", ["../secret.txt", "link.txt", "SECRET"])
def test_texts_stay_in_the_folder_of_the_workflow(tmp_path: Path, reference: str) -> None:
    """Neither a path that leads out of it nor a link is followed."""
    secret = tmp_path / "secret.txt"
    secret.write_text("TOP SECRET")
    folder = tmp_path / "flows"
    folder.mkdir()
    (folder / "link.txt").symlink_to(secret)
    named_so = str(secret) if reference == "SECRET" else reference
    with pytest.raises(DefinitionError) as refused:
        plan_in(folder, flow(f'  - {{id: a, agent: w, instructions: "@{named_so}"}}'))
    assert refused.value.problems
    assert "TOP SECRET" not in str(refused.value.problems)


@pytest.mark.item("zenflow-72")
def test_texts_beside_the_workflow_are_read(tmp_path: Path) -> None:
    """The same reference inside the folder is the step's instructions."""
    (tmp_path / "task.txt").write_text("Do this.")
    plan = plan_in(tmp_path, flow('  - {id: a, agent: w, instructions: "@task.txt"}'))
    assert play(plan).prompt("a").startswith("Do this.")


def test_context_files_are_passed_to_the_performer() -> None:
    """As they are named; the performer reads them in the workspace."""
    text = flow("  - {id: a, agent: w, instructions: Go., contextFiles: [docs/a.md]}")
    (job,) = play(text).cast.jobs
    assert job.prompt.files == ("docs/a.md",)


def test_the_message_of_the_run_reaches_steps_with_instructions() -> None:
    """Below their own task; a step without one has it as its task."""
    played = play(flow("  - {id: a, agent: w, instructions: Go.}\n  - {id: b, agent: w}"))
    assert played.prompt("a") == "Go.\n\n## Flow Context\n\nDo it."
    assert played.prompt("b") == "Do it."


@pytest.mark.item("zenflow-6")
def test_a_loop_inside_a_loop_runs() -> None:
    """Decided otherwise than in ZenFlow: the inner loop has all its iterations in each of the
    outer.
    """
    played = play(
        flow("""
  - id: outer
    loop:
      maxIterations: 2
      steps:
        - id: inner
          loop: {maxIterations: 2, steps: [{id: work, agent: w, instructions: Work.}]}
""")
    )
    assert played.calls == [f"outer.{n}.inner.{m}.work" for n in range(2) for m in range(2)]
    assert played.end.outcome == "completed"
