"""Unusable data directories and wrong clocks: reported early with a message."""

import asyncio
import contextlib
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from loopwright.agents.sandbox import bubblewrap, host_files
from loopwright.http.server import watch_clock
from loopwright.operations import settings_files
from loopwright.operations.doctor import examine
from loopwright.operations.preflight import clock_problem
from loopwright.operations.settings import SettingsSources, load_settings
from tests.http.served import Served
from tests.http.test_serving import refused

DAY_MS = 86_400_000
IN_A_ROW = """
import json, os, sys
from loopwright.operations.doctor import PROBLEMS, examine
from loopwright.operations.settings import SettingsSources, load_settings
from loopwright.cli.problems import problem_of
from loopwright.errors import LoopwrightError
from loopwright.http.context import ServerOptions
from loopwright.http.server import serve
here = load_settings(data_dir=sys.argv[2], place=SettingsSources(env={}))
if os.geteuid() == 0 and sys.argv[1] == "nobody":
    examine(here)  # so that everything is loaded
    os.setgroups([])
    os.setuid(65534)
try:
    serve(here.settings, ServerOptions(port=0), lambda started: os._exit(9))
except LoopwrightError as error:
    problem = problem_of(error)
ill = {one.name: one.why for one in examine(here) if one.state in PROBLEMS}
print(json.dumps([problem.exit, problem.code, chr(10).join(problem.as_lines()), ill]))
"""


def told(*argv: str) -> tuple[int, str, str, dict[str, str]]:
    """Serve, then ask the doctor: exit code, code and words of the problem, what is not well."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    code, slug, words, ill = json.loads(done.stdout)
    return code, slug, words, ill


def walled(tmp_path: Path, *wall: str, before: str = "true") -> list[str]:
    if bubblewrap.works() is not None:
        pytest.skip(f"bubblewrap cannot work here: {bubblewrap.works()}")
    program = tmp_path / "program.py"
    program.write_text(IN_A_ROW)
    shell = f"{before}; exec {sys.executable} {program} same {tmp_path / 'home'}"
    return ["bwrap", "--dev-bind", "/", "/", *wall, "sh", "-c", shell]


@pytest.mark.item("J2")
def test_a_disk_that_can_only_be_read(tmp_path: Path) -> None:
    """The server does not start and says that it cannot write; the doctor says the same."""
    home = tmp_path / "home"
    home.mkdir()
    code, slug, words, ill = told(*walled(tmp_path, "--ro-bind", str(home), str(home)))
    assert (code, slug) == (1, "read-only")
    assert "can only be read" in words
    assert "--data-dir" in words
    assert "home" in ill


@pytest.mark.item("J2")
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """The server does not start and says that no space is left; the doctor says the same."""
    home = tmp_path / "home"
    home.mkdir()
    fill = f"dd if=/dev/zero of={home}/fill bs=4096 2>/dev/null"
    wall = walled(tmp_path, "--size", "65536", "--tmpfs", str(home), before=fill)
    code, slug, words, ill = told(*wall)
    assert (code, slug) == (1, "full")
    assert "no space is left" in words
    assert "disk space" in ill


@pytest.mark.item("J2")
def test_a_folder_of_another_person(tmp_path: Path) -> None:
    """The server does not start, and says whose the folder is; the doctor says the same."""
    program = tmp_path / "program.py"
    program.write_text(IN_A_ROW)
    code, slug, words, ill = told(sys.executable, str(program), "nobody", "/usr")
    assert (code, slug) == (1, "foreign")
    assert "/usr cannot be used: it belongs to root" in words
    assert "belongs to root" in ill["home"]


@pytest.mark.item("J2")
@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_a_disk_of_another_machine(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server does not start, and names what kind of disk it is; the doctor says the same."""
    share = tmp_path / "a share"
    share.mkdir()
    mounts = tmp_path / "mounts"
    shown = str(share).replace(" ", "\\040")
    mounts.write_text(
        "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
        f"36 21 0:41 / {shown} rw,relatime shared:1 - {kind} server:/x rw\n"
    )
    monkeypatch.setattr(host_files, "MOUNTS", mounts)
    code, said = refused(share)
    assert code == 1
    assert f"another machine ({kind})" in said
    assert not list(share.iterdir())
    resolved = load_settings(
        data_dir=str(share / "home"), place=SettingsSources(env={}, cwd=tmp_path)
    )
    found = {one.name: one for one in examine(resolved)}
    assert (found["disk"].state, kind in found["disk"].why) == ("fail", True)
    monkeypatch.setattr(host_files, "MOUNTS", tmp_path / "none")
    assert settings_files.disk_kind(share) == ""


@pytest.mark.item("J9")
def test_a_clock_that_does_not_fit(own: Served, caplog: pytest.LogCaptureFixture) -> None:
    """A clock a year behind or ahead of what was recorded is told at the start; a jump is told
    when it happens, and the run does not end for it.
    """
    run, _ = own.gated()
    here = own.context.here
    now = here.service.clock.now_ms()
    assert own.call(lambda: clock_problem(here.log, now)) == ""
    behind = own.call(lambda: clock_problem(here.log, now - 365 * DAY_MS))
    assert "the newest record is of 20" in behind
    ahead = own.call(lambda: clock_problem(here.log, now + 365 * DAY_MS))
    assert "nothing was recorded for 365 days" in ahead

    jumps = iter([0, 365 * DAY_MS, 365 * DAY_MS, 0])

    class Machine:
        log, service = here.log, here.service

        @staticmethod
        def jumped() -> int:
            found = next(jumps, None)
            if found is None:
                raise asyncio.CancelledError
            return found

    caplog.set_level(logging.WARNING)
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(watch_clock(Machine(), 0.0))  # type: ignore[arg-type]
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == 2
    assert "was set forward by 31536000 seconds" in warned[0]
    assert own("GET", f"/api/v1/runs/{run}").json["status"] == "waiting"
