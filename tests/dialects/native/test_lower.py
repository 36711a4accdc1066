"""What is left out, and what names and texts turn into."""

import pytest

from loopwright.dialects.native.lower import DEFAULT_RETRY
from loopwright.model.actions import CallAgent, Repeat, Steps
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import Memory, NoMemory, PreviousOutput, ProgressLog, SameSession
from loopwright.model.record import Lit
from tests.dialects.reading import lowered, only, places, plan_of


def only_loop(plan: Plan) -> Repeat:
    action = plan.steps[0].action
    assert isinstance(action, Repeat)
    return action


@pytest.mark.parametrize(
    ("repeat", "at_cap"),
    [
        pytest.param("{max: 3}", "complete", id="only-the-number"),
        pytest.param("{max: 3, until: {cap: true}}", "complete", id="cap-by-name"),
        pytest.param("{max: 3, until: {signal: X}}", "exhaust", id="check"),
        pytest.param("{max: 3, gate: true}", "exhaust", id="gate"),
        pytest.param("{for_each: {items: []}}", "exhaust", id="list"),
        pytest.param("{max: 3, until: {signal: X}, at_cap: fail}", "fail", id="said"),
    ],
)
def test_the_cap_means_success_only_where_it_is_the_goal(repeat: str, at_cap: str) -> None:
    """All iterations made is complete without a check or a gate, and exhausted with one."""
    assert only_loop(plan_of(f"name: x\nrepeat: {repeat}\n")).at_cap == at_cap


@pytest.mark.parametrize(
    ("written", "memory"),
    [
        pytest.param("none", NoMemory(), id="none"),
        pytest.param("progress-log", ProgressLog(total=8_000), id="log"),
        pytest.param(
            "{kind: progress-log, chars: 80, total: 0}", ProgressLog(chars=80), id="short-log"
        ),
        pytest.param("previous-output", PreviousOutput(), id="previous"),
        pytest.param("{kind: session}", SameSession(), id="session"),
    ],
)
def test_memory(written: str, memory: Memory) -> None:
    """A word or a mapping names the memory."""
    text = f"name: x\nrepeat: {{max: 3, memory: {written}}}\n"
    assert only_loop(plan_of(text)).memory == memory


def test_no_agent_is_left_to_the_person_who_starts() -> None:
    """A definition without an agent has one without a spec."""
    plan = plan_of("name: x\ngoal: Go.\n")
    assert plan.agents == {"agent": Agent()}
    assert plan.steps[0].action == CallAgent(agent="agent")
    assert plan.message == (Lit(text="Go."),)
    assert plan.steps[0].retry == DEFAULT_RETRY


def test_the_only_agent_is_the_one_that_is_meant() -> None:
    """With one agent defined and none named, it is that one."""
    plan = plan_of("name: x\nagents: {solo: {use: claude}}\nprompt: Go.\n")
    assert plan.steps[0].action == CallAgent(agent="solo", prompt=(Lit(text="Go."),))


def test_agents_on_the_spot_get_names() -> None:
    """The same spec is the same agent; a name that is taken gets a number."""
    plan = plan_of(
        """
name: x
agents: {command: {use: claude}}
agent: command
steps:
  - {id: a, agent: "command:one"}
  - {id: b, agent: "command:two"}
  - {id: c, agent: "command:one"}
  - {id: d, prompt: Hello}
"""
    )
    calls = [step.action for step in plan.steps]
    assert [call.agent for call in calls if isinstance(call, CallAgent)] == [
        "command-2",
        "command-3",
        "command-2",
        "command",
    ]
    assert plan.agents["command-3"] == Agent(spec="command:two")


def test_what_a_loop_says_itself_comes_first() -> None:
    """A step gives its loop what to do, unless the loop has its own; the top fills the rest."""
    plan = plan_of(
        """
name: x
agent: claude
prompt: From the top
steps:
  - {id: a, agent: codex, prompt: From the step, repeat: {max: 2, prompt: From the loop}}
  - {id: b, repeat: {max: 2}}
  - {id: c, prompt: "", repeat: {max: 2}}
"""
    )
    bodies = [step.action.body for step in plan.steps if isinstance(step.action, Repeat)]
    assert bodies == [
        CallAgent(agent="codex", prompt=(Lit(text="From the loop"),)),
        CallAgent(agent="claude", prompt=(Lit(text="From the top"),)),
        CallAgent(agent="claude"),
    ]


