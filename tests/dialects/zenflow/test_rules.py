"""The rules of a workflow, each by the item of the list that asks for it."""

import pytest

from tests.dialects.zenflow.cases import codes, lowered

AGENTS = "agents: {coder: {description: Codes.}, reader: {description: Reads.}}\n"
DONE = "required: [done], properties: {done: {type: boolean}}"


def steps(*rows: str) -> str:
    """A workflow with these steps."""
    return "name: x\n" + AGENTS + "steps:\n" + "".join(f"  - {row}\n" for row in rows)


def loop(text: str) -> str:
    """A workflow with one step that is repeated in this way."""
    return steps(f"{{id: a, instructions: One., loop: {text}}}")


def judged(schema: str) -> str:
    """A workflow whose judge has this schema."""
    agent = f"judge: {{description: Judges., resultSchema: {{{schema}}}}}"
    return loop("{maxIterations: 2, untilAgent: judge}").replace("coder:", f"{agent}, coder:")


def nested(depth: int) -> str:
    inner = "{id: in, instructions: One.}"
    for _ in range(depth):
        inner = f"{{id: in, loop: {{maxIterations: 2, steps: [{inner}]}}}}"
    return steps(inner)


REFUSED = [
    pytest.param(
        loop("{until: 'true'}"),
        ["loop-missing-max-iterations"],
        id="no-cap",
        marks=pytest.mark.item("zenflow-1"),
    ),
    pytest.param(
        loop("{maxIterations: 0}"),
        ["negative-value"],
        id="cap-of-0",
        marks=pytest.mark.item("zenflow-2"),
    ),
    pytest.param(
        loop("{maxIterations: -1}"),
        ["negative-value"],
        id="cap-below-0",
        marks=pytest.mark.item("zenflow-2"),
    ),
    pytest.param(loop("{maxIterations: 1}"), [], id="cap-of-1"),
    pytest.param(
        loop("{forEach: [1], maxIterations: 1}"),
        ["foreach-with-max-iterations"],
        id="list-and-cap",
        marks=pytest.mark.item("zenflow-3"),
    ),
    pytest.param(
        loop("{forEach: [1], until: 'true'}"),
        ["foreach-with-until"],
        id="list-and-until",
        marks=pytest.mark.item("zenflow-3"),
    ),
    pytest.param(
        judged(DONE).replace("maxIterations: 2", "forEach: [1]"),
        ["foreach-with-until-agent"],
        id="list-and-judge",
        marks=pytest.mark.item("zenflow-3"),
    ),
    pytest.param(
        loop("{forEach: [1], delay: 1s}"),
        ["foreach-with-delay"],
        id="list-and-delay",
        marks=pytest.mark.item("zenflow-3"),
    ),
    pytest.param(loop("{forEach: [1], delay: 0s}"), [], id="list-and-no-delay"),
    pytest.param(loop("{forEach: []}"), ["foreach-empty-array"], id="empty-list"),
    pytest.param(
        loop("{forEach: 3}"),
        ["wrong-type"],
        id="list-is-a-number",
        marks=pytest.mark.item("zenflow-5"),
    ),
    pytest.param(
        loop("{forEach: {a: 1}}"),
        ["wrong-type"],
        id="list-is-a-mapping",
        marks=pytest.mark.item("zenflow-5"),
    ),
    pytest.param(nested(3), [], id="three-loops-deep"),
    pytest.param(nested(4), ["too-nested"], id="four-loops-deep", marks=pytest.mark.item("A26")),
    pytest.param(
        loop("{}"),
        ["loop-missing-max-iterations"],
        id="empty-loop",
        marks=pytest.mark.item("zenflow-7"),
    ),
    pytest.param(
        loop("{maxIterations: 2, steps: []}"),
        ["empty-steps"],
        id="loop-without-steps",
        marks=pytest.mark.item("zenflow-7"),
    ),
    pytest.param(
        loop("{maxIterations: 2, outputMode: all}"),
        ["loop-validation"],
        id="output-mode",
        marks=pytest.mark.item("zenflow-8"),
    ),
    pytest.param(
        loop("{maxIterations: 2, untilAgent: nobody}"),
        ["untilagent-bad-ref"],
        id="unknown-judge",
        marks=pytest.mark.item("zenflow-9"),
    ),
    pytest.param(
        loop("{maxIterations: 2, untilAgent: reader}"),
        ["judge-schema"],
        id="judge-without-schema",
        marks=pytest.mark.item("zenflow-9", "A19"),
    ),
    pytest.param(
        judged("properties: {ok: {type: boolean}}, required: [done]"),
        ["judge-schema"],
        id="judge-without-done",
        marks=pytest.mark.item("zenflow-9", "A19"),
    ),
    pytest.param(
        judged("properties: {done: {type: string}}, required: [done]"),
        ["judge-schema"],
        id="done-is-text",
        marks=pytest.mark.item("zenflow-9", "A19"),
    ),
    pytest.param(
        judged("properties: {done: {type: boolean}}, required: [ok]"),
        ["judge-schema"],
        id="done-is-optional",
        marks=pytest.mark.item("zenflow-9", "A19"),
    ),
    pytest.param(judged(DONE), [], id="a-judge"),
    pytest.param(
        loop("{maxIterations: 2, until: ''}"),
        ["empty-expression"],
        id="empty-until",
        marks=pytest.mark.item("zenflow-10"),
    ),
    pytest.param(
        steps("{id: a, condition: ''}"),
        ["empty-expression"],
        id="empty-condition",
        marks=pytest.mark.item("zenflow-10"),
    ),
    pytest.param(
        steps("{id: a, loop: {maxIterations: 2, steps: [{id: b}, {id: b}]}}"),
        ["duplicate-step"],
        id="inner-id-twice",
        marks=pytest.mark.item("zenflow-11"),
    ),
    pytest.param(
        steps("{id: a, loop: {maxIterations: 2, steps: [{id: b, agent: nobody}]}}"),
        ["missing-agent"],
        id="inner-agent-unknown",
        marks=pytest.mark.item("zenflow-11"),
    ),
    pytest.param(
        steps("{id: o}", "{id: a, loop: {maxIterations: 2, steps: [{id: b, dependsOn: [o]}]}}"),
        ["missing-dep"],
        id="inner-needs-outer",
        marks=pytest.mark.item("zenflow-11"),
    ),
    pytest.param(
        steps(
            "{id: a, loop: {maxIterations: 2, steps: "
            "[{id: b, dependsOn: [c]}, {id: c, dependsOn: [b]}]}}"
        ),
        ["cycle"],
        id="inner-cycle",
        marks=pytest.mark.item("zenflow-11"),
    ),
    pytest.param(
        steps("{id: a, loop: {maxIterations: 2, steps: [{id: b, dependsOn: [c]}, {id: c}]}}"),
        [],
        id="inner-forward-reference",
        marks=pytest.mark.item("zenflow-11"),
    ),
    pytest.param(
        steps("{id: a, loop: {maxIterations: 2, steps: [{id: b}]}}", "{id: c, dependsOn: [b]}"),
        ["missing-dep"],
        id="outer-needs-inner",
        marks=pytest.mark.item("zenflow-12"),
    ),
    pytest.param(
        steps("{id: a, dependsOn: [x, y]}", "{id: b, dependsOn: [z]}"),
        ["missing-dep"] * 3,
        id="several-missing",
        marks=pytest.mark.item("zenflow-14"),
    ),
    pytest.param(
        steps("{id: a, agent: x}", "{id: b, agent: y}"),
        ["missing-agent"] * 2,
        id="several-agents",
        marks=pytest.mark.item("zenflow-14"),
    ),
    pytest.param(
        "name: x\nagents: {a: {}, b: {description: B., maxTurns: -1, topP: 2}}\nsteps: [{id: s}]\n",
        ["missing-field", "negative-value", "out-of-range"],
        id="several-bad-agents",
        marks=pytest.mark.item("zenflow-14"),
    ),
]


