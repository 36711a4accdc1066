"""What differs between two recordings of the same thing, replaced by fixed words.

An id becomes a label with a number: the first run that is seen is `<run-1>` wherever it occurs, so
that a transcript still shows which ids are the same. Times, durations, ages, ports and the folders
of a test become a word in angle brackets.
"""

from __future__ import annotations

import json
import platform
import re
import sqlite3
from collections.abc import Mapping
from functools import partial
from typing import Any

from loopwright import __version__

LABELLED: tuple[tuple[str, str], ...] = (
    ("token", r"\blwt_[0-9a-f]{12}_[A-Za-z0-9-]{43}(?![A-Za-z0-9-])"),
    ("secret", r"\bwhsec_[A-Za-z0-9+/]{43}="),
    ("secret", r"(?<=/setup#)[A-Za-z0-9_.-]{20,}"),
    ("notification", r"\bntf_[0-9]+_[0-9]+_run_[0-9a-z]{26}\b"),
    ("run", r"\brun_[0-9a-z]{26}\b"),
    ("gate", r"\bgate_[0-9a-f]{20}\b"),
    ("session", r"\bses_[0-9a-z]{16,32}\b"),
    ("assistant", r"\bagent_[0-9a-z]{26}\b"),
    ("artifact", r"\bart_[0-9a-f]{16}\b"),
    ("webhook", r"\bhook_[0-9a-f]{16}\b"),
    ("message", r"\bmsg_[0-9a-f]{32}\b"),
    ("hash", r"\b(?:[0-9a-f]{64}|[0-9a-f]{40}|[0-9a-f]{32}|[0-9a-f]{16})\b"),
)
"""What gets a label: the name of the label, and how such an id is written."""

TIMES: tuple[tuple[str, str], ...] = (
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z| ?[+-]\d\d:?\d\d)?", "<time>"),
    (r"\b\d{4}-\d\d-\d\d(?: \d\d:\d\d)?\b", "<day>"),
    (r"(?<![\w:])\d\d:\d\d:\d\d(?![\w:])", "<clock>"),
    (r"(?<![\w.-])\d+(?:\.\d+)? (?:ms|s|min|h)\b(?! \d)", "<span>"),
    (r"(?<![\w.-])\d+ (?:min|h) \d+ (?:s|min)\b", "<span>"),
    (r"(?<=  )\d+(?:ms|s|m|h|d)(?=  |$)", "<age>"),
    (r"(?<![\w.-])\d+[smhd] ago\b", "<age> ago"),
)
"""Words that tell a time, a duration or an age; a line with one has no fixed width."""

SPAN_KEYS = frozenset({"ms", "seconds", "uptime"})
"""Fields of JSON that hold a duration as a number, and all that end with `_ms` or `_seconds`."""

TIME_KEYS = frozenset({"ts", "timestamp", "at_ms", "last_run_at", "expires"})
"""Fields of JSON that hold a time as a number."""

UNORDERED = frozenset({"tokens", "webhooks"})
"""Lists of JSON whose order is that of ids that are made at random."""

MACHINE_CHECK = re.compile(
    r"python|sqlite|git|sandbox \w+|agent \w+|proc|orphans|disk|disk space|clock|re2|regress"
    r"|libyaml"
)
"""Checks of `doctor` that tell about the machine."""

_SLUG = (re.compile(r"\b(loop-[a-z-]+-)[0-9a-f]{8}\b"), r"\1<slug>")
_BAR = re.compile(r"[█▏▎▍▌▋▊▉]+")
_GAP = re.compile(r"(?<=\S) {2,}")


