"""Who waits for whom: the rules that every language with steps shares."""

from dataclasses import dataclass
from time import process_time

import pytest

from loopwright.syntax.document import Diagnostic, Document
from loopwright.syntax.readers import read
from loopwright.syntax.step_references import (
    GraphWording,
    ended_before,
    graph_problems,
    known_names,
    near_or_known,
    needs_of,
)

WORDS = GraphWording("after", twice="bad-id", unknown="unknown-step", step="task", edges="edges")


@dataclass(slots=True, eq=False)
class Task:
    """A step as a language would keep it."""

    path: tuple[str | int, ...]
    value: dict[str, object]
    id: str
    needs: list[str]
    before: set[str] | None = None


def tasks_of(document: Document) -> list[Task]:
    assert isinstance(document.value, list)
    made = []
    for number, value in enumerate(document.value):
        assert isinstance(value, dict)
        name = value.get("id")
        given = name if isinstance(name, str) else ""
        made.append(Task((number,), dict(value), given, needs_of(value, "after")))
    return made


def problems(text: str) -> list[Diagnostic]:
    document, found = read(text.encode(), file="x.yaml")
    assert document is not None, found
    advice = lambda task, need, others: near_or_known(need, others)  # noqa: E731 - one line of use
    return list(graph_problems(document, tasks_of(document), WORDS, advice=advice))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("- {id: a}\n- {id: b, after: [a]}\n", [], id="right"),
        pytest.param("- {id: a}\n- {id: b}\n- {id: c, after: [a, b]}\n", [], id="after two"),
        pytest.param("- {after: []}\n- {after: null}\n- {id: a, after: a}\n", [], id="no list"),
        pytest.param(
            "- {id: a}\n- {id: b}\n- {id: a}\n- {id: a}\n",
            [
                "3:8 bad-id a is the id of the tasks on lines 1 and 3 (give each task its own id)",
                "4:8 bad-id a is the id of the tasks on lines 1 and 4 (give each task its own id)",
            ],
            id="twice",
        ),
        pytest.param(
            "[{id: a}, {id: a}]\n",
            ["1:16 bad-id a is the id of two tasks on line 1 (give each task its own id)"],
            id="twice in a line",
        ),
        pytest.param("- {}\n- {}\n", [], id="no ids are not the same id"),
        pytest.param(
            "- {id: build}\n- {id: test, after: [3, bild]}\n",
            ["2:25 unknown-step no task here is called bild (did you mean build?)"],
            id="near miss behind what is not a name",
        ),
        pytest.param(
            "- {id: build}\n- {id: test, after: [zzz]}\n",
            ["2:22 unknown-step no task here is called zzz (known: build)"],
            id="unknown",
        ),
        pytest.param(
            "- {id: a, after: [zzz]}\n",
            ["1:19 unknown-step no task here is called zzz (None)"],
            id="nothing to know",
        ),
        pytest.param(
            "- {id: a, after: [a]}\n", ["1:19 cycle a needs itself: a → a (None)"], id="itself"
        ),
        pytest.param(
            "- {id: z, after: [b]}\n- {id: a, after: [1, b, b]}\n- {id: b, after: [c, z]}\n"
            "- {id: c, after: [a]}\n- {id: d, after: [c]}\n- {id: e}\n- {id: f, after: [e]}\n",
            [
                "3:19 cycle tasks wait for one another: b → c → a → b (remove one of these edges)",
            ],
            id="a circle, with those that wait for it left out",
        ),
    ],
)
def test_what_is_wrong_with_a_graph(text: str, expected: list[str]) -> None:
    """Every problem has its place, its code and a way out; a circle is told once."""
    found = [f"{p.line}:{p.column} {p.code} {p.message} ({p.hint})" for p in problems(text)]
    assert found == expected


def test_a_language_has_its_own_words() -> None:
    """Codes and verbs are those of the language."""
    words = GraphWording("after", needs="depends on", twice="duplicate-step", unknown="missing-dep")
    document, _ = read(b"- {id: a, after: [a, b]}\n- {id: a}\n", file="x.yaml")
    assert document is not None
    found = graph_problems(document, tasks_of(document), words, advice=lambda *_: None)
    assert [(one.code, one.message) for one in found] == [
        ("duplicate-step", "a is the id of the steps on lines 1 and 2"),
        ("cycle", "a depends on itself: a → a"),
        ("missing-dep", "no step here is called b"),
    ]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        pytest.param([], None, id="none"),
        pytest.param(["b", "a", "b"], "known: b, a", id="each once"),
        pytest.param([f"n{n}" for n in range(12)] * 2, None, id="twelve"),
        pytest.param([f"n{n}" for n in range(13)], "…", id="more than twelve"),
    ],
)
def test_what_is_known_is_listed_shortly(names: list[str], expected: str | None) -> None:
    """The hint lists a dozen names at most, and says when there are more."""
    hint = known_names(names)
    if len(names) < 12:
        assert hint == expected
    else:
        assert hint is not None
        assert hint.count(",") == 11 + bool(expected)
        assert hint.endswith(expected or "n11")


def test_what_has_ended_before_a_step() -> None:
    """All steps that it waits for, directly or not; unknown ones do not count, circles end."""
    value: dict[str, object] = {}
    needs = {"a": [], "b": ["a"], "c": ["b", "gone", "a"], "x": ["y"], "y": ["x", "c"]}
    by_id = {name: Task((), value, name, list(before)) for name, before in needs.items()}
    assert ended_before(by_id["b"], by_id) == {"a"}
    assert ended_before(by_id["c"], by_id) == {"a", "b"}
    assert ended_before(by_id["y"], by_id) == {"a", "b", "c", "x", "y"}
    assert ended_before(by_id["x"], by_id) == {"a", "b", "c", "x", "y"}
    assert ended_before(by_id["c"], by_id) is by_id["c"].before


def test_a_long_circle_is_found_quickly() -> None:
    """Twenty thousand steps in one circle cost well below a second, and are not all named."""
    count = 20_000
    value = [{"id": f"s{n}", "after": [f"s{(n + 1) % count}"]} for n in range(count)]
    document = Document.plain(value, file="x")  # type: ignore[arg-type] # lists are invariant
    steps = tasks_of(document)
    start = process_time()
    (found,) = graph_problems(document, steps, WORDS, advice=lambda *_: None)
    assert process_time() - start < 1
    assert found.message.endswith("s4 → s5 → … → s19996 → s19997 → s19998 → s19999 → s0")
