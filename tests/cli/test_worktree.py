"""`--worktree`, `apply` and `discard` as a person uses them."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from loopwright.agents.sandbox import bubblewrap
from tests.cli.conftest import Place, until
from tests.workspaces.folders import commit, git, put

AGENT = """
import pathlib, sys
file = pathlib.Path("a.txt")
file.write_text(file.read_text() + "by the agent\\n")
pathlib.Path("new.txt").write_text("new\\n")
"""


@pytest.fixture
def project(lw: Place) -> Place:
    """A repository with one commit, and an agent that changes a file and adds one."""
    put(lw.folder, __gitignore="agent.py\nhome/\n*.yaml\ncalls*\n", a__txt="a\n", agent__py=AGENT)
    git(lw.folder, "init", "-q", "-b", "main", "--template=")
    commit(lw.folder, "first")
    return lw


def agent(lw: Place) -> str:
    return f"command:{sys.executable} -I {lw.folder / 'agent.py'}"


def started(lw: Place, *more: str) -> str:
    told = lw("loop", "go", "--agent", agent(lw), "--max", "1", "--worktree", "--json", *more)
    assert told.code in (0, 4), told.err
    run: str = told.json["run"]
    return run


@pytest.mark.item("rec-18", "rec-19", "rec-20")
def test_a_run_in_a_worktree_is_applied_and_discarded(project: Place) -> None:
    """Nothing of the checkout changes before `apply`; `discard` leaves no trace of the branch."""
    run = started(project)
    assert (project.folder / "a.txt").read_text() == "a\n"
    assert git(project.folder, "status", "--porcelain") == ""
    shown = project("show", run, "--json").json
    branch = f"loopwright/{run}"
    assert shown["worktree"]["branch"] == branch
    assert shown["worktree"]["exists"] is True
    assert Path(shown["workspace"]).name == run
    assert f"branch {branch} of {project.folder}" in project("show", run).out
    assert f"loopwright apply {run}" in project("show", run).out
    assert "[worktree]" in project("ls").out
    told = project("apply", run)
    assert (told.code, told.out) == (0, "a.txt\nnew.txt\n")
    assert "changed 2 files" in told.err
    shown = project("show", run)
    assert "(applied; `discard` removes it)" in shown.out
    assert f"loopwright discard {run}" in shown.out
    assert "[worktree, applied]" in project("ls").out
    assert (project.folder / "a.txt").read_text() == "a\nby the agent\n"
    assert "has the result already" in project("apply", run).err
    assert project("discard", run).code == 2
    assert branch in git(project.folder, "branch", "--list", branch)
    gone = project("discard", run, "--yes", "--json").json
    assert gone["branch"] == branch
    assert git(project.folder, "branch", "--list", branch) == ""
    assert project("show", run, "--json").json["worktree"]["exists"] is False
    for words in (["discard", run, "--yes"], ["apply", run]):
        again = project(*words, "--json")
        assert (again.code, again.json["type"]) == (2, "urn:loopwright:problem:worktree-gone")
    assert "applied, then discarded" in project("show", run).out
    assert "[worktree]" not in project("ls").out


@pytest.mark.item("rec-20")
def test_discard_asks_at_a_terminal(project: Place) -> None:
    """A no keeps everything; a yes removes it."""
    run = started(project)
    folder = Path(project("show", run, "--json").json["worktree"]["folder"])
    with project.terminal("discard", run) as terminal:
        terminal.wait_for("2 files of the result were never applied")
        terminal.wait_for("and lose 2 files?")
        terminal.type("n\n")
        terminal.wait_for("nothing was removed")
        assert terminal.leave() == 1
    assert folder.is_dir()
    with project.terminal("discard", run) as terminal:
        terminal.wait_for("Remove the worktree")
        terminal.type("y\n")
        assert terminal.leave() == 0
    assert not folder.exists()


@pytest.mark.item("rec-19")
def test_apply_names_conflicts_and_changes_nothing(project: Place) -> None:
    """A conflict is exit code 8 with the names of the files."""
    run = started(project)
    put(project.folder, a__txt="mine\n")
    commit(project.folder, "mine")
    told = project("apply", run, "--json")
    assert (told.code, told.json["type"]) == (8, "urn:loopwright:problem:merge-conflict")
    assert "a.txt" in told.json["detail"]
    assert (project.folder / "a.txt").read_text() == "mine\n"
    assert not (project.folder / "new.txt").exists()
    assert f"git merge loopwright/{run}" in project("apply", run).err
    git(project.folder, "merge", "-q", "-X", "theirs", f"loopwright/{run}")
    assert (project.folder / "a.txt").read_text() == "a\nby the agent\n"
    assert (project.folder / "new.txt").exists()


@pytest.mark.item("rec-18")
def test_the_result_is_on_the_branch_when_the_run_has_ended(project: Place) -> None:
    """`git merge` works without `apply`; the commit is not made with the name of the user."""
    run = started(project)
    git(project.folder, "merge", "-q", f"loopwright/{run}")
    assert (project.folder / "new.txt").exists()
    assert git(project.folder, "log", "-1", "--format=%an").strip() == "Loopwright"


@pytest.mark.item("rec-18", "rec-20")
@pytest.mark.parametrize("kind", ["as-it-is", "restore", "parent-discarded"])
def test_a_fork_has_a_worktree_of_its_own(project: Place, kind: str) -> None:
    """It is applied and outlives its parent; `--restore` begins with the files of then."""
    top = {"workspace": {"snapshots": True, "worktree": True}}
    rules = {"max": 2, "until": {"contains": "never"}, "at_cap": "exhaust"}
    file = project.loop(agent(project), top=top, **rules)
    parent = project("run", file, "--json").json["run"]
    if kind == "parent-discarded":
        project("discard", parent, "--yes")
        gone = project("fork", parent, "--at", "1", "--json")
        assert (gone.code, gone.json["type"]) == (2, "urn:loopwright:problem:worktree-gone")
    restore = [] if kind == "as-it-is" else ["--restore"]
    told = project("fork", parent, "--at", "1", *restore)
    assert told.code == 4, told.err
    fork = project("ls", "--json").json["runs"][0]["run"]
    assert f"on the branch loopwright/{fork}" in told.err
    if kind != "parent-discarded":
        assert project("discard", parent, "--yes").code == 0
    assert project("apply", fork).code == 0
    lines = 2 if restore else 3
    assert (project.folder / "a.txt").read_text() == "a\n" + "by the agent\n" * lines
    assert project("discard", fork, "--yes").code == 0


def test_resume_without_the_worktree_is_refused(project: Place) -> None:
    """Before anything is recorded: the outcome and the events stay."""
    file = project.loop(agent(project), max=1, until={"contains": "never"}, at_cap="exhaust")
    run = project("run", file, "--worktree", "--json").json["run"]
    project("discard", run, "--yes")
    before = project.events(run)
    told = project("resume", run, "--max", "3", "--json")
    assert (told.code, told.json["type"]) == (8, "urn:loopwright:problem:worktree-gone")
    assert "its worktree was discarded" in told.json["detail"]
    assert project.events(run) == before


def test_uncommitted_changes_are_mentioned_at_the_start(project: Place) -> None:
    """A worktree starts from the last commit, and the start says what is not in it."""
    put(project.folder, a__txt="not committed\n")
    told = project("loop", "go", "--agent", agent(project), "--max", "1", "--worktree")
    assert "on the branch loopwright/run_" in told.err
    assert "1 file has uncommitted changes" in told.err


@pytest.mark.parametrize("kind", ["flag", "definition"])
def test_a_folder_without_git_is_refused(lw: Place, kind: str) -> None:
    """Exit code 2 with the reason; no run is left behind."""
    top = {"workspace": {"worktree": True}} if kind == "definition" else {}
    file = lw.loop(lw.script("x"), top=top)
    told = lw("run", file, "--json", *(["--worktree"] if kind == "flag" else []))
    assert (told.code, told.json["type"]) == (2, "urn:loopwright:problem:not-a-repository")
    assert lw("ls", "--json").json["runs"] == []


@pytest.mark.item("rec-22")
@pytest.mark.parametrize(
    "definition",
    [
        {"name": "n", "workspace": {"worktree": True}, "agents": {"a": {}}, "goal": "g"},
        {"name": "z", "options": {"isolation": "worktree"}, "steps": [{"id": "a"}]},
        {
            "name": "r",
            "description": "d",
            "worktree": {"enabled": True},
            "nodes": [{"id": "a", "prompt": "Go"}],
        },
    ],
    ids=["native", "options", "nodes"],
)
def test_settings_of_dialects_make_a_worktree(
    project: Place, definition: dict[str, object]
) -> None:
    """The same setting in each dialect that has one."""
    if "workspace" in definition:
        definition = {**definition, "agent": "a"}
    file = project.write("definition.yaml", json.dumps(definition))
    told = project("run", str(file), "go", "--agent", agent(project), "--json")
    worktree = project("show", told.json["run"], "--json").json["worktree"]
    assert worktree["branch"] == f"loopwright/{told.json['run']}"
    assert (project.folder / "a.txt").read_text() == "a\n"


@pytest.mark.item("zenflow-77")
@pytest.mark.parametrize(
    ("isolation", "warned"),
    [
        ("worktree", ""),
        ("worktree-per-step", "all steps of the run share one Git worktree"),
        ("container", "isolation 'container' is not known: the run works in a Git worktree"),
    ],
)
def test_every_isolation_is_a_worktree(project: Place, isolation: str, warned: str) -> None:
    """What is not provided as it is asked for causes a warning; `--no-worktree` turns it off."""
    definition = {"name": "z", "options": {"isolation": isolation}, "steps": [{"id": "a"}]}
    file = project.write("definition.yaml", json.dumps(definition))
    told = project("run", str(file), "go", "--agent", agent(project))
    assert told.code == 0
    assert warned in told.err
    assert ("warning" in told.err) is bool(warned)
    assert project("ls", "--json").json["runs"][0]["worktree"] is not None
    plain = project("run", str(file), "--agent", agent(project), "--no-worktree", "--json")
    assert project("show", plain.json["run"], "--json").json["worktree"] is None


@pytest.mark.item("rec-21")
def test_a_second_run_in_the_same_folder_is_warned_about(project: Place) -> None:
    """The open run is named, with the flag that keeps them apart, and whether it works or waits;
    not after it has ended.
    """
    file = project.loop(project.script("x", "x"), until={"person": True})
    first = project("run", file, "--no-wait", "--json").json["run"]
    told = project("run", file, "--no-wait")
    assert (
        f"warning: {first} (work) waits for a decision and would continue in this folder"
        in told.err
    )
    assert "--worktree" in told.err
    with project.start("run", project.loop(project.probe({"hang": True}), name="b.yaml")):
        until(lambda: bool(project.calls()))
        busy = project("run", file, "--no-wait")
        assert "(work) is also running in this folder, on the same files" in busy.err
        apart = project("run", file, "--no-wait", "--worktree")
        assert "in this folder" not in apart.err
        assert project("pause", first).code == 0
        where = f"(work) is also running in the folder of {first}, on the same files;"
        for form in ((first, "--no-wait"), ("all", "--no-wait")):
            project("pause", first)
            assert project("resume", *form).err.count(where) == 1, form
        project("pause", first)
        assert project.real("resume", first, "--detach").err.count(where) == 1
        project("stop", "all")
    assert "in this folder" not in project("run", file, "--no-wait").err


def test_a_run_that_is_open_keeps_its_worktree(project: Place) -> None:
    """`discard` refuses while the run waits; `prune` never removes a worktree."""
    file = project.loop(project.script("x"), until={"person": True})
    run = project("run", file, "--worktree", "--no-wait", "--json").json["run"]
    told = project("discard", run, "--yes", "--json")
    assert (told.code, told.json["type"]) == (8, "urn:loopwright:problem:run-open")
    project("stop", run)
    assert project("prune", "--older", "1ms", "--json").json["count"] == 0
    assert project("discard", run, "--yes").code == 0
    assert project("prune", "--older", "1ms", "--json").json["count"] == 1


def test_a_run_without_a_worktree_has_nothing_to_apply(project: Place) -> None:
    """The reason is said for both commands."""
    file = project.loop(project.script("x", "x", "x"))
    run = project("run", file, "--json").json["run"]
    for words in (["apply", run], ["discard", run, "--yes"]):
        told = project(*words, "--json")
        assert (told.code, told.json["type"]) == (2, "urn:loopwright:problem:no-worktree")


def test_a_detached_run_and_its_resumption_stay_in_the_worktree(project: Place) -> None:
    """Started in the background and resumed later: the same folder."""
    file = project.loop(agent(project), max=1, until={"contains": "never"}, at_cap="exhaust")
    told = project.real("run", file, "--worktree", "--detach", "--json")
    run = told.json["run"]
    until(lambda: project("show", run, "--json").json["finished_at"] is not None)
    folder = Path(project("show", run, "--json").json["workspace"])
    assert (folder / "a.txt").read_text() == "a\nby the agent\n"
    project("resume", run, "--max", "2")
    assert (folder / "a.txt").read_text() == "a\nby the agent\nby the agent\n"
    assert (project.folder / "a.txt").read_text() == "a\n"


PEEKING = """#!/bin/sh
cat >/dev/null
cat a.txt
cat {config} && echo FOUND || echo "no repository"
"""


@pytest.mark.item("rec-18")
@pytest.mark.skipif(bubblewrap.works() is not None, reason=f"no sandbox here: {bubblewrap.works()}")
def test_a_read_only_agent_in_a_worktree_is_not_shown_the_repository(project: Place) -> None:
    """It reads the files of the worktree; the settings of the repository, with their credentials,
    are outside of its sandbox. The start says so.
    """
    git(project.folder, "config", "remote.origin.url", "https://me:secret@example.com/x.git")
    config = project.folder / ".git" / "config"
    file = project.folder.parent / "peek.sh"
    file.write_text(PEEKING.format(config=config))
    file.chmod(0o755)
    agents = {"reader": {"use": f"command:{file}", "access": "readonly-shell"}}
    definition = project.loop("reader", max=1, top={"agents": agents})
    told = project("run", definition, "--worktree")
    assert told.code == 0, told.err
    assert told.out.startswith("a\n"), told
    assert "no repository" in told.out
    assert "secret" not in told.out + told.err
    words = "see the files of the worktree, but not the Git repository"
    assert f"{words} {project.folder}" in told.err
    assert words not in project("loop", "go", "--agent", agent(project), "--worktree").err


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_an_agent_by_a_relative_path_that_the_worktree_lacks_is_refused_before_the_start(
    project: Place, where: str
) -> None:
    """The file is in the checkout, but not committed, or beside it: the run would fail in its first
    iteration. Neither a run nor a worktree nor a branch is left.
    """
    folder = project.folder if where == "inside" else project.folder.parent
    program = folder / "writer.sh"
    program.write_text("#!/bin/sh\necho hi\n")
    program.chmod(0o755)
    spec = "command:./writer.sh" if where == "inside" else "command:../writer.sh"
    told = project("loop", "go", "--agent", spec, "--max", "1", "--worktree")
    assert told.code == 2
    assert f"write its whole path: {program}" in told.err
    assert ("only committed files" in told.err) is (where == "inside")
    assert project("ls", "--json").json["runs"] == []
    assert "loopwright/" not in git(project.folder, "branch", "--list", "-a")
    assert git(project.folder, "worktree", "list").count("\n") <= 1
    whole = project("loop", "go", "--agent", f"command:{program}", "--max", "1", "--worktree")
    assert whole.code == 0, whole.err


IN_CHECKOUT: list[Any] = [
    pytest.param("tool/check -q", False, "tool/check is not in the worktree", 2, id="ignored"),
    pytest.param("./tool/check", False, "./tool/check is not in the worktree", 2, id="dot"),
    pytest.param("tool/check -q", True, "", 0, id="committed"),
    pytest.param("./nope.sh", False, "nope.sh does not exist (so far)", 3, id="in-neither"),
]


@pytest.mark.parametrize(("command", "committed", "said", "code"), IN_CHECKOUT)
def test_a_check_that_only_the_checkout_has_is_refused_before_the_start(
    project: Place, command: str, committed: bool, said: str, code: int
) -> None:
    """A dry run refuses and warns like a start; neither leaves a run or a worktree behind."""
    ignored = "agent.py\nhome/\n*.yaml\n" + ("" if committed else "tool/\n")
    put(project.folder, __gitignore=ignored)
    program = project.folder / "tool" / "check"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    commit(project.folder, "second")
    words = ["loop", "go", "--agent", agent(project), "--until-command", command, "--worktree"]
    dry = project(*words, "--dry-run")
    assert (dry.code, said in dry.err) == (2 if code == 2 else 0, True), dry
    assert project("ls", "--json").json["runs"] == []
    told = project(*words)
    assert (told.code, said in told.err) == (code, True), told
    if code == 2:
        assert f"write its whole path: {program}" in dry.err
        assert f"write its whole path: {program}" in told.err
        assert project("ls", "--json").json["runs"] == []
        assert "loopwright/" not in git(project.folder, "branch", "--list", "-a")
    if code == 3:
        assert "could not run 3 times in a row: " in told.err
        assert told.err.count("could not run 3 times") == 1
        assert "the check could not run: the check" not in told.err


def test_a_check_after_another_step_that_only_the_checkout_has_is_a_warning(
    project: Place,
) -> None:
    """The step before it may create it, such as `npm ci`."""
    spec = project.script("x", "y")
    program = project.write("agent.py", "#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    file = project.write(
        "steps.yaml",
        f"name: two\nagents: {{a: {{use: {spec}}}}}\nworkspace: {{worktree: true}}\nsteps:\n"
        f"  - {{id: make, run: [cp, {program}, agent.py]}}\n"
        "  - {id: use, needs: [make], agent: a, prompt: go,\n"
        "     repeat: {max: 2, until: {command: ./agent.py}}}\n",
    )
    told = project("run", str(file))
    assert told.code == 0, told.err
    words = "./agent.py is not in the worktree, which has only committed files (so far)"
    assert words in told.err
