"""Nodes that run other workflows: where their files are, what they are told, what is refused."""

from itertools import pairwise

import pytest

from loopwright.dialects import archon
from loopwright.dialects.archon.calls import MAX_DEPTH, MAX_UNITS, list_ref
from loopwright.model.actions import Repeat, Steps, WorkflowInputs
from loopwright.model.plan import Plan
from loopwright.model.policy import Limits
from loopwright.model.record import ItemsFrom, Lit, LiteralItems, Ref, literal
from loopwright.syntax.readers import read
from tests.dialects.archon.reading import Problem, flow, lowered_with, places

SAY = flow("{id: say, prompt: '$ARGUMENTS'}")


def plan_with(text: str, **others: str) -> Plan:
    plan, problems = lowered_with(text, others)
    assert problems == []
    assert plan is not None
    return plan


def messages(text: str, *, file: str = "flow.yaml", **others: str) -> list[str]:
    plan, problems = lowered_with(text, others, file=file)
    assert plan is None
    return [f"{one.file}: {one.message}" for one in problems if one.severity == "error"]


# -- files -----------------------------------------------------------------------------------------


def test_files_are_asked_for_one_after_the_other() -> None:
    """First the file of the workflow in the project, then those that it names itself."""
    document, _ = read(flow("{id: a, workflow: one}").encode(), file="flow.yaml")
    assert document is not None
    asked = [one for one in archon.requested_files(document) if not one.is_optional]
    assert [(one.path, one.limit) for one in asked if one.kind == "text"] == [
        (f"{place}/one.{ending}", 262_144)
        for place in (".archon/workflows", "@")
        for ending in ("yaml", "yml")
    ]
    inner = flow("{id: b, command: review}").encode()
    more = archon.requested_files(document, {".archon/workflows/one.yaml": inner})
    assert [one.path for one in more if not one.is_optional] == [
        ".archon/workflows/commands/review.md",
        ".archon/commands/review.md",
        ".archon/commands",
    ]
    absent = {one.path: Problem("not-found", "no such file") for one in asked}
    more = archon.requested_files(document, absent)
    assert [one.path for one in more if not one.is_optional] == [
        "~/.archon/workflows/one.yaml",
        "~/.archon/workflows/one.yml",
        "~/.archon/workflows",
    ]


def test_a_circle_names_all_that_are_in_it() -> None:
    """Workflows that run one another are refused where the circle closes."""
    a, b = flow("{id: x, workflow: b}"), flow("{id: y, workflow: a}")
    told = "workflows run one another: "
    own = messages(a, file="/x/.archon/workflows/a.yaml", a=a, b=b)
    assert own == [f".archon/workflows/b.yaml: {told}a → b → a"]
    assert messages(a, a=a, b=b) == [f".archon/workflows/a.yaml: {told}b → a → b"]
    alone = flow("{id: x, workflow: c}")
    assert messages(alone, file=".archon/workflows/c.yml", c=alone) == [
        f".archon/workflows/c.yml: {told}c → c"
    ]


def test_workflows_may_be_so_deep_and_no_deeper() -> None:
    """The depth has a limit, which the finding shows the way to."""
    names = [f"w{number}" for number in range(MAX_DEPTH + 2)]
    others = {name: flow(f"{{id: next, workflow: {below}}}") for name, below in pairwise(names)}
    plan_with(flow("{id: a, workflow: w1}"), **others | {names[MAX_DEPTH]: SAY})
    told = messages(flow("{id: a, workflow: w0}"), **others | {names[-1]: SAY})
    assert "more than 5 deep: ./flow.yaml → w0 → w1" in told[0]


def test_workflows_may_be_so_many_and_no_more() -> None:
    """What is written out many times has a limit."""
    many = [f"{{id: n{number}, workflow: say}}" for number in range(MAX_UNITS + 1)]
    plan_with(flow(*many[:-1]), say=SAY)
    [told] = messages(flow(*many), say=SAY)
    assert "more than 100 workflows are run" in told


# -- what they are told ----------------------------------------------------------------------------

INPUTS = "inputs: {a: {default: '$$x'}, b: {default: [1]}, c: {required: false}, d: {default: 2}}"
GIVEN = [
    pytest.param("", WorkflowInputs(), id="nothing"),
    pytest.param(
        "arguments: do $ARGUMENTS",
        WorkflowInputs(message=(Lit(text="do "), Ref(of="message"))),
        id="text",
    ),
    pytest.param(
        "input: $INPUTS.z", WorkflowInputs(message=(Ref(of="input", name="z"),)), id="input"
    ),
]


