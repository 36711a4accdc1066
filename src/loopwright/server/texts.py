"""Texts as they come in: what is no text is refused here, with where it stands.

A NUL can be handed to no program, and other control characters steer terminals and break lines of
logs. Tabs, line ends and page breaks are what people write.
"""

import re
from collections.abc import Collection, Iterator

from loopwright.server.refusals import Refusal

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]")
BAD = "bad-character"


def check_texts(value: object, free: Collection[str] = ()) -> None:
    """Refuse a control character anywhere in a value, but for the fields that are `free`."""
    for pointer, text in _texts(value, free):
        found = _CONTROL.search(text)
        if found is not None:
            said = f"U+{ord(found[0]):04X} is a control character, and cannot stand in a text"
            raise Refusal(
                422,
                BAD,
                f"{pointer or 'the text'}: {said}",
                hint="leave it out; tabs and line ends are fine",
                errors=[{"pointer": pointer, "code": BAD, "message": said}],
            )


def _texts(value: object, free: Collection[str]) -> Iterator[tuple[str, str]]:
    """Every text in a value and where it stands; nesting costs no recursion."""
    left: list[tuple[str, object]] = [("", value)]
    while left:
        pointer, one = left.pop()
        if isinstance(one, str):
            yield pointer, one
        elif isinstance(one, dict):
            for name, inner in one.items():
                yield pointer, name
                if pointer or name not in free:
                    left.append((f"{pointer}/{name[:80]}", inner))
        elif isinstance(one, list):
            left += [(f"{pointer}/{n}", inner) for n, inner in enumerate(one)]
