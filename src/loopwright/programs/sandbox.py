"""Programs behind a wall: bubblewrap, where it is installed and works.

A level below `full` shows a program a machine on which nothing can be written and hardly anything
can be started: the workspace read-only or not at all, no other folder of a person, and of all
programs only the one itself and those that the level allows. What it writes elsewhere (its home,
the folder for temporary files) is in memory and gone afterwards, but for its own settings.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from loopwright.model.access import READ_COMMANDS, Reach, is_offline, reach_of
from loopwright.model.plan import Agent
from loopwright.programs.environment import CannotStart, resolve_program
from loopwright.programs.process import (
    OnRunning,
    OnStderr,
    OnStdout,
    Program,
    ProgramEnd,
    run_program,
)
from loopwright.programs.seccomp import filter_program

NAME = "bwrap"
INSTALL = "install bubblewrap (Debian and Ubuntu: apt install bubblewrap)"
_PROBE_SECONDS = 10.0
_MOST_LINKS = 40
_SHELLS = ("sh", "bash", "dash")
# Where programs are that a person did not install by hand.
_BINARIES = (
    *("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"),
    *("/usr/games", "/snap/bin"),
)
# Folders of people and of the moment; nothing in them is needed to start a program.
_PRIVATE = ("/home", "/root", "/tmp", "/var/tmp", "/mnt", "/media", "/srv", "/run", "/var/run")
# Parts of the kernel that root may write to without any capability; read-only for everybody.
_KERNEL = (
    *("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi"),
    *("/proc/scsi", "/proc/mtrr", "/proc/driver"),
)
_KERNEL_SECRETS = ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug")
# Devices that builds use. Others stay hidden: root could write to disks as a whole.
_DEVICES = (
    "/dev/dri",
    "/dev/kvm",
    "/dev/fuse",
    "/dev/nvidiactl",
    "/dev/nvidia0",
    "/dev/nvidia-uvm",
)
_DATA_DIRECTORY = "LOOPWRIGHT_HOME"
_COMMON = (
    "--die-with-parent",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
    *("--cap-drop", "ALL"),  # root would keep them, and with them every wall can be moved
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """How a program is held."""

    reach: Reach
    keeps: tuple[str, ...] = ()  # folders and files of its own that it may write to
    shows: tuple[str, ...] = ()  # further ones that it may read
    offline: bool = False  # it has a network of its own, with nothing in it
    start: str = ""  # a folder of the workspace to start in, if not the workspace itself


@cache
def works(path: str | None = None) -> str | None:
    """None when programs can be held here, else why not. Found out by trying."""
    file = shutil.which(NAME, path=path)
    if file is None:
        return f"{NAME} is not there; {INSTALL}"
    trial = [file, "--ro-bind", "/", "/", *_COMMON, "--dev", "/dev", "--proc", "/proc"]
    trial += ["--tmpfs", "/tmp", "--", "/bin/sh", "-c", "exit 7"]
    try:
        done = subprocess.run(
            trial,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{NAME} cannot be started: {error}"
    if done.returncode == 7:
        return None
    said = done.stderr.decode(errors="replace").strip()[-200:]
    return f"{NAME} does not work here: {said or f'exit code {done.returncode}'}"


def hold_below(agent: Agent, *values: str) -> Hold | None:
    """How a plain program is held: below `full` always, else only to be without a network. Those
    of the values that are files are shown to it.
    """
    offline = is_offline(agent)
    if agent.access in (None, "full") and not offline:
        return None
    shown = tuple(one for one in values if os.path.isabs(one) and os.path.exists(one))
    return Hold(reach=reach_of(agent), shows=shown, offline=offline)


async def run_held(
    program: Program,
    hold: Hold | None,
    *,
    on_stdout: OnStdout | None = None,
    on_stderr: OnStderr | None = None,
    on_running: OnRunning | None = None,
) -> ProgramEnd:
    """Run a program, behind the wall if it is to be held; never without one that was wanted."""
    if hold is not None:
        try:
            program = held(program, hold)
        except CannotStart as why:
            return ProgramEnd(how="not_started", error=str(why))
    return await run_program(
        program, on_stdout=on_stdout, on_stderr=on_stderr, on_running=on_running
    )


def held(program: Program, hold: Hold) -> Program:
    """The program as bubblewrap starts it; CannotStart when that cannot be."""
    problem = works()
    if problem is not None:
        raise CannotStart("not-startable", problem)
    if not program.argv:
        raise CannotStart("program-not-found", "the command is empty")
    cwd = os.path.abspath(program.cwd)
    if not os.path.isdir(cwd):
        raise CannotStart("workspace-gone", f"the directory {cwd} does not exist")
    if cwd == os.sep:
        raise CannotStart("not-startable", "a program in the root folder cannot be held")
    file = resolve_program(program.argv[0], cwd, program.env.get("PATH"))
    env = dict(program.env)
    data = os.path.realpath(env.pop(_DATA_DIRECTORY, os.sep))
    wall = [*_wall(file, cwd, env, hold, data), "--chdir", hold.start or cwd]
    bubblewrap = shutil.which(NAME)
    assert bubblewrap is not None, "it works"
    argv = (bubblewrap, *wall, "--", file, *program.argv[1:])
    return replace(program, argv=argv, env=env, call_filter=filter_program())


def _wall(file: str, cwd: str, env: Mapping[str, str], hold: Hold, data: str) -> Iterator[str]:
    yield from ("--ro-bind", "/", "/", *_COMMON, *(("--unshare-net",) if hold.offline else ()))
    yield from ("--dev", "/dev", "--proc", "/proc")
    yield from _bound("--ro-bind-try", _KERNEL)
    for secret in _KERNEL_SECRETS:
        if os.path.exists(secret):
            yield from ("--ro-bind", os.devnull, secret)
    mask = () if data == os.sep or not os.path.isdir(data) else ("--tmpfs", data)
    if hold.reach.writes:
        yield from _bound("--dev-bind-try", _DEVICES)
        home = env.get("HOME", "")
        caches = (os.path.join(home, ".cache"),) if os.path.isabs(home) else ()
        yield from _bound("--bind-try", ("/tmp", "/var/tmp", *caches))
        yield from _masked(mask, cwd, ("--bind", cwd, cwd))
        yield from _bound("--ro-bind-try", (os.path.join(cwd, ".loopwright"),))
        yield from _bound("--bind-try", _made(hold.keeps))
    else:
        yield from _reading(file, cwd, env, hold, mask)
    if mask:
        inside = (one for one in hold.shows if one.startswith(f"{data}{os.sep}"))
        yield from _bound("--ro-bind-try", inside)
        yield from ("--remount-ro", data)


def _masked(mask: tuple[str, ...], cwd: str, binding: tuple[str, ...]) -> tuple[str, ...]:
    """What binds the workspace, and what hides the data directory around or inside of it."""
    around = bool(mask) and f"{os.path.realpath(cwd)}{os.sep}".startswith(f"{mask[-1]}{os.sep}")
    return (*mask, *binding) if around else (*binding, *mask)


def _reading(
    file: str, cwd: str, env: Mapping[str, str], hold: Hold, mask: tuple[str, ...]
) -> Iterator[str]:
    """The wall around a program that writes nothing but its own settings."""
    hidden = _real(*_PRIVATE, *_BINARIES, *_folders(env), *_path(env))
    for folder in hidden:
        yield from ("--tmpfs", folder)
    names = os.path.realpath("/etc/resolv.conf")  # often below /run, which is hidden
    shown = (*pieces_of(file), *_commands(hold.reach), names, *hold.shows)
    yield from _bound("--ro-bind-try", _outermost(_uncovered(shown, hidden)))
    if hold.reach.reads:
        yield from _masked(mask, cwd, ("--ro-bind", cwd, cwd))
    else:
        yield from _masked(mask, cwd, ("--tmpfs", cwd))
        yield from ("--remount-ro", cwd)
        # The program may be in the workspace itself; it is seen, and nothing beside it.
        own = (file, os.path.realpath(file))
        yield from _bound("--ro-bind-try", (one for one in own if one.startswith(f"{cwd}{os.sep}")))
    yield from _bound("--bind-try", _made(hold.keeps))


def _uncovered(places: Iterable[str], hidden: Sequence[str]) -> Iterator[str]:
    """Those of the places that would not be seen otherwise, behind the links of their folders. What
    is seen anyway is left alone: where nothing can be written, no place can be made for it either.
    """
    for place in places:
        folder, name = os.path.split(os.path.normpath(place))
        there = os.path.join(os.path.realpath(folder), name)
        if any(there == one or there.startswith(f"{one}{os.sep}") for one in hidden):
            yield there


def _outermost(places: Iterable[str]) -> list[str]:
    """Places without those that lie in another of them: there they are seen as they are, links
    among them.
    """
    found = sorted({os.path.normpath(one) for one in places if os.path.lexists(one)})
    kept: list[str] = []
    for one in found:
        if not any(one.startswith(f"{outer}{os.sep}") for outer in kept):
            kept.append(one)
    return kept


def _bound(how: str, places: Iterable[str]) -> Iterator[str]:
    for place in dict.fromkeys(places):
        yield from (how, place, place)


def _folders(env: Mapping[str, str]) -> list[str]:
    """The folders of the person and of the moment, as the surroundings name them."""
    return [env[name] for name in ("HOME", "TMPDIR") if os.path.isabs(env.get(name, ""))]


def _path(env: Mapping[str, str]) -> list[str]:
    return [one for one in env.get("PATH", "").split(os.pathsep) if os.path.isabs(one)]


def _real(*folders: str) -> list[str]:
    """Folders that exist, behind their links, outer ones first; the root is none of them."""
    found = {os.path.realpath(one) for one in folders if os.path.isdir(one)}
    return sorted(found - {os.sep}, key=lambda one: (one.count(os.sep), one))


def _made(folders: Sequence[str]) -> Sequence[str]:
    """Folders of a program's own, made where they are missing: behind the wall it could not."""
    for folder in folders:
        if not os.path.splitext(folder)[1]:
            Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)
    return folders