@pytest.mark.parametrize(("text", "expected"), REFUSED)
def test_rules_hold_at_load(text: str, expected: list[str]) -> None:
    """Each rule has its own code, and what is right beside it is taken."""
    assert codes(text) == expected


@pytest.mark.item("zenflow-13")
@pytest.mark.parametrize(
    "place",
    [
        pytest.param('{"name": "x", "steps": [{"id": "a"}], "more": 1}', id="root"),
        pytest.param(
            '{"name": "x", "agents": {"b": {"description": "B.", "more": 1}}, '
            '"steps": [{"id": "a"}]}',
            id="agent",
        ),
        pytest.param('{"name": "x", "steps": [{"id": "a", "more": 1}]}', id="step"),
        pytest.param(
            '{"name": "x", "steps": [{"id": "a", "loop": {"maxIterations": 1, "more": 1}}]}',
            id="loop",
        ),
        pytest.param(
            '{"name": "x", "steps": [{"id": "a", "loop": {"maxIterations": 1, '
            '"steps": [{"id": "b", "more": 1}]}}]}',
            id="inner-step",
        ),
        pytest.param('{"name": "x", "steps": [{"id": "a"}], "options": {"more": 1}}', id="options"),
    ],
)
def test_unknown_keys_are_refused_everywhere(place: str) -> None:
    """The same key in the same place is refused whether the file is JSON or YAML."""
    for text, file in ((place, "flow.json"), (f"# in YAML\n{place}\n", "flow.yaml")):
        plan, problems = lowered(text, file=file)
        assert plan is None
        assert [(one.code, one.message) for one in problems] == [("unknown-field", "more")]


