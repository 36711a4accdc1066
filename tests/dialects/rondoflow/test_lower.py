"""Assistant documents: what is taken, what is refused, and the loop that comes out."""

import json
from typing import Any

import jsonschema
import pytest

from loopwright.dialects import rondoflow
from loopwright.dialects.rondoflow.surface import Assistant
from loopwright.errors import DefinitionError
from loopwright.model.actions import CallAgent, Repeat
from loopwright.model.checks import Cap, Check, CommandCheck, PersonCheck, Regex
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import RETRYABLE, Limits, ProgressLog, Retry
from loopwright.operations.dialects import check_startable, parse_definition
from loopwright.syntax.document import Diagnostic
from tests.dialects.reading import lowered, only


def assistant(**settings: Any) -> tuple[Plan | None, list[Diagnostic]]:
    """What becomes of an assistant whose looping is on."""
    document = {"name": "Fixer", "loopEnabled": True} | settings
    return lowered(json.dumps(document), dialect="rondoflow", file="a.json")


def loop_of(**settings: Any) -> Repeat:
    plan, problems = assistant(**settings)
    assert [one for one in problems if one.severity == "error"] == []
    assert plan is not None
    action = plan.steps[0].action
    assert isinstance(action, Repeat)
    return action


@pytest.mark.item("rondoflow-1")
@pytest.mark.parametrize("value", [0, 101, 2.5, "10", None, True, -1])
def test_iterations_out_of_range_are_refused(value: object) -> None:
    """The cap is a whole number from 1 to 100, and nothing is bent into one."""
    plan, problems = assistant(maxIterations=value)
    assert plan is None
    assert "must be a whole number from 1 to 100" in only(problems).message


@pytest.mark.item("rondoflow-1")
@pytest.mark.parametrize("value", [1, 100])
def test_iterations_in_range_are_taken(value: int) -> None:
    """Both ends of the range are inside it."""
    assert loop_of(maxIterations=value).max == value


@pytest.mark.item("rondoflow-2")
@pytest.mark.parametrize(
    ("criteria", "code"),
    [
        pytest.param({"type": "sometimes", "value": ""}, "unknown-value", id="type"),
        pytest.param({"type": "regex"}, "missing-field", id="no-value"),
        pytest.param({"value": "x"}, "missing-field", id="no-type"),
        pytest.param({"type": "regex", "value": 3}, "wrong-type", id="number"),
        pytest.param({"type": "test_pass", "value": None}, "missing-field", id="null-value"),
        pytest.param("regex", "wrong-type", id="text"),
        pytest.param({"type": "manual", "value": "x" * 201}, "out-of-range", id="long"),
        pytest.param({"type": "max_iterations", "value": "x" * 201}, "out-of-range", id="long-cap"),
    ],
)
def test_criteria_of_a_wrong_shape_are_refused(criteria: object, code: str) -> None:
    """A criterion is never silently taken for another."""
    plan, problems = assistant(loopCriteria=criteria)
    assert plan is None
    assert only(problems).code == code


@pytest.mark.item("rondoflow-2")
@pytest.mark.parametrize(
    ("criteria", "until"),
    [
        ('{"type": "regex", "value": "DONE"}', Regex(pattern="DONE", ignore_case=True)),
        ('{"type": "max_iterations", "value": ""}', Cap()),
        ("null", Cap()),
    ],
)
def test_criteria_as_a_json_text_are_decoded(criteria: str, until: object) -> None:
    """A row of the database has the criterion as a text, alone and in a list of rows."""
    assert loop_of(loopCriteria=criteria).until == until
    row = {"id": "a", "name": "Fixer", "loopEnabled": True, "loopCriteria": criteria}
    for document in ([row], {"success": True, "data": row}, {"agents": [row]}):
        plan, problems = lowered(json.dumps(document), dialect="rondoflow", file="a.json")
        assert plan is not None, problems
        loop = plan.steps[0].action
        assert isinstance(loop, Repeat)
        assert loop.until == until


