"""One program from start to end: what it is given, what is kept, what goes wrong."""

import asyncio
import errno
import gc
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from loopwright.agents.processes.process import (
    ProgramEnd,
    ProgramStart,
    RunningProgram,
    open_filter,
    run_program,
)
from tests.agents.leaping import leap, leap_when, play

MB = 1024 * 1024
PATH = os.environ["PATH"]


def program(cwd: Path, *argv: str, **more: object) -> ProgramStart:
    fields = {"env": {"PATH": PATH}, **more}
    return ProgramStart(argv=argv, cwd=str(cwd), **fields)  # type: ignore[arg-type]


def python(cwd: Path, code: str, **more: object) -> ProgramStart:
    return program(cwd, sys.executable, "-I", "-S", "-c", code, **more)


def run(what: ProgramStart) -> ProgramEnd:
    return asyncio.run(run_program(what))


def child_processes() -> set[str]:
    """The processes below this one; the runner of the tests may have some of its own."""
    lists = Path("/proc/self/task").glob("*/children")
    return {process for one in lists for process in one.read_text().split()}


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()


# ---------------------------------------------------------------------------------- the end


@pytest.mark.parametrize(
    ("code", "how", "exit_code", "by_signal"),
    [
        pytest.param("pass", "exited", 0, None, id="zero"),
        pytest.param("import os; os._exit(3)", "exited", 3, None, id="code"),
        pytest.param("import os; os._exit(255)", "exited", 255, None, id="highest-code"),
        pytest.param("import os; os.kill(os.getpid(), 9)", "signalled", None, 9, id="killed"),
        pytest.param("import os; os.kill(os.getpid(), 15)", "signalled", None, 15, id="term"),
        pytest.param("import os; os.abort()", "signalled", None, 6, id="abort"),
    ],
)
def test_codes_and_signals(
    tmp_path: Path, code: str, how: str, exit_code: int | None, by_signal: int | None
) -> None:
    """The exit code or the signal of the program itself is told."""
    end = run(python(tmp_path, code))
    assert (end.how, end.code, end.signal) == (how, exit_code, by_signal)
    assert (end.error, end.survivors_killed) == (None, 0)
    assert 0 < end.seconds < 20


def test_output_is_whole_and_apart(tmp_path: Path) -> None:
    """Both outputs come whole and are kept apart; stdout is also told as it comes."""
    transcript: list[bytes] = []
    code = "import os\nfor n in range(100):\n os.write(1, b'o'*1000)\n os.write(2, b'e'*1000)"
    end = asyncio.run(run_program(python(tmp_path, code), on_stdout=transcript.append))
    assert end.stdout == b"o" * 100_000 == b"".join(transcript)
    assert end.stderr_tail == b"e" * 100_000
    assert not end.stdout_truncated


def test_texts_and_variables_stay_out_of_reprs(tmp_path: Path) -> None:
    """What is shown of a program and its end has neither variables, nor input, nor output."""
    secret = "canary-7c1f"
    what = program(tmp_path, "cat", env={"PATH": PATH, "KEY": secret}, stdin=secret.encode())
    end = run(what)
    assert end.stdout == secret.encode()
    assert secret not in repr(what) + repr(end)


def test_argv_reaches_the_program_unread(tmp_path: Path) -> None:
    """Nothing in an argument is special: no shell looks at it."""
    words = ["$HOME", "`id`", "$(id)", "a b", "*", "", "'", '"', "; echo x", "\n", "ü", "--", "-I"]
    code = "import sys; sys.stdout.buffer.write('\\0'.join(sys.argv[1:]).encode())"
    end = run(program(tmp_path, sys.executable, "-I", "-S", "-c", code, *words))
    assert end.stdout.decode().split("\0") == words


