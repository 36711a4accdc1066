"""Loops of nodes from the command line: what ends them, what they hand on, what goes wrong."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Place
from tests.journeys.workflows import Troupe, loop, workflow

TAG = "<promise>DONE</promise>"
READ = {"id": "read", "depends_on": ["work"], "prompt": "It said: [$work.output]"}


def work(**settings: Any) -> dict[str, Any]:
    return {"id": "work", "loop": loop(**settings)}


# -- the signal ------------------------------------------------------------------------------------

GIVEN = [
    pytest.param(TAG, id="tag alone", marks=pytest.mark.item("archon-7")),
    pytest.param(f"All of it.\n{TAG}\nBye.", id="tag in the middle"),
    pytest.param("< not a tag\n<Promise> done\n</PROMISE >", id="case and blanks"),
    pytest.param('<div class="a">DONE</div>', id="another tag"),
    pytest.param(f"Nothing is left {TAG}", id="tag ends a sentence"),
    pytest.param(f"I did not change the docs, so this is it: {TAG}", id="after a denial"),
    pytest.param(f"{TAG} once the tests pass", id="before a condition"),
    pytest.param(f"```\n{TAG}\n```", id="tag in a block of code"),
    pytest.param(f"Go.\nLast, give {TAG}", id="tag as in the prompt"),
    pytest.param("All stories are there. DONE", id="last word", marks=pytest.mark.item("archon-9")),
    pytest.param("It is DONE!?", id="punctuation", marks=pytest.mark.item("archon-9")),
    pytest.param("I looked.\nDONE\nBye.", id="own line", marks=pytest.mark.item("archon-10")),
]
NOT_GIVEN = [
    pytest.param("<promise>DONE</done>", id="unequal ends"),
    pytest.param("<promise>not DONE</promise>", id="more in the tag"),
    pytest.param("The word DONE says it.", id="in a sentence", marks=pytest.mark.item("archon-9")),
    pytest.param("It stays UNDONE", id="longer word", marks=pytest.mark.item("archon-11")),
    pytest.param("So it is not DONE.", id="denied", marks=pytest.mark.item("archon-11")),
    pytest.param("It isn't DONE", id="denied short", marks=pytest.mark.item("archon-11")),
    pytest.param("I will say: DONE", id="put off", marks=pytest.mark.item("archon-11")),
    pytest.param("```\nDONE\n```", id="in a fence", marks=pytest.mark.item("archon-11")),
    pytest.param("done", id="other case"),
]


@pytest.mark.item("archon-8")
@pytest.mark.parametrize("said", GIVEN)
def test_the_signal_ends_the_loop(lw: Place, said: str) -> None:
    """One call, the node has completed, and so has the run."""
    lw.write("flow.yaml", workflow(work(prompt=f"Go.\nLast, give {TAG}")))
    told = lw("run", "flow.yaml", "Go", "--agent", lw.script(said), "--json")
    assert (told.code, told.json["status"], told.json["iterations"]) == (0, "completed", 1)
    step = told.json["steps"]["work"]
    assert (step["status"], step["reason"]) == ("completed", "signal")


@pytest.mark.item("archon-8")
@pytest.mark.parametrize("said", NOT_GIVEN)
def test_what_only_looks_like_the_signal_does_not(lw: Place, said: str) -> None:
    """The loop goes on to its cap."""
    lw.write("flow.yaml", workflow(work(prompt=f"Go.\nLast, give {TAG}", most=2)))
    told = lw("run", "flow.yaml", "Go", "--agent", lw.script(said, said), "--json")
    assert (told.code, told.json["iterations"]) == (3, 2)
    assert told.json["steps"]["work"]["reason"] == "max_iterations"


@pytest.mark.item("archon-12", "archon-17", "archon-14")
def test_the_last_iteration_speaks_for_the_loop(troupe: Troupe) -> None:
    """Three calls when the third says it, the last allowed one too; later nodes see only that."""
    troupe.says(work=["first", "second", f"third\n{TAG}"], read=["seen"])
    told = troupe.run(work(), READ)
    assert (told["status"], told["steps"]["work"]["output"]) == ("completed", "third")
    assert [call["step"] for call in troupe.calls] == ["work"] * 3 + ["read"]
    assert troupe.prompts[-1] == "It said: [third]"


@pytest.mark.item("archon-13")
def test_a_loop_at_its_cap_has_failed(troupe: Troupe) -> None:
    """Exactly so many calls; the node and the run fail with cap and signal named."""
    troupe.says(work=["not yet"])
    told = troupe.told(work(most=3), READ, {"id": "after", "depends_on": ["read"], "bash": "true"})
    assert told.code == 3
    steps = told.json["steps"]
    assert (told.json["status"], len(troupe.calls)) == ("failed", 3)
    assert {name: one["status"] for name, one in steps.items()} == {
        "work": "failed",
        "read": "skipped",
        "after": "skipped",
    }
    assert "3 of 3" in steps["work"]["error"]["detail"]
    assert "DONE" in steps["work"]["error"]["detail"]
    assert steps["work"]["output"] == "not yet"


@pytest.mark.item("archon-15")
def test_tags_are_for_the_loop_alone(troupe: Troupe) -> None:
    """Neither people nor later nodes see them, also when they come in pieces."""
    pieces = [
        "half of <pro",
        "mise>no",
        "t yet</prom",
        "ise>it ",
        "and <b>bold</b> ",
        "<promise>DO",
    ]
    troupe.says(work=[{"say": [*pieces, "NE</promise>"]}], read=["seen"])
    file = troupe.write(workflow(work(), READ))
    told = troupe.lw("run", file, "Do it.", "--agent", troupe.agent)
    assert told.code == 0
    assert troupe.prompts[-1] == "It said: [half of it and <b>bold</b>]"
    for text in (told.out, told.err, *(troupe.lw(*view).out for view in VIEWS)):
        assert "promise" not in text
    assert "half of it and <b>bold</b>" in troupe.lw("logs", "last").out


VIEWS = [("show", "last"), ("logs", "last"), ("show", "last", "--json")]


@pytest.mark.item("archon-16")
def test_an_answer_of_the_tag_alone_is_an_empty_output(troupe: Troupe) -> None:
    """Nothing is left of it for later nodes, and the loop has completed."""
    troupe.says(work=[TAG], read=["seen"])
    told = troupe.run(work(), READ)
    assert (told["status"], told["steps"]["work"]["output"]) == ("completed", "")
    assert troupe.prompts[-1] == "It said: []"


# -- sessions and variables ------------------------------------------------------------------------


@pytest.mark.item("archon-18")
@pytest.mark.parametrize(
    ("fresh", "sessions"), [(True, ["", "", ""]), (False, ["", "s1", "s2"])], ids=["fresh", "kept"]
)
def test_sessions_continue_from_iteration_to_iteration(
    troupe: Troupe, fresh: bool, sessions: list[str]
) -> None:
    """Each iteration takes up the session that the one before told, unless all are to be fresh."""
    entries = [{"say": ["x"], "session": f"s{number}"} for number in (1, 2)]
    troupe.says(work=[*entries, {"say": [TAG], "session": "s3"}])
    assert troupe.run(work(fresh_context=fresh))["status"] == "completed"
    assert [call["session"] for call in troupe.calls] == sessions


@pytest.mark.item("archon-18")
def test_nodes_of_a_group_keep_their_own_sessions(troupe: Troupe) -> None:
    """In a group the session of a node goes on in the next iteration, and not in another node."""
    body = [
        {"id": "a", "prompt": "A"},
        {"id": "b", "prompt": "B", "depends_on": ["a"]},
        {"id": "c", "prompt": "C", "depends_on": ["b"], "context": "fresh"},
    ]
    says = {
        name: [{"say": ["x"], "session": f"{name}1"}, {"say": [TAG], "session": f"{name}2"}]
        for name in "abc"
    }
    troupe.says(**says)
    group = {"id": "g", "loop_group": {"until": "DONE", "max_iterations": 3, "nodes": body}}
    assert troupe.run(group)["status"] == "completed"
    seen = [(call["step"], call["session"]) for call in troupe.calls]
    assert seen == [("a", ""), ("b", ""), ("c", ""), ("a", "a1"), ("b", "b1"), ("c", "")]


@pytest.mark.item("archon-19")
def test_variables_are_filled_in_every_iteration(troupe: Troupe) -> None:
    """Message, run, folders, outputs and the iteration before; the folder for artifacts is
    there.
    """
    prompt = "$USER_MESSAGE|$WORKFLOW_ID|$DOCS_DIR|$setup.output|$LOOP_PREV_OUTPUT|$ARTIFACTS_DIR"
    troupe.says(work=["one $setup.output", TAG])
    setup = {"id": "setup", "bash": 'echo "it is set"; ls -d "$ARTIFACTS_DIR" >/dev/null'}
    told = troupe.run(
        setup, {**work(prompt=prompt), "depends_on": ["setup"]}, message="Say $ARGUMENTS"
    )
    assert told["status"] == "completed"
    first, second = (text.split("|") for text in troupe.prompts)
    head = ["Say $ARGUMENTS", told["run"], "docs/", "it is set"]
    assert (first[:5], second[:5]) == ([*head, ""], [*head, "one $setup.output"])
    folder = Path(first[5])
    assert folder.is_dir()
    assert first[5] == second[5]
    assert not folder.is_relative_to(troupe.lw.folder)


@pytest.mark.item("archon-20")
@pytest.mark.parametrize("known", [False, True], ids=["no repository", "repository"])
def test_the_base_branch_is_found_or_missed_where_it_is_used(troupe: Troupe, known: bool) -> None:
    """A node that needs it fails with clear words when there is none; others do not care."""
    if known:
        git = troupe.lw.folder / ".git"
        (git / "refs" / "heads").mkdir(parents=True)
        (git / "objects").mkdir()
        (git / "HEAD").write_text("ref: refs/heads/topic\n")
        (git / "config").write_text("[core]\n\trepositoryformatversion = 0\n")
        (git / "refs" / "remotes" / "origin").mkdir(parents=True)
        (git / "refs" / "remotes" / "origin" / "HEAD").write_text(
            "ref: refs/remotes/origin/trunk\n"
        )
    told = troupe.run(
        {"id": "other", "bash": "echo fine"},
        {"id": "uses", "prompt": "Against $BASE_BRANCH"},
    )
    steps = told["steps"]
    assert steps["other"]["status"] == "completed"
    if known:
        assert troupe.prompts == ["Against trunk"]
    else:
        assert (steps["uses"]["status"], troupe.calls) == ("failed", [])
        assert "no base branch is known" in steps["uses"]["error"]["detail"]


# -- the check -------------------------------------------------------------------------------------


@pytest.mark.item("archon-21", "archon-22")
def test_the_check_sees_what_the_agent_did(troupe: Troupe) -> None:
    """It runs in the folder of the run, after every iteration, and its code 0 ends the loop."""
    troupe.says(work=["x", {"say": ["y"], "write": {"ready": "yes"}}])
    told = troupe.run(work(until_bash='test "$(cat ready)" = yes && pwd > where', most=5))
    assert (told["status"], told["steps"]["work"]["reason"]) == ("completed", "script")
    assert len(troupe.calls) == 2
    assert (troupe.lw.folder / "where").read_text().strip() == str(troupe.lw.folder)


@pytest.mark.item("archon-23")
def test_a_signal_makes_the_check_unnecessary(troupe: Troupe) -> None:
    """The check runs after passes that did not say it, and not after the one that did."""
    troupe.says(work=["x", TAG])
    told = troupe.run(work(until_bash="echo ran >> log; false"))
    assert told["steps"]["work"]["reason"] == "signal"
    assert (troupe.lw.folder / "log").read_text() == "ran\n"


@pytest.mark.item("archon-26")
def test_a_check_that_cannot_start_is_reported_at_once(troupe: Troupe) -> None:
    """No iteration is wasted on a check that nobody can ask: nothing begins."""
    bare = troupe.lw.folder / "bin"
    bare.mkdir()
    file = troupe.write(workflow(work(until_bash="true", most=5)))
    told = troupe.lw.real(
        "run", file, "Go", "--agent", troupe.agent, "--json", env={"PATH": str(bare)}
    )
    assert (told.code, told.json["type"]) == (2, "urn:loopwright:problem:no-program")
    assert re.match(
        rf"{re.escape(file)}:\d+:\d+: step work: check script: bash is not on PATH",
        told.json["detail"],
    )
    assert troupe.calls == []


# -- what goes wrong -------------------------------------------------------------------------------

BROKEN = [
    pytest.param(
        {"exit": 7, "stderr": "boom"}, "exit", id="dies", marks=pytest.mark.item("archon-28")
    ),
    pytest.param({"error": "boom"}, "agent", id="says so", marks=pytest.mark.item("archon-29")),
]


@pytest.mark.parametrize(("entry", "kind"), BROKEN)
def test_a_failing_pass_fails_the_node_at_once(
    troupe: Troupe, entry: dict[str, Any], kind: str
) -> None:
    """An event tells of the iteration, the node has failed, and there is no third pass."""
    troupe.says(work=["x", entry])
    told = troupe.run(work(most=5))
    step = told["steps"]["work"]
    assert (told["status"], step["status"], step["error"]["type"]) == ("failed", "failed", kind)
    assert len(troupe.calls) == 2
    ends = troupe.events("iteration.finished")
    assert [(one["iteration"], one.get("status", "completed")) for one in ends] == [
        (1, "completed"),
        (2, "failed"),
    ]


@pytest.mark.item("archon-70")
def test_an_empty_answer_is_an_iteration_like_any_other(troupe: Troupe) -> None:
    """The check after it decides; where it is not enough, the verdict names the empty answer."""
    silent = {"say": [" \n"], "write": {"ready": "yes"}}
    troupe.says(work=[{"say": ["\n"]}, silent])
    told = troupe.run(work(until_bash="test -f ready", most=5))
    assert (told["status"], told["steps"]["work"]["reason"]) == ("completed", "script")
    assert len(troupe.calls) == 2
    verdicts = [str(one.get("evidence", "")) for one in troupe.events("check.verdict")]
    assert "the answer is empty" in " ".join(verdicts)


@pytest.mark.item("archon-30")
def test_silence_ends_the_iteration_and_not_the_loop(troupe: Troupe) -> None:
    """The iteration counts with what was said, people are told, and the next one starts."""
    troupe.says(work=[{"say": ["half"], "linger": 30}, f"rest\n{TAG}"])
    file = troupe.write(workflow({**work(prompt="Was: $LOOP_PREV_OUTPUT"), "idle_timeout": 3_000}))
    told = troupe.lw("run", file, "Go", "--agent", troupe.agent)
    assert (told.code, len(troupe.calls)) == (0, 2)
    assert troupe.prompts[1] == "Was: half"
    assert "idle_timeout" in told.err
    first = troupe.events("iteration.finished")[0]
    assert (first.get("status", "completed"), first["reason"]) == ("completed", "idle_timeout")


@pytest.mark.item("archon-31")
def test_an_agent_that_talks_is_not_silent(troupe: Troupe) -> None:
    """Every word begins the wait anew, however long the whole takes."""
    troupe.says(work=[{"say": ["a", "b", "c", "d", TAG], "pause": 0.8}])
    told = troupe.run({**work(), "idle_timeout": 3_000})
    assert (told["status"], told["steps"]["work"]["output"]) == ("completed", "abcd")
    assert len(troupe.calls) == 1


# -- events ----------------------------------------------------------------------------------------


@pytest.mark.item("archon-35")
def test_events_of_iterations(troupe: Troupe) -> None:
    """They carry the number from 1, the most there may be, the time, and what was seen."""
    troupe.says(work=[{"say": ["x"], "pause": 0.05}, {"say": [TAG], "pause": 0.05}])
    troupe.run(work(most=4))
    starts, ends = troupe.events("iteration.started"), troupe.events("iteration.finished")
    assert [(one["iteration"], one["of"]) for one in starts] == [(1, 4), (2, 4)]
    assert [(one["iteration"], one.get("done", False)) for one in ends] == [(1, False), (2, True)]
    assert all(one["ms"] >= 50 for one in ends)


@pytest.mark.item("archon-36")
def test_the_cost_of_a_node_is_the_sum_of_its_iterations(troupe: Troupe) -> None:
    """The end of the node tells what all of its iterations have used."""
    troupe.says(work=[{"say": ["x"], "usd": 0.25}, {"say": [TAG], "usd": 0.5}])
    troupe.run(work())
    [end] = troupe.events("step.finished")
    assert end["usage"] == {"input_tokens": 20, "output_tokens": 2, "usd": 0.75}


@pytest.mark.item("archon-37")
def test_a_result_ends_the_iteration_although_the_program_hangs_on(troupe: Troupe) -> None:
    """The answer is there, so nobody waits for a program that does not leave."""
    troupe.says(work=[{"say": ["thinking"], "result": f"all of it\n{TAG}", "linger": 60}])
    told = troupe.run(work())
    assert (told["status"], told["steps"]["work"]["output"]) == ("completed", "all of it")


def test_the_agents_of_these_journeys_are_programs(troupe: Troupe) -> None:
    """What is shown here is shown with processes that speak the agents' own protocol."""
    assert troupe.agent.startswith(f"jsonl:{sys.executable}")
