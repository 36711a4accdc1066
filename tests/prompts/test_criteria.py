"""The prompt says when the work is done, and which checks failed after the iteration before."""

import msgspec
import pytest

from loopwright.kernel.events import CheckVerdict
from loopwright.kernel.signal import has_signal
from loopwright.model.actions import CallAgent, LoopGate, Repeat, Step, Steps
from loopwright.model.checks import (
    AllOf,
    AnyOf,
    Approval,
    Cap,
    Check,
    CommandCheck,
    Contains,
    Expr,
    Goal,
    Judge,
    NoCalls,
    OutputSchema,
    PersonCheck,
    Regex,
    ResultField,
    ResultPath,
    ScriptCheck,
    Signal,
    SpendCheck,
    ToolResultCheck,
)
from loopwright.model.ids import AGENT_CALL
from loopwright.model.policy import PreviousOutput, StageOutputs, WorkspacePolicy
from loopwright.model.record import literal
from loopwright.prompts.calls import CallPrompt, compose
from loopwright.prompts.sections import ALL_EVIDENCE_CHARS, EVIDENCE_CHARS
from tests.kernel.driving import Driver, Reply, plan_of

MESSAGE = "Fix the tests."
PYTEST = CommandCheck(argv=("pytest", "-q"))
RUFF = CommandCheck(argv=("ruff", "check"))
pytestmark = pytest.mark.item("rec-29")


def loop(until: Check, **more: object) -> Repeat:
    values: dict[str, object] = {"max": 5, "criteria": True, **more}
    body = values.pop("body", CallAgent(agent="worker"))
    return Repeat(body=body, until=until, **values)  # type: ignore[arg-type]


def started(action: Repeat) -> Driver:
    return Driver(plan_of(action), message=MESSAGE).start()


def shown(driver: Driver) -> CallPrompt:
    (pending,) = [p for p in driver.state.pending.values() if p.purpose == AGENT_CALL]
    return compose(driver.state, pending.owner, driver.texts)


def first_prompt(until: Check, **more: object) -> str:
    return shown(started(loop(until, **more))).text


DONE = f"{MESSAGE}\n\n## When the work is done\n\nThe work is done when "


@pytest.mark.parametrize(
    ("until", "words"),
    [
        pytest.param(PYTEST, "`pytest -q` exits with 0.", id="command"),
        pytest.param(
            CommandCheck(argv=("sh", "a b"), done_codes=(0, 5)),
            "`sh 'a b'` exits with 0 or 5.",
            id="codes",
        ),
        pytest.param(
            Signal(word="DONE"),
            "the last line of your reply is `DONE` and nothing else is on that line.",
            id="signal",
        ),
        pytest.param(
            Signal(word="DONE", anywhere=True),
            "your reply has a line that is `DONE` and nothing else.",
            id="signal-anywhere",
        ),
        pytest.param(
            Regex(pattern="ok \\d+", ignore_case=True),
            "your reply matches the regular expression `ok \\d+`, in upper or lower case.",
            id="regex",
        ),
        pytest.param(
            Regex(pattern="ALL PASS"),
            "your reply matches the regular expression `A·L·L· ·P·A·S·S`, written without the dots "
            "between the characters.",
            id="regex-that-matches-itself",
        ),
        pytest.param(
            Contains(text="ok"),
            "your reply contains the text `o·k`, written without the dots between the characters.",
            id="contains",
        ),
        pytest.param(
            Contains(text="ok", ignore_case=True),
            "your reply contains the text `o·k`, in upper or lower case, written without the dots "
            "between the characters.",
            id="contains-any-case",
        ),
        pytest.param(
            Contains(text="Fix the tests"),
            "your reply contains the text `Fix the tests`.",
            id="contains-what-the-request-has",
        ),
        pytest.param(
            Expr(text="content.contains('ok')"),
            "the expression `content.contains('o·k')` is true (with its strings written without "
            "the dots between the characters).",
            id="expr-of-the-reply",
        ),
        pytest.param(
            ScriptCheck(text="test -f a"), "the bash script `test -f a` exits with 0.", id="script"
        ),
        pytest.param(
            ScriptCheck(text="set -e\nmake"),
            "this bash script exits with 0:\n\n    set -e\n    make",
            id="long-script",
        ),
        pytest.param(
            Expr(text="iteration > 2"), "the expression `iteration > 2` is true.", id="expr"
        ),
        pytest.param(ResultField(field="ok"), "the field `ok` of the result is true.", id="field"),
        pytest.param(
            ResultPath(path=("review", 0)),
            "`review.0` of the answer is not missing, false, 0, null or empty.",
            id="path",
        ),
        pytest.param(
            OutputSchema(schema={"type": "object", "required": ["ok"]}),
            'the JSON object in your reply fits this schema: {"type":"object","required":["ok"]}.',
            id="schema",
        ),
        pytest.param(
            OutputSchema(schema={"type": "object"}),
            "the JSON object in your reply fits the schema.",
            id="schema-that-fits-itself",
        ),
        pytest.param(
            Judge(agent="critic", prompt=literal("Is it\nclear?")),
            "another agent (`critic`) judges that the work is done, with these instructions:\n\n"
            "    Is it\n    clear?",
            id="judge",
        ),
        pytest.param(
            Goal(agent="critic"),
            "another agent (`critic`) judges that the goal is reached.",
            id="goal",
        ),
        pytest.param(Approval(stage="review"), "the review in `review` approves.", id="approval"),
        pytest.param(PersonCheck(), "a person approves the iteration.", id="person"),
        pytest.param(
            PersonCheck(message=literal("Good?")),
            "a person approves the iteration, who is asked:\n\n    Good?",
            id="person-asked",
        ),
        pytest.param(
            ToolResultCheck(tool="shell.exec", exit_code=0, contains="ok"),
            "the tool `shell.exec` answers with exit code 0 and with a text that contains `ok`.",
            id="tool",
        ),
        pytest.param(ToolResultCheck(tool="done"), "the tool `done` answers.", id="any-answer"),
        pytest.param(NoCalls(), "you reply without calling a tool.", id="no-calls"),
        pytest.param(
            AllOf(parts=(PYTEST, AnyOf(parts=(RUFF, PersonCheck())), SpendCheck(usd=1))),
            "all of these hold:\n- `pytest -q` exits with 0\n- one of these holds:\n"
            "  - `ruff check` exits with 0\n  - a person approves the iteration",
            id="combined",
        ),
    ],
)
def test_each_check_is_stated_in_words(until: Check, words: str) -> None:
    """The first prompt has the request and then the criteria."""
    assert first_prompt(until) == DONE + words


