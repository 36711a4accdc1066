"""Programs in a sandbox: what each level shows, and that limits and signals work inside of it."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from loopwright.agents import coding_agents
from loopwright.agents.clis.command_line import CommandLineRequest, command_line
from loopwright.agents.processes.process import ProgramEnd, ProgramStart
from loopwright.agents.sandbox import bubblewrap, host_files
from loopwright.agents.sandbox import mounts as sandbox_mounts
from loopwright.agents.sandbox.bubblewrap import Confinement, Sandbox, SandboxPolicy
from loopwright.agents.sandbox.host_files import listening_sockets
from loopwright.agents.user_records import UserRecords
from loopwright.kernel.event_parts import CommandCall
from loopwright.model.access import Commands
from loopwright.model.sandbox import SANDBOX_LEVELS, SandboxLevel
from loopwright.ports import EffectFailure, EffectSuccess
from tests.agents.calls import Stage, agent, job

needs_sandbox = pytest.mark.skipif(
    bubblewrap.works() is not None, reason=f"bubblewrap cannot work here: {bubblewrap.works()}"
)
CONFINED = SANDBOX_LEVELS[1:]
every_level = pytest.mark.parametrize("level", CONFINED)


def run(
    folder: Path,
    *argv: str,
    level: SandboxLevel = "guard",
    policy: SandboxPolicy | None = None,
    **more: object,
) -> ProgramEnd:
    """Run a program in a workspace."""
    home = os.environ.get("HOME", "/")
    env = {"PATH": os.environ["PATH"], "HOME": home}
    program = ProgramStart(argv=argv, cwd=str(folder), env=env, **more)  # type: ignore[arg-type]
    return asyncio.run(Sandbox(policy).run(program, Confinement(level=level)))


def python(folder: Path, code: str, **more: object) -> ProgramEnd:
    return run(folder, sys.executable, "-c", code, **more)  # type: ignore[arg-type]


@needs_sandbox
@every_level
def test_doctor_can_try_every_level(level: SandboxLevel) -> None:
    """Each level works here, and hides what it should."""
    assert bubblewrap.try_level(level) is None


# -- limits and signals ----------------------------------------------------------------------------


@pytest.mark.item("bnd-l6")
@needs_sandbox
@every_level
def test_a_program_can_end_by_itself_within_its_grace_time(
    tmp_path: Path, level: SandboxLevel
) -> None:
    """SIGTERM reaches the program, and bubblewrap does not end before it."""
    code = (
        "import signal, sys, time\n"
        "def end(*_): print('saved', flush=True); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('up', flush=True)\n"
        "time.sleep(60)"
    )
    end = python(tmp_path, code, level=level, wall_s=1.5, grace_s=20)
    assert (end.how, end.code, end.stdout) == ("wall_timeout", 3, b"up\nsaved\n")


@pytest.mark.item("bnd-l6")
@needs_sandbox
def test_a_program_that_ignores_the_signal_is_killed(tmp_path: Path) -> None:
    """After the grace time, with everything that it started in other sessions."""
    code = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"subprocess.Popen(['sleep', '61.{os.getpid()}'], start_new_session=True)\n"
        "time.sleep(60)"
    )
    end = python(tmp_path, code, wall_s=1.0, grace_s=0.2)
    assert end.how == "wall_timeout"
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert f"sleep 61.{os.getpid()}" not in listed.stdout


@pytest.mark.item("bnd-l6")
@needs_sandbox
@pytest.mark.parametrize(
    ("code", "how", "value"),
    [
        ("import sys; sys.exit(3)", "exited", 3),
        ("import os; os.kill(os.getpid(), 9)", "signalled", 9),
        ("import os; os.abort()", "signalled", 6),
    ],
    ids=["code", "killed", "aborted"],
)
def test_how_a_program_ended_is_reported(tmp_path: Path, code: str, how: str, value: int) -> None:
    """Bubblewrap tells a signal as a code; here it is a signal again."""
    end = python(tmp_path, code)
    assert (end.how, end.code if how == "exited" else end.signal) == (how, value)


@pytest.mark.item("bnd-l6")
@needs_sandbox
@every_level
def test_standard_input_and_idle_limits_work(tmp_path: Path, level: SandboxLevel) -> None:
    """A large input arrives whole; silence ends a program."""
    code = "import sys; print(len(sys.stdin.read()))"
    end = python(tmp_path, code, level=level, stdin=b"x" * 300_000)
    assert end.stdout == b"300000\n"
    silent = python(tmp_path, "import time; time.sleep(60)", level=level, idle_s=1.0)
    assert silent.how == "idle_timeout"


@needs_sandbox
def test_a_text_without_an_interpreter_is_not_started(tmp_path: Path) -> None:
    """The C library would hand it to a shell, which nobody asked for."""
    (tmp_path / "agent").write_text("echo hello\n")
    (tmp_path / "agent").chmod(0o755)
    end = run(tmp_path, "./agent")
    assert (end.how, end.problem) == ("not_started", "not-startable")


# -- the data directory ----------------------------------------------------------------------------


@pytest.mark.item("bnd-l3")
@needs_sandbox
@every_level
def test_no_variable_leads_to_the_data_directory(tmp_path: Path, level: SandboxLevel) -> None:
    """Neither its own name nor a token reaches a program."""
    here = Stage({**os.environ, "LOOPWRIGHT_HOME": str(tmp_path), "LOOPWRIGHT_TOKEN": "t"})
    code = "import os; print([n for n in os.environ if n.endswith(('_HOME', '_TOKEN'))])"
    spec = f'command:{sys.executable} -c "{code}"'
    answer = here.performer.perform(job(tmp_path, agent=agent(spec), sandbox=level))
    done = asyncio.run(_answer(answer))
    assert isinstance(done, EffectSuccess), done
    assert "LOOPWRIGHT" not in done.output


async def _answer(answer: object) -> object:
    return await answer  # type: ignore[misc]


@pytest.mark.item("bnd-l3")
@needs_sandbox
@every_level
@pytest.mark.parametrize("named", ["SYSTEM", "OUT_FILE"])
def test_a_value_that_is_a_path_shows_nothing(
    tmp_path: Path, level: SandboxLevel, named: str
) -> None:
    """A path in the words of an author or an agent does not uncover a hidden file."""
    data, work = tmp_path / "data", tmp_path / "work"
    data.mkdir()
    work.mkdir()
    (data / "secret").write_text("canary")
    stage = Stage(dict(os.environ), sandbox=Sandbox(SandboxPolicy(hidden=(str(data),))))
    path = str(data / "secret")
    code = f"import os; print(os.path.exists({path!r}))"
    if named == "SYSTEM":
        spec = f'command:{sys.executable} -c "{code}"'
        what = job(work, agent=agent(spec, system=path), sandbox=level)
    else:
        call = CommandCall(argv=(sys.executable, "-c", code), timeout_ms=60_000)
        what = job(work, call, env={"OUT_FILE": path}, sandbox=level)
    answer = stage.perform(what)
    assert isinstance(answer, EffectSuccess), answer
    assert answer.output.strip() == "False"


@pytest.mark.item("bnd-l3")
@needs_sandbox
@every_level
def test_a_workspace_in_the_data_directory_is_refused(tmp_path: Path, level: SandboxLevel) -> None:
    """Unless it is one of the worktrees of runs."""
    policy = SandboxPolicy(hidden=(str(tmp_path),), workspaces=(str(tmp_path / "worktrees"),))
    inside, worktree = tmp_path / "results", tmp_path / "worktrees" / "run_1"
    for one in (inside, worktree):
        one.mkdir(parents=True)
    end = python(inside, "pass", level=level, policy=policy)
    assert (end.how, "no agent may see" in (end.error or "")) == ("not_started", True)
    assert python(worktree, "pass", level=level, policy=policy).code == 0


@pytest.mark.item("bnd-l3")
@pytest.mark.item("bnd-l3")
@needs_sandbox
@every_level
def test_the_data_directory_cannot_be_made_anew(tmp_path: Path, level: SandboxLevel) -> None:
    """Also where the folder around it is hidden, or private, and can be written: a program that
    names it finds an empty folder.
    """
    data, work = tmp_path / "data", tmp_path / "work"
    for folder in (data, work):
        folder.mkdir()
    (data / "secret").touch()
    code = f"import os; print(os.listdir({str(data)!r})); os.mkdir({str(data / 'made')!r})"
    policy = SandboxPolicy(hidden=(str(data),))
    end = python(work, code, level=level, policy=policy)
    assert (end.code, end.stdout) == (1, b"[]\n"), end.stderr_tail
    assert b"Read-only file system" in end.stderr_tail


@needs_sandbox
def test_a_missing_settings_folder_cannot_be_made(tmp_path: Path) -> None:
    """What Loopwright would read at its next start is not written by an agent."""
    own, work = tmp_path / "config" / "loopwright", tmp_path / "work"
    work.mkdir()
    end = python(
        work,
        f"import pathlib; pathlib.Path({str(own)!r}, 'config.toml').write_text('x')",
        policy=SandboxPolicy(hidden=(str(own),)),
    )
    assert end.code == 1
    assert not (own / "config.toml").exists()


# -- the workspace ---------------------------------------------------------------------------------


@pytest.mark.item("bnd-prf-2")
@needs_sandbox
@pytest.mark.parametrize("level", ["guard", "workspace"])
def test_a_workspace_in_a_folder_of_the_system_can_be_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: SandboxLevel
) -> None:
    """Such as /usr/src/app in a container. The files beside it cannot."""
    system, work = tmp_path / "system", tmp_path / "system" / "src" / "app"
    work.mkdir(parents=True)
    monkeypatch.setattr(sandbox_mounts, "_SYSTEM", (*sandbox_mounts._SYSTEM, str(system)))
    end = run(work, "sh", "-c", f"echo x > {work}/made; echo x > {system}/made", level=level)
    assert [one.name for one in work.iterdir()] == ["made"], end.stderr_tail
    assert [one.name for one in system.iterdir()] == ["src"]


@needs_sandbox
@pytest.mark.parametrize("level", ["guard", "workspace"])
@pytest.mark.parametrize("linked", [False, True], ids=["repository", "worktree"])
def test_commits_work(tmp_path: Path, level: SandboxLevel, linked: bool) -> None:
    """An agent commits, also in a worktree; at `workspace` it does not change hooks."""
    main = tmp_path / "main"
    _git(tmp_path, "init", "-q", str(main))
    _git(main, "commit", "-q", "--allow-empty", "-m", "first")
    work = tmp_path / "work" if linked else main
    if linked:
        _git(main, "worktree", "add", "-q", str(work))
    (work / "new.txt").write_text("new")
    own = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    added = run(work, "git", "add", "new.txt", level=level)
    assert added.code == 0, added.stderr_tail
    end = run(work, "git", *own, "commit", "-q", "-m", "second", level=level)
    assert end.code == 0, end.stderr_tail
    hook = f"open({str(main / '.git' / 'hooks' / 'pre-commit')!r}, 'w')"
    assert python(work, hook, level=level).code == (1 if level == "workspace" else 0)
    moved = f"import os; os.rename({str(main / '.git')!r}, {str(tmp_path / 'gone')!r})"
    if level == "workspace":
        assert python(work, moved, level=level).code == 1


def _git(folder: Path, *words: str) -> None:
    own = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *own, *words], cwd=folder, check=True, capture_output=True)


@needs_sandbox
@pytest.mark.parametrize("level", ["workspace", "readonly", "none"])
def test_temporary_files_are_private(tmp_path: Path, level: SandboxLevel) -> None:
    """What is written to the folder for temporary files is gone afterwards."""
    name = f"/tmp/loopwright-was-here-{os.getpid()}"
    end = python(tmp_path, f"open({name!r}, 'w').write('x'); print('ok')", level=level)
    assert end.stdout == b"ok\n", end.stderr_tail
    assert not Path(name).exists()


@needs_sandbox
@every_level
def test_an_interpreter_behind_a_link_starts_from_a_temporary_folder(
    tmp_path: Path, level: SandboxLevel
) -> None:
    """An environment of Python below the folder for temporary files works although it is protected:
    its `python` is a link, and nothing can be mounted on a link.
    """
    workspace = tmp_path / "work"
    workspace.mkdir()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        bin_folder = Path(folder, "env", "bin")
        bin_folder.mkdir(parents=True)
        linked = bin_folder / "python"
        linked.symlink_to(os.path.realpath(sys.executable))
        policy = SandboxPolicy(protected=(str(bin_folder.parent),))
        end = run(workspace, str(linked), "-c", "print('ok')", level=level, policy=policy)
    assert end.stdout == b"ok\n", end.stderr_tail


@needs_sandbox
@pytest.mark.parametrize("level", ["workspace", "readonly", "none"])
def test_hidden_folders_that_a_level_does_not_show_are_not_mounted(
    tmp_path: Path, level: SandboxLevel
) -> None:
    """Hundreds of data directories below the folder for temporary files cost no mounts."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        records = UserRecords(tmp_path / "records")
        for number in range(300):
            home = Path(folder, f"data-{number}")
            home.mkdir()
            (home / "loopwright.db").touch()
            records.add_data_directory(home)
        code = (
            f"import os; print(os.path.exists({folder!r}), len(open('/proc/mounts').readlines()))"
        )
        policy = SandboxPolicy(records=str(tmp_path / "records"))
        end = python(tmp_path, code, level=level, policy=policy)
    is_there, mounts = end.stdout.split()
    assert is_there == b"False", end.stderr_tail
    assert int(mounts) < 200


