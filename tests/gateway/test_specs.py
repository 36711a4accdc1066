"""Where a model is asked, and as whom."""

import pytest

from loopwright.gateway.models import PROVIDERS, Endpoint, endpoint_of
from loopwright.model.chat import ModelFailure

SECRET = "sk-very-secret-0123456789"


@pytest.mark.parametrize(
    ("spec", "env", "url", "key"),
    [
        pytest.param(
            "openai/gpt-5",
            {"OPENAI_API_KEY": SECRET},
            "https://api.openai.com/v1",
            SECRET,
            id="own address",
        ),
        pytest.param(
            "openai/gpt-5",
            {"OPENAI_API_KEY": SECRET, "OPENAI_BASE_URL": "http://proxy/v1/"},
            "http://proxy/v1",
            SECRET,
            id="own variable",
        ),
        pytest.param(
            "anthropic/claude",
            {"LOOPWRIGHT_MODEL_BASE_URL": "http://box/v1", "LOOPWRIGHT_MODEL_API_KEY": "ours"},
            "http://box",
            "ours",
            id="our variables",
        ),
        pytest.param(
            "anthropic/claude",
            {"LOOPWRIGHT_MODEL_API_KEY": "ours", "ANTHROPIC_API_KEY": SECRET},
            "https://api.anthropic.com",
            SECRET,
            id="our key goes only to our address",
        ),
        pytest.param(
            "local/org/model:7b",
            {"LOOPWRIGHT_MODEL_BASE_URL": "http://box/v1"},
            "http://box/v1",
            "no-key",
            id="no key needed",
        ),
        pytest.param("ollama/x", {}, "http://127.0.0.1:11434/v1", "no-key", id="ollama"),
    ],
)
def test_endpoints(spec: str, env: dict[str, str], url: str, key: str) -> None:
    """Address and key come from the environment, ours before the provider's."""
    found = endpoint_of(spec, env)
    assert isinstance(found, Endpoint)
    assert (found.url, found.key, found.spec) == (url, key, spec)


@pytest.mark.parametrize(
    ("spec", "env", "kind", "fix"),
    [
        pytest.param("openai/gpt-5", {}, "auth", "set OPENAI_API_KEY", id="no key"),
        pytest.param("google/g", {}, "auth", "GEMINI_API_KEY or GOOGLE_API_KEY", id="two names"),
        pytest.param("local/x", {}, "no_model", "LOOPWRIGHT_MODEL_BASE_URL", id="no address"),
        pytest.param("nobody/x", {}, "no_model", "anthropic, deepseek", id="no such provider"),
        pytest.param("gpt-5", {}, "no_model", "PROVIDER/NAME", id="no provider"),
        pytest.param("openai/", {"OPENAI_API_KEY": "x"}, "no_model", "PROVIDER/NAME", id="no name"),
    ],
)
def test_refusals_name_the_fix(spec: str, env: dict[str, str], kind: str, fix: str) -> None:
    """What is missing is said with the variable to set."""
    failure = endpoint_of(spec, env)
    assert isinstance(failure, ModelFailure)
    assert failure.kind == kind
    assert fix in failure.detail


def test_a_key_is_not_shown() -> None:
    """An endpoint that is printed or logged does not give its key away."""
    found = endpoint_of("openai/gpt-5", {"OPENAI_API_KEY": SECRET})
    assert SECRET not in repr(found)


def test_every_provider_has_an_address_or_says_that_it_needs_one() -> None:
    """Only `local` has none."""
    assert [name for name, one in PROVIDERS.items() if not one.url] == ["local"]