def test_working_directory_and_signals_are_plain(tmp_path: Path) -> None:
    """A program starts in its directory, with default signals, none blocked, and three pipes."""
    code = (
        "import os, _signal as s, sys\n"
        "sys.stdout.write(repr((os.getcwd(), s.pthread_sigmask(0, ()),"
        " sorted(map(int, os.listdir('/proc/self/fd')))[:4])))\n"
    )
    end = run(python(tmp_path, code))
    # The fourth descriptor is that of the listing itself.
    assert end.stdout.decode() == repr((str(tmp_path), set(), [0, 1, 2, 3]))
    status = run(program(tmp_path, "cat", "/proc/self/status")).stdout.decode()
    masks = dict(line.split(":\t") for line in status.splitlines() if line.startswith("Sig"))
    reserved = 0b11 << 31  # signals 32 and 33 belong to the C library: nobody can reset them
    assert int(masks["SigIgn"], 16) & ~reserved == int(masks["SigBlk"], 16) == 0


def test_environment_is_exactly_what_was_given(tmp_path: Path) -> None:
    """Nothing of the driver's environment gets in; only the supervisor's mark is added."""
    end = run(program(tmp_path, "env", env={"PATH": PATH, "ONE": "1=2", "UML": "ä"}))
    given = dict(line.split("=", 1) for line in end.stdout.decode().splitlines())
    mark = given.pop("LOOPWRIGHT_SUPERVISOR")
    assert given == {"PATH": PATH, "ONE": "1=2", "UML": "ä"}
    assert all(part.isdigit() for part in mark.split(":"))


# ---------------------------------------------------------------------------------- the input


def test_input_is_delivered_whole(tmp_path: Path) -> None:
    """A megabyte on stdin arrives to the last byte, while the program answers."""
    text = os.urandom(MB)
    assert run(program(tmp_path, "cat", stdin=text)).stdout == text


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("pass", id="exits-at-once"),
        pytest.param("import os; os.close(0); os.write(1, b'x')", id="closes-stdin"),
        pytest.param("import os; os.read(0, 10)", id="reads-a-little"),
    ],
)
def test_unread_input_is_no_error(tmp_path: Path, code: str) -> None:
    """A program that does not read its megabyte neither hangs nor fails."""
    end = run(python(tmp_path, code, stdin=b"x" * MB, wall_s=20))
    assert (end.how, end.code) == ("exited", 0)


def test_input_ends(tmp_path: Path) -> None:
    """Without input a program sees the end of it at once, and may open it by name."""
    assert run(program(tmp_path, "cat", wall_s=20)).how == "exited"
    assert run(program(tmp_path, "cat", "/dev/stdin", stdin=b"named", wall_s=20)).stdout == b"named"


def test_a_program_that_reads_for_ever_ends_at_its_limit(tmp_path: Path) -> None:
    """Going on reading after the end of input does not help against the limit."""
    end = run(python(tmp_path, "import os\nwhile True: os.read(0, 1)", wall_s=0.3, grace_s=0.1))
    assert end.how == "wall_timeout"


# --------------------------------------------------------------------------------- the limits


def test_idle_limit(tmp_path: Path) -> None:
    """Silence for too long ends a program; what it said before is kept."""
    code = "import os, time\nos.write(1, b'last words')\ntime.sleep(60)"
    transcript: list[bytes] = []

    async def whole() -> ProgramEnd:
        passing = asyncio.create_task(leap_when(lambda: b"".join(transcript) == b"last words", 600))
        end = await run_program(python(tmp_path, code, idle_s=600), on_stdout=transcript.append)
        await passing
        return end

    end = play(whole())
    assert (end.how, end.stdout) == ("idle_timeout", b"last words")
    assert 600 <= end.seconds < 660


