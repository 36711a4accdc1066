"""From an agent to its plan, and what the plan does when it is run."""

import pytest

from loopwright.dialects import aldo
from loopwright.kernel.events import IterationStarted, StepFinished, StepSkipped
from loopwright.model.actions import ModelCycle, Repeat
from loopwright.model.checks import AnyOf, Cap, Contains, NoCalls, SpendCheck, ToolResultCheck
from loopwright.syntax.readers import read
from tests.dialects.aldo.cases import CORPUS, Refused, gathered, lowered, plan_of, spec
from tests.dialects.aldo.running import BROKEN, Stage, call, done, says, turn

LOOP = """\
iteration:
  max_cycles: 3
  context_window: 8000
  summary_strategy: rolling-window
"""
RULES = """\
  termination_conditions:
    - {kind: tool-result, tool: shell.exec, match: {exit_code: 0, contains: tsc}}
    - {kind: text-includes, text: <task-complete>}
    - {kind: budget-exhausted}
"""
TOOLS = "tools: {native: [{ref: shell.exec}]}\n"


def loop_of(text: str) -> Repeat:
    action = plan_of(text).steps[0].action
    assert isinstance(action, Repeat)
    return action


@pytest.mark.item("aldo-1")
def test_conditions_keep_their_order() -> None:
    """The whole block loads, and its conditions become checks in the order written."""
    loop = loop_of(spec(LOOP + RULES + TOOLS, usd="0.5"))
    assert loop.max == 3
    assert loop.until == AnyOf(
        parts=(
            ToolResultCheck(tool="shell.exec", exit_code=0, contains="tsc"),
            Contains(text="<task-complete>"),
            SpendCheck(usd=0.5),
        )
    )


@pytest.mark.item("aldo-2")
def test_without_conditions_the_cap_is_the_only_stop() -> None:
    """The model may say what it likes: all cycles are made, and the end says why."""
    plan = plan_of(spec(LOOP))
    action = plan.steps[0].action
    assert isinstance(action, Repeat)
    assert action.until == Cap()
    stage = Stage(plan, says("I am done", "DONE", "<task-complete>")).run()
    assert stage.driver.ended == ("exhausted", "max_iterations", "<task-complete>")
    assert stage.driver.passes == 3


@pytest.mark.item("aldo-4")
def test_a_loop_and_a_team_exclude_each_other() -> None:
    """It is refused when it is read, and the message says what to use instead."""
    both = spec(LOOP + "composite: {strategy: parallel, subagents: [{agent: other}]}\n")
    plan, problems = lowered(both, {"other.yaml": spec(name="other").encode()})
    [one] = problems
    assert plan is None
    assert one.code == "mutually-exclusive"
    assert "composite.strategy: iterative" in (one.hint or "")


@pytest.mark.item("aldo-5")
@pytest.mark.parametrize(
    ("turns", "asked"),
    [pytest.param(0, 1, id="answers at once"), pytest.param(2, 3, id="two turns with tools")],
)
def test_without_iteration_it_is_one_plain_run(turns: int, asked: int) -> None:
    """The model's first answer without a tool call is the end; nobody nudges it."""
    plan = plan_of(spec(TOOLS))
    action = plan.steps[0].action
    assert isinstance(action, Repeat)
    assert isinstance(action.body, ModelCycle)
    assert (action.until, action.body.nudge) == (NoCalls(), None)

    def speak(agent: str, cycle: int, prompt: str) -> object:
        return turn("looking", call(f"c{cycle}")) if cycle <= turns else turn("the answer")

    stage = Stage(plan, speak).run()  # type: ignore[arg-type]
    assert stage.driver.ended == ("completed", "no-calls", "the answer")
    assert len(stage.heard) == asked


@pytest.mark.item("aldo-6")
def test_the_system_prompt_is_the_file_with_its_places_filled() -> None:
    """Variables and templates stand where the file has places for them, each filled once."""
    text = spec().replace(
        "{system_file: prompt.md}",
        "{system_file: p/s.md, templates: {rules: p/r.md}, variables: {who: '{{rules}}', n: 2}}",
    )
    files = {"p/s.md": b"\xef\xbb\xbfI am {{who}}.\r\n{{ rules }}", "p/r.md": b"{{n}} rules"}
    plan, problems = lowered(text, files)
    assert problems == []
    assert plan is not None
    assert plan.agents["worker"].system == "I am {{rules}}.\n2 rules"