@pytest.mark.parametrize(("written", "given"), GIVEN)
def test_what_another_workflow_is_reported(written: str, given: WorkflowInputs) -> None:
    """Its message is what the node says, else the one around it; its inputs all have a value."""
    head = "inputs: {z: {default: q}}"
    plan = plan_with(flow(f"{{id: a, workflow: say, {written}}}", head=head), say=SAY)
    action = plan.steps[0].action
    assert isinstance(action, Steps)
    assert action.given == given
    assert (action.on_failure, action.output) == ("skip", "sink")


def test_every_input_has_a_value() -> None:
    """What is given is a text with variables, a default is taken as it is."""
    other = flow("{id: say, prompt: x}", head=INPUTS)
    node = "{id: a, workflow: o, inputs: {d: {x: 1}, c: '$ARGUMENTS'}, maxBudgetUsd: 3}"
    step = plan_with(flow(node), o=other).steps[0]
    assert isinstance(step.action, Steps)
    assert step.action.given is not None
    assert step.action.given.inputs == {
        "a": literal("$$x"),
        "b": literal("[1]"),
        "c": (Ref(of="message"),),
        "d": literal('{"x":1}'),
    }
    assert step.limits == Limits(usd=3)


FANS = [
    pytest.param("{items: [a, 1]}", LiteralItems(values=("a", 1)), 5, "continue", id="a list"),
    pytest.param(
        "{items: $src.output, max_parallel: 2, join: all_done}",
        ItemsFrom(ref=Ref(of="result", name="src")),
        2,
        "continue",
        id="an output",
    ),
    pytest.param(
        "{items: $src.output.rows, join: all_success}",
        ItemsFrom(ref=Ref(of="result", name="src", field="rows")),
        5,
        "fail",
        id="a field",
    ),
    pytest.param(
        "{items: '[\"a\", 1]'}", LiteralItems(values=("a", 1)), 5, "continue", id="a list as JSON"
    ),
]


@pytest.mark.item("archon-78")
@pytest.mark.parametrize(("fan", "items", "parallel", "policy"), FANS)
def test_for_each_item(fan: str, items: object, parallel: int | None, policy: str) -> None:
    """A fan_out is a loop over a list whose output is a list; the item is the message."""
    node = f"{{id: a, depends_on: [src], workflow: say, fan_out: {fan}}}"
    action = plan_with(flow("{id: src, bash: ls}", node), say=SAY).steps[1].action
    assert isinstance(action, Repeat)
    assert action.each is not None
    assert (action.each.items, action.each.parallel) == (items, parallel)
    assert (action.each.on_item_error, action.output) == (policy, "list")
    assert isinstance(action.body, Steps)
    item = (Ref(of="item"),)
    assert action.body.given == WorkflowInputs(message=item, inputs={"item": item})


LIST_REFS = [
    pytest.param("$a.output", Ref(of="result", name="a"), id="output"),
    pytest.param(" $INPUTS.x ", Ref(of="input", name="x"), id="input"),
    pytest.param("$it.rows", Ref(of="item", field="rows"), id="item"),
    pytest.param("$ARGUMENTS", Ref(of="message"), id="message"),
    pytest.param("$WORKFLOW_ID", None, id="no list"),
    pytest.param("$$ARGUMENTS", None, id="escaped"),
    pytest.param("$a.output $b.output", None, id="two"),
    pytest.param("x", None, id="text"),
]


@pytest.mark.parametrize(("text", "ref"), LIST_REFS)
def test_what_leads_to_a_list(text: str, ref: Ref | None) -> None:
    """Only one variable and nothing else."""
    assert list_ref(text, "it") == ref


# -- agents and the folder -------------------------------------------------------------------------


def test_agents_of_another_workflow() -> None:
    """They are its own where it names a provider or a model, else those of the one around it."""
    own = flow("{id: say, prompt: x}", head="provider: codex")
    nodes = ("{id: a, workflow: say}", "{id: b, workflow: own}", "{id: c, prompt: y}")
    plan = plan_with(flow(*nodes, head="model: opus"), say=SAY, own=own)
    assert {name: (one.spec, one.model) for name, one in plan.agents.items()} == {
        "assistant": (None, "opus"),
        "assistant-2": ("codex", None),
    }


