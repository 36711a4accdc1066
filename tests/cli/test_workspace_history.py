"""Snapshots of a run, with real Git: diff, restore, bisect, fork, gates, protected files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Place

AGENT = """#!/bin/sh
n=$LOOPWRIGHT_ITERATION
echo "line $n" >> work.txt
{actions}
echo "did iteration $n"
"""


@pytest.fixture
def ws(lw: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A small Git repository with a check, and snapshots switched on."""
    monkeypatch.setenv("LOOPWRIGHT_SNAPSHOTS", "on")
    lw.env["LOOPWRIGHT_SNAPSHOTS"] = "on"
    subprocess.run(["git", "init", "-q", "."], check=True, cwd=lw.folder)
    (lw.folder / "tests").mkdir()
    lw.write("tests/test_a.txt", "expected\n")
    lw.write("check.sh", '#!/bin/sh\ntest "$(wc -l < work.txt)" -ge 3\n').chmod(0o755)
    return lw


def agent(lw: Place, actions: str = "") -> str:
    """An agent that adds a line in every iteration, and does more where it is told to."""
    file = lw.folder.parent / "agent.sh"
    file.write_text(AGENT.format(actions=actions))
    file.chmod(0o755)
    return f"command:{file}"


def loop(lw: Place, *more: str, actions: str = "") -> str:
    """A run of a loop that ends when there are three lines; its id."""
    base = ("loop", "Do it", "--agent", agent(lw, actions), "--until-command", "./check.sh")
    run: str = lw(*base, "--max", "4", "--json", *more).json["run"]
    return run


def test_a_pattern_that_matches_nothing_is_not_certified(ws: Place) -> None:
    """The start warns, and the certificate does not say that the files are unchanged."""
    base = ("loop", "Do it", "--agent", agent(ws), "--until-command", "./check.sh", "--max", "4")
    told = ws(*base, "--protect", "test/**")
    assert "--protect test/** matches no file" in told.err
    shown = ws("show", "last", "--certificate").out
    assert "no file matches test/**" in shown
    assert "unchanged" not in shown


def test_running_protected_tests_is_not_a_change_of_them(ws: Place) -> None:
    """Neither the check nor the agent changes a protected file by writing bytecode."""
    ws.write("tests/helper.py", "X = 1\n")
    ws.write("tests/check.py", 'import helper\nassert open("work.txt").read().count("line") > 1\n')
    run_tests = f"{sys.executable} tests/check.py || true"
    check = ("--until-command", f"{sys.executable} tests/check.py")
    base = ("loop", "Do it", "--agent", agent(ws, run_tests), *check, "--max", "3", "--json")
    told = ws(*base, "--protect", "tests/**")
    assert list((ws.folder / "tests").glob("__pycache__/helper.*"))
    assert (told.code, told.json["status"]) == (0, "completed")
    notes = [one.get("note", "") for one in ws.events(told.json["run"])]
    assert any("caches of Python are not counted" in one for one in notes)


@pytest.mark.item("rec-12", "rec-10")
def test_diff_shows_a_run_or_iterations_of_it(ws: Place) -> None:
    """The whole run, one iteration, two of them, some files; as counts and as JSON."""
    run = loop(ws)
    whole = ws("diff", run).out
    assert "+line 1" in whole
    assert "+line 3" in whole
    second = ws("diff", run, "2").out
    assert "+line 2" in second
    assert "+line 1" not in second
    later = ws("diff", run, "1", "3").out
    assert "+line 1" not in later
    assert "+line 2\n+line 3" in later
    assert ws("diff", run, "0", "1").out.count("+line") == 1
    assert ws("diff", run, "--stat").out.splitlines() == [
        "A work.txt  +3 −0",
        "1 file changed (+3 −0)",
    ]
    told = ws("diff", run, "2", "--json").json
    assert (told["files"], told["insertions"], told["deletions"]) == (1, 1, 0)
    assert "+line 2" in told["diff"]
    assert ws("diff", run, "--", "tests").out == ""
    assert ws("diff", run, "9").code == 2
    assert "there are 1 to 3; 0 is before the first one" in ws("diff", run, "9").err
    assert ws("diff", run, "0").code == 2


