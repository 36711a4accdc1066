"""Every example of the document, as it is printed: it loads, and does what the text around it says.

The examples are parts of workflows. `whole` puts the parts around them that they speak of: a step
that an example depends on, and agents by the names that it uses.
"""

import textwrap
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from loopwright.dialects.zenflow.events import Rendering, ZenflowEvent, go_duration, place_at
from loopwright.errors import DefinitionError
from loopwright.kernel.events import EffectFailed, IterationStarted, MessageSent
from loopwright.model.record import JsonValue
from loopwright.ports import EffectJob
from tests.journeys.flows import Played, Words, flow, plan_of, play
from tests.journeys.test_messages import Coordinator, by_place, settled, use

pytestmark = pytest.mark.item("zenflow-78")

REPEAT = """
- id: dev-cycle
  dependsOn: [design]
  loop:
    maxIterations: 5
    untilAgent: judge
    until: "steps.review.content.contains('LGTM')"
    delay: "10s"
    steps:
      - id: implement
        agent: coder
        instructions: "Implement or fix the code based on review feedback."
      - id: review
        agent: reviewer
        instructions: "Review the implementation. Output LGTM if ready, or list issues to fix."
        dependsOn: [implement]
"""
SINGLE = """
- id: health-check
  agent: monitor
  instructions: "Check service health."
  loop:
    maxIterations: 10
    until: "content.contains('healthy')"
    delay: "30s"
"""
MULTI = """
- id: dev-cycle
  loop:
    maxIterations: 5
    untilAgent: judge
    steps:
      - id: implement
        agent: coder
      - id: review
        agent: reviewer
        dependsOn: [implement]
"""
EACH = """
- id: deploy-each
  dependsOn: [list-services]
  loop:
    forEach: "steps.list-services.result.services"
    maxConcurrency: 3
    steps:
      - id: deploy
        agent: deployer
        instructions: "Deploy this service."
      - id: verify
        agent: verifier
        instructions: "Run health checks."
        dependsOn: [deploy]
"""
STATIC = """
loop:
  forEach: ["service-a", "service-b", "service-c"]
  maxConcurrency: 3
"""
DYNAMIC = """
loop:
  forEach: "steps.list-services.result.services"
  maxConcurrency: 3
"""
CUMULATIVE = """
- id: rounds
  loop:
    maxIterations: 3
    outputMode: cumulative
    steps:
      - id: round
        agent: speaker
        instructions: "Add to the running discussion."

- id: synthesise
  agent: synthesiser
  dependsOn: [rounds]
  instructions: "Synthesise the discussion. You will see all rounds in context."
"""
WORKED = """
name: loop-bidirectional
agents:
  worker:
    description: "Worker that performs a task and sends progress updates."
  judge:
    description: "Judge: stop after 3 stages."
    resultSchema:
      type: object
      required: [done]
      properties:
        done:
          type: boolean

steps:
  - id: setup
    agent: worker
    instructions: 'Reply EXACTLY with "READY".'

  - id: loop-stages
    dependsOn: [setup]
    loop:
      maxIterations: 3
      untilAgent: judge
      outputMode: cumulative
      steps:
        - id: worker
          agent: worker
          instructions: |
            Iteration N. Read your inbox for any coordinator context.
            Call send_message with "STAGE_<N>: <task description>"
            Reply with EXACTLY "STAGE_<N>_DONE".
"""
ITEM = '## forEach Item (index: 0)\n{"name": "auth", "region": "us-east-1"}'

AGENTS = """
  judge:
    description: Decides.
    resultSchema:
      type: object
      required: [done]
      properties: {done: {type: boolean}, reason: {type: string}}
  lister:
    description: Lists.
    resultSchema: {type: object, properties: {services: {type: array}}}
"""
NAMES = ("coder", "reviewer", "monitor", "deployer", "verifier", "speaker", "synthesiser")
BEFORE = {
    "design": "- {id: design, agent: coder, instructions: Design it.}\n",
    "list-services": "- {id: list-services, agent: lister, instructions: List the services.}\n",
}
DONE: Words = {"done": True, "reason": "tests pass"}
NOT_YET: Words = {"done": False, "reason": "the docs are missing"}
SERVICES: Words = {"services": [{"name": "auth", "region": "us-east-1"}, {"name": "mail"}]}