@pytest.mark.parametrize(
    ("until", "more"),
    [
        pytest.param(Cap(), {}, id="cap"),
        pytest.param(SpendCheck(usd=3), {}, id="spend"),
        pytest.param(AnyOf(parts=(SpendCheck(usd=3), Cap())), {}, id="limits"),
        pytest.param(PYTEST, {"criteria": False}, id="switched-off"),
    ],
)
def test_without_criteria_the_message_stays_as_it_is(until: Check, more: dict[str, object]) -> None:
    """Loops that nothing but their number ends, and loops that do not want it, add nothing."""
    assert first_prompt(until, **more) == MESSAGE


def test_a_gate_ends_a_loop_as_well() -> None:
    """A person who is asked after each iteration is one of the ways to be done."""
    assert first_prompt(Cap(), gate=LoopGate()) == DONE + (
        "a person reviews the iteration and approves it."
    )
    assert first_prompt(PYTEST, gate=LoopGate()) == DONE + (
        "one of these holds:\n- `pytest -q` exits with 0\n"
        "- a person reviews the iteration and approves it"
    )


def test_steps_are_informed_about_the_reply_of_the_iteration() -> None:
    """In a loop of steps the check is about the last reply, not about each one."""
    step = Step(id="build", action=CallAgent(agent="worker"))
    text = first_prompt(Signal(word="DONE"), body=Steps(steps=(step,)))
    assert "the last line of the last reply of the iteration is `DONE`" in text


def test_stages_have_their_sections_and_the_criteria() -> None:
    """A native loop of stages states its criteria below the task."""
    step = Step(id="build", action=CallAgent(agent="worker", prompt=literal("Build.")))
    text = first_prompt(PYTEST, body=Steps(steps=(step,)), memory=StageOutputs())
    assert text.index("## Your Task") < text.index("`pytest -q` exits with 0.")


@pytest.mark.parametrize("anywhere", [False, True], ids=["last-line", "anywhere"])
def test_an_echo_of_the_prompt_is_no_signal(anywhere: bool) -> None:
    """An agent that repeats its whole prompt has not said the word."""
    text = first_prompt(Signal(word="DONE", anywhere=anywhere))
    assert not has_signal(text, "DONE", MESSAGE, anywhere=anywhere)


