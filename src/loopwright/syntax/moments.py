"""Times as a definition writes them: seconds that may pass, or a point in time with its zone.

A definition means the same whenever and wherever it is read, so no clock is asked here.
"""

import re

_NUMBER = re.compile(r"\s*[0-9]+(?:\.[0-9]+)?\s*")
_POINT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?"
    r"(?:(Z|z)|([+-])(\d\d):?(\d\d))"
)
_MONTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_MOST_SECONDS = 10**9
_EPOCH_DAYS = 719_468  # from the first of March of the year 0


def span_ms(value: object) -> int | None:
    """Seconds that may pass, in milliseconds."""
    if isinstance(value, str):
        value = float(value) if _NUMBER.fullmatch(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value * 1000) if 0 < value <= _MOST_SECONDS else None


def point_ms(value: object) -> int | None:
    """A point in time, in milliseconds since the epoch."""
    found = _POINT.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return None
    year, month, day, hour, minute = (int(found[n]) for n in range(1, 6))
    second = int(found[6] or 0)
    if not (1 <= month <= 12 and 1 <= day <= _days_in(year, month)):
        return None
    if hour > 23 or minute > 59 or second > 59:
        return None
    zone = _zone_minutes(found)
    minutes = (_days(year, month, day) * 24 + hour) * 60 + minute - zone
    return (minutes * 60 + second) * 1000 + int((found[7] or "0").ljust(3, "0")[:3])


def write_point(ms: int) -> str:
    """The point in time that `point_ms` reads."""
    seconds, part = divmod(ms, 1000)
    days, of_day = divmod(seconds, 86_400)
    year, month, day = _date(days)
    clock = f"{of_day // 3600:02}:{of_day // 60 % 60:02}:{of_day % 60:02}"
    return f"{year:04}-{month:02}-{day:02}T{clock}{f'.{part:03}' if part else ''}Z"


def _date(days: int) -> tuple[int, int, int]:
    """The way back from days since the epoch."""
    era, of_era = divmod(days + _EPOCH_DAYS, 146_097)
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return year + era * 400 + (month <= 2), month, day


def _zone_minutes(found: "re.Match[str]") -> int:
    if found[8]:
        return 0
    minutes = int(found[10]) * 60 + int(found[11])
    return -minutes if found[9] == "-" else minutes


def _days_in(year: int, month: int) -> int:
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return 28 if month == 2 and not leap else _MONTHS[month - 1]


def _days(year: int, month: int, day: int) -> int:
    """Days since the epoch. Years begin in March here, so that a leap day is the last of one."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - _EPOCH_DAYS
