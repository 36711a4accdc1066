"""Expressions inside of documents: each problem stands where its word stands."""

import pytest

from loopwright.syntax.readers import read
from loopwright.syntax.step_references import Expression, expression_problems


def problems(data: str, **changes: object) -> list[str]:
    document, found = read(data.encode(), file="x.yaml")
    assert document is not None
    assert found == []
    value = document.value
    assert isinstance(value, dict)
    given = {"path": ("e",), "text": value["e"], "wants": "bool", "ids": frozenset({"plan"})}
    one = Expression(**(given | changes))  # type: ignore[arg-type]
    return [problem.render() for problem in expression_problems(document, one)]


@pytest.mark.parametrize(
    ("written", "place"),
    [
        pytest.param("e: steps.plan.status == nme", "1:25", id="plain"),
        pytest.param('e: "steps.plan.status == nme"', "1:26", id="quoted"),
        pytest.param("e: |\n  true &&\n  nme", "3:3", id="block"),
        pytest.param("e: >-\n  true\n  && nme", "1:4", id="folded"),
        pytest.param('e: "\\x74rue && nme"', "1:4", id="escaped"),
    ],
)
def test_problems_have_their_place(written: str, place: str) -> None:
    """The line and column of the word, or of the text where the file has it otherwise."""
    (found,) = problems(written)
    assert found.startswith(f"x.yaml:{place}: unknown-name: there is no nme here")


def test_steps_that_may_not_have_ended_are_distinguished() -> None:
    """A step that is there but late gets the key that makes the step wait for it."""
    text = "e: steps.later.status == 'completed' && steps.never.status == ''"
    late, never = problems(text, late={"later"}, waiting="dependsOn")
    assert "later may not have ended when this is evaluated (add dependsOn: [later])" in late
    assert "there is no step never here" in never


def test_an_expression_without_problems_has_none() -> None:
    """Also for a list."""
    assert problems("e: steps.plan.result.ok") == []
    assert problems("e: \"['a']\"", wants="list") == []
