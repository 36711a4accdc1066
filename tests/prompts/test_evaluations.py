"""The result of a run, and its scores by evaluators."""

import jsonschema
import pytest

from loopwright.kernel.event_parts import CallNote, Failure, ModelCall, ToolCall
from loopwright.kernel.events import (
    AnyEvent,
    CancelRequested,
    EffectDone,
    EffectFailed,
    EffectRequested,
    GateAnswered,
    GateOpened,
    RunFinished,
    TurnTaken,
)
from loopwright.model.record import Blob, JsonValue, Text
from loopwright.prompts.judges import (
    EvaluatedRun,
    Score,
    contains,
    exact,
    json_schema,
    judge_prompt,
    judge_score,
    not_contains,
    read_result,
    regex,
)

STORED = {"b1": "a long story"}


def read(text: Text | None) -> str:
    return STORED[text.blob] if isinstance(text, Blob) else text or ""


def asked(effect: str, call: ModelCall | ToolCall) -> EffectRequested:
    return EffectRequested(at=1, path=effect.partition("/")[0], effect=effect, call=call)


MODEL = ModelCall(agent="a")
SUMMARY = ModelCall(agent="a", role="summary")
TOOL = ToolCall(agent="a", tool="shell.exec")
END = RunFinished(at=9, outcome="completed", reason="contains", output="all done")


def done(effect: str, output: Text, code: int | None = None) -> EffectDone:
    return EffectDone(at=2, path="main.0", effect=effect, output=output, code=code)


def failed(effect: str, output: str = "") -> EffectFailed:
    error = Failure("tool", "no such file")
    return EffectFailed(at=2, path="main.0", effect=effect, error=error, output=output)


def taken(*notes: CallNote) -> TurnTaken:
    return TurnTaken(at=2, path="main.0", effect="main.0/model#1", calls=notes)


NOTE = CallNote(id="c1", tool="shell.exec", held="always")
GATE = GateOpened(
    at=3, path="main.0", gate="g", digest="d", message="?", answers=("approve", "reject"), call=1
)


@pytest.mark.item("aldo-67")
@pytest.mark.parametrize(
    ("events", "came"),
    [
        pytest.param([], EvaluatedRun(), id="nothing yet"),
        pytest.param(
            [
                asked("main.0/model#1", MODEL),
                done("main.0/model#1", "looking"),
                asked("main.0/tool1#1", TOOL),
                done("main.0/tool1#1", "ok", 0),
                asked("main.1/summary#1", SUMMARY),
                done("main.1/summary#1", "in short"),
                asked("main.1/model#1", MODEL),
                asked("main.1/model#2", MODEL),
                done("main.1/model#2", "all done"),
                END,
            ],
            EvaluatedRun(
                text="all done", final_tool_result="ok", cycles=2, terminated_by="contains"
            ),
            id="output, last tool, cycles without tries and summaries",
        ),
        pytest.param(
            [
                asked("main.0/model#1", MODEL),
                done("main.0/model#1", Blob(blob="b1", size=12)),
                asked("main.1/model#1", MODEL),
                done("main.1/model#1", ""),
                CancelRequested(at=8),
                RunFinished(at=9, outcome="cancelled", reason="stopped"),
            ],
            EvaluatedRun(text="a long story", cycles=2, terminated_by="stopped"),
            id="no output: the last thing that was said",
        ),
        pytest.param(
            [asked("main.0/tool1#1", TOOL), done("main.0/tool1#1", "2 failed", 1), END],
            EvaluatedRun(
                text="all done",
                final_tool_result="2 failed",
                final_tool_failed=True,
                terminated_by="contains",
            ),
            id="a code other than 0 is a failure",
        ),
        pytest.param(
            [asked("main.0/tool1#1", TOOL), failed("main.0/tool1#1")],
            EvaluatedRun(final_tool_result='{"error":"no such file"}', final_tool_failed=True),
            id="a tool that threw",
        ),
        pytest.param(
            [asked("main.0/tool1#1", TOOL), failed("main.0/tool1#1", "trace")],
            EvaluatedRun(final_tool_result="trace", final_tool_failed=True),
            id="a tool that said something and failed",
        ),
        pytest.param(
            [taken(CallNote(id="c1", tool="x", problem="there is no tool x"))],
            EvaluatedRun(
                final_tool_result='{"error":"there is no tool x"}', final_tool_failed=True
            ),
            id="a call that nobody could run",
        ),
        pytest.param(
            [
                taken(NOTE),
                GATE,
                GateAnswered(at=4, path="main.0", gate="g", decision="reject", text="no", by="ann"),
            ],
            EvaluatedRun(
                final_tool_result='{"rejected":true,"reason":"no","approver":"ann"}',
                final_tool_failed=True,
            ),
            id="a call that a person rejected",
        ),
        pytest.param(
            [taken(NOTE), GATE, GateAnswered(at=4, path="main.0", gate="g", decision="approve")],
            EvaluatedRun(),
            id="an approval is no result",
        ),
    ],
)
def test_result_of_a_run(events: list[AnyEvent], came: EvaluatedRun) -> None:
    """Text, last tool result, cycles and the reason of the end, from the events alone."""
    assert read_result(events, read) == came


