"""Remove secrets from the reports of agents: values that the agent received, and texts that look
like a secret.

A value that the agent received is replaced by the name of its variable in brackets.
"""

from collections.abc import Mapping

import msgspec
import re2

from loopwright.kernel.event_parts import mask, mask_text
from loopwright.model.record import JsonValue

LEAST_CHARS = 6  # shorter values occur everywhere by chance
LONGEST_LINE = 64 * 1_024
MARGIN_CHARS = 4_096  # at a cut, where half of a secret could remain
_NO_VALUES: Mapping[str, str] = {}
# A text without any of these contains nothing to mask. One search for all of them is a hundred
# times faster than the patterns, and most reports contain none.
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
    """Removes the secrets of one call. `forms` are the forms of each secret with their replacement,
    the longest first, since a secret may contain another one.
    """

    def __init__(self, values: Mapping[str, str] = _NO_VALUES) -> None:
        found = {
            form: f"[{name}]"
            for name, value in values.items()
            if len(value) >= LEAST_CHARS
            for form in (value, _escaped(value), _escaped(value, ascii_only=True))
        }
        self.forms = sorted(found.items(), key=lambda one: -len(one[0]))

    def known(self, text: str) -> str:
        """A text without the values that the agent received."""
        for form, name in self.forms:
            if form in text:
                text = text.replace(form, name)
        return text

    def _known_in_json(self, text: str) -> str:
        """The same for JSON, in which characters may be escaped unnecessarily."""
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
        """A text as one line with a maximum number of characters."""
        text = " ".join(_masked(self.known(_storable(text[:LONGEST_LINE]))).split())
        return text if len(text) <= most else f"{text[: most - 1]}…"

    def value(self, text: str, most: int) -> str:
        """Arguments or a result. Values longer than `most` are cut, with a note of how much is
        missing.
        """
        total, was_cut = len(text), len(text) > 2 * most
        text = _masked(self._known_in_json(_storable(text[: 2 * most] if was_cut else text)))
        if not was_cut and len(text) <= most:
            return text
        end = max(0, min(most, len(text) - MARGIN_CHARS)) if was_cut else most
        return f"{text[:end]}\n[cut: {total - end:,} of {total:,} characters]"

    def stream(self, data: bytes) -> bytes:
        """Lines of output, in any encoding. Lines without a secret are unchanged."""
        text = data.decode("utf-8", errors="surrogateescape")
        if self.forms:
            text = "\n".join(self._known_in_json(line) for line in text.split("\n"))
        if _may_hold_secret(text):
            text = "\n".join(_masked(line) for line in text.split("\n"))
        return text.encode("utf-8", errors="surrogateescape")


def _may_hold_secret(text: str) -> bool:
    return _SIGN.search(text.encode("utf-8", errors="surrogateescape")) is not None


def _masked(text: str) -> str:
    """A text without parts that look like a secret; JSON is also masked by the names of its
    fields.
    """
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
    """A text without unpaired surrogates, which no store accepts."""
    return text if text.isascii() else text.encode(errors="replace").decode()
