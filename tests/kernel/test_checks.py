"""Checks: what one says, what several come to, and in which order they are asked."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.kernel.checks import (
    CheckResult,
    ChecksDecision,
    DueCheck,
    check_name,
    combine_verdicts,
    command_result,
    inspect,
    last_json_object,
    person_result,
)
from loopwright.kernel.event_parts import Failure
from loopwright.kernel.events import EffectDone, EffectFailed, Verdict
from loopwright.kernel.frames import GateState, RunOwner
from loopwright.model.checks import (
    AllOf,
    AnyOf,
    Cap,
    Check,
    CommandCheck,
    Contains,
    Expr,
    Judge,
    OutputSchema,
    PersonCheck,
    Regex,
    ScriptCheck,
    Signal,
    leaves,
)
from loopwright.model.record import Blob
from tests.kernel.driving import Texts
from tests.model.plans import ANY_LEAF, check_trees

SIG, CMD, REG, PER, JUD = (
    Signal(word="DONE"),
    CommandCheck(argv=("t",)),
    Regex(pattern="x"),
    PersonCheck(),
    Judge(agent="j"),
)
ASK = "ask"
FAIL, NOT_PASSED = ChecksDecision("fail"), ("fail", "error", "timed_out")


def row(check: Check, verdicts: str, expected: object, name: str) -> object:
    """`verdicts` has a letter for each leaf: p pass, f fail, e error, t timed out, r rejected."""
    words = {"p": "pass", "f": "fail", "e": "error", "t": "timed_out", "r": "rejected"}
    said = {n: words[letter] for n, letter in enumerate(verdicts) if letter != "-"}
    return pytest.param(check, said, expected, id=name)


@pytest.mark.parametrize(
    ("check", "verdicts", "expected"),
    [
        row(Cap(), "", FAIL, "a cap never passes"),
        row(SIG, "", DueCheck(0, SIG), "a leaf is asked"),
        row(SIG, "p", ChecksDecision("pass", "signal"), "a leaf passes"),
        row(SIG, "f", FAIL, "a leaf fails"),
        row(CMD, "e", FAIL, "a broken leaf has not passed"),
        row(CMD, "t", FAIL, "a leaf out of time has not passed"),
        row(PER, "p", ChecksDecision("pass", "approved"), "a person approves"),
        row(PER, "f", FAIL, "a person goes on"),
        row(PER, "r", ChecksDecision("rejected"), "a person rejects"),
        # any: the first that passes decides
        row(AnyOf(parts=(SIG, CMD)), "", DueCheck(0, SIG), "any asks the first"),
        row(AnyOf(parts=(SIG, CMD)), "p", ChecksDecision("pass", "signal"), "any: first passes"),
        row(AnyOf(parts=(SIG, CMD)), "f", DueCheck(1, CMD), "any: then asks the second"),
        row(AnyOf(parts=(SIG, CMD)), "fp", ChecksDecision("pass", "command"), "any: second passes"),
        row(AnyOf(parts=(SIG, CMD)), "ff", FAIL, "any: none passes"),
        row(
            AnyOf(parts=(CMD, SIG)),
            "ep",
            ChecksDecision("pass", "signal"),
            "any: broken, then passed",
        ),
        row(AnyOf(parts=(PER, SIG)), "r", ChecksDecision("rejected"), "any: a rejection ends it"),
        row(AnyOf(parts=(Cap(), SIG)), "", DueCheck(1, SIG), "any: a cap is passed over"),
        row(AnyOf(parts=()), "", FAIL, "any of nothing"),
        # all: the cheap ones are all asked
        row(AllOf(parts=(SIG, CMD)), "", DueCheck(0, SIG), "all asks the first"),
        row(AllOf(parts=(SIG, CMD)), "f", DueCheck(1, CMD), "all: asks on after a failure"),
        row(AllOf(parts=(SIG, CMD)), "fp", FAIL, "all: first failed"),
        row(AllOf(parts=(SIG, CMD)), "pf", FAIL, "all: second failed"),
        row(AllOf(parts=(SIG, CMD)), "pe", FAIL, "all: second broken"),
        row(AllOf(parts=(SIG, CMD)), "pp", ChecksDecision("pass", "command"), "all pass"),
        row(AllOf(parts=(SIG, Cap())), "p", FAIL, "all with a cap never pass"),
        row(AllOf(parts=()), "", ChecksDecision("pass"), "all of nothing"),
        # a person or a judge only when all before it passed
        row(AllOf(parts=(SIG, PER)), "f", FAIL, "all: no person after a failure"),
        row(AllOf(parts=(SIG, PER)), "p", DueCheck(1, PER), "all: a person after a pass"),
        row(AllOf(parts=(SIG, JUD)), "f", FAIL, "all: no judge after a failure"),
        row(AllOf(parts=(SIG, JUD)), "p", DueCheck(1, JUD), "all: a judge after a pass"),
        row(
            AllOf(parts=(SIG, PER, CMD)), "f", DueCheck(2, CMD), "all: a cheap one behind a person"
        ),
        row(AllOf(parts=(SIG, PER, CMD)), "f-p", FAIL, "all: that one cannot help"),
        row(
            AllOf(parts=(PER, CMD)),
            "",
            DueCheck(0, PER),
            "all: nothing stands before a first person",
        ),
        row(AllOf(parts=(CMD, PER)), "pr", ChecksDecision("rejected"), "all: a rejection ends it"),
        row(AllOf(parts=(PER, PER)), "p", DueCheck(1, PER), "all: each person is asked"),
        # nesting keeps the numbers of the leaves
        row(
            AllOf(parts=(AnyOf(parts=(SIG, REG)), CMD)),
            "f",
            DueCheck(1, REG),
            "all of any: next part",
        ),
        row(
            AllOf(parts=(AnyOf(parts=(SIG, REG)), CMD)),
            "p",
            DueCheck(2, CMD),
            "all of any: skips one",
        ),
        row(
            AllOf(parts=(AnyOf(parts=(SIG, REG)), CMD)),
            "p-p",
            ChecksDecision("pass", "command"),
            "all of any: passes",
        ),
        row(AllOf(parts=(SIG, AnyOf(parts=(CMD, PER)))), "ff", FAIL, "no person deep in an any"),
        row(
            AnyOf(parts=(AllOf(parts=(SIG, CMD)), PER)),
            "pf",
            DueCheck(2, PER),
            "any of all: person last",
        ),
        row(
            AnyOf(parts=(AllOf(parts=(SIG, PER)), REG)),
            "f",
            DueCheck(2, REG),
            "any of all: passes over",
        ),
        row(
            AnyOf(parts=(AnyOf(parts=(Cap(),)), AllOf(parts=(SIG,)))),
            "-p",
            ChecksDecision("pass", "signal"),
            "any in any",
        ),
    ],
)
def test_weigh(
    check: Check, verdicts: dict[int, Verdict], expected: DueCheck | ChecksDecision
) -> None:
    """What the verdicts so far come to, or who is asked next."""
    assert combine_verdicts(check, verdicts) == expected


def passes(check: Check, verdicts: dict[int, Verdict], first: int = 0) -> bool:
    """The plain meaning of a tree once everyone has spoken."""
    if isinstance(check, AnyOf | AllOf):
        firsts = list(itertools.accumulate((len(leaves(p)) for p in check.parts), initial=first))
        said = [passes(p, verdicts, n) for p, n in zip(check.parts, firsts, strict=False)]
        return any(said) if isinstance(check, AnyOf) else all(said)
    return not isinstance(check, Cap) and verdicts[first] == "pass"


@given(tree=check_trees(ANY_LEAF), words=st.lists(st.sampled_from(["pass", *NOT_PASSED])))
def test_weigh_agrees_with_logic(tree: Check, words: list[Verdict]) -> None:
    """Asked to the end, any is `or` and all is `and`; no one is asked twice."""
    verdicts = {n: words[n % len(words)] if words else "fail" for n in range(len(leaves(tree)))}
    known: dict[int, Verdict] = {}
    said = combine_verdicts(tree, known)
    while isinstance(said, DueCheck):
        assert said.index not in known
        assert leaves(tree)[said.index] == said.leaf
        known[said.index] = verdicts[said.index]
        said = combine_verdicts(tree, known)
    assert (said.verdict == "pass") is passes(tree, verdicts)


# -- what a check says -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("leaf", "output", "said"),
    [
        pytest.param(Regex(pattern="a+"), "xaay", CheckResult("pass", "aa"), id="regex matches"),
        pytest.param(Regex(pattern="a+"), "xAy", CheckResult("fail"), id="regex minds the case"),
        pytest.param(
            Regex(pattern="a+", ignore_case=True),
            "xAy",
            CheckResult("pass", "A"),
            id="regex, any case",
        ),
        pytest.param(
            Regex(pattern="x+"),
            "x" * 500,
            CheckResult("pass", "x" * 300),
            id="regex evidence is cut",
        ),
        pytest.param(
            Regex(pattern="([", invalid=True),
            "([",
            CheckResult("fail", "the pattern is invalid, so it never matches"),
            id="invalid pattern never matches",
        ),
        pytest.param(Contains(text="Yes"), "oh Yes!", CheckResult("pass"), id="contains"),
        pytest.param(
            Contains(text="Yes"), "oh yes!", CheckResult("fail"), id="contains minds the case"
        ),
        pytest.param(
            Contains(text="Yes", ignore_case=True),
            "oh yes!",
            CheckResult("pass"),
            id="contains, any case",
        ),
        pytest.param(
            Contains(text="Yes", ignore_case=True),
            "no",
            CheckResult("fail"),
            id="contains not, any case",
        ),
        pytest.param(Signal(word="DONE"), "ok\nDONE", CheckResult("pass"), id="signal"),
        pytest.param(Signal(word="DONE"), "asked\nDONE", CheckResult("fail"), id="signal echoed"),
        pytest.param(CommandCheck(argv=("t",)), "", None, id="a program has to be run"),
        pytest.param(PersonCheck(), "", None, id="a person has to be asked"),
        pytest.param(Expr(text="1"), "", None, id="anything else is not for here"),
    ],
)
def test_inspect(leaf: Check, output: str, said: CheckResult | None) -> None:
    """A check of the iteration's own texts speaks at once; the others say nothing here."""
    assert inspect(leaf, Texts(), output=output, result=None, instructions="asked\nDONE") == said


