"""Long histories without the long walk.

The SDKs walk through every message and every tool to translate names that differ between Python
and JSON. What the library hands them is JSON already, so the walk changes nothing, and with a few
hundred turns it is nearly all of the cost of a request. Here both go around it: the SDK is given
empty lists and the real ones as additions to the body, which it merges in as they are. An SDK that
walks through additions too is given them `Sealed`, and they are opened after its walk. A test
compares the bodies of both ways.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Sealed:
    """A part of a body that nobody is to look into."""

    value: object


def opened(body: object) -> object:
    """The body with its sealed parts in the open."""
    if not isinstance(body, dict):
        return body
    return {name: part.value if isinstance(part, Sealed) else part for name, part in body.items()}


def around(
    options: Mapping[str, object], names: tuple[str, ...], *, sealed: bool = False
) -> dict[str, Any]:
    """The options of a request with the named lists moved into the body's additions."""
    lists = {name: options[name] for name in names if isinstance(options.get(name), list)}
    moved = {name: Sealed(one) if sealed else one for name, one in lists.items()}
    if not moved:
        return {**options}
    given = options.get("extra_body")
    added = given if isinstance(given, Mapping) else {}
    hollow: dict[str, list[object]] = {name: [] for name in moved}
    return {**options, **hollow, "extra_body": {**moved, **added}}
