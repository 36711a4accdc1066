"""Workflows that run other workflows: once, or for each item of a list."""

import json
import os
import signal
from typing import Any

import pytest

from tests.cli.conftest import PATIENCE_S, Place, until
from tests.journeys.test_zenflow_crashes import Stage
from tests.journeys.workflows import Troupe, workflow


def child(troupe: Troupe, name: str, *nodes: dict[str, Any], **head: Any) -> None:
    """A workflow that others run."""
    troupe.write(workflow(*nodes, **head), f".archon/workflows/{name}.yaml")


def fan(items: Any, **more: Any) -> dict[str, Any]:
    """A node that runs `work` for each item, after `list`."""
    return {
        "id": "fan",
        "depends_on": ["list"],
        "trigger_rule": "all_done",
        "workflow": "work",
        "fan_out": {"items": items, **more},
    }


LIST = {"id": "list", "bash": 'echo \'["a", "b", "c"]\''}


# -- once ------------------------------------------------------------------------------------------


def test_another_workflow_is_a_part_of_the_run(troupe: Troupe) -> None:
    """It has its own nodes below the node that runs it, and speaks with its first end."""
    child(
        troupe,
        "review",
        {"id": "plan", "bash": "echo inner plan for $ARGUMENTS"},
        {"id": "end", "depends_on": ["plan"], "prompt": "[$plan.output] [$USER_MESSAGE]"},
    )
    troupe.says(end=["reviewed"])
    told = troupe.run(
        {"id": "plan", "bash": "echo outer plan"},
        {"id": "look", "depends_on": ["plan"], "workflow": "review", "arguments": "$plan.output"},
        {"id": "last", "depends_on": ["look"], "bash": "echo got $look.output of $plan.output"},
    )
    assert (told["status"], told["output"]) == ("completed", "got reviewed of outer plan")
    assert troupe.prompts == ["[inner plan for outer plan] [outer plan]"]
    assert [call["path"] for call in troupe.calls] == ["look.end"]
    ended = [event["path"] for event in troupe.events("step.finished")]
    assert ended == ["plan", "look.plan", "look.end", "look", "last"]


def test_without_arguments_it_has_the_message_of_the_run(troupe: Troupe) -> None:
    """The same message goes all the way down."""
    child(troupe, "inner", {"id": "say", "prompt": "$ARGUMENTS"})
    child(troupe, "outer", {"id": "next", "workflow": "inner"})
    troupe.run({"id": "a", "workflow": "outer"}, message="Fix $it")
    assert troupe.prompts == ["Fix $it"]


def test_inputs_of_another_workflow(troupe: Troupe) -> None:
    """They are what the node says, else their defaults; those of the run are not seen."""
    inputs = {"style": {"default": "plain"}, "size": {"default": 3}, "other": {"required": False}}
    child(
        troupe,
        "work",
        {"id": "say", "prompt": "$INPUTS.style/$INPUTS.size/$INPUTS.other"},
        {"id": "no", "when": "$INPUTS.size > 4", "bash": "echo no"},
        {"id": "yes", "when": "$INPUTS.style == 'of outer'", "bash": "echo yes"},
        inputs=inputs,
    )
    told = troupe.run(
        {"id": "a", "workflow": "work", "inputs": {"style": "of $INPUTS.style"}},
        inputs={"style": {"default": "outer"}, "other": {"default": "hidden"}},
    )
    assert troupe.prompts == ["of outer/3/"]
    assert [event["path"] for event in troupe.events("step.skipped")] == ["a.no"]
    assert told["status"] == "completed"


def test_nothing_of_the_outside_is_seen_inside(troupe: Troupe) -> None:
    """A node that has not run inside is not taken for one of the same name outside."""
    child(
        troupe,
        "work",
        {"id": "plan", "when": "$first.output == 'no'", "bash": "echo inner"},
        {"id": "first", "bash": "echo yes"},
        {"id": "end", "depends_on": ["first"], "prompt": "[$plan.output]"},
    )
    troupe.run(
        {"id": "plan", "bash": "echo outer"},
        {"id": "a", "depends_on": ["plan"], "workflow": "work"},
    )
    assert troupe.prompts == ["[]"]


ENDS = [
    pytest.param([{"id": "bad", "bash": "exit 3"}], "failed", id="a node failed"),
    pytest.param(
        [{"id": "a", "bash": "true"}, {"id": "b", "when": "$a.output == 'x'", "bash": "true"}],
        "completed",
        id="one was left out",
    ),
    pytest.param(
        [{"id": "b", "when": "$INPUTS.x == 'y'", "bash": "true"}], "failed", id="none completed"
    ),
]


