"""What a workflow becomes: the choices that its words make in the plan."""

from typing import Any

import msgspec
import pytest

from loopwright.model.actions import CallAgent, Cel, Repeat, Step, Steps
from loopwright.model.checks import AnyOf, Cap, Expr, Judge
from loopwright.model.policy import (
    NO_LIMITS,
    RETRYABLE,
    Limits,
    NoMemory,
    PreviousOutput,
    Retry,
    WorkspacePolicy,
)
from loopwright.model.record import ItemsExpr, LiteralItems, literal
from tests.dialects.zenflow.cases import plan_of

JUDGE = (
    "agents:\n  judge: {description: Judges., resultSchema: "
    "{required: [done], properties: {done: {type: boolean}}}}\n"
)


def step_of(row: str, *, head: str = "") -> Step:
    """The only step of a workflow."""
    (step,) = plan_of(f"name: x\n{head}steps:\n  - {row}\n").steps
    return step


def loop_of(loop: str, *, head: str = JUDGE) -> Repeat:
    """The loop of the only step of a workflow."""
    action = step_of(f"{{id: a, instructions: One., loop: {loop}}}", head=head).action
    assert isinstance(action, Repeat)
    return action


@pytest.mark.parametrize(
    ("loop", "until", "at_cap"),
    [
        pytest.param("{maxIterations: 3}", Cap(), "complete", id="no-stop-rule"),
        pytest.param(
            "{maxIterations: 3, until: 'true'}", Expr(text="true"), "fail", id="expression"
        ),
        pytest.param(
            "{maxIterations: 3, until: 'true', onExhausted: complete}",
            Expr(text="true"),
            "complete",
            id="exhausted-is-fine",
        ),
    ],
)
def test_what_ends_a_loop(loop: str, until: object, at_cap: str) -> None:
    """With a stop rule the last iteration without it is a failure, without one it is the goal."""
    made = loop_of(loop)
    assert (made.max, made.until, made.at_cap) == (3, until, at_cap)
    assert made.each is None


def test_the_judge_is_asked_after_the_expression() -> None:
    """Both stop rules: the expression first, then the judge, who may fail without ending it."""
    made = loop_of("{maxIterations: 3, untilAgent: judge, until: 'true', delay: 1m5s}")
    assert isinstance(made.until, AnyOf)
    first, second = made.until.parts
    assert first == Expr(text="true", on_error="fail")
    assert isinstance(second, Judge)
    assert (second.agent, second.on_error) == ("judge", "continue")
    assert second.schema == {"required": ["done"], "properties": {"done": {"type": "boolean"}}}
    assert (made.delay_ms, made.broken_after) == (65_000, 0)
    assert isinstance(loop_of("{maxIterations: 3, untilAgent: judge}").until, Judge)


def test_what_an_iteration_knows() -> None:
    """Passes one after another see the one before; passes over a list see nothing of each other."""
    assert loop_of("{maxIterations: 2}").memory == PreviousOutput(by_step=True)
    assert loop_of("{forEach: [1]}").memory == NoMemory()


@pytest.mark.parametrize(
    ("loop", "items", "parallel"),
    [
        pytest.param(
            "{forEach: [1, b, {c: 2}]}", LiteralItems(values=(1, "b", {"c": 2})), None, id="list"
        ),
        pytest.param(
            "{forEach: '[1]', maxConcurrency: 3}", ItemsExpr(expr="[1]"), 3, id="computed"
        ),
        pytest.param(
            "{forEach: [1], maxConcurrency: 0}", LiteralItems(values=(1,)), None, id="unset"
        ),
    ],
)
def test_a_loop_over_a_list(loop: str, items: object, parallel: int | None) -> None:
    """Items as they are written, so many at once, and a failed one stops those that wait."""
    made = loop_of(loop)
    assert made.each is not None
    assert (made.each.items, made.each.parallel) == (items, parallel)
    assert (made.each.on_item_error, made.max, made.until) == ("stop", None, Cap())


def test_items_may_fail_alone() -> None:
    """By the author's word a failed item is no reason to stop."""
    made = loop_of("{forEach: [1], onItemFailure: continue}").each
    assert made is not None
    assert made.on_item_error == "continue"