ECHOED = [
    pytest.param(Signal(word="DONE"), id="signal"),
    pytest.param(Signal(word="DONE", anywhere=True), id="signal anywhere"),
    pytest.param(Regex(pattern="ALL PASS"), id="regex"),
    pytest.param(Regex(pattern="all|pass", ignore_case=True), id="regex of alternatives"),
    pytest.param(Regex(pattern="DONE$"), id="anchored"),
    pytest.param(Contains(text="COMPLETE"), id="contains"),
    pytest.param(Contains(text="done", ignore_case=True), id="a common word"),
    pytest.param(Contains(text="Q"), id="one character"),
    pytest.param(OutputSchema(schema={"type": "object"}), id="schema"),
    pytest.param(Expr(text="content.contains('COMPLETE')"), id="expression"),
    pytest.param(AllOf(parts=(Contains(text="COMPLETE"), PYTEST)), id="beside a command"),
]


@pytest.mark.parametrize("until", ECHOED)
@pytest.mark.parametrize("form", ["{}", "I was asked this:\n\n{}\n", "> {}"])
def test_an_agent_that_echoes_its_prompt_does_not_complete(until: Check, form: str) -> None:
    """In the first iteration and in the next one, which lists the criterion as not met."""
    driver = started(loop(until, max=2))
    for number in (0, 1):
        driver.answer(f"main.{number}/agent#1", form.format(shown(driver).text))
        for effect in list(driver.state.pending):
            if "/check" in effect:
                driver.answer(effect, Reply("no", code=1))
    assert driver.state.finished is not None
    assert driver.state.finished.outcome == "exhausted"


@pytest.mark.parametrize(
    ("until", "reply"),
    [
        pytest.param(Regex(pattern="ALL PASS"), "Now ALL PASS.", id="regex"),
        pytest.param(Contains(text="COMPLETE"), "COMPLETE", id="contains"),
    ],
)
def test_an_agent_that_says_the_text_completes(until: Check, reply: str) -> None:
    """What is spelled out in the prompt is looked for as it was written."""
    driver = started(loop(until))
    driver.answer("main.0/agent#1", reply)
    assert driver.state.finished is not None
    assert driver.state.finished.outcome == "completed"


# -- what failed -----------------------------------------------------------------------------------


def after_checks(until: Check, *ends: tuple[int, str], **more: object) -> str:
    """The prompt of the second iteration, after checks that ended with these codes and outputs."""
    driver = started(loop(until, **more))
    driver.answer("main.0/agent#1", "tried")
    for code, output in ends:
        (effect,) = driver.state.pending
        driver.answer(effect, Reply(output, code=code))
    return shown(driver).text


def test_every_failed_check_is_shown_with_its_output() -> None:
    """All checks are run, and the failed ones are listed with exit code and output."""
    until = AllOf(parts=(PYTEST, CommandCheck(argv=("true",)), RUFF, Signal(word="DONE")))
    text = after_checks(until, (1, "1 failed\n\nE  assert"), (0, ""), (2, ""))
    assert text.index("## Checks that failed after iteration 1") < text.index("## When the work")
    failed = text.partition("## Checks that failed after iteration 1\n\n")[2].partition("\n\n## ")[
        0
    ]
    assert failed == (
        "- `pytest -q` exited with 1:\n\n    1 failed\n    \n    E  assert\n\n"
        "- `ruff check` exited with 2 and printed nothing\n"
        "- not met: the last line of your reply is `DONE` and nothing else is on that line"
    )


def test_the_first_failure_ends_the_checks_where_that_is_wanted() -> None:
    """`until_decided` asks nothing after the first failure."""
    text = after_checks(AllOf(parts=(PYTEST, RUFF)), (1, "boom"), checks="until_decided")
    assert "`pytest -q` exited with 1" in text
    assert "`ruff check` exited" not in text


def test_a_judge_is_not_asked_after_a_failed_command() -> None:
    """What costs money is not asked about work that is not done anyway."""
    text = after_checks(AllOf(parts=(PYTEST, Judge(agent="critic"))), (1, "boom"))
    assert "`pytest -q` exited with 1" in text
    assert "not met: another agent" not in text


@pytest.mark.item("rec-39")
@pytest.mark.parametrize("code", [126, 127])
@pytest.mark.parametrize("check", [PYTEST, ScriptCheck(text="pytest")], ids=["command", "script"])
def test_a_program_that_cannot_be_run_breaks_the_check(check: Check, code: int) -> None:
    """Exit codes 126 and 127 never mean "not yet"; three in a row end the loop."""
    driver = started(loop(check, max=9))
    for number in range(3):
        driver.answer(f"main.{number}/agent#1", "tried")
        driver.answer(f"main.{number}/check0#1", Reply("sh: pytest: not found", code=code))
    assert driver.state.finished is not None
    assert (driver.state.finished.outcome, driver.state.finished.reason) == (
        "failed",
        "check_broken",
    )


