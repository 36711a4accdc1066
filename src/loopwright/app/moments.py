"""Moments as people and programs read them."""

import secrets
from datetime import UTC, datetime

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def timestamp(ms: int) -> str:
    """A time as RFC 3339 in UTC, with milliseconds."""
    moment = datetime.fromtimestamp(ms / 1_000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def sortable_id(now_ms: int) -> str:
    """48 bits of time and 80 of chance, so that ids sort by age and never meet."""
    number = (now_ms << 80) | int.from_bytes(secrets.token_bytes(10), "big")
    digits = []
    for _ in range(26):
        digits.append(ALPHABET[number & 31])
        number >>= 5
    return "".join(reversed(digits))
