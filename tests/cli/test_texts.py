"""Texts for a terminal: nothing hidden, nothing that moves the cursor, columns that keep."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.cli.terminal import cleaned, cut, last_lines, one_line, padded, width


@pytest.mark.item("I-2")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("plain\ttext\n", "plain\ttext\n", id="plain"),
        pytest.param("\x1b[31mred\x1b[0m", "red", id="colour"),
        pytest.param("\x1b[2J\x1b[Hgone", "gone", id="clear screen"),
        pytest.param("a\x1b]0;title\x07b", "ab", id="title"),
        pytest.param("a\x1b]52;c;Zm9v\x1b\\b", "ab", id="clipboard"),
        pytest.param("\x1b]8;;http://x\x07link\x1b]8;;\x07", "link", id="hyperlink"),
        pytest.param("a\x1bPq data\x1b\\b", "ab", id="device control"),
        pytest.param("a\x9b31mb", "ab", id="eight-bit"),
        pytest.param("end\x1b[3", "end", id="cut off"),
        pytest.param("end\x1b]0;never closed", "end", id="never closed"),
        pytest.param("bell\x07 back\x08", "bell\\x07 back\\x08", id="controls"),
        pytest.param("one\r\ntwo\rthree", "one\ntwo\nthree", id="line ends"),
        pytest.param("evil\u202etxt.exe", "evil\\u202etxt.exe", id="direction"),
        pytest.param("half \ud800", "half \\ud800", id="surrogate"),
    ],
)
def test_cleaned(text: str, shown: str) -> None:
    """Sequences go, hidden characters are shown, ordinary text stays as it is."""
    assert cleaned(text) == shown


@given(st.text())
def test_nothing_hidden_is_left(text: str) -> None:
    """Whatever comes in, no control character but line end and tab comes out."""
    found = {unicodedata.category(char) for char in cleaned(text) if char not in "\n\t"}
    assert not found & {"Cc", "Cs"}
    assert "\x1b" not in cleaned(text)
    assert cleaned(cleaned(text)) == cleaned(text)


@pytest.mark.item("K8")
@given(st.text(), st.integers(min_value=1, max_value=30))
def test_a_column_keeps_its_width(text: str, cells: int) -> None:
    """A cell is as wide as its column, whatever stands in it."""
    assert width(padded(one_line(text), cells)) == cells


@pytest.mark.item("K8")
@pytest.mark.parametrize(
    ("text", "cells", "shown"),
    [
        pytest.param("日本語テスト", 7, "日本語…", id="wide"),
        pytest.param("🚀🚀🚀", 4, "🚀…", id="emoji"),
        pytest.param("a\u0301bc", 3, "a\u0301bc", id="combining"),
        pytest.param("שלום", 10, "שלום", id="right to left"),
        pytest.param("line\nbreak", 20, "line break", id="line break"),
        pytest.param("zero\u200bwidth", 20, "zero\\u200bwidth", id="zero width"),
        pytest.param("tab\there", 20, "tab here", id="tab"),
    ],
)
def test_one_line(text: str, cells: int, shown: str) -> None:
    """A name of any script fits its column."""
    assert one_line(text, cells) == shown


def test_last_lines() -> None:
    """The last lines that say something; none when none is wanted."""
    assert last_lines("a\n\nb\n \nc\n", 2) == ["b", "c"]
    assert last_lines("a", 0) == []
    assert cut("abc", 0) == ""
