"""Decoding: what is not UTF-8 text is refused with its byte offset."""

import pytest

from loopwright.syntax.document import SourceText
from loopwright.syntax.readers import read


@pytest.mark.item("A22")
@pytest.mark.parametrize(
    ("data", "place", "words"),
    [
        pytest.param("a: 1".encode("utf-16"), (1, 1), "UTF-16", id="UTF-16"),
        pytest.param("a: 1".encode("utf-16-be"), (1, 1), "byte offset 0", id="UTF-16 no mark"),
        pytest.param("a: 1".encode("utf-32"), (1, 1), "UTF-32", id="UTF-32"),
        pytest.param(b"a: 1\nb: \xff", (2, 4), "byte offset 8", id="no UTF-8"),
        pytest.param(b"a: \xc3", (1, 4), "byte offset 3", id="cut off"),
        pytest.param(b"a: \xed\xa0\x80", (1, 4), "byte offset 3", id="surrogate"),
        pytest.param(b"a: \xc0\xaf", (1, 4), "byte offset 3", id="overlong"),
        pytest.param("é: a\x00b".encode(), (1, 5), "NUL at byte offset 5", id="NUL"),
        pytest.param(b"\xef\xbb\xbfa: \x00", (1, 4), "byte offset 6", id="after the mark"),
        pytest.param(b"a: \x1b[31m", (1, 4), "U+001B at byte offset 3", id="escape"),
        pytest.param(b"a: \x7f", (1, 4), "U+007F at byte offset 3", id="delete"),
        pytest.param("a: \x85".encode(), (1, 4), "U+0085 at byte offset 3", id="C1"),
        pytest.param("a: b\ufeffc".encode(), (1, 5), "U+FEFF", id="mark inside"),
        pytest.param(b"a: 1\r\nb: \x01", (2, 4), "byte offset 9", id="after CRLF"),
    ],
)
@pytest.mark.parametrize("file", ["f.yaml", "f.json"])
def test_undecodable_bytes_are_refused(
    data: bytes, place: tuple[int, int], words: str, file: str
) -> None:
    """The refusal names the byte offset and the line and column of it."""
    document, (found,) = read(data, file=file)
    assert document is None
    assert found.code == "encoding"
    assert (found.line, found.column) == place
    assert words in found.message


@pytest.mark.item("A22")
def test_the_mark_of_utf8_is_accepted() -> None:
    """A byte order mark changes neither value nor columns."""
    document, found = read(b"\xef\xbb\xbfa: 1", file="f.yaml")
    assert found == []
    assert document is not None
    assert document.key_at(["a"]) == (1, 1)


@pytest.mark.parametrize(
    ("offset", "place"),
    [(0, (1, 1)), (2, (1, 3)), (3, (2, 1)), (4, (3, 1)), (6, (3, 3)), (9, (3, 6))],
)
def test_positions_count_from_one(offset: int, place: tuple[int, int]) -> None:
    """A line end belongs to the line it ends; the end of the text has a position too."""
    assert SourceText("f", "ab\n\ncdefg").position(offset) == place
