"""How fast expressions are: python bench/cel.py

Evaluations include building the evaluator's own values from plain ones, as a run does it. Each
figure is the best of five rounds. Exit code 1 when the figure of the condition misses its target.
"""

import sys
import time
from collections.abc import Callable
from functools import partial

from loopwright.model.record import JsonValue
from loopwright.syntax.cel import Broken, Program, compile_cel

TARGET = 20_000
CONTENT = "word " * 3_276 + "LGTM"  # 16 KB
IDS = ["review", "list-services", *(f"s{n}" for n in range(200))]
MANY: dict[str, JsonValue] = {
    name: {"content": "y" * 2_000, "status": "completed", "result": {"n": 1}} for name in IDS
}
STEPS: dict[str, JsonValue] = {
    **MANY,
    "review": {"content": CONTENT, "status": "completed", "result": None},
    "list-services": {"result": {"services": [{"name": f"s{n}", "n": n} for n in range(1_000)]}},
}
HUNDRED = f"[{', '.join('1' * 100)}]"


def report(label: str, work: Callable[[], object], times: int) -> float:
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(times):
            work()
        best = min(best, (time.perf_counter() - begin) / times)
    print(f"{label:40}{1 / best:12,.0f} /s")
    return 1 / best


def program(text: str, *, lists: bool = False) -> Program:
    made = compile_cel(text, step_ids=IDS, wants="list" if lists else "bool")
    if not isinstance(made, Program):
        raise SystemExit(f"{text}: {made}")
    return made


def main() -> int:
    scope: dict[str, JsonValue] = {"steps": STEPS, "iteration": 1, "content": CONTENT}
    condition = program("steps.review.content.contains('LGTM')")
    rate = report(
        "condition on 16 KB, 202 steps in scope", partial(condition.evaluate, scope), 5_000
    )
    for label, text, times in (
        ("bare content", "content.contains('LGTM')", 5_000),
        ("iteration number", "iteration >= 3", 5_000),
        ("pattern on 16 KB", "content.matches('(?m)LGTM$')", 500),
        ("all of 202 steps", "steps.all(s, has(steps[s].result))", 20),
    ):
        report(label, partial(program(text).evaluate, scope), times)
    services = program("steps.list-services.result.services", lists=True)
    report("list of 1,000 mappings", partial(services.evaluate, scope), 5)
    serial = iter(range(1_000_000))
    report("compile a new text", lambda: program(f"content == '{next(serial)}'"), 200)
    report("compile a known text", lambda: program("content == ''"), 2_000)
    text = "true"
    for name in "abcd":
        text = f"{HUNDRED}.all({name}, {text})"
    begin = time.perf_counter()
    answer = program(text).evaluate({})
    spent = time.perf_counter() - begin
    refused = isinstance(answer, Broken) and answer.code == "too-much-work"
    print(
        f"100 million items: {'refused' if refused else 'NOT REFUSED'} after {spent * 1e3:.0f} ms"
    )
    print(f"condition: at least {TARGET:,} /s {'met' if rate >= TARGET else 'MISSED'}")
    return 0 if rate >= TARGET and refused else 1


if __name__ == "__main__":
    sys.exit(main())