def test_a_broken_check_is_named_as_that() -> None:
    """A check that could not be run is not shown as one that failed."""
    text = after_checks(PYTEST, (127, "sh: pytest: not found"))
    assert "- `pytest -q` could not be checked:\n\n    sh: pytest: not found" in text


def test_a_limit_is_no_failure() -> None:
    """An amount that is not spent yet is not listed among the failed checks."""
    text = after_checks(AnyOf(parts=(SpendCheck(usd=3), PYTEST)), (1, "boom"))
    assert "exited with 1:" in text
    assert "spend" not in text


def test_the_end_of_long_outputs_is_shown() -> None:
    """The summary of a test run is at its end; all outputs together have a limit too."""
    until = AllOf(parts=tuple(CommandCheck(argv=("t", str(n))) for n in range(6)))
    text = after_checks(until, *((1, f"{'x' * 9_000}END{n}") for n in range(6)))
    assert all(f"END{n}\n" in text for n in range(6))
    assert ALL_EVIDENCE_CHARS < len(text) < ALL_EVIDENCE_CHARS + 2_000
    one = after_checks(PYTEST, (1, f"START{'x' * 9_000}END"))
    assert "START" not in one
    assert f"[… {9_008 - EVIDENCE_CHARS} characters before this …]" in one


@pytest.mark.parametrize(
    ("check", "words"),
    [
        pytest.param("other", "- `other` failed:\n\n    a.py", id="unknown"),
        pytest.param(
            "protect",
            "- protected files must be as they were at the start; undo your changes to them:\n\n"
            "    a.py",
            id="protect",
        ),
    ],
)
def test_a_verdict_of_the_engine_is_shown(check: str, words: str) -> None:
    """A check that no definition has, such as changed protected files, is listed too."""
    driver = started(loop(PYTEST))
    driver.answer("main.0/agent#1", "tried")
    verdict = CheckVerdict(
        at=1,
        path="main.0",
        iteration=1,
        index=7,
        check=check,
        verdict="fail",
        evidence="a.py",
    )
    driver.append(verdict)
    driver.answer("main.0/check0#1", Reply("", code=1))
    text = shown(driver).text
    assert words in text
    assert "- `pytest -q` exited with 1 and printed nothing" in text


def test_the_checks_before_the_first_iteration_are_shown() -> None:
    """A loop that looks first says what it saw."""
    driver = started(loop(PYTEST, check_first=True))
    (effect,) = driver.state.pending
    driver.answer(effect, Reply("2 failed", code=1))
    assert (
        "## Checks that failed before iteration 1\n\n- `pytest -q` exited with 1"
        in shown(driver).text
    )


def test_what_a_person_said_is_feedback_and_no_failure() -> None:
    """A person who asks for another iteration is quoted once, below the criteria."""
    driver = started(loop(PersonCheck()))
    driver.answer("main.0/agent#1", "tried")
    driver.decide("continue", "shorter")
    text = shown(driver).text
    assert text.endswith("## Feedback from a person\n\nshorter")
    assert "Checks that failed" not in text


def test_a_judge_is_quoted_once() -> None:
    """Where the memory has the judge's words, the failed checks leave them out."""
    driver = started(loop(Judge(agent="critic"), memory=PreviousOutput(by_step=True)))
    driver.answer("main.0/agent#1", "tried")
    driver.answer("main.0/check0#1", Reply("no", result='{"done": false, "reason": "too long"}'))
    text = shown(driver).text
    assert text.count("too long") == 1


@pytest.mark.parametrize(
    ("until", "words"),
    [
        pytest.param(PYTEST, "The work is done when `pytest -q` exits with 0.\n\n", id="command"),
        pytest.param(Cap(), "", id="no check"),
    ],
)
def test_protected_files_are_named_with_the_criteria(until: Check, words: str) -> None:
    """Also in a loop that ends after a number of iterations only."""
    policy = WorkspacePolicy(protect=("tests/**", "pyproject.toml"))
    plan = msgspec.structs.replace(plan_of(loop(until)), workspace=policy)
    told = shown(Driver(plan, message=MESSAGE).start()).text
    heading = "## When the work is done\n\n"
    assert told == f"{MESSAGE}\n\n{heading}{words}Do not change: `tests/**`, `pyproject.toml`"