def _commands(reach: Reach) -> Iterator[str]:
    """The programs that may be started, and the shells that coding agents start them with."""
    if reach.commands != "reading":
        return
    for name in (*READ_COMMANDS, *_SHELLS):
        for folder in _BINARIES:
            file = os.path.join(folder, name)
            if os.path.isfile(file):
                yield file


def pieces_of(file: str) -> Iterator[str]:
    """What a program needs of itself: its file behind all links, the package around it, and the
    program that its first line names.
    """
    for one in (file, *_interpreters(file)):
        for link in _links(one):
            yield link
            yield from _package(link)


def _links(file: str) -> Iterator[str]:
    """A file, and what stands behind each of its links."""
    for _ in range(_MOST_LINKS):
        yield file
        try:
            file = os.path.normpath(os.path.join(os.path.dirname(file), os.readlink(file)))
        except OSError:
            break
    yield os.path.realpath(file)


def _package(file: str) -> Iterator[str]:
    """The package that a file belongs to, as npm and Python lay them out."""
    parts = Path(file).parts
    if "node_modules" in parts:
        last = len(parts) - 1 - parts[::-1].index("node_modules")
        yield str(Path(*parts[: last + 1]))
    folder = Path(file).parent
    if folder.name == "bin":
        # Of a Python and of its environments; what else stands beside it stays hidden.
        yield from (str(folder.parent / name) for name in ("pyvenv.cfg", "lib", "lib64"))


def _interpreters(file: str) -> list[str]:
    """What the first line of a script starts; behind `env`, the program that it looks up."""
    try:
        with open(file, "rb") as stream:
            first = stream.readline(4_096)
    except OSError:
        return []
    if not first.startswith(b"#!"):
        return []
    words = first[2:].decode(errors="replace").split()
    if words and Path(words[0]).name == "env":
        named = next((w for w in words[1:] if not w.startswith("-") and "=" not in w), None)
        found = shutil.which(named) if named else None
        return [words[0], *([found] if found else [])]
    return words[:1]
