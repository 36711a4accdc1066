"""Loop definitions of roles: what becomes of stages, parameters and what ends the loop."""

import json
from typing import Any

import pytest

from loopwright.dialects import coqui
from loopwright.dialects.coqui.lower import stage_ids, unique
from loopwright.dialects.coqui.rules import described
from loopwright.dialects.coqui.surface import filled, names_in, only_name, template
from loopwright.model.actions import CallAgent, Repeat, Steps
from loopwright.model.checks import Approval, Cap, Goal
from loopwright.model.plan import Plan
from loopwright.model.policy import StageOutputs
from loopwright.model.record import Lit, Ref
from loopwright.syntax.document import Diagnostic
from loopwright.syntax.readers import read

REVIEW = {"type": "evaluation_bound", "value": {"criteria": "It works"}}


def definition(**changes: Any) -> dict[str, Any]:
    """A definition of two stages."""
    return {
        "name": "small",
        "description": "A small loop",
        "roles": [
            {"role": "coder", "prompt": "Do it."},
            {"role": "reviewer", "prompt": "Look at it."},
        ],
        "termination_condition": REVIEW,
        **changes,
    }


def lowered(value: object, **given: Any) -> tuple[Plan | None, list[Diagnostic]]:
    document, problems = read(json.dumps(value).encode(), file="small.json")
    assert document is not None
    assert problems == []
    return coqui.lower(document, given)


def plan_of(value: object, **given: Any) -> Plan:
    plan, problems = lowered(value, **given)
    assert [one for one in problems if one.severity == "error"] == []
    assert plan is not None
    return plan


def loop_of(plan: Plan) -> Repeat:
    (step,) = plan.steps
    assert isinstance(step.action, Repeat)
    return step.action


def stages_of(plan: Plan) -> list[tuple[str, str]]:
    body = loop_of(plan).body
    assert isinstance(body, Steps)
    found = []
    for step in body.steps:
        assert isinstance(step.action, CallAgent)
        found.append((step.id, step.action.agent))
    return found


@pytest.mark.item("coqui-5")
@pytest.mark.item("coqui-71")
@pytest.mark.parametrize(
    ("orders", "expected"),
    [
        pytest.param((1, 0, 2), ("b", "a", "c"), id="sorted"),
        pytest.param((None, None, None), ("a", "b", "c"), id="without: as listed"),
        pytest.param((5, 5, 1), ("c", "a", "b"), id="ties: as listed"),
        pytest.param((2, "0", 1), ("b", "c", "a"), id="in quotes"),
        pytest.param((None, None, 0), ("a", "c", "b"), id="without one: its place in the list"),
        pytest.param((-1, -2, 0), ("b", "a", "c"), id="below zero"),
    ],
)
def test_order_sorts_the_stages(orders: tuple[object, ...], expected: tuple[str, ...]) -> None:
    """Stages run in the order of `order`; each needs the one before it, and lists show the same."""
    roles = [
        {"name": name, "role": "coder", "prompt": "Do."}
        | ({} if order is None else {"order": order})
        for name, order in zip("abc", orders, strict=True)
    ]
    plan, problems = lowered(definition(roles=roles))
    assert plan is not None
    assert problems == []
    assert tuple(name for name, _ in stages_of(plan)) == expected
    body = loop_of(plan).body
    assert isinstance(body, Steps)
    assert [step.needs for step in body.steps] == [(), *((name,) for name in expected[:-1])]
    shown = described(definition(roles=roles))["roles"]
    assert isinstance(shown, list)
    assert tuple(one["name"] for one in shown if isinstance(one, dict)) == expected


@pytest.mark.item("coqui-28")
@pytest.mark.parametrize(
    ("cap", "turns"),
    [
        pytest.param(None, None, id="left to the role"),
        pytest.param(15, 15, id="as written"),
        pytest.param("15", 15, id="in quotes"),
        pytest.param(100, 100, id="the most"),
        pytest.param(101, 100, id="more than may be"),
    ],
)
def test_steps_of_a_stage_are_capped(cap: object, turns: int | None) -> None:
    """A stage makes as many steps as it says, else as its role says, and never more than 100."""
    role = {"role": "coder", "prompt": "Do."} | ({} if cap is None else {"max_iterations": cap})
    plan = plan_of(definition(roles=[role]))
    assert plan.agents["coder"].max_turns == turns
    assert plan.agents["coder"].role == "coder"