def test_inspect_reads_stored_texts() -> None:
    """A long output is read from where it is stored."""
    texts = Texts(inline=3)
    output = texts.keep("a long text\nDONE")
    assert isinstance(output, Blob)
    leaf = Signal(word="DONE")
    assert inspect(leaf, texts, output=output, result=None, instructions="") == CheckResult("pass")


NEEDS_OK = OutputSchema(schema={"type": "object", "required": ["ok"]})


@pytest.mark.parametrize(
    ("output", "result", "verdict", "evidence"),
    [
        pytest.param("", '{"ok": 1}', "pass", "", id="structured result"),
        pytest.param('{"ok": 1}', '{"no": 1}', "fail", "'ok' is a required", id="result wins"),
        pytest.param("", "[1]", "fail", "is not of type", id="not an object"),
        pytest.param("", "{ok", "fail", "not JSON", id="result is not JSON"),
        pytest.param("", "[" * 10_000, "fail", "not JSON", id="result is too deep"),
        pytest.param('see {"ok": 1} there', None, "pass", "", id="found in the output"),
        pytest.param('see {"no": 1} there', None, "fail", "'ok' is a required", id="found, unfit"),
        pytest.param("prose", None, "fail", "no JSON object", id="nothing found"),
        pytest.param('{"ok": NaN}', None, "fail", "not JSON", id="not a number"),
    ],
)
def test_schema(output: str, result: str | None, verdict: str, evidence: str) -> None:
    """The structured result is checked, else the last object of the output."""
    said = inspect(NEEDS_OK, Texts(), output=output, result=result, instructions="")
    assert said is not None
    assert said.verdict == verdict
    assert evidence in said.evidence
    assert bool(evidence) == bool(said.evidence)