@pytest.mark.parametrize(
    ("row", "attempts", "every"),
    [
        pytest.param("{id: a}", 3, False, id="by-default"),
        pytest.param("{id: a, retries: 2}", 3, True, id="retries"),
        pytest.param("{id: a, maxRetries: 0}", 1, False, id="no-further-calls"),
        pytest.param("{id: a, retries: 0, maxRetries: 6}", 7, False, id="calls-only"),
        pytest.param("{id: a, loop: {maxIterations: 2, steps: [{id: b}]}}", 1, False, id="loop"),
        pytest.param("{id: a, loop: {maxIterations: 2}, retries: 1}", 2, True, id="loop-again"),
    ],
)
def test_tries(row: str, attempts: int, every: bool) -> None:
    """`retries` tries a step again whatever failed; else only a provider's refusals are tried."""
    retry = step_of(row).retry
    assert retry.attempts == attempts
    assert retry.on == (("any",) if every else RETRYABLE)


@pytest.mark.parametrize(
    ("row", "step", "one_pass"),
    [
        pytest.param("{id: a}", 120_000, None, id="default"),
        pytest.param("{id: a, timeout: 1h}", 3_600_000, None, id="its-own"),
        pytest.param("{id: a, loop: {maxIterations: 2}}", None, 120_000, id="repeated"),
        pytest.param(
            "{id: a, timeout: 1h, loop: {maxIterations: 2, iterationTimeout: 5s}}",
            3_600_000,
            5_000,
            id="loop-and-pass",
        ),
        pytest.param(
            "{id: a, loop: {maxIterations: 2, steps: [{id: b}]}}", None, None, id="steps-inside"
        ),
    ],
)
def test_times(row: str, step: int | None, one_pass: int | None) -> None:
    """A timeout on a loop is for all of it; the default is for what is done once."""
    made = step_of(row, head="options: {stepTimeout: 2m}\n")
    loop = made.action if isinstance(made.action, Repeat) else None
    assert made.limits.wall_ms == step
    assert (loop.limits.pass_wall_ms if loop else None) == one_pass


def test_a_call() -> None:
    """What a step says reaches its call, and it is shown the results of the steps before it."""
    head = "agents: {one: {description: Works., resultSchema: {type: object}}}\n"
    made = step_of("{id: a, agent: one, instructions: Go., contextFiles: [./a/b.md]}", head=head)
    assert made.action == CallAgent(
        agent="one",
        prompt=literal("Go."),
        schema={"type": "object"},
        context_files=("a/b.md",),
        show_needs=True,
    )
    assert (made.join, made.when) == ("finished_ok", None)


def test_a_condition() -> None:
    """A condition is kept as it is written; what it does not find makes it false."""
    text = "name: x\nsteps:\n  - {id: a-b}\n  - {id: c, dependsOn: [a-b], condition: CEL}\n"
    cel = "steps.a-b.result.ok"
    assert plan_of(text.replace("CEL", cel)).steps[1].when == Cel(text=cel, missing="false")


ASK = {"tools": "ask", "context_files": "definition"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param(
            "{}", {"parallel": 5, "settings": {**ASK, "parallel": "default"}}, id="defaults"
        ),
        pytest.param("{maxConcurrency: 9}", {"parallel": 9, "settings": ASK}, id="file"),
        pytest.param("{maxConcurrency: 0}", {"parallel": 5}, id="unset"),
        pytest.param("{onStepFailure: cascade}", {"on_failure": "cascade"}, id="cascade"),
        pytest.param("{onStepFailure: skip-dependents}", {"on_failure": "skip"}, id="skip"),
        pytest.param("{onStepFailure: abort}", {"on_failure": "abort"}, id="abort"),
        pytest.param("{timeout: 1h}", {"limits": Limits(wall_ms=3_600_000)}, id="timeout"),
        pytest.param("{timeout: 0s}", {"limits": NO_LIMITS}, id="no-timeout"),
        pytest.param(
            "{scheduler: least-busy, maxConcurrency: 1}",
            {"settings": {**ASK, "scheduler": "least-busy"}},
            id="kept",
        ),
        pytest.param(
            "{isolation: worktree}",
            {"workspace": WorkspacePolicy(worktree=True)},
            id="worktree",
            marks=pytest.mark.item("rec-22"),
        ),
        pytest.param("{isolation: none}", {"workspace": WorkspacePolicy()}, id="no-isolation"),
        pytest.param(
            "{scheduler: dependency-first, maxConcurrency: 1}", {"settings": ASK}, id="usual-order"
        ),
    ],
)
def test_options(options: str, expected: dict[str, Any]) -> None:
    """Options hold for the whole plan, whose outcome may be partial."""
    plan = plan_of(f"name: x\noptions: {options}\nsteps: [{{id: a}}]\n")
    assert {key: getattr(plan, key) for key in expected} == expected
    assert (plan.outcome, plan.dialect, plan.coordinator) == ("partial", "zenflow", None)


