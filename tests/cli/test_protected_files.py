"""Protected files, end to end: real Git, real agents, and what no agent can do to them unseen."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from loopwright.agents.sandbox.bubblewrap import works
from tests.cli.conftest import Place, Told, until
from tests.http.served import served
from tests.safety.identities import BASE, folder_of, missing, ordinary_user, run_as

CHECKED = "tests/expected.txt"
"""A file that the check reads: an agent that changes it decides the check."""

CHANGES = {
    "edit": f"echo easier > {CHECKED}",
    "delete": f"rm {CHECKED}",
    "rename": f"mv {CHECKED} tests/other.txt",
    "link": f"rm {CHECKED}; echo easier > ../easier; ln -s ../../easier {CHECKED}",
    "unreadable": f"chmod 000 {CHECKED}",
    "unreadable folder": "chmod 000 tests",
}
CHECK = "./check.sh tests/expected.txt"
AGENTS = {
    "command": 'echo "did iteration $LOOPWRIGHT_ITERATION"',
    "jsonl": (
        """echo '{"type":"tool","name":"bash","args":{"command":"work"},"result":"ok"}'\n"""
        """echo '{"type":"result","text":"did it"}'"""
    ),
}
ENDED = ("completed", "failed", "exhausted", "cancelled")


@pytest.fixture
def ws(lw: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A Git repository with a commit and a check that is easy to pass once it was changed."""
    monkeypatch.setenv("LOOPWRIGHT_SNAPSHOTS", "on")
    lw.env["LOOPWRIGHT_SNAPSHOTS"] = "on"
    repository(lw.folder)
    return lw


def repository(folder: Path) -> None:
    (folder / "tests").mkdir()
    (folder / CHECKED).write_text("hard\n")
    check = folder / "check.sh"
    check.write_text('#!/bin/sh\n! grep -q hard "$1"\n')
    check.chmod(0o755)
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.templateDir=")
    for words in (("init", "-q", "."), ("add", "-A"), ("commit", "-q", "-m", "first")):
        subprocess.run([*git, *words], check=True, cwd=folder)


def agent(folder: Path, actions: str, kind: str = "command") -> str:
    """An agent that does something in its first iteration."""
    file = folder.parent / "agent.sh"
    action = f'[ "$LOOPWRIGHT_ITERATION" = 1 ] && {{ {actions}; }}'
    file.write_text(f"#!/bin/sh\ncat >/dev/null\n{action}\n{AGENTS[kind]}\n")
    file.chmod(0o755)
    return f"{kind}:{file}"


def loop(spec: str, *more: str) -> tuple[str, ...]:
    """The arguments of a loop whose check reads the file."""
    return ("loop", "Do it", "--agent", spec, "--until-command", CHECK, "--max", "2", *more)


STAGE = """
import contextlib, io, json, os, sys
from loopwright.cli.main import main
told = []
for place, args in json.load(sys.stdin):
    os.chdir(place)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        with contextlib.redirect_stderr(io.StringIO()) as err:
            try:
                main(args)
            except SystemExit as end:
                code = end.code
    told.append([code, out.getvalue(), err.getvalue()])
json.dump(told, sys.stdout)
"""


def as_user(folder: Path, *commands: tuple[Path, Sequence[str]]) -> list[Told]:
    """Run commands as an ordinary user, each in its folder, with the data directory of `folder`."""
    env = {
        "HOME": str(folder),
        "LOOPWRIGHT_HOME": str(folder / "home"),
        "LOOPWRIGHT_SNAPSHOTS": "on",
        "XDG_DATA_HOME": str(folder / "share"),
    }
    order = json.dumps([[str(place), args] for place, args in commands])
    done = run_as("user", ["-c", STAGE], env={**BASE, **env}, text=order)
    assert done.returncode == 0, done.stderr
    return [Told(*one) for one in json.loads(done.stdout)]