@pytest.mark.item("rondoflow-2")
@pytest.mark.parametrize(
    ("criteria", "code", "says"),
    [
        ('{"type": "regexp", "value": "DONE"}', "unknown-value", "regexp"),
        ('{"type": "regex"}', "missing-field", "value is required for regex"),
        ('{"type": "regex"', "wrong-type", "loopCriteria"),
        ('["regex", "DONE"]', "wrong-type", "loopCriteria"),
    ],
)
def test_wrong_criteria_in_a_json_text_are_refused_at_the_text(
    criteria: str, code: str, says: str
) -> None:
    """What is wrong inside the text is named like anywhere else, at the place of the text."""
    plan, problems = assistant(loopCriteria=criteria)
    assert plan is None
    problem = only(problems)
    assert (problem.code, says in problem.message) == (code, True), problem
    assert problem.column > 40


@pytest.mark.item("rondoflow-2", "rondoflow-63")
@pytest.mark.parametrize(
    "criteria",
    [
        None,
        {"type": "max_iterations"},
        {"type": "max_iterations", "value": None},
        {"type": "max_iterations", "value": "ignored"},
    ],
)
def test_no_criterion_is_the_cap_alone(criteria: object) -> None:
    """Null is accepted and leaves the number of iterations."""
    assert loop_of(loopCriteria=criteria).until == Cap()


@pytest.mark.item("rondoflow-3")
@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("", "bad-command"),
        ("  ", "bad-command"),
        ("n\u200bpm", "hidden-character"),
        ("x" * 201, "out-of-range"),
    ],
)
def test_commands_without_a_program_are_refused(value: str, code: str) -> None:
    """What names no program is refused where the value stands."""
    plan, problems = assistant(loopCriteria={"type": "test_pass", "value": value})
    assert plan is None
    assert only(problems).code == code
    assert only(problems).column == 87


@pytest.mark.item("rondoflow-3", "rondoflow-64")
@pytest.mark.parametrize(
    ("value", "warned"),
    [
        ("npm run test:unit", False),
        ("pytest a.py::test_b", False),
        ("npx jest --ci=true", False),
        ("make -j4 check @tag,%x ~/y #z a+b", False),
        ("ls *.py", False),
        ("npm test && echo ok", True),
        ("echo a | grep b", True),
        ("a ; b", True),
        ("pytest -k 'a b'", True),
        ('a "b"', True),
        ("echo $HOME", True),
        ("a > b 2>&1", True),
        ("a\nb\tc", False),
    ],
)
def test_any_argument_is_taken_as_it_is_written(value: str, warned: bool) -> None:
    """The text is split on white space and nothing else happens to it; what only a shell would
    act on is warned of.
    """
    plan, problems = assistant(loopCriteria={"type": "test_pass", "value": value})
    assert plan is not None
    assert [one.code for one in problems] == ["shell-syntax"] * warned
    until = loop_of(loopCriteria={"type": "test_pass", "value": value}).until
    assert until == CommandCheck(argv=tuple(value.split()), timeout_ms=60_000)


@pytest.mark.item("rondoflow-3")
def test_a_plain_command_is_taken() -> None:
    """Words are split at blanks, with a minute to end."""
    until = loop_of(loopCriteria={"type": "test_pass", "value": " npm  test "}).until
    assert until == CommandCheck(argv=("npm", "test"), timeout_ms=60_000)


@pytest.mark.item("rondoflow-4")
def test_a_pattern_of_501_characters_is_refused() -> None:
    """500 characters are taken, one more is not."""
    assert loop_of(loopCriteria={"type": "regex", "value": "x" * 500})
    plan, problems = assistant(loopCriteria={"type": "regex", "value": "x" * 501})
    assert plan is None
    assert only(problems).code == "out-of-range"
    assert "at most 500 characters, not of 501" in only(problems).message


