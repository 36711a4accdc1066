"""Between jobs and exchanges: what a job asks of a model, and what an exchange comes to."""

from collections.abc import Mapping

from loopwright.kernel.facts import Failure, Usage
from loopwright.model.exchange import (
    Attempt,
    CallLimits,
    Decoding,
    ModelFailure,
    ModelFailureKind,
    ModelRequest,
    PricePolicy,
    Pricing,
    total_usage,
)
from loopwright.model.messages import ToolSpec
from loopwright.model.plan import CHAT, Agent
from loopwright.model.policy import FailureKind
from loopwright.model.record import JsonValue
from loopwright.ports import Job

DEFAULT_WALL_MS = 900_000
MOST_TOKENS = 1_000_000_000_000  # more than that nobody has counted

_POLICIES: dict[str, PricePolicy] = {"allow": "allow", "deny": "deny"}
_KINDS: dict[ModelFailureKind, FailureKind] = {
    "auth": "not_signed_in",
    "bad_answer": "overloaded",
    "bad_request": "bad_input",
    "first_token_timeout": "idle_timeout",
    "idle_timeout": "idle_timeout",
    "network": "overloaded",
    "no_model": "not_found",
    "no_price": "budget_limit",
    "overflow": "overflow",
    "overloaded": "overloaded",
    "quota": "budget_limit",
    "rate_limited": "rate_limited",
    "refused": "agent",
    "server": "overloaded",
    "wall_timeout": "wall_timeout",
}


def models_of(agent: Agent) -> tuple[str, ...]:
    """The models of an agent, in the order in which they are asked."""
    named = (agent.spec or "").removeprefix(CHAT)
    return tuple(name.strip() for name in named.split(",") if name.strip())


def request_of(job: Job, tools: tuple[ToolSpec, ...]) -> ModelRequest:
    """What is asked of the model for a job."""
    agent = job.agent or Agent()
    idle = job.idle_ms or CallLimits().idle_ms
    return ModelRequest(
        models=models_of(agent),
        messages=job.messages,
        system=agent.system if job.system is None else job.system,
        tools=tools,
        decoding=Decoding(
            temperature=agent.temperature,
            top_p=_share(agent.options.get("top_p")),
            max_output_tokens=_whole(agent.options.get("max_output_tokens")),
            seed=_whole(agent.options.get("seed")),
        ),
        limits=CallLimits(
            first_token_ms=idle, idle_ms=idle, total_ms=job.wall_ms or DEFAULT_WALL_MS
        ),
        pricing=pricing_of(agent.options, budgeted=job.budgeted and job.covered),
        key=f"{job.run}/{job.effect}",
    )


def _share(value: JsonValue) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value <= 1 else None


def _whole(value: JsonValue) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def pricing_of(options: Mapping[str, JsonValue], *, budgeted: bool) -> Pricing:
    """What is done about an unknown price. Where money is limited and nobody said otherwise, such
    a model is not asked: a limit that counts nothing is none.
    """
    said = options.get("unknown_price")
    default: PricePolicy = "deny" if budgeted else "allow"
    if isinstance(said, dict):
        return Pricing(
            unknown="assume",
            input_usd=_number(said.get("input_usd")),
            output_usd=_number(said.get("output_usd")),
        )
    return Pricing(unknown=_POLICIES.get(said, default) if isinstance(said, str) else default)


def _number(value: JsonValue) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def is_measured(attempts: tuple[Attempt, ...]) -> bool:
    """Whether the service told what every attempt used, in numbers that can be."""
    return all(one.usage.measured and _is_count(one.usage.output_tokens) for one in attempts)


def _is_count(tokens: int) -> bool:
    return 0 <= tokens < MOST_TOKENS


def usage_of(attempts: tuple[Attempt, ...]) -> Usage:
    """What all attempts have used; a price that nobody knows is counted as such, never as zero."""
    whole = total_usage(attempts)
    return Usage(
        input_tokens=min(max(whole.input_tokens, 0), MOST_TOKENS),
        output_tokens=min(max(whole.output_tokens, 0), MOST_TOKENS),
        usd=round(max(sum(one.usage.usd or 0.0 for one in attempts), 0.0), 9),
        unpriced=sum(one.usage.usd is None for one in attempts),
        cache_read_tokens=min(max(whole.cache_read_tokens, 0), MOST_TOKENS),
        cache_write_tokens=min(max(whole.cache_write_tokens, 0), MOST_TOKENS),
    )


def failure_of(failure: ModelFailure) -> Failure:
    """Why there is no turn, in the engine's words."""
    kind = _KINDS[failure.kind]
    until = failure.retry_at_ms if kind == "rate_limited" else None
    model = f"{failure.model}: " if failure.model and failure.model not in failure.detail else ""
    return Failure(type=kind, detail=f"{model}{failure.detail or failure.kind}", resets_at=until)
