"""Expressions: checked when they are read, evaluated without surprises."""

import json
import subprocess
import sys
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.syntax.cel import (
    MAX_JOINED,
    MAX_LENGTH,
    VARIABLES,
    Broken,
    CelProblem,
    Items,
    Missing,
    Program,
    Truth,
    Value,
    compile_cel,
)

IDS = ["review", "implement", "list-services", "a", "a-b"]
SERVICES = [{"name": "auth", "ready": True}, {"name": "web", "ready": False}]
SCOPE: dict[str, Any] = {
    "steps": {
        "review": {"content": "All good. LGTM", "status": "completed", "result": {"n": 3}},
        "implement": {"content": "", "status": "failed", "result": None},
        "list-services": {"content": "", "status": "completed", "result": {"services": SERVICES}},
    },
    "iteration": 2,
    "item": {"name": "auth", "tags": ["x"]},
    "index": 1,
    "content": "service is healthy",
    "result": {"done": True, "score": 0.5},
    "status": "completed",
}
Wants = Literal["bool", "list"]


def program(text: str, wants: Wants = "bool", **more: Any) -> Program:
    made = compile_cel(text, step_ids=IDS, wants=wants, **more)
    assert isinstance(made, Program), made
    return made


def problems(text: str, wants: Wants = "bool", **more: Any) -> list[CelProblem]:
    made = compile_cel(text, step_ids=IDS, wants=wants, **more)
    assert isinstance(made, list), "it was expected to be refused"
    return made


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("steps.review.content.contains('LGTM')", True),
        ("content.contains('healthy')", True),
        ("iteration == 2", True),
        ("iteration >= 1 && status == 'completed'", True),
        ("result.done", True),
        ("result.score > 0.4", True),
        ("item.name == 'auth' && index == 1", True),
        ("'x' in item.tags", True),
        ("steps.review.status == 'failed'", False),
        ("steps.list-services.result.services.exists(s, s.name == 'web' && !s.ready)", True),
        ("steps['list-services'].result.services.size() == 2", True),
        ("size(steps.list-services.result.services)-1 == 1", True),
        ("steps.review.result.n-1 == 2", True),
        ("has(steps.list-services)", True),
        ("has(steps.list-services.result.services)", True),
        ("has(steps.a-b)", False),
        ("'a-b' in steps && steps.a-b.content == ''", False),
        ("has(steps.review.result.nope)", False),
        ("steps.?a-b.?content.orValue('none') == 'none'", True),
        ("steps.all(s, steps[s].status == 'completed')", False),
        ("steps.implement.result == null", True),
        ("content.matches('(?i)HEALTHY$')", True),
        ("steps.a.content == 'x' || true", True),
        ("[1, 2].map(item, item + index) == [2, 3]", True),
    ],
)
def test_conditions(text: str, expected: bool) -> None:
    """Conditions are decided as written, hyphens in ids included."""
    assert program(text).evaluate(SCOPE) == Truth(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("steps.list-services.result.services", SERVICES),
        ("steps.list-services.result.services.filter(s, s.ready)", SERVICES[:1]),
        ("steps.list-services.result.services.map(s, s.name)", ["auth", "web"]),
        ("steps.list-services.result.services.map(s, s.ready, s.name + '!')", ["auth!"]),
        ("['service-a', 'service-b']", ["service-a", "service-b"]),
        ("[1, 2.5, 'a', true, null, [1], {'k': 1}]", [1, 2.5, "a", True, None, [1], {"k": 1}]),
        ("[]", []),
        ("item.tags + ['y']", ["x", "y"]),
        ("true ? item.tags : []", ["x"]),
        ("steps.map(s, s).filter(s, s.contains('-'))", ["list-services"]),
    ],
)
def test_lists(text: str, expected: list[Any]) -> None:
    """Any list is a list: from a result, written down, filtered or mapped."""
    assert program(text, "list").evaluate(SCOPE) == Items(expected)


