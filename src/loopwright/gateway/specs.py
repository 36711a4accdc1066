"""From `PROVIDER/NAME` to the place where that model is asked. Keys come from the environment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from loopwright.model.exchange import ModelFailure

Wire: TypeAlias = Literal["anthropic", "chat", "google", "responses"]

BASE_URL = "LOOPWRIGHT_MODEL_BASE_URL"
API_KEY = "LOOPWRIGHT_MODEL_API_KEY"
NO_KEY = "no-key"  # what a server is shown that wants none


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A service: which wire it speaks, where, and which variables hold its address and key."""

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
    """Where and as whom a model is asked. The key is not shown when this is printed."""

    provider: str
    wire: Wire
    model: str
    url: str
    key: str = field(repr=False)
    prices: str | None = None

    @property
    def spec(self) -> str:
        """The model as it was asked for."""
        return f"{self.provider}/{self.model}"


def endpoint_of(spec: str, env: Mapping[str, str]) -> Endpoint | ModelFailure:
    """The endpoint of a model, or why there is none, with the fix."""
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
    """A key for this address: ours goes only where our variable sends us."""
    if env.get(BASE_URL) and env.get(API_KEY):
        return env[API_KEY]
    return next((env[name] for name in provider.key_names if env.get(name)), None)


def _rooted(url: str, wire: Wire) -> str:
    """Clients of some wires add the version themselves, people often have it in the address."""
    url = url.rstrip("/")
    return url.removesuffix("/v1") if wire == "anthropic" else url
