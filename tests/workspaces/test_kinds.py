"""Every kind of workspace: what a snapshot has, what it names as left out, what stays untouched."""

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from loopwright.ports import FileChange
from loopwright.workspaces.scan import SnapshotLimits
from loopwright.workspaces.snapshots import GitWorkspaces
from tests.workspaces.folders import commit, fingerprint, git, put, repository

RUN = "run_kinds"
DEFAULT = frozenset({"a.txt", "src/b.py"})
GIGABYTE = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How a workspace is made below a folder, and what its snapshots are to have."""

    make: Callable[[Path], Path]  # returns the workspace
    files: frozenset[str] = DEFAULT
    omitted: frozenset[str] = frozenset()
    edit: Callable[[Path], object] | None = None
    changed: frozenset[tuple[str, str]] = frozenset({("edit.txt", "added")})
    later: frozenset[str] = frozenset()  # left out after the edit


def kind(make: Callable[[Path], object], *files: str, **more: object) -> Kind:
    """A kind whose workspace is the folder itself, unless `make` returns another."""

    def made(folder: Path) -> Path:
        result = make(folder)
        return result if isinstance(result, Path) else folder

    given = {"files": frozenset(files)} if files else {}
    frozen = {k: frozenset(v) if isinstance(v, set) else v for k, v in more.items()}
    return Kind(make=made, **given, **frozen)  # type: ignore[arg-type]


def edit_is_seen(workspace: Path) -> None:
    (workspace / "edit.txt").write_text("edit\n")


# Repositories


def dirty(folder: Path) -> None:
    repository(folder)
    put(folder, a__txt="staged\n")
    git(folder, "add", "a.txt")
    put(folder, a__txt="not staged\n", new__txt="new\n")


def detached(folder: Path) -> None:
    repository(folder)
    put(folder, c__txt="c\n")
    commit(folder, "second")
    git(folder, "checkout", "-q", "--detach", "HEAD~")


def linked_worktree(folder: Path) -> Path:
    repository(folder / "main")
    git(folder / "main", "worktree", "add", "-q", "-b", "side", str(folder / "side"))
    return folder / "side"


def submodule(folder: Path) -> Path:
    repository(folder / "library")
    top = repository(folder / "top")
    git(top, "submodule", "add", "-q", str(folder / "library"), "lib")
    commit(top, "with a submodule")
    return top


def absent_submodule(folder: Path) -> Path:
    top = submodule(folder)
    git(top, "submodule", "deinit", "-q", "-f", "lib")
    return top


def nested(folder: Path) -> None:
    repository(folder)
    repository(folder / "inner")
    put(folder / "inner", __gitignore="*.log\n", x__log="ignored\n")
    put(folder, __gitignore="*.tmp\n", inner___y__tmp="ignored\n")


def nested_without_commits(folder: Path) -> None:
    put(folder, inner___c__txt="c\n")
    git(folder / "inner", "init", "-q")


def repository_made_over_tracked_files(workspace: Path) -> None:
    git(workspace / "src", "init", "-q")
    put(workspace, src___b__py="hidden?\n", src___new__py="n\n")


def subfolder(folder: Path) -> Path:
    repository(folder)
    put(
        folder,
        __gitignore="*.o\n/app/build/\n/other\napp/*.cfg\n",
        app___main__py="m\n",
        app___x__o="ignored",
        app___build___y="ignored",
        app___z__cfg="ignored",
        app___other="kept: the rule is about the folder above\n",
    )
    return folder / "app"


def merging(folder: Path) -> None:
    repository(folder)
    git(folder, "checkout", "-q", "-b", "side")
    put(folder, a__txt="side\n")
    commit(folder, "side")
    git(folder, "checkout", "-q", "main")
    put(folder, a__txt="main\n")
    commit(folder, "main")
    git(folder, "merge", "-q", "side", check=False)


def bare(folder: Path) -> Path:
    git(folder, "init", "-q", "--bare", "--template=", "bare.git")
    return folder / "bare.git"


def sparse(folder: Path) -> None:
    repository(folder)
    git(folder, "sparse-checkout", "set", "--no-cone", "/a.txt")


def lfs(folder: Path) -> None:
    repository(folder)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
    put(folder, __gitattributes="*.bin filter=lfs diff=lfs merge=lfs -text\n", x__bin=pointer)


def trapped(folder: Path) -> None:
    """A repository that would start programs if its settings counted."""
    repository(folder)
    trap = folder.parent / "trapped"
    put(folder, __gitattributes="* filter=evil diff=evil\n")
    hook = folder / ".git" / "hooks" / "post-index-change"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\ntouch '{trap}'\n")
    hook.chmod(0o755)
    for name in ("core.fsmonitor", "filter.evil.clean", "filter.evil.smudge", "diff.evil.textconv"):
        git(folder, "config", name, str(hook))


def line_ends(folder: Path) -> None:
    repository(folder)
    git(folder, "config", "core.autocrlf", "true")
    (folder / "crlf.txt").write_bytes(b"one\r\ntwo\r\n")
    put(folder, __gitattributes="* text=auto eol=crlf ident working-tree-encoding=UTF-16\n")


def broken_git_file(folder: Path) -> None:
    put(folder, a__txt="a\n", src___b__py="b\n", __git="gitdir: /nowhere/at/all\n")


def nested_rules(folder: Path) -> None:
    put(
        folder, **{".gitignore": "*.o\n", "s/x.o": "no", "s/y.log": "no", "s/.gitignore": "*.log\n"}
    )


def private_rules(folder: Path) -> None:
    repository(folder)
    (folder / ".git" / "info").mkdir()
    put(folder, __git___info___exclude="secret.txt\n", secret__txt="no\n")


def tracked_but_ignored(folder: Path) -> None:
    repository(folder)
    put(folder, keep__log="tracked\n")
    commit(folder, "with a log")
    put(folder, __gitignore="*.log\n", drop__log="ignored\n")


def committed_in_between(workspace: Path) -> None:
    edit_is_seen(workspace)
    commit(workspace, "by the agent")


# Files


def odd_names(folder: Path) -> None:
    for name in ("-dash", ":colon", " space ", "back\\slash", 'quo"te', "st*r", "!not", "#x", "é"):
        (folder / name).write_text("x")


def raw_names(folder: Path) -> None:
    for name in (b"line\nbreak", b"latin\xff", b"tab\t", b"\x1b[31m"):
        Path(os.fsdecode(os.path.join(os.fsencode(folder), name))).write_text("x")


def too_deep(folder: Path) -> None:
    """Folders whose path is longer than the system takes in one call."""
    put(folder, a__txt="a\n")
    here = os.open(folder, os.O_RDONLY)
    for _ in range(25):
        os.mkdir("d" * 200, dir_fd=here)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("deep.txt", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def deep(folder: Path) -> None:
    put(folder, **{"___".join(["x"] * 200): "deep\n"})


def special(folder: Path) -> None:
    put(folder, a__txt="a\n", sub___b__txt="b\n")
    os.mkfifo(folder / "pipe")
    os.mkfifo(folder / "sub" / "pipe")
    with socket.socket(socket.AF_UNIX) as one:
        here = Path.cwd()
        os.chdir(folder)
        one.bind("socket")
        os.chdir(here)


def hidden_specials(folder: Path) -> None:
    put(folder, a__txt="a\n", __gitignore="run/\n", run___x="ignored")
    os.mkfifo(folder / "run" / "pipe")


def big(folder: Path) -> None:
    put(folder, a__txt="a\n")
    with (folder / "big.img").open("wb") as file:
        file.truncate(GIGABYTE)


def grown(workspace: Path) -> None:
    with (workspace / "a.txt").open("wb") as file:
        file.truncate(GIGABYTE)


def links(folder: Path) -> None:
    (folder.parent / "outside").mkdir()
    (folder.parent / "outside" / "private").write_text("private")
    put(folder, a__txt="a\n", sub___b__txt="b\n")
    (folder / "in").symlink_to("a.txt")
    (folder / "folder").symlink_to("sub")
    (folder / "out").symlink_to(folder.parent / "outside")
    (folder / "broken").symlink_to("nowhere")
    (folder / "self").symlink_to("self")


def replaced_by(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def edit(workspace: Path) -> None:
        (workspace / "a.txt").unlink()
        make(workspace / "a.txt")

    return edit


def folder_in_place(path: Path) -> None:
    put(path, inner__txt="inner\n")


def folder_to_link(workspace: Path) -> None:
    (workspace / "src" / "b.py").rename(workspace.parent / "b.py")
    (workspace / "src").rmdir()
    (workspace / "src").symlink_to(workspace.parent)


def folder_to_file(workspace: Path) -> None:
    (workspace / "src" / "b.py").unlink()
    (workspace / "src").rmdir()
    (workspace / "src").write_text("now a file\n")


def ignored_later(workspace: Path) -> None:
    put(workspace, __gitignore="a.txt\n", a__txt="changed\n")


def read_only(folder: Path) -> None:
    put(folder, a__txt="a\n", locked___b__txt="b\n")
    (folder / "locked").chmod(0o555)


def linked_workspace(folder: Path) -> Path:
    put(folder, real___a__txt="a\n")
    (folder / "way").symlink_to(folder / "real")
    return folder / "way"


def odd_workspace(folder: Path) -> Path:
    workspace = folder / "odd\nname [x] 'y' \\z*"
    put(workspace, a__txt="a\n")
    return workspace


def hard_links(folder: Path) -> None:
    put(folder, a__txt="a\n")
    (folder / "b.txt").hardlink_to(folder / "a.txt")


def program(folder: Path) -> None:
    put(folder, run__sh="#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)


def git_in_disguise(folder: Path) -> None:
    put(folder, **{"a.txt": "a\n", ".GIT/config": "x", "sub/.GIT": "x"})


TOO_DEEP = "/".join(["d" * 200] * 3)[:500] + "…"
LONG = "n" * 251 + ".txt"
KINDS = {
    "empty": kind(lambda f: None, files=set()),
    "no-git": kind(lambda f: put(f, a__txt="a\n", src___b__py="b\n")),
    "clean-repository": kind(repository),
    "dirty-index": kind(dirty, "a.txt", "src/b.py", "new.txt"),
    "detached-head": kind(detached),
    "linked-worktree": kind(linked_worktree),
    "submodule": kind(submodule, *DEFAULT, ".gitmodules", "lib/a.txt", "lib/src/b.py"),
    "submodule-not-checked-out": kind(absent_submodule, *DEFAULT, ".gitmodules"),
    "nested-repository": kind(
        nested, *DEFAULT, ".gitignore", "inner/a.txt", "inner/src/b.py", "inner/.gitignore"
    ),
    "nested-without-commits": kind(nested_without_commits, "inner/c.txt"),
    "becomes-a-nested-repository": kind(
        repository,
        edit=repository_made_over_tracked_files,
        changed={("src/b.py", "modified"), ("src/new.py", "added")},
    ),
    "subfolder-of-a-repository": kind(subfolder, "main.py", "other"),
    "merge-in-progress": kind(merging),
    "bare-repository": kind(bare, "HEAD", "config"),
    "sparse-checkout": kind(sparse, "a.txt"),
    "lfs-pointers": kind(lfs, *DEFAULT, ".gitattributes", "x.bin"),
    "settings-that-start-programs": kind(trapped, *DEFAULT, ".gitattributes"),
    "line-ends-and-encodings": kind(line_ends, *DEFAULT, ".gitattributes", "crlf.txt"),
    "git-file-that-leads-nowhere": kind(broken_git_file),
    "everything-ignored": kind(
        lambda f: put(f, __gitignore="*\n", a__txt="a\n"), files=set(), changed=set()
    ),
    "nested-ignore-files": kind(nested_rules, ".gitignore", "s/.gitignore"),
    "private-ignore-rules": kind(private_rules),
    "tracked-but-ignored": kind(tracked_but_ignored, *DEFAULT, ".gitignore", "keep.log"),
    "ignored-by-the-agent": kind(
        repository, edit=ignored_later, changed={(".gitignore", "added"), ("a.txt", "modified")}
    ),
    "commits-in-between": kind(repository, edit=committed_in_between),
    "one-gigabyte-file": kind(big, "a.txt", omitted={"big.img"}, later={"big.img"}),
    "grows-over-the-limit": kind(
        lambda f: put(f, a__txt="a\n"),
        "a.txt",
        edit=grown,
        changed={("a.txt", "deleted")},
        later={"a.txt"},
    ),
    "pipes-and-sockets": kind(
        special,
        "a.txt",
        "sub/b.txt",
        omitted={"pipe", "socket", "sub/pipe"},
        later={"pipe", "socket"},
    ),
    "pipes-in-ignored-folders": kind(hidden_specials, "a.txt", ".gitignore"),
    "names-with-odd-signs": kind(
        odd_names, "-dash", ":colon", " space ", "back\\slash", 'quo"te', "st*r", "!not", "#x", "é"
    ),
    "names-with-line-ends-and-raw-bytes": kind(
        raw_names, "line\nbreak", "latin\\xff", "tab\t", "\x1b[31m"
    ),
    "longest-name": kind(lambda f: put(f, **{LONG.replace(".", "__"): "x"}), LONG),
    "deep-path": kind(deep, "/".join(["x"] * 200)),
    "deeper-than-a-path-can-be": kind(too_deep, "a.txt", omitted={TOO_DEEP}),
    "names-that-differ-in-case": kind(lambda f: put(f, a="1", A="2"), "a", "A"),
    "names-that-differ-in-form": kind(
        lambda f: put(f, **{"\u00e9": "1", "e\u0301": "2"}), "\u00e9", "e\u0301"
    ),
    "empty-folders": kind(lambda f: (f / "x" / "y").mkdir(parents=True), files=set()),
    "programs": kind(program, "run.sh"),
    "links": kind(links, "a.txt", "sub/b.txt", "in", "folder", "out", "broken", "self"),
    "hard-links": kind(hard_links, "a.txt", "b.txt"),
    "file-becomes-folder": kind(
        repository,
        edit=replaced_by(folder_in_place),
        changed={("a.txt", "deleted"), ("a.txt/inner.txt", "added")},
    ),
    "file-becomes-link": kind(
        repository,
        edit=replaced_by(lambda p: p.symlink_to("src/b.py")),
        changed={("a.txt", "type_changed")},
    ),
    "file-becomes-pipe": kind(
        repository, edit=replaced_by(os.mkfifo), changed={("a.txt", "deleted")}, later={"a.txt"}
    ),
    "folder-becomes-link": kind(
        repository, edit=folder_to_link, changed={("src/b.py", "deleted"), ("src", "added")}
    ),
    "folder-becomes-file": kind(
        repository, edit=folder_to_file, changed={("src/b.py", "deleted"), ("src", "added")}
    ),
    "renamed-file": kind(
        lambda f: put(f, a__txt="some text that is long enough\n" * 5),
        "a.txt",
        edit=lambda f: (f / "a.txt").rename(f / "b.txt"),
        changed={("b.txt", "renamed")},
    ),
    "read-only-folder": kind(read_only, "a.txt", "locked/b.txt"),
    "workspace-behind-a-link": kind(linked_workspace, "a.txt"),
    "workspace-with-an-odd-name": kind(odd_workspace, "a.txt"),
    "names-that-only-git-may-have": kind(
        git_in_disguise,
        "a.txt",
        omitted={".GIT/config", "sub/.GIT"},
        later={".GIT/config", "sub/.GIT"},
    ),
    "many-files": kind(
        lambda f: [(f / f"{n}.txt").write_text(f"{n}\n") for n in range(600)],
        *(f"{n}.txt" for n in range(600)),
    ),
    "binary-files": kind(lambda f: (f / "x.bin").write_bytes(bytes(range(256))), "x.bin"),
}


def paths(changes: object) -> set[str]:
    assert isinstance(changes, list | tuple)
    return {one.path for one in changes if isinstance(one, FileChange)}


def repositories(top: Path) -> list[Path]:
    """The folders of the user that Git keeps its own things in."""
    found = [Path(f) / ".git" for f, names, files in os.walk(top) if ".git" in (*names, *files)]
    return [*found, *top.glob("bare.git")]


@pytest.mark.item("rec-10", "rec-11")
@pytest.mark.parametrize("name", KINDS)
def test_snapshot_of_every_kind_of_workspace(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorded files, the names of what is left out and the change in between are right; no
    repository of the user differs afterwards, in content or in the time of its index.
    """
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "wrong"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "wrong-index"))
    one = KINDS[name]
    (tmp_path / "top").mkdir()
    workspace = one.make(tmp_path / "top")
    store = GitWorkspaces(tmp_path / "data")

    async def scenario() -> None:
        before = fingerprint(*repositories(tmp_path / "top"))
        first = await store.snapshot(RUN, str(workspace))
        assert paths(await store.changes(RUN, "", first.tree)) == one.files
        assert (set(first.omitted), first.omitted_count) == (one.omitted, len(one.omitted))
        assert fingerprint(*repositories(tmp_path / "top")) == before
        (one.edit or edit_is_seen)(workspace)
        before = fingerprint(*repositories(tmp_path / "top"))
        second = await store.snapshot(RUN, str(workspace), previous=first.tree, first=first.tree)
        changes = await store.changes(RUN, first.tree, second.tree)
        assert {(each.path, each.status) for each in changes} == one.changed
        assert second.changed.files == len(one.changed)
        assert set(second.omitted) == one.later
        assert fingerprint(*repositories(tmp_path / "top")) == before

    asyncio.run(scenario())
    assert len(KINDS) >= 40
    assert not (tmp_path / "trapped").exists(), "a program of the repository was started"
    assert not list(tmp_path.glob("wrong*"))
    git(
        tmp_path / "data",
        "--git-dir",
        str(next((tmp_path / "data" / "snapshots").glob("*.git"))),
        "fsck",
        "--strict",
    )


@pytest.mark.item("rec-11")
def test_limits_leave_out_by_name(tmp_path: Path) -> None:
    """Files beyond the size of one file, of all files or their number are left out and named."""
    put(tmp_path / "w", a="1" * 10, b="2" * 10, c="3" * 10, d="4" * 100, e="")

    async def taken(limits: SnapshotLimits, run: str) -> tuple[str, ...]:
        store = GitWorkspaces(tmp_path / run, limits)
        return (await store.snapshot(run, str(tmp_path / "w"))).omitted

    assert asyncio.run(taken(SnapshotLimits(file_bytes=50), "run_a")) == ("d",)
    assert asyncio.run(taken(SnapshotLimits(total_bytes=25), "run_b")) == ("c", "d")
    assert asyncio.run(taken(SnapshotLimits(files=2), "run_c")) == ("c", "d", "e")