@pytest.mark.parametrize(
    "text",
    [
        "item == null && index == 0 && iteration == 0",
        "content == '' && status == ''",
        "result == {} && !has(result.done)",
        "steps == {}",
    ],
)
@pytest.mark.parametrize("scope", [{}, dict.fromkeys(VARIABLES)], ids=["absent", "null"])
def test_names_without_a_value(text: str, scope: dict[str, None]) -> None:
    """What the scope lacks or has as null is null, 0, an empty text, an empty mapping."""
    assert program(text).evaluate(scope) == Truth(True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("steps.a.content == ''", "'a' in steps"),
        ("has(steps.a.content)", "'a' in steps"),
        ("has(steps.a-b.content)", "'a-b' in steps"),
        ("steps.a.?content.orValue('') == ''", "'a' in steps"),
        ("steps.review.result.nope == 1", "nope"),
        ("result.review == 1", "nothing named review"),
        ("result['nope'] == 1", "nope"),
        ("{1: 2}[3] == 2", "3"),
        ("steps.implement.result.n == 1", "no fields"),
        ("steps.implement.result['n'] == 1", "no fields"),
        ("has(steps.implement.result.n)", "no fields"),
        ("dyn(content).nope == 1", "no fields"),
        ("steps[content].status == ''", "service is healthy"),
    ],
)
def test_what_is_missing(text: str, says: str) -> None:
    """A missing step, key or field is its own answer, and a missing step says how to ask for it."""
    answer = program(text).evaluate(SCOPE)
    assert isinstance(answer, Missing)
    assert says in answer.message


@pytest.mark.item("B13")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("iteration / 0 == 1", "divide by zero"),
        ("iteration % 0 == 1", "modulus by zero"),
        ("9223372036854775807 + iteration == 1", "overflow"),
        ("steps.review.result.n + 'a' == 'x'", "_+_(int64, string)"),
        ("size(steps.review.result.n) == 1", "size(int64)"),
        ("dyn(content) < 1", "_<_(string, int64)"),
        ("dyn(content) && true", "_&&_"),
        ("dyn(content) ? true : false", "overload"),
        ("dyn(content).all(x, true)", "overload"),
        ("item.tags[7] == 'x'", "index=7"),
        ("item.tags['a'] == 'x'", "expected integer"),
        ("int(content) == 1", "convert"),
        ("content.matches('(')", "regular expression"),
        ("content.matches(item.tags[0] + '(' + content)", "regular expression"),
        ("timestamp(content) == timestamp(content)", "Timestamp"),
        ("timestamp('2020-01-01T00:00:00Z').getHours(content) == 1", "timezone"),
        ("{'a': 1, 'a': 2}.size() == 1", "duplicate key"),
        ("optional.none().value() == 1", "optional"),
        ("dyn(optional.of(true))", "orValue"),
    ],
)
def test_what_is_broken(text: str, says: str) -> None:
    """Every other error is an answer too, with the reason, and never an exception."""
    answer = program(text).evaluate(SCOPE)
    assert isinstance(answer, Broken)
    assert answer.code == "error"
    assert says in answer.message
    assert len(answer.message) < 300


@pytest.mark.parametrize(
    ("text", "wants", "scope", "expected"),
    [
        ("item", "list", {"item": "abc"}, "gives a text, not a list"),
        ("item", "list", {"item": None}, "gives null, not a list"),
        ("item", "list", {"item": {"a": 1}}, "gives a mapping, not a list"),
        ("item", "list", {"item": 1}, "gives a whole number, not a list"),
        ("item", "bool", {"item": "true"}, "gives a text, not true or false"),
        ("item", "bool", {"item": 1}, "gives a whole number, not true or false"),
        ("item", "bool", {"item": []}, "gives a list, not true or false"),
        ("item", "bool", {"item": None}, "gives null, not true or false"),
    ],
)
def test_values_of_the_wrong_type(text: str, wants: Wants, scope: Any, expected: str) -> None:
    """A value that only turns out to be of another type is refused by the name of that type."""
    answer = program(text, wants).evaluate(scope)
    code = "not-a-bool" if wants == "bool" else "not-a-list"
    assert answer == Broken(f"the expression {expected}", code)


@pytest.mark.parametrize(
    ("text", "scope", "says"),
    [
        ("iteration == 1", {"iteration": "x"}, "iteration"),
        ("steps.a.content == ''", {"steps": [1]}, "steps"),
        ("steps.a.content == ''", {"steps": {"a": 5}}, "steps"),
        ("steps.a.content == ''", {"steps": {"a": {"content": 2**70}}}, "64"),
    ],
)
def test_a_scope_that_does_not_fit(text: str, scope: Any, says: str) -> None:
    """A scope of the wrong shape is an answer, not an exception."""
    answer = program(text).evaluate(scope)
    assert isinstance(answer, Broken)
    assert says in answer.message