def whole(steps: str, *before: str) -> str:
    """A workflow around an example."""
    agents = AGENTS + "".join(f"  {name}: {{description: Works.}}\n" for name in NAMES)
    listed = "".join(BEFORE[name] for name in before) + steps.strip("\n")
    return flow(textwrap.indent(listed, "  "), agents=agents)


def under_a_step(loop: str) -> str:
    """A loop of the document that has no step around it."""
    step = "- id: deploy-all\n  agent: deployer\n  instructions: Deploy.\n"
    return whole(f"{step}  dependsOn: [list-services]\n{textwrap.indent(loop.strip(), '  ')}")


def events_of(played: Played) -> list[ZenflowEvent]:
    """The run in the words of the dialect."""
    service = played.process.service
    rendering = Rendering(played.plan, lambda text: service.read_text(msgspec.convert(text, str)))
    return [one for event in played.events for one in rendering.events(msgspec.to_builtins(event))]


def told(played: Played, kind: str) -> list[dict[str, Any]]:
    return [dict(one.payload) for one in events_of(played) if one.type == kind]


# -- repeat-until ----------------------------------------------------------------------------------


def test_iterations_follow_each_other_and_see_what_was_said_before() -> None:
    """Code, review, fix, review, until the reviewer approves."""
    says = {
        "design": "an API",
        "dev-cycle.0.implement": "first draft",
        "dev-cycle.0.review": "no tests",
        "dev-cycle.0/judge": NOT_YET,
        "dev-cycle.1.implement": "second draft",
        "dev-cycle.1.review": "LGTM",
    }
    played = play(whole(REPEAT, "design"), says)
    assert played.calls == [
        "design",
        *("dev-cycle.0.implement", "dev-cycle.0.review", "dev-cycle.0/judge"),
        *("dev-cycle.1.implement", "dev-cycle.1.review"),  # until is true: the judge is not asked
    ]
    assert (played.top["dev-cycle"], played.content("dev-cycle")) == ("completed", "LGTM")
    for place in ("dev-cycle.1.implement", "dev-cycle.1.review"):
        for words in ("first draft", "no tests", "the docs are missing", "an API"):
            assert words in played.prompt(place)
    began = [event.at for event in played.events if isinstance(event, IterationStarted)]
    assert began[1] - began[0] >= 10_000


@pytest.mark.parametrize(
    ("judge", "calls"),
    [
        ({"dev-cycle.0/judge": DONE}, 1),
        ({"dev-cycle.0/judge": NOT_YET, "dev-cycle.1/judge": DONE}, 2),
    ],
    ids=["at-once", "second"],
)
def test_the_judge_ends_the_loop_where_until_does_not(judge: dict[str, Words], calls: int) -> None:
    """`until` first; otherwise the judge runs; `result.done` true ends the loop."""
    played = play(whole(REPEAT, "design"), judge)
    assert sum(one.endswith("/judge") for one in played.calls) == calls
    assert played.finished("dev-cycle").reason == "judge"


@pytest.mark.parametrize("glitch", ["no answer", {"done": "true"}, "fail"], ids=str)
def test_a_judge_that_fails_lets_the_loop_continue(glitch: Words) -> None:
    """Fail-open: the next iteration begins, and sees what the judge said."""
    broken: Words = "the model is down" if glitch == "fail" else glitch
    says: dict[str, Words] = {"dev-cycle.0/judge": broken, "dev-cycle.1/judge": DONE}
    played = play(whole(MULTI), says)
    assert played.ended["dev-cycle"] == "completed"
    assert len([f for f in played.events if isinstance(f, EffectFailed)]) == 2  # asked once more
    if isinstance(broken, str):
        assert broken in played.prompt("dev-cycle.1.implement")
    [error] = [one for one in told(played, "error") if one["stepId"] == "dev-cycle"]
    assert error["data"] == {"iteration": 0, "judge": True}


def test_a_regular_agent_with_a_schema_and_no_result_fails() -> None:
    """Fail-hard, unlike a judge."""
    played = play(whole(EACH, "list-services"), {"list-services": "auth and mail"})
    assert played.top == {"list-services": "failed", "deploy-each": "cancelled"}


