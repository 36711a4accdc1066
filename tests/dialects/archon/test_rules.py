"""What is refused or told, with the words that help."""

import pytest

from loopwright.dialects import archon
from loopwright.model.actions import CallAgent
from loopwright.model.record import literal
from loopwright.syntax.document import Document
from tests.dialects.archon.reading import flow, lowered, places

LOOP = "prompt: Go, until: DONE, max_iterations: 3"

REFUSED = [
    pytest.param(
        "{id: a, loop: {until: DONE, max_iterations: 3}}",
        "4:19 missing-field",
        "prompt is required",
        id="no-prompt",
        marks=pytest.mark.item("archon-1"),
    ),
    pytest.param(
        "{id: a, loop: {prompt: Go, max_iterations: 3}}",
        "4:19 missing-field",
        "until is required",
        id="no-until",
        marks=pytest.mark.item("archon-1"),
    ),
    pytest.param(
        "{id: a, loop: {prompt: Go, until: DONE}}",
        "4:19 missing-field",
        "max_iterations is required",
        id="no-cap",
        marks=pytest.mark.item("archon-1"),
    ),
    *(
        pytest.param(
            f"{{id: a, loop: {{prompt: Go, until: DONE, max_iterations: {value}}}}}",
            f"4:61 {code}",
            "from 1 to 1000",
            id=f"cap-{value}",
            marks=pytest.mark.item("archon-2"),
        )
        for value, code in (
            ("0", "out-of-range"),
            ("-1", "out-of-range"),
            ("2.5", "wrong-type"),
            ("'3'", "wrong-type"),
        )
    ),
    pytest.param(
        f"{{id: a, retry: {{max_attempts: 2}}, loop: {{{LOOP}}}}}",
        "4:13 unsupported-here",
        "raise max_iterations",
        id="retry",
        marks=pytest.mark.item("archon-3"),
    ),
    pytest.param(
        f"{{id: a, loop: {{{LOOP}, interactive: true}}}}",
        "4:19 missing-field",
        "gate_message is required",
        id="no-gate-message",
        marks=pytest.mark.item("archon-4"),
    ),
    pytest.param(
        f"{{id: a, prompt: Go, loop: {{{LOOP}}}}}",
        "4:25 mutually-exclusive",
        "make two nodes",
        id="loop-and-prompt",
        marks=pytest.mark.item("archon-5"),
    ),
    pytest.param(
        "{id: a, loop: {prompt: Go $ghost.output, until: X, max_iterations: 1}}",
        "4:31 unknown-reference",
        "no node here is called ghost",
        id="ghost",
        marks=pytest.mark.item("archon-6", "C2"),
    ),
    pytest.param(
        "{id: aa, include: reviw}",
        "4:23 unknown-workflow",
        "did you mean review?",
        id="misspelt-include",
        marks=pytest.mark.item("archon-68"),
    ),
    pytest.param(
        "{id: a, prompt: Go, depends_on: [a]}",
        "4:38 cycle",
        "a → a",
        id="needs-itself",
        marks=pytest.mark.item("A18"),
    ),
    pytest.param(
        "{id: a, prompt: Go, depends_on: [b]}",
        "4:38 unknown-step",
        "there are no others",
        id="needs-unknown",
        marks=pytest.mark.item("A18"),
    ),
]


@pytest.mark.parametrize(("node", "place", "words"), REFUSED)
def test_refusals(node: str, place: str, words: str) -> None:
    """Each mistake is refused in its place, and the words say what to do."""
    plan, problems = lowered(flow(node))
    errors = [one for one in problems if one.severity == "error"]
    assert plan is None
    assert places(errors) == [place]
    assert words in errors[0].render()


@pytest.mark.item("archon-3")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("context", "fresh"),
        ("mcp", "x.json"),
        ("skills", "[x]"),
        ("output_format", "{}"),
        ("agents", "{}"),
        ("effort", "low"),
        ("thinking", "adaptive"),
        ("systemPrompt", "x"),
        ("fallbackModel", "x"),
        ("betas", "[x]"),
    ],
)
def test_keys_without_effect_on_a_loop(key: str, value: str) -> None:
    """A key that restricts nothing is ignored on a loop, with a warning on the key."""
    plain, _ = lowered(flow(f"{{id: a, loop: {{{LOOP}}}}}"))
    plan, problems = lowered(flow(f"{{id: a, loop: {{{LOOP}}}, {key}: {value}}}"))
    assert plan == plain
    assert places(problems) == ["4:65 ignored-here"]
    assert problems[0].severity == "warning"


