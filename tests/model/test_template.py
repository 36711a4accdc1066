"""Templates: literal text is itself."""

from __future__ import annotations

from loopwright.model.record import Lit, literal


def test_literal_text_is_one_part() -> None:
    """Text that looks like a placeholder stays text."""
    assert literal("use ${x} and $(id)") == (Lit(text="use ${x} and $(id)"),)


def test_no_text_is_no_template() -> None:
    """An empty text means that nothing was written."""
    assert literal("") == ()
