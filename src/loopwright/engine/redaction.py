"""Take secrets out of what agents report: values that the agent was given, and what looks like one.

A value that the agent was given is replaced by the name of its variable in brackets.
"""

from collections.abc import Callable, Mapping

import msgspec
import re2

from loopwright.kernel.event_parts import mask, mask_text
from loopwright.model.record import JsonValue

LEAST_CHARS = 6  # shorter values occur everywhere by chance
LONGEST_LINE = 64 * 1_024
MARGIN_CHARS = 4_096  # at a cut, where half of a secret could be left
_NO_VALUES: Mapping[str, str] = {}
# A text without any of these holds nothing that masking would take out. One look for all of them is
# a hundred times faster than the patterns, and most of what agents report holds none.
_SIGNS = (
    rb"sk-|gh[opsur]_|github_pat_|xox|akia|asia|://|bearer|authorization|passw|passphrase|-pass|pwd"
    rb"|secret|credential|key|token"
)


def _compiled() -> re2._Regexp:
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = False
    return re2.compile(_SIGNS, options)


_SIGN = _compiled()


class Redaction:
    """The secrets of one call. `values` is asked for them when something is first redacted."""

    def __init__(self, values: Callable[[], Mapping[str, str]] = lambda: _NO_VALUES) -> None:
        self._values = values
        self._forms: list[tuple[str, str]] | None = None

    @property
    def forms(self) -> list[tuple[str, str]]:
        """Each secret as it may be written, and what takes its place; the longest first, since a
        secret may contain another one.
        """
        if self._forms is None:
            found = {
                form: f"[{name}]"
                for name, value in self._values().items()
                if len(value) >= LEAST_CHARS
                for form in (value, _escaped(value), _escaped(value, ascii_only=True))
            }
            self._forms = sorted(found.items(), key=lambda one: -len(one[0]))
        return self._forms

    def known(self, text: str) -> str:
        """A text without the values that the agent was given."""
        for form, name in self.forms:
            if form in text:
                text = text.replace(form, name)
        return text

    def _known_in_json(self, text: str) -> str:
        """The same for JSON, where characters may be escaped that need not be."""
        text = self.known(text)
        if "\\u" not in text or not self.forms or text[:1] not in ("{", "["):
            return text
        try:
            plain = msgspec.json.encode(msgspec.json.decode(text)).decode()
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return text
        redacted = self.known(plain)
        return text if redacted == plain else redacted

    def known_in_result(self, text: str) -> str:
        """The same for JSON that must stay JSON: a number that is a secret becomes a text."""
        redacted = self._known_in_json(text)
        if redacted == text:
            return text
        try:
            msgspec.json.decode(redacted)
        except msgspec.DecodeError:
            return msgspec.json.encode(self._known_in_value(msgspec.json.decode(text))).decode()
        return redacted

    def _known_in_value(self, value: JsonValue) -> JsonValue:
        if isinstance(value, dict):
            return {self.known(name): self._known_in_value(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._known_in_value(one) for one in value]
        if isinstance(value, str):
            return self.known(value)
        plain = msgspec.json.encode(value).decode()
        redacted = self.known(plain)
        return value if redacted == plain else redacted

    def line(self, text: str, most: int) -> str:
        """A text as one line of at most so many characters."""
        text = " ".join(_masked(self.known(_storable(text[:LONGEST_LINE]))).split())
        return text if len(text) <= most else f"{text[: most - 1]}…"

    def value(self, text: str, most: int) -> str:
        """Arguments or a result. What is longer than `most` is cut, and how much is said."""
        total, was_cut = len(text), len(text) > 2 * most
        text = _masked(self._known_in_json(_storable(text[: 2 * most] if was_cut else text)))
        if not was_cut and len(text) <= most:
            return text
        end = max(0, min(most, len(text) - MARGIN_CHARS)) if was_cut else most
        return f"{text[:end]}\n[cut: {total - end:,} of {total:,} characters]"

    def stream(self, data: bytes) -> bytes:
        """Lines of output, whatever their encoding. Lines that hold no secret are kept as they
        are.
        """
        text = data.decode("utf-8", errors="surrogateescape")
        if self.forms:
            text = "\n".join(self._known_in_json(line) for line in text.split("\n"))
        if _may_hold_secret(text):
            text = "\n".join(_masked(line) for line in text.split("\n"))
        return text.encode("utf-8", errors="surrogateescape")


def _may_hold_secret(text: str) -> bool:
    return _SIGN.search(text.encode("utf-8", errors="surrogateescape")) is not None


def _masked(text: str) -> str:
    """A text without what looks like a secret; JSON is masked by the names of its fields too."""
    if not _may_hold_secret(text):
        return text
    if text[:1] in ("{", "["):
        try:
            value: JsonValue = msgspec.json.decode(text)
            masked = mask(value)
            return text if masked == value else msgspec.json.encode(masked).decode()
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return mask_text(text)
    return mask_text(text)


def _escaped(value: str, *, ascii_only: bool = False) -> str:
    """A value as JSON writes it inside of a string."""
    text = msgspec.json.encode(value).decode()[1:-1]
    if not ascii_only or text.isascii():
        return text
    escaped = "".join(
        char if char.isascii() else "".join(f"\\u{unit:04x}" for unit in _units(char))
        for char in text
    )
    return escaped


def _units(char: str) -> list[int]:
    data = char.encode("utf-16-be")
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]


def _storable(text: str) -> str:
    """A text without halves of characters, which no store takes."""
    return text if text.isascii() else text.encode(errors="replace").decode()
