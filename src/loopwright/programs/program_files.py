"""The files that a program consists of: what a sandbox that hides other files must show."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_MOST_LINKS = 40
_MANAGERS = ("pyenv", "rbenv", "nodenv", "goenv", "plenv", "phpenv", "jenv")
_SHIM_SECONDS = 10.0
_INTERPRETERS = (
    *("python", "pypy", "node", "nodejs", "bun", "deno", "ruby", "perl", "php", "lua", "Rscript"),
    *("sh", "bash", "dash", "zsh", "ksh", "fish", "java", "tclsh", "guile", "julia"),
)


def program_files(file: str, path: str | None = None) -> Iterator[str]:
    """What a program needs of itself: its file behind all links, the package around it, and the
    program that its first line names.
    """
    for one in (file, *interpreters(file, path)):
        for link in _links(one):
            yield link
            yield from _package(link)


def script_files(argv: Sequence[str], cwd: str, path: str | None = None) -> Iterator[str]:
    """The script that an interpreter is started with, which is as much the program as the
    interpreter: its first argument that is not an option, if it is a file.
    """
    if not is_interpreter(argv[0]):
        return
    for word in argv[1:]:
        if word in ("-c", "-e", "-m", "--"):
            return
        if not word.startswith("-"):
            file = os.path.normpath(os.path.join(cwd, word))
            if os.path.isfile(file):
                yield from program_files(file, path)
            return


def is_interpreter(program: str) -> bool:
    """Whether a program runs scripts: `python3.12` is a Python."""
    name = os.path.basename(program).rstrip("0123456789.")
    return name in _INTERPRETERS


def interpreters(file: str, path: str | None = None) -> list[str]:
    """What the first line of a script starts; after `env`, the program that it looks up."""
    words = first_line(file)
    if words and Path(words[0]).name == "env":
        named = next((w for w in words[1:] if not w.startswith("-") and "=" not in w), None)
        found = shutil.which(named, path=path) if named else None
        return [words[0], *([found] if found else [])]
    return words[:1]


def real_program(file: str, cwd: str, env: Mapping[str, str]) -> str:
    """The program that a shim of a version manager (pyenv, rbenv, …) stands for, else the file
    itself. A shim would look for its manager, which is hidden together with its folder.
    """
    folder = Path(file).parent
    manager = next((one for one in _MANAGERS if (folder.parent / "bin" / one).is_file()), None)
    if folder.name != "shims" or manager is None:
        return file
    try:
        done = subprocess.run(
            [str(folder.parent / "bin" / manager), "which", Path(file).name],
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SHIM_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return file
    found = done.stdout.strip()
    return found if done.returncode == 0 and os.path.isfile(found) else file


def first_line(file: str) -> list[str]:
    """The words after `#!` in the first line of a script; none for any other file."""
    try:
        with open(file, "rb") as stream:
            first = stream.readline(4_096)
    except OSError:
        return []
    return first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []


def is_startable(file: str) -> bool:
    """Whether the system itself starts a file. A text without `#!` would be read by a shell, which
    nobody asked for.
    """
    try:
        with open(file, "rb") as stream:
            start = stream.read(4)
    except OSError:
        return True  # it can be started and not read, or the start says what is wrong
    return start.startswith(b"#!") or b"\0" in start or not start.isascii() or start == b"\x7fELF"


def _links(file: str) -> Iterator[str]:
    """A file, and the targets of each of its links."""
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
        # Of a Python and of its environments; other files beside it stay hidden.
        yield from (str(folder.parent / name) for name in ("pyvenv.cfg", "lib", "lib64"))
