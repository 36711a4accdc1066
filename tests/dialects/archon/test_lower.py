"""What becomes of the parts of a workflow, claim by claim."""

import msgspec
import pytest

from loopwright.model.actions import (
    AskPerson,
    CallAgent,
    LoopGate,
    Repeat,
    Rework,
    RunScript,
    Steps,
    StopRun,
)
from loopwright.model.checks import AnyOf, ResultField, ScriptCheck, Signal
from loopwright.model.plan import Plan
from loopwright.model.policy import Limits, NoMemory, Retry
from loopwright.model.record import Lit, Ref
from tests.dialects.archon.reading import flow, lowered, plan_of

TRANSIENT = ("rate_limited", "overloaded", "exit", "idle_timeout", "wall_timeout")
LOOP = "prompt: Go, until: DONE, max_iterations: 3"


def loop_of(settings: str, *, head: str = "interactive: true", node: str = "") -> Repeat:
    """The loop of a workflow that has only this loop."""
    action = plan_of(flow(f"{{id: a, {node}loop: {{{settings}}}}}", head=head)).steps[0].action
    assert isinstance(action, Repeat)
    return action


# -- the whole -------------------------------------------------------------------------------------


def test_a_run_is_judged_by_its_nodes() -> None:
    """A failed node fails the run, and only what depends on it is left out."""
    plan = plan_of(flow("{id: a, prompt: Go}"))
    assert (plan.dialect, plan.outcome, plan.on_failure) == ("archon", "some_completed", "skip")
    assert (plan.steps[0].origin.line, plan.steps[0].origin.column) == (4, 5)  # type: ignore[union-attr]


@pytest.mark.item("archon-19", "archon-20")
def test_surroundings_are_asked_for_only_when_used() -> None:
    """The plan names the settings that its texts use; the docs folder has a default."""
    assert plan_of(flow("{id: a, prompt: Go}")).settings == {}
    plan = plan_of(flow("{id: a, prompt: $DOCS_DIR}", "{id: b, bash: ls $ARTIFACTS_DIR}"))
    assert plan.settings == {"artifacts": "", "docs_dir": "docs/"}
    assert plan_of(flow("{id: a, cancel: $BASE_BRANCH}")).settings == {"base_branch": ""}


def test_inputs_come_with_their_defaults() -> None:
    """An input without a default is required; the issue's text is an input that may be absent."""
    head = "inputs: {a: {}, b: {default: 1}, c: {required: false, description: x}}"
    plan = plan_of(flow("{id: n, prompt: $CONTEXT $INPUTS.a}", head=head))
    assert {name: one.required for name, one in plan.inputs.items()} == {
        "a": True,
        "b": False,
        "c": False,
        "context": False,
    }
    own = plan_of(flow("{id: n, prompt: $ISSUE_CONTEXT}", head="inputs: {context: {}}"))
    assert own.inputs["context"].required is True


# -- loops -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "session"), [("", "thread"), (", fresh_context: true", "fresh")]
)
def test_sessions_of_a_loop(settings: str, session: str) -> None:
    """A session goes on from pass to pass unless every iteration is to start fresh."""
    repeat = loop_of(LOOP + settings)
    assert isinstance(repeat.body, CallAgent)
    assert (repeat.body.session, repeat.memory) == (session, NoMemory())


def test_a_loop_that_reaches_its_cap_has_failed() -> None:
    """All iterations made and no end is a failure; a check that cannot be asked ends it at once."""
    repeat = loop_of(LOOP)
    assert (repeat.max, repeat.at_cap, repeat.output, repeat.broken_after) == (3, "fail", "last", 1)


CHANNELS = [
    ("until: ' DONE '", Signal(word="DONE", anywhere=True)),
    ("until_bash: make test", ScriptCheck),
    ("until_field: done", ResultField(field="done")),
    ("until_field: done, until_bash: ls, until: DONE", (Signal, ScriptCheck, ResultField)),
]


@pytest.mark.item("archon-69")
@pytest.mark.parametrize(("settings", "made"), CHANNELS, ids=[one for one, _ in CHANNELS])
def test_what_ends_a_loop(settings: str, made: object) -> None:
    """Signal, script and field are asked in this order, and the first that passes ends the loop."""
    schema = "output_format: {properties: {done: {type: boolean}}, required: [done]}, "
    with_field = schema if "until_field" in settings else ""
    repeat = loop_of(f"prompt: Go, max_iterations: 3, {settings}", node=with_field)
    if isinstance(made, tuple):
        assert isinstance(repeat.until, AnyOf)
        assert tuple(type(one) for one in repeat.until.parts) == made
    elif isinstance(made, type):
        assert isinstance(repeat.until, made)
    else:
        assert repeat.until == made
    assert isinstance(repeat.body, CallAgent)
    assert (repeat.body.schema is not None) == ("until_field" in settings)