@pytest.mark.item("rec-12")
@pytest.mark.parametrize(
    ("edit", "changed"), [(False, "+2 −0"), (True, "+1 −0")], ids=["untouched", "edited-between"]
)
def test_a_resumed_iteration_shows_the_changes_of_all_its_attempts(
    ws: Place, edit: bool, changed: str
) -> None:
    """What a person changed between two attempts does not count as the agent's work."""
    run = loop(ws, actions='test "$n" != 2 || test -e ../repaired || exit 3')
    (ws.folder.parent / "repaired").write_text("")
    if edit:
        ws.write("mine.txt", "by a person\n")
    assert ws("resume", run).code == 0
    assert changed in ws("diff", run, "2", "--stat").out
    assert "mine.txt" not in ws("diff", run, "2").out


def test_show_and_events_count_the_changes_of_each_iteration(ws: Place) -> None:
    """The events carry trees and counts, `show` has them in words."""
    run = loop(ws)
    done = [one for one in ws.events(run) if one["kind"] == "iteration.finished"]
    assert [one["changed"] for one in done] == [{"files": 1, "insertions": 1}] * 3
    shown = ws("show", run).out
    assert "1 file (+1 −0)" in shown
    assert "changed    1 file (+3 −0)" in shown
    detail = ws("show", run, "--json").json
    assert [one["changed"]["files"] for one in detail["passes"]] == [1, 1, 1]


def test_runs_without_snapshots_say_so(ws: Place) -> None:
    """Switched off by a flag; `diff` says that there are none, a dry run says it before."""
    base = ("loop", "Do it", "--agent", agent(ws), "--max", "1")
    run = ws(*base, "--no-snapshots", "--json").json["run"]
    assert not any("snapshot" in str(one.get("effect", "")) for one in ws.events(run))
    told = ws("diff", run)
    assert (told.code, "has no snapshots" in told.err) == (2, True)
    assert ws(*base, "--dry-run", "--json").json["snapshots"] == {"taken": True, "protect": []}
    assert "snapshots  none" in ws(*base, "--dry-run", "--no-snapshots").out
    refused = ws(*base, "--no-snapshots", "--protect", "tests/**")
    assert (refused.code, "protected files need snapshots" in refused.err) == (2, True)
    assert ws(*base, "--protect", "../x").code == 2