@pytest.mark.parametrize(
    ("outer", "inner", "exclusive"),
    [("false", "false", None), ("false", "true", "workspace"), ("true", "false", "workspace")],
)
def test_the_folder_is_held_when_one_of_them_changes_it(
    outer: str, inner: str, exclusive: str | None
) -> None:
    """A run keeps others away unless none of its workflows changes anything."""
    other = flow("{id: say, prompt: x}", head=f"mutates_checkout: {inner}")
    text = flow("{id: a, workflow: o}", head=f"mutates_checkout: {outer}")
    assert plan_with(text, o=other).exclusive == exclusive


# -- read alone ------------------------------------------------------------------------------------


def test_a_workflow_for_items_is_read_alone() -> None:
    """What it says about its item is a warning there, and the node would be left out; a name that
    looks like that of a node is still wrong.
    """
    nodes = ("{id: first, bash: ls}", "{id: b, when: $file.kind == 'x', prompt: x}")
    plan, problems = lowered_with(flow(*nodes), {})
    assert places(problems) == ["5:19 bad-condition"]
    assert "with as: file" in (problems[0].hint or "")
    assert plan is not None
    assert "unreadable" in str(plan.steps[1].when)
    plan, problems = lowered_with(flow("{id: file, bash: ls}", nodes[1].replace("$f", "$ff")), {})
    assert (plan, problems[-1].code) == (None, "unknown-reference")
    fan = "{id: fan, workflow: o, fan_out: {items: [a], as: file}}"
    assert plan_with(flow(fan), o=flow(*nodes))
    fan = fan.replace("as: file", "as: other")
    assert messages(flow(fan), o=flow(*nodes)) == [
        ".archon/workflows/o.yaml: no node here is called file"
    ]


RUBBISH = [
    pytest.param("fan_out: 3", id="fan_out"),
    pytest.param("fan_out: {items: 3}", id="items"),
    pytest.param("fan_out: {items: [a], as: 3}", id="as"),
    pytest.param("inputs: [a]", id="inputs"),
    pytest.param("arguments: 3", id="arguments"),
    pytest.param("workflow: say", id="twice"),
]


@pytest.mark.parametrize("written", RUBBISH)
def test_rubbish_is_reported(written: str) -> None:
    """Values of the wrong kind are findings, in the other workflow as well."""
    node = f"{{id: a, workflow: say, {written}}}"
    document, problems = read(flow(node).encode(), file="x")
    if document is not None:
        _, problems = lowered_with(flow(node), {"say": SAY})
    assert [one.severity for one in problems] == ["error"]
    _, problems = lowered_with(flow("{id: a, workflow: o}"), {"o": "inputs: {x: 3}\nnodes: 3\n"})
    assert {one.file for one in problems} == {".archon/workflows/o.yaml"}


@pytest.mark.item("archon-77")
def test_the_budget_of_a_workflow_holds_where_another_runs_it() -> None:
    """The smaller of two amounts counts, one of a fan-out is for all items, an include has none."""
    below = flow("{id: say, prompt: Go}", head="budget: {max_spend_usd: 2}")
    nodes = (
        "{id: a, workflow: below}\n  - {id: b, workflow: below, maxBudgetUsd: 1}\n"
        "  - {id: c, include: below}\n  - {id: d, workflow: below, fan_out: {items: [1, 2]}}"
    )
    plan, (problem,) = lowered_with(flow(nodes), {"below": below})
    assert plan is not None
    assert [one.limits.usd for one in plan.steps] == [2, 1, None, 2]
    assert (problem.severity, problem.code) == ("warning", "shared-budget")
    assert "the budget of x holds for all items" in problem.message


def test_the_hint_for_an_unknown_input_of_a_fan_out_names_the_item() -> None:
    """What the calling node gives is known in a workflow without `inputs:`."""
    plan, problems = lowered_with(
        flow("{id: fan, workflow: o, fan_out: {items: [a], as: region}}"),
        {"o": flow("{id: a, prompt: 'Deploy $INPUTS.item'}")},
    )
    assert plan is None
    assert [one.hint for one in problems if one.severity == "error"] == [
        "known: region; see inputs:"
    ]
