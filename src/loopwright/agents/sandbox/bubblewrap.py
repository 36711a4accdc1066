"""Sandboxes: every program of a run is started here, at the level that applies to it.

The sandbox is bubblewrap: namespaces for processes, no capabilities, a filter of system calls, and
a view of the files that depends on the level (see `mounts`). A level that cannot be enforced is
refused. Only `guard` may be omitted if bubblewrap does not work, and only if the policy of the
process allows it. `explain_failure` says which file a program needed in a sandbox, and which level
hides it.
"""

import errno
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Protocol

from loopwright import host
from loopwright.agents.processes.process import (
    OnRunning,
    OnStderr,
    OnStdout,
    ProgramEnd,
    ProgramStart,
    open_filter,
    run_program,
)
from loopwright.agents.program_files import (
    CannotStart,
    interpreters,
    is_startable,
    resolve_program,
    without_shims,
)
from loopwright.agents.sandbox.git_settings import protect_git_settings
from loopwright.agents.sandbox.host_files import (
    RememberedArguments,
    is_within,
    is_within_any,
)
from loopwright.agents.sandbox.mounts import VARIABLES, SandboxView, file_arguments
from loopwright.agents.sandbox.seccomp import filter_program
from loopwright.agents.user_records import UserRecords
from loopwright.model.access import Commands, is_offline, reach_of
from loopwright.model.patterns import LazyPattern
from loopwright.model.plan import Agent
from loopwright.model.sandbox import DEFAULT_SANDBOX, SandboxLevel, effective_level

_LAST_BYTES = 4_000
_NAME = r"(?P<name>[^\s:'\"‘’`]+)"
_MISSING = (
    LazyPattern(rf"{_NAME}['\"’`]?: (?:No such file or directory|(?:command )?not found)"),
    LazyPattern(r"No such file or directory: ['\"](?P<name>[^'\"]+)"),
    LazyPattern(r"(?:can't open file|Cannot find module) ['\"](?P<name>[^'\"]+)"),
)
_LOCKED = (
    LazyPattern(rf"{_NAME}['\"’`]?: Read-only file system"),
    LazyPattern(r"Read-only file system: ['\"](?P<name>[^'\"]+)"),
)
# The next level at which more can be changed.
_WEAKER = {
    "none": "workspace",
    "readonly": "workspace",
    "workspace": "guard",
    "guard": "off",
    "off": "off",
}


def explain_failure(
    level: SandboxLevel,
    stderr: bytes,
    *,
    cwd: str,
    env: Mapping[str, str],
    hidden: Iterable[str],
) -> str | None:
    """One line about the last file that a program missed, if its sandbox hides or locks it. Files
    in `hidden` are never named: an agent could find out which of them exist.
    """
    secret = [os.path.realpath(one) for one in hidden]
    text = stderr[-_LAST_BYTES:].decode(errors="replace")
    for name in _named(text, _MISSING) if level != "guard" else ():
        path = _existing(name, cwd, env)
        if path and not is_within_any(os.path.realpath(path), secret):
            weaker = "readonly" if level == "none" else "guard"
            return f"{path} exists, but sandbox level `{level}` hides it; use `--sandbox {weaker}`"
    for name in _named(text, _LOCKED):
        path = os.path.normpath(os.path.join(cwd, name))
        is_secret = is_within_any(os.path.realpath(path), secret)
        if not is_secret and (level != "guard" or _can_change(path)):
            weaker = _WEAKER[level]
            return f"{path} cannot be changed at sandbox level `{level}`; use `--sandbox {weaker}`"
    return None


def _can_change(path: str) -> bool:
    """Whether the user can change or create a file outside of the sandbox."""
    return os.access(path if os.path.exists(path) else os.path.dirname(path), os.W_OK)


def _named(text: str, patterns: Iterable[LazyPattern]) -> Iterator[str]:
    """The names in such messages, the last one first."""
    found = [one for pattern in patterns for one in pattern.finditer(text)]
    return (one["name"] for one in sorted(found, key=lambda one: one.start(), reverse=True))