@needs_sandbox
@pytest.mark.parametrize("level", ["guard", "workspace", "readonly"])
def test_sockets_that_listen_are_hidden_wherever_they_are(
    monkeypatch: pytest.MonkeyPatch, level: SandboxLevel
) -> None:
    """A service that nobody knows, also one that takes messages without a connection; not those of
    the workspace, nor an agent for keys that is passed on.
    """
    monkeypatch.setattr(host_files, "_SETTLED_S", -60.0)
    monkeypatch.setattr(sandbox_mounts, "PRIVATE", ())
    names = ("unknown.sock", "messages.sock", "keys.sock", "work/own.sock")
    with ExitStack() as opened, tempfile.TemporaryDirectory(dir="/var/lib") as folder:
        (Path(folder) / "work").mkdir()
        for name in names:
            kind = socket.SOCK_DGRAM if name == "messages.sock" else socket.SOCK_STREAM
            one = opened.enter_context(socket.socket(socket.AF_UNIX, kind))
            one.bind(f"{folder}/{name}")
            if kind == socket.SOCK_STREAM:
                one.listen()
        code = (
            "import socket, sys\n"
            "for path in sys.argv[1:]:\n"
            "    kind = socket.SOCK_DGRAM if 'messages' in path else socket.SOCK_STREAM\n"
            "    try: socket.socket(socket.AF_UNIX, kind).connect(path); print('yes')\n"
            "    except OSError: print('no')\n"
        )
        program = ProgramStart(
            argv=(sys.executable, "-c", code, *(f"{folder}/{name}" for name in names)),
            cwd=f"{folder}/work",
            env={"PATH": os.environ["PATH"], "SSH_AUTH_SOCK": f"{folder}/keys.sock"},
        )
        end = asyncio.run(Sandbox().run(program, Confinement(level=level)))
        while end.problem == "resource":  # a socket of another worker process has just gone
            end = asyncio.run(Sandbox().run(program, Confinement(level=level)))
    assert end.stdout.split() == [b"no", b"no", b"yes", b"yes"], end


