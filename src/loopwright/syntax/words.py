"""How values, names and near misses are put into words."""

import json
import re
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches

# Comparing is quadratic in the length of the word, and nobody mistypes a word this long.
_LONGEST_WORD = 64
_LONGEST_SHOWN = 60
_CUTOFF = 0.65
_SEPARATORS = re.compile(r"[-_\s.]+")
_FIRST_PART = re.compile(r"[A-Za-z][a-z0-9]*")


def suggest(word: str, known: Iterable[str], *, by_part: bool = True) -> str | None:
    """The known word that `word` was probably meant to be. Without `by_part`, the whole words must
    be alike.
    """
    if not 0 < len(word) <= _LONGEST_WORD:
        return None
    spelled = {name: _bare(name) for name in known if len(name) <= _LONGEST_WORD}
    bare = _bare(word)
    for name, spelling in spelled.items():
        if spelling == bare and name != word:
            return name
    close = get_close_matches(bare, list(spelled.values()), n=1, cutoff=_CUTOFF)
    # A word that says too much begins with the right one: max_passes is max, and so is maximum.
    if by_part and not close:
        begins = [one for one in spelled.values() if len(one) > 2 and bare.startswith(one)]
        close = sorted(begins, key=len)[-1:]
    if by_part and not close:
        close = [part[0].lower() for part in [_FIRST_PART.match(word)] if part]
    return next((n for n, s in spelled.items() if s in close and n != word), None)


def did_you_mean(word: str, known: Iterable[str], *, by_part: bool = True) -> str | None:
    """The hint that goes with `suggest`."""
    found = suggest(word, known, by_part=by_part)
    return f"did you mean {found}?" if found else None


def misspelt(keys: Iterable[str], known: Collection[str], *wanted: str) -> bool:
    """Whether one of the keys is unknown because it was meant to be one of `wanted`: to say that
    those are missing would be no news then.
    """
    return any(suggest(key, known) in wanted for key in keys if key not in known)


def show(value: object) -> str:
    """A value as its author would recognise it, short."""
    match value:
        case dict():
            return "a mapping" if value else "an empty mapping"
        case list():
            return "a list" if value else "an empty list"
        case str() if len(value) > _LONGEST_SHOWN:
            return json.dumps(clip(value), ensure_ascii=False)
        case str() | None | bool() | int() | float():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return clip(repr(value))


def clip(text: str) -> str:
    """The text, or its beginning."""
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def one_of(words: Sequence[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def _bare(word: str) -> str:
    return _SEPARATORS.sub("", word).lower()
