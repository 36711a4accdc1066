"""Calls of chat models: messages, requests, answers, turns, file attachments and prices.

These are our own records: events must not contain objects of a client library. A history is a
sequence of messages. A call and its result are matched by an id that is unique in the history, and
tools keep their own names here, whatever a provider's protocol requires.

What may happen in a healthy run is a value: a request ends with an answer or with a record that
says why there is none, never with an exception, and reports the usage and cost of each attempt.

A performer returns a turn. It knows which tools exist; the engine decides how each call is handled.
So a requested call has the tool's own name, whichever form the model used, the problem with the
call, if any, and the paths that it would touch, with links resolved.

The cost of a call is what the agent reports, else its tokens at a known price, else unknown.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from loopwright.model.plan import CHAT, Agent
from loopwright.model.record import JsonValue, Record


class MessagePart(Record, frozen=True, kw_only=True, tag_field="part"):
    """Base of the parts of a model's message. `extra` belongs to the wire format: it is returned
    with the part, and nothing else reads it (item ids, signatures of thoughts).
    """

    extra: dict[str, JsonValue] = {}


class TextPart(MessagePart, frozen=True, kw_only=True, tag="text"):
    """Text of the model."""

    text: str


class ThoughtPart(MessagePart, frozen=True, kw_only=True, tag="thought"):
    """A thought of the model; never a part of its answer."""

    text: str = ""


class CallPart(MessagePart, frozen=True, kw_only=True, tag="call"):
    """A tool call that the model requests. `args` is JSON as the model wrote it, which may be
    invalid if the model made an error or was cut off.
    """

    id: str
    tool: str
    args: str = "{}"


AnyPart: TypeAlias = TextPart | ThoughtPart | CallPart


class ChatMessage(Record, frozen=True, kw_only=True, tag_field="role"):
    """Base of all messages."""


class SystemMessage(ChatMessage, frozen=True, kw_only=True, tag="system"):
    """The author's message to the model in the middle of a history."""

    text: str


class FilePart(Record, frozen=True, kw_only=True):
    """A file that a model is shown: an image or a PDF. It is read when the model is called, and is
    not part of any event.
    """

    name: str
    media_type: str
    data: bytes


class UserMessage(ChatMessage, frozen=True, kw_only=True, tag="user"):
    """A message of a person, or of the engine on a person's behalf, to the model."""

    text: str
    files: tuple[FilePart, ...] = ()


class AssistantMessage(ChatMessage, frozen=True, kw_only=True, tag="assistant"):
    """One turn of the model, its parts in their order."""

    parts: tuple[AnyPart, ...] = ()

    @property
    def text(self) -> str:
        """The whole text, without thoughts."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def calls(self) -> tuple[CallPart, ...]:
        """The requested tool calls, in order."""
        return tuple(part for part in self.parts if isinstance(part, CallPart))


class ToolResult(Record, frozen=True, kw_only=True):
    """The result of one call, as the model sees it."""

    id: str
    tool: str
    text: str
    error: bool = False


class ToolMessage(ChatMessage, frozen=True, kw_only=True, tag="tool"):
    """The results of one turn's calls."""

    results: tuple[ToolResult, ...]


AnyMessage: TypeAlias = SystemMessage | UserMessage | AssistantMessage | ToolMessage


class ChatTool(Record, frozen=True, kw_only=True):
    """A tool as it is offered to a model; `schema` is the JSON Schema of its arguments, empty for a
    tool without arguments.
    """

    name: str
    description: str = ""
    schema: dict[str, JsonValue] = {}


MILLION = 1_000_000

