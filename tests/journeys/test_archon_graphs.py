"""Graphs of nodes: when a node starts, what it sees, how a run ends; files that are named."""

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from loopwright.kernel.event_parts import AgentCall, CommandCall, Failure, SleepCall
from loopwright.ports import EffectFailure, EffectJob, EffectSuccess
from tests.cli.conftest import PATIENCE_S, Place, until
from tests.journeys.flows import Words, failure, play
from tests.journeys.workflows import Troupe, loop, plan_of, workflow

TAG = "<promise>DONE</promise>"


def says(agents: Any = "ok", commands: Any = "") -> Any:
    """The n-th call of a kind gets the n-th answer, the last one again and again."""
    counts = {"agent": 0, "command": 0}

    def say(job: EffectJob) -> Words:
        kind = "agent" if isinstance(job.call, AgentCall) else "command"
        row = agents if kind == "agent" else commands
        row = row if isinstance(row, list) else [row]
        said = row[min(counts[kind], len(row) - 1)]
        counts[kind] += 1
        return (
            EffectSuccess(output=said, code=0)
            if kind == "command" and isinstance(said, str)
            else said
        )

    return say


# -- what a node sees ------------------------------------------------------------------------------


@pytest.mark.item("archon-55")
def test_a_skipped_node_is_empty_text(troupe: Troupe) -> None:
    """Its output and its fields are nothing for those who read them."""
    told = troupe.run(
        {"id": "kind", "bash": 'echo \'{"size": "small"}\''},
        {
            "id": "big",
            "depends_on": ["kind"],
            "when": "$kind.output.size == 'big'",
            "bash": "echo no",
        },
        {
            "id": "end",
            "depends_on": ["big", "kind"],
            "trigger_rule": "all_done",
            "prompt": "[$big.output] [$big.output.size] [$kind.output.size]",
        },
    )
    assert (told["status"], told["steps"]["big"]["status"]) == ("completed", "skipped")
    assert troupe.prompts == ["[] [] [small]"]


FIELDS = [
    pytest.param("echo plain", "not a JSON object", id="no JSON"),
    pytest.param("echo '{\"other\": 1}'", "it has other", id="no such field"),
    pytest.param("echo '[1]'", "not a JSON object", id="a list"),
]


@pytest.mark.parametrize(("script", "why"), FIELDS)
def test_a_field_that_is_not_there_fails_the_reader(troupe: Troupe, script: str, why: str) -> None:
    """A node that reads a field of something without it is not run on nothing."""
    told = troupe.run(
        {"id": "kind", "bash": script},
        {"id": "end", "depends_on": ["kind"], "prompt": "[$kind.output.size]"},
    )
    step = told["steps"]["end"]
    assert (step["status"], step["error"]["type"], troupe.calls) == ("failed", "bad_input", [])
    assert why in step["error"]["detail"]


def test_large_outputs_reach_a_shell_whole(troupe: Troupe) -> None:
    """What does not fit a variable is read from a file, and nothing in it is run."""
    big = "print('$(touch ran)' + 'x' * 300_000 + 'end')"
    told = troupe.run(
        {"id": "big", "bash": f"{shlex.quote(sys.executable)} -c {shlex.quote(big)}"},
        {"id": "size", "depends_on": ["big"], "bash": "printf %s $big.output | wc -c; ls"},
    )
    assert told["status"] == "completed"
    size, _, listed = told["steps"]["size"]["output"].partition("\n")
    assert int(size) == 300_000 + len("$(touch ran)end")
    assert "ran" not in listed.split()


def test_a_group_speaks_with_its_first_end(troupe: Troupe) -> None:
    """The output of a group is that of the first node that no other needs and that says something;
    the same holds for the run.
    """
    body = [
        {"id": "quiet", "bash": "true"},
        {"id": "a", "bash": "echo a"},
        {"id": "b", "depends_on": ["a"], "prompt": "B"},
        {"id": "c", "bash": "echo c"},
    ]
    troupe.says(b=[f"from b {TAG}"])
    group = {"id": "g", "loop_group": {"until": "DONE", "max_iterations": 2, "nodes": body}}
    told = troupe.run(group, {"id": "last", "bash": "echo last"})
    assert (told["status"], told["steps"]["g"]["output"]) == ("completed", "from b")
    assert told["output"] == "from b"


# -- when a node starts ----------------------------------------------------------------------------


@pytest.mark.item("archon-58")
def test_a_node_starts_when_what_it_needs_has_ended(troupe: Troupe) -> None:
    """Nobody waits for the slowest of a layer: the second of a chain starts beside a slow first."""
    told = troupe.run(
        {
            "id": "slow",
            "bash": "for i in $(seq 1200); do test -e quick && exit 0; sleep 0.05; done; exit 1",
        },
        {"id": "fast", "bash": "true"},
        {"id": "next", "depends_on": ["fast"], "bash": "touch quick"},
    )
    assert {name: one["status"] for name, one in told["steps"].items()} == {
        "slow": "completed",
        "fast": "completed",
        "next": "completed",
    }


