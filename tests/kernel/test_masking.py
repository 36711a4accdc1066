"""What looks like a secret is taken out; what does not, stays."""

import pytest

from loopwright.kernel.event_parts import MASK, MAX_DEPTH, mask, mask_text, mask_tokens
from loopwright.model.record import JsonValue


@pytest.mark.item("zenflow-67")
@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("curl -H 'Authorization: Bearer abc123def456'", "abc123def456"),
        ("authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("mysql --password hunter2", "hunter2"),
        ("mysql --password=hunter2 db", "hunter2"),
        ("export API_KEY=abcd", "abcd"),
        ('{"secret": "s e c"}', "s e c"),
        ("sk-abcdefgh1234", "sk-abcdefgh1234"),
        ("ghp_abcdefgh1234", "ghp_abcdefgh1234"),
        ("xoxb-1234567890", "xoxb-1234567890"),
        ("AKIAABCDEFGHIJKLMNOP", "AKIAABCDEFGHIJKLMNOP"),
        ("https://ann:pass@host/x", "ann:pass"),
    ],
)
def test_secrets_in_texts(text: str, masked: str) -> None:
    """Headers, options, assignments, keys by their look, and passwords in addresses are masked."""
    assert masked not in mask_text(text)
    assert MASK in mask_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "Read the basic rules, then the tokens.",
        "bearer certificates are fine",
        "risk-management and ask-me-anything",
        "https://host:8080/path",
        "",
    ],
)
def test_prose_stays(text: str) -> None:
    """Ordinary words are left alone."""
    assert mask_text(text) == mask_tokens(text) == text


def test_a_name_alone_says_nothing_in_prose() -> None:
    """In a message only what has the look of a key goes."""
    text = "the password: see the vault; key sk-abcdefgh1234"
    assert mask_tokens(text) == "the password: see the vault; key ***"


@pytest.mark.parametrize(
    ("value", "masked"),
    [
        pytest.param({"password": "x", "n": 1}, {"password": MASK, "n": 1}, id="by name"),
        pytest.param({"apiKey": 7}, {"apiKey": MASK}, id="a number"),
        pytest.param(
            {"token": True, "auth_token": "x"}, {"token": True, "auth_token": MASK}, id="flag"
        ),
        pytest.param({"secret": {"a": "b"}}, {"secret": {"a": "b"}}, id="an object is looked into"),
        pytest.param(["sk-abcdefgh1234", None, 1.5], [MASK, None, 1.5], id="list"),
    ],
)
def test_secrets_in_values(value: JsonValue, masked: JsonValue) -> None:
    """Values go by their look and by the name of their field."""
    assert mask(value) == masked


def test_depth_has_an_end() -> None:
    """What is nested without end is masked at some depth, not followed."""
    value: JsonValue = "x"
    for _ in range(MAX_DEPTH + 5):
        value = [value]
    assert MASK in str(mask(value))
