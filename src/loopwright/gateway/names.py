"""Tool names on the wire: services allow letters, digits, `_` and `-`, at most 64 of them.

Which name a tool gets depends on the set of tools alone, not on their order, so a name stays the
same from request to request and after a restart.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

LONGEST = 64
_NOT_ALLOWED = re.compile(r"[^a-zA-Z0-9_-]")
_HASH_CHARS = 8


@dataclass(frozen=True, slots=True)
class WireNames:
    """Both directions of the mapping."""

    there: dict[str, str]
    back: dict[str, str]

    def wire(self, tool: str) -> str:
        """The name of a tool on the wire; for one that is not known, a name that is allowed."""
        return self.there.get(tool) or _cleaned(tool)

    def tool(self, wire: str) -> str:
        """The tool that a model means; a name that nobody gave it stays as it is."""
        return self.back.get(wire, wire)


def wire_names(tools: Iterable[str]) -> WireNames:
    """Names for a set of tools: each its own, where it is allowed and free, else one made of it."""
    names = sorted(set(tools))
    wanted = Counter(_cleaned(name) for name in names)
    there = {}
    for name in names:
        clean = _cleaned(name)
        # A name that needs no cleaning always keeps itself; of others with the same result, none.
        there[name] = clean if clean == name or wanted[clean] == 1 else _hashed(name)
    return WireNames(there=there, back={wire: name for name, wire in there.items()})


def _cleaned(name: str) -> str:
    clean = _NOT_ALLOWED.sub("_", name)
    return clean if 0 < len(clean) <= LONGEST else _hashed(name)


def _hashed(name: str) -> str:
    mark = hashlib.sha256(name.encode()).hexdigest()[:_HASH_CHARS]
    clean = _NOT_ALLOWED.sub("_", name)[: LONGEST - _HASH_CHARS - 1]
    return f"{clean}_{mark}"