def test_without_inner_steps_the_step_itself_is_repeated() -> None:
    """Until the service is healthy, with a wait between."""
    says = {"health-check.0": "down", "health-check.1": "starting", "health-check.2": "healthy"}
    played = play(whole(SINGLE), says)
    assert played.calls == ["health-check.0", "health-check.1", "health-check.2"]
    assert played.content("health-check") == "healthy"
    assert "starting" in played.prompt("health-check.2")
    began = [event.at for event in played.events if isinstance(event, IterationStarted)]
    assert [after - before >= 30_000 for before, after in pairwise(began)] == [True, True]


@pytest.mark.parametrize("rule", ["maxIterations: 4", "maxIterations: 4\n    until: 'false'"])
def test_both_absent_runs_exactly_so_many_times(rule: str) -> None:
    """Without a stop rule all iterations are the goal; with one they are the limit."""
    text = MULTI.replace("maxIterations: 5\n    untilAgent: judge", rule)
    played = play(whole(text))
    assert played.calls.count("dev-cycle.3.review") == 1
    assert len([event for event in played.events if isinstance(event, IterationStarted)]) == 4
    assert played.ended["dev-cycle"] == ("failed" if "until" in rule else "completed")


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("    maxIterations: 5\n", "", "loop-missing-max-iterations"),
        ("dependsOn: [implement]", "dependsOn: [design]", "missing-dep"),
        ("untilAgent: judge", "untilAgent: coder", "judge-schema"),
        ("untilAgent: judge", "forEach: [1]", "foreach-with-max-iterations"),
    ],
)
def test_what_the_document_says_is_rejected(old: str, new: str, code: str) -> None:
    """The schema rejects the loop, inner references resolve within the loop only, a judge needs
    a boolean `done`, and the two modes exclude each other.
    """
    assert old in MULTI
    with pytest.raises(DefinitionError) as refused:
        plan_of(whole(MULTI.replace(old, new)))
    assert code in {one.code for one in refused.value.problems}


# -- forEach ---------------------------------------------------------------------------------------


def test_each_element_produces_one_iteration() -> None:
    """Side by side, in order within each, with the item in the prompt of every inner step."""
    played = play(whole(EACH, "list-services"), {"list-services": SERVICES})
    assert sorted(played.calls) == [
        *("deploy-each[0].deploy", "deploy-each[0].verify"),
        *("deploy-each[1].deploy", "deploy-each[1].verify"),
        "list-services",
    ]
    assert ITEM in played.prompt("deploy-each[0].deploy")
    assert ITEM in played.prompt("deploy-each[0].verify")
    assert '(index: 1)\n{"name": "mail"}' in played.prompt("deploy-each[1].deploy")
    spans = played.cast.spans
    assert spans["deploy-each[0].deploy"][1] < spans["deploy-each[0].verify"][0]
    assert spans["deploy-each[1].deploy"][0] < spans["deploy-each[0].deploy"][1]
    assert [one["id"] for one in played.result("deploy-each")["iterations"]] == [
        "deploy-each[0]",
        "deploy-each[1]",
    ]


@pytest.mark.parametrize(
    ("loop", "items"),
    [(STATIC, ['"service-a"', '"service-b"', '"service-c"']), (DYNAMIC, ['"x"', '"y"'])],
    ids=["static", "dynamic"],
)
def test_static_and_dynamic_arrays(loop: str, items: list[str]) -> None:
    """A literal, or the result of a step; three at once at most."""
    text = under_a_step(loop).replace(
        "  - id: deploy-all", f"  {BEFORE['list-services']}  - id: deploy-all"
    )
    played = play(text, {"list-services": {"services": ["x", "y"]}})
    assert played.end.outcome == "completed"
    for index, item in enumerate(items):
        assert f"(index: {index})\n{item}" in played.prompt(f"deploy-all[{index}]")
    assert len(played.calls) == len(items) + 1
    assert played.cast.peak <= 3


@pytest.mark.parametrize(
    "key", ["maxIterations: 3", "until: 'true'", "untilAgent: judge", "delay: 1s"]
)
def test_each_excludes_the_keys_of_the_other_mode(key: str) -> None:
    """`forEach` is mutually exclusive with four keys."""
    with pytest.raises(DefinitionError, match="not a valid definition"):
        plan_of(whole(EACH.replace("maxConcurrency: 3", key), "list-services"))


