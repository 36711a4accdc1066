"""Stored definitions as lists and pages show them."""

from loopwright.app.definitions import Stored
from loopwright.app.moments import timestamp
from loopwright.model.record import JsonValue


def stored_item(stored: Stored, *, text: bool = True) -> dict[str, JsonValue]:
    """A stored definition as one object, with its text or without."""
    why = None if stored.enabled else f"needs admin approval of digest {stored.digest}"
    return {
        "name": stored.name,
        "dialect": stored.dialect,
        "digest": stored.digest,
        "enabled": stored.enabled,
        "detail": why,
        "programs": list(stored.programs),
        "by": stored.by,
        "changed_at": timestamp(stored.changed_at),
        "version": stored.version,
        "text": stored.text if text else None,
    }