@pytest.mark.item("rondoflow-4")
def test_an_invalid_pattern_is_taken_with_a_warning() -> None:
    """It is kept, it never matches, and whoever wrote it is told."""
    plan, problems = assistant(loopCriteria={"type": "regex", "value": "(["})
    assert plan is not None
    assert (only(problems).severity, only(problems).code) == ("warning", "bad-regex")
    loop = loop_of(loopCriteria={"type": "regex", "value": "(["})
    assert loop.until == Regex(pattern="([", ignore_case=True, invalid=True)


@pytest.mark.item("rondoflow-5")
def test_a_fresh_assistant_does_not_loop() -> None:
    """Looping is off, there is no criterion, and the cap is 10."""
    fresh = Assistant.model_validate({"name": "New"})
    assert (fresh.loop_enabled, fresh.loop_criteria, fresh.max_iterations) == (False, None, 10)


@pytest.mark.item("rondoflow-7")
@pytest.mark.parametrize("settings", ['{"name": "x"}', '{"name": "x", "loopEnabled": false}'])
def test_looping_must_be_on(settings: str) -> None:
    """An assistant with looping off has no loop to start."""
    plan, problems = lowered(settings, dialect="rondoflow", file="a.json")
    assert plan is not None
    assert (only(problems).code, only(problems).severity) == ("loop-disabled", "warning")
    with pytest.raises(DefinitionError, match="looping is off"):
        check_startable(parse_definition(settings.encode(), file="a.json", force="rondoflow"))


@pytest.mark.parametrize(
    ("criteria", "until"),
    [
        pytest.param(
            {"type": "regex", "value": "DONE|COMPLETE"},
            Regex(pattern="DONE|COMPLETE", ignore_case=True),
            id="regex",
        ),
        pytest.param(
            {"type": "manual", "value": ""},
            PersonCheck(rejected="Manual approval was rejected by user"),
            id="manual",
        ),
        pytest.param(
            {"type": "manual"},
            PersonCheck(rejected="Manual approval was rejected by user"),
            id="manual-without-a-value",
        ),
        pytest.param(
            {"type": "manual", "value": None},
            PersonCheck(rejected="Manual approval was rejected by user"),
            id="manual-with-null",
        ),
        pytest.param(
            {"type": "regex", "value": "(?<=tests: )ok"},
            Regex(pattern="(?<=tests: )ok", ignore_case=True, engine="javascript"),
            id="look-behind",
        ),
        pytest.param(
            {"type": "regex", "value": ""},
            Regex(pattern="", ignore_case=True, engine="javascript"),
            id="any-output",
        ),
    ],
)
def test_criteria_become_checks(criteria: object, until: Check) -> None:
    """Each criterion is one check of the model."""
    assert loop_of(loopCriteria=criteria).until == until


def test_the_loop_around_an_assistant() -> None:
    """A log of 300 characters, complete at the cap with the last learning, fails when broken."""
    plan, problems = assistant(
        persona="You fix.",
        model="opus",
        tools=["Bash"],
        budget=2,
        loopBudget={"usd": 5, "tokens": 10, "minutes": 2},
        description="d",
        id="1",
    )
    assert problems == []
    assert plan is not None
    (step,) = plan.steps
    assert step.action == Repeat(
        body=CallAgent(agent="assistant"),
        max=10,
        memory=ProgressLog(chars=300),
        at_cap="complete",
        output="learning",
        broken_after=1,
    )
    assert step.retry == Retry(attempts=3, on=RETRYABLE)
    assert plan.limits == Limits(usd=5, tokens=10, wall_ms=120_000)
    assert plan.agents["assistant"] == Agent(
        system="You fix.",
        model="opus",
        tools=("Bash",),
        permission="bypassPermissions",
        max_usd=2,
        idle_ms=300_000,
    )
    assert (plan.name, plan.description, plan.dialect) == ("Fixer", "d", "rondoflow")


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"persona": "a", "systemPrompt": "b"}, "mutually-exclusive"),
        ({"tools": [], "allowedTools": []}, "mutually-exclusive"),
        ({"allowedTools": ["a\u202e"]}, "hidden-character"),
        ({"model": "a\u202e"}, "hidden-character"),
        ({"name": "a\u202e"}, "hidden-character"),
        ({"budget": 0}, "out-of-range"),
        ({"budget": 1001}, "out-of-range"),
        ({"loopBudget": {"minutes": 0}}, "out-of-range"),
        ({"maxIteration": 3}, "unknown-field"),
        ({"tools": "Bash"}, "wrong-type"),
        ({"loopEnabled": "true"}, "wrong-type"),
        ({"loopcriteria": {"type": "manual"}}, "unknown-field"),
    ],
)
def test_other_mistakes(settings: dict[str, object], code: str) -> None:
    """Every mistake has its code."""
    plan, problems = assistant(**settings)
    assert plan is None
    assert only(problems).code == code


