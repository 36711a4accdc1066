"""A document against a model: each pydantic error as a diagnostic with a position."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from loopwright.syntax.document import Diagnostic, Document
from loopwright.syntax.readers import read
from loopwright.syntax.validation import validate


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Memory(Enum):
    LOG = "progress-log"
    NONE = "none"


@dataclass(frozen=True)
class Pair:
    left: int
    right: int


class Step(Strict):
    id: str
    needs: tuple[str, ...] = ()

    @field_validator("id")
    @classmethod
    def _plain_id(cls, value: str) -> str:
        if not value.isalpha():
            raise PydanticCustomError("bad_id", "an id has letters only", {"hint": "rename it"})
        return value


class Plan(Strict):
    name: Annotated[str, Field(min_length=1, max_length=8, pattern="^[a-z]*$")]
    max_iterations: Annotated[int, Field(ge=1, le=1000)] = 10
    memory: Memory = Memory.NONE
    mode: Literal["fast", "slow"] = "fast"
    usd: Annotated[float, Field(gt=0)] | None = None
    even: Annotated[int, Field(multiple_of=2, lt=100)] = 2
    flag: bool = False
    steps: Annotated[list[Step], Field(max_length=3)] = []
    env: Annotated[dict[Annotated[str, Field(pattern="^[A-Z]+$")], str], Field(max_length=1)] = {}
    depends: Annotated[str, Field(alias="dependsOn")] = ""
    either: Annotated[str, Field(validation_alias=AliasChoices("this", "that"))] = ""
    pair: Pair | None = None
    two: tuple[int, str] | None = None
    some: frozenset[str] = frozenset()
    until: str | None = None
    checked: int = 0
    share: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    level: str = "low"

    @field_validator("level")
    @classmethod
    def _known(cls, value: str) -> str:
        if value != "low":
            raise PydanticKnownError("literal_error", {"expected": "low for now"})
        return value

    @field_validator("checked")
    @classmethod
    def _small(cls, value: int) -> int:
        if value > 5:
            raise ValueError("is larger than the world")
        return value

    @model_validator(mode="after")
    def _capped(self) -> "Plan":
        if self.until == "forever":
            raise PydanticCustomError("cap_required", "no cap", {"at": ["until"]})
        if self.until == "never":
            raise PydanticCustomError("mutually_exclusive", "not both")
        return self


def document(text: str, file: str = "f.yaml") -> Document:
    found, problems = read(text.encode(), file=file)
    assert problems == []
    assert found is not None
    return found


def problems(text: str) -> list[Diagnostic]:
    made, found = validate(Plan, document(text))
    assert made is None
    return found


def test_a_valid_document_becomes_the_model() -> None:
    """Lists fit tuples and sets, names fit enums, whole numbers fit fractions; no diagnostics."""
    text = (
        "name: x\nmemory: progress-log\nusd: 2\nsteps: [{id: a, needs: [b]}]\ndependsOn: y\n"
        "that: z\npair: {left: 1, right: 2}\ntwo: [1, a]\nsome: [a, a]\n"
    )
    made, found = validate(Plan, document(text))
    assert found == []
    assert made == Plan.model_validate(
        {
            "name": "x",
            "memory": Memory.LOG,
            "usd": 2.0,
            "steps": [Step(id="a", needs=("b",))],
            "dependsOn": "y",
            "that": "z",
            "pair": Pair(1, 2),
            "two": (1, "a"),
            "some": frozenset({"a"}),
        }
    )


@pytest.mark.item("A4")
def test_an_unknown_field_is_refused_with_a_suggestion() -> None:
    """The key is named at its own place, with the field that was meant."""
    (found,) = problems("name: x\n\nmax_iteration: 5\n")
    assert found.render() == (
        "f.yaml:3:1: unknown-field: max_iteration (did you mean max_iterations?)"
    )


def test_an_unknown_field_without_a_near_miss_lists_what_is_known() -> None:
    """Where the fields are few they are named."""
    (found,) = problems("name: x\nsteps:\n  - id: a\n    xyz: 1\n")
    assert found.render() == "f.yaml:4:5: unknown-field: xyz (known here: id, needs)"


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("depends_on", "did you mean dependsOn?"),
        ("depends", "did you mean dependsOn?"),
        ("thiss", "did you mean this?"),
    ],
)
def test_suggestions_are_what_people_write(key: str, hint: str) -> None:
    """The alias is suggested, not the name inside the program."""
    (found,) = problems(f"name: x\n{key}: y\n")
    assert (found.code, found.hint) == ("unknown-field", hint)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param("steps: []", "1:1: missing-field: name is required", id="root"),
        pytest.param(
            "name: x\nsteps:\n  - needs: []", "3:5: missing-field: id is required", id="below"
        ),
        pytest.param(
            "name: x\npair: {left: 1}", "2:7: missing-field: right is required", id="dataclass"
        ),
        pytest.param("nmae: x", "1:1: unknown-field: nmae (did you mean name?)", id="misspelt"),
    ],
)
def test_missing_fields_are_named(text: str, line: str) -> None:
    """The mapping that lacks the field is pointed at; a misspelt field is not missing too."""
    assert [p.render() for p in problems(text)] == [f"f.yaml:{line}"]


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("0", "out-of-range"),
        ("-1", "out-of-range"),
        ("1.5", "wrong-type"),
        ("1.0", "wrong-type"),
        ('"10"', "wrong-type"),
        ("1000000", "out-of-range"),
        ("null", "wrong-type"),
        ("true", "wrong-type"),
        ('"on"', "wrong-type"),
    ],
)
def test_a_number_is_never_made_of_something_else(value: str, code: str) -> None:
    """Each wrong value is named together with the type and the range that are allowed."""
    (found,) = problems(f"name: x\nmax_iterations: {value}")
    assert (found.line, found.column, found.code) == (2, 17, code)
    assert found.message == f"max_iterations must be a whole number from 1 to 1000, not {value}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("name: 5", "1:7: wrong-type: name must be text, not 5", id="text"),
        pytest.param(
            "name: x\nflag: 1", "2:7: wrong-type: flag must be true or false, not 1", id="boolean"
        ),
        pytest.param(
            "name: x\nsteps: {}",
            "2:8: wrong-type: steps must be a list, not an empty mapping",
            id="list",
        ),
        pytest.param(
            "name: x\nsteps: [a]",
            '2:9: wrong-type: steps[0] must be a mapping, not "a"',
            id="mapping",
        ),
        pytest.param(
            "name: x\npair: []",
            "2:7: wrong-type: pair must be a mapping, not an empty list",
            id="dataclass",
        ),
        pytest.param(
            "name: x\nusd: a", '2:6: wrong-type: usd must be a number above 0, not "a"', id="number"
        ),
        pytest.param(
            "[]", "1:1: wrong-type: the definition must be a mapping, not an empty list", id="root"
        ),
        pytest.param(
            "name: x\ntwo: [a, b]",
            '2:7: wrong-type: two[0] must be a whole number, not "a"',
            id="tuple",
        ),
        pytest.param(
            "name: x\nusd: 0", "2:6: out-of-range: usd must be a number above 0, not 0", id="above"
        ),
        pytest.param(
            "name: x\neven: 3",
            "2:7: out-of-range: even must be a whole number below 100 and divisible by 2, not 3",
            id="multiple",
        ),
        pytest.param(
            "name: ''",
            "1:7: out-of-range: name must be text of 1 to 8 characters, not of 0",
            id="short",
        ),
        pytest.param(
            "name: x\nsteps: [{id: a}, {id: b}, {id: c}, {id: d}]",
            "2:8: out-of-range: steps must be a list of at most 3 items, not of 4",
            id="many",
        ),
        pytest.param(
            "name: x\nenv: {A: a, B: b}",
            "2:6: out-of-range: env must be a mapping of at most 1 key, not of 2",
            id="keys",
        ),
        pytest.param(
            "name: X",
            '1:7: bad-format: name must be text that matches ^[a-z]*$, not "X"',
            id="form",
        ),
        pytest.param(
            "name: x\nenv: {a: b}",
            '2:7: bad-format: a key of env must be text that matches ^[A-Z]+$, not "a"',
            id="key",
        ),
        pytest.param(
            "name: x\nmemory: progress_log",
            '2:9: unknown-value: memory must be "progress-log" or "none", not "progress_log"'
            " (did you mean progress-log?)",
            id="enum",
        ),
        pytest.param(
            "name: x\nmode: quick",
            '2:7: unknown-value: mode must be "fast" or "slow", not "quick"',
            id="literal",
        ),
        pytest.param(
            "name: x\nlevel: high",
            '2:8: unknown-value: level must be low for now, not "high"',
            id="a value that a rule refuses",
        ),
        pytest.param(
            "name: x\nchecked: 6",
            "2:10: bad-value: checked: is larger than the world",
            id="other",
        ),
        pytest.param(
            "name: x\nsteps: [{id: a1}]",
            "2:14: bad-id: an id has letters only (rename it)",
            id="own code and hint",
        ),
        pytest.param("name: x\nuntil: forever", "2:8: cap-required: no cap", id="own place"),
        pytest.param("name: x\nuntil: never", "1:1: mutually-exclusive: not both", id="own code"),
    ],
)
def test_every_error_has_its_words(text: str, expected: str) -> None:
    """Position, code, the value found and what would be right."""
    assert [p.render() for p in problems(text)] == [f"f.yaml:{expected}"]


def test_all_problems_are_in_one_report_in_order() -> None:
    """Nothing is left for a second try."""
    text = "zzz: 1\nsteps:\n  - {id: 5, x: 1}\n  - {}\nmode: 3\nname: [x]\n"
    assert [(p.line, p.column, p.code) for p in problems(text)] == [
        (1, 1, "unknown-field"),
        (3, 10, "wrong-type"),
        (3, 13, "unknown-field"),
        (4, 5, "missing-field"),
        (5, 7, "unknown-value"),
        (6, 7, "wrong-type"),
    ]


def test_a_report_has_at_most_fifty_problems() -> None:
    """The first fifty in the text, even where thousands are found."""
    found = problems("name: x\n" + "".join(f"k{i}: 1\n" for i in range(3_000)))
    assert [p.line for p in found] == list(range(2, 52))


def test_a_part_of_a_document_can_be_validated() -> None:
    """With a root, positions are still those of the file."""
    found = document("x:\n  - id: a\n  - idd: b\n")
    assert validate(Step, found, root=["x", 0]) == (Step(id="a"), [])
    made, (problem,) = validate(Step, found, root=["x", 1])
    assert made is None
    assert (problem.line, problem.column, problem.code) == (3, 5, "unknown-field")


def test_a_root_that_is_not_there_is_missing() -> None:
    """The part that was asked for is named."""
    made, (found,) = validate(Step, document("x: [1]"), root=["x", 3])
    assert made is None
    assert found.render() == "f.yaml:1:4: missing-field: 3 is required"


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")], ids=str)
def test_a_number_has_an_end(value: float) -> None:
    """Values that were not read from a text may be of a kind that no text has."""
    made, (found,) = validate(Plan, Document.plain({"name": "x", "share": value}, file="x"))
    assert made is None
    assert found.code == "not-finite"
    assert found.message.startswith("share must be a finite number, not ")


def test_positions_in_json() -> None:
    """JSON documents are reported like YAML ones."""
    _, (found,) = validate(Step, document('{"id": "a",\n "neds": []}', "f.json"))
    assert found.render() == "f.json:2:2: unknown-field: neds (did you mean needs?)"
