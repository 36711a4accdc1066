"""Process marks identify one process, of this boot and of earlier ones."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from loopwright.agents.processes.process_marks import is_alive, process_mark, this_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def test_this_process_is_alive() -> None:
    """The calling process has a mark, always the same, and lives."""
    mark = this_process()
    assert mark == this_process() == process_mark(os.getpid())
    assert mark.boot_id
    assert is_alive(mark)


@pytest.mark.parametrize(
    "change",
    [{"start_ticks": 1}, {"boot_id": "another"}, {"boot_id": ""}, {"pid": 2**22 + 1}],
    ids=["start", "boot", "no-boot", "pid"],
)
def test_any_difference_means_another_process(change: dict[str, object]) -> None:
    """A mark that differs in anything is not the living process."""
    assert not is_alive(replace(this_process(), **change))  # type: ignore[arg-type]


def test_a_dead_process_is_not_alive() -> None:
    """From its exit on a process is dead, even before it was collected."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        mark = process_mark(process.pid)
        assert mark is not None
        assert is_alive(mark)
        assert process.stdin is not None
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(mark)
    assert not is_alive(mark)
    assert process_mark(mark.pid) != mark


@pytest.mark.parametrize("pid", [0, -1, 2**22 + 1, 2**70])
def test_a_pid_of_nobody_has_no_mark(pid: int) -> None:
    """Numbers that are no process have no mark, and raise nothing."""
    assert process_mark(pid) is None


def test_names_with_blanks_and_brackets_are_read() -> None:
    """The name of a process cannot shift the fields behind it."""
    code = (
        "open('/proc/self/comm', 'w').write(') R 1 (x'); import sys; print(flush=True);"
        " sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:  # type: ignore[call-overload]
        before = process_mark(process.pid)
        process.stdout.readline()
        assert process_mark(process.pid) == before
        process.stdin.close()