@pytest.mark.item("zenflow-8")
@pytest.mark.parametrize(
    ("mode", "output"), [("", "last"), ("last", "last"), ("cumulative", "all")]
)
def test_output_modes(mode: str, output: str) -> None:
    """The three words for what a loop gives back."""
    plan, _ = lowered(loop(f"{{maxIterations: 2, outputMode: '{mode}'}}"))
    assert plan is not None
    assert getattr(plan.steps[0].action, "output", None) == output


@pytest.mark.parametrize(
    ("row", "said"),
    [
        pytest.param("{id: a, dependsOn: [b]}", "did you mean buld?", id="near-miss"),
        pytest.param("{id: a, agent: codr}", "did you mean coder?", id="agent"),
        pytest.param("{id: a, agent: zzz}", "known: coder, reader", id="agents-that-there-are"),
        pytest.param("{id: a, dependsOn: [inner]}", "depend on holder", id="inside-a-loop"),
        pytest.param("{id: a, condition: steps.buld.status == ''}", "dependsOn: [buld]", id="late"),
        pytest.param("{id: a, include: ../x.yaml}", "beside it or below", id="outside"),
    ],
)
def test_refusals_name_the_fix(row: str, said: str) -> None:
    """What is said about a mistake says how to mend it."""
    text = steps("{id: buld}", "{id: holder, loop: {maxIterations: 1, steps: [{id: inner}]}}", row)
    (one,) = lowered(text.replace("[b]", "[bul]"))[1]
    assert said in one.render()


@pytest.mark.item("A18")
@pytest.mark.parametrize(
    ("rows", "said"),
    [
        pytest.param(["{id: a, dependsOn: [q]}"], "no step here is called q", id="unknown"),
        pytest.param(["{id: a, dependsOn: [a]}"], "a → a", id="itself"),
        pytest.param(
            ["{id: a, dependsOn: [b]}", "{id: b, dependsOn: [c]}", "{id: c, dependsOn: [b]}"],
            "b → c → b",
            id="circle-beyond-the-first",
        ),
    ],
)
def test_dependencies_that_cannot_be_met(rows: list[str], said: str) -> None:
    """Unknown and circular dependencies are refused, with the way around the circle."""
    (one,) = lowered(steps(*rows))[1]
    assert said in one.message


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param("{id: a, agent: coder, loop: {maxIterations: 1, untilAgent: coder}}", 0),
        pytest.param("{id: a, loop: {maxIterations: 1, untilAgent: coder, steps: [{id: b}]}}", 1),
    ],
    ids=["own-work", "work-of-another"],
)
def test_a_judge_of_its_own_work_is_doubted(text: str, code: int) -> None:
    """It runs, but not without a word."""
    flow = steps(text).replace("Codes.", f"Codes., resultSchema: {{{DONE}}}")
    plan, problems = lowered(flow)
    assert plan is not None
    assert [(one.code, one.severity) for one in problems] == [("self-judging", "warning")][code:]


def test_a_report_ends_where_no_client_reads_on() -> None:
    """However many mistakes there are, 50 are told."""
    rows = [f"{{id: s{n}, dependsOn: [x{n}, y{n}], agent: z{n}}}" for n in range(100)]
    assert codes(steps(*rows)).count("missing-dep") <= 50
    assert len(codes(steps(*rows))) == 50


@pytest.mark.parametrize(
    "row",
    [
        "5",
        "{id: 5, dependsOn: 5, loop: {steps: 5, forEach: 5}, condition: 5}",
        "{id: a, dependsOn: [5], instructions: 5, loop: {maxIterations: 1, until: 5}}",
        "{id: a, agent: 5, loop: {maxIterations: 1, untilAgent: 5, delay: [], outputMode: {}}}",
    ],
)
def test_wrong_types_never_break_a_rule(row: str) -> None:
    """Rules between keys look only at values of the right type; types are told apart."""
    found = codes(steps(row))
    assert "wrong-type" in found
    assert set(found) <= {
        "wrong-type",
        "bad-duration",
        "loop-validation",
    }


@pytest.mark.parametrize(
    "top",
    [
        "name: 5\nsteps: 5\nagents: 5\nincludes: 5\noptions: 5\n",
        "name: x\nsteps: [{id: a}]\nagents: {a: 5, b: {tools: 5, prompt: 5, description: B.}}\n",
        "name: x\nagents: {j: 5}\nsteps: [{id: a, loop: {maxIterations: 1, untilAgent: j}}]\n",
        "name: x\nsteps: [{id: a, include: i}]\nincludes: {i: 5}\n",
    ],
)
def test_wrong_types_at_the_top(top: str) -> None:
    """The same for what stands around the steps."""
    plan, problems = lowered(top)
    assert plan is None
    assert "wrong-type" in [one.code for one in problems]