@needs_sandbox
def test_a_socket_that_vanishes_before_it_is_hidden_is_a_passing_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is started again after a moment; Git is started again at once."""
    with tempfile.TemporaryDirectory(dir="/var/lib") as folder:
        gone = f"{folder}/gone/x.sock"
        listed = [gone]
        monkeypatch.setattr(sandbox_mounts, "_other_services", lambda view, files: listed)
        hide = sandbox_mounts._Mounts.hide

        def hidden(mounts: sandbox_mounts._Mounts, path: str, *, closed: bool = False) -> None:
            hide(mounts, path, closed=closed)
            if path == gone:
                mounts.at[path] = ("--ro-bind", os.devnull, path)

        monkeypatch.setattr(sandbox_mounts._Mounts, "hide", hidden)
        end = run(tmp_path, "/bin/true", level="workspace")
    assert (end.how, end.problem) == ("not_started", "resource"), end


@pytest.mark.parametrize(
    ("there", "source", "why", "passes"),
    [
        ("nothing", "/oldroot/dev/null", "No such file or directory", True),
        ("file", "/oldroot/dev/null", "No such file or directory", True),
        ("link", "/oldroot/dev/null", "No such file or directory", False),
        ("file", "/oldroot/dev/null", "Permission denied", False),
        ("file", "/oldroot/etc/hosts", "No such file or directory", False),
    ],
    ids=["gone", "made anew", "a link to nothing", "not allowed", "another source"],
)
def test_a_socket_that_is_made_anew_while_it_is_hidden_is_a_passing_problem(
    there: str, source: str, why: str, passes: bool, tmp_path: Path
) -> None:
    """A server that starts again replaces its socket; the path exists before and after."""
    place = tmp_path / "x.sock"
    if there == "file":
        place.touch()
    elif there == "link":
        place.symlink_to(tmp_path / "missing")
    words = f"Unable to mount source on destination: {why}"
    line = f"bwrap: Can't bind mount {source} on /newroot{place}: {words}"
    assert bubblewrap._has_vanished(line) is passes


def test_hundreds_of_sockets_are_found_fast() -> None:
    """Reading the table of the kernel costs little at each start."""
    with ExitStack() as opened, tempfile.TemporaryDirectory(dir="/tmp") as folder:
        for number in range(300):
            one = opened.enter_context(socket.socket(socket.AF_UNIX))
            one.bind(f"{folder}/{number}")
            one.listen()
        begin = time.perf_counter()
        found = {*listening_sockets()}
        assert time.perf_counter() - begin < 0.5
        assert {f"{folder}/{number}" for number in range(300)} <= found


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.item("bnd-l5")
@needs_sandbox
@pytest.mark.parametrize(
    ("level", "code", "says"),
    [
        ("none", "open('notes.txt')", "notes.txt exists, but sandbox level `none` hides it"),
        (
            "readonly",
            "open('new.txt', 'w')",
            "new.txt cannot be changed at sandbox level `readonly`",
        ),
        ("workspace", "open('/etc/new.txt', 'w')", "/etc/new.txt cannot be changed at sandbox"),
        ("guard", "open('loopwright.toml', 'w')", "loopwright.toml cannot be changed at sandbox"),
    ],
    ids=["hidden", "locked", "outside", "guard"],
)
def test_a_failure_names_the_level(
    tmp_path: Path, level: SandboxLevel, code: str, says: str
) -> None:
    """One line says what is hidden or locked, by which level, and what to do."""
    for name in ("notes.txt", "loopwright.toml"):
        (tmp_path / name).write_text("")
    end = python(tmp_path, code, level=level)
    last = end.stderr_tail.decode().strip().splitlines()[-1]
    assert last.startswith("loopwright: ")
    assert says in last
    assert "--sandbox " in last


@pytest.mark.item("bnd-l5")
@needs_sandbox
@every_level
def test_a_failure_says_nothing_about_hidden_files(tmp_path: Path, level: SandboxLevel) -> None:
    """An agent cannot find out by it which files the data directory has."""
    data, work = tmp_path / "data", tmp_path / "work"
    data.mkdir()
    work.mkdir()
    (data / "secret").touch()
    policy = SandboxPolicy(hidden=(str(data),))
    end = python(work, f"open({str(data / 'secret')!r})", level=level, policy=policy)
    assert end.code == 1
    assert b"loopwright: " not in end.stderr_tail


@pytest.mark.item("bnd-l5")
@needs_sandbox
@every_level
@pytest.mark.parametrize("argv", [("./agent.py",), ("python3", "agent.py")], ids=["env", "named"])
def test_a_program_of_the_workspace_starts_at_every_level(
    tmp_path: Path, level: SandboxLevel, argv: tuple[str, ...]
) -> None:
    """With its interpreter, wherever that is installed, and behind a shim of a version manager."""
    (tmp_path / "agent.py").write_text("#!/usr/bin/env python3\nprint('started')\n")
    (tmp_path / "agent.py").chmod(0o755)
    end = run(tmp_path, *argv, level=level)
    assert end.stdout == b"started\n", end.stderr_tail


@pytest.mark.item("bnd-l5")
@needs_sandbox
@pytest.mark.parametrize("level", ["readonly", "none"])
def test_an_interpreter_that_is_a_script_is_shown_or_named(
    tmp_path: Path, level: SandboxLevel
) -> None:
    """A chain of interpreters is followed. One behind a link to a folder is hidden: the failure
    names the level and what to do.
    """
    work, tools = tmp_path / "work", tmp_path / "tools"
    for folder in (work, tools):
        folder.mkdir()
    (tmp_path / "link").symlink_to(tools)
    for file, interpreter in (
        (tools / "inner", "/bin/sh"),
        (tools / "outer", tools / "inner"),
        (work / "agent", tools / "outer"),
        (work / "other", tmp_path / "link" / "inner"),
    ):
        file.write_text(f"#!{interpreter}\necho started\n")
        file.chmod(0o755)
    assert run(work, "./agent", level=level).stdout == b"started\n"
    end = run(work, "./other", level=level)
    assert (end.how, end.problem) == ("not_started", "not-startable")
    assert end.error is not None
    assert f"sandbox level `{level}` hides a file that it needs" in end.error
    assert "--sandbox " in end.error
    private = run(work, "./other", level=level, policy=SandboxPolicy(hidden=(str(tools),)))
    assert private.error is not None
    assert "hides" not in private.error, "whether a private file exists is not said"


@pytest.mark.item("bnd-l5")
@needs_sandbox
@pytest.mark.parametrize("level", ["readonly", "none"])
@pytest.mark.parametrize("commands", ["all", "reading", "none"])
def test_a_program_of_npm_in_a_hidden_home_starts(
    tmp_path: Path, level: SandboxLevel, commands: Commands
) -> None:
    """Its link lies in a folder of the PATH, which is hidden by itself, inside of its package."""
    package, links = tmp_path / "node_modules" / "agent", tmp_path / "node_modules" / ".bin"
    for folder in (package, links, tmp_path / "work"):
        folder.mkdir(parents=True)
    (package / "agent.py").write_text(f"#!{sys.executable}\nprint('started')\n")
    (package / "agent.py").chmod(0o755)
    (links / "agent").symlink_to("../agent/agent.py")
    env = {"PATH": f"{links}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    program = ProgramStart(argv=("agent",), cwd=str(tmp_path / "work"), env=env)
    end = asyncio.run(Sandbox().run(program, Confinement(level=level, commands=commands)))
    assert end.stdout == b"started\n", end


# -- without bubblewrap, and as root ---------------------------------------------------------------


@pytest.mark.item("bnd-l4")
@pytest.mark.parametrize("optional", [True, False], ids=["own", "server"])
@every_level
def test_without_bubblewrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: SandboxLevel, optional: bool
) -> None:
    """`guard` is left out where that is allowed; everything else is not started."""
    monkeypatch.setattr(bubblewrap, "works", lambda: "bwrap is not installed")
    policy = SandboxPolicy(guard_is_optional=optional)
    end = python(tmp_path, "print('started')", level=level, policy=policy)
    if level == "guard" and optional:
        assert end.stdout == b"started\n"
    else:
        assert (end.how, end.problem) == ("not_started", "no-sandbox")


@pytest.mark.item("bnd-l7")
@pytest.mark.parametrize(
    ("user", "permission", "chosen", "level", "own"),
    [
        (0, "edit", "guard", "workspace", False),
        (0, "read-only", "guard", "readonly", False),
        (0, "edit", "none", "none", False),
        (0, "edit", "off", "off", True),
        (1000, "edit", "guard", "guard", True),
    ],
    ids=["root", "root-reads", "root-none", "root-off", "user"],
)
def test_codex_as_root_has_our_sandbox_alone(
    monkeypatch: pytest.MonkeyPatch,
    user: int,
    permission: str,
    chosen: SandboxLevel,
    level: SandboxLevel,
    own: bool,
) -> None:
    """Its own cannot start inside of ours there, so ours does as much as its own would have."""
    monkeypatch.setattr(coding_agents, "works", lambda: None)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    agents = coding_agents.CodingAgents(None, None, {})  # type: ignore[arg-type]
    what = job(Path("/"), sandbox=chosen)
    found = agents._confinement(what, agent("codex", permission=permission), "codex")
    assert found.level == level
    assert coding_agents._replaces_own_sandbox(found.level, has_own=True) is not own


@pytest.mark.item("bnd-l7")
@pytest.mark.parametrize(
    "where", ["home/.claude/settings.json", "work/.claude/settings.local.json"]
)
@pytest.mark.parametrize("enabled", [True, False])
def test_claude_as_root_starts_without_a_sandbox_that_its_settings_switch_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, enabled: bool
) -> None:
    """It is off by default; where it is on, ours takes its place at `workspace` at least."""
    monkeypatch.setattr(coding_agents, "works", lambda: None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    file = tmp_path / where
    file.parent.mkdir(parents=True)
    (tmp_path / "work").mkdir(exist_ok=True)
    file.write_text(json.dumps({"sandbox": {"enabled": enabled}}))
    agents = coding_agents.CodingAgents(None, None, {"HOME": str(tmp_path / "home")})  # type: ignore[arg-type]
    found = agents._confinement(job(tmp_path / "work", sandbox="guard"), agent("claude"), "claude")
    assert found.level == ("workspace" if enabled else "guard")
    wanted = CommandLineRequest(prompt="x", agent=agent("claude"), own_sandbox=not enabled)
    assert ('{"sandbox":{"enabled":false}}' in command_line("claude", wanted).argv) is enabled


@pytest.mark.item("bnd-l4")
def test_a_refused_start_is_a_failure_that_names_the_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call fails with the reason and the remedy."""
    monkeypatch.setattr(
        bubblewrap, "works", lambda: f"bwrap is not installed; {bubblewrap.INSTALL}"
    )
    answer = Stage().perform(job(tmp_path, agent=agent("command:true"), sandbox="workspace"))
    assert isinstance(answer, EffectFailure)
    assert "sandbox level `workspace` cannot be enforced" in answer.error.detail
    assert "apt install bubblewrap" in answer.error.detail