def test_schema_evidence_is_cut() -> None:
    """A problem that quotes a huge value is told in brief."""
    huge = '{"no": "' + "x" * 5_000 + '"}'
    said = inspect(NEEDS_OK, Texts(), output="", result=huge, instructions="")
    assert said is not None
    assert len(said.evidence) <= 300


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("", None, id="nothing"),
        pytest.param("no braces", None, id="prose"),
        pytest.param('{"a": 1}', '{"a": 1}', id="alone"),
        pytest.param('so: {"a": 1}.', '{"a": 1}', id="in prose"),
        pytest.param('```json\n{"a": 1}\n```', '{"a": 1}', id="in a fence"),
        pytest.param('{"a": 1} then {"b": 2}', '{"b": 2}', id="the last of two"),
        pytest.param('{"a": {"b": 2}}', '{"a": {"b": 2}}', id="the whole of a nested one"),
        pytest.param('{"a": "}{"}', '{"a": "}{"}', id="braces in a text"),
        pytest.param('{"a": 1} and {broken', '{"a": 1}', id="broken one after it"),
        pytest.param('{"a": 1', None, id="not closed"),
        pytest.param('{"x": [{"a": 1}', '{"a": 1}', id="whole one inside a broken one"),
        pytest.param("if (a) { b } {}", "{}", id="code before it"),
        pytest.param('{"foo then {"done": true}', '{"done": true}', id="unbalanced quote before"),
        pytest.param("{'a': 1}", None, id="single quotes"),
        pytest.param('[{"a": 1}]', '{"a": 1}', id="in a list"),
        pytest.param("{\n}", "{\n}", id="empty over two lines"),
    ],
)
def test_last_json_object(text: str, found: str | None) -> None:
    """The last object that is complete, whatever stands around it."""
    assert last_json_object(text) == found