def test_a_byte_on_either_output_is_no_silence(tmp_path: Path) -> None:
    """A program that says something in time is not idle, however long it takes in all."""
    code = (
        "import os, time\n"
        "for n in range(6):\n"
        " os.write(1 + n % 2, b'.')\n"
        " open(f'said-{n}', 'w').close()\n"
        " while os.path.exists(f'said-{n}'): time.sleep(0.005)\n"
    )

    async def silences() -> None:
        for number in range(6):
            said = tmp_path / f"said-{number}"
            await leap_when(said.exists, 400)
            await asyncio.sleep(0.01)  # the limit is looked at
            said.unlink()

    async def whole() -> ProgramEnd:
        passing = asyncio.create_task(silences())
        end = await run_program(python(tmp_path, code, idle_s=600))
        passing.cancel()
        return end

    end = play(whole())
    assert (end.how, end.code) == ("exited", 0)
    assert end.seconds > 2_400


@pytest.mark.item("B10")
def test_wall_limit_holds_for_a_talkative_program(tmp_path: Path) -> None:
    """Talking does not extend the wall limit."""
    what = program(tmp_path, "yes", wall_s=400, idle_s=300, stdout_cap=1000)

    async def whole() -> ProgramEnd:
        return await run_program(what, on_stdout=lambda _: leap(10))

    end = play(whole())
    assert end.how == "wall_timeout"
    assert end.stdout_truncated


def test_an_exit_in_time_is_no_timeout(tmp_path: Path) -> None:
    """A program that ends before its limits is judged by its exit."""
    assert run(python(tmp_path, "pass", wall_s=30, idle_s=30)).how == "exited"


# ----------------------------------------------------------------------------------- the caps


@pytest.mark.item("B11")
def test_head_and_tail_of_long_output_are_kept(tmp_path: Path) -> None:
    """Of too long an output the first and last part are kept, with a note of what is missing."""
    code = "import os\nfor n in range(10000): os.write(1, b'%07d\\n' % n)"
    end = run(python(tmp_path, code, stdout_cap=8000))
    head, note, tail = end.stdout.partition("\n[… 72000 bytes left out …]\n".encode())
    assert note
    assert (head[:8], head[-8:]) == (b"0000000\n", b"0000499\n")
    assert (tail[:8], tail[-8:]) == (b"0009500\n", b"0009999\n")
    assert end.stdout_truncated


@pytest.mark.item("B11")
def test_only_the_tail_of_stderr_is_kept(tmp_path: Path) -> None:
    """Of stderr the last part is kept."""
    code = "import os\nfor n in range(10000): os.write(2, b'%07d\\n' % n)"
    end = run(python(tmp_path, code, stderr_cap=80))
    assert end.stderr_tail == b"".join(b"%07d\n" % n for n in range(9990, 10000))


@pytest.mark.item("B11")
@pytest.mark.skipif(sys.platform != "linux", reason="reads VmHWM")
def test_memory_stays_bounded(tmp_path: Path) -> None:
    """A program that prints 200 MB costs the driver less than 50 MB."""
    probe = (
        "import asyncio, sys\n"
        "from loopwright.agents.processes.process import ProgramStart, run_program\n"
        "def peak():\n"
        "    lines = open('/proc/self/status').read().splitlines()\n"
        "    return next(int(line.split()[1]) for line in lines if line.startswith('VmHWM'))\n"
        "before = peak()\n"
        "code = 'import os\\nfor _ in range(3200): os.write(1, b\"x\" * 65536)'\n"
        "argv = (sys.executable, '-I', '-S', '-c', code)\n"
        "end = asyncio.run(run_program(ProgramStart(argv=argv, cwd='/', env={})))\n"
        "print(end.code, len(end.stdout), end.stdout.count(b'x'), peak() - before)\n"
    )
    sources = str(Path(__file__).resolve().parents[2] / "src")
    said = subprocess.run(
        [sys.executable, "-c", probe], env={"PYTHONPATH": sources}, stdout=-1, check=True
    ).stdout
    code, kept, xs, grown_kb = map(int, said.split())
    assert (code, xs) == (0, 10 * MB)
    assert kept < 10 * MB + 100
    assert grown_kb < 50 * 1024


# --------------------------------------------------------------------------- not even started


def not_executable(folder: Path) -> str:
    file = folder / "plain.txt"
    file.write_text("just text")
    return "./plain.txt"