@pytest.fixture
def user_folder() -> Iterator[Path]:
    """A folder of an ordinary user."""
    problem = missing("user") or works()
    if problem is not None:
        words = "no ordinary user can run tests here, or bubblewrap cannot work here"
        pytest.skip(f"{words}: {problem}")
    with folder_of("user") as folder:
        yield folder


def give_to_user(folder: Path) -> None:
    """Let everything in a folder belong to the ordinary user."""
    if os.geteuid() == 0:
        user = ordinary_user()
        for path in folder.rglob("*"):
            os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)


def verdicts(lw: Place, run: str, check: str) -> list[dict[str, Any]]:
    events = [one for one in lw.events(run) if one["kind"] == "check.verdict"]
    return [one for one in events if one["check"] == check]


@pytest.mark.item("rec-41")
@pytest.mark.parametrize("kind", AGENTS)
@pytest.mark.parametrize("how", CHANGES)
def test_a_run_whose_protected_file_was_changed_never_completes(
    ws: Place, how: str, kind: str
) -> None:
    """The check passes after the change, the iteration does not; every view names the file."""
    told = ws(*loop(agent(ws.folder, CHANGES[how], kind), "--protect", "tests/**"))
    assert told.code == 4, told
    assert f"protected files changed: {CHECKED}" in told.err
    [row] = ws("ls", "--json").json["runs"]
    run = row["run"]
    assert row["status"] == "exhausted"
    assert [one["verdict"] for one in verdicts(ws, run, "command")] == ["pass", "pass"]
    protect = verdicts(ws, run, "protect")
    assert [CHECKED in one["evidence"] for one in protect] == [True, True]
    certificate = ws("show", run, "--certificate", "--json").json["protected"]
    assert (certificate["status"], CHECKED in str(certificate)) == ("changed", True)
    changed = [one["path"] for one in ws("diff", run, "1", "--json").json["changes"]]
    assert CHECKED in changed or "tests/other.txt" in changed


@pytest.mark.item("rec-41")
@pytest.mark.parametrize(
    ("times", "code", "verdict"),
    [("1", 0, ["fail"]), ("1 2 3", 4, ["fail", "fail"])],
    ids=["once", "always"],
)
def test_a_protected_file_that_a_check_changes_fails_the_checks_of_that_iteration(
    ws: Place, times: str, code: int, verdict: list[str]
) -> None:
    """The loop continues: it completes after the file is as it was, and never before."""
    check = ws.folder.parent / "check.sh"
    check.write_text(
        "#!/bin/sh\necho x >> ../count; now=$(wc -l < ../count)\n"
        f"case ' {times} ' in *\" $now \"*) echo easier > {CHECKED};; esac\n"
    )
    check.chmod(0o755)
    spec = agent(ws.folder, "true", "command")
    (ws.folder.parent / "agent.sh").write_text(
        f"#!/bin/sh\ncat > /dev/null\necho hard > {CHECKED}\necho done\n"
    )
    told = ws("loop", "Do it", "--agent", spec, "--until-command", str(check), "--max", "2",
              "--protect", "tests/**", "--json")  # fmt: skip
    assert told.code == code, told
    run = told.json["run"]
    protect = verdicts(ws, run, "protect")
    assert [one["verdict"] for one in protect] == verdict
    assert all(f"protected files changed: {CHECKED}" == one["evidence"] for one in protect)
    assert "failed" not in [one["status"] for one in ws("ls", "--json").json["runs"]]


@pytest.mark.item("rec-41", "rec-42")
@pytest.mark.parametrize("how", CHANGES)
def test_a_changed_file_that_is_not_protected_is_always_visible(ws: Place, how: str) -> None:
    """The run completes, and the output, `show`, the certificate and `diff` name the file."""
    told = ws(*loop(agent(ws.folder, CHANGES[how])))
    assert told.code == 0, told
    assert f"{CHECKED} changed; the check depends on it" in told.err
    [row] = ws("ls", "--json").json["runs"]
    words = f"{CHECKED} changed in iteration 1; the check depends on it"
    assert words in ws("show", row["run"]).out
    assert words in ws("show", row["run"], "--certificate").out
    certificate = ws("show", row["run"], "--certificate", "--json").json
    assert certificate["changed_dependencies"] == [{"path": CHECKED, "iteration": 1}]
    assert CHECKED in ws("diff", row["run"]).out