@pytest.mark.parametrize(("nodes", "status"), ENDS)
def test_how_another_workflow_ends(troupe: Troupe, nodes: Any, status: str) -> None:
    """It fails as a run would; what comes after follows the rule of its node."""
    child(troupe, "work", *nodes, inputs={"x": {"default": "n"}})
    told = troupe.run(
        {"id": "a", "workflow": "work"},
        {"id": "good", "depends_on": ["a"], "bash": "true"},
        {"id": "any", "depends_on": ["a"], "trigger_rule": "all_done", "bash": "true"},
    )
    assert told["steps"]["a"]["status"] == status
    assert told["steps"]["good"]["status"] == ("completed" if status == "completed" else "skipped")
    assert told["steps"]["any"]["status"] == "completed"
    assert told["status"] == status


def test_a_person_is_asked_from_inside(troupe: Troupe) -> None:
    """The gate of another workflow is a gate of the run, and the answer lets it go on."""
    ask = {"id": "ok", "approval": {"message": "Release $ARGUMENTS?", "capture_response": True}}
    child(troupe, "release", ask, interactive=True)
    told = troupe.run(
        {"id": "a", "workflow": "release", "arguments": "it"},
        {"id": "b", "depends_on": ["a"], "bash": "echo said $a.output"},
        interactive=True,
    )
    assert told["status"] == "waiting"
    [gate] = troupe.lw("inbox", "--json").json["gates"]
    assert gate["message"] == "Release it?"
    done = troupe.lw("approve", told["run"], "go", "--json").json
    assert (done["status"], done["output"]) == ("completed", "said go")


# -- for each item ---------------------------------------------------------------------------------


def test_one_for_each_item_in_order(troupe: Troupe) -> None:
    """What they said is a list in the order of the items, which a later node can go over again."""
    child(troupe, "work", {"id": "say", "bash": 'echo "$item! $ARGUMENTS"'})
    child(troupe, "again", {"id": "say", "prompt": "<$text>"})
    troupe.says(say=["x"])
    told = troupe.run(
        LIST,
        fan("$list.output", max_parallel=1),
        {
            "id": "next",
            "depends_on": ["fan"],
            "workflow": "again",
            "fan_out": {"items": "$fan.output", "as": "text"},
        },
    )
    assert told["status"] == "completed", told
    assert json.loads(told["steps"]["fan"]["output"]) == ["a! a", "b! b", "c! c"]
    assert sorted(troupe.prompts) == ["<a! a>", "<b! b>", "<c! c>"]
    assert json.loads(told["output"]) == ["x"] * 3
    paths = {event["path"] for event in troupe.events("step.finished")}
    assert {"fan[0].say", "fan[2].say", "next[1].say"} <= paths


def test_fields_of_an_item(troupe: Troupe) -> None:
    """An object is read field by field, in texts, conditions and scripts."""
    child(
        troupe,
        "work",
        {"id": "big", "when": "$file.size > 2", "prompt": "Split $file.path ($file.size)"},
        {"id": "say", "bash": 'printf \'{"path": "%s"}\' $file.path'},
    )
    rows = [{"path": "x y", "size": 3}, {"path": "z", "size": 1}]
    listed = {"id": "list", "bash": f"echo '{json.dumps({'files': rows})}'"}
    told = troupe.run(listed, fan("$list.output.files", **{"as": "file"}))
    assert troupe.prompts == ["Split x y (3)"]
    assert json.loads(told["steps"]["fan"]["output"]) == ["ok", {"path": "z"}]


JOINS = [
    pytest.param("all_done", "completed", "completed", id="all_done"),
    pytest.param("all_success", "failed", "skipped", id="all_success"),
]


@pytest.mark.parametrize(("join", "status", "after"), JOINS)
def test_a_failed_one_ends_none_of_its_siblings(
    troupe: Troupe, join: str, status: str, after: str
) -> None:
    """All are run to their end; then it is an error in the list, or fails the node as well."""
    child(troupe, "work", {"id": "say", "bash": "test $item != a || exit 7; echo did $item"})
    told = troupe.run(
        LIST,
        fan(["a", "b", "c"], join=join, max_parallel=1),
        {"id": "after", "depends_on": ["fan"], "bash": "true"},
    )
    step = told["steps"]["fan"]
    first, *others = json.loads(step["output"])
    assert (step["status"], others) == (status, ["did b", "did c"])
    assert (first["archon_failed"], first["status"]) == (True, "failed")
    assert "7" in first["error"]
    assert told["steps"]["after"]["status"] == after


LISTS = [
    pytest.param("echo '[]'", "completed", "[]", id="empty"),
    pytest.param("echo no list", "failed", "", id="no list"),
    pytest.param("echo '{}'", "failed", "", id="an object"),
]


@pytest.mark.parametrize(("script", "status", "output"), LISTS)
def test_lists_that_are_none(troupe: Troupe, script: str, status: str, output: str) -> None:
    """An empty list is done at once; what is not a list fails the node and says so."""
    child(troupe, "work", {"id": "say", "bash": "true"})
    told = troupe.run({"id": "list", "bash": script}, fan("$list.output"))
    step = told["steps"]["fan"]
    assert (step["status"], step["output"]) == (status, output)
    if status == "failed":
        assert "must be a list" in step["error"]["detail"]


