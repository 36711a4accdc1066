"""The supervisor: one small process above each program, which outlives it and ends what it left.

Started with `command_line`. It starts before every agent and check, so it imports little: no other
module of the package, and of the standard library only what loads fast.

The program gets its own process group in the supervisor's session, and the pipes of the driver
unchanged. On Linux the supervisor is a sub-reaper: a descendant that loses its parent becomes a
child of the supervisor, whatever session or group it is in. So "no child left" means "no descendant
left", and then the supervisor reports and exits. It ends everything

* when the program exits, at once;
* on SIGTERM, SIGINT or SIGHUP, after the program had its grace time to end by itself;
* when the driver dies, at once (parent-death signal).

On other systems there is neither sub-reaper nor /proc: the program's process group is killed, and a
descendant that left the group is not found.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator
else:
    # `signal` is this module with enums, which take half of the whole start.
    try:
        import _signal as signal
    except ImportError:
        import signal

# Every process below a supervisor carries it: `<pid>:<start ticks>` of the supervisor.
SUPERVISOR_VARIABLE = "LOOPWRIGHT_SUPERVISOR"

# Longest time spent on killing before processes that do not die are reported as left.
KILL_SECONDS = 4.0

# The name of every supervisor in the process table; a descendant cannot change it.
PROCESS_NAME = b"lw-supervisor"  # at most 15 bytes

_LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_FREEZE_ROUNDS = 50
_PARENT_POLL_SECONDS = 0.5

_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_DRIVER_DIED = signal.SIGUSR1
_WATCHED = (*_STOPS, _DRIVER_DIED, signal.SIGCHLD, signal.SIGALRM)


# --------------------------------------------------------------------------- reading /proc


def _shows_us() -> bool:
    """Whether /proc has our numbers: in some sandboxes it is still that of the outside."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


HAS_TABLE = _shows_us()


class ProcessEntry:
    """One process as /proc shows it."""

    __slots__ = ("name", "pgid", "pid", "ppid", "sid", "start", "state", "threads")

    def __init__(self, pid: int, name: bytes, fields: list[bytes]) -> None:
        self.pid = pid
        self.name = name
        self.state = fields[0]
        self.ppid = int(fields[1])
        self.pgid = int(fields[2])
        self.sid = int(fields[3])
        self.threads = int(fields[17])
        self.start = int(fields[19])

    @property
    def identity(self) -> tuple[int, int, int]:
        """What tells it from a later process with its number, and from itself with a new parent."""
        return self.pid, self.ppid, self.start

    @property
    def is_dead(self) -> bool:
        """Ended and only waiting to be collected. A leader with live threads is not dead."""
        return self.state in (b"Z", b"X") and self.threads <= 1


def read_entry(pid: int) -> ProcessEntry | None:
    """The data of a process in /proc, None if there is none."""
    if not HAS_TABLE:
        return None
    try:
        handle = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        line = os.read(handle, 4096)
    except OSError:
        return None
    finally:
        os.close(handle)
    # The name in parentheses may itself contain spaces and parentheses.
    end = line.rfind(b")")
    fields = line[end + 2 :].split()
    name = line[line.find(b"(") + 1 : end]
    return ProcessEntry(pid, name, fields) if len(fields) > 19 else None


def read_entries() -> Iterator[ProcessEntry]:
    """All processes, the newest numbers first: quickly forking processes are found before they end.
    None where the system has no /proc.
    """
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    numbers = sorted((int(name) for name in names if name.isdigit()), reverse=True)
    for pid in numbers:
        entry = read_entry(pid)
        if entry is not None:
            yield entry


def send(pid: int, number: int) -> None:
    """Signal a process; one that has ended or is out of reach is not an error."""
    try:  # noqa: SIM105 - contextlib would cost start time
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def send_group(pgid: int, number: int) -> None:
    """Signal a process group; one that has ended or is out of reach is not an error."""
    try:  # noqa: SIM105 - contextlib would cost start time
        os.killpg(pgid, number)
    except (ProcessLookupError, PermissionError):
        pass


# ------------------------------------------------------------------- ending all descendants


