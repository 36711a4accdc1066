"""Parameters: `{{name}}` in any text of a definition, and in the goal.

What is filled in is not looked at again, and a place for a parameter that nobody declares stays as
it is written.
"""

import re
from collections.abc import Iterator, Mapping

from loopwright.model.template import Lit, Ref, Template

_PLACE = re.compile(r"\{\{[ \t]*([A-Za-z][A-Za-z0-9_]*)[ \t]*\}\}")


def names_in(text: str) -> Iterator[str]:
    """The parameters that a text speaks of."""
    return (found[1] for found in _PLACE.finditer(text))


def only_name(text: str) -> str | None:
    """The parameter that a text is, if it is nothing but a place for one."""
    found = _PLACE.fullmatch(text.strip())
    return found[1] if found else None


def filled(text: str, values: Mapping[str, object]) -> str:
    """The text with all places filled for which there is a value."""

    def value(place: "re.Match[str]") -> str:
        return str(values[place[1]]) if place[1] in values else place[0]

    return _PLACE.sub(value, text)


def template(text: str, declared: Mapping[str, object]) -> Template:
    """The text with a reference for each declared parameter."""
    parts: list[Lit | Ref] = []
    literal, at = "", 0
    for place in _PLACE.finditer(text):
        literal += text[at : place.start()]
        at = place.end()
        if place[1] not in declared:
            literal += place[0]
            continue
        parts += [Lit(text=literal)] if literal else []
        parts.append(Ref(of="input", name=place[1]))
        literal = ""
    literal += text[at:]
    return (*parts, Lit(text=literal)) if literal else tuple(parts)