@pytest.mark.item("rec-41", "rec-42")
@pytest.mark.parametrize("how", CHANGES)
def test_what_an_ordinary_user_changes_is_found_too(user_folder: Path, how: str) -> None:
    """Who may not read a file gets the same answers as root, whose programs may not either."""
    protected, plain = user_folder / "protected", user_folder / "plain"
    for work in (protected, plain):
        work.mkdir()
        repository(work)
    spec = agent(plain, CHANGES[how])
    give_to_user(user_folder)
    ended, certified, free, shown, diff = as_user(
        user_folder,
        (protected, loop(spec, "--protect", "tests/**")),
        (protected, ("show", "last", "--certificate", "--json")),
        (plain, loop(spec)),
        (plain, ("show", "last", "--certificate", "--json")),
        (plain, ("diff", "last")),
    )
    assert (ended.code, free.code) == (4, 0), (ended, free)
    assert re.search(rf"protected files changed: .*{CHECKED}", ended.err)
    assert certified.json["protected"]["status"] == "changed"
    assert f"{CHECKED} changed; the check depends on it" in free.err
    assert shown.json["changed_dependencies"] == [{"path": CHECKED, "iteration": 1}]
    assert CHECKED in diff.out


@pytest.mark.item("rec-42")
@pytest.mark.parametrize("way", ["path", "link"])
@pytest.mark.parametrize("how", ["edit", "delete", "rename", "link", "unreadable"])
def test_a_changed_file_outside_of_the_workspace_is_visible(ws: Place, how: str, way: str) -> None:
    """No snapshot has it, and a check that names it depends on it all the same."""
    outside = ws.folder.parent / "expected.txt"
    outside.write_text("hard\n")
    named = "../expected.txt" if way == "path" else "expected.txt"
    if way == "link":
        (ws.folder / "expected.txt").symlink_to(outside)
    change = {
        "edit": f"echo easier > {outside}",
        "delete": f"rm {outside}",
        "rename": f"mv {outside} {outside}.old",
        "link": f"mv {outside} {outside}.old; echo easier > ../easier; ln -s easier {outside}",
        "unreadable": f"chmod 000 {outside}",
    }[how]
    words = ("--until-command", f"./check.sh {named}", "--max", "2")
    told = ws("loop", "Do it", "--agent", agent(ws.folder, change), *words)
    assert told.code == 0, told
    assert f"{outside} changed; the check depends on it" in told.err
    shown = ws("show", "last", "--certificate", "--json").json
    assert shown["changed_dependencies"] == [{"path": str(outside), "iteration": 1}]


