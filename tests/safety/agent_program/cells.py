"""What the table of sandbox levels in docs/security.md says, found out by trying it.

The answer to a question is `yes`, `no`, `shared` (it works, on what others see) or `private`: it
works, but on something else than what is outside, and that is gone with the sandbox.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

from tests.safety.agent_program.attempts import TARGET, Blocked, open_for_writing, plant

CONFIGURATION = {
    "claude": ".claude",
    "codex": ".codex",
    "gemini": ".gemini",
    "opencode": ".config/opencode",
}
OTHER_CONFIGURATION = ".config/other"


def try_cells(names: list[str]) -> dict[str, str]:
    """The answers to some questions."""
    return {name: answer({**CELLS, **OTHERS}[name]) for name in names}


def answer(question: Callable[[], str]) -> str:
    """The answer to one question; what the system refuses is a no."""
    try:
        return question()
    except (OSError, Blocked, ValueError, subprocess.SubprocessError):
        return "no"


def yes_if(condition: object) -> str:
    return "yes" if condition else "no"


def read_file(path: str, text: str) -> Callable[[], str]:
    def ask() -> str:
        with open(path_of(path), encoding="utf-8") as file:
            return yes_if(text in file.read())

    return ask


def path_of(name: str) -> str:
    """A path below a folder of the target; one that begins with a slash is meant as it is."""
    folder, _, rest = name.partition("/")
    return name if not folder else os.path.join(TARGET.folders[folder], rest).rstrip("/")


def write_in(name: str) -> Callable[[], str]:
    """Make a file in a folder and remove it."""

    def ask() -> str:
        folder = path_of(name)
        try:
            plant(folder)
        except Blocked:
            path = os.path.join(folder, TARGET.marker)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            os.unlink(path)
            return "private"
        return "yes"

    return ask


def write_configuration() -> str:
    """Write into the folder that this program has its settings in; it is named after it."""
    name = os.path.basename(sys.argv[0])
    return write_in(f"home/{CONFIGURATION.get(name, OTHER_CONFIGURATION)}")()


def write_temporary() -> str:
    """Files in /tmp are the same as outside, or of the sandbox alone."""
    found = write_in("/tmp")()
    return "shared" if found == "yes" else found


def open_any(*paths: str) -> str:
    """Open one of the files for writing, without changing it."""
    for path in paths:
        try:
            open_for_writing(path)
        except OSError:
            continue
        return "yes"
    return "no"


def write_program() -> str:
    """Write into a folder of Loopwright's own program."""
    for folder in TARGET.program_folders:
        try:
            plant(folder)
        except (OSError, Blocked):
            continue
        return "yes"
    return "no"


def start_program() -> str:
    """Start a program of the system."""
    return yes_if(subprocess.run(["/bin/true"], timeout=10, check=False).returncode == 0)


def see_process() -> str:
    return yes_if(os.path.exists(f"/proc/{TARGET.driver}/status"))


def see_variables() -> str:
    """See secrets of the driver, in our own variables or in those of a process."""
    if TARGET.secret in "\n".join(os.environ.values()):
        return "yes"
    with open(f"/proc/{TARGET.driver}/environ", "rb") as file:
        return yes_if(TARGET.secret.encode() in file.read())


def see_open_files() -> str:
    """Files of the data directory that we or the driver have open."""
    for process in ("self", str(TARGET.driver)):
        for name in os.listdir(f"/proc/{process}/fd"):
            try:
                found = os.readlink(f"/proc/{process}/fd/{name}")
            except OSError:
                continue
            if found.startswith(os.path.realpath(TARGET.data)):
                return "yes"
    return "no"


def use_capabilities() -> str:
    """Have a capability."""
    with open("/proc/self/status", encoding="utf-8") as file:
        return yes_if(any(int(line.split()[1], 16) for line in file if line.startswith("CapEff:")))


def see_memory() -> str:
    return yes_if(os.path.exists(TARGET.shared_memory))


def see_devices() -> str:
    return yes_if(os.path.exists("/dev/kmsg"))


def reach_network() -> str:
    with socket.create_connection(("127.0.0.1", TARGET.port), timeout=5):
        return "yes"


def reach_socket(*paths: str) -> str:
    for path in paths:
        with socket.socket(socket.AF_UNIX) as one:
            try:
                one.connect(path)
            except OSError:
                continue
            return "yes"
    return "no"


def start_sandbox() -> str:
    """Start a program in a sandbox of our own, as coding CLIs do."""
    words = ["--ro-bind", "/", "/", "--unshare-user", "--unshare-pid", "--proc", "/proc"]
    argv = ["bwrap", *words, "--dev", "/dev", "/bin/true"]
    done = subprocess.run(argv, capture_output=True, timeout=10, check=False)
    return yes_if(done.returncode == 0)


def signal_own() -> str:
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return yes_if(os.WIFSIGNALED(status))


def signal_other() -> str:
    os.kill(TARGET.driver, 0)
    return "yes"


CELLS: dict[str, Callable[[], str]] = {
    "read the workspace": read_file("workspace/notes.txt", "hello"),
    "read other files of the user": read_file("home/documents/letter.txt", "letter"),
    "read system files": read_file("/etc/profile", ""),
    "read the data directory": read_file("data/secret.txt", "secret"),
    "read settings and tokens of Loopwright": read_file("settings/config.toml", "secret"),
    "write the workspace": write_in("workspace"),
    "write other files of the user": write_in("home/documents"),
    "write its own configuration": write_configuration,
    "write temporary files": write_temporary,
    "write system files": write_in("/etc"),
    "write kernel settings": lambda: open_any("/proc/sys/kernel/core_pattern"),
    "write the data directory": write_in("data"),
    "write the program of Loopwright": write_program,
    "write the project's Loopwright files": lambda: open_any(
        path_of("workspace/loopwright.toml"), path_of("workspace/.loopwright/role.yaml")
    ),
    "write Git hooks and settings": lambda: open_any(
        path_of("workspace/.git/config"), path_of("workspace/.git/hooks/pre-commit")
    ),
    "reach the network": reach_network,
    "reach the socket of Loopwright": lambda: reach_socket(TARGET.socket),
    "reach services that start programs": lambda: reach_socket(*TARGET.control_sockets),
    "reach abstract Unix sockets": lambda: reach_socket(f"\0{TARGET.abstract}"),
    "see other processes": see_process,
    "see open files of Loopwright": see_open_files,
    "see variables of Loopwright": see_variables,
    "see shared memory": see_memory,
    "see devices of the machine": see_devices,
    "signal its own processes": signal_own,
    "signal other processes": signal_other,
    "start programs of the system": start_program,
    "use capabilities": use_capabilities,
}
"""By row of the table: how its answer is found out."""

OTHERS: dict[str, Callable[[], str]] = {
    "a sandbox of its own": start_sandbox,
    "arguments": lambda: " ".join(sys.argv[1:]),
}
"""Questions that are not in the table."""
