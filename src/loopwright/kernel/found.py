"""What was found where something else was needed, in words: its kind, and how it begins."""

import msgspec

from loopwright.model.record import JsonValue

SHOWN_CHARS = 80


def found_words(value: JsonValue) -> str:
    """`a text: "no list today"`, cut where it is long."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    shown = " ".join(msgspec.json.encode(value).decode().split())
    if len(shown) > SHOWN_CHARS:
        shown = f"{shown[: SHOWN_CHARS - 1]}…"
    kinds: dict[type, str] = {str: "a text", dict: "an object", list: "a list"}
    return f"{kinds.get(type(value), 'a number')}: {shown}"