@pytest.mark.parametrize(
    ("text", "code", "at", "message", "hint"),
    [
        ("", "cel-syntax", 0, "ends too early", None),
        ("1 +", "cel-syntax", 3, "ends too early", None),
        ("((1)", "cel-syntax", 4, "missing ')' at the end", None),
        ("true true", "cel-syntax", 5, "did not expect true", None),
        ("true and false", "cel-syntax", 5, "did not expect and", "&&"),
        ("content = 'a'", "cel-syntax", 8, "cannot read =", "=="),
        ("content == 'abc", "cel-syntax", 11, "cannot read 'abc", "close the quote"),
        ("true\ufeff", "cel-syntax", 4, "cannot read \ufeff", None),
        ("'\ud800'", "cel-syntax", 1, "half a character", None),
        ("has(content)", "cel-syntax", 4, "wants a field", "has(steps.review.result)"),
        ("9223372036854775808 == 1", "cel-syntax", 0, "invalid int literal", None),
        ("loop == 1", "cel-syntax", 0, "reserved identifier: loop", None),
        ("[1].all(steps, true)", "cel-syntax", 8, "steps cannot be", "rename"),
        ("iteraton == 1", "unknown-name", 0, "no iteraton", "did you mean iteration?"),
        ("nope.x.y", "unknown-name", 0, "no nope", "known here: content"),
        ("recursion", "unknown-name", 0, "no recursion", "known here"),
        ("review.content == ''", "unknown-name", 0, "no review", "did you mean steps.review?"),
        ("x-services == 1 && x", "unknown-name", 0, "no x", "known here"),
        ("item.my-field", "unknown-name", 8, "no field", "['my-field']"),
        ("iteration-a-b > 1", "unknown-name", 10, "no a", "did you mean steps.a?"),
        ("content.contians('a')", "unknown-name", 8, "function contians", "contains?"),
        ("zzzzzzzz(1)", "unknown-name", 0, "function zzzzzzzz", "known here: all,"),
        ("steps.review.contents", "unknown-name", 13, "no contents", "did you mean content?"),
        ("steps.review.n == 1", "unknown-name", 13, "no n", "steps.review.result."),
        ("steps.revew.content == ''", "unknown-step", 6, "no step revew", "mean review?"),
        ("steps.list-servces.result", "unknown-step", 6, "list-servces", "mean list-services?"),
        ("steps['zzz'].content == ''", "unknown-step", 6, "no step zzz", "known here: a, a-b,"),
        ("'zzz' in steps", "unknown-step", 0, "no step zzz", "known here"),
        ("has(steps.zzz-y)", "unknown-step", 10, "no step zzz-y", "known here"),
        ("steps.a-b-1 == 2", "unknown-step", 6, "no step a-b-1", "did you mean a-b?"),
        ("iteration == 'a'", "cel-type", 10, "== does not work on int and string", None),
        ("true ? 1 : 'a'", "cel-type", 5, "? : does not work on", None),
        ("steps == 'a'", "cel-type", 6, "== does not work on map(", None),
        ("'a'.b", "cel-type", 3, "select", None),
        ("content", "cel-type", 0, "gives a text, not true or false", "compare"),
        ("steps.review", "cel-type", 0, "gives a mapping", "compare"),
        ("steps.?review", "cel-type", 0, "gives an optional value", "orValue"),
    ],
    ids=ascii,
)
def test_refusals(text: str, code: str, at: int, message: str, hint: str | None) -> None:
    """What is wrong is found when the text is read, at its place, with the way out."""
    first = problems(text)[0]
    assert (first.code, first.offset) == (code, at)
    assert message in first.message
    assert (first.hint is None) if hint is None else (hint in (first.hint or ""))


def test_a_bare_id_with_a_hyphen() -> None:
    """Someone who forgot `steps.` before such an id is told so."""
    assert problems("list-services == 1")[0].hint == "did you mean steps.list-services?"


def test_lists_are_checked_too() -> None:
    """An expression that cannot give a list is refused where one is wanted."""
    [problem] = problems("content", "list")
    assert (problem.code, problem.hint) == ("cel-type", None)
    assert problem.message == "the expression gives a text, not a list"


def test_all_problems_come_at_once_in_order() -> None:
    """Several mistakes in one text are one report; offsets are those of the text as written."""
    text = "steps.a-b.content == 'é' &&\n  steps.list-service.result\n  && nope"
    found = problems(text)
    assert [(p.code, text[p.offset :].split()[0]) for p in found] == [
        ("unknown-step", "list-service.result"),
        ("unknown-name", "nope"),
    ]
    assert len(problems(" + ".join(f"x{n}" for n in range(20)))) == 10