@pytest.mark.item("archon-56", "archon-57")
@pytest.mark.parametrize(
    ("first", "join", "ended", "reason"),
    [
        pytest.param({"bash": "exit 3"}, "all_done", "failed", "error", id="a join ran"),
        pytest.param(
            {"bash": "true", "when": "$none.output == 'x'"},
            "all_success",
            "failed",
            "nothing_completed",
            id="all skipped",
        ),
    ],
)
def test_how_a_run_is_judged(
    troupe: Troupe, first: dict[str, Any], join: str, ended: str, reason: str
) -> None:
    """One failed node fails the run, whatever its joins did; so does a run of skipped nodes."""
    none = {"id": "none", "when": "$INPUTS.go == 'yes'", "bash": "true"}
    nodes = [
        {**first, "id": "first", "depends_on": ["none"], "trigger_rule": "all_done"},
        {"id": "join", "depends_on": ["first"], "trigger_rule": join, "bash": "echo joined"},
    ]
    told = troupe.run(none, *nodes, inputs={"go": {"default": "no"}})
    assert (told["status"], told["reason"]) == (ended, reason)
    assert told["steps"]["join"]["status"] == ("completed" if join == "all_done" else "skipped")


# -- scripts ---------------------------------------------------------------------------------------


@pytest.mark.item("archon-59", "archon-82")
def test_shell_nodes(troupe: Troupe) -> None:
    """One newline is trimmed, stderr is told and not output, a time limit fails with its reason."""
    told = troupe.told(
        {"id": "trim", "bash": "printf 'a\\n\\n'; echo warned >&2"},
        {"id": "slow", "bash": "sleep 30", "timeout": 300},
        {"id": "bad", "bash": "echo printed; echo why >&2; exit 4"},
    )
    steps = told.json["steps"]
    assert (told.code, steps["trim"]["output"]) == (3, "a\n")
    notes = {one["path"]: one.get("note", "") for one in troupe.events("effect.done")}
    assert notes["trim"] == "stderr: warned"
    assert "warned" in told.err
    assert (steps["slow"]["status"], steps["slow"]["error"]["type"]) == ("failed", "wall_timeout")
    assert "timed out (wall-clock)" in steps["slow"]["error"]["detail"]
    expected = "step 'bad' failed: bash exited with code 4: stderr: why; stdout: printed"
    assert steps["bad"]["error"]["detail"] == expected


RUNNERS = {
    "uv": '#!/bin/sh\n[ "$*" = "run --with=httpx -" ] && exec PYTHON -\nexit 9\n',
    "bun": '#!/bin/sh\n[ "$*" = "run -" ] && exec cat\nexit 9\n',
}


@pytest.mark.parametrize("runtime", ["uv", "bun"])
def test_scripts_are_passed_to_their_runner(troupe: Troupe, runtime: str) -> None:
    """The text goes in by stdin, values by variables; without a runner nothing begins."""
    text = 'import os; print("got", os.environ["USER_MESSAGE"])'
    node: dict[str, Any] = {"id": "s", "script": text, "runtime": runtime}
    if runtime == "uv":
        node["deps"] = ["httpx"]
    lw, tools = troupe.lw, troupe.folder / "tools"
    tools.mkdir()
    file = troupe.write(workflow(node))
    told = lw.real("run", file, "a $(b)", "--json", env={"PATH": str(tools)})
    assert (told.code, told.json["type"]) == (2, "urn:loopwright:problem:no-program")
    assert f"step s: {runtime} is not on PATH; install it" in told.json["detail"]
    assert lw("ls", "--json").json["runs"] == []
    program = tools / runtime
    program.write_text(RUNNERS[runtime].replace("PYTHON", sys.executable))
    program.chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    told = lw.real("run", file, "a $(b)", "--json", env={"PATH": path})
    said = "got a $(b)" if runtime == "uv" else text
    assert (told.code, told.json["output"]) == (0, said)


# -- failures and retries --------------------------------------------------------------------------


@pytest.mark.item("archon-60")
def test_what_may_pass_by_itself_is_tried_twice_more() -> None:
    """A provider that is busy gets two more tries, after 3 and 6 seconds."""
    plan = plan_of({"id": "a", "prompt": "Go"})
    busy = failure("HTTP 503: come back later")
    played = play(plan, says([busy, busy, "done"]))
    assert (played.end.outcome, len(played.cast.jobs)) == ("completed", 3)
    waits = [event for event in played.requested if isinstance(event.call, SleepCall)]
    assert [event.call.until - event.at for event in waits] == [3_000, 6_000]  # type: ignore[union-attr]
    assert len(play(plan, says(busy)).cast.jobs) == 3


