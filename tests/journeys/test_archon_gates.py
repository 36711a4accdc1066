"""People in workflows of nodes: loops that ask after each iteration, approvals, wrong answers."""

import os
import signal
from typing import Any

import pytest

from tests.cli.conftest import PATIENCE_S, Place, until
from tests.journeys.workflows import Troupe, loop, workflow

TAG = "<promise>DONE</promise>"
PROMPT = "Improve it. Feedback: [$LOOP_USER_INPUT]"


def refine(*, most: int = 5, message: str = "Good?", **more: Any) -> dict[str, Any]:
    asks = {"interactive": True, "gate_message": message, **more}
    return {"id": "refine", "loop": loop(PROMPT, most=most, **asks)}


def first(troupe: Troupe, *more: dict[str, Any], **settings: Any) -> Any:
    """Run to the first gate."""
    return troupe.run(refine(**settings), *more, interactive=True)


def status(told: Any) -> tuple[int, str, str, int]:
    """Exit code, status and reason of a run, and its iterations."""
    seen = told.json
    return told.code, seen["status"], seen["reason"], seen["iterations"]


@pytest.mark.item("archon-38")
def test_a_person_is_asked_after_the_first_iteration(troupe: Troupe) -> None:
    """One call; then the run waits, and says what is asked, of which run, and how to answer."""
    troupe.says(refine=["draft one"])
    file = troupe.write(workflow(refine(), interactive=True))
    told = troupe.lw("run", file, "Go", "--agent", troupe.agent)
    assert (told.code, len(troupe.calls)) == (5, 1)
    run = troupe.lw("ls", "--json").json["runs"][0]
    assert run["status"] == "waiting"
    shown = told.out + told.err
    assert "Good?" in shown
    assert run["run"] in shown
    assert "loopwright approve gate_" in shown
    [gate] = troupe.lw("inbox", "--json").json["gates"]
    assert (gate["run"], gate["message"]) == (run["run"], "Good?")


@pytest.mark.item("archon-40", "archon-41")
def test_words_reach_the_next_iteration_and_no_other(troupe: Troupe) -> None:
    """The text stands in the next prompt alone, with nothing added; count and session go on."""
    troupe.says(refine=[{"say": ["x"], "session": "s1"}, {"say": ["y"], "session": "s2"}, "z"])
    run = first(troupe)["run"]
    assert status(troupe.lw("approve", run, "Shorter, $USER_MESSAGE", "--json"))[1:] == (
        "waiting",
        "gate",
        2,
    )
    troupe.lw("approve", run, "--json")
    assert troupe.prompts == [
        "Improve it. Feedback: []",
        "Improve it. Feedback: [Shorter, $USER_MESSAGE]",
        "Improve it. Feedback: [Approved]",
    ]
    assert [call["iteration"] for call in troupe.calls] == [1, 2, 3]
    assert [call["session"] for call in troupe.calls] == ["", "s1", "s2"]


@pytest.mark.item("archon-40")
def test_words_are_not_lost_on_a_prompt_without_a_place_for_them(troupe: Troupe) -> None:
    """A prompt that does not name them gets them below."""
    asks = {"interactive": True, "gate_message": "Good?"}
    node = {"id": "refine", "loop": loop("Improve it.", **asks)}
    run = troupe.run(node, interactive=True)["run"]
    troupe.lw("approve", run, "Shorter")
    assert "Shorter" in troupe.prompts[1]


@pytest.mark.item("archon-39", "archon-43", "archon-75")
def test_an_iteration_that_completes_the_loop_asks_no_person(troupe: Troupe) -> None:
    """The loop waits after an iteration that does not complete it, and after no other."""
    troupe.says(refine=[f"good {TAG}"])
    told = first(troupe)
    assert (told["status"], told["output"], told["gates"]) == ("completed", "good", [])


