"""The progress log in a prompt: recent entries in full, older ones condensed."""

from collections import Counter

from loopwright.kernel.frames import RepeatBody

FULL_ENTRIES = 400
"""At most so many entries are shown in full, however short they are."""
CONDENSED_ENTRIES = 200
"""So many entries before those are looked at for what they had in common."""
CONDENSED_KINDS = 5
"""So many different ones of them are named."""


def progress_log(repeat: RepeatBody, total: int) -> str:
    """One line for each iteration before, in at most `total` characters; 0 means no limit.

    The work depends on the size alone and not on the number of iterations.
    """
    learnings = repeat.learnings
    count = repeat.forgotten + len(learnings)
    heading = f"## Progress Log (previous {count} iteration{'s' if count != 1 else ''})"
    if not total:
        return "\n".join([heading, *_entries(learnings, 1)])
    shown = _fitting(learnings, total - total // 4)
    if shown == count:
        return "\n".join([heading, *_entries(learnings, 1)])
    older = learnings[-shown - CONDENSED_ENTRIES : -shown]
    condensed = _condensed(older, count - shown, total // 4)
    return "\n".join([heading, *condensed, *_entries(learnings[-shown:], count - shown + 1)])


def _entries(learnings: list[str], first: int) -> list[str]:
    return [f"- Iteration {n}: {text}" for n, text in enumerate(learnings, start=first)]


def _fitting(learnings: list[str], room: int) -> int:
    """How many of the most recent entries fit; the last one is always shown."""
    shown = 0
    for text in reversed(learnings[-FULL_ENTRIES:]):
        room -= len(text) + len("- Iteration 1000: \n")
        if room < 0 and shown:
            break
        shown += 1
    return shown


def _condensed(older: list[str], last: int, room: int) -> list[str]:
    """Iterations 1 to `last` in a few lines: what the most recent of them reported, the newest
    last, each different report once with how often it occurs.
    """
    whole = f"- Iterations 1–{last}, condensed" if last > 1 else "- Iteration 1, condensed"
    each = max(room // CONDENSED_KINDS - len("  - 200 × \n"), 20)
    kinds = Counter(_cut(text, each) for text in older)
    recent = list(dict.fromkeys(_cut(text, each) for text in reversed(older)))[:CONDENSED_KINDS]
    lines = [f"  - {kinds[text]} × {text}" for text in reversed(recent)]
    if len(older) < last:
        whole += f"; the last {len(older)} of them reported"
    others = len(older) - sum(kinds[text] for text in recent)
    return [f"{whole}:", *([f"  - {others} others"] if others else []), *lines]


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"
