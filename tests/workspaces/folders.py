"""Folders and repositories for tests of workspaces."""

import concurrent.futures.thread  # noqa: F401 - cannot be imported without privileges later
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534

_IDENTITY = {
    "GIT_AUTHOR_NAME": "Test",
    "GIT_AUTHOR_EMAIL": "test@example.com",
    "GIT_COMMITTER_NAME": "Test",
    "GIT_COMMITTER_EMAIL": "test@example.com",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


def git(folder: Path, *arguments: str, check: bool = True) -> str:
    """Run Git as the user of a repository would."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **_IDENTITY}
    done = subprocess.run(
        ["git", "-c", "protocol.file.allow=always", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        check=check,
    )
    return done.stdout.decode("utf-8", "replace")


def put(folder: Path, **files: str) -> None:
    """Write files; `__` in a name is a dot, `___` a slash."""
    for name, text in files.items():
        path = folder / name.replace("___", "/").replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def repository(folder: Path) -> Path:
    """A repository with one commit."""
    put(folder, a__txt="a\n", src___b__py="b\n")
    git(folder, "init", "-q", "-b", "main", "--template=")
    commit(folder, "first")
    return folder


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)


def fingerprint(*folders: Path) -> dict[str, str]:
    """Content and kind of everything in some folders; of an index the time of its last change."""
    found: dict[str, str] = {}
    for top in folders:
        for folder, names, files in os.walk(top):
            for name in (*names, *files):
                path = Path(folder) / name
                info = path.lstat()
                text = f"{info.st_mode:o}"
                if path.is_symlink():
                    text += f" -> {path.readlink()}"
                elif path.is_file():
                    text += " " + hashlib.sha256(path.read_bytes()).hexdigest()
                if name == "index":
                    text += f" {info.st_mtime_ns} {info.st_ino}"
                found[str(path)] = text
    return found


@contextmanager
def unprivileged() -> Iterator[Path]:
    """A folder of a user who may not read everything, with the rights of that user."""
    folder = Path(tempfile.mkdtemp(prefix="loopwright-"))
    root = os.geteuid() == 0
    if root:
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        for name, _, _ in os.walk(folder):
            Path(name).chmod(0o700)
        shutil.rmtree(folder)