def test_a_loop_at_the_top_repeats_the_steps_beside_it() -> None:
    """Top-level repeat and steps together are one loop over those steps."""
    plan = plan_of("name: x\nrepeat: {max: 2}\nsteps: [{id: a, run: x}]\non_failure: abort\n")
    body = only_loop(plan).body
    assert isinstance(body, Steps)
    assert (body.steps[0].id, body.on_failure, plan.on_failure) == ("a", "abort", "abort")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("agent: claud", "2:8 unknown-agent", id="misspelt-program"),
        pytest.param("agent: zzz", "2:8 unknown-agent", id="far-off"),
        pytest.param("agent: 'command:'", "2:8 bad-agent", id="no-command"),
        pytest.param("agent: command:a | b", "2:8 shell-syntax", id="pipe"),
        pytest.param("agent: model:opus", "2:8 bad-agent", id="no-provider"),
        pytest.param("agents: {a: {use: other}}", "2:19 unknown-agent", id="use-is-no-name"),
        pytest.param("agents: {a: {use: ''}}", "2:19 out-of-range", id="use-is-empty"),
        pytest.param("agents: {a: {}, b: {}}", "1:1 missing-field", id="which-of-two"),
        pytest.param("agents: [a]", "2:9 wrong-type", id="agents-as-list"),
        pytest.param("agents: {a: x}", "2:13 wrong-type", id="agent-as-text"),
        pytest.param("goal: '{{message}}'", "2:8 unknown-reference", id="goal-of-itself"),
        pytest.param("goal: '{{item}}'", "2:8 unknown-reference", id="no-list"),
        pytest.param("goal: '{{iteration}}'", "2:8 unknown-reference", id="no-loop"),
        pytest.param("goal: 'a {{b'", "2:10 bad-template", id="open-reference"),
        pytest.param('goal: "{{\\x61}}"', "2:7 unknown-reference", id="written-otherwise"),
        pytest.param("inputs: [a]", "2:9 wrong-type", id="inputs-as-list"),
        pytest.param("name2: x", "2:1 unknown-field", id="unknown-key"),
        pytest.param("steps: {a: b}", "2:8 wrong-type", id="steps-as-mapping"),
        pytest.param("steps: []", "2:8 out-of-range", id="no-steps"),
        pytest.param("steps: [3]", "2:9 wrong-type", id="step-as-number"),
        pytest.param("files: [../a.md]", "2:9 outside-workspace", id="files-outside"),
        pytest.param(
            "schema: {properties: {a: {pattern: 'x+'}, b: {pattern: '(x'}}}",
            "2:9 bad-regex",
            id="second-pattern",
        ),
        pytest.param(
            "repeat: {max: 2, steps: [{id: a, prompt: '{{previous.steps.b.output}}'}]}",
            "2:43 unknown-reference",
            id="step-before",
        ),
        pytest.param(
            "repeat: {max: 2, prompt: '{{previous.steps.b.output}}'}",
            "2:27 unknown-reference",
            id="no-steps-before",
        ),
        pytest.param("run: 3", "2:6 wrong-type", id="run-as-number"),
        pytest.param("run: [a, 3]", "2:6 wrong-type", id="number-in-command"),
        pytest.param("run: [x]\nenv: {a-b: x}", "3:7 bad-env", id="variable-name"),
        pytest.param("repeat: 3", "2:9 wrong-type", id="repeat-as-number"),
        pytest.param("repeat: {for_each: 3}", "2:20 wrong-type", id="each-as-number"),
        pytest.param("repeat: {for_each: {expr: x}}", "2:27 unknown-name", id="expression"),
        pytest.param("repeat: {max: 1, until: {}}", "2:25 missing-field", id="empty-check"),
        pytest.param("repeat: {max: 1, until: {all: []}}", "2:31 out-of-range", id="all-of-none"),
        pytest.param("repeat: {max: 1, until: {any: 3}}", "2:31 wrong-type", id="any-number"),
        pytest.param("repeat: {max: 1, until: {any: [3]}}", "2:32 wrong-type", id="any-of-number"),
        pytest.param(
            "repeat: {max: 1, until: {schema: {}}}", "2:34 matches-everything", id="empty-schema"
        ),
        pytest.param(
            "schema: {a: [{$ref: 'http://x'}]}", "2:9 remote-ref", id="schema-from-elsewhere"
        ),
        pytest.param("schema: {$ref: '#'}", "2:9 ref-loop", id="schema-that-is-itself"),
        pytest.param(
            "repeat: {max: 1, gate: {answers: [approve, approve]}}",
            "2:34 bad-value",
            id="answer-twice",
        ),
        pytest.param(
            "steps: [{id: a, wait: 1s, retry: {on: [internal]}}]",
            "2:40 unknown-value",
            id="never-retried",
        ),
        pytest.param("budget: {tokens: 0}", "2:18 out-of-range", id="no-tokens"),
        pytest.param("budget: {tokens: 5G}", "2:18 wrong-type", id="token-unit"),
        pytest.param("budget: {tokens: [1]}", "2:18 wrong-type", id="tokens-as-list"),
        pytest.param("budget: {tokens: {}}", "2:18 wrong-type", id="tokens-as-mapping"),
        pytest.param("budget: {tokens: true}", "2:18 wrong-type", id="tokens-as-truth"),
        pytest.param("budget: {usd: 0}", "2:15 out-of-range", id="no-money"),
        pytest.param("budget: {usd: '5'}", "2:15 wrong-type", id="money-as-text"),
        pytest.param("budget: {time: 400d}", "2:16 out-of-range", id="over-a-year"),
        pytest.param("budget: {time: ''}", "2:16 bad-duration", id="no-time"),
        pytest.param("budget: {time: 5}", "2:16 bad-duration", id="no-unit"),
        pytest.param("budget: {time: null}", "2:16 bad-duration", id="time-null"),
        pytest.param("budget:", "2:8 wrong-type", id="budget-null"),
        pytest.param("version: 0", "2:10 out-of-range", id="version-0"),
        pytest.param("version: true", "2:10 wrong-type", id="version-true"),
    ],
)
def test_single_problems(text: str, found: str) -> None:
    """One mistake gives one finding, in its place."""
    plan, problems = lowered(f"name: x\n{text}\n")
    assert plan is None
    assert places(problems) == [found]


