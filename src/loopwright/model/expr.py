"""Conditions: what decides whether a step runs at all. Data; the kernel evaluates them."""

from typing import Literal, TypeAlias

from loopwright.model.record import JsonValue, Record
from loopwright.model.template import Ref

Operator: TypeAlias = Literal["==", "!=", "<", ">", "<=", ">="]


class Cel(Record, frozen=True, kw_only=True, tag="cel", tag_field="if"):
    """An expression that must give true or false. `missing` says what an absent name means."""

    text: str
    missing: Literal["false", "error"] = "error"


class Compare(Record, frozen=True, kw_only=True, tag="compare", tag_field="if"):
    """A value of an earlier step or an input against a literal.

    Equality compares texts; an order needs numbers on both sides, and anything else is an error.
    """

    ref: Ref
    op: Operator
    value: JsonValue


class EveryOf(Record, frozen=True, kw_only=True, tag="every", tag_field="if"):
    """All parts hold; the first that does not decides."""

    parts: tuple["Condition", ...]


class SomeOf(Record, frozen=True, kw_only=True, tag="some", tag_field="if"):
    """One part holds; the first that does decides, and what follows is not looked at."""

    parts: tuple["Condition", ...]


Condition: TypeAlias = Cel | Compare | EveryOf | SomeOf
