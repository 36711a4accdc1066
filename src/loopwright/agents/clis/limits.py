"""When a provider lets us come back, read from what it says: a moment, a wait, or a time of day."""

import re
from dataclasses import dataclass

_EPOCH = re.compile(r"\|\s*(\d{10})(\d{3})?\b")
_UNIT = r"(?:ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)"
_SPAN = rf"\d{{1,9}}(?:\.\d{{1,9}})?\s?{_UNIT}\b"
# Written together (`1h20m`), the units have no end of a word between them.
_TIGHT = r"(?:\d{1,9}d)?(?:\d{1,9}h)?(?:\d{1,9}m)?(?:\d{1,9}(?:\.\d{1,9})?s)?"
_WAIT = re.compile(
    rf"(?:again|retry|resets?|available|wait)\s+(?:in|after)?\s*"
    rf"((?:{_SPAN})(?:,?\s+(?:and\s+)?{_SPAN})*|(?=\d){_TIGHT})",
    re.I,
)
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s?(ms|milli|s|m|h|d)", re.I)
_AFTER = re.compile(r"retry.?after[\"':= ]+(\d{1,9})", re.I)
_CLOCK = re.compile(
    r"(?:again|resets?)\s+(?:at\s+)?(\d{1,2})(?::(\d{2}))?\s?([ap])\.?m\b\.?"
    r"(?:\s*\(([A-Za-z][\w+-]*(?:/[\w+-]+)*)\))?",
    re.I,
)
_SECONDS = {"ms": 0.001, "milli": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A time of day, in a named zone or in that of this machine."""

    hour: int
    minute: int = 0
    zone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """When another try makes sense; exactly one of the three is known."""

    at: int | None = None  # seconds since the epoch
    after: float | None = None  # seconds from now
    clock: Clock | None = None


def reset_in(words: str) -> Reset | None:
    """What a refusal says about the time after it; None when it says nothing."""
    epoch = _EPOCH.search(words)
    if epoch is not None:
        return Reset(at=int(epoch.group(1)))
    after = _AFTER.search(words)
    if after is not None:
        return Reset(after=float(after.group(1)))
    clock = _clock(words)
    if clock is not None:
        return Reset(clock=clock)
    wait = _WAIT.search(words)
    return Reset(after=_sum(wait.group(1))) if wait is not None else None


def seconds(words: str) -> float | None:
    """The number of seconds that a header names."""
    words = words.strip()
    return float(words) if words.isascii() and words.isdigit() and len(words) < 10 else None


def _sum(span: str) -> float:
    return sum(float(n) * _SECONDS[unit.lower()] for n, unit in _PART.findall(span))


def _clock(words: str) -> Clock | None:
    found = _CLOCK.search(words)
    if found is None:
        return None
    hour, minute = int(found.group(1)), int(found.group(2) or 0)
    if not 1 <= hour <= 12 or minute > 59:
        return None
    afternoon = found.group(3).lower() == "p"
    return Clock(
        hour=hour % 12 + (12 if afternoon else 0), minute=minute, zone=found.group(4) or ""
    )