def test_stages_that_ask_the_same_of_a_role_share_its_agent() -> None:
    """One role is one agent, unless two stages want it otherwise."""
    roles = [
        {"name": "first", "role": "coder", "prompt": "Do."},
        {"name": "second", "role": "coder", "prompt": "Do more."},
        {"name": "third", "role": "coder", "prompt": "Do less.", "max_iterations": 3},
    ]
    plan = plan_of(definition(roles=roles))
    assert stages_of(plan) == [("first", "coder"), ("second", "coder"), ("third", "coder-2")]
    assert plan.agents["coder-2"].role == "coder"


@pytest.mark.item("coqui-4")
def test_an_unknown_kind_of_end_is_refused_with_all_kinds() -> None:
    """The message lists the kinds that there are, and the near one."""
    plan, (problem,) = lowered(definition(termination_condition={"type": "goal_bond"}))
    assert plan is None
    for kind in ("evaluation", "iteration", "time", "goal", "tool"):
        assert f"{kind}_bound" in problem.message
    assert "manual" in problem.message
    assert problem.hint == "did you mean goal_bound?"


@pytest.mark.item("coqui-6")
@pytest.mark.parametrize(
    "condition",
    [
        pytest.param({"type": "evaluation_bound", "value": {}}, id="no criteria"),
        pytest.param({"type": "evaluation_bound", "value": ""}, id="empty criteria"),
        pytest.param({"type": "iteration_bound", "value": 0}, id="no iteration"),
        pytest.param({"type": "iteration_bound", "value": -1}, id="fewer than none"),
        pytest.param({"type": "iteration_bound", "value": True}, id="yes is not a number"),
        pytest.param({"type": "goal_bound", "value": {"goal_prompt": "x"}}, id="no cap"),
        pytest.param({"type": "goal_bound", "value": {"max_iterations": 0}}, id="cap of 0"),
        pytest.param({"type": "time_bound", "value": "soon"}, id="no time"),
        pytest.param({"type": "time_bound", "value": 0}, id="no seconds"),
        pytest.param({"type": "time_bound"}, id="no value"),
    ],
)
def test_ends_that_lack_what_they_need_are_refused(condition: object) -> None:
    """A kind of end without its own field, or with a bound that means nothing, is invalid."""
    plan, problems = lowered(definition(termination_condition=condition))
    assert plan is None
    assert problems


@pytest.mark.parametrize(
    ("condition", "until", "most", "at_cap"),
    [
        pytest.param(REVIEW, Approval, 5, "exhaust", id="review, 5 rounds by default"),
        pytest.param(
            {"type": "evaluation_bound", "value": "ok"}, Approval, 5, "exhaust", id="text"
        ),
        pytest.param({"type": "iteration_bound", "value": "2"}, Cap, 2, "complete", id="rounds"),
        pytest.param({"type": "manual"}, Cap, None, "exhaust", id="manual"),
        pytest.param({"type": "time_bound", "value": 60}, Cap, None, "exhaust", id="time"),
        pytest.param(
            {"type": "goal_bound", "value": {"max_iterations": 4}}, Goal, 4, "exhaust", id="goal"
        ),
        pytest.param(
            {"type": "goal_bound", "value": {"max_iterations": 4, "evaluator": "none"}},
            Cap,
            4,
            "exhaust",
            id="nobody judges",
        ),
    ],
)
def test_what_ends_a_loop(condition: object, until: type, most: int | None, at_cap: str) -> None:
    """Every kind of end becomes a check, a cap and what the cap means."""
    loop = loop_of(plan_of(definition(termination_condition=condition)))
    assert type(loop.until) is until
    assert (loop.max, loop.at_cap) == (most, at_cap)
    assert loop.memory == StageOutputs()