def test_a_check_script_has_half_an_hour() -> None:
    """The script of a loop runs in bash, for 30 minutes at most; any code but 0 means "not yet"."""
    check = loop_of("prompt: Go, until_bash: ls, max_iterations: 1").until
    assert isinstance(check, ScriptCheck)
    assert (check.interpreter, check.timeout_ms) == ("bash", 1_800_000)
    assert (check.on_timeout, check.on_missing) == ("fail", "fail")


@pytest.mark.item("archon-39", "archon-75")
@pytest.mark.parametrize("settings", ["", ", signal_completes: true"])
def test_gates_of_interactive_loops(settings: str) -> None:
    """A person is asked after an iteration that does not complete; a rejection cancels the run."""
    repeat = loop_of(f"{LOOP}, interactive: true, gate_message: Good?{settings}")
    assert repeat.gate == LoopGate(
        message=(Lit(text="Good?"),),
        answers=("approve", "reject", "continue"),
        approve_continues=True,
        grants=True,
        reject="cancel",
    )


def test_a_message_alone_is_no_gate() -> None:
    """Without interactive nobody is asked, and the author is told."""
    plan, problems = lowered(flow(f"{{id: a, loop: {{{LOOP}, gate_message: Good?}}}}"))
    assert plan is not None
    assert isinstance(plan.steps[0].action, Repeat)
    assert plan.steps[0].action.gate is None
    assert [(one.code, one.severity) for one in problems] == [("ignored-here", "warning")]


def test_groups_are_graphs_in_a_loop() -> None:
    """A group repeats its nodes, stops at the first that fails, and lends them its agent."""
    body = "nodes: [{id: b, prompt: Go}, {id: c, prompt: Go, model: haiku}]"
    node = f"{{id: g, model: opus, loop_group: {{until: X, max_iterations: 2, {body}}}}}"
    plan = plan_of(flow(node))
    repeat = plan.steps[0].action
    assert isinstance(repeat, Repeat)
    assert isinstance(repeat.body, Steps)
    assert repeat.body.on_failure == "abort"
    calls = [one.action for one in repeat.body.steps]
    models = [plan.agents[one.agent].model for one in calls if isinstance(one, CallAgent)]
    assert models == ["opus", "haiku"]


# -- other nodes -----------------------------------------------------------------------------------


@pytest.mark.item("archon-53")
@pytest.mark.parametrize(
    "rule", ["all_success", "one_success", "none_failed_min_one_success", "all_done"]
)
def test_trigger_rules(rule: str) -> None:
    """A trigger rule is the join of its step."""
    plan = plan_of(
        flow("{id: a, bash: ls}", f"{{id: b, depends_on: [a], trigger_rule: {rule}, bash: ls}}")
    )
    assert plan.steps[1].join == rule
    assert plan.steps[0].join == "all_success"


@pytest.mark.item("archon-54")
def test_a_condition_that_fails_leaves_the_node_out() -> None:
    """A node whose condition cannot be evaluated is skipped; that it cannot is told at once."""
    plan, problems = lowered(flow("{id: a, when: nonsense, bash: ls}", "{id: b, bash: ls}"))
    assert plan is not None
    assert [step.when_error for step in plan.steps] == ["skip", "fail"]
    assert [(one.code, one.severity) for one in problems] == [("bad-condition", "warning")]


RETRIES = [
    ("prompt: Go", Retry(attempts=3, base_ms=3_000, cap_ms=960_000, on=TRANSIENT)),
    ("bash: ls", Retry(attempts=1)),
    ("approval: {message: Good?}", Retry(attempts=1)),
    (f"loop: {{{LOOP}}}", Retry(attempts=1)),
    (
        "prompt: Go, retry: {max_attempts: 1, delay_ms: 1000, on_error: all}",
        Retry(attempts=2, base_ms=1_000, cap_ms=960_000, on=("any",)),
    ),
    (
        "bash: ls, retry: {max_attempts: 5}",
        Retry(attempts=6, base_ms=3_000, cap_ms=960_000, on=TRANSIENT),
    ),
]


