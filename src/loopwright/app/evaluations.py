"""What is expected of runs: the cases of an evaluation file, and the evaluators of each.

An evaluator is a mapping with one key that says what it does (`contains: TEXT`), so that a file
reads like a list of sentences. What is wrong is told like in a definition, all of it at once.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field

from loopwright.app.dialects import MAX_BYTES, dialect, recognise
from loopwright.dialects.native.fields import Id, Line, Prose, SpecLine
from loopwright.dialects.native.parts import JsonSchema, Surface
from loopwright.errors import DefinitionError, LoopwrightError
from loopwright.model.record import JsonValue
from loopwright.programs.files import FileProblem, read_regular
from loopwright.syntax.diagnostic import Diagnostic
from loopwright.syntax.document import Document
from loopwright.syntax.fields import Maybe, fault
from loopwright.syntax.patterns import pattern_fault
from loopwright.syntax.reading import read
from loopwright.syntax.validation import validate

Kind: TypeAlias = Literal[
    "contains", "not_contains", "regex", "exact", "json_schema", "rubric", "llm_judge"
]
KINDS: tuple[Kind, ...] = (
    "contains",
    "not_contains",
    "regex",
    "exact",
    "json_schema",
    "rubric",
    "llm_judge",
)
JUDGED: tuple[Kind, ...] = ("rubric", "llm_judge")
"""Evaluators that ask an agent."""

Subject: TypeAlias = Literal["text", "composed", "tool"]
_WHOLE: tuple[Kind, ...] = ("exact", "json_schema")
MAX_CASES = 1_000
UNSURE = 10  # of 100: how sure a dialect is of a mapping that nobody else claims


def _pattern(pattern: str) -> str:
    problem = pattern_fault(pattern)
    if problem is not None and problem.code != "matches-everything":
        raise fault(problem.code, problem.sentence(), hint=problem.hint)
    return pattern


def _something(text: str) -> str:
    if not text.strip():
        raise fault("bad-value", "it must say something")
    return text


Words: TypeAlias = Annotated[Prose, AfterValidator(_something)]


class Evaluator(Surface):
    """One evaluator: exactly one of its kinds."""

    contains: Maybe[Annotated[str, Field(min_length=1)]] = None
    not_contains: Maybe[Annotated[str, Field(min_length=1)]] = None
    regex: Maybe[Annotated[str, AfterValidator(_pattern)]] = None
    exact: Maybe[str] = None
    json_schema: Maybe[JsonSchema] = None
    rubric: Maybe[Words] = None
    llm_judge: Maybe[Words] = None
    on: Maybe[Subject] = None

    @property
    def kind(self) -> Kind:
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def subject(self) -> Subject:
        """What is looked at: the text alone, the text with the last tool's result below it, or
        that result. A claim stands beside what the tools said, unless all of it is compared.
        """
        return self.on or ("text" if self.kind in _WHOLE else "composed")


Evaluators: TypeAlias = Annotated[list[Evaluator], Field(min_length=1, max_length=100)]


class Case(Surface):
    """What an agent is asked, and what is expected of what comes of it."""

    id: Maybe[Id] = None
    input: Words
    expected: Prose = ""
    evaluators: Evaluators


class Expectation(Surface):
    """What is expected of a run that there is."""

    expected: Prose = ""
    evaluators: Evaluators


class Evaluation(Surface):
    """A definition, and the cases that it has to stand."""

    name: Maybe[Line] = None
    definition: Line
    agent: Maybe[SpecLine] = None
    judge: Maybe[SpecLine] = None
    cases: Annotated[list[Case], Field(min_length=1, max_length=MAX_CASES)]

    def numbered(self) -> list[tuple[str, Case]]:
        """The cases with a name for each."""
        return [(one.id or f"case-{n}", one) for n, one in enumerate(self.cases, start=1)]


def read_evaluation(file: Path) -> Evaluation:
    """The evaluation in a file; DefinitionError with every problem there is."""
    document = _read(file)
    _refuse_definition(file, document.value)
    made, problems = validate(Evaluation, document)
    written = document.value.get("cases") if isinstance(document.value, dict) else None
    cases: list[JsonValue] = written if isinstance(written, list) else []
    for number, case in enumerate(cases):
        problems += _ambiguous(document, case, ("cases", number))
    problems += _twice(document, cases)
    if made is None or problems:
        raise DefinitionError(f"{file} is not a valid evaluation", problems=problems)
    return made


def _refuse_definition(file: Path, value: JsonValue) -> None:
    """A definition is a likely thing to name here; its keys are not wrong, the file is."""
    if not isinstance(value, dict) or "cases" in value or "definition" in value:
        return
    language = recognise(value)
    if dialect(language).recognise(value) <= UNSURE and "steps" not in value:
        return
    raise LoopwrightError(
        f"{file} is a definition ({language}), not a file of cases",
        code=DefinitionError.code,
        hint=f"write a file with `definition: {file.name}` and `cases:`, and evaluate that",
    )


def read_expectation(file: Path) -> Expectation:
    """What a file expects of a run."""
    document = _read(file)
    made, problems = validate(Expectation, document)
    problems += _ambiguous(document, document.value, ())
    if made is None or problems:
        raise DefinitionError(f"{file} does not say what is expected", problems=problems)
    return made


def _read(file: Path) -> Document:
    data = read_regular(file, MAX_BYTES)
    if isinstance(data, FileProblem):
        raise DefinitionError(f"{file}: {data.message}")
    document, problems = read(data, file=str(file), limit=MAX_BYTES)
    if document is None:
        raise DefinitionError(f"{file} cannot be read", problems=problems)
    return document


def _ambiguous(
    document: Document, value: object, path: tuple[str | int, ...]
) -> Iterator[Diagnostic]:
    """Evaluators that do not say one thing."""
    listed = value.get("evaluators") if isinstance(value, dict) else None
    for number, one in enumerate(listed if isinstance(listed, list) else ()):
        if not isinstance(one, dict):
            continue
        kinds = [kind for kind in KINDS if kind in one]
        place = (*path, "evaluators", number)
        if len(kinds) > 1:
            message = f"{kinds[0]} and {kinds[1]} are two evaluators"
            yield document.error("mutually-exclusive", message, at=(*place, kinds[1]), on_key=True)
        elif not kinds and set(one) <= {"on"}:
            message = f"an evaluator is one of {', '.join(KINDS)}"
            yield document.error("missing-field", message, at=place)


def _twice(document: Document, cases: list[JsonValue]) -> Iterator[Diagnostic]:
    seen: set[object] = set()
    for number, case in enumerate(cases):
        name = case.get("id") if isinstance(case, dict) else None
        if isinstance(name, str) and name in seen:
            message = f"two cases are called {name}"
            yield document.error("bad-id", message, at=("cases", number, "id"))
        seen.add(name)