@pytest.mark.item("C2")
def test_known_names_are_listed() -> None:
    """A variable that leads nowhere comes with the nearest name, or with all there are."""
    _, problems = lowered(
        flow(
            "{id: setup, bash: ls}",
            "{id: a, prompt: $setpu.output $xyz.output, depends_on: [setup]}",
            "{id: b, bash: echo $nobody.output}",
            "{id: c, when: \"$setpu.output == 'x'\", cancel: $INPUTS.none}",
        )
    )
    assert places(problems) == [
        "5:21 unknown-reference",
        "5:35 unknown-reference",
        "6:24 unknown-reference",
        "7:20 unknown-reference",
        "7:51 undeclared-input",
    ]
    hints = [one.hint for one in problems]
    assert hints[:2] == ["did you mean setup?", "known: setup, b, c"]
    assert hints[2] == "known: setup, a, c; a variable of the shell is written ${nobody}"
    assert hints[4] == "inputs: {none: {required: true}}"


def test_long_lists_of_names_are_cut() -> None:
    """Nobody reads a hundred names."""
    nodes = [f"{{id: n{number}, bash: ls}}" for number in range(30)]
    _, problems = lowered(flow(*nodes, "{id: a, prompt: $qqqqq.output}"))
    assert (problems[0].hint or "").endswith("n10, n11, …")


def test_names_are_one_line() -> None:
    """A name with a line break is refused."""
    _, problems = lowered('name: "a\\nb"\ndescription: y\nnodes: [{id: a, prompt: Go}]\n')
    assert places(problems) == ["1:7 bad-value"]


def test_what_two_ways_lead_to_is_known_once() -> None:
    """A node before the nodes before it may be read."""
    plan, problems = lowered(
        flow(
            "{id: a, bash: ls}",
            "{id: b, bash: ls, depends_on: [a]}",
            "{id: c, bash: ls, depends_on: [a]}",
            "{id: d, bash: echo $a.output, depends_on: [b, c]}",
        )
    )
    assert plan is not None
    assert problems == []


@pytest.mark.item("C5")
@pytest.mark.parametrize(
    ("value", "place"),
    [
        ('"a\\0b"', "3:24 bad-character"),
        ('"\\ud800"', "3:24 bad-character"),
        ("9223372036854775808", "3:24 out-of-range"),
        (".nan", "3:24 not-finite"),
    ],
    ids=["nul", "surrogate", "too-large", "nan"],
)
def test_values_that_cannot_be_stored(value: str, place: str) -> None:
    """A default that no store could keep is refused before anything else is looked at."""
    _, problems = lowered(flow("{id: n, prompt: Go}", head=f"inputs: {{a: {{default: {value}}}}}"))
    assert [one.code for one in problems] == [place.split()[1]]


@pytest.mark.item("C10")
@pytest.mark.parametrize(
    ("inputs", "trail"),
    [
        ("{a: {default: $INPUTS.a}}", "a → a"),
        ("{a: {default: $INPUTS.b}, b: {default: $INPUTS.a}}", "a → b → a"),
    ],
    ids=["itself", "each-other"],
)
def test_inputs_that_name_one_another(inputs: str, trail: str) -> None:
    """A circle of inputs is refused with the way around it."""
    _, problems = lowered(flow("{id: n, prompt: Go}", head=f"inputs: {inputs}"))
    assert {one.code for one in problems} == {"variable-cycle"}
    assert trail in problems[0].message


def test_defaults_are_taken_as_they_are() -> None:
    """A default that would have to be filled is refused; one with plain dollars is not."""
    _, problems = lowered(flow("{id: n, prompt: Go}", head="inputs: {a: {default: $USER_MESSAGE}}"))
    assert [one.code for one in problems] == ["unsupported-here"]
    plan, problems = lowered(flow("{id: n, prompt: Go}", head="inputs: {a: {default: 'US$ 5'}}"))
    assert plan is not None
    assert problems == []


RUBBISH: list[object] = [
    None,
    7,
    "x",
    [],
    {"nodes": None},
    {"nodes": {}},
    {"nodes": [None, [], 5]},
    {"nodes": [{"id": 5, "loop": 5, "depends_on": 5, "when": 5, "bash": []}]},
    {"nodes": [{"id": "a", "loop": [], "loop_group": {"nodes": {"id": 3}}}]},
    {"nodes": [{"id": "a", "approval": {"on_reject": []}, "output_format": [{"$ref": 3}]}]},
    {"nodes": [{"id": "a", "loop": {"until_field": 3, "command": 3}}], "inputs": [3]},
    {"nodes": [{"id": "a", "depends_on": [3, None], "prompt": "$a.output"}], "inputs": {"a": 3}},
    {"nodes": [{"id": "a", "script": 5, "runtime": 5, "deps": 5, "provider": 5, "model": 5}]},
    {"nodes": [{"id": "a", "loop_group": {"nodes": [{"id": "b", "loop_group": "x"}]}}]},
    {"nodes": [{"id": "a", "when": "$a.output == '1'", "loop": {"interactive": True}}]},
]