def _existing(name: str, cwd: str, env: Mapping[str, str]) -> str | None:
    """The file that is meant, if it exists outside of the sandbox."""
    path = os.path.normpath(os.path.join(cwd, name))
    if os.path.exists(path):
        return path
    return shutil.which(name, path=env.get("PATH")) if "/" not in name else None


NAME = "bwrap"
INSTALL = "install bubblewrap (Debian and Ubuntu: apt install bubblewrap)"
DATA_VARIABLES = ("LOOPWRIGHT_HOME", "LOOPWRIGHT_TOKEN", "LOOPWRIGHT_TOKEN_FILE")
"""Variables that lead to Loopwright's own files; a program in a sandbox gets none of them."""
_PROBE_SECONDS = 10.0
_MOST_WORKSPACES = 10_000  # of runs, whose folders are remembered
_COMMON = (
    "--die-with-parent",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
    *("--cap-drop", "ALL"),  # root would keep them, and with them every mount can be removed
)
# Where tools store downloads; at `workspace` that is the private folder for temporary files.
_CACHES = ("PIP_CACHE_DIR", "UV_CACHE_DIR", "npm_config_cache", "YARN_CACHE_FOLDER", "GOCACHE")
_FAILED = b"bwrap: "
_NOT_FOUND = LazyPattern("bwrap: execvp (.+): No such file or directory")
# Temporary conditions: no processes, namespaces, memory or descriptors left.
_RUN_ID = LazyPattern(r"run_[0-9a-z]+")
_SHORTAGES = tuple(
    os.strerror(number)
    for number in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC)
)
# A socket that was to be hidden ended in the moment before; the next start does not name it.
_NO_PLACE = LazyPattern(
    r"Can't (?:bind mount .+ on /newroot|create file at |mkdir parents for |mkdir )(/[^:]+): "
)
_HIDING = "bwrap: Can't bind mount /oldroot/dev/null on /newroot"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxPolicy:
    """What applies to all programs that a process starts."""

    default: SandboxLevel = DEFAULT_SANDBOX  # of runs that have no level recorded
    hidden: tuple[str, ...] = ()  # the data directory, settings, tokens: invisible in every sandbox
    workspaces: tuple[str, ...] = ()  # folders inside of hidden ones that have workspaces in them
    artifacts: str = ""  # a folder inside of a hidden one that has a folder for each run
    protected: tuple[str, ...] = ()  # files that are read-only in every sandbox
    guard_is_optional: bool = True  # where bubblewrap does not work, `guard` is `off`
    records: str = ""  # where data directories and the work of agents are recorded (user_records)
    fixed_workspaces: bool = False  # a workspace that a link has replaced is refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """How one program is confined."""

    level: SandboxLevel
    commands: Commands = "all"  # which other programs it may start, at `readonly`
    configuration: tuple[str, ...] = ()  # folders and files of its own that it may change
    shown: tuple[str, ...] = ()  # files that Loopwright made for it
    offline: bool = False  # it has its own network, with nothing in it
    start: str = ""  # a folder of the workspace to start in, if not the workspace itself
    agent: str = ""  # the spec of the agent whose program it is; empty for other programs


class ProgramApprovals(Protocol):
    """Programs that an admin approved as agents of a server."""

    def files(self) -> tuple[str, ...]:
        """Their files, which no program changes."""

    def problem(self, spec: str, run: str) -> str | None:
        """Why the program of an agent may not be started, as a message."""


