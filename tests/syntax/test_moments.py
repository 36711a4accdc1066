"""Times in definitions: spans in seconds, and points in time with their zone."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.syntax.notations import point_ms, span_ms, write_point


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        pytest.param(3600, 3_600_000, id="seconds"),
        pytest.param(0.5, 500, id="part of one"),
        pytest.param("90.5", 90_500, id="in quotes"),
        pytest.param(0, None, id="none"),
        pytest.param(-1, None, id="less than none"),
        pytest.param(10**10, None, id="too many"),
        pytest.param(True, None, id="yes"),
        pytest.param("soon", None, id="a word"),
        pytest.param([], None, id="a list"),
    ],
)
def test_spans(value: object, ms: int | None) -> None:
    """Seconds are a number above 0, also in quotes."""
    assert span_ms(value) == ms


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        pytest.param("1970-01-01T00:00:00Z", 0, id="the epoch"),
        pytest.param("1970-01-01 00:01z", 60_000, id="no seconds"),
        pytest.param("1970-01-01T02:00:00+02:00", 0, id="east"),
        pytest.param("1969-12-31T19:00:00-0500", 0, id="west"),
        pytest.param("2024-02-29T00:00:00.25Z", 1_709_164_800_250, id="leap day"),
        pytest.param("2023-02-29T00:00:00Z", None, id="no leap day"),
        pytest.param("2000-02-29T00:00:00Z", 951_782_400_000, id="leap century"),
        pytest.param("1900-02-29T00:00:00Z", None, id="no leap century"),
        pytest.param("2027-01-31T18:00:00", None, id="no zone"),
        pytest.param("2027-13-01T00:00:00Z", None, id="no month"),
        pytest.param("2027-01-00T00:00:00Z", None, id="no day"),
        pytest.param("2027-01-01T24:00:00Z", None, id="no hour"),
        pytest.param("2027-01-01T00:60:00Z", None, id="no minute"),
        pytest.param("2027-01-01T00:00:60Z", None, id="no second"),
        pytest.param(3600, None, id="a number"),
    ],
)
def test_points(value: object, ms: int | None) -> None:
    """A point in time has a date, a time and a zone, and must exist."""
    assert point_ms(value) == ms


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        pytest.param(0, "1970-01-01T00:00:00Z", id="the epoch"),
        pytest.param(-1, "1969-12-31T23:59:59.999Z", id="before it"),
        pytest.param(1_709_164_800_250, "2024-02-29T00:00:00.250Z", id="leap day"),
        pytest.param(951_868_800_000, "2000-03-01T00:00:00Z", id="after a leap day"),
        pytest.param(4_102_444_799_000, "2099-12-31T23:59:59Z", id="end of a year"),
    ],
)
def test_points_in_words(ms: int, text: str) -> None:
    """In UTC, with a part of a second only where there is one."""
    assert write_point(ms) == text
    assert point_ms(text) == ms


@given(st.integers(min_value=-(10**13), max_value=10**14))
def test_points_are_written_as_they_are_read(ms: int) -> None:
    """What is written reads back, and means what the calendar says."""
    text = write_point(ms)
    assert point_ms(text) == ms
    assert datetime.fromisoformat(text) == datetime.fromtimestamp(ms / 1000, tz=UTC).replace(
        microsecond=ms % 1000 * 1000
    )