@pytest.mark.item("archon-42", "archon-44")
@pytest.mark.parametrize(
    ("said", "text", "calls", "ended"),
    [
        pytest.param(["x", "y"], "", 2, "waiting", id="bare approval without a signal"),
        pytest.param(["x", TAG], "more", 2, "completed", id="signal in a later pass"),
    ],
)
def test_what_an_approval_means(
    troupe: Troupe, said: list[str], text: str, calls: int, ended: str
) -> None:
    """Without words it accepts an iteration that is done; anything else asks for another
    iteration.
    """
    troupe.says(refine=said)
    run = first(troupe)["run"]
    told = troupe.lw("approve", run, *([text] if text else []), "--json")
    assert (told.json["status"], len(troupe.calls)) == (ended, calls)


@pytest.mark.item("archon-45")
def test_a_signal_may_end_the_first_iteration(troupe: Troupe) -> None:
    """With signal_completes an iteration that is done asks nobody."""
    troupe.says(refine=[f"good {TAG}"])
    told = first(troupe, signal_completes=True)
    assert (told["status"], told["output"], len(troupe.calls)) == ("completed", "good", 1)


@pytest.mark.item("archon-46")
def test_a_rejection_cancels_the_run(troupe: Troupe) -> None:
    """Nothing more is called, and the run is cancelled."""
    run = first(troupe, {"id": "next", "depends_on": ["refine"], "bash": "touch went"})["run"]
    told = troupe.lw("reject", run, "Not at all.", "--json")
    assert (told.json["status"], told.json["reason"]) == ("cancelled", "rejected")
    assert (len(troupe.calls), (troupe.lw.folder / "went").exists()) == (1, False)


@pytest.mark.item("archon-47")
@pytest.mark.parametrize("kind", ["loop", "approval"])
def test_a_question_that_cannot_be_put_fails_the_node(troupe: Troupe, kind: str) -> None:
    """Nobody could answer it, so the run does not wait for that."""
    message = "Merge into $BASE_BRANCH?"
    approval = {"id": "refine", "approval": {"message": message}}
    node = refine(message=message) if kind == "loop" else approval
    told = troupe.run(node, interactive=True)
    step = told["steps"]["refine"]
    assert (told["status"], step["status"], told["gates"]) == ("failed", "failed", [])
    assert "no base branch is known" in step["error"]["detail"]


@pytest.mark.item("archon-48")
def test_wrong_answers_are_distinguished_and_change_nothing(troupe: Troupe) -> None:
    """Unknown, answered, under way and ended each have words of their own."""
    troupe.says(refine=["x", {"say": [TAG], "linger": 60}])
    lw, run = troupe.lw, first(troupe)["run"]
    [gate] = lw("inbox", "--json").json["gates"]
    process = lw.start("approve", run, "more")
    until(lambda: len(troupe.calls) == 2)
    answers = {
        "unknown": lw("approve", "run_none", "x"),
        "answered": lw("approve", gate["id"], "x"),
        "running": lw("approve", run, "x"),
    }
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)
    lw("stop", run)
    before = lw.events(run)
    answers["ended"] = lw("approve", run, "x")
    assert lw.events(run) == before
    words = {
        "unknown": "no run 'run_none'",
        "answered": "was already answered: approve",
        "running": "does not wait for anybody",
        "ended": "has ended",
    }
    assert all(answers[name].code in (2, 8) for name in words), answers
    assert all(words[name] in answers[name].err for name in words), answers
    assert sum(event["kind"] == "gate.answered" for event in before) == 1


@pytest.mark.item("archon-49")
def test_a_message_without_interactive_asks_no_person(troupe: Troupe) -> None:
    """The loop goes on by itself; that the message has no use is told."""
    troupe.says(refine=["x", TAG])
    node = {"id": "refine", "loop": loop("Go.", gate_message="Good?")}
    told = troupe.told(node)
    assert (told.json["status"], told.json["iterations"]) == ("completed", 2)
    assert "gate_message has no effect" in told.err


