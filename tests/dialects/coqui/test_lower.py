"""Loop definitions of roles: what becomes of stages, parameters and what ends the loop."""

import json
from typing import Any

import pytest

from loopwright.dialects import coqui
from loopwright.dialects.coqui.naming import stage_ids, unique
from loopwright.dialects.coqui.outline import described
from loopwright.dialects.coqui.parameters import filled, names_in, only_name, template
from loopwright.model.actions import CallAgent, Repeat, Steps
from loopwright.model.checks import Approval, Cap, Goal
from loopwright.model.memory import StageOutputs
from loopwright.model.plan import Plan
from loopwright.model.template import Lit, Ref
from loopwright.syntax import Diagnostic, read

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
def test_the_place_in_the_list_is_the_order() -> None:
    """Stages follow each other as they are listed, whatever `order` says, and that is said."""
    roles = [
        {"role": "reviewer", "prompt": "Look.", "order": 7},
        {"role": "coder", "prompt": "Do.", "order": 0},
    ]
    plan, problems = lowered(definition(roles=roles))
    assert plan is not None
    assert stages_of(plan) == [("reviewer", "reviewer"), ("coder", "coder")]
    assert [one.code for one in problems] == ["ignored-field", "ignored-field"]
    body = loop_of(plan).body
    assert isinstance(body, Steps)
    assert [step.needs for step in body.steps] == [(), ("reviewer",)]


@pytest.mark.item("coqui-28")
@pytest.mark.parametrize(
    ("cap", "turns"),
    [
        pytest.param(None, 48, id="default"),
        pytest.param(15, 15, id="as written"),
        pytest.param("15", 15, id="in quotes"),
        pytest.param(100, 100, id="the most"),
        pytest.param(101, 100, id="more than may be"),
    ],
)
def test_steps_of_a_stage_are_capped(cap: object, turns: int) -> None:
    """A stage makes as many steps as it says, 48 by default and never more than 100."""
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
        pytest.param({"type": "iteration_bound", "value": True}, id="yes is no number"),
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
        "termination": {"type": "", "value": None},
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


def test_the_schema_hides_what_is_refused() -> None:
    """Words that are known and refused are not offered by editors."""
    schema: Any = coqui.json_schema()
    assert "memory_required" not in schema["definitions"]["StageSpec"]["properties"]
    assert "prompt" in schema["definitions"]["StageSpec"]["properties"]


@pytest.mark.parametrize(
    ("threshold", "codes"),
    [
        pytest.param(90, ["not-available"], id="a number"),
        pytest.param("90.5", ["not-available"], id="in quotes"),
        pytest.param("{{least}}", ["not-available"], id="a parameter that is one"),
        pytest.param("{{other}}", ["unknown-parameter", "not-available"], id="an unknown one"),
        pytest.param("much", ["not-available", "wrong-type"], id="a word"),
        pytest.param(True, ["not-available", "wrong-type"], id="a yes"),
    ],
)
def test_a_tool_that_measures_is_refused_and_not_ignored(
    threshold: object, codes: list[str]
) -> None:
    """What is wrong with it is told all the same."""
    value = {"tool": "cover", "operator": ">=", "threshold": threshold, "max_iterations": 3}
    plan, problems = lowered(
        definition(
            termination_condition={"type": "tool_bound", "value": value},
            parameters=[{"name": "least", "description": "The least", "default": "90"}],
        )
    )
    assert plan is None
    assert sorted(one.code for one in problems if one.severity == "error") == sorted(codes)


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