def test_the_result_of_the_expression_must_be_an_array() -> None:
    """The step fails otherwise."""
    text = whole(EACH, "list-services").replace("{type: array}", "{}")
    played = play(text, {"list-services": {"services": "auth"}})
    assert played.top["deploy-each"] == "failed"


# -- output ----------------------------------------------------------------------------------------


def test_cumulative_output_has_every_round() -> None:
    """The step after it sees all rounds, more than 16 KB of them, within 120 KB."""
    rounds = {f"rounds.{n}.round": f"said {n} " + "x" * 9_000 for n in range(3)}
    played = play(whole(CUMULATIVE), rounds)
    content = played.content("rounds")
    assert [content.count(f"said {n} ") for n in range(3)] == [1, 1, 1]
    assert rounds["rounds.2.round"] in played.prompt("synthesise")
    assert len(played.prompt("synthesise")) > 27_000
    large = play(whole(CUMULATIVE), {f"rounds.{n}.round": "y" * 60_000 for n in range(3)})
    assert len(large.prompt("synthesise").encode()) <= 120 * 1_024


def test_last_output_is_that_of_the_final_iteration() -> None:
    """The default."""
    played = play(
        whole(CUMULATIVE.replace("    outputMode: cumulative\n", "")), {"rounds.2.round": "z"}
    )
    assert played.content("rounds") == "z"


# -- the worked example ----------------------------------------------------------------------------


def worked() -> tuple[Played, Coordinator]:
    """The worked example, with a worker and a coordinator that do what it says."""
    coordinator = Coordinator(
        (
            "STAGE_1",
            "forward_to_agent",
            {"target_step_id": "loop-stages.0.worker", "text": "go on"},
        ),
        ("STAGE_2", "forward_to_agent", {"target_step_id": "worker", "text": "nearly there"}),
        ("STAGE_3", "narrate", {"text": "the last stage"}),
    )

    async def works(job: EffectJob) -> Words:
        number = job.iteration
        await settled(job, "send_message", text=f"STAGE_{number}: task")
        await use(job, "read_inbox", wait=1)
        return f"STAGE_{number}_DONE"

    acts: dict[str, Any] = {"setup": "READY", "/coordinator": coordinator}
    acts |= {f"loop-stages.{n}.worker": works for n in range(3)}
    acts |= {f"loop-stages.{n}/judge": {"done": n == 2} for n in range(3)}
    text = WORKED.replace("agents:\n", "agents:\n  coordinator: {description: Coordinates.}\n")
    return play(plan_of(text), by_place(acts)), coordinator


def test_the_worked_example() -> None:
    """Three stages, messages both ways by either address, and everything in the output."""
    played, coordinator = worked()
    assert played.top == {"setup": "completed", "loop-stages": "completed"}
    assert played.content("setup") == "READY"
    content = played.content("loop-stages")
    assert [content.count(f"STAGE_{n}_DONE") for n in (1, 2, 3)] == [1, 1, 1]
    sent = [(f.sender, f.to) for f in played.events if isinstance(f, MessageSent)]
    assert ("loop-stages.0.worker", "coordinator") in sent
    assert {"loop-stages.0.worker", "worker"} <= {to for _, to in sent}
    assert [one.ok for one in coordinator.told] == [True] * 3
    assert "STAGE_1_DONE" in played.prompt("loop-stages.1.worker")


@pytest.mark.item("zenflow-78", "zenflow-86")
def test_the_worked_example_without_a_coordinator() -> None:
    """As it is printed it names no coordinator: there is nobody to send a message to, and it runs
    to the same end. `--agent coordinator=SPEC` adds one, see `test_messages_command_line.py`.
    """
    acts: dict[str, Any] = {"setup": "READY"}
    acts |= {f"loop-stages.{n}.worker": f"STAGE_{n + 1}_DONE" for n in range(3)}
    acts |= {f"loop-stages.{n}/judge": {"done": n == 2} for n in range(3)}
    played = play(WORKED, acts)
    assert played.top == {"setup": "completed", "loop-stages": "completed"}
    assert [played.content("loop-stages").count(f"STAGE_{n}_DONE") for n in (1, 2, 3)] == [1] * 3
    assert not [one for one in played.events if isinstance(one, MessageSent)]


