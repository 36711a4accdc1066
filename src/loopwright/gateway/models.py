"""Models by `PROVIDER/NAME`: their endpoints, prices and context windows, and names of their tools.
What the client library does for the gateway is here too: `ModelSpeaker` makes one attempt.

Keys come from the environment. Prices and context windows come from the settings and from a list
that is part of the installation; no network is used. A model that neither has a price nor runs on
the user's own machine is a case for a policy. It is never treated as free.

Services allow letters, digits, `_` and `-` in the name of a tool, at most 64 of them. The name of a
tool depends on the set of tools alone, not on their order, so a name stays the same from request to
request and after a restart.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from ipaddress import ip_address
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias
from urllib.parse import urlsplit

import msgspec

from loopwright.model.chat import (
    AssistantMessage,
    CallDelta,
    CostSource,
    Finish,
    ModelFailure,
    ModelRequest,
    ModelUsage,
    Price,
    Pricing,
    TextDelta,
    ThoughtDelta,
    TokenCounts,
    cost_at,
    cost_of_call,
)

if TYPE_CHECKING:
    from genai_prices import Usage

Wire: TypeAlias = Literal["anthropic", "chat", "google", "responses"]

BASE_URL = "LOOPWRIGHT_MODEL_BASE_URL"
API_KEY = "LOOPWRIGHT_MODEL_API_KEY"
NO_KEY = "no-key"  # sent to a server that requires no key


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A service: its protocol, its address, and the variables with its address and key."""

    wire: Wire
    key_names: tuple[str, ...] = ()
    url: str | None = None
    url_name: str | None = None
    prices: str | None = None  # its name in the list of prices


_OPENAI = Provider(
    wire="chat",
    key_names=("OPENAI_API_KEY",),
    url="https://api.openai.com/v1",
    url_name="OPENAI_BASE_URL",
    prices="openai",
)


def _compatible(url: str | None, key_name: str, prices: str | None = None) -> Provider:
    return Provider(wire="chat", key_names=(key_name,), url=url, prices=prices)