@pytest.mark.item("coqui-11")
def test_parameters_fill_every_text() -> None:
    """Prompts, criteria, limits, roles and the description have their parameters; what nobody
    declares stays as it is.
    """
    value = definition(
        description="About {{topic}}",
        parameters=[
            {"name": "topic", "description": "T"},
            {"name": "rounds", "description": "R", "default": "2"},
            {"name": "who", "description": "W", "default": "coder"},
        ],
        roles=[{"role": "{{who}}", "prompt": "Write on {{topic}} for {{ who }}, {{other}}."}],
        termination_condition={
            "type": "evaluation_bound",
            "value": {"criteria": "{{topic}} is covered", "max_review_rounds": "{{rounds}}"},
        },
    )
    plan = plan_of(value, topic="tea", rounds="7")
    loop = loop_of(plan)
    assert plan.description == "About tea"
    assert loop.max == 7
    assert stages_of(plan) == [("coder", "coder")]
    assert isinstance(loop.until, Approval)
    assert loop.until.criteria == (Ref(of="input", name="topic"), Lit(text=" is covered"))
    assert isinstance(loop.body, Steps)
    action = loop.body.steps[0].action
    assert isinstance(action, CallAgent)
    assert action.prompt == (
        Lit(text="Write on "),
        Ref(of="input", name="topic"),
        Lit(text=" for "),
        Ref(of="input", name="who"),
        Lit(text=", {{other}}."),
    )
    assert loop_of(plan_of(value)).max == 2


def test_a_parameter_in_the_place_of_a_number_must_be_one() -> None:
    """What is given for a number is looked at like a number that is written there."""
    value = definition(
        parameters=[{"name": "n", "description": "N"}],
        termination_condition={"type": "iteration_bound", "value": "{{n}}"},
    )
    assert loop_of(plan_of(value)).max == 5
    plan, (problem,) = lowered(value, n="-3")
    assert plan is None
    assert problem.code == "out-of-range"


def test_a_stage_that_is_marked_reviews() -> None:
    """Without a mark the last stage reviews; with one, that stage does."""
    roles = [
        {"role": "reviewer", "prompt": "Look.", "gate": True},
        {"role": "coder", "prompt": "Tidy up."},
    ]
    until = loop_of(plan_of(definition(roles=roles))).until
    assert isinstance(until, Approval)
    assert until.stage == "reviewer"


def test_time_is_up_as_the_definition_says() -> None:
    """Seconds and points in time are limits of the loop, and the definition says what is cut."""
    seconds = loop_of(
        plan_of(definition(termination_condition={"type": "time_bound", "value": 90}))
    )
    assert (seconds.limits.wall_ms, seconds.on_deadline) == (90_000, "after_pass")
    point = {"limit": "1970-01-02T01:00:00+01:00", "enforce": "now"}
    at = loop_of(plan_of(definition(termination_condition={"type": "time_bound", "value": point})))
    assert (at.limits.ends_at, at.on_deadline) == (86_400_000, "stop")


def test_a_definition_in_a_few_words() -> None:
    """A list shows roles, end and parameters, also of what has the wrong form."""
    about = described(
        definition(parameters=[{"name": "n", "description": "N", "default": 3}, "nonsense"])
    )
    assert [one["role"] for one in about["roles"]] == ["coder", "reviewer"]  # type: ignore[union-attr, index, call-overload]
    assert about["termination"] == {"type": "evaluation_bound", "value": {"criteria": "It works"}}
    assert described([1, 2]) == {
        "name": "",
        "description": "",
        "roles": [],
        "termination": {"type": "iteration_bound", "value": 1},
        "parameters": [],
    }
    assert described({"termination_condition": {"value": [1, "a"]}})["termination"] == {
        "type": "",
        "value": [1, "a"],
    }


def test_places_of_parameters() -> None:
    """What is filled in is not looked at again."""
    assert list(names_in("{{a}} {{ b }} {{A}} {{1}} {a}")) == ["a", "b", "A"]
    assert only_name(" {{a}} ") == "a"
    assert only_name("{{a}}!") is None
    assert filled("{{a}}{{b}}{{c}}", {"a": "{{b}}", "b": 2}) == "{{b}}2{{c}}"
    assert template("", {}) == ()
    assert template("{{a}}", {"a": 1}) == (Ref(of="input", name="a"),)


