"""Masking: what looks like a secret is not written into facts."""

import re

from loopwright.model.record import JsonValue

MASK = "***"
MAX_DEPTH = 40

_NAME = re.compile(
    r"passw(?:or)?d|passphrase|secret|(?:api|access|private|auth)[_-]?key|credential"
    r"|^authorization$|(?:^|[_-])(?:token|pwd)$|(?:access|auth|refresh|bearer|id)[_-]?token",
    re.IGNORECASE,
)
_PLAIN = re.compile(
    r"\bsk-[A-Za-z0-9_-]{8,}"
    r"|\bgh[opsur]_[A-Za-z0-9]{8,}|\bgithub_pat_[A-Za-z0-9_]{8,}"
    r"|\bxox[a-z]-[A-Za-z0-9-]{8,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{12,}"
    r"|(?<=://)[^\s:/@]{1,200}:[^\s/@]{1,200}(?=@)"  # user:password@host
)
_BEARER = re.compile(r"\b(bearer\s{1,5})(?=\S{0,200}\d)[\w.~+/=-]{8,}", re.IGNORECASE)
_AFTER = re.compile(
    r"(--?(?:password|passwd|pass|token|secret|api-?key)[=\s]\s{0,5}"
    r"|(?:password|passwd|secret|api[_-]?key|token)[\"']?\s{0,5}[=:]\s{0,5}"
    r"|authorization[\"']?\s{0,5}[=:]\s{0,5}(?:basic\s{1,5}|bearer\s{1,5})?)"
    r"(\"[^\"]*\"|'[^']*'|[^\s\"',;&]+)",
    re.IGNORECASE,
)


_FOLDERS = ("PWD", "OLDPWD")  # of a shell: these name the working directory, not a password


def is_secret_name(name: str) -> bool:
    """Whether a field or variable of this name holds a secret."""
    return name not in _FOLDERS and _NAME.search(name) is not None


def mask_tokens(text: str) -> str:
    """A text without what has the look of a key: for prose, where a name alone says nothing."""
    return _BEARER.sub(rf"\g<1>{MASK}", _PLAIN.sub(MASK, text))


def mask_text(text: str) -> str:
    """The same for the input of a tool, where what follows a telling name goes too."""
    return _AFTER.sub(rf"\g<1>{MASK}", mask_tokens(text))


def mask(value: JsonValue, depth: int = 0) -> JsonValue:
    """A JSON value with its secrets taken out: by how they look, and by the names they go by."""
    if isinstance(value, str):
        return mask_text(value)
    if depth == MAX_DEPTH and isinstance(value, list | dict):
        return MASK
    if isinstance(value, list):
        return [mask(one, depth + 1) for one in value]
    if isinstance(value, dict):
        return {name: _field(name, one, depth) for name, one in value.items()}
    return value


def _field(name: str, value: JsonValue, depth: int) -> JsonValue:
    secret = is_secret_name(name) and isinstance(value, str | int | float)
    return MASK if secret and not isinstance(value, bool) else mask(value, depth + 1)
