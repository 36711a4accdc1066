"""Cost limits of one call: while it runs, and when it has ended."""

from collections.abc import Callable
from typing import TypeAlias

from msgspec.structs import replace

from loopwright.kernel.facts import Failure, Usage
from loopwright.kernel.limits import COST_UNKNOWN
from loopwright.model.plan import Agent
from loopwright.ports import Answer, Done, Failed, Job

PriceUsage: TypeAlias = Callable[[Agent, str, Usage], Usage]
"""The usage of an agent's call with its cost, where a price is known; the text names the model."""

UNKNOWN_COST = Usage(unpriced=1)


def as_reported(agent: Agent, model: str, usage: Usage) -> Usage:
    """A price list without any price."""
    return usage


def live_failure(job: Job, agent: Agent, usage: Usage) -> Failure | None:
    """Why a call under way must end now: the limit that its usage exceeds."""
    if agent.max_usd is not None and usage.usd > agent.max_usd:
        return _over_call_limit(agent.max_usd, usage)
    words = job.meter.report(usage)
    return None if words is None else Failure(type="budget_limit", detail=words, outer=True)


def limited(job: Job, agent: Agent, answer: Answer) -> Answer:
    """The answer of a call that has ended, unless it cost more than one call may, or an unknown
    amount where USD are limited.
    """
    usage = answer.usage
    if usage is None or isinstance(answer, Failed):
        return answer
    failure: Failure | None = None
    if agent.max_usd is not None and usage.usd > agent.max_usd:
        failure = _over_call_limit(agent.max_usd, usage)
    elif usage.unpriced and job.covered and (job.budgeted or agent.max_usd is not None):
        failure = Failure(type="budget_limit", detail=COST_UNKNOWN)
    return answer if failure is None else _failed(answer, failure)


def call_budget(job: Job, agent: Agent) -> float | None:
    """The USD that one call may cost: the agent's own limit or what the budgets around it leave."""
    known = [one for one in (agent.max_usd, job.remaining_usd) if one is not None]
    return min(known, default=None)


def is_outer_limit(job: Job, agent: Agent) -> bool:
    """Whether a budget around the call is the smaller limit of the two."""
    left = job.remaining_usd
    return left is not None and (agent.max_usd is None or left <= agent.max_usd)


def with_price(price: PriceUsage, agent: Agent, answer: Answer) -> Answer:
    """The answer of a call with its cost."""
    if answer.usage is None or not answer.usage.unpriced:
        return answer
    return replace(answer, usage=price(agent, answer.model, answer.usage))


def _over_call_limit(most: float, usage: Usage) -> Failure:
    detail = f"spent {usage.usd:.4f} of {most:g} USD in one call"
    return Failure(type="budget_limit", detail=detail)


def _failed(answer: Done, failure: Failure) -> Failed:
    return Failed(
        error=failure,
        output=answer.output,
        usage=answer.usage,
        session=answer.session,
        code=answer.code,
        mark=answer.mark,
        tools=answer.tools,
        model=answer.model,
    )
