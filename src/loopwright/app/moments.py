"""Moments as people and programs read them."""

from datetime import UTC, datetime


def timestamp(ms: int) -> str:
    """A time as RFC 3339 in UTC, with milliseconds."""
    moment = datetime.fromtimestamp(ms / 1_000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