@pytest.mark.item("archon-50")
def test_a_gate_outlives_its_process(troupe: Troupe) -> None:
    """Killed while it waits, the question is still open and another process answers it."""
    troupe.says(refine=["x", TAG])
    lw = troupe.lw
    file = troupe.write(workflow(refine(), {"id": "slow", "bash": "sleep 60"}, interactive=True))
    process = lw.start("run", file, "Go", "--agent", troupe.agent)
    until(lambda: bool(lw("inbox", "--json").json["gates"]))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)
    [gate] = lw("inbox", "--json").json["gates"]
    answered = lw.start("approve", gate["id"], "go on")
    until(lambda: len(troupe.calls) == 2)
    until(lambda: any(one["path"] == "refine" for one in troupe.events("step.finished")))
    os.kill(answered.pid, signal.SIGKILL)
    answered.communicate(timeout=PATIENCE_S)
    ended = {one["path"]: one["status"] for one in troupe.events("step.finished")}
    assert ended["refine"] == "completed"
    assert troupe.prompts[1] == "Improve it. Feedback: [go on]"


@pytest.mark.item("archon-51")
def test_an_edited_file_changes_no_run_that_waits(troupe: Troupe) -> None:
    """A run keeps what it was started with, also the texts of the files it names."""
    commands = troupe.lw.folder / ".archon" / "commands"
    commands.mkdir(parents=True)
    (commands / "improve.md").write_text("Improve it as before: $LOOP_USER_INPUT")
    asks = {"interactive": True, "gate_message": "Good?"}
    settings = {key: value for key, value in loop(**asks).items() if key != "prompt"}
    node = {"id": "refine", "loop": {"command": "improve", **settings}}
    run = troupe.run(node, interactive=True)["run"]
    (commands / "improve.md").write_text("Something else.")
    troupe.write(workflow({"id": "refine", "bash": "true"}))
    troupe.lw("approve", run, "shorter")
    assert troupe.prompts[1] == "Improve it as before: shorter"


@pytest.mark.item("archon-52", "archon-76")
def test_the_limit_is_raised_only_by_everyone_who_asks_for_that(troupe: Troupe) -> None:
    """The gate after the last iteration says that it is the last; `continue` raises the limit by
    one iteration each time.
    """
    troupe.says(refine=["one", "two", f"three {TAG}"])
    waits = first(troupe, most=1)
    [gate] = waits["gates"]
    assert gate["message"].startswith("Good?\nThis was iteration 1 of 1, the limit: `continue`")
    run = waits["run"]
    assert troupe.lw("continue", run, "One more.", "--json").json["status"] == "waiting"
    told = troupe.lw("continue", run, "And another.", "--json")
    assert (told.json["status"], told.json["output"]) == ("completed", "three")
    assert [one["of"] for one in troupe.events("iteration.started")] == [1, 2, 3]
    assert troupe.prompts[1] == "Improve it. Feedback: [One more.]"


@pytest.mark.item("archon-52", "archon-76")
@pytest.mark.parametrize("text", ["", "One more."], ids=["bare", "with words"])
def test_an_approval_does_not_raise_the_limit(troupe: Troupe, text: str) -> None:
    """The node fails at its limit, as the document says of max_iterations."""
    troupe.says(refine=["one", "two"])
    run = first(troupe, most=1)["run"]
    told = troupe.lw("approve", run, *([text] if text else []), "--json")
    assert (told.json["status"], len(troupe.calls)) == ("failed", 1)
    assert "1" in told.json["error"]["detail"]


# -- approvals -------------------------------------------------------------------------------------

ASK = {"id": "sure", "approval": {"message": "Ship $build.output?"}, "depends_on": ["build"]}
BUILD = {"id": "build", "bash": "echo v1"}
SHIP = {"id": "ship", "depends_on": ["sure"], "prompt": "Ship. They said: [$sure.output]"}


@pytest.mark.item("archon-62")
@pytest.mark.parametrize(("captured", "seen"), [(True, "with care"), (False, "")])
def test_what_a_person_says_may_be_the_output(troupe: Troupe, captured: bool, seen: str) -> None:
    """The message is filled in; the comment is handed on only where that is asked for."""
    ask = {**ASK, "approval": {**ASK["approval"], "capture_response": captured}}  # type: ignore[dict-item]
    told = troupe.run(BUILD, ask, SHIP)
    assert told["gates"][0]["message"] == "Ship v1?"
    troupe.lw("approve", told["run"], "with care")
    assert troupe.prompts == [f"Ship. They said: [{seen}]"]