def test_a_field_that_an_item_has_not(troupe: Troupe) -> None:
    """The node that reads it fails; it is not run on nothing."""
    child(troupe, "work", {"id": "say", "prompt": "Read docs/$item.md"})
    told = troupe.run(LIST, fan(["a", {"name": "b"}], join="all_done"))
    text, row = json.loads(told["steps"]["fan"]["output"])
    assert "no field md: it is not a JSON object" in text["error"]
    assert "no field md; it has name" in row["error"]
    assert troupe.calls == []


def test_lists_in_lists(troupe: Troupe) -> None:
    """A workflow that is run for an item runs another for each part of it."""
    child(
        troupe,
        "part",
        {"id": "say", "prompt": "$part of $ARGUMENTS, $INPUTS.name"},
        inputs={"name": {"required": True}},
    )
    inner = {"items": "$item.parts", "as": "part", "max_parallel": 1}
    child(
        troupe,
        "work",
        {
            "id": "each",
            "workflow": "part",
            "arguments": "[$ARGUMENTS]",
            "inputs": {"name": "n-$part"},
            "fan_out": inner,
        },
    )
    told = troupe.run(LIST, fan([{"parts": ["x", "y"]}, {"parts": []}]))
    assert troupe.prompts == [
        'x of [{"parts":["x","y"]}], n-x',
        'y of [{"parts":["x","y"]}], n-y',
    ]
    assert json.loads(told["output"]) == [["ok", "ok"], []]


HOSTILE = "'\"; touch ran; $(touch ran) `touch ran` \n--x"


def test_items_are_inert_in_shells(troupe: Troupe) -> None:
    """Whatever an item says, a shell of the other workflow gets it as a value."""
    child(troupe, "work", {"id": "say", "bash": "printf %s $it.x; printf %s '$it'; ls"})
    told = troupe.run(LIST, fan([{"x": HOSTILE}], **{"as": "it"}))
    [said] = json.loads(told["steps"]["fan"]["output"])
    assert said.startswith(HOSTILE)
    assert "ran" not in said.splitlines()


def test_a_killed_fan_out_continues_where_it_was(lw: Place) -> None:
    """What had completed is not run again; the list is whole and in order."""
    stage = Stage(lw)
    folder = lw.folder / ".archon" / "workflows"
    folder.mkdir(parents=True)
    nodes = (
        {"id": "one", "prompt": "$item"},
        {"id": "two", "depends_on": ["one"], "prompt": "$it"},
    )
    (folder / "work.yaml").write_text(workflow(*nodes), encoding="utf-8")
    file = lw.write("flow.yaml", workflow(LIST, fan("$list.output", max_parallel=1)))
    stage.stop_at("fan[1].two")
    process = lw.start("run", str(file), "Go.", "--agent", stage.agent)
    until((stage.folder / "reached").exists)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)
    told = lw("resume", "last", "--json")
    assert told.code == 0, told.err
    assert json.loads(told.json["output"]) == [f"said fan[{n}].two\n" for n in range(3)]
    names = [f"fan[{n}].{step}" for n in range(3) for step in ("one", "two")]
    assert sorted(stage.calls) == sorted([*names, "fan[1].two"])


# -- before anything runs --------------------------------------------------------------------------


def test_what_is_wrong_in_another_file_is_reported_there(troupe: Troupe) -> None:
    """A finding in a workflow that is run names its file and line; a misspelt name is corrected."""
    child(troupe, "work", {"id": "a", "prompt": "$ghost.output"})
    told = troupe.told({"id": "x", "workflow": "work"}, {"id": "y", "workflow": "wrok"})
    assert told.code == 2
    inner, outer = told.json["errors"]
    assert (inner["file"], inner["line"]) == (".archon/workflows/work.yaml", 5)
    assert (outer["file"], outer["hint"]) == ("flow.yaml", "did you mean work?")


def test_a_rehearsal_and_a_drawing(troupe: Troupe) -> None:
    """`--dry-run` plays what is inside, `show` draws it, `convert` writes all of it down."""
    child(troupe, "work", {"id": "say", "prompt": "$item"}, {"id": "also", "bash": "true"})
    file = troupe.write(workflow(LIST, fan("$list.output"), {"id": "p", "workflow": "work"}))
    told = troupe.lw("run", file, "Go", "--dry-run", "--agent", troupe.agent)
    assert told.code == 0, told.err
    assert "for each item" in told.out
    assert "say" in told.out
    troupe.lw("run", file, "Go", "--agent", troupe.agent)
    shown = troupe.lw("show", "last").out
    assert "3/3 items" in shown
    native = troupe.lw("convert", file)
    assert native.code == 0, native.err
    troupe.write(native.out, "native.yaml")
    again = troupe.lw("run", "native.yaml", "Go", "--agent", troupe.agent, "--json")
    assert again.json["steps"]["fan"]["output"] == '["ok","ok","ok"]', again.err
