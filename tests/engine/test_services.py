"""Kernel services: texts by content, patterns in linear time, JSON Schema."""

import time

import pytest

from loopwright.engine.services import INLINE_BYTES, RECENT_CHARS, RECENT_TEXTS, TextServices
from loopwright.errors import NotFound, StorageError
from loopwright.model.plan import content_hash
from loopwright.model.record import Blob

LONG = "x" * 2_000


class Shelf:
    """Stored content, and how often it was asked for."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.loads: list[str] = []

    def load(self, name: str) -> bytes:
        self.loads.append(name)
        if name not in self.stored:
            raise NotFound(f"no {name}")
        return self.stored[name]


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def texts(shelf: Shelf) -> TextServices:
    return TextServices(shelf.load, lambda schema, value: f"{schema} {value}")


@pytest.mark.parametrize(
    "text",
    ["", "short", "x" * INLINE_BYTES, "ü" * (INLINE_BYTES // 2), "\U0001f600" * 256],
    ids=["empty", "short", "just fits", "two bytes each", "four bytes each"],
)
def test_a_short_text_is_itself(texts: TextServices, text: str) -> None:
    """What fits into an event is kept there, measured in bytes."""
    assert texts.keep(text) == text
    assert texts.take_fresh() == {}
    assert texts.read(text) == text


@pytest.mark.parametrize(
    "text", [LONG, "ü" * 513, "\U0001f600" * 257], ids=["ascii", "two bytes each", "four"]
)
def test_a_long_text_is_stored_by_content(texts: TextServices, text: str) -> None:
    """What does not fit is named by its content; size and head stay in the event."""
    kept = texts.keep(text)
    assert isinstance(kept, Blob)
    assert kept.blob == content_hash(text.encode())
    assert (kept.size, kept.head) == (len(text.encode()), text[:400])
    assert texts.read(kept) == text
    assert texts.take_fresh() == {kept.blob: text.encode()}
    assert texts.take_fresh() == {}


def test_the_same_text_has_the_same_name(texts: TextServices) -> None:
    """Content decides the name, so equal texts are stored once."""
    assert texts.keep(LONG) == texts.keep(LONG)
    assert len(texts.take_fresh()) == 1


def test_content_that_was_not_stored_comes_with_the_next_append(texts: TextServices) -> None:
    """What was taken and given back is taken again, beside what is new."""
    texts.keep(LONG)
    first = texts.take_fresh()
    texts.keep("y" * 2_000)
    texts.give_back(first)
    assert set(texts.take_fresh()) == {content_hash(b"x" * 2_000), content_hash(b"y" * 2_000)}


def test_stored_content_is_loaded_once(texts: TextServices, shelf: Shelf) -> None:
    """A text that was read lately is not asked for again."""
    name = content_hash(LONG.encode())
    shelf.stored[name] = LONG.encode()
    blob = Blob(blob=name, size=2_000)
    assert [texts.read(blob), texts.read(blob)] == [LONG, LONG]
    assert shelf.loads == [name]


def test_missing_content_is_an_error(texts: TextServices) -> None:
    """Content that is not there is told, never taken for empty."""
    with pytest.raises(StorageError, match="content none is missing"):
        texts.read(Blob(blob="none", size=1))


def test_nothing_is_an_empty_text(texts: TextServices) -> None:
    """No text reads as the empty one."""
    assert texts.read(None) == ""


@pytest.mark.parametrize(
    ("size", "count"),
    [(2_000, RECENT_TEXTS + 10), (RECENT_CHARS // 2, 5), (RECENT_CHARS * 2, 2)],
    ids=["many", "large", "huge"],
)
def test_what_is_remembered_is_bounded(texts: TextServices, size: int, count: int) -> None:
    """Neither many nor large texts pile up in memory."""
    for number in range(count):
        texts.read(texts.keep(f"{number}" + "z" * size))
        texts.take_fresh()
    remembered = list(texts._recent.values())
    assert 1 <= len(remembered) <= RECENT_TEXTS
    assert len(remembered) == 1 or sum(map(len, remembered)) <= RECENT_CHARS
    assert texts._recent_chars == sum(map(len, remembered))


@pytest.mark.parametrize("pad", [0, 2_000], ids=["short", "long"])
def test_half_a_surrogate_pair_is_replaced(texts: TextServices, pad: int) -> None:
    """A character that no store takes becomes a question mark instead of an error."""
    kept = texts.keep("a\ud800b" + "x" * pad)
    assert texts.read(kept) == "a?b" + "x" * pad


@pytest.mark.parametrize(
    ("pattern", "text", "ignore_case", "found"),
    [
        ("D.NE", "all DONE now", False, "DONE"),
        ("done", "all DONE now", False, None),
        ("done", "all DONE now", True, "DONE"),
        ("^b$", "a\nb", False, None),
        ("(?m)^b$", "a\nb", False, "b"),
        ("ü+", "grüün", False, "üü"),
    ],
)
def test_patterns_find_the_first_match(
    texts: TextServices, pattern: str, text: str, ignore_case: bool, found: str | None
) -> None:
    """A match is told by its text."""
    assert texts.matches(pattern, text, ignore_case=ignore_case) == found


@pytest.mark.item("B2")
def test_an_explosive_pattern_stays_linear(texts: TextServices) -> None:
    """The classic trap over 1 MB is a matter of milliseconds, not of ages."""
    began = time.process_time()
    assert texts.matches("(a+)+$", "a" * 1_000_000 + "!", ignore_case=False) is None
    assert time.process_time() - began < 1


def test_schemas_are_asked_elsewhere(texts: TextServices) -> None:
    """The question about a schema is handed on as it is."""
    assert texts.schema_problem({"a": 1}, 2) == "{'a': 1} 2"


def test_content_on_its_way_can_be_read(texts: TextServices, shelf: Shelf) -> None:
    """From when it is taken for an append until the next one, whether it is stored yet or not."""
    kept = texts.keep(LONG)
    texts.take_fresh()
    assert texts.read(kept) == LONG
    assert shelf.loads == []