def no_interpreter(folder: Path) -> str:
    file = folder / "script"
    file.write_text("#!/no/such/interpreter\n")
    file.chmod(0o755)
    return "./script"


def bare_name(folder: Path) -> str:
    (folder / "my-script").touch(0o755)
    return "my-script"


def no_format(folder: Path) -> str:
    file = folder / "script"
    file.write_text("echo without a first line\n")
    file.chmod(0o755)
    return "./script"


@pytest.mark.parametrize(
    ("make", "problem", "hint"),
    [
        pytest.param(lambda _: "no-such-tool", "program-not-found", "not on PATH", id="missing"),
        pytest.param(bare_name, "program-not-found", "write ./my-script for", id="bare name"),
        pytest.param(lambda _: "./no-such", "program-not-found", "does not exist", id="no-file"),
        pytest.param(not_executable, "not-executable", "chmod +x", id="not-executable"),
        pytest.param(lambda _: "/usr", "is-a-directory", "is a directory", id="directory"),
        pytest.param(no_interpreter, "program-not-found", "first line", id="no-interpreter"),
        pytest.param(no_format, "not-startable", "#!/bin/sh", id="no-format"),
        pytest.param(lambda _: "", "program-not-found", "empty", id="empty"),
    ],
)
def test_programs_that_cannot_run(tmp_path: Path, make: object, problem: str, hint: str) -> None:
    """What is wrong with a program is told in a word and a sentence, never raised."""
    assert callable(make)
    end = run(program(tmp_path, make(tmp_path)))
    assert (end.how, end.problem) == ("not_started", problem)
    assert hint in str(end.error)
    assert (end.code, end.signal, end.survivors_killed) == (None, None, 0)


@pytest.mark.parametrize(
    ("argv", "env", "problem"),
    [
        pytest.param((), {}, "program-not-found", id="no-words"),
        pytest.param(("cat", "a\0b"), {}, "nul-in-argument", id="nul-argument"),
        pytest.param(("cat",), {"A": "a\0b"}, "nul-in-argument", id="nul-variable"),
        pytest.param(("cat", "x" * 300_000), {}, "argument-too-long", id="long-argument"),
        pytest.param(("cat",), {"A": "x" * 200_000}, "argument-too-long", id="long-variable"),
        pytest.param(("cat", *["x" * 100_000] * 90), {}, "argument-too-long", id="long-in-all"),
        pytest.param(("cat", "\ud800"), {}, "not-startable", id="lone-surrogate"),
        pytest.param(("cat",), {"A=B": "1"}, "not-startable", id="bad-name"),
    ],
)
def test_words_that_cannot_be_passed(
    tmp_path: Path, argv: tuple[str, ...], env: dict[str, str], problem: str
) -> None:
    """Arguments and variables the system cannot take are refused by name."""
    before = open_descriptors()
    end = run(program(tmp_path, *argv, env={"PATH": PATH, **env}))
    assert (end.how, end.problem) == ("not_started", problem)
    assert open_descriptors() == before


def test_the_longest_argument_passes(tmp_path: Path) -> None:
    """One byte less than what is refused really reaches the program."""
    end = run(python(tmp_path, "import sys; print(len(sys.argv[1]))"))
    assert end.code == 1
    longest = "x" * (128 * 1024 - 1)
    code = "import sys; print(len(sys.argv[1]))"
    end = run(program(tmp_path, sys.executable, "-I", "-S", "-c", code, longest))
    assert end.stdout == b"131071\n"


@pytest.mark.item("D12")
def test_a_missing_workspace_is_reported(tmp_path: Path) -> None:
    """In a directory that is gone nothing starts, and the reason is the directory."""
    end = run(program(tmp_path / "gone", "true"))
    assert (end.how, end.problem) == ("not_started", "workspace-gone")