class Normaliser:
    """Replaces what differs; one for each transcript, since it numbers what it has seen."""

    def __init__(self, words: Mapping[str, str], more: tuple[tuple[str, str], ...] = ()) -> None:
        """Take the texts that are replaced as they stand, longest first, and further patterns."""
        versions = {
            __version__: "<version>",
            platform.python_version(): "<python>",
            sqlite3.sqlite_version: "<sqlite>",
            platform.platform(): "<platform>",
        }
        self._versions = versions
        self._words = sorted(words.items(), key=lambda pair: -len(pair[0]))
        self._more = [(re.compile(pattern, re.MULTILINE), to) for pattern, to in more]
        self._seen: dict[str, dict[str, str]] = {}
        self._ends: list[tuple[re.Pattern[str], str]] = []
        self._labelled = [(name, re.compile(pattern)) for name, pattern in LABELLED]
        self._times = [(re.compile(pattern, re.MULTILINE), to) for pattern, to in TIMES]

    def name(self, kind: str, text: str) -> None:
        """Give an id a label although its form tells nothing."""
        if text:
            self._words.insert(0, (text, self._label(kind, text)))

    def text(self, text: str) -> str:
        """A text that a command printed, or the body of an answer."""
        text = self._ids(text)
        for pattern, to in self._more:
            text = pattern.sub(to, text)
        parts = re.split(r"(\n\n+)", text)
        return "".join(self._paragraph(part) for part in parts)

    def json(self, value: object) -> object:
        """A JSON value: fields with times and durations by their names, texts as above."""
        if isinstance(value, dict):
            if MACHINE_CHECK.fullmatch(str(value.get("check", ""))) and "fix" in value:
                return {"check": value["check"], "depends on": "the machine"}
            if value.get("kind") == "cli" and {"available", "hint"} <= value.keys():
                value = {**value, "available": "<machine>", "hint": "<machine>"}
            fields = {
                self.inline(str(key)): self._field(str(key), one) for key, one in value.items()
            }
            if "ms" in fields:  # its place depends on whether it is 0
                fields["ms"] = fields.pop("ms")
            return fields
        if isinstance(value, list):
            return [self.json(one) for one in value]
        return self.inline(value) if isinstance(value, str) else value

    def inline(self, text: str) -> str:
        """A text within JSON."""
        text = self._ids(text)
        for pattern, to in self._more:
            text = pattern.sub(to, text)
        for pattern, to in self._times:
            text = pattern.sub(to, text)
        return text

    def _field(self, key: str, value: Any) -> object:
        if key in UNORDERED and isinstance(value, list):
            found = [self.json(one) for one in value]
            return sorted(found, key=lambda one: json.dumps(one, sort_keys=True))
        if isinstance(value, int | float) and not isinstance(value, bool):
            if key in ("pid", "driver", "port"):
                return f"<{key}>"
            if key in SPAN_KEYS or key.endswith(("_seconds", "_ms")):
                return "<span>"
            if key in TIME_KEYS or (isinstance(value, int) and 10**12 < value < 10**13):
                return "<time>"
        return self.json(value)

    def _ids(self, text: str) -> str:
        for word, to in self._words:
            text = text.replace(word, to)
        for kind, pattern in self._labelled:
            text = pattern.sub(partial(self._label_of, kind), text)
        for pattern, to in (*self._ends, _SLUG):
            text = pattern.sub(to, text)
        for word, to in self._versions.items():
            text = re.sub(rf"(?<![\w.]){re.escape(word)}(?![\w.])", to, text)
        return text

    def _label_of(self, kind: str, found: re.Match[str]) -> str:
        return self._label(kind, found.group())

    def _label(self, kind: str, text: str) -> str:
        seen = self._seen.setdefault(kind, {})
        if kind == "run" and text not in seen:  # its end stands for it in some places
            self._ends.append((re.compile(rf"\b{text[-6:]}\b"), f"<end of run-{len(seen) + 1}>"))
        return seen.setdefault(text, f"<{kind}-{len(seen) + 1}>")

    def _paragraph(self, text: str) -> str:
        """Lines up to an empty one; columns lose their width where a cell has no fixed one."""
        found = text
        for pattern, to in self._times:
            found = pattern.sub(to, found)
        if _BAR.search(found):
            found = _BAR.sub("<bar>", found)
        return found if found == text else _GAP.sub("  ", found)


def shown(text: str, normaliser: Normaliser) -> tuple[str, str]:
    """The form of an output and its lines, normalised.

    JSON that is written as the program always writes it is shown with one field on each line, and
    JSON lines stay lines; everything else is shown as it is.
    """
    if not text:
        return "nothing", ""
    lines = text.splitlines()
    values = [_json_of(line) for line in lines]
    if len(lines) == 1 and isinstance(values[0], dict | list):
        return "one line of JSON", _dumped(normaliser.json(values[0]), indent=1)
    if all(isinstance(value, dict) for value in values):
        told = [_dumped(normaliser.json(value)) for value in values]
        return "lines of JSON", "".join(told)
    end = "" if text.endswith("\n") else "<no line end>\n"
    return "text", f"{normaliser.text(text.removesuffix(chr(10)))}\n{end}"


def _json_of(line: str) -> object:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if json.dumps(value, ensure_ascii=False) == line else None


def _dumped(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent) + "\n"