@pytest.mark.item("archon-60")
@pytest.mark.parametrize("on_error", ["transient", "all"])
@pytest.mark.parametrize(
    "detail", ["401 Unauthorized", "rate limit: your credit balance is too low", "Invalid token"]
)
def test_what_never_passes_is_not_tried_again(detail: str, on_error: str) -> None:
    """A refusal ends the node at once, whatever else its words say and the retry allows."""
    retry = {"max_attempts": 5, "on_error": on_error}
    plan = plan_of({"id": "a", "prompt": "Go", "retry": retry})
    played = play(plan, says(failure(detail, "rate_limited")))
    assert (played.end.outcome, len(played.cast.jobs)) == ("failed", 1)


@pytest.mark.item("archon-60")
def test_people_are_notified_of_another_try(lw: Place) -> None:
    """Before the wait there is a line with what went wrong and when it is tried again."""
    lw.write(
        "flow.yaml",
        workflow({"id": "a", "prompt": "Go", "retry": {"max_attempts": 1, "delay_ms": 1_000}}),
    )
    agent = lw.script({"fail": {"type": "rate_limited", "detail": "too many"}}, "done")
    told = lw("run", "flow.yaml", "Go", "--agent", agent)
    assert told.code == 0
    assert "failed (rate_limited)" in told.err
    assert "step a: retrying in 1 s" in told.err


@pytest.mark.item("archon-27")
@pytest.mark.parametrize(
    ("idle", "limit_ms"), [(None, 1_800_000), (60_000, 1_800_000), (3_600_000, 3_600_000)]
)
def test_a_check_that_hangs_is_ended_and_the_next_iteration_starts(
    idle: int | None, limit_ms: int
) -> None:
    """A check has the time of a silent agent, 30 minutes at least; then it counts as "not yet"."""
    node: dict[str, Any] = {"id": "a", "loop": loop(until_bash="make test", most=5)}
    if idle is not None:
        node["idle_timeout"] = idle
    late = EffectFailure(
        error=Failure(type="wall_timeout", detail="timed out (wall-clock) after 1800 s")
    )
    played = play(plan_of(node), says(["x", "y"], [late, ""]))
    checks = [f.call for f in played.requested if isinstance(f.call, CommandCall)]
    assert [call.timeout_ms for call in checks] == [limit_ms, limit_ms]
    assert (played.finished("a").status, played.finished("a").reason) == ("completed", "script")


# -- cancelling ------------------------------------------------------------------------------------


@pytest.mark.item("archon-61")
def test_a_cancel_node_ends_the_run(troupe: Troupe) -> None:
    """Nothing after it starts, what is under way ends, and its reason is filled in."""
    file = troupe.write(
        workflow(
            {"id": "look", "bash": "echo no tests"},
            {"id": "slow", "bash": "sleep 30"},
            {"id": "stop", "depends_on": ["look"], "cancel": "Found $look.output in $USER_MESSAGE"},
            {"id": "after", "depends_on": ["stop"], "bash": "touch went"},
        )
    )
    said = troupe.lw("run", file, "app", "--agent", troupe.agent, "--json").json
    assert (said["status"], said["reason"]) == ("cancelled", "Found no tests in app")
    assert said["steps"]["slow"]["status"] == "cancelled"
    assert not (troupe.lw.folder / "went").exists()


@pytest.mark.item("archon-32")
def test_a_run_stopped_between_iterations_calls_no_agent_again(troupe: Troupe) -> None:
    """While the check of the first iteration runs the run is stopped: there is no second
    iteration.
    """
    lw = troupe.lw
    check = "touch checking; sleep 60"
    file = troupe.write(workflow({"id": "work", "loop": loop(until_bash=check)}))
    process = lw.start("run", file, "Go", "--agent", troupe.agent)
    until((lw.folder / "checking").exists)
    assert lw("stop", "last").code == 0
    process.communicate(timeout=PATIENCE_S)
    shown = lw("show", "last", "--json").json
    assert (shown["status"], shown["steps"]["work"]["status"]) == ("cancelled", "cancelled")
    assert len(troupe.calls) == 1


@pytest.mark.item("archon-33")
def test_a_run_stopped_in_an_iteration_ends_at_once(troupe: Troupe) -> None:
    """The agent is ended in the middle of its work."""
    troupe.says(work=[{"say": ["x"], "linger": 60}])
    lw = troupe.lw
    file = troupe.write(workflow({"id": "work", "loop": loop()}))
    process = lw.start("run", file, "Go", "--agent", troupe.agent)
    until(lambda: len(troupe.calls) == 1)
    lw("stop", "last")
    process.communicate(timeout=PATIENCE_S / 2)
    events = lw.events("last")
    assert (events[-1]["kind"], events[-1]["outcome"]) == ("run.finished", "cancelled")


