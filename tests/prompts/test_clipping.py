"""Texts that are made to fit: what stays, and what is said about the rest."""

import pytest

from loopwright.prompts.sections import clip, clip_end


@pytest.mark.parametrize("text", ["", "short", "ä" * 50, "x" * 100])
def test_what_fits_stays_as_it_is(text: str) -> None:
    """Up to the last byte."""
    assert clip(text, 100) == text
    assert clip_end(text, 100) == text


def test_the_head_is_kept() -> None:
    """With a word on how much is missing."""
    assert clip_end("x" * 105, 100) == "x" * 100 + "\n[… truncated: 5 bytes left out]"


@pytest.mark.parametrize("letter", ["ä", "€", "😀"])
@pytest.mark.parametrize("size", [100, 101, 102, 103])
def test_a_character_is_kept_whole_or_left_out(letter: str, size: int) -> None:
    """The cut never falls into one, and what is left out is counted exactly."""
    text = letter * 200
    head, _, rest = clip_end(text, size).partition("\n")
    assert text.startswith(head)
    assert size - len(letter.encode()) < len(head.encode()) <= size
    assert f": {len(text.encode()) - len(head.encode())} bytes" in rest


@pytest.mark.parametrize("size", [0, -5])
def test_no_room_at_all(size: int) -> None:
    """Nothing stays but the word about it."""
    assert clip_end("abc", size) == "\n[… truncated: 3 bytes left out]"