@pytest.mark.item("aldo-67")
def test_the_composed_text_shows_a_last_tool_that_failed() -> None:
    """A claim of success stands beside what the tool really said."""
    claim = EvaluatedRun(
        text="all tests pass", final_tool_result="2 failed", final_tool_failed=True
    )
    assert claim.composed == "all tests pass\n\n[final tool result: failed]\n2 failed"
    fine = EvaluatedRun(text="pass", final_tool_result="ok")
    assert fine.composed == "pass\n\n[final tool result]\nok"
    assert EvaluatedRun(text="pass").composed == "pass"
    assert not not_contains(claim.composed, "failed").passed


def found(pattern: str, text: str) -> bool:
    return pattern == "al+" and "al" in text


def problem(schema: dict[str, JsonValue], value: JsonValue) -> str | None:
    error = next(jsonschema.Draft202012Validator(schema).iter_errors(value), None)
    return None if error is None else error.message


SCHEMA: dict[str, JsonValue] = {"type": "object", "required": ["done"]}


@pytest.mark.item("aldo-67")
@pytest.mark.parametrize(
    ("score", "passed"),
    [
        pytest.param(contains("all done", "done"), True, id="contains"),
        pytest.param(contains("all done", "Done"), False, id="contains: case counts"),
        pytest.param(not_contains("all done", "fail"), True, id="not_contains"),
        pytest.param(not_contains("all done", "done"), False, id="not_contains: it is there"),
        pytest.param(regex("all", "al+", matches=found), True, id="regex"),
        pytest.param(regex("none", "al+", matches=found), False, id="regex: no match"),
        pytest.param(exact(" done\n", "done"), True, id="exact: blanks around"),
        pytest.param(exact("done.", "done"), False, id="exact: another text"),
        pytest.param(json_schema('{"done":1}', SCHEMA, problem=problem), True, id="schema"),
        pytest.param(json_schema('so {"done":1}', SCHEMA, problem=problem), True, id="in prose"),
        pytest.param(json_schema('{"x":1}', SCHEMA, problem=problem), False, id="does not fit"),
        pytest.param(json_schema("done", SCHEMA, problem=problem), False, id="no JSON"),
        pytest.param(judge_score("YES"), True, id="yes"),
        pytest.param(judge_score("Not YES but no."), False, id="the last word counts"),
        pytest.param(judge_score("SCORE: 0.8"), True, id="just enough"),
        pytest.param(judge_score("score 0.79, YES"), False, id="a number counts for more"),
        pytest.param(judge_score("SCORE: 85%"), True, id="percent"),
        pytest.param(judge_score("SCORE = 7/10"), False, id="of ten"),
        pytest.param(judge_score("SCORE: 9"), False, id="no such score"),
        pytest.param(judge_score("SCORE: 9/0"), False, id="of nothing"),
        pytest.param(judge_score("I cannot say."), False, id="unreadable"),
    ],
)
def test_evaluators(score: Score, passed: bool) -> None:
    """Each says whether a text passes, and if not, why."""
    assert score.passed is passed
    assert bool(score.detail) is not passed


def test_the_question_to_a_judge() -> None:
    """Places are filled once: what a run said cannot ask for more."""
    asked = judge_prompt(
        "{{ input }}: {{output}} ({{expected}}) {{else}}",
        output="{{input}}",
        expected="x",
        input="q",
    )
    assert asked == "q: {{input}} (x) {{else}}"
