"""The core schema of YAML 1.2, value by value."""

import pytest

from loopwright.syntax.composer import BadScalar, resolve


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[(word, None) for word in ("", "~", "null", "Null", "NULL")],
        *[(word, True) for word in ("true", "True", "TRUE")],
        *[(word, False) for word in ("false", "False", "FALSE")],
        ("0", 0),
        ("-0", 0),
        ("+12", 12),
        ("-7", -7),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("0xfF", 255),
        ("1.5", 1.5),
        ("-.5", -0.5),
        ("1.", 1.0),
        ("1e3", 1000.0),
        ("12e-1", 1.2),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("0x7fffffffffffffff", 2**63 - 1),
        ("0" * 500 + "1", 1),
    ],
)
def test_values(text: str, value: object) -> None:
    """Null, booleans and numbers in all their spellings, with their type."""
    found = resolve(text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "text",
    [
        *["yes", "no", "on", "off", "y", "n", "nULL", "tRUE", "None"],
        *["1_000", "0b11", "0O17", "-0x1", "+0o7", "0x", "0o8", "1:30", "12:30:45", "1,5"],
        *["1e", "e3", ".", "-", "+", "--1", ".e1", "1.2.3", "inf", "nan", "-.nan", ".iNf"],
        *["2024-01-01", "١٢", "1 2", "1\n", "~ ", "=", "<<"],
    ],
)
def test_text(text: str) -> None:
    """Everything else is text, as it stands."""
    assert resolve(text) == text


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("9223372036854775808", "out-of-range"),
        ("-9223372036854775809", "out-of-range"),
        ("0xffffffffffffffff", "out-of-range"),
        ("0o1777777777777777777777", "out-of-range"),
        ("1" * 100_000, "out-of-range"),
        ("1" * 100_000 + ".5", "not-finite"),
        (".inf", "not-finite"),
        (".NAN", "not-finite"),
        ("1e400", "not-finite"),
    ],
    ids=lambda text: text[:20],
)
def test_numbers_out_of_bounds(text: str, code: str) -> None:
    """Whole numbers fit 64 bits and fractions are finite, or they are refused, briefly."""
    found = resolve(text)
    assert isinstance(found, BadScalar)
    assert found.code == code
    assert len(found.message) < 200