CostSource: TypeAlias = Literal[
    "reported",  # the agent reports it
    "configured",  # a price in the settings
    "listed",  # the price list that comes with the installation
    "assumed",  # a price in the definition, for a model that the list does not have
    "local",  # the model runs on the user's own machine
    "script",  # a script states the cost of its replies
    "unknown",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """USD for a million tokens, and for one call. Cached tokens cost as much as other input unless
    they have a separate price.
    """

    input: float = 0.0
    output: float = 0.0
    cache_read: float | None = None
    call: float = 0.0

    @property
    def per_call(self) -> bool:
        """Whether the price of a call is known without its tokens."""
        return not self.input and not self.output and not self.cache_read


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """Tokens of one call. `cache_read` and `cache_write` are parts of `input`."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    def __bool__(self) -> bool:
        return bool(self.input or self.output)


def cost_at(price: Price, tokens: TokenCounts) -> float:
    """The cost of a call at a price, in USD."""
    cached = min(tokens.cache_read, tokens.input)
    read = price.input if price.cache_read is None else price.cache_read
    by_tokens = (tokens.input - cached) * price.input + cached * read + tokens.output * price.output
    return round(by_tokens / MILLION + price.call, 9)


def cost_of_call(
    reported: float | None,
    tokens: TokenCounts,
    *,
    configured: Price | None = None,
    local: bool = False,
    listed: Callable[[], float | None] = lambda: None,
) -> tuple[float | None, CostSource]:
    """The cost of a call in USD, and how it is known; None if it is unknown.

    The list is checked before a model counts as local: a model with a listed price that answers on
    this machine is reached through a proxy, and is paid for.
    """
    if reported is not None:
        return reported, "reported"
    if configured is not None and (tokens or configured.per_call):
        return cost_at(configured, tokens), "configured"
    if tokens:
        usd = listed()
        if usd is not None:
            return usd, "listed"
    if local:
        return 0.0, "local"
    return None, "unknown"


ModelFailureKind: TypeAlias = Literal[
    "auth",  # the key is missing, wrong, or not allowed to do this
    "bad_answer",  # the answer broke off or was invalid
    "bad_request",  # the service rejected the request itself
    "first_token_timeout",  # no output in time
    "idle_timeout",  # the output stopped in the middle
    "network",  # the service could not be reached, or the connection broke
    "no_model",  # there is no such model or provider
    "no_price",  # its price is not known, and the policy is to deny that
    "overflow",  # the prompt does not fit in the context window
    "overloaded",  # the service has no capacity now
    "quota",  # the account has no credit left
    "rate_limited",  # the service asks to come back later
    "refused",  # the service withheld the answer for its content
    "server",  # the service failed
    "wall_timeout",  # the exchange with all attempts took too long
]
Finish: TypeAlias = Literal["stop", "tool_calls", "length", "refused", "unknown"]
PricePolicy: TypeAlias = Literal["allow", "deny", "assume"]


class DecodingOptions(Record, frozen=True, kw_only=True):
    """How the model is to answer. Options without a value are left to the provider; a `schema`
    requests an answer that is JSON of this form.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    seed: int | None = None
    schema: dict[str, JsonValue] | None = None
    cache: bool = True  # long prompts are cached by the provider if possible, and cost less


class CallLimits(Record, frozen=True, kw_only=True):
    """The time limits of an exchange and its maximum number of attempts.

    `longest_wait_ms`: if a service requests a longer pause, the exchange ends with that time, so
    that the run can wait without a connection.
    """

    first_token_ms: int = 120_000
    idle_ms: int = 120_000
    total_ms: int = 900_000
    tries: int = 4  # of each model
    base_ms: int = 500
    cap_ms: int = 30_000
    longest_wait_ms: int = 60_000


class Pricing(Record, frozen=True, kw_only=True):
    """The policy for a model with an unknown price: call it with an unknown cost, do not call it,
    or assume a cost (USD for a million tokens).
    """

    unknown: PricePolicy = "allow"
    input_usd: float = 0.0
    output_usd: float = 0.0


class ModelRequest(Record, frozen=True, kw_only=True):
    """A request to a chat model. `models` are tried in their order, each `PROVIDER/NAME`."""

    models: tuple[str, ...]
    messages: tuple[AnyMessage, ...]
    system: str = ""
    tools: tuple[ChatTool, ...] = ()
    decoding: DecodingOptions = DecodingOptions()
    limits: CallLimits = CallLimits()
    pricing: Pricing = Pricing()
    key: str = ""  # of the effect: the same for each attempt


class ModelUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The usage of one attempt. `input_tokens` includes tokens read from or written to a cache.

    `measured` is False if the service reported nothing (the counts are then meaningless), and `usd`
    is None if the price is unknown. Neither is ever reported as zero.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    usd: float | None = None
    price: CostSource = "unknown"
    measured: bool = True


NOTHING_USED = ModelUsage(usd=0.0, price="listed")
"""Usage of an attempt that a service rejected, or that never reached one. It costs nothing."""


class ModelFailure(Record, frozen=True, kw_only=True):
    """Why there is no answer. `retry_at_ms` is the time at which the service expects to
    have one.
    """

    kind: ModelFailureKind
    detail: str = ""
    model: str = ""
    status: int | None = None
    retry_at_ms: int | None = None


class ModelAttempt(Record, frozen=True, kw_only=True):
    """One request that was sent, or would have been; `failure` is None for the one that
    succeeded.
    """

    number: int
    model: str
    usage: ModelUsage
    ms: int = 0
    failure: ModelFailure | None = None


class AttemptStarted(Record, frozen=True, kw_only=True, tag="attempt.started"):
    """An attempt starts. The output of an earlier attempt is void."""

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
    """A piece of a tool call: its name in the first one, then parts of its arguments."""

    part: int
    tool: str = ""
    args: str = ""


class AttemptFailed(Record, frozen=True, kw_only=True, tag="attempt.failed"):
    """An attempt failed. Another follows after `wait_ms`; with None the exchange ends."""

    attempt: ModelAttempt
    wait_ms: int | None = None


class ModelAnswer(Record, frozen=True, kw_only=True, tag="answered"):
    """The end of a successful exchange; `model` is the model that answered, by its own name."""

    message: AssistantMessage
    finish: Finish
    model: str
    attempts: tuple[ModelAttempt, ...]


class UnansweredRequest(Record, frozen=True, kw_only=True, tag="unanswered"):
    """The end of a failed exchange."""

    failure: ModelFailure
    attempts: tuple[ModelAttempt, ...]


ModelEnd: TypeAlias = ModelAnswer | UnansweredRequest
ModelEvent: TypeAlias = (
    AttemptStarted
    | TextDelta
    | ThoughtDelta
    | CallDelta
    | AttemptFailed
    | ModelAnswer
    | UnansweredRequest
)


def total_usage(attempts: tuple[ModelAttempt, ...]) -> ModelUsage:
    """The sum of all attempts; if a part is unknown, the whole is unknown."""
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


class RequestedCall(Record, frozen=True, kw_only=True):
    """One call that the model requests. `problem` says why it cannot be run; the model receives it.
    `paths` is None if the paths that the call would touch are unknown.
    """

    id: str
    tool: str
    arguments: JsonValue = None
    problem: str = ""
    paths: tuple[str, ...] | None = None
    protected: bool = False  # one of the paths is on the list of protected ones


class ModelTurn(Record, frozen=True, kw_only=True):
    """The output of a model and the tool calls that it requests. `task` is the task it was given,
    for a later conversation that continues this one.
    """

    message: AssistantMessage
    calls: tuple[RequestedCall, ...] = ()
    finish: Finish = "stop"
    model: str = ""
    task: str = ""


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(ModelTurn)


def encode_turn(turn: ModelTurn) -> str:
    return _ENCODER.encode(turn).decode()


def decode_turn(text: str) -> ModelTurn:
    return _DECODER.decode(text)


Medium: TypeAlias = Literal["image", "pdf"]

MEDIA_TYPES = {
    ".gif": "image/gif",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".pdf": "application/pdf",
    ".png": "image/png",
    ".webp": "image/webp",
}

# All current models of these services accept both. For other services the name of the model
# decides.
_BOTH = ("anthropic", "google")
_OPENAI = ("openai", "openai-responses")
_TEXT_ONLY = re.compile(r"gpt-3|gpt-4(?!o|\.|-turbo|-vision)|o1-mini|o3-mini|instruct|davinci")
_SEES = re.compile(
    r"vision|-vl\b|vl:|\bvl|llava|pixtral|gemma-?3|llama-?4|minicpm-v|moondream|claude|gemini"
    r"|gpt-4o|gpt-4\.|gpt-5|grok-4|mistral-(small|medium)-(3|2[5-9])",
    re.IGNORECASE,
)


def media_type(name: str) -> str | None:
    """The media type of an image or a PDF by the name of its file; None for any other file."""
    dot = name.rfind(".")
    return MEDIA_TYPES.get(name[dot:].lower()) if dot >= 0 else None


def can_see(agent: Agent, media: str) -> bool:
    """Whether an agent accepts a file of this media type as a part of its prompt. An agent with
    several models does so only if all of them do.
    """
    if not agent.is_chat:
        return False
    medium: Medium = "pdf" if media == "application/pdf" else "image"
    models = (agent.spec or "").removeprefix(CHAT).split(",")
    return all(_model_sees(one.strip(), medium) for one in models)


def _model_sees(model: str, medium: Medium) -> bool:
    provider, _, name = model.partition("/")
    if provider in _BOTH:
        return True
    if provider in _OPENAI:
        return _TEXT_ONLY.search(name) is None
    if provider == "openrouter" and medium == "pdf":
        return True  # it converts them to text for models that do not accept them
    return medium == "image" and _SEES.search(name) is not None