@pytest.mark.parametrize(("node", "made"), RETRIES, ids=[one for one, _ in RETRIES])
def test_tries(node: str, made: Retry) -> None:
    """Agents get two more tries of what may pass by itself; scripts only what they ask for."""
    retry = plan_of(flow(f"{{id: a, {node}}}")).steps[0].retry
    assert msgspec.structs.replace(retry, if_says=(), unless_says=()) == made
    assert ("503" in retry.if_says, "401" in retry.unless_says) == (made.attempts > 1,) * 2


LIMITS = [
    ("prompt: Go", Limits(idle_ms=1_800_000)),
    ("prompt: Go, idle_timeout: 500", Limits(idle_ms=500)),
    ("prompt: Go, maxBudgetUsd: 2", Limits(idle_ms=1_800_000)),
    (f"loop: {{{LOOP}}}, maxBudgetUsd: 2", Limits(idle_ms=1_800_000, usd=2)),
    ("bash: ls", Limits()),
    ("bash: ls, idle_timeout: 0.2", Limits(idle_ms=1)),
    ("cancel: x", Limits()),
]


@pytest.mark.parametrize(("node", "made"), LIMITS, ids=[one for one, _ in LIMITS])
def test_limits(node: str, made: Limits) -> None:
    """Half an hour of silence ends an agent; a loop's budget is for all of its iterations."""
    plan = plan_of(flow(f"{{id: a, {node}}}"))
    assert plan.steps[0].limits == made
    assert [one.max_usd for one in plan.agents.values()] in ([], [None], [2])


def test_approvals() -> None:
    """A rejection cancels, or is worked on until it has come too often."""
    plan = plan_of(
        flow(
            "{id: a, approval: {message: Good?, capture_response: true}}",
            "{id: b, approval: {message: Good?, on_reject: {prompt: $REJECTION_REASON}}}",
        )
    )
    plain, reworked = plan.steps[0].action, plan.steps[1].action
    assert plain == AskPerson(message=(Lit(text="Good?"),), capture=True, reject="cancel")
    assert isinstance(reworked, AskPerson)
    rework = Rework(agent="assistant", prompt=(Ref(of="rejection"),), attempts=3)
    assert (reworked.on_reject, reworked.reject) == (rework, "cancel")


def test_cancelling() -> None:
    """A cancel node stops the run with its reason, in which variables are filled."""
    plan = plan_of(flow("{id: a, cancel: 'no $USER_MESSAGE'}"))
    assert plan.steps[0].action == StopRun(reason=(Lit(text="no "), Ref(of="message")))


def test_scripts_name_their_dependencies() -> None:
    """Packages of a script stand where its runner looks for them."""
    plan = plan_of(flow("{id: a, script: print(1), runtime: uv, deps: [httpx, 'a\"b']}"))
    action = plan.steps[0].action
    assert isinstance(action, RunScript)
    assert action.interpreter == "uv"
    assert (action.text, action.by_stdin) == ("print(1)", True)
    assert action.flags == ("run", "--with=httpx", '--with=a"b', "-")


# -- agents ----------------------------------------------------------------------------------------


def agents(*nodes: str, head: str = "") -> dict[str, tuple[str | None, str | None]]:
    made: Plan = plan_of(flow(*nodes, head=head))
    return {name: (one.spec, one.model) for name, one in made.agents.items()}


def test_nodes_share_an_agent() -> None:
    """Nodes that want nothing special have the agent of the workflow."""
    made = agents("{id: a, prompt: Go}", "{id: b, prompt: Go}", "{id: c, prompt: Go, model: opus}")
    assert made == {"assistant": (None, None), "c": (None, "opus")}
    assert agents("{id: a, bash: ls}") == {}


def test_a_provider_leaves_the_model_of_another_behind() -> None:
    """A node with another provider does not get the model of the workflow's."""
    head = "provider: claude\nmodel: sonnet"
    made = agents(
        "{id: a, prompt: Go, provider: codex}",
        "{id: b, prompt: Go, provider: claude}",
        head=head,
    )
    assert made == {
        "a": ("codex", None),
        "assistant": ("claude", "sonnet"),
    }


def test_names_of_agents_are_free() -> None:
    """Two nodes of one name in different groups get agents of different names."""
    group = "loop_group: {until: X, max_iterations: 1, nodes: [{id: x, prompt: Go, model: MODEL}]}"
    made = agents(
        f"{{id: g, {group.replace('MODEL', 'opus')}}}",
        f"{{id: h, {group.replace('MODEL', 'haiku')}}}",
        "{id: assistant, prompt: Go, model: sonnet}",
    )
    assert made == {"x": (None, "opus"), "x-2": (None, "haiku"), "assistant-2": (None, "sonnet")}
