"""Durations and token counts as people write them: `1h30m`, `500k`. None for anything else."""

import re

UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?")
MAX_DURATION_MS = 365 * UNITS_MS["d"]
_TOKENS = re.compile(r"(\d+)(?:\.(\d))?([kM])")
MAX_TOKENS = 1_000_000_000_000


def parse_duration(text: str) -> int | None:
    """A length of time in milliseconds, also one that is out of range."""
    found = _DURATION.fullmatch(text) if text else None
    if found is None:
        return None
    # Cut, so that a number of any length stays cheap: it is out of range anyway.
    amounts = [int(part[:15]) if part else 0 for part in found.groups()]
    return sum(n * unit for n, unit in zip(amounts, UNITS_MS.values(), strict=True))


def is_duration(value: int) -> bool:
    """Whether a length of time is within the range that definitions allow."""
    return 0 < value <= MAX_DURATION_MS


def parse_tokens(value: object) -> int | None:
    """A number of tokens, also one that is out of range."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = _TOKENS.fullmatch(value[:20]) if isinstance(value, str) else None
    if found is None:
        return None
    whole, tenth, unit = found.groups()
    return (int(whole) * 10 + int(tenth or 0)) * {"k": 100, "M": 100_000}[unit]


def is_token_count(value: int) -> bool:
    """Whether a number of tokens is within the range that definitions allow."""
    return 0 < value <= MAX_TOKENS