@pytest.mark.item("D12")
def test_a_program_that_deletes_its_workspace_does_not_hang(tmp_path: Path) -> None:
    """Deleting the workspace ends like any other program; the next start says what is wrong."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    code = "import os; os.rmdir(os.getcwd())"
    assert run(python(workspace, code, wall_s=20)).how == "exited"
    assert run(python(workspace, code, wall_s=20)).problem == "workspace-gone"


def test_a_shortage_is_a_problem_of_resources(tmp_path: Path) -> None:
    """Without descriptors nothing starts, but later it may; nothing is left open."""
    limit = pytest.importorskip("resource")
    soft, hard = limit.getrlimit(limit.RLIMIT_NOFILE)
    before = open_descriptors()

    async def play() -> ProgramEnd:
        used = set(map(int, os.listdir("/dev/fd")))
        lowest = next(number for number in range(len(used) + 1) if number not in used)
        limit.setrlimit(limit.RLIMIT_NOFILE, (lowest + 1, hard))
        try:
            return await run_program(program(tmp_path, "true"))
        finally:
            limit.setrlimit(limit.RLIMIT_NOFILE, (soft, hard))

    end = asyncio.run(play())
    assert (end.how, end.problem) == ("not_started", "resource")
    assert os.strerror(errno.EMFILE) in str(end.error)
    assert open_descriptors() == before


# ------------------------------------------------------------------------ callbacks, housekeeping


def test_a_failing_listener_ends_the_program(tmp_path: Path) -> None:
    """An exception in `on_stdout` ends the program and comes out of the call."""

    def refuse(_: bytes) -> None:
        raise LookupError("cannot read this")

    with pytest.raises(LookupError, match="cannot read this"):
        asyncio.run(run_program(program(tmp_path, "yes"), on_stdout=refuse))


def test_a_failing_start_listener_ends_the_program(tmp_path: Path) -> None:
    """An exception in `on_start` ends the program and comes out of the call."""

    def refuse(_: object) -> None:
        raise LookupError("cannot record this")

    with pytest.raises(LookupError, match="cannot record this"):
        asyncio.run(run_program(program(tmp_path, "sleep", "60"), on_start=refuse))


def test_a_foreign_holder_of_the_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """If an unrelated process got hold of stdout, the end comes nevertheless."""
    address = str(tmp_path / "socket")
    code = (
        "import socket\n"
        "with socket.socket(socket.AF_UNIX) as s:\n"
        f" s.connect({address!r})\n"
        " socket.send_fds(s, [b'x'], [1])\n"
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        end = run(program(tmp_path, sys.executable, "-c", code, wall_s=20))
        connection, _ = listener.accept()
        with connection:
            for descriptor in socket.recv_fds(connection, 1, 1)[1]:
                os.close(descriptor)
    assert (end.how, end.code) == ("exited", 0)
    assert end.seconds < 10


def test_nothing_stays_open(tmp_path: Path) -> None:
    """After many ends of all kinds the driver has no descriptor and no child more than before."""

    async def play() -> set[str]:
        await run_program(program(tmp_path, "true"))
        before = open_descriptors()
        many = [program(tmp_path, "true", stdin=b"x" * MB)] * 5
        many += [program(tmp_path, "no-such-tool")] * 5
        many += [program(tmp_path, "yes", wall_s=0.1, grace_s=0.1)] * 2
        await asyncio.gather(*map(run_program, many))
        assert open_descriptors() == before
        return before

    children = child_processes()
    asyncio.run(play())
    assert child_processes() == children


def test_a_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    """Cancelling while the supervisor is still coming up is as good as any other time."""

    async def play(delay: float) -> None:
        running = asyncio.create_task(run_program(program(tmp_path, "sleep", "60")))
        await asyncio.sleep(delay)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    before, children = open_descriptors(), child_processes()
    for delay in (0, 0.004, 0.008, 0.012, 0.016, 0.02):
        asyncio.run(play(delay))
    assert open_descriptors() == before
    assert child_processes() == children


def test_a_blocked_signal_in_the_driver_changes_nothing(tmp_path: Path) -> None:
    """A driver that blocks or ignores signals still can end its programs."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        end = run(program(tmp_path, "sleep", "60", wall_s=0.3))
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGCHLD})
    assert (end.how, end.signal) == ("wall_timeout", signal.SIGTERM)


