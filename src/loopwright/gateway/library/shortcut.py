"""Long histories without the long walk.

The SDKs walk through every message and every tool to translate names that differ between Python
and JSON. What the library hands them is JSON already, so the walk changes nothing, and with a few
hundred turns it is nearly all of the cost of a request. Here both go around it: the SDK is given
empty lists and the real ones as additions to the body, which it merges in as they are. A test
compares the bodies of both ways.
"""

from collections.abc import Mapping


def around(options: Mapping[str, object], names: tuple[str, ...]) -> dict[str, object]:
    """The options of a request with the named lists moved into the body's additions."""
    moved = {name: options[name] for name in names if isinstance(options.get(name), list)}
    if not moved:
        return {**options}
    given = options.get("extra_body")
    added = given if isinstance(given, Mapping) else {}
    hollow: dict[str, list[object]] = {name: [] for name in moved}
    return {**options, **hollow, "extra_body": {**moved, **added}}