@cache
def works(path: str | None = None) -> str | None:
    """None if bubblewrap works for this user, else why not. It is tested once."""
    problem = host.sandbox_problem()
    if problem is not None:
        return problem
    file = host.find_program(NAME, path)
    if file is None:
        return f"{NAME} is not installed; {INSTALL}"
    trial = [file, "--ro-bind", "/", "/", *_COMMON, "--dev", "/dev", "--proc", "/proc"]
    trial += ["--tmpfs", "/tmp", "--", "/bin/sh", "-c", "exit 7"]
    try:
        done = _probe(trial)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{NAME} cannot be started: {error}"
    if done.returncode == 7:
        return None
    errors = done.stderr.decode(errors="replace").strip()[-200:]
    return f"{NAME} does not work here: {errors or f'exit code {done.returncode}'}"


def _probe(argv: list[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_PROBE_SECONDS,
        check=False,
    )


@cache
def _bubblewrap() -> str | None:
    """The file of bubblewrap; looked up once."""
    return host.find_program(NAME)


def remedy() -> str:
    """What a user can do where the sandbox does not work."""
    return INSTALL if host.is_linux() else host.NEEDS_LINUX


@cache
def sets_modes(file: str) -> bool:
    """Whether this bubblewrap can set the mode of an empty folder, as it can since version 0.5."""
    try:
        done = _probe([file, "--help"])
    except (OSError, subprocess.SubprocessError):
        return False
    return b"--perms" in done.stdout


def try_level(level: SandboxLevel) -> str | None:
    """None if a program can be started at a level and does not see what is hidden from it, else why
    not.
    """
    with tempfile.TemporaryDirectory(prefix="loopwright-try-") as folder:
        workspace, hidden = Path(folder, "workspace"), Path(folder, "hidden")
        for one in (workspace, hidden):
            one.mkdir()
        Path(hidden, "secret").touch()
        own = Sandbox(SandboxPolicy(hidden=(str(hidden),)))
        # The shell itself reports what it sees: at `none` there is no other program.
        script = f"[ ! -e {shlex.quote(str(hidden / 'secret'))} ] && exit 7"
        program = ProgramStart(
            argv=("/bin/sh", "-c", script),
            cwd=str(workspace),
            env={"PATH": os.defpath, "HOME": str(workspace)},
        )
        try:
            done = own.ask(program, Confinement(level=level), _PROBE_SECONDS)
        except (CannotStart, OSError, subprocess.SubprocessError) as error:
            return f"cannot be enforced: {error}"
    if done.returncode == 7:
        return None
    errors = done.stderr.decode(errors="replace").strip()[-200:]
    return f"cannot be enforced: {errors or f'exit code {done.returncode}'}"


def confinement_of(
    agent: Agent,
    chosen: SandboxLevel | None,
    *,
    default: SandboxLevel = DEFAULT_SANDBOX,
    configuration: tuple[str, ...] = (),
    shown: tuple[str, ...] = (),
) -> Confinement:
    """How the program of an agent is confined. Files in `shown` are visible to it.

    If bubblewrap does not work, the access of a role does not count here: it was refused before the
    start, or the program enforces it by itself.
    """
    offline = is_offline(agent)
    access = agent.access if works() is None else None
    return Confinement(
        level=effective_level(
            chosen, requested=agent.sandbox, access=access, offline=offline, default=default
        ),
        commands="all" if agent.access in (None, "full") else reach_of(agent).commands,
        configuration=configuration,
        shown=tuple(one for one in shown if os.path.isabs(one) and os.path.exists(one)),
        offline=offline,
        agent=agent.spec or "",
    )


class Sandbox:
    """Starts the programs of runs. There is no other way to start one."""

    def __init__(self, policy: SandboxPolicy | None = None) -> None:
        self.policy = policy or SandboxPolicy()
        self.approvals: ProgramApprovals | None = None  # at a server
        self._workspaces: dict[tuple[str, str], tuple[int, int]] = {}
        self._arguments = RememberedArguments()

    async def run(
        self,
        program: ProgramStart,
        confinement: Confinement,
        *,
        on_stdout: OnStdout | None = None,
        on_stderr: OnStderr | None = None,
        on_running: OnRunning | None = None,
    ) -> ProgramEnd:
        """Run a program in its sandbox. What cannot be confined as it should be is not started."""
        end = ProgramEnd(how="not_started")
        try:
            with self.confined(program, confinement) as started, self.record_work(started.cwd):
                end = await run_program(
                    started, on_stdout=on_stdout, on_stderr=on_stderr, on_running=on_running
                )
        except CannotStart as why:  # or, after its end, it is refused for what it changed
            return replace(end, how="not_started", code=None, error=str(why))
        return self._explained(end, program, confinement) if started.in_sandbox else end

    def ask(
        self, program: ProgramStart, confinement: Confinement, seconds: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a program for a moment in its sandbox, to see what it answers."""
        with (
            self.confined(program, confinement) as started,
            open_filter(started.call_filter) as fds,
        ):
            words = [word for one in fds for word in ("--seccomp", str(one))]
            return subprocess.run(
                [started.argv[0], *words, *started.argv[1:]],
                cwd=None if started.in_sandbox else started.cwd,
                env=dict(started.env),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=seconds,
                check=False,
                pass_fds=fds,
            )

    @contextmanager
    def record_work(self, workspace: str) -> Iterator[None]:
        """Record when a program or a file tool of an agent works in a workspace: settings that it
        leaves there are not trusted.
        """
        if not self.policy.records:
            yield
            return
        with UserRecords(self.policy.records).working(workspace):
            yield

    # -- workspaces ----------------------------------------------------------------------------

    def note_workspace(self, run: str, workspace: str) -> None:
        """Remember which folder the workspace of a run is, when its first effect is performed."""
        if (run, workspace) in self._workspaces or os.path.realpath(workspace) != workspace:
            return
        with suppress(OSError):
            found = os.lstat(workspace)
            while len(self._workspaces) >= _MOST_WORKSPACES:
                self._workspaces.pop(next(iter(self._workspaces)))
            self._workspaces[run, workspace] = found.st_dev, found.st_ino

    def workspace_identity(self, run: str, workspace: str) -> tuple[int, int] | None:
        """The device and inode of the workspace of a run at its first effect in this process."""
        return self._workspaces.get((run, workspace))

    def hidden_paths(self, workspace: str) -> tuple[str, ...]:
        """Folders and files that no agent in a workspace sees, as they are now."""
        return (*self.policy.hidden, *self._other_data_directories(workspace))

    def _explained(
        self, end: ProgramEnd, program: ProgramStart, confinement: Confinement
    ) -> ProgramEnd:
        """The end of a program, with a line about what the sandbox hid from it, if it failed."""
        end = self._with_start_failure(end, program, confinement.level)
        if end.how != "exited" or not end.code:
            return end
        hint = explain_failure(
            confinement.level,
            end.stderr_tail,
            cwd=os.path.abspath(program.cwd),
            env=program.env,
            hidden=self.policy.hidden,
        )
        if hint is None:
            return end
        tail = end.stderr_tail.rstrip(b"\n")
        return replace(end, stderr_tail=tail + f"\nloopwright: {hint}\n".encode())

    def _with_start_failure(
        self, end: ProgramEnd, program: ProgramStart, level: SandboxLevel
    ) -> ProgramEnd:
        """A failure of bubblewrap itself, which ends with code 1 before the program starts."""
        errors = end.stderr_tail
        if end.how != "exited" or end.code != 1 or end.stdout or not errors.startswith(_FAILED):
            return end
        line = errors.splitlines()[0].decode(errors="replace")
        is_short = any(one in line for one in _SHORTAGES) or _has_vanished(line)
        problem = "resource" if is_short else "not-startable"
        detail = f"the sandbox failed: {line}"
        missing = _NOT_FOUND.fullmatch(line)
        if missing and level != "guard" and self._is_hidden_alone(missing[1], program):
            weaker = "readonly" if level == "none" else "guard"
            detail = (
                f"cannot start {missing[1]}: sandbox level `{level}` hides a file that it needs, "
                f"such as its interpreter; use `--sandbox {weaker}`"
            )
        return replace(end, how="not_started", code=None, error=f"{problem}: {detail}")

    def _is_hidden_alone(self, file: str, program: ProgramStart) -> bool:
        """Whether a program could be started without a sandbox, judged by its interpreters. The
        existence of private files is not revealed.
        """
        private = [os.path.realpath(one) for one in self.hidden_paths(program.cwd)]
        needed = [file, *interpreters(file, program.env.get("PATH"))]
        return all(map(os.path.exists, needed)) and not any(
            is_within_any(os.path.realpath(one), private) for one in needed
        )

    def is_off(self, confinement: Confinement) -> bool:
        """Whether a program would be started without a sandbox."""
        try:
            return self.enforced_level(confinement) == "off"
        except CannotStart:
            return False

    @contextmanager
    def confined(self, program: ProgramStart, confinement: Confinement) -> Iterator[ProgramStart]:
        """The program as it is started; CannotStart if it cannot be confined."""
        level = self.enforced_level(confinement)
        self._check_approval(program, confinement)
        if level == "off":
            self._check_replaced(os.path.abspath(program.cwd))
            yield program
            return
        if not program.argv:
            raise CannotStart("program-not-found", "the command is empty")
        cwd = self._workspace(program.cwd, level)
        file = resolve_program(program.argv[0], cwd, program.env.get("PATH"))
        if not is_startable(file):
            raise CannotStart(
                "not-startable",
                f"cannot start {file}: the file is not a program; a script needs a first line like "
                "#!/bin/sh",
            )
        env = {n: value for n, value in program.env.items() if n not in DATA_VARIABLES}
        if level in ("readonly", "none"):
            file, env = without_shims(file, cwd, env)
        approved = () if self.approvals is None else self.approvals.files()
        bubblewrap = _bubblewrap()
        assert bubblewrap is not None, "it works"
        with _temporary_folder(level) as temporary, _protected_repository(level, cwd):
            caches = {name: f"/tmp/{name.lower()}" for name in _CACHES} if temporary else {}
            view = SandboxView(
                level=level,
                file=file,
                argv=program.argv,
                cwd=cwd,
                env={name: env[name] for name in VARIABLES if name in env},
                commands=confinement.commands,
                configuration=confinement.configuration,
                shown=confinement.shown,
                artifacts=self._artifacts(program.env),
                hidden=self._hidden(level, cwd),
                own=self.policy.hidden,
                protected=(*self.policy.protected, *approved),
                sets_modes=sets_modes(bubblewrap),
                temporary=temporary,
            )
            network = ("--unshare-net",) if confinement.offline else ()
            chdir = ("--chdir", confinement.start or cwd)
            argv = (bubblewrap, *_COMMON, *network, *self._view_arguments(view), *chdir, "--", file)
            yield replace(
                program,
                argv=(*argv, *program.argv[1:]),
                env={**caches, **env},
                call_filter=filter_program(),
                in_sandbox=True,
            )

    def _view_arguments(self, view: SandboxView) -> Iterable[str]:
        if view.level != "guard":
            return file_arguments(view)
        return self._arguments.get((view.cwd, view.file), view, partial(file_arguments, view))

    def _check_approval(self, program: ProgramStart, confinement: Confinement) -> None:
        """Refuse a listed program that is not the one that was approved."""
        if self.approvals is None or not confinement.agent:
            return
        run = program.env.get("LOOPWRIGHT_RUN", "")
        problem = self.approvals.problem(confinement.agent, run)
        if problem is not None:
            raise CannotStart("agent-changed", problem)

    def _artifacts(self, env: Mapping[str, str]) -> str:
        """The folder for what the agents of a run make, if the run has one."""
        run = env.get("LOOPWRIGHT_RUN", "")
        if not self.policy.artifacts or not _RUN_ID.fullmatch(run):
            return ""
        folder = os.path.join(self.policy.artifacts, run)
        return folder if os.path.isdir(folder) and not os.path.islink(folder) else ""

    def enforced_level(self, confinement: Confinement) -> SandboxLevel:
        """The level that a program is really started at; CannotStart if that must not be."""
        level = confinement.level
        if level == "off":
            return level
        problem = works()
        if problem is None:
            return level
        if level == "guard" and self.policy.guard_is_optional and not confinement.offline:
            return "off"
        raise CannotStart("no-sandbox", f"sandbox level `{level}` cannot be enforced: {problem}")

    def _workspace(self, folder: str, level: SandboxLevel) -> str:
        cwd = os.path.abspath(folder)
        if not os.path.isdir(cwd):
            raise CannotStart("workspace-gone", f"the directory {cwd} does not exist")
        self._check_replaced(cwd)
        real = os.path.realpath(cwd)
        if real == os.sep and level != "guard":
            detail = f"sandbox level `{level}` needs a workspace other than the root folder"
            raise CannotStart("not-startable", detail)
        for hidden in map(os.path.realpath, self.policy.hidden):
            allowed = map(os.path.realpath, self.policy.workspaces)
            if is_within(real, hidden) and not is_within_any(real, allowed):
                detail = f"the workspace {cwd} is in {hidden}, which no agent may see"
                raise CannotStart("not-startable", detail)
        return cwd

    def _check_replaced(self, cwd: str) -> None:
        """Refuse a workspace that something has replaced by a link since the run was admitted."""
        if self.policy.fixed_workspaces and os.path.realpath(cwd) != cwd:
            raise CannotStart("workspace-gone", f"the directory {cwd} was replaced by a link")

    def _hidden(self, level: SandboxLevel, cwd: str) -> tuple[str, ...]:
        """Folders that are always hidden. A missing one that a program could create is created
        first, and so is a read-only one.
        """
        real = os.path.realpath(cwd)
        closed = (*self.policy.hidden, *self.policy.protected)
        for path in closed if level in ("guard", "workspace") else ():
            is_within_reach = level == "guard" or is_within(os.path.realpath(path), real)
            is_folder = path in self.policy.protected or not os.path.splitext(path)[1]
            if is_within_reach and is_folder and not os.path.exists(path):
                with suppress(OSError):
                    Path(path).mkdir(parents=True, mode=0o700)
        return self.hidden_paths(cwd)

    def _other_data_directories(self, cwd: str) -> Iterator[str]:
        """Data directories of this user besides the own one. One that is itself used as a workspace
        stays visible.
        """
        if not self.policy.records:
            return
        real = os.path.realpath(cwd)
        for one in UserRecords(self.policy.records).data_directories():
            if not is_within(real, one) or is_within(real, os.path.join(one, "worktrees")):
                yield one


def _has_vanished(line: str) -> bool:
    """Whether bubblewrap failed to mount something at a path that does not exist any more, or that
    has been created again: an existing path that is not a link cannot be missing otherwise.
    """
    place = _NO_PLACE.search(line)
    if place is None:
        return False
    is_replaced = line.startswith(_HIDING) and line.endswith(os.strerror(errno.ENOENT))
    return not os.path.lexists(place[1]) or (is_replaced and not os.path.islink(place[1]))


@contextmanager
def _temporary_folder(level: SandboxLevel) -> Iterator[str]:
    """A private folder for temporary files at `workspace`; stricter levels have it in memory."""
    if level != "workspace":
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="loopwright-tmp-", ignore_cleanup_errors=True) as made:
        yield made


def _protected_repository(level: SandboxLevel, cwd: str) -> AbstractContextManager[None]:
    """At `workspace` Git settings are protected. At `guard` they are like all other files of the
    user, and stricter levels change nothing.
    """
    return protect_git_settings(cwd) if level == "workspace" else nullcontext()
