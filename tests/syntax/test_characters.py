"""Characters that nobody sees."""

import pytest

from loopwright.syntax.document import check_text, hidden_characters


@pytest.mark.parametrize(
    "char",
    [
        pytest.param("\u202e", id="right-to-left override"),
        pytest.param("\u2066", id="left-to-right isolate"),
        pytest.param("\u2069", id="end of isolate"),
        pytest.param("\u200b", id="zero-width space"),
        pytest.param("\u200d", id="zero-width joiner"),
        pytest.param("\ufeff", id="zero-width no-break space"),
        pytest.param("\u00ad", id="soft hyphen"),
        pytest.param("\u2028", id="line separator"),
        pytest.param("\u3164", id="filler"),
        pytest.param("\U000e0041", id="tag letter"),
        pytest.param("\U000e0100", id="variation selector"),
        pytest.param("\x1b", id="escape"),
        pytest.param("\r", id="carriage return"),
        pytest.param("\x00", id="NUL"),
        pytest.param("\x85", id="next line"),
        pytest.param("\ud800", id="surrogate"),
    ],
)
def test_hidden_characters_are_found(char: str) -> None:
    """Each is found with its offset and named with its code point."""
    assert hidden_characters(f"ab{char}c{char}") == [(2, ord(char)), (4, ord(char))]
    message = check_text(f"ab{char}c")
    assert message is not None
    assert f"U+{ord(char):04X}" in message
    assert "character 3" in message


@pytest.mark.parametrize("text", ["", "plain", "two\n\tlines", "é", "مرحبا", "日本語", "😀", "а"])
def test_visible_text_passes(text: str) -> None:
    """Letters of any script, line feed and tab are not hidden."""
    assert hidden_characters(text) == []
    assert check_text(text) is None