def test_names_that_can_be_ids() -> None:
    """Stages are called as they are written, as far as an id can be."""
    assert stage_ids(["plan", "plan", "Polish It!", "9-lives", ""]) == [
        "plan",
        "plan-2",
        "polish-it",
        "s9-lives",
        "s",
    ]
    assert unique("a" * 200, ()) == "a" * 56


@pytest.mark.parametrize(
    ("value", "sure"),
    [
        pytest.param({"termination_condition": {}}, 100, id="its own word"),
        pytest.param({"roles": []}, 60, id="roles"),
        pytest.param({"roles": {}}, 0, id="other roles"),
        pytest.param([], 0, id="no mapping"),
    ],
)
def test_how_sure_it_is(value: object, sure: int) -> None:
    """Its own words make it sure."""
    assert coqui.recognise(value) == sure


@pytest.mark.item("coqui-72")
def test_the_schema_offers_every_field_that_loads() -> None:
    """Editors accept what the loader accepts, and only a name and roles are required."""
    schema: Any = coqui.json_schema()
    assert schema["required"] == ["name", "roles"]
    offered = schema["definitions"]["StageSpec"]["properties"]
    assert {"order", "requires_artifact_from", "memory_required", "prompt"} <= offered.keys()


@pytest.mark.parametrize(
    ("threshold", "codes"),
    [
        pytest.param(90, [], id="a number"),
        pytest.param("90.5", [], id="in quotes"),
        pytest.param("{{least}}", [], id="a parameter that is one"),
        pytest.param("{{other}}", ["unknown-parameter"], id="an unknown one"),
        pytest.param("much", ["wrong-type"], id="a word"),
        pytest.param(True, ["wrong-type"], id="a yes"),
    ],
)
def test_a_condition_with_a_tool_loads_with_a_warning(threshold: object, codes: list[str]) -> None:
    """The loop makes all its iterations, as with a tool that never answers with the number."""
    value = {"tool": "cover", "operator": ">=", "threshold": threshold, "max_iterations": 3}
    plan, problems = lowered(
        definition(
            termination_condition={"type": "tool_bound", "value": value},
            parameters=[{"name": "least", "description": "The least", "default": "90"}],
        )
    )
    assert [one.code for one in problems if one.severity == "error"] == codes
    assert [one.code for one in problems if one.severity == "warning"] == ["ignored-field"]
    if codes:
        assert plan is None
    else:
        assert plan is not None
        assert (loop_of(plan).max, loop_of(plan).at_cap) == (3, "exhaust")


@pytest.mark.item("coqui-72")
@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        pytest.param({"description": 1}, ["wrong-type"], id="a description that is not text"),
        pytest.param({"description": None}, [], id="null is as if it were not there"),
        pytest.param({"owner": "me", "colour": 1}, ["unknown-field"] * 2, id="other systems"),
        pytest.param({"$schema": "x", "_comment": "y", "//": "z"}, [], id="comments"),
        pytest.param({"on_question": "default"}, ["ignored-field"], id="questions-with-defaults"),
        pytest.param({"on_question": "block"}, [], id="questions-that-block"),
        pytest.param({"version": 3, "builtin": False}, [], id="keys-of-the-api"),
        pytest.param(
            {"roles": [{"role": "coder", "prompt": "Do.", "temperature": 0}]},
            ["unknown-field"],
            id="a field of a stage",
        ),
        pytest.param(
            {"roles": [{"role": "coder", "prompt": "Do.", "memory_required": True}]},
            ["ignored-field"],
            id="memories",
        ),
        pytest.param(
            {"parameters": [{"name": "a", "type": "string"}]},
            ["unknown-field"],
            id="a field of a parameter, which needs no description",
        ),
        pytest.param(
            {"termination_condition": {**REVIEW, "note": "x"}}, ["unknown-field"], id="of an end"
        ),
        pytest.param(
            {
                "termination_condition": {
                    "type": "evaluation_bound",
                    "value": {"criteria": "It works", "strict": True},
                }
            },
            ["unknown-field"],
            id="of the value of an end",
        ),
    ],
)
def test_fields_without_a_meaning_here_are_warnings(
    changes: dict[str, Any], codes: list[str]
) -> None:
    """A file with fields of another system loads; each of them is named."""
    plan, problems = lowered(definition(**changes))
    assert [one.code for one in problems] == codes
    assert (plan is None) == ("wrong-type" in codes)