@pytest.mark.item("archon-62")
def test_a_rejection_is_worked_on_and_asked_again(troupe: Troupe) -> None:
    """The agent hears why; the rejection that makes the number of attempts cancels the run."""
    rework = {"prompt": "Mend it: $REJECTION_REASON", "max_attempts": 2}
    ask = {**ASK, "approval": {**ASK["approval"], "on_reject": rework}}  # type: ignore[dict-item]
    run = troupe.run(BUILD, ask, SHIP)["run"]
    told = troupe.lw("reject", run, "Too early", "--json")
    assert (told.json["status"], troupe.prompts) == ("waiting", ["Mend it: Too early"])
    told = troupe.lw("reject", run, "No", "--json")
    assert (told.json["status"], len(troupe.calls)) == ("cancelled", 1)


@pytest.mark.item("archon-34")
def test_an_approval_leaves_a_running_loop_alone(troupe: Troupe) -> None:
    """While somebody is asked beside it, a loop makes all its iterations."""
    troupe.says(work=["x", "y", TAG])
    told = troupe.run(
        {"id": "sure", "approval": {"message": "Sure?"}}, {"id": "work", "loop": loop()}
    )
    assert (told["status"], told["steps"]["work"]["status"]) == ("waiting", "completed")
    assert len(troupe.calls) == 3


def test_a_group_asks_about_its_iterations(lw: Place, troupe: Troupe) -> None:
    """A group of nodes has the same gate, and its nodes see what was said there."""
    body = [
        {"id": "a", "prompt": "A [$LOOP_USER_INPUT] [$LOOP_PREV.b.output]"},
        {"id": "b", "bash": "echo b$USER_MESSAGE"},
    ]
    asks = {"interactive": True, "gate_message": "Good?"}
    group = {"id": "g", "loop_group": {"until": "DONE", "max_iterations": 3, "nodes": body, **asks}}
    troupe.says(a=["x", TAG])
    run = troupe.run(group, interactive=True, message="1")["run"]
    assert lw("approve", run, "again", "--json").json["status"] == "completed"
    assert troupe.prompts == ["A [] []", "A [again] [b1]"]


DECIDE = {"message": "Publish?", "decisions": [{"id": "approve", "label": "Now"}, {"id": "hold"}]}
TELL = {"id": "tell", "depends_on": ["sure"], "prompt": "[$sure.output.decision] $sure.output"}


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        ((), '[approve] {"decision":"approve","text":""}'),
        (("hold", "until Monday"), '[hold] {"decision":"hold","text":"until Monday"}'),
        (("well done",), '[approve] {"decision":"approve","text":"well done"}'),
    ],
)
def test_decisions_of_an_approval_are_its_output(
    troupe: Troupe, said: tuple[str, ...], seen: str
) -> None:
    """A person answers with the id of a decision; any other answer is the first one."""
    told = troupe.run({"id": "sure", "approval": DECIDE}, TELL)
    message = told["gates"][0]["message"]
    assert message.startswith("Publish?\n")
    assert message.endswith("- approve: Now\n- hold")
    troupe.lw("approve", told["run"], " ".join(said))
    assert troupe.prompts == [seen]


@pytest.mark.parametrize(("listed", "status"), [(False, "cancelled"), (True, "completed")])
def test_reject_cancels_unless_it_is_a_decision(troupe: Troupe, listed: bool, status: str) -> None:
    """A rejection that the gate lists is an answer like the others."""
    ids = ["approve", "reject"] if listed else ["approve"]
    asked = {"message": "Publish?", "decisions": ids}
    told = troupe.run({"id": "sure", "approval": asked}, TELL)
    ended = troupe.lw("reject", told["run"], "Too early", "--json")
    assert ended.json["status"] == status
    seen = ['[reject] {"decision":"reject","text":"Too early"}']
    assert troupe.prompts == (seen if listed else [])
