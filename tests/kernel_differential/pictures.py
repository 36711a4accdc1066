"""Pictures of states as plain values, which can be compared although classes are not the same.

There are two. The outer one has what the rest of the source reads off a state by itself: a
rewritten kernel must have all of it. The inner one is `tests.support.laws.state_picture`, with
everything that later events depend on, under the names of the kernel's own records. Where a
rewrite renames records or fields, `RENAMED` says how; where it has no such thing any more,
`LEFT_OUT` names it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import msgspec

from loopwright.model.plan import encode_plan

RENAMED: dict[str, str] = {}
"""Names of records and fields of the frozen kernel, with those of the current one."""
LEFT_OUT: frozenset[str] = frozenset()
"""Names of fields that are not compared."""

MOVED_FIELDS = {
    "reopenings.last": "opening",
    "reopenings.count": "reopened",
    "snapshots.newest": "snapshot",
}
"""Paths of today, with the names that a frozen kernel has instead."""

_ATOMS = frozenset((type(None), bool, int, float, str))
MOST_LINES = 12
SHOWN_CHARS = 300

OUTER_FIELDS = (
    *("version", "now", "ignored", "run", "started", "finished", "usage", "elapsed_ms"),
    *("control.cancel", "control.paused", "control.labels", "control.metadata", "control.passes"),
    *("reopenings.last", "reopenings.raised", "reopenings.count"),
    *("agents.calls", "agents.marks", "agents.served", "agents.remembered"),
    *("queues.timers", "snapshots.newest"),
    *("plan_index.has_budget", "plan_index.has_checks", "plan_index.has_idle"),
)


def outer_picture(state: object) -> dict[str, object]:
    """What the rest of the source reads off a state without looking into its frames."""
    drawn = {name: plain(_read(state, name)) for name in OUTER_FIELDS}
    drawn["plan"] = encode_plan(state.plan).decode()  # type: ignore[attr-defined]
    drawn["pending"] = {
        effect: {
            **_fields(one, ("call", "attempt", "requested_at", "used", "repeats")),
            "purpose": getattr(one.purpose, "word", one.purpose),
            **_fields(one.owner, ("path", "inside", "iteration")),
        }
        for effect, one in state.pending.items()  # type: ignore[attr-defined]
    }
    drawn["gates"] = {
        name: _fields(one, ("digest", "message", "answers", "opened_at", "path", "effect", "call"))
        for name, one in state.gates.items()  # type: ignore[attr-defined]
    }
    drawn["order"] = [list(state.pending), list(state.gates)]  # type: ignore[attr-defined]
    return drawn


def _read(thing: object, path: str) -> object:
    """A value of a state by its path of today; a frozen kernel may have it elsewhere."""
    for known in (MOVED_FIELDS.get(path, path), path, path.rpartition(".")[2]):
        found = thing
        for name in known.split("."):
            found = getattr(found, name, _MISSING)
        if found is not _MISSING:
            return found
    raise AttributeError(f"no {path} in {type(thing)}")


def _fields(thing: object, names: tuple[str, ...]) -> dict[str, object]:
    return {name: plain(getattr(thing, name)) for name in names}


def inner_picture(drawn: dict[str, object]) -> object:
    """A picture as plain values, under the names of today."""
    return plain(drawn)


def plain(value: object) -> object:
    """Records become dicts with the name of their type; sets are sorted."""
    if type(value) in _ATOMS:
        return value
    if isinstance(value, dict):
        return {_name(key): plain(one) for key, one in value.items() if key not in LEFT_OUT}
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    names = _field_names(value)
    kept = {_name(name): plain(getattr(value, name)) for name in names if name not in LEFT_OUT}
    return {"type": _name(type(value).__name__), **kept}


def _name(key: object) -> str:
    return RENAMED.get(str(key), str(key))


def _field_names(value: object) -> tuple[str, ...]:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    assert dataclasses.is_dataclass(value), f"no picture of {type(value)}"
    return tuple(one.name for one in dataclasses.fields(value))


# -- where two pictures differ ---------------------------------------------------------------------


def first_differences(one: object, other: object) -> list[str]:
    """The first places at which two plain values differ, in words."""
    found: list[str] = []
    for place, left, right in _walk("", one, other):
        found.append(f"{place or '(all)'}: A {_short(left)} / B {_short(right)}")
        if len(found) == MOST_LINES:
            break
    return found


class _Missing:
    def __repr__(self) -> str:
        return "(missing)"


_MISSING = _Missing()


def _walk(place: str, one: object, other: object) -> Iterator[tuple[str, object, object]]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            left, right = one.get(key, _MISSING), other.get(key, _MISSING)
            yield from _walk(f"{place}.{key}".lstrip("."), left, right)
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        for n in range(max(len(one), len(other))):
            left = one[n] if n < len(one) else _MISSING
            right = other[n] if n < len(other) else _MISSING
            yield from _walk(f"{place}[{n}]", left, right)
    elif one != other:
        yield place, one, other


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."
