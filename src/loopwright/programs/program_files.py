"""The files that a program consists of: what a sandbox that hides other files must show."""

import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_MOST_LINKS = 40
_MOST_INTERPRETERS = 8
# Version managers, with what the files that name a version are called.
_MANAGERS = {
    "pyenv": "python",
    "rbenv": "ruby",
    "nodenv": "node",
    "goenv": "go",
    "plenv": "perl",
    "phpenv": "php",
    "jenv": "java",
}
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/-]{0,127}")
_MOST_BYTES = 4_096  # of a file that names versions
_SYSTEM_FOLDERS = ("/usr/", "/bin/", "/opt/")
_INTERPRETERS = (
    *("python", "pypy", "node", "nodejs", "bun", "deno", "ruby", "perl", "php", "lua", "Rscript"),
    *("sh", "bash", "dash", "zsh", "ksh", "fish", "java", "tclsh", "guile", "julia"),
)


def program_files(file: str, path: str | None = None) -> Iterator[str]:
    """What a program needs of itself: its file behind all links, the package around it, and the
    program that its first line names, which may be a script itself.
    """
    for one in (file, *_all_interpreters(file, path)):
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

    Only files are read: nothing is started, as an agent may have written the shim, the manager and
    the files that name a version. Of these files, only versions that are installed count.
    """
    folder = Path(file).parent
    versions = folder.parent / "versions"
    if folder.name != "shims" or not versions.is_dir():
        return file
    manager = next((one for one in _MANAGERS if _is_managed_by(folder.parent, one)), None)
    if manager is None:
        return file
    inside = os.path.realpath(versions)
    for version in _chosen_versions(manager, folder.parent, cwd, env):
        found = _installed(versions, version) / "bin" / Path(file).name
        real = os.path.realpath(found)
        is_its_own = real.startswith((inside + os.sep, *_SYSTEM_FOLDERS))
        if is_its_own and os.path.isfile(real) and os.access(real, os.X_OK):
            return str(found)
    return file


def _is_managed_by(root: Path, manager: str) -> bool:
    """Whether a folder belongs to a version manager, which may itself be installed elsewhere."""
    return root.name in (manager, f".{manager}") or (root / "bin" / manager).is_file()


def _chosen_versions(manager: str, root: Path, cwd: str, env: Mapping[str, str]) -> Iterator[str]:
    """The versions that a manager would use: of its variable, else of the nearest file that names
    some, from the working directory upwards, else of its global file.
    """
    words = env.get(f"{manager.upper()}_VERSION", "").split(":")
    name = f".{_MANAGERS[manager]}-version"
    files = [folder / name for folder in (Path(cwd), *Path(cwd).parents)]
    while not any(words) and files:
        words = _words(files.pop(0))
    for word in words if any(words) else _words(root / "version"):
        if _VERSION.fullmatch(word) and ".." not in word.split("/"):
            yield word


def _installed(versions: Path, version: str) -> Path:
    """The folder of a version. `3.12` stands for the newest `3.12.…` that is installed."""
    if (versions / version).is_dir() or "/" in version:
        return versions / version
    found = [one for one in versions.glob(f"{version}.*") if one.is_dir()]
    newest = max(found, key=lambda one: [*map(int, re.findall(r"\d+", one.name))], default=None)
    return newest or versions / version


def _words(file: Path) -> list[str]:
    """The words of a small file; none if it is missing or is not an ordinary file."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return []
            text = stream.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return []
    return [word for line in text.splitlines() for word in line.partition("#")[0].split()]


def _all_interpreters(file: str, path: str | None) -> list[str]:
    """The interpreters of a script, and theirs, as far as the system follows them."""
    found = interpreters(file, path)
    for one in found:
        if len(found) < _MOST_INTERPRETERS:
            found += [inner for inner in interpreters(one, path) if inner not in found]
    return found


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