def _freeze(root: int) -> dict[int, ProcessEntry]:
    """Stop all descendants of `root`, walking until none turns up that was not stopped yet.

    Stopped processes cannot fork, nor restart what is killed beside them.
    """
    frozen: dict[int, ProcessEntry] = {}

    def stop_if_related(entry: ProcessEntry) -> bool:
        if entry.ppid != root and entry.ppid not in frozen:
            return False
        send(entry.pid, signal.SIGSTOP)
        frozen[entry.pid] = entry
        return True

    for _ in range(_FREEZE_ROUNDS):
        known = len(frozen)
        fresh = (entry for entry in read_entries() if entry.pid not in frozen)
        others = [entry for entry in fresh if not stop_if_related(entry)]
        # Parents mostly have lower numbers than their children, so they were met after them.
        for entry in reversed(others):
            stop_if_related(entry)
        if len(frozen) == known:
            break
    return frozen


class ProcessFamily:
    """The program and all that came from it."""

    def __init__(self, program: int, *, whole_tree: bool, in_sandbox: bool = False) -> None:
        self.program = program
        self._in_sandbox = in_sandbox
        self.status: int | None = None
        self.killed: set[int] = set()
        self._whole_tree = whole_tree

    def collect(self) -> bool:
        """Collect ended children; False if there is no child left, dead or alive."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.program:
                self.status = status

    def ask_to_end(self) -> None:
        """SIGTERM for the program and its group, and SIGCONT, as a stopped one cannot react."""
        if self._in_sandbox and self._whole_tree:
            self._ask_inside()
            return
        for number in (signal.SIGTERM, signal.SIGCONT):
            send_group(self.program, number)
            if self._left_its_group():
                send(self.program, number)

    def _ask_inside(self) -> None:
        """The same for a program in a sandbox. Bubblewrap is not signalled: it would end at once,
        and all processes in the sandbox with it, without any time to end by themselves.
        """
        entries = list(read_entries())
        first = [one.pid for one in entries if one.ppid == self.program]  # of its processes
        inside = [
            one.pid
            for one in entries
            if one.ppid in first or (one.pgid == self.program and one.pid not in first)
        ]
        for pid in inside:
            if pid != self.program:
                send(pid, signal.SIGTERM)
                send(pid, signal.SIGCONT)

    def _left_its_group(self) -> bool:
        try:
            return os.getpgid(self.program) != self.program
        except OSError:
            return False

    def end(self) -> bool:
        """Kill and collect until no process is left; False if some did not die in time."""
        deadline = time.monotonic() + KILL_SECONDS
        if not self._whole_tree:
            send_group(self.program, signal.SIGKILL)
        while self.collect():
            if time.monotonic() > deadline:
                return False
            if self._whole_tree:
                self._kill_tree()
            _pause(0.02)
        return True

    def _kill_tree(self) -> None:
        frozen = _freeze(os.getpid())
        # A group is signalled in one step, so a member that is just forking does not slip away.
        for pgid in {entry.pgid for entry in frozen.values()} - {os.getpgrp()}:
            send_group(pgid, signal.SIGKILL)
        for pid, entry in frozen.items():
            send(pid, signal.SIGKILL)
            # In a sandbox the kernel ends the others together with the program, sooner or later.
            if not entry.is_dead and pid != self.program and not self._in_sandbox:
                self.killed.add(pid)


def _pause(seconds: float) -> None:
    """Wait for the next death, at most so long."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.sigwait((signal.SIGCHLD, signal.SIGALRM))


# ------------------------------------------------------------------------ starting the program


class SupervisorOrder:
    """The request of the driver."""

    __slots__ = ("argv", "cwd", "driver", "executable", "grace", "in_sandbox", "status_fd")

    def __init__(self, words: list[str]) -> None:
        self.status_fd = int(words[0])
        self.driver = int(words[1])
        self.grace = float(words[2])
        self.in_sandbox = words[3] == "sandbox"
        self.cwd, self.executable = words[4:6]
        self.argv = words[6:]


def command_line(
    status_fd: int, grace: float, cwd: str, program: list[str], *, in_sandbox: bool = False
) -> list[str]:
    """How the calling process starts a supervisor; `program` is its file, then its argv. With
    `in_sandbox` that is bubblewrap, which starts the program.

    Isolated and without site packages: nothing in the environment or the working directory can
    change what runs. Imported rather than run as a script, as that uses the compiled form.
    """
    folder, name = os.path.split(os.path.splitext(os.path.abspath(__file__))[0])
    code = f"import sys; sys.path.append(sys.argv.pop(1)); import {name}; {name}.main()"
    start = "sandbox" if in_sandbox else "plain"
    words = [str(status_fd), str(os.getpid()), str(grace), start, cwd]
    return [sys.executable, "-I", "-S", "-c", code, folder, *words, *program]