@pytest.mark.item("coqui-73")
def test_a_definition_without_an_end_makes_one_iteration() -> None:
    """It loads with a warning that says so, also without a description."""
    value = {"name": "small", "roles": [{"role": "coder", "prompt": "Do."}]}
    for written in (value, value | {"termination_condition": None}):
        plan, (problem,) = lowered(written)
        assert plan is not None
        assert (problem.code, problem.severity) == ("no-termination", "warning")
        assert "1 iteration" in problem.message
        loop = loop_of(plan)
        assert (loop.max, loop.at_cap, loop.until) == (1, "complete", Cap())


@pytest.mark.item("coqui-73")
@pytest.mark.parametrize(
    ("condition", "most"),
    [
        pytest.param({"type": "iteration_bound", "max_iterations": 5}, 5, id="of iterations"),
        pytest.param(
            {"type": "evaluation_bound", "criteria": "It works", "max_review_rounds": 3},
            3,
            id="of a review",
        ),
        pytest.param({"type": "goal_bound", "max_iterations": 4}, 4, id="of a goal"),
        pytest.param("manual", None, id="a word alone"),
    ],
)
def test_an_end_may_have_its_value_beside_its_type(condition: object, most: int | None) -> None:
    """`"max_iterations": 5` beside the type, as the table of conditions writes it."""
    plan, problems = lowered(definition(termination_condition=condition))
    assert problems == []
    assert plan is not None
    assert loop_of(plan).max == most


@pytest.mark.item("coqui-74")
def test_evidence_of_earlier_stages_is_required() -> None:
    """An output or an artifact that a later stage needs is required of the stage that makes it."""
    roles = [
        {"name": "a", "role": "explorer", "prompt": "Look."},
        {"name": "b", "role": "coder", "prompt": "Write.", "requires_artifact_from": 0},
        {"name": "c", "role": "reviewer", "prompt": "Judge.", "requires_explicit_evidence": True},
    ]
    plan, problems = lowered(definition(roles=roles))
    assert problems == []
    assert plan is not None
    body = loop_of(plan).body
    assert isinstance(body, Steps)
    found = [(one.id, one.needs_output, one.needs_artifact) for one in body.steps]
    assert found == [("a", True, False), ("b", False, True), ("c", False, False)]
    late = [roles[0] | {"requires_artifact_from": 2}, *roles[1:]]
    assert [one.code for one in lowered(definition(roles=late))[1]] == ["ignored-field"]


def test_how_long_a_stage_may_take() -> None:
    """An hour, and silent as long as programs may be, unless it says otherwise."""
    roles = [
        {"role": "coder", "prompt": "Do it."},
        {"role": "reviewer", "prompt": "x", "max_seconds": "{{s}}", "max_silence": 30},
    ]
    parameters = [{"name": "s", "description": "Seconds", "default": "60"}]
    agents = plan_of(definition(roles=roles, parameters=parameters)).agents
    assert [(one.wall_ms, one.idle_ms) for one in agents.values()] == [
        (3_600_000, None),
        (60_000, 30_000),
    ]


def test_a_time_that_nobody_has_given_yet() -> None:
    """A place for a parameter that is required is looked at when the loop is started."""
    end = {"type": "time_bound", "value": "{{until}}"}
    parameters = [{"name": "until", "description": "When"}]
    value = definition(termination_condition=end, parameters=parameters)
    assert lowered(value)[0] is not None
    assert loop_of(plan_of(value, until="60")).limits.wall_ms == 60_000