BIG = 300_000
QUICK_S = 10.0
"""Of this process's own time: how busy the machine is does not count."""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("{" * BIG, None, id="opening braces"),
        pytest.param('{"' * BIG, None, id="opening braces and quotes"),
        pytest.param('{"a":' * BIG, None, id="nested without end"),
        pytest.param('{"a":[' * 100 + "1," * BIG, None, id="open lists with a long tail"),
        pytest.param('{"a":"' + "x" * BIG, None, id="text without end"),
        pytest.param("{ x }\n" * BIG + '{"a":1}', '{"a":1}', id="code, then the object"),
        pytest.param('{"a": x}' * 5_000 + '{"a":1}', '{"a":1}', id="false starts, then the object"),
        pytest.param('{"a":1}' * (BIG // 10), '{"a":1}', id="very many"),
        pytest.param('{"a":[' + "1," * BIG + "2]}", '{"a":[' + "1," * BIG + "2]}", id="one big"),
    ],
)
def test_last_json_object_is_quick(text: str, found: str | None) -> None:
    """No text keeps the search busy for long, and a plain object is still found."""
    began = time.process_time()
    assert last_json_object(text) == found
    assert time.process_time() - began < QUICK_S


@given(before=st.text(st.characters(exclude_characters="{"), max_size=20), n=st.integers())
def test_object_after_any_prose(before: str, n: int) -> None:
    """Prose without a brace hides nothing."""
    assert last_json_object(f'{before}{{"n": {n}}}') == f'{{"n": {n}}}'


def done(code: int | None) -> EffectDone:
    return EffectDone(at=0, path="p", effect="e", code=code)


def failed(kind: str) -> EffectFailed:
    return EffectFailed(at=0, path="p", effect="e", error=Failure(kind, "why"))


@pytest.mark.parametrize(
    ("leaf", "answer", "said"),
    [
        pytest.param(CMD, done(0), CheckResult("pass"), id="code 0"),
        pytest.param(CMD, done(1), CheckResult("fail"), id="code 1"),
        pytest.param(CMD, done(-9), CheckResult("fail"), id="killed"),
        pytest.param(CMD, done(None), CheckResult("fail"), id="no code"),
        pytest.param(
            CommandCheck(argv=("t",), done_codes=(3,)), done(3), CheckResult("pass"), id="own code"
        ),
        pytest.param(
            CommandCheck(argv=("t",), done_codes=(3,)), done(0), CheckResult("fail"), id="own, 0"
        ),
        pytest.param(ScriptCheck(text="x"), done(0), CheckResult("pass"), id="script code 0"),
        pytest.param(ScriptCheck(text="x"), done(1), CheckResult("fail"), id="script code 1"),
        pytest.param(
            CMD, failed("wall_timeout"), CheckResult("timed_out", "why"), id="out of time"
        ),
        pytest.param(
            CMD, failed("idle_timeout"), CheckResult("timed_out", "why"), id="silent too long"
        ),
        pytest.param(CMD, failed("not_found"), CheckResult("error", "why"), id="no such program"),
        pytest.param(CMD, failed("workspace_gone"), CheckResult("error", "why"), id="no directory"),
        pytest.param(CMD, failed("internal"), CheckResult("error", "why"), id="our own defect"),
    ],
)
def test_command_said(
    leaf: CommandCheck, answer: EffectDone | EffectFailed, said: CheckResult
) -> None:
    """A program that could not be asked is told apart from one that says no."""
    assert command_result(leaf, answer) == said


@pytest.mark.parametrize(
    ("decision", "text", "said"),
    [
        pytest.param("approve", "fine", CheckResult("pass", "fine"), id="approve"),
        pytest.param("reject", "bad", CheckResult("rejected", "bad"), id="reject with words"),
        pytest.param("reject", "", CheckResult("rejected", "rejected by a person"), id="reject"),
        pytest.param("continue", "more", CheckResult("fail", "more"), id="continue"),
    ],
)
def test_person_said(decision: str, text: str, said: CheckResult) -> None:
    """A decision is a verdict with the person's own words."""
    gate = GateState("g", "d", "m", (), 0, "p", RunOwner(), decision=decision, text=text)
    assert person_result(PersonCheck(), gate) == said


def test_checks_have_names() -> None:
    """People see the name that the definition uses."""
    assert [check_name(leaf) for leaf in (SIG, CMD, PER)] == ["signal", "command", "person"]