@pytest.mark.item("aldo-6")
def test_a_prompt_that_is_not_there_is_reported() -> None:
    """The file is asked for; without it the description is the prompt, and the place is named."""
    document, _ = read(spec().encode(), file="agent.yaml")
    assert document is not None
    [asked] = aldo.requested_files(document)
    assert (asked.path, asked.where, asked.kind) == ("prompt.md", (9, 23), "text")
    plan, [one] = aldo.lower(document)
    assert (one.severity, one.code, one.line, one.column) == ("warning", "missing-file", 9, 23)
    assert plan is not None
    assert plan.agents["worker"].system == "You are worker. Works."


@pytest.mark.item("aldo-6")
def test_a_template_that_is_not_there_leaves_its_place_empty() -> None:
    """The warning says so, and the rest of the prompt stays."""
    places = "{system_file: s.md, templates: {rules: r.md}}"
    text = spec().replace("{system_file: prompt.md}", places)
    plan, [one] = lowered(text, {"s.md": b"Work. {{rules}}"})
    assert (one.severity, one.code) == ("warning", "missing-file")
    assert one.message == "r.md is missing: its place in the prompt stays empty"
    assert plan is not None
    assert plan.agents["worker"].system.strip() == "Work."


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(Refused("not-a-file", "is a directory"), "not-a-file", id="refused"),
        pytest.param(b"x" * 1_048_577, "too-large", id="too large"),
        pytest.param(b"a\x00b", "bad-value", id="NUL"),
    ],
)
def test_a_prompt_that_cannot_be_used_is_reported(data: bytes | Refused, code: str) -> None:
    """Whatever is wrong with the file is told at the place that names it."""
    plan, [one] = lowered(spec(), {"prompt.md": data})
    assert plan is None
    assert (one.code, one.line, one.column) == (code, 9, 23)


@pytest.mark.item("aldo-14")
@pytest.mark.parametrize(
    ("order", "ended"),
    [
        pytest.param("tool text", ("completed", "tool-result"), id="tool first"),
        pytest.param("text tool", ("completed", "contains"), id="text first"),
        pytest.param("budget text", ("exhausted", "budget"), id="money first"),
    ],
)
def test_the_first_condition_that_holds_ends_it_after_the_tools(
    order: str, ended: tuple[str, str]
) -> None:
    """All of them hold after this turn: its tool has run, and the order written decides."""
    kinds = {
        "tool": "{kind: tool-result, tool: exec, match: {exit_code: 0}}",
        "text": "{kind: text-includes, text: <task-complete>}",
        "budget": "{kind: budget-exhausted}",
    }
    rules = ", ".join(kinds[one] for one in order.split())
    text = spec(f"{LOOP}  termination_conditions: [{rules}]\n{TOOLS}", usd="0.1")
    ran: list[str] = []

    def tool(asked: object) -> object:
        ran.append(str(asked.tool))  # type: ignore[attr-defined]
        return done()

    stage = Stage(
        plan_of(text),
        lambda *_: turn("<task-complete>", call("c1"), usd=0.2),
        tool=tool,  # type: ignore[arg-type]
    ).run()
    assert stage.driver.ended[:2] == ended
    assert ran == ["shell.exec"]


def test_case_counts_in_a_text_that_ends_it() -> None:
    """Not so in the text of `termination`, which stands behind the conditions."""
    conditions = "  termination_conditions: [{kind: text-includes, text: DONE}]\n"
    ends = {"": "max_iterations", "termination: {text_mention: DONE}\n": "contains"}
    for more, reason in ends.items():
        stage = Stage(plan_of(spec(LOOP + conditions + more)), says("done")).run()
        assert stage.driver.ended[1] == reason


def test_a_budget_holds_without_a_condition_about_it() -> None:
    """What was written is never spent twice, grace included; it ends as exhausted."""
    text = spec(LOOP + TOOLS, usd="0.1, usd_grace: 0.1")
    stage = Stage(plan_of(text), lambda *_: turn("", call("c1"), usd=0.1)).run()
    assert stage.driver.ended[:2] == ("exhausted", "budget")
    assert len(stage.heard) == 2