def _prctl(option: int, value: int | bytes) -> bool:
    return _LINUX and int(ctypes.CDLL(None).prctl(option, value, 0, 0, 0)) == 0


def _environment() -> dict[bytes, bytes]:
    """The environment the driver gave, plus the supervisor's mark.

    Python adds LC_CTYPE to `os.environ` when it starts in the C locale; /proc has the original.
    """
    given = dict(os.environb)
    me = read_entry(os.getpid())
    if me is not None:
        with open("/proc/self/environ", "rb") as block:
            pairs = (item.partition(b"=") for item in block.read().split(b"\0") if item)
            given = {name: value for name, _, value in pairs}
    mark = f"{os.getpid()}:{me.start if me else 0}"
    return given | {SUPERVISOR_VARIABLE.encode(): mark.encode()}


def _become_the_program(
    order: SupervisorOrder, environment: dict[bytes, bytes], *, supervisor: int, problems: int
) -> None:
    """In the child: become the program, or report why not."""
    stage = "setup"
    try:
        os.setpgid(0, 0)
        # If the supervisor is killed, at least the program itself goes with it.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(127)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        stage = "chdir"
        os.chdir(order.cwd)
        stage = "exec"
        os.execve(order.executable, order.argv, environment)  # noqa: S606 - never a shell
    except OSError as error:
        os.write(problems, f"failed stage={stage} errno={error.errno}".encode())
    finally:
        os._exit(127)


def _start(order: SupervisorOrder) -> tuple[int, str]:
    """Start the program; its pid, and what went wrong (empty when it runs)."""
    environment = _environment()
    incoming, problems = os.pipe()
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        _become_the_program(order, environment, supervisor=supervisor, problems=problems)
    os.close(problems)
    problem = os.read(incoming, 200).decode()
    os.close(incoming)
    # The pipes belong to the program alone, so that the driver sees when it closes them.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.close(nowhere)
    return child, problem


# ---------------------------------------------------------------------------------- the watch


def _watch(family: ProcessFamily, order: SupervisorOrder) -> bool:
    """Wait until the program ended or its time is over; True if it was asked to end."""
    deadline: float | None = None
    poll = 0.0 if _LINUX else _PARENT_POLL_SECONDS
    signal.setitimer(signal.ITIMER_REAL, poll, poll)
    while True:
        number = signal.sigwait(_WATCHED)
        family.collect()
        if family.status is not None or os.getppid() != order.driver:
            break
        if number in _STOPS and deadline is None:
            deadline = time.monotonic() + order.grace
            family.ask_to_end()
            signal.setitimer(signal.ITIMER_REAL, max(order.grace, 0.001), poll)
        if deadline is not None and time.monotonic() >= deadline:
            break
    return deadline is not None


def _supervise(order: SupervisorOrder) -> str:
    """Run the program to its end and that of all its descendants; the report for the driver."""
    whole_tree = _prctl(_PR_SET_CHILD_SUBREAPER, 1) and read_entry(os.getpid()) is not None
    _prctl(_PR_SET_PDEATHSIG, _DRIVER_DIED)
    if os.getppid() != order.driver:
        return ""
    try:
        child, problem = _start(order)
    except OSError as error:  # no processes or descriptors are left
        return f"failed stage=fork errno={error.errno}"
    family = ProcessFamily(child, whole_tree=whole_tree, in_sandbox=order.in_sandbox)
    try:
        stopped = False if problem else _watch(family, order)
    finally:
        all_ended = family.end()
    if problem:
        return problem
    ended = f"status={'' if family.status is None else family.status} stopped={int(stopped)}"
    return f"ended {ended} killed={len(family.killed)} left={int(not all_ended)}"


def main() -> None:
    """Supervise according to the command line, report, and exit immediately."""
    order = SupervisorOrder(sys.argv[1:])
    _prctl(_PR_SET_NAME, PROCESS_NAME)
    os.set_inheritable(order.status_fd, False)  # noqa: FBT003 - positional only
    for number in _WATCHED:
        signal.signal(number, signal.SIG_DFL)  # an ignored SIGCHLD would hide every exit
    signal.pthread_sigmask(signal.SIG_SETMASK, _WATCHED)
    try:
        report = _supervise(order)
    except Exception as error:
        report = f"broken {type(error).__name__}: {error}"
    try:  # noqa: SIM105 - contextlib would cost start time
        os.write(order.status_fd, report.encode()[:4000])
    except OSError:
        pass  # the driver is gone
    os._exit(0)