def test_the_home_directory_gets_no_snapshots(ws: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A note is printed instead; where files are protected, the run is refused."""
    monkeypatch.setenv("HOME", str(ws.folder))
    told = ws("loop", "Do it", "--agent", agent(ws), "--max", "1")
    assert told.code == 0
    assert "no snapshots are taken" in told.err
    refused = ws("loop", "Do it", "--agent", agent(ws), "--max", "1", "--protect", "tests")
    assert (refused.code, "is your home directory" in refused.err) == (2, True)


@pytest.mark.item("rec-13")
def test_restore_refuses_to_overwrite_unrecorded_changes(ws: Place) -> None:
    """It can be undone, and goes into another folder where one is named."""
    run = loop(ws)
    work = ws.folder / "work.txt"
    told = ws("restore", run, "1", "--json").json
    assert (work.read_text(), told["files"]) == ("line 1\n", 1)
    assert ws(*told["undo"].split()[1:]).code == 0
    assert work.read_text() == "line 1\nline 2\nline 3\n"
    assert ws("restore", run, "0").code == 0
    assert not work.exists()
    work.write_text("mine\n")
    refused = ws("restore", run, "2")
    assert (refused.code, "work.txt" in refused.err, "--force" in refused.err) == (8, True, True)
    assert work.read_text() == "mine\n"
    forced = ws("restore", run, "2", "--force", "--json").json
    assert work.read_text() == "line 1\nline 2\n"
    assert ws(*forced["undo"].split()[1:]).code == 0
    assert work.read_text() == "mine\n"
    assert ws("restore", run, "3", "--to", "copy").code == 0
    assert (ws.folder / "copy" / "work.txt").read_text() == "line 1\nline 2\nline 3\n"
    assert work.read_text() == "mine\n"
    assert ws("restore", run, "3", "--to", "copy").code != 0


@pytest.mark.item("rec-15")
def test_bisect_names_the_iteration_that_broke_a_check(ws: Place) -> None:
    """By binary search over the snapshots, in folders of their own."""
    run = loop(ws, actions='[ "$n" = 2 ] && rm tests/test_a.txt')
    told = ws("bisect", run, "--json", "--", "test", "-f", "tests/test_a.txt").json
    assert (told["verdict"], told["broken_by"], told["paths"]) == (
        "broken",
        2,
        ["tests/test_a.txt", "work.txt"],
    )
    words = ws("bisect", run, "--", "test", "-f", "tests/test_a.txt")
    assert "iteration 2 broke `test -f tests/test_a.txt`: 2 files (+1 −1)" in words.out
    assert "iteration 3: failed" in words.err
    fine = ws("bisect", run)
    assert (fine.code, "nothing is broken" in fine.out) == (0, True)
    never = ws("bisect", run, "--", "test", "-f", "no-such-file")
    assert (never.code, "never passed" in never.out) == (3, True)
    late = ws("bisect", run, "--json", "--", "grep", "-c", "-x", "line 2", "work.txt").json
    assert late["verdict"] == "passes"


@pytest.mark.item("rec-14")
def test_a_fork_starts_from_a_snapshot(ws: Place) -> None:
    """Into a new folder, or into the workspace; its trees follow those of the first run."""
    run = loop(ws)
    again = ws.folder.parent / "again"
    told = ws("fork", run, "--at", "1", "--restore", "--workspace", str(again), "--json")
    assert told.code == 0
    assert (again / "work.txt").read_text() == "line 1\nline 2\nline 3\n"
    assert (ws.folder / "work.txt").read_text().count("line") == 3
    new = told.json["run"]
    assert "+line 2" in ws("diff", new, "2").out
    here = ws("fork", run, "--at", "2", "--restore", "--json")
    assert here.json["status"] == "completed"
    assert (ws.folder / "work.txt").read_text().count("line") == 3


@pytest.mark.item("rec-16")
def test_gates_show_what_changed_and_open_the_diff(ws: Place) -> None:
    """In the terminal with `d`, in the inbox, and as JSON."""
    terminal = ws.terminal("loop", "Do it", "--agent", agent(ws), "--manual", "--max", "2")
    with terminal:
        terminal.wait_for("1 file changed (+1 −0): work.txt")
        terminal.wait_for("[d]iff")
        terminal.type("d\n")
        terminal.wait_for("b/work.txt")
        terminal.wait_for("[a]pprove")
        [gate] = ws("inbox", "--json").json["gates"]
        assert gate["snapshot"]["changed"] == {"files": 1, "insertions": 1, "deletions": 0}
        assert "1 file changed (+1 −0): work.txt" in ws("inbox").out
        terminal.type("a\n")
        assert terminal.leave() == 0


TAMPER = {
    "edit": "echo bad > {file}",
    "delete": "rm {file}",
    "rename": "mv {file} other.txt",
    "link": "rm {file}; ln -s /dev/null {file}",
    "mode": "chmod 755 {file}",
    "folder": "rm {file}; mkdir {file}; echo x > {file}/x",
    "pipe": "rm {file}; mkfifo {file}",
    "ignored": "echo '{file}' > .gitignore; echo bad > {file}",
}


@pytest.mark.item("rec-41")
@pytest.mark.parametrize("how", [*TAMPER, "add"])
def test_a_protected_file_that_changes_lets_no_run_complete(ws: Place, how: str) -> None:
    """Whatever is done to it, the verdict names it; the run ends at its cap."""
    commands = {**TAMPER, "add": "echo x > tests/new.txt"}
    action = commands[how].format(file="tests/test_a.txt")
    run = loop(ws, "--protect", "tests/**", actions=f'[ "$n" = 1 ] && {{ {action}; }}')
    told = ws("show", run, "--json").json
    assert told["status"] == "exhausted"
    verdicts = [one for one in ws.events(run) if one["kind"] == "check.verdict"]
    protect = [one["evidence"] for one in verdicts if one["check"] == "protect"]
    assert len(protect) == 4
    named = "tests/new.txt" if how == "add" else "tests/test_a.txt"
    assert all(f"protected files changed: {named}" in one for one in protect)
    certificate = ws("show", run, "--certificate", "--json").json
    assert certificate["protected"]["status"] == "changed"
    assert named in ws("show", run, "--certificate").out


@pytest.mark.item("rec-41")
def test_an_ignored_file_is_protected_too(ws: Place) -> None:
    """Protected files are recorded although .gitignore names them."""
    ws.write(".gitignore", "tests/\n")
    run = loop(ws, "--protect", "tests/**", actions='[ "$n" = 2 ] && echo bad > tests/test_a.txt')
    assert ws("show", run, "--json").json["status"] == "exhausted"


@pytest.mark.item("rec-41")
def test_a_native_definition_protects_files_and_reverting_heals(ws: Place) -> None:
    """`protect:` in the file; the change is shown at once, and the run completes without it."""
    actions = (
        '[ "$n" = 3 ] && echo bad > tests/test_a.txt\n'
        '[ "$n" = 4 ] && echo expected > tests/test_a.txt'
    )
    until = {"command": ["./check.sh"]}
    file = ws.loop(agent(ws, actions), max=6, until=until, top={"protect": "tests/**"})
    told = ws("run", file)
    assert told.code == 0
    assert told.err.count("protected files changed: tests/test_a.txt") == 1
    run = ws("ls", "--json").json["runs"][0]["run"]
    assert ws("show", run, "--json").json["iterations"] == 4
    certificate = ws("show", run, "--certificate").out
    assert "protected files are unchanged: tests/**" in certificate
    assert "`./check.sh` passed, exit code 0 (iteration 4, tree " in certificate


@pytest.mark.item("rec-42")
@pytest.mark.parametrize("how", ["edit", "delete", "link", "ignored"])
def test_a_changed_file_that_the_check_depends_on_is_always_visible(ws: Place, how: str) -> None:
    """Without protection the run may complete; output, `show` and certificate name the file."""
    swap = {
        "edit": "echo '#!/bin/sh' > check.sh",
        "delete": "rm check.sh; cp /bin/true check.sh",
        "link": "rm check.sh; ln -s /bin/true check.sh",
        "ignored": "echo check.sh > .gitignore; echo '#!/bin/sh' > check.sh",
    }[how]
    base = ("loop", "Do it", "--agent", agent(ws, f'[ "$n" = 2 ] && {{ {swap}; }}'))
    more = ("--max", "4", "--protect", "other.txt")  # a snapshot follows the checks, too
    told = ws(*base, "--until-command", "./check.sh", *more)
    assert told.code == 0
    assert "check.sh changed; the check depends on it" in told.err
    run = ws("ls", "--json").json["runs"][0]["run"]
    words = "check.sh changed in iteration 2; the check depends on it"
    assert words in ws("show", run).out
    assert words in ws("show", run, "--certificate").out
    told_json = ws("show", run, "--certificate", "--json").json
    assert told_json["changed_dependencies"] == [{"path": "check.sh", "iteration": 2}]
    assert told.err.count("iteration 2/4: warning: check.sh changed") == 1


@pytest.mark.item("rec-42")
def test_the_certificate_names_checks_trees_and_the_head_of_the_log(ws: Place) -> None:
    """It is what the events say: the last verdicts, the final tree, the chain."""
    run = loop(ws)
    told = ws("show", run, "--certificate", "--json").json
    [check] = told["checks"]
    events = ws.events(run)
    verdict = [one for one in events if one["kind"] == "check.verdict"][-1]
    assert (check["command"], check["exit_code"], check["verdict"]) == (["./check.sh"], 0, "pass")
    assert check["tree"] == verdict["tree"] == told["final_tree"]
    assert (told["outcome"], told["events"], len(told["head"])) == ("completed", len(events), 32)
    assert told["protected"]["status"] is None


@pytest.mark.item("rec-42")
def test_the_certificate_of_a_run_that_did_not_complete_has_the_last_verdicts(ws: Place) -> None:
    """Iteration 2 fails before its check: the verdict of iteration 1 is named as such."""
    run = loop(ws, actions='[ "$n" = 2 ] && exit 3')
    told = ws("show", run, "--certificate", "--json").json
    [check] = told["checks"]
    assert (check["iteration"], check["verdict"], check["exit_code"]) == (1, "fail", 1)
    lines = ws("show", run, "--certificate").out
    assert "the run did not complete; the last verdict of each check was:" in lines
    assert f"`./check.sh` failed, exit code 1 (iteration 1, tree {check['tree']})" in lines
    assert "not checked in iteration 2 (iteration 1: ./check.sh failed)" in ws("show", run).out


@pytest.mark.item("rec-15")
@pytest.mark.parametrize("program", ["nosuchprog", "./nosuch.sh"])
def test_bisect_refuses_a_program_that_does_not_exist(ws: Place, program: str) -> None:
    """Nothing was tested, so nothing is said about the iterations."""
    told = ws("bisect", loop(ws), "--", program)
    assert (told.code, f"the program '{program}' was not found" in told.err) == (2, True)
    assert "never passed" not in told.out


@pytest.mark.item("rec-10")
def test_the_users_repository_is_untouched(ws: Place) -> None:
    """HEAD, index, refs and objects are byte-identical after a run, a restore and a bisect."""
    git: Callable[..., object] = lambda *args: subprocess.run(  # noqa: E731 - one short call
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", *args], check=True, cwd=ws.folder
    )
    git("add", "check.sh")
    git("commit", "-q", "-m", "one")
    git("add", "tests")
    before = _contents(ws.folder / ".git")
    run = loop(ws)
    assert ws("diff", run).code == ws("restore", run, "1").code == ws("bisect", run).code == 0
    assert _contents(ws.folder / ".git") == before


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(folder)): one.read_bytes()
        for one in sorted(folder.rglob("*"))
        if one.is_file()
    }


@pytest.mark.deep
@pytest.mark.item("rec-17")
@pytest.mark.parametrize("after_ms", range(100, 3_100, 100))
def test_a_killed_run_continues_with_its_snapshots(ws: Place, after_ms: int) -> None:
    """Real processes and kill -9 at many moments: each iteration is made once, and every snapshot
    that was recorded stays.
    """
    base = ("loop", "Do it", "--agent", agent(ws, "sleep 0.1"), "--until-command", "./check.sh")
    started = ws.start(*base, "--max", "4", "--json")
    try:
        started.wait(after_ms / 1_000)
    except subprocess.TimeoutExpired:
        started.kill()
    started.communicate()
    runs = ws("ls", "--all", "--json").json["runs"]
    if not runs:
        return
    run = runs[0]["run"]
    before = [one for one in ws.events(run) if one.get("snapshot")]
    if runs[0]["status"] == "running":
        assert ws("resume", run, "--json").json["status"] == "completed"
    events = ws.events(run)
    requested = [one["effect"] for one in events if one["kind"] == "effect.requested"]
    assert len(requested) == len(set(requested))
    assert [one for one in events if one.get("snapshot")][: len(before)] == before
    done = [one["iteration"] for one in events if one["kind"] == "iteration.finished"]
    assert done == [*range(1, len(done) + 1)]
    assert ws("doctor", "--deep", "--json").json["ok"] is True
    assert ws("diff", run).code == 0


def test_ls_counts_the_changed_files(ws: Place) -> None:
    """The column is there when a run of the list has snapshots; others have a dash."""
    loop(ws)
    ws("loop", "Do it", "--agent", ws.script("x"), "--max", "1", "--no-snapshots")
    head, second, first = ws("ls").out.splitlines()
    assert head.split()[2:5] == ["ITERATIONS", "CHANGED", "SPENT"]
    assert "1 (+3 −0)" in first
    assert " – " in second
    found = ws("ls", "--json").json["runs"]
    assert [one["changed"] and one["changed"]["insertions"] for one in found] == [None, 3]


def test_limits_of_snapshots_are_settings(ws: Place) -> None:
    """A file above the limit is left out and named; a value that is not a size is refused."""
    ws.write("large.bin", "x" * 2_001)
    ws.write("loopwright.toml", 'snapshot_max_file = "2KB"\nsnapshot_max_files = 100\n')
    run = loop(ws)
    taken = [one["snapshot"] for one in ws.events(run) if "snapshot" in one]
    assert taken[-1]["omitted"] == ["large.bin"]
    assert "snapshot_max_file = 2000" in ws("config").out


@pytest.mark.parametrize("value", ["2 apples", "-1", "0", "1.5MB", "", "٣MB"])
def test_a_limit_that_is_not_a_size_is_refused(ws: Place, value: str) -> None:
    """The message names the place and the form; an empty variable is not set."""
    ws.write("loopwright.toml", f'snapshot_max_total = "{value}"\n')
    told = ws("config")
    assert told.code == 2
    assert "snapshot_max_total is" in told.err
    assert "as in 2GB" in told.err or not value


def test_doctor_names_worktrees_of_no_run(ws: Place) -> None:
    """With the command that removes the worktree and its branch, and it works."""
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    git = ("git", *identity)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True, cwd=ws.folder)
    kept = ws("loop", "x", "--agent", ws.script("x"), "--max", "1", "--worktree", "--json").json
    folder = Path(ws.env["LOOPWRIGHT_HOME"]) / "worktrees" / "run_lost"
    add = [*git, "worktree", "add", "-q", "-b", "loopwright/run_lost", str(folder)]
    subprocess.run(add, check=True, cwd=ws.folder)
    os.utime(folder, (1, 1))
    os.utime(folder.parent / kept["run"], (1, 1))
    [found] = [one for one in ws("doctor", "--json").json["checks"] if one["check"] == "worktree"]
    assert (found["state"], found["why"]) == ("warn", f"{folder} belongs to no run")
    subprocess.run(["sh", "-c", found["fix"]], check=True)
    assert not folder.exists()
    left = subprocess.run([*git, "branch"], check=True, cwd=ws.folder, stdout=subprocess.PIPE)
    assert b"run_lost" not in left.stdout
    assert not [one for one in ws("doctor", "--json").json["checks"] if one["check"] == "worktree"]


def test_the_first_snapshot_of_a_large_folder_shows_its_progress(ws: Place) -> None:
    """In the output of a run without a live view."""
    many = ws.folder / "many"
    many.mkdir()
    for number in range(2_100):
        (many / f"{number}.txt").touch()
    told = ws("loop", "Do it", "--agent", agent(ws), "--max", "1")
    assert "Snapshot: 2,102 of 2,102 files" in told.err


def test_prune_removes_the_snapshots_of_a_run(ws: Place) -> None:
    """With the last run of a project, its store."""
    loop(ws)
    store = Path(ws.env["LOOPWRIGHT_HOME"]) / "snapshots"
    assert [one for one in store.iterdir() if one.is_dir()]
    assert ws("prune", "--older", "1ms").code == 0
    assert ws("ls", "--json").json["runs"] == []
    assert not list(store.rglob("objects"))


def test_restore_of_a_folder_that_is_gone_names_its_option(ws: Place) -> None:
    """The hint has the option that `restore` has."""
    run = ws("run", ws.loop(ws.probe({"say": "x"}), max=1), "--workspace", "other", "--json")
    assert run.code == 2
    (ws.folder / "other").mkdir()
    told = ws("run", ws.loop(ws.probe({"say": "x"}), max=1), "--workspace", "other", "--json")
    shutil.rmtree(ws.folder / "other")
    assert "--to DIR" in ws("restore", told.json["run"], "0").err


@pytest.mark.parametrize(("pattern", "is_named"), [("tests/**", True), ("*.keep", False)])
def test_a_pattern_that_matches_nothing_is_warned_about(
    lw: Place, pattern: str, *, is_named: bool
) -> None:
    """At the start, with the pattern."""
    lw.write("a.keep", "")
    words = ["--agent", lw.probe({"say": "x"}), "--max", "1", "--protect", pattern]
    told = lw("loop", "Go", *words).err
    assert (f"--protect {pattern} matches no file" in told) is is_named
    assert told.count(pattern) == int(is_named)  # and is not said twice


def test_an_agent_that_deletes_the_workspace(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """`diff` says that its changes were not recorded, and why; the hint is a command that works."""
    monkeypatch.setenv("LOOPWRIGHT_SNAPSHOTS", "on")
    work = lw.folder / "inner"
    work.mkdir()
    (work / "a.txt").write_text("a\n")
    script = lw.write("agent.sh", f"#!/bin/sh\ncat >/dev/null\nrm -rf {work}\n")
    script.chmod(0o755)
    words = ["loop", "go", "--agent", f"command:{script}", "--max", "2", "--workspace", str(work)]
    told = lw(*words)
    assert told.code == 3
    assert "loopwright resume" not in told.err
    run = lw("ls", "--json").json["runs"][0]["run"]
    hint = f"loopwright restore {run} 0 --to DIR"
    assert hint in told.err
    assert hint in lw("show", run).out
    failed = f"warning: the snapshot of the workspace failed: the workspace {work} does not exist"
    assert f"iteration 1/2: {failed}" in told.err
    assert f"     {failed}" in lw("show", run).out
    reason = f"the changes of iteration 1 were not recorded: the workspace {work} does not exist"
    for more in ([], ["1"], ["--stat"], ["--json"]):
        compared = lw("diff", run, *more)
        assert (reason in compared.err, "no files changed" in compared.out) == (True, False), more
    assert lw("diff", run, "--json").json["unrecorded"] is True
    assert lw("restore", run, "0", "--to", str(lw.folder / "back")).code == 0
    assert (lw.folder / "back" / "a.txt").read_text() == "a\n"


@pytest.mark.parametrize("command", ["restore", "bisect", "prune", "eval", "promote"])
def test_commands_of_this_machine_are_refused_for_a_server(ws: Place, command: str) -> None:
    """The caller means the data of the server: the runs and files of this machine stay."""
    run = loop(ws)
    written = (ws.folder / "work.txt").read_text()
    words = {"restore": ("last", "1"), "bisect": ("last",), "prune": ("--older", "1d")}
    words |= {"eval": ("last",), "promote": ("a",)}
    variable = ws.real(command, *words[command], env={"LOOPWRIGHT_SERVER": "http://127.0.0.1:9"})
    option = ws.real(command, *words[command], "--server", "http://127.0.0.1:9")
    for told in (variable, option):
        assert told.code == 2
        assert f"`loopwright {command}` works only on the machine of the server" in told.err
        assert "run it on that machine" in told.err
    assert f"env -u LOOPWRIGHT_SERVER loopwright {command}" in variable.err
    assert "leave --server out" in option.err
    assert (ws.folder / "work.txt").read_text() == written
    assert ws("show", run).code == 0
