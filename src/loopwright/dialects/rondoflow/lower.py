"""From an assistant document to the plan: one step, a loop around one call of the assistant."""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from loopwright.dialects.rondoflow.patterns import translate
from loopwright.dialects.rondoflow.surface import Assistant, Criteria, LoopBudget
from loopwright.model.actions import CallAgent, Repeat, Step
from loopwright.model.checks import Cap, Check, Command, Person, Regex
from loopwright.model.ids import MAIN
from loopwright.model.memory import ProgressLog
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import NO_LIMITS, Limits, Retry
from loopwright.syntax import Diagnostic, Document, check_text, validate

Path: TypeAlias = tuple[str | int, ...]

NAME = "rondoflow"
AGENT = "assistant"
REJECTED = "Manual approval was rejected by user"
TEST_TIMEOUT_MS = 60_000
IDLE_MS = 300_000
LEARNING_CHARS = 300

_VALUE = ("loopCriteria", "value")


def lower(document: Document) -> tuple[Plan | None, list[Diagnostic]]:
    """The plan, or all that is wrong; a plan may come with warnings."""
    assistant, problems = validate(Assistant, document)
    if isinstance(document.value, dict):
        problems += _rules(document, document.value)
        problems += _pattern(document, document.value)
    problems.sort(key=lambda one: (one.line, one.column))
    if assistant is None or any(one.severity == "error" for one in problems):
        return None, problems
    return _plan(assistant), problems


def _rules(document: Document, value: Mapping[str, object]) -> Iterator[Diagnostic]:
    """What concerns several keys, or must be visible."""
    if value.get("loopEnabled", False) is False:
        message = "looping is off for this assistant"
        hint = "set loopEnabled: true"
        yield document.error("loop-disabled", message, at=("loopEnabled",), hint=hint)
    for one, other in (("persona", "systemPrompt"), ("tools", "allowedTools")):
        if value.get(one) is not None and value.get(other) is not None:
            message = f"{one} and {other} exclude each other"
            yield document.error("mutually-exclusive", message, at=(other,), on_key=True)
    texts: list[tuple[Path, object]] = [((key,), value.get(key)) for key in ("name", "model")]
    for key in ("tools", "allowedTools"):
        names = value.get(key)
        texts += [((key, n), one) for n, one in enumerate(names if isinstance(names, list) else ())]
    for path, text in texts:
        problem = check_text(text) if isinstance(text, str) else None
        if problem:
            yield document.error("hidden-character", problem, at=path)


def _pattern(document: Document, value: Mapping[str, object]) -> Iterator[Diagnostic]:
    criteria = value.get("loopCriteria")
    if not isinstance(criteria, dict) or criteria.get("type") != "regex":
        return
    pattern = criteria.get("value")
    if not isinstance(pattern, str) or len(pattern) > 500:
        return
    found = translate(pattern)
    if found.never:
        hint = "the loop will run to its last iteration"
        message = f"the pattern is invalid and never matches: {found.says}"
        yield document.warning(found.code or "bad-regex", message, at=_VALUE, hint=hint)
    elif found.code:
        yield document.error(found.code, found.says, at=_VALUE, hint=found.hint)


def _plan(assistant: Assistant) -> Plan:
    tools = assistant.tools if assistant.tools is not None else assistant.allowed_tools
    agent = Agent(
        system=assistant.persona or assistant.system_prompt or "",
        model=assistant.model,
        tools=None if tools is None else tuple(tools),
        permission="bypassPermissions",
        max_usd=assistant.budget,
        idle_ms=IDLE_MS,
    )
    loop = Repeat(
        body=CallAgent(agent=AGENT),
        max=assistant.max_iterations,
        until=_check(assistant.loop_criteria),
        memory=ProgressLog(chars=LEARNING_CHARS),
        at_cap="complete",
        output="learning",
        broken_after=0,  # a test that cannot be started has not passed, and the loop goes on
    )
    return Plan(
        name=assistant.name,
        steps=(Step(id=MAIN, action=loop, retry=Retry(attempts=3)),),
        agents={AGENT: agent},
        description=assistant.description or "",
        limits=_limits(assistant.loop_budget),
        dialect=NAME,
    )


def _check(criteria: Criteria | None) -> Check:
    match criteria:
        case Criteria(type="regex", value=value):
            found = translate(value)
            return Regex(pattern=found.text, ignore_case=True, invalid=found.never)
        case Criteria(type="test_pass", value=value):
            return Command(argv=tuple(value.split()), timeout_ms=TEST_TIMEOUT_MS)
        case Criteria(type="manual"):
            return Person(answers=("approve", "reject", "continue"), rejected=REJECTED)
        case _:
            return Cap()


def _limits(budget: LoopBudget | None) -> Limits:
    if budget is None:
        return NO_LIMITS
    wall_ms = budget.minutes * 60_000 if budget.minutes else None
    return Limits(usd=budget.usd, tokens=budget.tokens, wall_ms=wall_ms)