@pytest.mark.item("archon-67")
@pytest.mark.parametrize("value", RUBBISH, ids=[str(number) for number in range(len(RUBBISH))])
def test_rubbish_is_reported_not_raised(value: object) -> None:
    """Whatever stands in a file, it gives findings and never an error that would hide others."""
    document = Document.plain(value, file="flow.yaml")  # type: ignore[arg-type]
    assert isinstance(archon.requested_files(document), list)
    plan, problems = archon.lower(document)
    assert plan is None
    assert {one.severity for one in problems} >= {"error"}


RECOGNISED = [
    ({"nodes": []}, 100),
    ({"nodes": {}}, 0),
    ({"steps": [{"command": "plan"}, {"parallel": []}]}, 40),
    ({"steps": [{"id": "a", "command": "plan"}]}, 0),
    ({"steps": ["x"]}, 0),
    ({"steps": []}, 0),
    ({"name": "x"}, 0),
    ([], 0),
]


@pytest.mark.parametrize(("value", "sure"), RECOGNISED, ids=[str(one) for one, _ in RECOGNISED])
def test_recognising(value: object, sure: int) -> None:
    """Nodes make a workflow; the old form is known so that it can be told how to move on."""
    assert archon.recognise(value) == sure


def test_the_old_form_receives_the_way() -> None:
    """A workflow with steps is refused with one finding that shows the new form."""
    _, problems = lowered("name: x\ndescription: y\nsteps:\n  - command: plan\n")
    assert places(problems) == ["4:3 old-workflow"]
    assert "write nodes:" in (problems[0].hint or "")


def test_the_schema_hides_what_is_refused() -> None:
    """Editors do not offer words that are known only to be refused."""
    schema = archon.json_schema()
    assert "steps" not in schema["properties"]  # type: ignore[operator]
    assert "x-hidden" not in str(schema)


LOOP_KEYS = (
    ("allowed_tools", "[Read]"),
    ("denied_tools", "[Bash]"),
    ("hooks", "{PreToolUse: []}"),
    ("mcp", "servers.json"),
    ("skills", "[a]"),
    ("output_format", "{type: object}"),
    ("model", "opus"),
    ("provider", "codex"),
    ("context", "fresh"),
)


@pytest.mark.item("archon-3", "archon-73")
@pytest.mark.parametrize(("key", "value"), LOOP_KEYS)
def test_keys_without_effect_on_a_loop_cause_a_warning(key: str, value: str) -> None:
    """The workflow loads, the key is named, and the plan is the same as without it."""
    plan, problems = lowered(flow(f"{{id: a, {key}: {value}, loop: {{{LOOP}}}}}"))
    assert [(one.code, one.severity) for one in problems] == [("ignored-here", "warning")]
    assert f"{key} has no effect on a loop" in problems[0].message
    without, _ = lowered(flow(f"{{id: a, loop: {{{LOOP}}}}}"))
    assert plan == without


@pytest.mark.item("archon-73")
@pytest.mark.parametrize("key", ["allowed_tools", "denied_tools", "hooks", "model"])
@pytest.mark.parametrize("kind", ["bash: ls", "cancel: x"])
def test_keys_of_agents_cause_a_warning_where_no_agent_works(key: str, kind: str) -> None:
    """A key for agents on another kind of node is named and ignored."""
    value = {"hooks": "{}", "model": "opus"}.get(key, "[Read]")
    plan, problems = lowered(flow(f"{{id: a, {key}: {value}, {kind}}}"))
    assert plan is not None
    assert [(one.code, one.severity) for one in problems] == [("ignored-here", "warning")]


KNOWN_KEYS = [
    ("prompt: Go, env: {A: b}", "ignored-here", "env has no effect", "set the variables in the"),
    ("bash: ls, cwd: sub", "ignored-here", "cwd has no effect", "let the script change"),
    ("prompt: Go, maxTurns: 3", "ignored-here", "maxTurns has no effect", "maxBudgetUsd and"),
    ("prompt: Go, title: One", "ignored-here", "title has no effect", None),
    ("prompt: Go, modelTemperature: 1", "unknown-field", "modelTemperature is ignored", None),
    ("cancel: x, mutates_checkout: false", "ignored-here", "has no effect on cancel", None),
    ("bash: ls, webSearchMode: live", "ignored-here", "has no effect on bash nodes", "no agent"),
]


