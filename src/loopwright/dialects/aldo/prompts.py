"""System prompts: a file whose places are filled with variables and with other files, once.

`{{name}}` is a place, `\\{{` is two braces. A place without a value stays as it is. What is
filled in is not looked at again, except that a template may have places for variables itself.
"""

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from loopwright.syntax.words import did_you_mean

_PLACE = re.compile(r"\\\{\{|\{\{\s*(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)\s*\}\}")


class Unfilled(NamedTuple):
    """A place that has no value: its name, its line in the text, and what may have been meant."""

    name: str
    line: int
    hint: str


def filled(text: str, values: Mapping[str, str]) -> tuple[str, list[Unfilled]]:
    """The text with all places filled, and those that could not be."""
    missing: list[Unfilled] = []

    def one(found: "re.Match[str]") -> str:
        name = found["name"]
        if name is None:
            return "{{"
        if name not in values:
            hint = did_you_mean(name, values) or f"write it under variables, or \\{{{{{name}}}}}"
            missing.append(Unfilled(name, text.count("\n", 0, found.start()) + 1, hint))
        return values.get(name, found[0])

    return _PLACE.sub(one, text), missing


def as_text(value: object) -> str:
    """A variable as it stands in a text; a truth value as YAML has it, a list as JSON."""
    if value is None:
        return ""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value).lower() if isinstance(value, bool) else str(value)
