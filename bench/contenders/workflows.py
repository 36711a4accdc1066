"""What the workloads of workflows work on: graphs, lists with inner steps, files, conditions."""

from __future__ import annotations

import time
from functools import partial

from loopwright.model.actions import CallAgent, Each, Repeat, Step, Steps
from loopwright.model.plan import Agent, Plan
from loopwright.model.record import LiteralItems

LAYERS = 10
NEEDS = 3
CONTENT = "word " * 3_276 + "LGTM"  # 16 KB
CONDITION = "steps.review.content.contains('LGTM')"


def dag_plan(steps: int) -> Plan:
    """Steps in ten layers, each with three needs in the layer before."""
    wide = steps // LAYERS
    made = [
        Step(
            id=f"s{layer}-{n}",
            action=CallAgent(agent="noop"),
            needs=tuple(f"s{layer - 1}-{(n + k) % wide}" for k in range(NEEDS)) if layer else (),
        )
        for layer in range(LAYERS)
        for n in range(wide)
    ]
    return Plan(name="dag", steps=tuple(made), agents={"noop": Agent()})


def inner_plan(items: int) -> Plan:
    """A list whose items go through three steps each, fifty at once."""
    call = CallAgent(agent="noop")
    chain = (
        Step(id="a", action=call),
        Step(id="b", action=call, needs=("a",)),
        Step(id="c", action=call, needs=("b",)),
    )
    each = Each(items=LiteralItems(values=tuple(range(items))), max_items=items, parallel=50)
    action = Repeat(body=Steps(steps=chain), each=each)
    return Plan(name="inner", steps=(Step(id="main", action=action),), agents={"noop": Agent()})


def zenflow_file(steps: int) -> bytes:
    """A file with conditions and loops, as people write them."""
    lines = ["name: hundred", "agents:", "  coder:", "    description: Writes code.", "steps:"]
    for n in range(steps):
        lines += [f"  - id: step-{n}", "    agent: coder", f"    instructions: Do part {n}."]
        if n:
            lines += [f"    dependsOn: [step-{n - 1}]"]
            lines += [f"    condition: steps.step-{n - 1}.content.contains('ok')"]
        if n % 10 == 9:
            lines = lines[:-1]
            lines += ["    loop:", "      maxIterations: 3", "      until: iteration >= 2"]
    return "\n".join(lines).encode()


def native_file(steps: int) -> bytes:
    """The same in native words, with judges."""
    lines = ["name: hundred", "agents: {coder: {}, critic: {}}", "agent: coder", "steps:"]
    for n in range(steps):
        lines += [f"  - id: step-{n}", f"    prompt: Do part {n} of {{{{message}}}}."]
        if n:
            lines += [f"    needs: [step-{n - 1}]"]
            lines += [f"    when: steps.step-{n - 1}.content.contains('ok')"]
        if n % 10 == 9:
            judge = "{judge: {agent: critic, prompt: Is it good?}}"
            lines += ["    repeat:", "      max: 3"]
            lines += [f"      until: {{any: [{{expr: iteration >= 2}}, {judge}]}}"]
    return "\n".join(lines).encode()


# What only two workloads need is imported by them: the others are to be measured without it.


def load(steps: int, times: int) -> float:
    """Seconds to read, check and lower a file once, of the slower dialect; the first time, which
    imports, is not counted.
    """
    files = {"zenflow": zenflow_file(steps), "native": native_file(steps)}
    return max(_load(data, name, times) for name, data in files.items())


def _load(data: bytes, dialect: str, times: int) -> float:
    from loopwright.operations.dialects import parse_definition  # noqa: PLC0415 - see above

    read = partial(parse_definition, data, file="hundred.yaml", force=dialect)
    read()
    begin = time.perf_counter()
    for _ in range(times):
        read()
    return (time.perf_counter() - begin) / times


def evaluations(times: int) -> float:
    """Seconds for so many evaluations of a condition on 16 KB."""
    from loopwright.syntax.cel import Program, Truth, compile_cel  # noqa: PLC0415 - see above

    program = compile_cel(CONDITION, step_ids=["review"], wants="bool")
    if not isinstance(program, Program):
        raise SystemExit(f"{CONDITION}: {program}")
    review = {"content": CONTENT, "status": "completed", "result": None}
    scope = {"steps": {"review": review}, "iteration": 1, "content": CONTENT}
    begin = time.perf_counter()
    for _ in range(times):
        if program.evaluate(scope) != Truth(holds=True):
            raise SystemExit("the condition does not hold")
    return time.perf_counter() - begin