def test_the_schema_is_draft_7() -> None:
    """Editors get a valid schema whose example fits and loops."""
    schema = rondoflow.json_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    for example in schema["examples"]:
        jsonschema.Draft7Validator(schema).validate(example)
        assert lowered(json.dumps(example), dialect="rondoflow", file="a.json")[1] == []


@pytest.mark.parametrize(
    ("value", "score"),
    [
        ({"loopEnabled": False}, 100),
        ([{"name": "x"}, {"loopEnabled": True}], 100),
        ({"success": True, "data": [{"maxIterations": 3}]}, 100),
        ({"success": True, "data": {"maxIterations": 3}}, 100),
        ({"format": "rondoflow-canvas", "agents": []}, 100),
        ({"name": "x", "persona": "p", "allowedTools": []}, 60),
        ({"name": "x"}, 0),
        (["loopEnabled"], 0),
        ({"name": "x", "agents": [{"name": "a", "prompt": "b"}]}, 0),
    ],
)
def test_recognise(value: object, score: int) -> None:
    """Loop settings are the sign of an assistant."""
    assert rondoflow.recognise(value) == score


def policies(*budgets: object) -> list[dict[str, Any]]:
    return [{"name": "p", "level": "agent", "rules": {"maxBudgetUsd": one}} for one in budgets]


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        pytest.param({"policies": policies(3)}, 3, id="of-a-policy"),
        pytest.param({"policies": policies(3, 0.5)}, 0.5, id="the-smallest"),
        pytest.param({"policies": policies(3), "budget": 2}, 2, id="of-the-assistant"),
        pytest.param({"policies": policies(1), "budget": 2}, 1, id="a-policy-tightens"),
        pytest.param({"policies": policies(None)}, None, id="null"),
        pytest.param({"policies": []}, None, id="no-policy"),
    ],
)
def test_budget_of_a_policy_limits_each_iteration(
    settings: dict[str, Any], most: float | None
) -> None:
    """The smallest of all limits counts, and no warning says that it has no effect."""
    plan, problems = assistant(**settings)
    assert plan is not None
    assert plan.agents["assistant"].max_usd == most
    assert problems == []


@pytest.mark.parametrize("budget", [0, -1, "3", True])
def test_budget_of_a_policy_that_is_no_amount_is_refused(budget: object) -> None:
    """A budget that cannot be read must not be left out silently."""
    plan, problems = assistant(policies=policies(budget))
    assert plan is None
    assert only(problems).code == "out-of-range"


def test_other_rules_of_a_policy_are_a_warning() -> None:
    """The budget counts, and the warning is about the other rules."""
    rules = {"maxBudgetUsd": 3, "blockedCommands": ["rm"]}
    plan, problems = assistant(policies=[{"name": "p", "rules": rules}])
    assert plan is not None
    assert plan.agents["assistant"].max_usd == 3
    assert only(problems).code == "field-not-applied"
