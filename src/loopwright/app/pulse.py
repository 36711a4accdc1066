"""The pulse of a server: what has to go round for runs to move, and when it last did."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

STALE_MS = 15_000
YOUNG_MS = 10_000

TASKS = "tasks"  # the thread that performs and records: it beats when it has time
LOOPS = "loops"  # takes up runs that nobody drives


@dataclass(slots=True)
class Pulse:
    """When each of them last went round."""

    began: int
    beats: dict[str, int] = field(default_factory=dict)

    def beat(self, name: str, now: int) -> None:
        self.beats[name] = now

    def is_ready(self, name: str, now: int) -> bool:
        """Whether it went round lately, or is too young to have."""
        last = self.beats.get(name)
        if last is None:
            return now - self.began < YOUNG_MS
        return now - last <= STALE_MS


def fingerprint(place: Path) -> str:
    """A name for a folder that tells two apart and does not say where they are."""
    return hashlib.sha256(str(place.resolve()).encode()).hexdigest()[:16]
