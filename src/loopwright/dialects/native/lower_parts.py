"""From the parts of a definition to the parts of a plan: agents, inputs, limits, checks."""

from loopwright.dialects.native.parts import (
    AgentSpec,
    BudgetSpec,
    InputSpec,
    LoopLimitsSpec,
    PersonSpec,
    RetrySpec,
)
from loopwright.dialects.native.surface import CheckSpec, MemorySpec
from loopwright.dialects.native.templates import parse
from loopwright.model.checks import (
    AllOf,
    AnyOf,
    Cap,
    Check,
    Command,
    Contains,
    OutputSchema,
    Person,
    Regex,
    Signal,
)
from loopwright.model.memory import Memory, NoMemory, PreviousOutput, ProgressLog, SameSession
from loopwright.model.plan import Agent, Input
from loopwright.model.policy import NO_LIMITS, RETRYABLE, Limits, Retry

DEFAULT_RETRY = Retry(attempts=3)
"""A provider that asks to come back later does not end a run."""


def lower_agent(spec: AgentSpec) -> Agent:
    return Agent(
        spec=spec.use,
        system=spec.system,
        model=spec.model,
        tools=None if spec.tools is None else tuple(spec.tools),
        deny_tools=tuple(spec.deny_tools),
        permission=spec.permission,
        max_turns=spec.max_turns,
        max_usd=spec.max_usd,
        temperature=spec.temperature,
        env=spec.env,
        pass_env=tuple(spec.pass_env),
        idle_ms=spec.idle,
        wall_ms=spec.wall,
        options=spec.options,
    )


def lower_input(spec: InputSpec) -> Input:
    required = spec.default is None if spec.required is None else spec.required
    return Input(description=spec.description, required=required, default=spec.default)


def lower_limits(spec: BudgetSpec | None) -> Limits:
    if spec is None:
        return NO_LIMITS
    loop = spec if isinstance(spec, LoopLimitsSpec) else None
    return Limits(
        wall_ms=spec.time,
        pass_wall_ms=loop.pass_time if loop else None,
        idle_ms=spec.idle,
        tokens=spec.tokens,
        usd=spec.usd,
        identical=loop.identical if loop else None,
    )


def lower_retry(spec: RetrySpec | None) -> Retry:
    if spec is None:
        return DEFAULT_RETRY
    return Retry(
        attempts=spec.attempts,
        base_ms=spec.delay or 1_000,
        cap_ms=spec.max_delay or 60_000,
        on=tuple(spec.on) if spec.on else RETRYABLE,
    )


def lower_memory(spec: MemorySpec | None) -> Memory:
    match spec.kind if spec else "none":
        case "progress-log":
            return ProgressLog(chars=(spec and spec.chars) or 300)
        case "previous-output":
            return PreviousOutput()
        case "session":
            return SameSession()
        case _:
            return NoMemory()


def lower_check(spec: CheckSpec) -> Check:
    """The check that is meant; that exactly one is given has been made sure of before."""
    if spec.any is not None:
        return AnyOf(parts=tuple(lower_check(part) for part in spec.any))
    if spec.all is not None:
        return AllOf(parts=tuple(lower_check(part) for part in spec.all))
    person = spec.person or spec.manual
    if person is not None:
        return _person(person)
    if spec.command is not None:
        codes = tuple(spec.done_codes or (0,))
        timeout_ms = spec.timeout or 600_000
        return Command(argv=tuple(spec.command), timeout_ms=timeout_ms, done_codes=codes)
    return _text_check(spec)


def _text_check(spec: CheckSpec) -> Check:
    if spec.signal is not None:
        return Signal(word=spec.signal)
    if spec.regex is not None:
        return Regex(pattern=spec.regex, ignore_case=spec.ignore_case, invalid=spec.invalid)
    if spec.contains is not None:
        return Contains(text=spec.contains, ignore_case=spec.ignore_case)
    if spec.result_schema is not None:
        return OutputSchema(schema=spec.result_schema)
    return Cap()


def _person(spec: PersonSpec) -> Person:
    return Person(
        message=parse(spec.message)[0],
        answers=tuple(spec.answers or ("approve", "reject", "continue")),
        rejected=spec.rejected or "rejected by a person",
    )
