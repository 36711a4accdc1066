"""Finds the place that a pydantic error speaks of: its path in the document, its schema.

The location of an error mixes keys of the document with labels of union branches, and a label may
look like a key. Only the schema of the model tells them apart, so it is walked along with them.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias, cast

from loopwright.syntax.document import has

Schema: TypeAlias = dict[str, Any]
Loc: TypeAlias = tuple[str | int, ...]

_ANYTHING: Schema = {"type": "any"}
# Schemas that add nothing to a location, and the name under which they hold the next one.
_WRAPPERS = {
    "chain": "steps",
    "custom-error": "schema",
    "dataclass": "schema",
    "default": "schema",
    "definitions": "schema",
    "function-after": "schema",
    "function-before": "schema",
    "function-wrap": "schema",
    "json-or-python": "json_schema",
    "lax-or-strict": "strict_schema",
    "model": "schema",
    "nullable": "schema",
}
_LISTS = frozenset({"frozenset", "generator", "list", "set"})
_KEY_LABEL = "[key]"


class Branch(NamedTuple):
    """One way through a union: which union (`loc`), where in the document, which branch."""

    loc: Loc
    path: Loc
    label: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a location leads. `known`: the fields of the mapping that its last key belongs to."""

    path: Loc = ()
    schema: Schema | None = None
    known: tuple[str, ...] = ()
    branches: tuple[Branch, ...] = ()
    on_key: bool = False


class SchemaMap:
    """The core schema of one model, to be asked for places."""

    def __init__(self, schema: Schema) -> None:
        self._definitions: dict[str, Schema] = {}
        self._schema = schema
        self.opened(schema)

    def place(self, loc: Loc, value: object) -> Place:
        """The place of an error; a location the schema does not explain is taken by its keys."""
        found = self._follow(self._schema, loc, at=0, place=Place())
        return found or _by_keys(loc, value)

    def opened(self, schema: Schema) -> Schema:
        """The schema without the wrappers around it."""
        while True:
            kind = schema["type"]
            for one in schema.get("definitions", ()):
                self._definitions[one["ref"]] = one
            if kind == "definition-ref":
                schema = self._definitions.get(schema["schema_ref"], _ANYTHING)
            elif kind in _WRAPPERS:
                inner = schema[_WRAPPERS[kind]]
                schema = inner[0] if isinstance(inner, list) else inner
            else:
                return schema

    def fields_of_choices(self, union: Schema) -> tuple[str, ...]:
        """All fields that the branches of a tagged union know."""
        choices = [self.opened(one) for one in union.get("choices", {}).values()]
        return tuple(dict.fromkeys(name for one in choices for name in known_fields(one)))

    def _follow(self, schema: Schema, loc: Loc, *, at: int, place: Place) -> Place | None:
        schema = self.opened(schema)
        if at == len(loc):
            return replace(place, schema=schema)
        part = loc[at]
        kind = schema["type"]
        if kind == "union":
            return self._through_union(schema, loc, at=at, place=place)
        if kind == "tagged-union":
            inner = next((s for tag, s in schema["choices"].items() if str(tag) == str(part)), None)
            return self._follow(inner, loc, at=at + 1, place=place) if inner else None
        if isinstance(part, str) and "fields" in schema:
            return self._through_fields(schema, loc, at=at, place=place)
        step = replace(place, path=(*place.path, part), known=())
        if kind == "dict":
            return self._through_dict(schema, loc, at=at, place=step)
        if isinstance(part, int):
            return self._follow(_item(schema, part), loc, at=at + 1, place=step)
        return None

    def _through_fields(self, schema: Schema, loc: Loc, *, at: int, place: Place) -> Place | None:
        part = loc[at]
        known = known_fields(schema)
        step = replace(place, path=(*place.path, part), known=known)
        for name, one in _fields(schema):
            if part == name or part in _accepted(name, one):
                return self._follow(one["schema"], loc, at=at + 1, place=step)
        return step if at + 1 == len(loc) else None

    def _through_dict(self, schema: Schema, loc: Loc, *, at: int, place: Place) -> Place | None:
        if loc[at + 1 :] == (_KEY_LABEL,):
            keys = self.opened(schema.get("keys_schema", _ANYTHING))
            return replace(place, schema=keys, on_key=True)
        return self._follow(schema.get("values_schema", _ANYTHING), loc, at=at + 1, place=place)

    def _through_union(self, schema: Schema, loc: Loc, *, at: int, place: Place) -> Place | None:
        label = str(loc[at])
        branch = Branch(loc[:at], place.path, label)
        step = replace(place, branches=(*place.branches, branch))
        # A branch is named after its type; where that does not decide, the rest of the
        # location does: most branches cannot lead there.
        choices = [one[0] if isinstance(one, tuple) else one for one in schema["choices"]]
        for choice in sorted(choices, key=lambda one: not self._is_named(one, label)):
            found = self._follow(choice, loc, at=at + 1, place=step)
            if found:
                return found
        return None

    def _is_named(self, schema: Schema, label: str) -> bool:
        """Whether a label fits: `Foo`, `constrained-int`, `function-after[check(), Foo]`."""
        names = "|".join(re.escape(name) for name in self._names(schema))
        return re.search(rf"(?:^|[\s-])(?:{names})(?:[\[\]]|$)", label) is not None

    def _names(self, schema: Schema) -> Iterator[str]:
        while schema["type"] in _WRAPPERS or schema["type"] == "definition-ref":
            if "cls" in schema:
                yield schema["cls"].__name__
            if schema["type"] == "definition-ref":
                schema = self._definitions.get(schema["schema_ref"], _ANYTHING)
            else:
                inner = schema[_WRAPPERS[schema["type"]]]
                schema = inner[0] if isinstance(inner, list) else inner
        yield schema["type"]


def known_fields(schema: Schema) -> tuple[str, ...]:
    """The keys that a mapping may have, as people write them."""
    return tuple(key for name, one in _fields(schema) for key in _accepted(name, one))


def _fields(schema: Schema) -> list[tuple[str, Schema]]:
    fields = schema.get("fields", ())
    if isinstance(fields, dict):
        return list(fields.items())
    return [(one["name"], one) for one in fields]


def _accepted(name: str, one: Schema) -> Sequence[str]:
    alias = one.get("validation_alias")
    if alias is None:
        return (name,)
    if isinstance(alias, str):
        return (alias,)
    paths = alias if isinstance(alias[0], list) else [alias]
    return tuple(path[0] for path in paths if isinstance(path[0], str))


def _item(schema: Schema, index: int) -> Schema:
    items = schema.get("items_schema", _ANYTHING)
    if schema["type"] in _LISTS and isinstance(items, dict):
        return items
    if schema["type"] != "tuple":
        return _ANYTHING
    variadic = schema.get("variadic_item_index")
    if variadic is not None and index >= variadic:
        index = variadic
    found: Schema = items[index] if index < len(items) else _ANYTHING
    return found


def _by_keys(loc: Loc, value: object) -> Place:
    path: list[str | int] = []
    for part in loc:
        if has(value, part):
            value = cast("Any", value)[part]
            path.append(part)
    return Place(tuple(path))