# -- several agents --------------------------------------------------------------------------------


def composite(strategy: str, *children: str, more: str = "", **settings: str) -> str:
    subagents = ", ".join(f"{{agent: {name}}}" for name in children)
    block = f"composite:\n  strategy: {strategy}\n  subagents: [{subagents}]\n{more}"
    return spec(block, name="lead", **settings)


def echo(agent: str, cycle: int, asked: str) -> object:
    return turn(f"{agent}({asked})")


@pytest.mark.item("aldo-52")
def test_sequential_hands_each_output_on() -> None:
    """The first gets the input, each other what the one before it said."""
    plan = plan_of(composite("sequential", "a", "b", "a"), a=spec(name="a"), b=spec(name="b"))
    stage = Stage(plan, echo).run("x")  # type: ignore[arg-type]
    assert stage.heard == [("a", "x"), ("b", "a(x)"), ("a-2", "b(a(x))")]
    assert stage.driver.ended == ("completed", "done", "a-2(b(a(x)))")


@pytest.mark.item("aldo-52")
def test_sequential_ends_with_the_first_failure() -> None:
    """What comes after it is never asked."""
    plan = plan_of(composite("sequential", "a", "b"), a=spec(name="a"), b=spec(name="b"))
    stage = Stage(plan, lambda *_: BROKEN).run()
    assert stage.driver.ended[0] == "failed"
    assert [agent for agent, _ in stage.heard] == ["a"]


@pytest.mark.item("aldo-52")
def test_parallel_gives_a_list_in_the_order_written() -> None:
    """All get the same input; all are waited for."""
    agents = {name: spec(name=name) for name in ("a", "b", "c")}
    stage = Stage(plan_of(composite("parallel", *agents), **agents), echo).run("x")  # type: ignore[arg-type]
    assert sorted(stage.heard) == [("a", "x"), ("b", "x"), ("c", "x")]
    assert stage.driver.ended[2] == '["a(x)","b(x)","c(x)"]'


@pytest.mark.item("aldo-52")
def test_parallel_waits_for_all_and_reports_the_first_failure() -> None:
    """The first in the order written, whichever failed first; at most eight are asked at a
    time."""
    names = [f"n{number}" for number in range(10)]
    plan = plan_of(composite("parallel", *names), **{name: spec(name=name) for name in names})
    most = 0

    def speak(agent: str, cycle: int, asked: str) -> object:
        nonlocal most
        most = max(most, stage.driver.state.agents.calls)
        fails = {"n3": "third", "n7": "seventh"}
        return type(BROKEN)("auth", fails[agent]) if agent in fails else turn("fine")

    stage = Stage(plan, speak)  # type: ignore[arg-type]
    stage.driver.order = lambda choices: choices - 1
    stage.run()
    assert stage.driver.end.error is not None
    assert stage.driver.end.error.detail == "step 'n3' failed: third"
    assert len([one for one in stage.driver.events if isinstance(one, StepFinished)]) == 11
    assert most == 8


@pytest.mark.item("aldo-52")
def test_debate_lets_the_aggregator_see_all_parties() -> None:
    """It gets them by alias, agent and output, as JSON that no output can break."""
    text = composite("debate", "a", "b", more="  aggregator: judge\n").replace(
        "{agent: b}", "{agent: b, as: other}"
    )
    agents = {name: spec(name=name) for name in ("a", "b", "judge")}

    def speak(agent: str, cycle: int, asked: str) -> object:
        return turn("settled" if agent == "judge" else f'"{agent}"\n')

    stage = Stage(plan_of(text, **agents), speak).run()  # type: ignore[arg-type]
    assert stage.heard[-1] == (
        "judge",
        '{"parties":[{"alias":"a","agent":"a","output":"\\"a\\"\\n"},'
        '{"alias":"other","agent":"b","output":"\\"other\\"\\n"}]}',
    )
    assert stage.driver.ended[2] == "settled"