PROVIDERS: dict[str, Provider] = {
    "anthropic": Provider(
        wire="anthropic",
        key_names=("ANTHROPIC_API_KEY",),
        url="https://api.anthropic.com",
        url_name="ANTHROPIC_BASE_URL",
        prices="anthropic",
    ),
    "deepseek": _compatible("https://api.deepseek.com", "DEEPSEEK_API_KEY", "deepseek"),
    "google": Provider(
        wire="google",
        key_names=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        url="https://generativelanguage.googleapis.com",
        url_name="GOOGLE_GEMINI_BASE_URL",
        prices="google",
    ),
    "groq": _compatible("https://api.groq.com/openai/v1", "GROQ_API_KEY", "groq"),
    "local": Provider(wire="chat"),
    "mistral": _compatible("https://api.mistral.ai/v1", "MISTRAL_API_KEY", "mistral"),
    "ollama": Provider(wire="chat", url="http://127.0.0.1:11434/v1", url_name="OLLAMA_BASE_URL"),
    "openai": _OPENAI,
    "openai-responses": Provider(
        wire="responses",
        key_names=_OPENAI.key_names,
        url=_OPENAI.url,
        url_name=_OPENAI.url_name,
        prices=_OPENAI.prices,
    ),
    "openrouter": _compatible("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "openrouter"),
    "together": _compatible("https://api.together.xyz/v1", "TOGETHER_API_KEY", "together"),
    "xai": _compatible("https://api.x.ai/v1", "XAI_API_KEY", "x-ai"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Address and credentials of a model. The key is not shown when this is printed."""

    provider: str
    wire: Wire
    model: str
    url: str
    key: str = field(repr=False)
    prices: str | None = None

    @property
    def spec(self) -> str:
        """The model as it was requested."""
        return f"{self.provider}/{self.model}"


def endpoint_of(spec: str, env: Mapping[str, str]) -> Endpoint | ModelFailure:
    """The endpoint of a model, or why there is none, with a fix."""
    name, _, model = spec.partition("/")
    provider = PROVIDERS.get(name)
    if provider is None or not model:
        known = ", ".join(sorted(PROVIDERS))
        detail = f"{spec!r} names no model: write PROVIDER/NAME with one of {known}"
        return ModelFailure(kind="no_model", model=spec, detail=detail)
    own_url = env.get(provider.url_name, "") if provider.url_name else ""
    given = env.get(BASE_URL, "") or own_url
    url = given or provider.url
    if not url:
        detail = f"{name} has no address of its own: set {BASE_URL}"
        return ModelFailure(kind="no_model", model=spec, detail=detail)
    key = _key(provider, env)
    if key is None:
        if not given and provider.key_names:
            detail = f"no key for {name}: set {' or '.join(provider.key_names)}"
            return ModelFailure(kind="auth", model=spec, detail=detail)
        key = NO_KEY
    return Endpoint(
        provider=name,
        wire=provider.wire,
        model=model,
        url=_rooted(url, provider.wire),
        key=key,
        prices=provider.prices,
    )


def _key(provider: Provider, env: Mapping[str, str]) -> str | None:
    """A key for this address: our key is only sent to the address in our variable."""
    if env.get(BASE_URL) and env.get(API_KEY):
        return env[API_KEY]
    return next((env[name] for name in provider.key_names if env.get(name)), None)


def _rooted(url: str, wire: Wire) -> str:
    """Clients of some protocols add the version themselves, and people often include it in the
    address.
    """
    url = url.rstrip("/")
    return url.removesuffix("/v1") if wire == "anthropic" else url


_ONE = ModelUsage(input_tokens=1)
_PRIVATE_NAMES = (".localhost", ".local", ".lan", ".internal", ".home.arpa")


class Catalogue:
    """The port `ModelCatalogue`. The first query reads the list, 0.3 s of CPU. `prices` are those
    of the settings, by `PROVIDER/NAME`; `env` has the addresses of models.
    """

    def __init__(
        self, prices: Mapping[str, Price] | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self._configured = prices or {}
        self._env = env or {}

    def window(self, model: str) -> int | None:
        """The context window of `PROVIDER/NAME` in tokens, None if unknown."""
        provider, name = _in_list(model)
        return _listed_window(provider, name) if provider else None

    def price(
        self, model: str, input_tokens: int, output_tokens: int, pricing: Pricing
    ) -> float | None:
        """The cost of this many tokens in USD without a cache, None if unknown."""
        usage = ModelUsage(input_tokens=input_tokens, output_tokens=output_tokens)
        return self.priced(model, usage, pricing).usd

    def knows(self, model: str) -> bool:
        """Whether a model has a price."""
        return self.source(model, Pricing()) != "unknown"

    def source(self, model: str, pricing: Pricing) -> CostSource:
        """How the cost of a model is known."""
        return self.priced(model, _ONE, pricing).price

    def priced(self, model: str, usage: ModelUsage, pricing: Pricing) -> ModelUsage:
        """Usage with its price: the configured or listed one, else the result of the policy."""
        provider, name = _in_list(model)
        # A price in the definition is the author's, also for a model on the author's machine.
        is_assumed = pricing.unknown == "assume"
        if not usage.measured:
            # Without a price, a model on this machine costs nothing, whatever it counts; every
            # other cost is unknown.
            has_price = is_assumed or model in self._configured or bool(provider)
            free = not has_price and self.is_local(model)
            return msgspec.structs.replace(
                usage, usd=0.0 if free else None, price="local" if free else "unknown"
            )
        tokens = counts(usage)
        usd, source = cost_of_call(
            None,
            tokens,
            configured=self._configured.get(model),
            local=not is_assumed and self.is_local(model),
            listed=lambda: _listed_cost(provider, name, usage) if provider else None,
        )
        if usd is None and is_assumed:
            price = Price(input=pricing.input_usd, output=pricing.output_usd)
            usd, source = cost_at(price, tokens), "assumed"
        return msgspec.structs.replace(usage, usd=usd, price=source)

    def cost_of_call(
        self, provider: str | None, model: str, usage: ModelUsage, configured: Price | None
    ) -> float | None:
        """The cost of a whole call of an agent that reports its model; None if unknown. The
        settings name such a model with or without its provider.
        """
        names = (f"{provider}/{model}", model)
        found = (self._configured[name] for name in names if name in self._configured)
        usd, _ = cost_of_call(
            None,
            counts(usage),
            configured=next(found, configured),
            listed=lambda: _listed_cost_of_many(provider, model, usage) if model else None,
        )
        return usd

    def is_local(self, model: str) -> bool:
        """Whether a model is called on the user's own machine or in its private network."""
        to = endpoint_of(model, self._env)
        return isinstance(to, Endpoint) and is_private_host(urlsplit(to.url).hostname or "")


def counts(usage: ModelUsage) -> TokenCounts:
    """The tokens of a usage."""
    return TokenCounts(
        input=usage.input_tokens,
        output=usage.output_tokens,
        cache_read=usage.cache_read_tokens,
        cache_write=usage.cache_write_tokens,
    )


def is_private_host(host: str) -> bool:
    """Whether a host is this machine or one of its private network."""
    try:
        address = ip_address(host)
    except ValueError:
        name = host.lower()
        # A name without a dot is resolved by the local network only: a machine, or a container.
        is_single = bool(name) and "." not in name
        return is_single or name == "host.docker.internal" or name.endswith(_PRIVATE_NAMES)
    return address.is_loopback or address.is_private


def _in_list(spec: str) -> tuple[str, str]:
    """A model as the list names it; no provider if the list cannot contain it."""
    name, _, model = spec.partition("/")
    provider = PROVIDERS.get(name)
    return (provider.prices or "") if provider else "", model


_SAMPLE = 1_000  # tokens: below every threshold above which a provider charges more


def _listed_window(provider: str, model: str) -> int | None:
    """How many tokens a model's context holds, None if the list does not say."""
    from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415 - takes 0.3 s

    try:
        _, found = get_snapshot().find_provider_model(model, None, provider, None)
    except LookupError:
        return None
    return found.context_window


def _listed_cost(provider: str, model: str, usage: ModelUsage) -> float | None:
    """The cost of usage in USD, None if it is not in the list. Cached tokens are part of the input,
    so each is paid once, at its own price.
    """
    from genai_prices import Usage  # noqa: PLC0415 - takes 0.3 s

    read = min(usage.cache_read_tokens, usage.input_tokens)
    written = min(usage.cache_write_tokens, usage.input_tokens - read)
    parsed = Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=read,
        cache_write_tokens=written,
    )
    found = _price(provider, model, parsed)
    return None if found is None else float(found)


def _listed_cost_of_many(provider: str | None, model: str, usage: ModelUsage) -> float | None:
    """The cost of the requests of a whole call in USD, None if it is not in the list. Only their
    sum is known, so no request is assumed to exceed the threshold of a higher price.
    """
    from genai_prices import Usage  # noqa: PLC0415 - takes 0.3 s

    read = min(usage.cache_read_tokens, usage.input_tokens)
    written = min(usage.cache_write_tokens, usage.input_tokens - read)
    parts = (
        (usage.input_tokens - read - written, Usage(input_tokens=_SAMPLE)),
        (read, Usage(input_tokens=_SAMPLE, cache_read_tokens=_SAMPLE)),
        (written, Usage(input_tokens=_SAMPLE, cache_write_tokens=_SAMPLE)),
        (usage.output_tokens, Usage(output_tokens=_SAMPLE)),
    )
    total = Decimal(0)
    for count, sample in parts:
        price = _price(provider, model, sample)
        if price is None:
            return None
        total += price * count / _SAMPLE
    return float(total)


def _price(provider: str | None, model: str, usage: "Usage") -> Decimal | None:
    from genai_prices import calc_price  # noqa: PLC0415 - takes 0.3 s

    try:
        return calc_price(usage, model, provider_id=provider).total_price
    except (LookupError, ValueError):
        return None


LONGEST_DETAIL = 600
# The forms of common keys, for keys that a service quotes and that we do not know.
_KEYS = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|key)[-_][\w*-]{6,}|\bAIza[\w-]{10,}|\bBearer\s+\S+", re.I
)