@pytest.mark.item("zenflow-79")
def test_the_events_of_the_worked_example() -> None:
    """Under the names of the document, with namespaced ids; the end of the workflow is last."""
    played, _ = worked()
    events = events_of(played)
    assert (events[0].type, events[-1].type) == ("workflow_start", "workflow_end")
    starts = [one["stepId"] for one in told(played, "step_start")]
    assert starts == ["setup", "loop-stages", *(f"loop-stages.{n}.worker" for n in range(3))]
    assert [one["stepId"] for one in told(played, "step_end")][-1] == "loop-stages"
    loop = next(one for one in told(played, "step_start") if one["stepId"] == "loop-stages")
    assert loop["data"] == {"index": 1, "total": 2, "loop_type": "repeat"}
    sent = told(played, "message_sent")
    first = {"to": "coordinator", "text": "STAGE_1: task", "msg_type": 0}
    assert sent[0] == {"stepId": "loop-stages.0.worker", "data": first}
    assert told(played, "coordinator_message")
    assert {"stepId": "coordinator", "message": "the last stage"} in told(
        played, "coordinator_narration"
    )
    assert told(played, "agent_inbox_drain") or told(played, "message_dropped")
    judge = [one for one in told(played, "agent_turn") if one["stepId"] == "loop-stages.judge"]
    assert [one["data"]["phase"] for one in judge] == ["request", "response"] * 3
    total: dict[str, JsonValue] = told(played, "workflow_end")[0]["tokens"]
    assert total["total"] == sum(
        one.get("tokens", {}).get("total", 0)
        for one in told(played, "agent_turn")
        if one["stepId"] != "coordinator"
    )


# -- events ----------------------------------------------------------------------------------------


@pytest.mark.item("zenflow-79")
def test_every_step_and_iteration_ends_once() -> None:
    """Skipped, failed and cancelled ones too, and iterations of a step that is repeated itself."""
    steps = """
- {id: a, agent: coder}
- {id: b, agent: coder, condition: "false"}
- {id: c, agent: coder, dependsOn: [bad]}
- {id: bad, agent: lister}
- {id: each, agent: coder, loop: {forEach: [1, 2]}}
- {id: again, agent: coder, loop: {maxIterations: 2}}
"""
    played = play(whole(steps), {"bad": "nothing"})
    ends = ("step_end", "step_skipped", "error")
    found = [(one["stepId"], kind) for kind in ends for one in told(played, kind)]
    assert sorted(found) == [
        ("a", "step_end"),
        ("again", "step_end"),
        ("again.0", "step_end"),
        ("again.1", "step_end"),
        ("b", "step_skipped"),
        ("bad", "error"),
        ("c", "step_skipped"),
        ("each", "step_end"),
        ("each[0]", "step_end"),
        ("each[1]", "step_end"),
    ]
    [end] = told(played, "workflow_end")
    assert end["data"] == {"status": "partial"}
    assert next(one for one in told(played, "step_start") if one["stepId"] == "each")["data"] == {
        **{"index": 4, "total": 6},
        **{"loop_type": "forEach", "items": 2},
    }


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (850, "850ms"),
        (1_000, "1s"),
        (1_234, "1.234s"),
        (70_880, "1m10.88s"),
        (3_600_000, "1h0m0s"),
    ],
)
def test_durations_are_written_as_documented(ms: int, text: str) -> None:
    """As the language of that system writes them."""
    assert go_duration(ms) == text


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("dev-cycle", ("dev-cycle", "step")),
        ("dev-cycle.0", ("dev-cycle.0", "iteration")),
        ("dev-cycle.0.review", ("dev-cycle.0.review", "step")),
        ("dev-cycle.0.review.2", ("dev-cycle.0.review", "turn")),
        ("nobody", None),
        ("", None),
    ],
)
def test_places_of_a_run(path: str, found: tuple[str, str] | None) -> None:
    """A turn of a model belongs to its step."""
    place = place_at(plan_of(whole(REPEAT, "design")), path)
    assert (None if place is None else (place.id, place.kind)) == found