def test_the_variables_of_a_place() -> None:
    """A place may know fewer names than others, or names of its own."""
    [problem] = problems("iteration == 1", variables=["steps"])
    assert (problem.message, problem.hint) == ("there is no iteration here", "known here: steps")
    [problem] = problems("steps.nope", variables=[])
    assert (problem.code, problem.hint) == ("unknown-name", "no name can be used here")
    assert program("extra == 1", variables=["extra"]).evaluate({"extra": 1}) == Truth(True)
    assert program("extra == null", variables=["extra"]).evaluate({}) == Truth(True)
    made = compile_cel("steps.a.content == ''", step_ids=[], wants="bool")
    assert isinstance(made, list)
    assert made[0].hint == "no step can be named here"


@pytest.mark.item("B14")
@pytest.mark.parametrize(
    "text",
    [
        "1" + "+1" * 1_000_000,
        "(" * 5_000 + "true" + ")" * 5_000,
        "(" * 2_000,
        "(" * 40 + "true" + ")" * 40,
        "[" * 2_000 + "]" * 2_000 + " == []",
        "item" + ".a" * 2_000,
        "item" + "[0]" * 1_300,
        "true ? 1 : " * 300 + "1",
        "1" + " + 1" * 900 + " == 1",
        "".join(f"[1].all(x{n}," for n in range(200)) + "true" + ")" * 200,
        "['x']" + ".map(a, a + a)" * 20 + ".size() == 1",
        "['x'].map(a, " + "a + " * 150 + "a).size() == 1",
    ],
    ids=lambda text: f"{text[:12]} × {len(text)}",
)
def test_too_complex(text: str) -> None:
    """Expressions of extreme size, depth or growth are refused at once, under one code."""
    assert {problem.code for problem in problems(text)} == {"too-complex"}


def test_size_limits_are_exact() -> None:
    """The longest text that is read is read."""
    assert program("true".ljust(MAX_LENGTH)).evaluate({}) == Truth(True)
    [problem] = problems("true".ljust(MAX_LENGTH + 1))
    assert (problem.code, problem.offset) == ("too-complex", MAX_LENGTH)


@pytest.mark.item("B14")
@pytest.mark.timeout(5)
@pytest.mark.parametrize("wants", ["bool", "list"])
def test_loops_are_cut_off(wants: Wants) -> None:
    """Nested loops over a hundred million items end soon, with a reason."""
    hundred = f"[{', '.join('1' * 100)}]"
    loop = "all" if wants == "bool" else "map"
    text = "true"
    for name in "abcd":
        text = f"{hundred}.{loop}({name}, {text})"
    answer = program(text, wants).evaluate({})
    assert isinstance(answer, Broken)
    assert answer.code == "too-much-work"