@pytest.mark.item("aldo-52")
def test_debate_without_a_party_has_no_decision() -> None:
    """Any failure keeps the aggregator from being asked."""
    text = composite("debate", "a", "b", more="  aggregator: judge\n")
    agents = {name: spec(name=name) for name in ("a", "b", "judge")}
    stage = Stage(
        plan_of(text, **agents), lambda agent, *_: BROKEN if agent == "b" else turn("x")
    ).run()
    assert stage.driver.ended[0] == "failed"
    [skipped] = [one for one in stage.driver.events if isinstance(one, StepSkipped)]
    assert skipped.path == "main.judge"


ROUNDS = "  iteration: {max_rounds: 3, terminate: %s}\n"


@pytest.mark.item("aldo-52")
@pytest.mark.parametrize(
    ("terminate", "said", "ended", "rounds"),
    [
        pytest.param("'$.done'", '{"done": true}', ("completed", "path"), 1, id="true"),
        pytest.param("'$.done'", '{"done": false}', ("exhausted", "max_iterations"), 3, id="false"),
        pytest.param("'$.done'", 'So: {"done": 1} !', ("completed", "path"), 1, id="in prose"),
        pytest.param("\"$['a b'].c\"", '{"a b":{"c":"x"}}', ("completed", "path"), 1, id="quoted"),
        pytest.param("'$[1]'", '[0,"yes"]', ("completed", "path"), 1, id="index"),
        pytest.param("'$[2]'", '[0,"yes"]', ("exhausted", "max_iterations"), 3, id="beyond"),
        pytest.param("'$'", "anything", ("completed", "path"), 1, id="all of it"),
        pytest.param("'$.done'", "done", ("exhausted", "max_iterations"), 3, id="no JSON"),
        pytest.param("'true'", "x", ("completed", "expr"), 1, id="always"),
        pytest.param("true", "x", ("completed", "expr"), 1, id="always, unquoted"),
        pytest.param("'false'", "x", ("exhausted", "max_iterations"), 3, id="never"),
    ],
)
def test_rounds_end_when_the_output_says_so(
    terminate: str, said: str, ended: tuple[str, str], rounds: int
) -> None:
    """A round's output is looked at as JSON, also when the model only says it."""
    text = composite("iterative", "a", more=ROUNDS % terminate)
    stage = Stage(plan_of(text, a=spec(name="a")), says(said)).run()
    assert stage.driver.ended[:2] == ended
    assert len(stage.heard) == rounds


@pytest.mark.item("aldo-52", "aldo-56")
def test_a_round_knows_the_one_before_even_from_inside_a_loop() -> None:
    """The child loops by its own rules; input, round and previous are those of the round."""
    child = spec(LOOP + "  termination_conditions: [{kind: text-includes, text: END}]\n", name="a")
    text = composite("iterative", "a", more=ROUNDS % "$.done")

    def speak(agent: str, cycle: int, asked: str) -> object:
        return turn("hm" if cycle < 2 else "END")

    stage = Stage(plan_of(text, a=child), speak).run('say "x"')  # type: ignore[arg-type]
    assert [asked for _, asked in stage.heard] == [
        '{"input":"say \\"x\\"","round":1,"previous":null}',
        '{"input":"say \\"x\\"","round":1,"previous":null}',
        '{"input":"say \\"x\\"","round":2,"previous":"END"}',
        '{"input":"say \\"x\\"","round":2,"previous":"END"}',
        '{"input":"say \\"x\\"","round":3,"previous":"END"}',
        '{"input":"say \\"x\\"","round":3,"previous":"END"}',
    ]


@pytest.mark.item("aldo-56", "W22")
def test_a_child_at_its_ceiling_counts_as_done() -> None:
    """It loops; the one after it gets what it said last."""
    plan = plan_of(composite("sequential", "a", "b"), a=spec(LOOP, name="a"), b=spec(name="b"))
    stage = Stage(plan, says("one", "two", "three")).run()
    assert [agent for agent, _ in stage.heard] == ["a", "a", "a", "b"]
    assert stage.heard[-1] == ("b", "three")
    cycles = [f.path for f in stage.driver.events if isinstance(f, IterationStarted)]
    assert cycles == ["main.a.0", "main.a.1", "main.a.2", "main.b.0"]


