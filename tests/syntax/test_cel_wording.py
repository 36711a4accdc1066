"""Reports of the evaluator in words, also those that no text is known to cause."""

import pytest

from loopwright.syntax.cel_source import CelProblem, WrittenExpression, explain, tokens


def written(text: str) -> WrittenExpression:
    return WrittenExpression(text, [], tokens(text), frozenset(), frozenset(["item"]))


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ("something new", CelProblem("not understood: something new", 0, "cel-syntax")),
        (
            "ERROR: <input>:1:2: undeclared reference to 'zzz' (in container '')",
            CelProblem("there is no zzz", 1, "unknown-name"),
        ),
        (
            "ERROR: <input>:9:1: Syntax error: no viable alternative at input 'b'",
            CelProblem("did not expect b", 4, "cel-syntax"),
        ),
        (
            "ERROR: <input>:1:1: found no matching overload for '_+_' applied to '(*error*, int)'",
            CelProblem("+ does not work on *error* and int", 0, "cel-type"),
        ),
        (
            "ERROR: <input>:-1:-1: something odd [INVALID_ARGUMENT]",
            CelProblem("something odd", 0, "cel-syntax"),
        ),
    ],
    ids=["no report", "name elsewhere", "line beyond the text", "only a consequence", "no place"],
)
def test_reports(report: str, expected: CelProblem) -> None:
    """Whatever the evaluator says becomes a problem at a place within the text."""
    assert explain(report, written("a +\nb")) == [expected]
