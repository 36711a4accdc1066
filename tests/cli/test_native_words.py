"""The words of native definitions at work: what a file says is what a run does."""

from typing import Any

import pytest

from tests.cli.conftest import Place


def statuses(told: Any) -> dict[str, str]:
    return {name: step["status"] for name, step in told.json["steps"].items()}


CONDITIONS = """
name: triage
agent: script:replies.yaml
inputs: {target: {default: staging}}
steps:
  - id: sort
    prompt: What is it?
    schema: {type: object, required: [kind, n], properties: {n: {type: integer}}}
  - {id: bug, needs: [sort], when: "steps.sort.result.kind == 'bug'", run: [echo, bug]}
  - {id: wish, needs: [sort], when: "steps.sort.result.kind == 'wish'", run: [echo, wish]}
  - {id: many, needs: [sort], when: {value: steps.sort.result.n, at_least: 3}, run: [echo, many]}
  - {id: few, needs: [sort], when: {value: steps.sort.result.n, below: 3}, run: [echo, few]}
  - {id: live, needs: [sort], when: {value: input.target, equals: production}, run: [echo, live]}
  - id: any
    needs: [sort]
    when: {any: [{value: steps.sort.result.n, above: 9}, "steps.sort.content != ''"]}
    run: [echo, any]
  - {id: end, needs: [bug, wish], join: finished_ok, run: [echo, end]}
"""


def test_conditions_let_steps_run(lw: Place) -> None:
    """An expression, a comparison and combinations decide; what is false is skipped."""
    lw.script({"text": "a bug", "data": {"kind": "bug", "n": 3}})
    lw.write("flow.yaml", CONDITIONS)
    told = lw("run", "flow.yaml", "go", "--json")
    assert told.code == 0
    assert statuses(told) == {
        "sort": "completed",
        "bug": "completed",
        "wish": "skipped",
        "many": "completed",
        "few": "skipped",
        "live": "skipped",
        "any": "completed",
        "end": "completed",
    }


@pytest.mark.parametrize(
    ("more", "status"),
    [
        pytest.param("", "failed", id="error"),
        pytest.param("when_error: skip", "skipped", id="skip"),
    ],
)
def test_a_condition_without_a_value(lw: Place, more: str, status: str) -> None:
    """What is missing is an error of the step, or skips it where the file says so."""
    when = "when: steps.a.result.gone == 1"
    steps = (
        f"  - {{id: a, run: [echo, x]}}\n  - {{id: b, needs: [a], run: [echo, y], {when}, {more}}}"
    )
    lw.write("flow.yaml", f"name: x\nsteps:\n{steps}\n")
    assert statuses(lw("run", "flow.yaml", "go", "--json"))["b"] == status
    lw.write(
        "flow.yaml",
        f"name: x\nsteps:\n{steps}\n".replace(when, f"when: {{expr: {when[6:]}, missing: false}}"),
    )
    assert statuses(lw("run", "flow.yaml", "go", "--json"))["b"] == "skipped"


def test_values_reach_a_script_by_its_variables_only(lw: Place) -> None:
    """What an agent said is a value in a script and a check, never a part of their text."""
    evil = "'; touch hacked; echo $(touch hacked) \"`touch hacked`"
    lw.script(evil, "DONE")
    lw.write(
        "flow.yaml",
        """
name: x
agent: script:replies.yaml
steps:
  - {id: a, prompt: Say it.}
  - id: b
    needs: [a]
    script: |
      printf '%s' "$SAID"
    env: {SAID: "{{steps.a.output}}"}
  - id: c
    needs: [b]
    prompt: Go on.
    repeat:
      max: 1
      until:
        script: test "$BEFORE" = "$AFTER"
        env: {BEFORE: "{{steps.a.output}}", AFTER: "{{steps.b.output}}"}
""",
    )
    told = lw("run", "flow.yaml", "go", "--json")
    assert told.code == 0
    assert told.json["steps"]["b"]["output"] == evil
    assert told.json["steps"]["c"]["reason"] == "script"
    assert not (lw.folder / "hacked").exists()


def test_a_list_by_an_expression(lw: Place) -> None:
    """for_each goes over what an expression gives; each item is seen inside."""
    lw.script(
        {
            "text": "x",
            "data": {"services": [{"n": "a", "p": 1}, {"n": "b", "p": 0}, {"n": "c", "p": 2}]},
        }
    )
    lw.write(
        "flow.yaml",
        """
name: x
agent: script:replies.yaml
steps:
  - {id: list, prompt: Which?, schema: {type: object, required: [services]}}
  - id: deploy
    needs: [list]
    repeat:
      for_each: {expr: "steps.list.result.services.filter(s, s.p > 0)", parallel: 1}
      output: all
      script: echo "deploy $NAME as $NUMBER"
      env: {NAME: "{{item.n}}", NUMBER: "{{index}}"}
""",
    )
    told = lw("run", "flow.yaml", "go", "--json")
    assert told.code == 0
    output = told.json["steps"]["deploy"]["output"]
    assert "deploy a as 0" in output
    assert "deploy c as 1" in output
    assert "deploy b" not in output


