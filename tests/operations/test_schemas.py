"""JSON Schema: what fits, what does not and where, and schemas that cannot be used at all."""

import socket
import time

import pytest

from loopwright.engine.services import DETAIL_CHARS, schema_problem
from loopwright.model.record import JsonValue

PERSON: dict[str, JsonValue] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name"],
}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        pytest.param({"name": "ann"}, None, id="fits"),
        pytest.param({}, "the value itself: 'name' is a required property", id="missing"),
        pytest.param([], "the value itself: [] is not of type 'object'", id="wrong type"),
        pytest.param({"name": 1}, "name: 1 is not of type 'string'", id="inside"),
        pytest.param(
            {"name": "a", "tags": ["x", 2]}, "tags/1: 2 is not of type 'string'", id="deep"
        ),
        pytest.param(None, "the value itself: None is not of type 'object'", id="null"),
    ],
)
def test_the_first_problem_is_reported_with_its_place(
    value: JsonValue, problem: str | None
) -> None:
    """A value that does not fit is told by where and why."""
    assert schema_problem(PERSON, value) == problem


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"type": 5}, id="type is a number"),
        pytest.param({"type": "nonsense"}, id="unknown type"),
        pytest.param({"pattern": "("}, id="bad pattern"),
        pytest.param({"$ref": "#/nowhere"}, id="reference to nowhere"),
        pytest.param({"$ref": "#"}, id="endless"),
        pytest.param({"properties": 3}, id="properties are a number"),
    ],
)
def test_nothing_fits_a_schema_that_cannot_be_used(schema: dict[str, JsonValue]) -> None:
    """A broken schema is a problem with a reason, not an exception and never an iteration."""
    problem = schema_problem(schema, "x")
    assert problem is not None
    assert problem.startswith("the schema itself cannot be used: ")


def test_nothing_is_fetched() -> None:
    """A reference to another machine is refused without a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        problem = schema_problem({"$ref": url}, {})
        assert problem is not None
        assert "Unresolvable" in problem
        with pytest.raises(BlockingIOError):
            server.accept()


def test_references_inside_a_schema_work() -> None:
    """Definitions of the schema itself may be referred to."""
    schema: dict[str, JsonValue] = {"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n"}
    assert schema_problem(schema, 1) is None
    assert schema_problem(schema, "1") is not None


def test_an_older_draft_is_understood() -> None:
    """The schema says which draft it is written in."""
    schema: dict[str, JsonValue] = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "minimum": 1,
        "exclusiveMinimum": True,
    }
    assert schema_problem(schema, 2) is None
    assert schema_problem(schema, 1) is not None


def test_a_problem_with_a_huge_value_stays_short() -> None:
    """The message keeps its end, which says what is wrong, and not the whole value."""
    problem = schema_problem({"type": "integer"}, "x" * 1_000_000)
    assert problem is not None
    assert problem.endswith("is not of type 'integer'")
    assert len(problem) < DETAIL_CHARS + 100


def test_a_pattern_takes_linear_time() -> None:
    """A pattern that keeps a backtracking engine busy for ever answers at once here."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+$"}}}
    began = time.process_time()
    problem = schema_problem(schema, {"a": "a" * 40 + "b"})
    assert problem is not None
    assert "does not match" in problem
    assert time.process_time() - began < 1


def test_pattern_properties_are_checked() -> None:
    """Fields whose names match are checked by their schema; others are not."""
    schema = {"patternProperties": {"^n_": {"type": "number"}}}
    assert schema_problem(schema, {"n_a": 1, "other": "x"}) is None
    problem = schema_problem(schema, {"n_a": "x"})
    assert problem is not None
    assert problem.startswith("n_a: ")


def test_a_pattern_that_cannot_be_matched_in_linear_time_is_reported() -> None:
    """Look-behind is not possible here, and nothing fits a schema that cannot be used."""
    problem = schema_problem({"type": "string", "pattern": "(?<=a)b"}, "ab")
    assert problem is not None
    assert "cannot be used" in problem


@pytest.mark.parametrize(
    ("allowed", "value", "fits"),
    [
        pytest.param(False, {"a": 1, "x_b": 2}, True, id="all known"),
        pytest.param(False, {"c": 1}, False, id="one too many"),
        pytest.param({"type": "number"}, {"c": 1}, True, id="others of this kind"),
        pytest.param({"type": "number"}, {"c": "1"}, False, id="others of another kind"),
        pytest.param(False, [1], True, id="no object"),
    ],
)
def test_additional_properties(allowed: object, value: object, fits: bool) -> None:
    """What is neither named nor matched by a pattern is additional."""
    schema = {
        "properties": {"a": {}},
        "patternProperties": {"^x_": {}},
        "additionalProperties": allowed,
    }
    assert (schema_problem(schema, value) is None) is fits
