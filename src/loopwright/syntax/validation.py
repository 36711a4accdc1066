"""A document against a pydantic model: every problem with its position, in one report."""

import json
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from loopwright.syntax.branches import keep_best
from loopwright.syntax.diagnostic import MAX_PROBLEMS, Diagnostic, in_order
from loopwright.syntax.document import Document, Path, Value, has
from loopwright.syntax.findings import Finding, RawError, explain
from loopwright.syntax.schema_walk import SchemaMap

Model = TypeVar("Model", bound=BaseModel)

# A long list of wrong items says the same thing over and over: these are enough to read.
_MOST_ERRORS = 1_000


def validate(
    model: type[Model], document: Document, *, root: Path = (), context: object = None
) -> tuple[Model | None, list[Diagnostic]]:
    """The model made from the value at `root`, or all that is wrong with it.

    Strict, nothing is coerced. An error raised by the model as `PydanticCustomError` keeps its type
    as code (`cap_required` becomes `cap-required`); its context may hold `at`, a path below the
    place of the error, and `hint`. The model's own validators see `context`.
    """
    found, value = _value_at(document.value, root)
    if not found:
        return None, [document.error("missing-field", f"{root[-1]} is required", at=root)]
    try:
        # As JSON, where strict means the types of JSON: a list is fit for a tuple or a set.
        written = json.dumps(value)
        return model.model_validate_json(written, strict=True, context=context), []
    except ValidationError as error:
        raw = cast("list[RawError]", error.errors(include_url=False))
    schemas = SchemaMap(cast("dict[str, object]", model.__pydantic_core_schema__))
    findings = [one for entry in raw[:_MOST_ERRORS] for one in explain(entry, schemas, value)]
    return None, _located(document, tuple(root), keep_best(findings))


def _value_at(value: Value, path: Path) -> tuple[bool, Value]:
    for part in path:
        if not has(value, part):
            return False, None
        value = cast("Any", value)[part]
    return True, value


def _located(
    document: Document, root: tuple[str | int, ...], findings: Sequence[Finding]
) -> list[Diagnostic]:
    def position(one: Finding) -> tuple[int, int]:
        path = (*root, *one.path)
        return document.key_at(path) if one.on_key else document.at(path)

    # Positions before words: looking for near misses is what costs.
    first = sorted(findings, key=position)[:MAX_PROBLEMS]
    return in_order(
        document.error(
            one.code, one.text(), at=(*root, *one.path), on_key=one.on_key, hint=one.advice()
        )
        for one in first
    )
