"""Findings of review rounds: which are new, which are gone, which came back; and where it leads.

A finding keeps its identity from round to round: by its own id, or else by where it is and what it
says, whatever the spelling. So a reviewer that repeats itself is told from one that finds more.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from loopwright.model.record import JsonValue

Trend: TypeAlias = Literal["", "converging", "plateau", "oscillating", "diverging"]

_SAYS = ("message", "title", "description", "text", "summary", "finding", "issue")
_WHERE = ("location", "file", "path")
_FEWEST = 2  # rounds that say nothing about a direction yet


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOfFindings:
    """What one round found, against the rounds before it."""

    open: int
    new: int
    gone: int
    back: int  # was gone in the round before, and is there again
    by_severity: dict[str, int] = field(default_factory=dict)


def finding_key(finding: JsonValue) -> str:
    """What makes two findings of different rounds the same."""
    if not isinstance(finding, dict):
        return _plain(str(finding))
    if named := finding.get("id"):
        return f"id {named}"
    said = next((finding[name] for name in _SAYS if finding.get(name)), "")
    where = next((finding[name] for name in _WHERE if finding.get(name)), "")
    return f"{_plain(str(where))} {_plain(str(said))}".strip()


def compared(rounds: Iterable[Sequence[JsonValue] | None]) -> list[RoundOfFindings | None]:
    """Every round against those before it. None stays None: nothing was reviewed in that one."""
    ever: set[str] = set()
    before: set[str] = set()
    told: list[RoundOfFindings | None] = []
    for findings in rounds:
        if findings is None:
            told.append(None)
            continue
        now = {finding_key(one) for one in findings}
        told.append(
            RoundOfFindings(
                open=len(now),
                new=len(now - ever),
                gone=len(before - now),
                back=len((now & ever) - before),
                by_severity=_severities(findings),
            )
        )
        ever |= now
        before = now
    return told


def trend(rounds: Iterable[RoundOfFindings | None]) -> Trend:
    """Where the newest rounds lead. Findings that come back are the mark of a loop that undoes in
    one round what it did in the round before.
    """
    last = [one for one in rounds if one is not None][-3:]
    if len(last) < _FEWEST:
        return ""
    if last[-1].back and last[-1].open:
        return "oscillating"
    counts = [one.open for one in last]
    if counts[-1] < counts[-2]:
        return "converging"
    if counts[-1] > counts[-2]:
        return "diverging"
    return "plateau" if counts[-1] else "converging"


def _severities(findings: Sequence[JsonValue]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in findings:
        severity = one.get("severity") if isinstance(one, dict) else None
        if isinstance(severity, str) and severity:
            found[severity] = found.get(severity, 0) + 1
    return found


def _plain(text: str) -> str:
    """A text without what changes when somebody says the same again."""
    return re.sub(r"[\W\d_]+", " ", text.casefold()).strip() or text.strip()
