"""Run a test's own program as root or as an ordinary user, whoever runs the tests.

Root starts an ordinary user's program in mounts of its own: where the interpreter or the project is
below a folder of root, that folder is replaced by one that shows nothing else.
"""

import ctypes
import json
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import loopwright

IDENTITIES = ("root", "user")
USERS = ("loopwright-test", "nobody")  # CI creates the first one
PROJECT = Path(__file__).parents[2]
NO_ROOT = "root is needed, and the tests run as an ordinary user"
NO_USER = "no ordinary user can run tests here"
_NEW_MOUNTS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x00020000, 0x1000, 0x4000, 0x40000
TIMEOUT_S = 300
BASE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
"""Variables that every program needs, without folders that only root enters."""


def run_as(
    identity: str, argv: Sequence[str], *, env: Mapping[str, str], text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments, in the project."""
    env = {"PYTHONPATH": os.pathsep.join(python_path()), "PYTHONDONTWRITEBYTECODE": "1", **env}
    command = [sys.executable, *argv]
    if identity == "user" and os.geteuid() == 0:
        user = ordinary_user()
        order = {"uid": user.pw_uid, "gid": user.pw_gid, "paths": needed_paths(), "argv": command}
        command = [sys.executable, "-m", "tests.safety.identities", json.dumps(order)]
    return subprocess.run(
        command,
        cwd=PROJECT,
        env=env,
        input=text,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@cache
def missing(identity: str) -> str | None:
    """Why nothing can be run under an identity here; None if it can."""
    if identity == "root":
        return None if os.geteuid() == 0 else NO_ROOT
    if os.geteuid() != 0:
        return None
    try:
        done = run_as("user", ["-c", "import loopwright, os; print(os.getuid())"], env=BASE)
    except (LookupError, OSError) as error:
        return f"{NO_USER}: {error}"
    if done.stdout.strip() == str(ordinary_user().pw_uid):
        return None
    return f"{NO_USER}: {done.stderr[-300:]}"


def ordinary_user() -> pwd.struct_passwd:
    """The account that tests use; LookupError if there is none."""
    for name in USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise LookupError(f"there is no account {' or '.join(USERS)}")


@contextmanager
def folder_of(identity: str) -> Iterator[Path]:
    """A folder that belongs to an identity. Only root enters those of pytest."""
    with tempfile.TemporaryDirectory(prefix="lw-stage-", ignore_cleanup_errors=True) as made:
        if identity == "user" and os.geteuid() == 0:
            user = ordinary_user()
            os.chown(made, user.pw_uid, user.pw_gid)
        yield Path(made).resolve()


def python_path() -> list[str]:
    """Where this process has the package, its dependencies and the tests from."""
    package = Path(loopwright.__file__).parents[1]
    return [str(PROJECT), str(package)]


def needed_paths() -> list[str]:
    """Folders that Python and the package are read from."""
    found = [sys.base_prefix, sys.prefix, *python_path()]
    return list(dict.fromkeys(os.path.realpath(one) for one in found))


# -- in the process that becomes the user ----------------------------------------------------------


def main() -> None:
    """Give up root and become the program."""
    order = json.loads(sys.argv[1])
    show_paths(order["paths"])
    os.setgroups([])
    os.setgid(order["gid"])
    os.setuid(order["uid"])
    os.execv(order["argv"][0], order["argv"])  # noqa: S606 - never a shell


def show_paths(paths: Sequence[str]) -> None:
    """Make folders readable for everybody that are below a folder of root; only these."""
    closed = {path: folder for path in paths if (folder := closed_folder(path)) is not None}
    if not closed:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_NEW_MOUNTS))
    _check(libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None))
    handles = {path: os.open(path, os.O_PATH) for path in closed}  # of the new mounts
    for folder in dict.fromkeys(closed.values()):
        _check(libc.mount(b"tmpfs", folder.encode(), b"tmpfs", ctypes.c_ulong(0), b"mode=755"))
    for path, handle in handles.items():
        os.makedirs(path, exist_ok=True)
        source = f"/proc/self/fd/{handle}".encode()
        _check(libc.mount(source, path.encode(), None, ctypes.c_ulong(_MS_BIND | _MS_REC), None))
        os.close(handle)


def closed_folder(path: str) -> str | None:
    """The outermost folder above a path that others cannot enter."""
    for folder in reversed((Path(path), *Path(path).parents)):
        if folder.stat().st_mode & 0o005 != 0o005:
            return str(folder)
    return None


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