@pytest.mark.parametrize("name", ["''", "' '", '"a\\nb"', "3", '"a\\u200b"'])
def test_a_name_is_one_visible_line(name: str) -> None:
    """The name of a definition can be shown in a list."""
    plan, problems = lowered(f"name: {name}\n")
    assert plan is None
    assert (only(problems).line, only(problems).column) == (1, 7)


def test_only_warnings_leave_a_plan() -> None:
    """Something doubtful is told, and the plan is made."""
    text = "name: x\nsteps:\n  - {id: a, run: x}\n  - {id: b, stop: '{{steps.a.output}}'}\n"
    plan, problems = lowered(text)
    assert plan is not None
    assert only(problems).severity == "warning"
    assert places(problems) == ["4:20 unordered-reference"]


def test_references_inside_out() -> None:
    """A step sees what it needs at its own level and what the steps around it need."""
    text = """
name: x
agent: claude
steps:
  - {id: plan, prompt: Plan}
  - id: dev
    needs: [plan]
    repeat:
      max: 2
      until: {person: {message: "{{steps.last.output}} {{steps.plan.output}}"}}
      steps:
        - {id: first, prompt: "{{steps.plan.output}} {{steps.other.output}}"}
        - {id: last, needs: [first], prompt: "{{steps.first.output}} {{steps.last.output}}"}
  - {id: other, needs: [gone, plan], gate: {message: "{{steps.first.output}}"}}
"""
    _, problems = lowered(text)
    assert places(problems) == [
        "12:54 unordered-reference",
        "13:70 unknown-reference",
        "14:25 unknown-step",
        "14:55 unknown-reference",
    ]


def test_a_doubt_is_reported_once_for_each_text() -> None:
    """The same early reference twice in one text is one warning, at the first of them."""
    again = "{{steps.a.output}}"
    text = f"name: x\nsteps:\n  - {{id: a, run: x}}\n  - {{id: b, stop: '{again} {again}'}}\n"
    assert places(lowered(text)[1]) == ["4:20 unordered-reference"]


def test_what_is_needed_twice_over_is_reached() -> None:
    """A step may read whatever it needs by any way."""
    plan_of(
        """
name: x
steps:
  - {id: a, run: x}
  - {id: b, needs: [a], run: x}
  - {id: c, needs: [a, a], run: x}
  - {id: d, needs: [b, c], stop: "{{steps.a.output}}"}
"""
    )


def test_an_unknown_key_is_enough_said_about_a_step() -> None:
    """A step whose only content is misspelt is not told that it has none."""
    assert places(lowered("name: x\nsteps: [{id: a, rnu: x}]\n")[1]) == ["2:17 unknown-field"]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("goal: " + "{{mesage}}" * 20_000, id="bad-references"),
        pytest.param(
            "steps: ["
            + ", ".join(f"{{id: s{n}, run: x, needs: [t{n}]}}" for n in range(1_000))
            + "]",
            id="unknown-needs",
        ),
        pytest.param(
            "steps: ["
            + ", ".join(f"{{id: s{n}, run: x, needs: [s{n + 1}]}}" for n in range(1_000))
            + "]",
            id="long-chain",
        ),
        pytest.param(
            "steps: [{id: a, run: x}, {id: b, stop: '" + "{{steps.a.output}}" * 5_000 + "'}]",
            id="doubts",
        ),
    ],
)
@pytest.mark.timeout(5)
def test_large_definitions_are_answered_quickly(text: str) -> None:
    """However much is wrong, the answer comes at once and is short."""
    _, problems = lowered(f"name: x\n{text}\n")
    assert 1 <= len(problems) <= 50


def test_a_rule_stops_looking_at_the_fiftieth_problem() -> None:
    """Near misses are looked for as often as a person will read; what is first is told."""
    steps = "".join(f"  - {{id: s{n}, agent: zzz{n}}}\n" for n in range(60))
    _, problems = lowered(f"name: x\nsteps:\n{steps}")
    assert places(problems) == [f"{n + 3}:{21 if n < 10 else 22} unknown-agent" for n in range(50)]