@pytest.mark.item("archon-71")
@pytest.mark.parametrize(
    ("node", "code", "says", "hint"), KNOWN_KEYS, ids=[one[0] for one in KNOWN_KEYS]
)
def test_keys_that_people_write_are_named_without_a_wrong_guess(
    node: str, code: str, says: str, hint: str | None
) -> None:
    """The workflow loads; the hint says what does the same here, and guesses no other key."""
    plan, (problem,) = lowered(flow(f"{{id: a, {node}}}"))
    assert plan is not None
    assert (problem.code, problem.severity) == (code, "warning")
    assert says in problem.message
    assert problem.hint is None if hint is None else hint in (problem.hint or "")


@pytest.mark.item("archon-71")
def test_options_of_codex_work_on_a_node() -> None:
    """They replace those of the workflow for the agent of this node."""
    keys = "modelReasoningEffort: high, webSearchMode: live, additionalDirectories: [../docs]"
    head = "modelReasoningEffort: low"
    plan, problems = lowered(flow(f"{{id: a, prompt: Go, {keys}}}", head=head))
    assert problems == []
    assert plan is not None
    (agent,) = plan.agents.values()
    assert agent.options == {
        "modelReasoningEffort": "high",
        "webSearchMode": "live",
        "additionalDirectories": ["../docs"],
    }


@pytest.mark.item("archon-71")
def test_unknown_keys_cause_a_warning_and_misspelt_restrictions_an_error() -> None:
    """A key that nobody knows is ignored, unless it looks like one that matters."""
    plan, problems = lowered(flow("{id: a, prompt: Go, colour: red}"))
    assert plan is not None
    assert [(one.code, one.severity) for one in problems] == [("unknown-field", "warning")]
    plan, problems = lowered(flow("{id: a, prompt: Go, alowed_tools: []}"))
    assert plan is None
    assert problems[0].hint == "did you mean allowed_tools?"


@pytest.mark.item("archon-72")
@pytest.mark.parametrize(
    ("head", "code"),
    [
        ("provider: pi", "unknown-agent"),
        ("provider: copilot", "unknown-agent"),
        ('model: "@fast"', "unknown-model"),
        ("provider: claude\nmodel: gpt-5", "model-mismatch"),
    ],
)
def test_agents_and_models_that_may_be_missing_cause_a_warning(head: str, code: str) -> None:
    """The workflow loads; a run names what is missing, or is given another agent."""
    plan, problems = lowered(flow("{id: a, prompt: Go}", head=head))
    assert plan is not None
    assert [(one.code, one.severity) for one in problems] == [(code, "warning")]


@pytest.mark.item("archon-72")
@pytest.mark.parametrize("tier", ["small", "medium", "large"])
def test_model_tiers_load(tier: str) -> None:
    """A tier is a model of any provider."""
    plan, problems = lowered(flow("{id: a, prompt: Go}", head=f"provider: claude\nmodel: {tier}"))
    assert problems == []
    assert plan is not None
    assert plan.agents["assistant"].model == tier


OWN_OUTPUT = [
    pytest.param("{id: a, prompt: Read $a.output}", "write $$a.output", id="prompt"),
    pytest.param(
        "{id: a, loop: {prompt: Read $a.output, until: DONE, max_iterations: 3}}",
        "$LOOP_PREV_OUTPUT is the output of the previous iteration",
        id="loop",
    ),
]


@pytest.mark.parametrize(("node", "hint"), OWN_OUTPUT)
def test_a_prompt_that_mentions_its_own_output_keeps_it_as_text(node: str, hint: str) -> None:
    """It is a warning, and the text is in the plan as it was written."""
    plan, problems = lowered(flow(node))
    assert [(one.code, one.severity) for one in problems] == [("example-reference", "warning")]
    assert hint in (problems[0].hint or "")
    assert plan is not None
    action = plan.steps[0].action
    call = action if isinstance(action, CallAgent) else action.body  # type: ignore[union-attr]
    assert call.prompt == literal("Read $a.output")  # type: ignore[union-attr]


def test_a_variable_of_a_longer_word_in_a_script_gets_the_form_with_braces() -> None:
    """The shell reads the longer word; the hint says how the variable is written before it."""
    _, problems = lowered(flow("{id: a, bash: 'echo $WORKFLOW_ID_ $OTHER_NAME'}"))
    found = {one.message.split(":")[0]: one.hint for one in problems}
    assert found == {
        "nothing sets WORKFLOW_ID_": "did you mean ${WORKFLOW_ID}_?",
        "nothing sets OTHER_NAME": "`loopwright run --env OTHER_NAME` passes it on",
    }