def test_rounds_of_rounds_keep_their_inputs_apart() -> None:
    """The input of the inner rounds is the whole input of an outer one."""
    inner = composite("iterative", "a", more=ROUNDS % "$").replace("name: lead", "name: inner")
    plan = plan_of(
        composite("iterative", "inner", more=ROUNDS % "$"), inner=inner, a=spec(name="a")
    )
    stage = Stage(plan, says("fine")).run("x")
    assert stage.heard == [
        ("a", '{"input":{"input":"x","round":1,"previous":null},"round":1,"previous":null}')
    ]


@pytest.mark.item("aldo-53")
def test_agents_nested_too_deep_are_refused_before_anything_runs() -> None:
    """Five below the first are fine; a sixth is refused, and so are circles."""
    plan, _ = gathered(CORPUS / "files" / "valid" / "depth")
    assert plan is not None
    for folder, code in {"depth": "too-nested", "circle": "cycle"}.items():
        plan, [one] = gathered(CORPUS / "files" / "invalid" / folder)
        assert plan is None
        assert one.code == code


def test_too_many_agents_are_refused() -> None:
    """A small file can name a great many."""
    many = ", ".join(["{agent: wide}"] * 50)
    wide = f"composite: {{strategy: parallel, subagents: [{many}]}}\n"
    files = {
        "wide.yaml": spec(wide.replace("agent: wide", "agent: leaf"), name="wide").encode(),
        "leaf.yaml": spec(name="leaf").encode(),
    }
    plan, problems = lowered(spec(wide, name="first"), files)
    assert plan is None
    assert {one.code for one in problems} == {"too-many-agents"}


@pytest.mark.item("aldo-57", "W22")
@pytest.mark.parametrize(
    ("parent", "child", "runs_at"),
    [
        ("public", "public", "public"),
        ("sensitive", "public", "sensitive"),
        ("internal", "sensitive", "sensitive"),
        ("sensitive", "internal", "sensitive"),
    ],
)
def test_a_child_is_at_least_as_private_as_its_parent(
    parent: str, child: str, runs_at: str
) -> None:
    """The stricter of the two holds, at any depth."""
    middle = composite("sequential", "leaf").replace("name: lead", "name: middle")
    text = composite("parallel", "middle", "leaf", tier=parent)
    plan = plan_of(text, middle=middle, leaf=spec(name="leaf", tier=child))
    assert [one.options["privacy_tier"] for one in plan.agents.values()] == [runs_at, runs_at]


def test_budgets_of_a_team_hold_for_all_in_it() -> None:
    """What the children spend is the parent's money."""
    text = composite("sequential", "a", "b", usd="0.15")
    plan = plan_of(text, a=spec(name="a"), b=spec(name="b"))
    stage = Stage(plan, lambda *_: turn("x", usd=0.2)).run()
    assert stage.driver.ended[:2] == ("exhausted", "budget")
    assert [agent for agent, _ in stage.heard] == ["a"]


def test_former_word_for_the_network_is_read_as_the_present_one() -> None:
    """A file of an earlier version loads, and a warning names the word of today."""
    former = "tools: {permissions: {network: egress-allowlist}}\n"
    plan, problems = lowered(spec(former))
    assert [(one.code, one.severity) for one in problems] == [("former-name", "warning")]
    assert plan == plan_of(spec(former.replace("egress-", "")))


PAIR = """\
composite:
  strategy: sequential
  subagents:
    - {agent: first, as: one}
    - {agent: second, as: two, input_map: {task: PATH}}
"""


@pytest.mark.parametrize(
    ("path", "same"),
    [("previous.one.output", "outputs.one"), ("previous.one.output.note", "outputs.one.note")],
)
def test_input_from_the_previous_agent_means_its_output(path: str, same: str) -> None:
    """`previous.ALIAS.output` is another way to write `outputs.ALIAS`, not a text of its own."""
    agents = {"first": spec(name="first"), "second": spec(name="second")}
    made = plan_of(spec(PAIR.replace("PATH", path)), **agents)
    assert made == plan_of(spec(PAIR.replace("PATH", same)), **agents)


def test_input_from_an_agent_that_is_not_before_is_refused() -> None:
    """A name that nothing has is an error in this form too."""
    agents = {f"{name}.yaml": spec(name=name).encode() for name in ("first", "second")}
    text = spec(PAIR.replace("PATH", "previous.other.output"))
    plan, problems = lowered(text, agents)
    assert plan is None
    assert "unknown-reference" in [one.code for one in problems]
