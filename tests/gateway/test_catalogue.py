"""Prices and context windows."""

import pytest

from loopwright.gateway.models import Catalogue
from loopwright.model.chat import ModelUsage, Pricing

MILLION = ModelUsage(input_tokens=100_000, output_tokens=10_000)
ASSUMED = Pricing(unknown="assume", input_usd=2.0, output_usd=10.0)


@pytest.mark.parametrize(
    ("model", "pricing", "usd", "price"),
    [
        pytest.param("openai/gpt-4o", Pricing(), 0.35, "listed", id="listed"),
        pytest.param("openai/gpt-4o", ASSUMED, 0.35, "listed", id="the list comes first"),
        pytest.param("local/x", Pricing(), None, "unknown", id="unknown"),
        pytest.param("openai/no-such-model", Pricing(), None, "unknown", id="not listed"),
        pytest.param("local/x", ASSUMED, 0.3, "assumed", id="assumed"),
    ],
)
def test_prices(model: str, pricing: Pricing, usd: float | None, price: str) -> None:
    """A listed price is used; another one is assumed if the policy says so; never zero."""
    priced = Catalogue().priced(model, MILLION, pricing)
    assert priced.price == price
    assert priced.usd == (None if usd is None else pytest.approx(usd))
    asked = Catalogue().price(model, 100_000, 10_000, pricing)
    assert asked == (None if usd is None else pytest.approx(usd))


@pytest.mark.parametrize(
    ("pricing", "usd", "price"),
    [
        pytest.param(Pricing(), 0.0, "local", id="without a price"),
        pytest.param(ASSUMED, 0.3, "assumed", id="with a price in the definition"),
    ],
)
def test_price_of_a_local_model(pricing: Pricing, usd: float, price: str) -> None:
    """A model on this machine costs nothing unless the definition gives it a price."""
    catalogue = Catalogue(env={"LOOPWRIGHT_MODEL_BASE_URL": "http://127.0.0.1:11434/v1"})
    priced = catalogue.priced("local/x", MILLION, pricing)
    assert (priced.usd, priced.price) == (pytest.approx(usd), price)


@pytest.mark.item("W27")
def test_cached_tokens_are_paid_once() -> None:
    """Tokens from a cache are a part of the input: cheaper than others, not on top of them."""
    plain = Catalogue().priced("openai/gpt-4o", MILLION, Pricing()).usd
    half = ModelUsage(input_tokens=100_000, output_tokens=10_000, cache_read_tokens=50_000)
    cached = Catalogue().priced("openai/gpt-4o", half, Pricing()).usd
    assert plain is not None
    assert cached is not None
    assert 0 < cached < plain


def test_what_was_not_measured_has_no_price() -> None:
    """Not even an assumed one."""
    usage = Catalogue().priced("local/x", ModelUsage(measured=False), ASSUMED)
    assert usage.usd is None


@pytest.mark.parametrize(
    ("model", "window"),
    [
        pytest.param("openai/gpt-4o", 128_000, id="listed"),
        pytest.param("openai-responses/gpt-4o", 128_000, id="other wire"),
        pytest.param("local/x", None, id="local"),
        pytest.param("openai/no-such-model", None, id="not listed"),
        pytest.param("nobody/x", None, id="no provider"),
    ],
)
@pytest.mark.item("W30")
def test_windows(model: str, window: int | None) -> None:
    """The context window of a listed model, and no guess for another one."""
    assert Catalogue().window(model) == window
