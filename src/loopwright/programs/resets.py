"""From what a provider says about its limits to a moment on our clock."""

from datetime import datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from loopwright.agents.clis.limits import Clock, Reset

LONGEST_S = 8 * 86_400
"""Beyond that it is no allowance that is renewed, but a mistake."""
MARGIN_S = 2


def resets_at(reset: Reset | None, now_s: float) -> int | None:
    """When a limit is over, in milliseconds since the epoch; None when nobody knows."""
    if reset is None:
        return None
    moment = _moment(reset, now_s) + MARGIN_S
    if not 0 < moment - now_s <= LONGEST_S:
        return None
    return int(moment * 1_000)


def _moment(reset: Reset, now_s: float) -> float:
    if reset.at is not None:
        return max(float(reset.at), now_s)
    if reset.after is not None:
        return now_s + reset.after
    assert reset.clock is not None
    return _next(reset.clock, now_s)


def _next(clock: Clock, now_s: float) -> float:
    """The next time that a clock in that zone shows this time of day."""
    here = datetime.fromtimestamp(now_s, tz=_zone(clock.zone)).astimezone(_zone(clock.zone))
    due = here.replace(hour=clock.hour, minute=clock.minute, second=0, microsecond=0)
    return (due if due > here else due + timedelta(days=1)).timestamp()


def _zone(name: str) -> tzinfo | None:
    """A zone by its name; that of this machine when there is none or nobody knows it."""
    try:
        return ZoneInfo(name) if name else datetime.now().astimezone().tzinfo
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return datetime.now().astimezone().tzinfo