@pytest.mark.item("rec-32")
@pytest.mark.parametrize(
    ("descriptor", "counts", "how"),
    [
        (1, True, "exited"),
        (1, False, "idle_timeout"),
        (2, True, "exited"),
        (2, False, "idle_timeout"),
    ],
    ids=["stdout-progress", "stdout-no-progress", "stderr-counts", "stderr-does-not-count"],
)
def test_output_that_is_no_progress_does_not_restart_the_idle_limit(
    tmp_path: Path, descriptor: int, counts: bool, how: str
) -> None:
    """A program that only reports retries is idle; the reader knows which output that is."""
    code = (
        "import os, pathlib, time\n"
        f"os.write({descriptor}, b'1')\n"
        "while not pathlib.Path('again').exists(): time.sleep(0.005)\n"
        f"os.write({descriptor}, b'2')\n"
        "while not pathlib.Path('end').exists(): time.sleep(0.005)\n"
    )
    transcript: list[bytes] = []
    programs: list[RunningProgram] = []

    def take(data: bytes) -> None:
        transcript.append(data)
        if not counts and descriptor == 1:
            programs[0].no_progress()

    async def passing() -> None:
        await leap_when(lambda: transcript == [b"1"], 400)
        (tmp_path / "again").touch()
        await leap_when(lambda: transcript == [b"1", b"2"], 400)
        await asyncio.sleep(0.01 if how == "exited" else 10)
        (tmp_path / "end").touch()

    async def whole() -> ProgramEnd:
        clock = asyncio.create_task(passing())
        end = await run_program(
            python(tmp_path, code, idle_s=600, stderr_counts=counts),
            on_stdout=take,
            on_stderr=take,
            on_running=programs.append,
        )
        clock.cancel()
        return end

    assert play(whole()).how == how


class _Listener:
    """Refers to the program that it listens to, as those who talk with an agent do."""

    def __init__(self, fails: str) -> None:
        self.fails = fails
        self.program: RunningProgram | None = None

    def begin(self, program: RunningProgram) -> None:
        self.program = program
        program.end_input()

    def take(self, data: bytes) -> None:
        if self.fails == "late":  # the supervisor has ended, and its report has not been read
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        if self.fails:
            raise LookupError("a defect of the listener")


@pytest.mark.item("bnd-m1")
@pytest.mark.parametrize(
    "fails", ["", "soon", "late"], ids=["ends", "listener-fails", "listener-fails-late"]
)
def test_a_program_that_has_ended_is_freed_without_the_collector(
    tmp_path: Path, fails: str
) -> None:
    """Nothing that belongs to a program stays in memory after it, also without the collector."""

    async def whole() -> None:
        for _ in range(5):
            listener = _Listener(fails)
            what = python(tmp_path, "print('said')", wall_s=600, idle_s=600)
            try:
                await run_program(what, on_stdout=listener.take, on_running=listener.begin)
            except LookupError:
                assert fails
            del listener, what

    kinds = ("_Listener", "_Run", "Popen", "ProgramStart", "PipeSource", "PipeFeed")
    gc.collect()
    others = [one for one in gc.get_objects() if type(one).__name__ in kinds]  # of other tests
    known = {id(one) for one in others}
    gc.disable()
    try:
        asyncio.run(whole())
        found = [one for one in gc.get_objects() if type(one).__name__ in kinds]
        left = [type(one).__name__ for one in found if id(one) not in known]
    finally:
        gc.enable()
    assert left == []


def test_open_filter_when_read_has_the_bytes_and_ends() -> None:
    with open_filter(b"filter") as (handle,):
        assert os.read(handle, 100) == b"filter"
        assert os.read(handle, 100) == b""
    with open_filter(b"") as none:
        assert none == []
