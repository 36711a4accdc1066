"""Protected files, end to end: real Git, real agents, and what no agent can do to them unseen."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Place, Told, until
from tests.cli.terminal import COMMAND, PATIENCE_S
from tests.server.served import served

CHECKED = "tests/expected.txt"
"""A file that the check reads: an agent that changes it decides the check."""

CHANGES = {
    "edit": f"echo easier > {CHECKED}",
    "delete": f"rm {CHECKED}",
    "rename": f"mv {CHECKED} tests/other.txt",
    "link": f"rm {CHECKED}; echo easier > ../easier; ln -s ../../easier {CHECKED}",
    "unreadable": f"chmod 000 {CHECKED}",
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


def run_unprivileged(lw: Place, *args: str) -> Told:
    """Run a command that may not read what its user may not: root can, so it drops that right."""
    drop: list[str] = []
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("root reads every file, and setpriv is not installed")
        rights = "-dac_override,-dac_read_search"
        drop = [setpriv, f"--bounding-set={rights}", f"--inh-caps={rights}", "--"]
    done = subprocess.run(
        [*drop, *COMMAND, *args],
        capture_output=True,
        env=lw.env,
        cwd=lw.folder,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE_S,
        check=False,
    )
    return Told(done.returncode, done.stdout.decode(), done.stderr.decode())


def loop(lw: Place, spec: str, *more: str) -> Told:
    base = ("loop", "Do it", "--agent", spec, "--until-command", CHECK, "--max", "2", *more)
    return run_unprivileged(lw, *base) if "chmod" in _script(lw) else lw(*base)


def _script(lw: Place) -> str:
    return (lw.folder.parent / "agent.sh").read_text()


def verdicts(lw: Place, run: str, check: str) -> list[dict[str, Any]]:
    facts = [one for one in lw.facts(run) if one["kind"] == "check.verdict"]
    return [one for one in facts if one["check"] == check]


@pytest.mark.item("rec-41")
@pytest.mark.parametrize("kind", AGENTS)
@pytest.mark.parametrize("how", CHANGES)
def test_a_run_whose_protected_file_was_changed_never_completes(
    ws: Place, how: str, kind: str
) -> None:
    """The check passes after the change, the iteration does not; every view names the file."""
    told = loop(ws, agent(ws.folder, CHANGES[how], kind), "--protect", "tests/**")
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
    told = loop(ws, agent(ws.folder, CHANGES[how]))
    assert told.code == 0, told
    assert f"{CHECKED} changed; the check depends on it" in told.err
    [row] = ws("ls", "--json").json["runs"]
    words = f"{CHECKED} changed in iteration 1; the check depends on it"
    assert words in ws("show", row["run"]).out
    assert words in ws("show", row["run"], "--certificate").out
    certificate = ws("show", row["run"], "--certificate", "--json").json
    assert certificate["changed_dependencies"] == [{"path": CHECKED, "iteration": 1}]
    assert CHECKED in ws("diff", row["run"]).out


@pytest.mark.item("rec-41")
def test_a_protected_file_that_cannot_be_read_from_the_start_lets_nothing_begin(ws: Place) -> None:
    """Nobody could say later whether it was changed; the agent is not called."""
    (ws.folder / CHECKED).chmod(0)
    spec = agent(ws.folder, "touch ../called")
    base = ("loop", "Do it", "--agent", spec, "--until-command", "true", "--max", "2")
    told = run_unprivileged(ws, *base, "--protect", "tests/**")
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
