"""How the tests of this folder get from text to findings."""

from collections.abc import Callable

from loopwright.dialects import coqui, native, rondoflow
from loopwright.model.plan import Plan
from loopwright.syntax.document import Diagnostic, Document
from loopwright.syntax.readers import read

Lower = Callable[[Document], tuple[Plan | None, list[Diagnostic]]]
LOWER: dict[str, Lower] = {
    native.NAME: native.lower,
    rondoflow.NAME: rondoflow.lower,
    coqui.NAME: coqui.lower,
}


def lowered(
    text: str | bytes, *, dialect: str = "native", file: str = "loop.yaml"
) -> tuple[Plan | None, list[Diagnostic]]:
    """What a dialect makes of a text, with the findings of reading and of lowering."""
    data = text if isinstance(text, bytes) else text.encode()
    document, problems = read(data, file=file)
    if document is None:
        return None, problems
    return LOWER[dialect](document)


def plan_of(text: str, *, dialect: str = "native") -> Plan:
    """The plan of a definition that has nothing wrong with it."""
    plan, problems = lowered(text, dialect=dialect)
    assert problems == []
    assert plan is not None
    return plan


def places(problems: list[Diagnostic]) -> list[str]:
    """`line:column code` of each finding."""
    return [f"{one.line}:{one.column} {one.code}" for one in problems]


def only(problems: list[Diagnostic]) -> Diagnostic:
    """The one finding there must be."""
    (one,) = problems
    return one