Delta: TypeAlias = TextDelta | ThoughtDelta | CallDelta
OnDelta: TypeAlias = Callable[[Delta], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedTurn:
    """A completed turn. The usage has no price yet."""

    message: AssistantMessage
    finish: Finish
    model: str
    usage: ModelUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTurn:
    """An incomplete turn, with its usage so far."""

    failure: ModelFailure
    usage: ModelUsage


class ModelSpeaker(Protocol):
    """Sends one request and yields its output. Cancelling it closes the connection."""

    async def speak(
        self, to: Endpoint, request: ModelRequest, on_delta: OnDelta
    ) -> CompletedTurn | FailedTurn: ...

    async def load(self, to: Endpoint) -> None:
        """Prepare an endpoint, so that its first request is not delayed."""

    async def close(self) -> None:
        """Close every connection."""


def without_keys(text: str, keys: Iterable[str]) -> str:
    """A text for logs and events: keys masked, and not longer than needed."""
    for key in keys:
        if len(key) > 3:
            text = text.replace(key, "***")
    return _KEYS.sub("***", text)[:LONGEST_DETAIL]


LONGEST = 64
_NOT_ALLOWED_IN_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_HASH_CHARS = 8


@dataclass(frozen=True, slots=True)
class WireNames:
    """Both directions of the mapping."""

    there: dict[str, str]
    back: dict[str, str]

    def wire(self, tool: str) -> str:
        """The name of a tool in the protocol; for an unknown tool, a name that is allowed."""
        return self.there.get(tool) or _cleaned(tool)

    def tool(self, wire: str) -> str:
        """The tool that a model names; an unknown name is unchanged."""
        return self.back.get(wire, wire)


def wire_names(tools: Iterable[str]) -> WireNames:
    """Names for a set of tools: each its own if it is allowed and free, else one derived
    from it.
    """
    names = sorted(set(tools))
    wanted = Counter(_cleaned(name) for name in names)
    there = {}
    for name in names:
        clean = _cleaned(name)
        # A name that is valid as it is always keeps itself; of several others with the same result,
        # none does.
        there[name] = clean if clean == name or wanted[clean] == 1 else _hashed(name)
    return WireNames(there=there, back={wire: name for name, wire in there.items()})


def _cleaned(name: str) -> str:
    clean = _NOT_ALLOWED_IN_NAME.sub("_", name)
    return clean if 0 < len(clean) <= LONGEST else _hashed(name)


def _hashed(name: str) -> str:
    mark = hashlib.sha256(name.encode()).hexdigest()[:_HASH_CHARS]
    clean = _NOT_ALLOWED_IN_NAME.sub("_", name)[: LONGEST - _HASH_CHARS - 1]
    return f"{clean}_{mark}"