@pytest.mark.parametrize(
    ("script", "warned"),
    [
        ('source .env; echo "$API_URL"', False),
        ('[ -f .env ] && . ./.env || true; echo "$API_URL"', False),
        ('if [ -f .env ]; then source .env; fi; echo "$API_URL"', False),
        ('echo "no source .env here"; echo "$API_URL"', True),
        ('echo a . b; echo "$API_URL"', True),
        ('# source .env\n      echo "$API_URL"', True),
        ('echo "$API_URL"', True),
    ],
)
def test_a_script_that_takes_in_another_file_may_set_any_variable(
    script: str, *, warned: bool
) -> None:
    """A variable that such a file may set causes no warning."""
    _, problems = lowered(flow(f"id: a\n    bash: |\n      {script}"))
    assert [one.code for one in problems] == (["unset-variable"] if warned else [])


@pytest.mark.item("archon-71")
def test_a_budget_at_the_top_limits_the_run() -> None:
    """The money is a limit of the run; what is not counted here is named."""
    budget = "budget: {max_spend_usd: 2.5, max_work_units: 30, max_tokens: 9}"
    plan, problems = lowered(flow("{id: a, prompt: Go}", head=budget))
    assert plan is not None
    assert plan.limits.usd == 2.5
    assert {one.message.split()[0]: one.severity for one in problems} == {
        "max_work_units": "warning",
        "max_tokens": "warning",
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("interactive: yes", 'interactive must be true or false, not "yes": the key is ignored'),
        ("tags: release", 'tags must be a list, not "release": the key is ignored'),
        ("provider: ~", "provider must be text, not null: the key is ignored"),
        ("model: 5", "model must be text, not 5: the key is ignored"),
    ],
)
def test_options_at_the_top_when_of_another_type_are_ignored_with_a_warning(
    line: str, message: str
) -> None:
    """Archon drops such a value and loads the workflow."""
    plan, problems = lowered(flow("{id: a, bash: ls}", head=line))
    assert plan is not None, problems
    assert [(one.code, one.message, one.severity) for one in problems] == [
        ("ignored-here", message, "warning")
    ]


@pytest.mark.parametrize("line", ["worktree: true", "sandbox: none", "mutates_checkout: 1"])
def test_restrictions_at_the_top_when_of_another_type_are_refused(line: str) -> None:
    """Without them the workflow would do more than its author allows."""
    plan, problems = lowered(flow("{id: a, bash: ls}", head=line))
    assert plan is None
    assert [one.code for one in problems] == ["wrong-type"]


def test_a_timeout_when_below_a_second_causes_a_warning() -> None:
    """The number was most likely meant in seconds."""
    plan, problems = lowered(flow("{id: a, bash: ls, timeout: 30}"))
    assert plan is not None
    assert [(one.code, one.message, one.hint) for one in problems] == [
        ("short-limit", "timeout is in milliseconds: 30 is 0.03 s", "for 30 seconds write 30000")
    ]


def test_a_key_of_the_node_when_inside_of_its_loop_is_named_with_its_place() -> None:
    """The warning says where the key belongs."""
    _, problems = lowered(flow(f"{{id: a, loop: {{{LOOP}, idle_timeout: 600000}}}}"))
    assert [(one.code, one.hint) for one in problems] == [
        ("unknown-field", "write it beside id, not inside of the loop")
    ]


def test_a_node_when_its_kind_is_unknown_is_refused_with_the_unknown_key() -> None:
    """A kind that only another program has is named."""
    plan, problems = lowered(flow("{id: a, route_loop: {routes: {positive: b}}}"))
    assert plan is None
    assert problems[0].code == "missing-field"
    assert problems[0].hint == "route_loop is not a kind of node"


def test_the_name_of_an_include_when_outside_is_refused_with_the_folder_of_workflows() -> None:
    """Included workflows are in the folder of workflows."""
    _, problems = lowered(flow("{id: a, include: ../../etc/passwd}"))
    assert (problems[0].message, problems[0].hint) == (
        '"../../etc/passwd" cannot be the name of a workflow',
        "name a file in .archon/workflows without its ending: review-code",
    )


def test_an_id_when_it_has_a_letter_that_looks_like_another_is_refused_with_its_name() -> None:
    """The Cyrillic letter cannot be told from the Latin one."""
    _, problems = lowered(flow("{id: \u0430, bash: ls}"))
    assert problems[0].hint is not None
    assert problems[0].hint.startswith("U+0430 CYRILLIC SMALL LETTER A is not one of the letters")