def test_rework_after_a_rejection(lw: Place) -> None:
    """What a person rejects goes to an agent with the reason, and the person is asked again."""
    agent = lw.probe({"say": "mended"})
    lw.write(
        "flow.yaml",
        f"""
name: x
agents: {{mender: {{use: "{agent}"}}}}
steps:
  - id: ask
    gate:
      message: Good?
      capture: true
      on_reject: {{agent: mender, prompt: "Mend: {{{{rejection}}}}", attempts: 3}}
  - {{id: after, needs: [ask], run: [echo, after]}}
""",
    )
    told = lw("run", "flow.yaml", "go", "--json", "--no-wait")
    assert told.code == 5
    again = lw("reject", told.json["run"], "too long", "--json")
    assert again.code == 5
    assert "Mend: too long" in lw.calls()[0]["prompt"]
    done = lw("approve", told.json["run"], "fine now", "--json")
    assert (done.code, done.json["steps"]["ask"]["output"]) == (0, "fine now")


def test_steps_of_the_iteration_before_and_settings(lw: Place) -> None:
    """A reference to a step of the iteration before is empty in the first iteration; settings are
    filled.
    """
    lw.write(
        "flow.yaml",
        """
name: x
settings: {base: main}
repeat:
  max: 2
  output: last
  steps:
    - id: say
      script: echo "[$BEFORE] $BASE $PASS"
      env:
        BEFORE: "{{previous.steps.say.output}}"
        BASE: "{{setting.base}}"
        PASS: "{{iteration}}"
""",
    )
    told = lw("run", "flow.yaml", "go", "--json")
    assert told.code == 0
    assert told.json["output"].strip() == "[[] main 1] main 2"


def test_needs_and_files_are_shown(lw: Place) -> None:
    """show_needs and files put results and contents below the prompt."""
    agent = lw.probe({"say": "planned"}, {"say": "done"})
    lw.write("notes.md", "remember the milk")
    lw.write(
        "flow.yaml",
        f"""
name: x
agent: "{agent}"
steps:
  - {{id: plan, prompt: Plan.}}
  - {{id: work, needs: [plan], prompt: Work., show_needs: true, files: [notes.md]}}
""",
    )
    assert lw("run", "flow.yaml", "go", "--json").code == 0
    shown = lw.calls()[1]["prompt"]
    assert "### plan\n\nplanned" in shown
    assert "remember the milk" in shown


def test_checks_of_a_result(lw: Place) -> None:
    """A field that is exactly true ends a loop; so does an expression over the iteration."""
    lw.script(
        {"text": "a", "data": {"ok": "true"}}, {"text": "b", "data": {"ok": True}}, "x", "LGTM"
    )
    for until, passes in (("{result_field: ok}", 2), ("{expr: \"content == 'LGTM'\"}", 4)):
        lw.write(
            "flow.yaml",
            f"name: x\nagent: script:replies.yaml\ngoal: g\nrepeat: {{max: 4, until: {until}}}\n",
        )
        told = lw("run", "flow.yaml", "--json")
        assert (told.code, told.json["iterations"]) == (0, passes)


def test_convert_a_workflow_and_run_it(lw: Place) -> None:
    """A workflow of another dialect becomes a native file that does the same."""
    flow = """
name: release
agents:
  coder: {description: writes}
  judge:
    description: judges
    resultSchema: {type: object, properties: {done: {type: boolean}}, required: [done]}
steps:
  - {id: list, agent: coder, instructions: List.}
  - id: each
    agent: coder
    instructions: Do it.
    dependsOn: [list]
    loop: {forEach: "['a', 'b'].filter(x, x != '')", outputMode: cumulative}
  - id: refine
    agent: coder
    instructions: Refine.
    dependsOn: [each]
    loop: {maxIterations: 3, untilAgent: judge}
"""
    lw.write("flow.yaml", flow)
    agent = lw.script(
        {"when": {"step": "list"}, "text": "listed"},
        {"when": {"step": "each"}, "text": "did"},
        {"when": {"step": "each"}, "text": "did"},
        {"when": {"agent": "judge"}, "text": "", "data": {"done": True}},
        {"when": {"step": "refine"}, "text": "refined"},
    )
    before = lw("run", "flow.yaml", "Go", "--agent", agent, "--json")
    assert lw("convert", "flow.yaml", "--to", "native", "-o", "native.yaml").code == 0
    assert lw("validate", "native.yaml", "--json").json["files"][0]["dialect"] == "native"
    after = lw("run", "native.yaml", "Go", "--agent", agent, "--json")
    assert before.code == after.code == 0
    assert after.json["output"] == before.json["output"]
    assert after.json["steps"] == before.json["steps"]
    assert lw("convert", "flow.yaml", "--to", "zenflow").code == 2