def test_joining_long_texts_in_a_loop() -> None:
    """A loop that would copy a long text again and again is stopped before it begins."""
    joining = program("[1, 2].all(x, size(content + 'a' + 'b') > 0)")
    assert joining.evaluate({"content": "x" * (MAX_JOINED // 2)}) == Truth(True)
    answer = joining.evaluate({"content": "x" * (MAX_JOINED // 2 + 1)})
    assert isinstance(answer, Broken)
    assert answer.code == "too-much-work"
    long = {"content": "x" * 1_000_000}
    assert program("[1, 2].all(x, size(content) > 0)").evaluate(long) == Truth(True)
    assert program("size(content + content) > 0").evaluate(long) == Truth(True)


@pytest.mark.parametrize(
    ("text", "uses", "steps"),
    [
        ("true", set(), set()),
        ("iteration == 1 && content == ''", {"iteration", "content"}, set()),
        ("steps.a-b.content == '' && 'a' in steps", {"steps"}, {"a", "a-b"}),
        ("steps['review'].status == item.steps", {"steps", "item"}, {"review"}),
        ("steps.all(s, true)", {"steps"}, None),
        ("steps.a.content == '' && steps[item] == {}", {"steps", "item"}, None),
    ],
)
def test_a_program_knows_what_it_uses(text: str, uses: set[str], steps: set[str] | None) -> None:
    """Callers can build a small scope: the program names its variables and steps."""
    made = program(text)
    assert (made.uses, made.uses_steps) == (uses, steps)


def test_only_what_is_used_is_looked_at() -> None:
    """Steps and fields that the expression does not name are not even converted."""
    odd: Any = object()
    scope = {
        "steps": {"a": {"content": "x", "result": odd, "status": "done"}, "review": odd},
        "content": odd,
    }
    text = "steps.a.content == 'x' && steps.a.status == 'done'"
    assert program(text).evaluate(scope) == Truth(True)
    assert program("'a' in steps && 'a-b' in steps").evaluate(scope) == Truth(False)
    for whole in ("steps.a.size() == 3 && steps.a.content == 'x'", "steps.a.content == steps.a.x"):
        made = compile_cel(whole.replace(".x", ".result"), step_ids=IDS, wants="bool")
        assert isinstance(made, Program)
        assert isinstance(made.evaluate(scope), Broken)


def test_programs_are_kept() -> None:
    """The same text in the same surroundings is compiled once; problems are a list of one's own."""
    assert program("true") is program("true")
    assert program("item") is not program("item", "list")
    assert program("true") is not compile_cel("true", step_ids=[], wants="bool")
    problems("nope").clear()
    assert problems("nope")


def test_the_evaluator_is_loaded_on_demand() -> None:
    """The package alone loads nothing of it: commands without expressions stay quick."""
    code = "import sys, loopwright.syntax; print('cel_expr_python' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


PIECES = st.sampled_from(
    [
        *["steps", "item", "content", "iteration", "result", "nope", "review", "a-b", "in", "has"],
        *[".", ".?", "?", ":", "[", "]", "(", ")", "{", "}", ",", "+", "-", "/", "==", "&&", "||"],
        *["!", "'", '"', "'a'", "r'\\'", "b'x'", "1", "0", "1u", ".5", "1e400", "true", "null"],
        *[".map(x, x)", ".all(s, ", ".filter(x, true)", ".size()", "size(", "dyn(", "[1, 2]"],
        *["optional.of(", "optional.none()", ".value()", "duration('1s')", "type(", "\n", "// "],
        *["\0", "\ud800", "é", "\\", "`", "steps.review.content", "steps.list-services", " "],
        *["google.protobuf.Any{}", "timestamp(", ".matches(", "x", "\ufeff", ";", "loop"],
    ]
)
TEXTS = st.one_of(st.lists(PIECES, max_size=12).map("".join), st.text(max_size=60))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
SCOPES = st.dictionaries(st.sampled_from(VARIABLES), JSON)


def holds(text: str, wants: Wants, scope: dict[str, Any]) -> None:
    made = compile_cel(text, step_ids=IDS, wants=wants)
    if isinstance(made, Program):
        assert isinstance(made.evaluate(SCOPE), Value)
        assert isinstance(made.evaluate(scope), Value)
        return
    assert made, "refused without a reason"
    assert all(0 <= p.offset <= len(text) and p.message for p in made)
    assert [p.offset for p in made] == sorted(p.offset for p in made)


@settings(max_examples=500)
@given(TEXTS, st.sampled_from(["bool", "list"]), SCOPES)
def test_any_text_gives_an_answer_or_problems(text: str, wants: Wants, scope: Any) -> None:
    """Whatever stands in a document and a scope: a value or problems, never an exception."""
    holds(text, wants, scope)


@pytest.mark.deep
@settings(max_examples=10_000)
@given(TEXTS, st.sampled_from(["bool", "list"]), SCOPES)
def test_any_text_gives_an_answer_or_problems_deep(text: str, wants: Wants, scope: Any) -> None:
    """The same, many more times."""
    holds(text, wants, scope)


@pytest.mark.item("zenflow-75")
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("result.a", [{"z": 1, "a": {"y": 1, "b": 2}}, {"a": 3, "z": 4}]),
        ("result.a.filter(x, x.z == 4)", [{"a": 3, "z": 4}]),
        ("[{'n': 1, 'm': 2}]", [{"m": 2, "n": 1}]),
    ],
    ids=["as-given", "filtered", "made"],
)
def test_items_keep_the_order_of_their_keys(text: str, found: list[object]) -> None:
    """The evaluator forgets the order of keys; mappings that are new have theirs sorted."""
    scope: dict[str, Any] = {"a": [{"z": 1, "a": {"y": 1, "b": 2}}, {"a": 3, "z": 4}]}
    program = compile_cel(text, step_ids=[], wants="list")
    assert isinstance(program, Program)
    items = program.evaluate({"result": scope})
    assert isinstance(items, Items)
    assert json.dumps(items.values) == json.dumps(found)
