"""One exchange with a chat model: what is asked for, what comes back while it speaks, how it ends.

What may happen in a healthy run is a value here: an exchange ends with `Answered` or with
`Unanswered`, never with an exception, and says what each attempt has used and cost.
"""

from typing import Literal, TypeAlias

import msgspec

from loopwright.model.messages import AnyMessage, AssistantMessage, ToolSpec
from loopwright.model.prices import CostSource
from loopwright.model.record import JsonValue, Record

ModelFailureKind: TypeAlias = Literal[
    "auth",  # the key is missing, wrong, or not allowed to do this
    "bad_answer",  # the answer broke off or made no sense
    "bad_request",  # the service refuses the request itself
    "first_token_timeout",  # nothing was said in time
    "idle_timeout",  # it began to speak and fell silent
    "network",  # the service could not be reached, or the connection broke
    "no_model",  # there is no such model or provider
    "no_price",  # its price is not known, and the policy is to deny that
    "overflow",  # the prompt does not fit in the context window
    "overloaded",  # the service cannot take it now
    "quota",  # the account has no credit left
    "rate_limited",  # the service asks to come back later
    "refused",  # the service withheld the answer for its content
    "server",  # the service failed
    "wall_timeout",  # too long altogether, with all tries
]
Finish: TypeAlias = Literal["stop", "tool_calls", "length", "refused", "unknown"]
PricePolicy: TypeAlias = Literal["allow", "deny", "assume"]


class Decoding(Record, frozen=True, kw_only=True):
    """How the model is to answer. What is not named is the provider's own choice; a `schema` asks
    for an answer that is JSON of this shape.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    seed: int | None = None
    schema: dict[str, JsonValue] | None = None
    cache: bool = True  # long prompts are kept by the provider where it can, and cost less


class CallLimits(Record, frozen=True, kw_only=True):
    """How long an exchange may take and how often it is tried.

    `longest_wait_ms`: a service that asks for a longer pause is not waited for. The exchange ends
    then, with the time, so that the run can be parked until it comes.
    """

    first_token_ms: int = 120_000
    idle_ms: int = 120_000
    total_ms: int = 900_000
    tries: int = 4  # of each model
    base_ms: int = 500
    cap_ms: int = 30_000
    longest_wait_ms: int = 60_000


class Pricing(Record, frozen=True, kw_only=True):
    """What is done about a model whose price is not known: it may be asked and its cost stays
    unknown, it may not be asked, or its cost is assumed (USD for a million tokens).
    """

    unknown: PricePolicy = "allow"
    input_usd: float = 0.0
    output_usd: float = 0.0


class ModelRequest(Record, frozen=True, kw_only=True):
    """What is asked of a chat model. `models` are tried in their order, each `PROVIDER/NAME`."""

    models: tuple[str, ...]
    messages: tuple[AnyMessage, ...]
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    decoding: Decoding = Decoding()
    limits: CallLimits = CallLimits()
    pricing: Pricing = Pricing()
    key: str = ""  # of the effect: the same for each try of it


class ModelUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What one attempt has used. `input_tokens` has in it what a cache served or took.

    `measured` is False when the service told nothing (the counts are then no counts), and `usd`
    is None when nobody knows the price. Neither is ever passed off as zero.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    usd: float | None = None
    price: CostSource = "unknown"
    measured: bool = True


NOTHING_USED = ModelUsage(usd=0.0, price="listed")
"""Of an attempt that a service turned away, or that never reached one. It costs nothing."""


class ModelFailure(Record, frozen=True, kw_only=True):
    """Why there is no answer. `retry_at_ms` is when the service says that it will have one."""

    kind: ModelFailureKind
    detail: str = ""
    model: str = ""
    status: int | None = None
    retry_at_ms: int | None = None


class Attempt(Record, frozen=True, kw_only=True):
    """One request that was sent, or would have been; `failure` is None for the one that worked."""

    number: int
    model: str
    usage: ModelUsage
    ms: int = 0
    failure: ModelFailure | None = None


class AttemptStarted(Record, frozen=True, kw_only=True, tag="attempt.started"):
    """An attempt begins. What an earlier attempt has said is void."""

    number: int
    model: str


class TextDelta(Record, frozen=True, kw_only=True, tag="text"):
    """A piece of the part with this number."""

    part: int
    text: str


class ThoughtDelta(Record, frozen=True, kw_only=True, tag="thought"):
    """A piece of a thought."""

    part: int
    text: str


class CallDelta(Record, frozen=True, kw_only=True, tag="call"):
    """A piece of a tool call: its name with the first one, then its arguments bit by bit."""

    part: int
    tool: str = ""
    args: str = ""


class AttemptFailed(Record, frozen=True, kw_only=True, tag="attempt.failed"):
    """An attempt did not work. Another follows after `wait_ms`; with None the exchange ends."""

    attempt: Attempt
    wait_ms: int | None = None


class Answered(Record, frozen=True, kw_only=True, tag="answered"):
    """The end of an exchange that worked; `model` is the one that answered, by its own name."""

    message: AssistantMessage
    finish: Finish
    model: str
    attempts: tuple[Attempt, ...]


class Unanswered(Record, frozen=True, kw_only=True, tag="unanswered"):
    """The end of an exchange that did not work."""

    failure: ModelFailure
    attempts: tuple[Attempt, ...]


ModelEnd: TypeAlias = Answered | Unanswered
ModelEvent: TypeAlias = (
    AttemptStarted | TextDelta | ThoughtDelta | CallDelta | AttemptFailed | Answered | Unanswered
)


def total_usage(attempts: tuple[Attempt, ...]) -> ModelUsage:
    """What all attempts have used together; something unknown in a part makes the whole unknown."""
    used = [one.usage for one in attempts]
    known = [one.usd for one in used if one.usd is not None]
    sources = {one.price for one in used}
    ranking: tuple[CostSource, ...] = ("unknown", "assumed", "configured", "listed", "local")
    return ModelUsage(
        input_tokens=sum(one.input_tokens for one in used),
        output_tokens=sum(one.output_tokens for one in used),
        cache_read_tokens=sum(one.cache_read_tokens for one in used),
        cache_write_tokens=sum(one.cache_write_tokens for one in used),
        usd=sum(known) if len(known) == len(used) else None,
        price=next((source for source in ranking if source in sources), "listed"),
        measured=all(one.measured for one in used),
    )