@pytest.mark.item("rec-42")
def test_a_changed_file_that_snapshots_leave_out_is_visible(
    ws: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check depends on a file that is too large for a snapshot."""
    monkeypatch.setenv("LOOPWRIGHT_SNAPSHOT_MAX_FILE", "1KB")
    large = ws.folder / "large.txt"
    large.write_text("hard\n" * 1_000)
    words = ("--until-command", "./check.sh large.txt", "--max", "2")
    told = ws("loop", "Do it", "--agent", agent(ws.folder, "echo x > large.txt.2; mv large.txt.2 "
              "large.txt; yes y | head -n 2000 >> large.txt"), *words)  # fmt: skip
    assert told.code == 0, told
    shown = ws("show", "last", "--certificate", "--json").json
    assert shown["changed_dependencies"] == [{"path": "large.txt", "iteration": 1}]


@pytest.mark.item("rec-41")
@pytest.mark.parametrize("pattern", [".git/**", "sub/.git/config", ".GIT"])
def test_files_of_git_cannot_be_protected(ws: Place, pattern: str) -> None:
    """No snapshot has them: the run is refused before anything starts."""
    told = ws(*loop(agent(ws.folder, "touch ../called"), "--protect", pattern))
    assert told.code == 2, told
    assert f'"{pattern}" cannot be protected' in told.err
    assert not (ws.folder.parent / "called").exists()


@pytest.mark.item("rec-41")
def test_a_protected_file_that_cannot_be_read_from_the_start_lets_nothing_begin(ws: Place) -> None:
    """Nobody could say later whether it was changed; the agent is not called."""
    (ws.folder / CHECKED).chmod(0)
    spec = agent(ws.folder, "touch ../called")
    base = ("loop", "Do it", "--agent", spec, "--until-command", "true", "--max", "2")
    told = ws(*base, "--protect", "tests/**")
    assert told.code == 3, told
    words = f"protected files could not be verified: cannot record {CHECKED} (too large, or not re"
    assert words in told.err
    assert not (ws.folder.parent / "called").exists()


# -- stop, change, resume --------------------------------------------------------------------------


def failed_run(lw: Place) -> str:
    """A run whose agent changes a protected file in a call that fails."""
    spec = agent(lw.folder, f"{CHANGES['edit']}; exit 3")
    told = lw("loop", "Do it", "--agent", spec, "--until-command", CHECK, "--max", "3", "--json",
              "--protect", "tests/**")  # fmt: skip
    assert told.json["status"] == "failed", told
    agent(lw.folder, "true")
    return str(told.json["run"])


def changed_by_hand(lw: Place) -> str:
    """A run that ended; then its protected file is changed by somebody else."""
    spec = agent(lw.folder, "exit 3")
    told = lw("loop", "Do it", "--agent", spec, "--until-command", CHECK, "--max", "3", "--json",
              "--protect", "tests/**")  # fmt: skip
    assert told.json["status"] == "failed", told
    (lw.folder / CHECKED).write_text("easier\n")
    agent(lw.folder, "true")
    return str(told.json["run"])


@pytest.mark.item("rec-41")
@pytest.mark.parametrize("before", [failed_run, changed_by_hand], ids=["by the agent", "by hand"])
def test_resume_does_not_accept_a_changed_protected_file(ws: Place, before: Any) -> None:
    """Its iterations fail with the name of the file; `--accept-changes` accepts it as it is."""
    run = before(ws)
    told = ws("resume", run)
    assert told.code == 4, told
    assert f"protected files changed: {CHECKED}" in told.err
    accepted = ws("resume", run, "--max", "5", "--accept-changes", "--json")
    assert (accepted.code, accepted.json["status"]) == (0, "completed"), accepted
    certificate = ws("show", run, "--certificate", "--json").json["protected"]
    assert certificate["status"] != "changed"


@pytest.mark.item("rec-41")
def test_resume_over_http_does_not_accept_a_changed_protected_file(tmp_path: Path) -> None:
    """A run that is stopped during a call; the file is changed; the rules of the command line."""
    folder = tmp_path / "work"
    folder.mkdir()
    repository(folder)
    spec, started = agent(folder, "touch ../started; sleep 60"), tmp_path / "started"
    with served(tmp_path, more={"snapshots": "on"}) as server:
        text = server.definition(spec, max=2, until={"command": CHECK.split()})
        text = text.replace('"repeat"', '"protect": ["tests/**"], "repeat"', 1)
        run = server.start(text, workspace=str(folder))
        place = f"/api/v1/runs/{run}"
        until(started.exists)
        assert server("POST", f"{place}/stop").json["status"] == "cancelled"
        agent(folder, "true")
        (folder / CHECKED).write_text("easier\n")
        assert server("POST", f"{place}/resume", {}).status == 200
        assert server.until(run, *ENDED)["status"] == "exhausted"
        shown = server("GET", f"{place}/certificate").json["protected"]
        assert (shown["status"], CHECKED in str(shown)) == ("changed", True)
        assert server("POST", f"{place}/resume", {"max": 4, "accept_changes": True}).status == 200
        assert server.until(run, *ENDED)["status"] == "completed"
        assert server("GET", f"{place}/certificate").json["protected"]["status"] != "changed"