@pytest.mark.parametrize(
    ("step", "coordinates"),
    [
        pytest.param("{id: a, agent: w}", True, id="nobody works with it"),
        pytest.param("{id: a, agent: coordinator}", False, id="a step works with it"),
        pytest.param(
            "{id: a, agent: w, loop: {maxIterations: 1, untilAgent: coordinator}}",
            False,
            id="it judges",
        ),
    ],
)
def test_an_agent_that_coordinates(step: str, coordinates: bool) -> None:
    """An agent called coordinator that no step and no loop uses is the coordinator."""
    schema = "{type: object, required: [done], properties: {done: {type: boolean}}}"
    agents = f"w: {{description: W.}}, coordinator: {{description: C., resultSchema: {schema}}}"
    plan = plan_of(f"name: x\nagents: {{{agents}}}\nsteps: [{step}]\n")
    assert (plan.coordinator is not None) is coordinates


def test_agents() -> None:
    """An agent has its prompt, or for want of one its description, and 50 turns if it says none."""
    plan = plan_of(
        "name: x\nagents:\n"
        "  a: {description: Works., prompt: Be brief., model: m, topP: 0.5,\n"
        "      disallowedTools: [bash]}\n"
        "  b: {description: Works., tools: [], maxTurns: 0, temperature: 1.5}\n"
        "steps: [{id: s, agent: a}, {id: t, agent: b}, {id: u, agent: a, model: n}, {id: v}]\n"
    )
    a, b = plan.agents["a"], plan.agents["b"]
    assert (a.system, a.model, a.tools, a.deny_tools) == ("Be brief.", "m", None, ("bash",))
    assert (a.options, a.max_turns, a.temperature) == ({"top_p": 0.5}, 50, None)
    assert (b.system, b.tools, b.max_turns, b.temperature) == ("Works.", (), 50, 1.5)
    assert plan.agents["a@n"] == msgspec.structs.replace(a, model="n")
    called = [step.action.agent for step in plan.steps if isinstance(step.action, CallAgent)]
    assert called == ["a", "b", "a@n", "default"]
    assert set(plan.agents) == {"a", "b", "a@n", "default"}


def test_the_message_of_a_plan() -> None:
    """A step that says nothing is told what the workflow is for."""
    assert plan_of("name: x\nsteps: [{id: a}]\n").message == literal("x")
    assert plan_of("name: x\ndescription: D.\nsteps: [{id: a}]\n").message == literal("D.")
    assert step_of("{id: a}").action == CallAgent(agent="default", show_needs=True)


CHILD = (
    b"name: child\ndescription: Small.\nagents: {one: {description: Inner.}}\n"
    b"options: {timeout: 1m, maxConcurrency: 2, onStepFailure: abort}\n"
    b"steps: [{id: a, agent: one}, {id: b, instructions: Two.}]\n"
)


def test_an_included_workflow() -> None:
    """It becomes the steps of its step, with its options, and agents under names of their own."""
    text = (
        "name: x\nagents: {one: {description: Outer.}}\noptions: {stepTimeout: 5s}\n"
        "steps: [{id: sub, include: child.yaml, timeout: 2m, retries: 1}]\n"
    )
    plan = plan_of(text, {"child.yaml": CHILD})
    (step,) = plan.steps
    assert isinstance(step.action, Steps)
    assert (step.limits, step.retry.attempts) == (Limits(wall_ms=60_000), 2)
    assert (step.action.on_failure, step.action.parallel) == ("abort", 2)
    first, second = step.action.steps
    assert isinstance(first.action, CallAgent)
    assert isinstance(second.action, CallAgent)
    assert (first.action.agent, first.action.prompt) == ("sub.one", literal("Small."))
    assert (second.action.agent, second.limits) == ("default", Limits(wall_ms=5_000))
    systems = {name: agent.system for name, agent in plan.agents.items()}
    assert systems == {"one": "Outer.", "sub.one": "Inner.", "default": ""}


def test_an_included_workflow_without_a_time() -> None:
    """The time of its step is then the only one, and without tries it is tried once."""
    child = b"name: child\nsteps: [{id: a}]\n"
    text = "name: x\nsteps: [{id: sub, include: c.yaml, timeout: 2m}]\n"
    (step,) = plan_of(text, {"c.yaml": child}).steps
    assert (step.limits, step.retry) == (Limits(wall_ms=120_000), Retry())