# -- files -----------------------------------------------------------------------------------------


@pytest.fixture
def project(troupe: Troupe, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with commands of its own, and a person with others."""
    home = troupe.folder / "home"
    for place, names in ((home, ("own", "both")), (troupe.lw.folder, ("review", "both"))):
        folder = place / ".archon" / "commands"
        folder.mkdir(parents=True)
        for name in names:
            (folder / f"{name}.md").write_text(f"{name} of {place.name}: $USER_MESSAGE")
    monkeypatch.setenv("HOME", str(home))
    return troupe.lw.folder


@pytest.mark.item("archon-68")
def test_commands_are_those_of_the_project_then_of_the_person(
    troupe: Troupe, project: Path
) -> None:
    """They are found from a workflow in the project's own folder, wherever that is run from."""
    nodes = [{"id": name, "command": name} for name in ("review", "both", "own")]
    name = troupe.write(workflow(*nodes), ".archon/workflows/deep/flow.yaml")
    assert troupe.lw("validate", name).code == 0
    told = troupe.lw("run", name, "it", "--agent", troupe.agent, "--json")
    assert told.code == 0
    assert sorted(troupe.prompts) == ["both of work: it", "own of home: it", "review of work: it"]
    bad = troupe.write(workflow({"id": "a", "command": "reviw"}), "bad.yaml")
    for option, code in (("--no-color", 0), ("--strict", 2)):
        told = troupe.lw("validate", bad, option)
        assert told.code == code
        assert "did you mean review?" in told.out + told.err
    failed = troupe.lw("run", bad, "--agent", troupe.agent, "--quiet")
    assert failed.code == 3
    assert "step 'a' failed: no command is called reviw in .archon/commands" in failed.err


def test_a_command_cannot_lead_out_of_its_folder(troupe: Troupe, project: Path) -> None:
    """A link to somewhere else is refused, also in the person's own folder."""
    secret = troupe.folder / "secret"
    secret.write_text("secret")
    (project / ".archon" / "commands" / "leak.md").symlink_to(secret)
    name = troupe.write(workflow({"id": "a", "command": "leak"}))
    told = troupe.lw("validate", name)
    assert told.code == 2
    assert "leads out" in told.out + told.err
    assert "secret" not in (told.out + told.err).replace(str(secret), "")


def write_command(troupe: Troupe, text: str) -> None:
    folder = troupe.lw.folder / ".archon" / "commands"
    folder.mkdir(parents=True)
    (folder / "tell.md").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("instead", "seen"), [("none", "none"), (None, "null"), (False, "false"), ({"a": 1}, '{"a":1}')]
)
def test_if_skipped_replaces_the_value_of_a_node_that_did_not_run(
    troupe: Troupe, instead: object, seen: str
) -> None:
    """A binding says what stands for the output, or a field of it, of a skipped node."""
    write_command(troupe, "[$INPUTS.ran] [$INPUTS.whole] [$INPUTS.field]")
    bound = {
        "ran": {"from": "$start.output", "if_skipped": instead},
        "whole": {"from": "$maybe.output", "if_skipped": instead},
        "field": {"from": "$maybe.output.ready", "if_skipped": instead},
    }
    troupe.run(
        {"id": "start", "bash": "echo go"},
        {"id": "maybe", "depends_on": ["start"], "when": "$start.output == 'no'", "bash": "echo x"},
        {
            "id": "tell",
            "command": "tell",
            "depends_on": ["start", "maybe"],
            "trigger_rule": "none_failed_min_one_success",
            "with": bound,
        },
    )
    assert troupe.prompts == [f"[go] [{seen}] [{seen}]"]


@pytest.mark.parametrize(("how", "status"), [("skip", "completed"), ("fail", "failed")])
def test_a_script_that_takes_too_long_can_be_skipped(troupe: Troupe, how: str, status: str) -> None:
    """The nodes after it see a node that did not run."""
    write_command(troupe, "[$INPUTS.note]")
    note = {"from": "$slow.output", "if_skipped": "no note"}
    told = troupe.run(
        {"id": "fast", "bash": "echo x"},
        {"id": "slow", "bash": "sleep 30", "timeout": 300, "on_timeout": how},
        {
            "id": "tell",
            "command": "tell",
            "depends_on": ["fast", "slow"],
            "trigger_rule": "none_failed_min_one_success",
            "with": {"note": note},
        },
    )
    assert told["status"] == status
    assert troupe.prompts == (["[no note]"] if how == "skip" else [])
