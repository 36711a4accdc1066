"""The tools for files, through the toolbox that agents use."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loopwright.tools.file_tools import LIST_ENTRIES, PAGE_BYTES, READ_BYTES
from loopwright.tools.toolbox import Toolbox
from tests.tools.boxes import ALL, CANARY, Room, furnish, inside, problem, run, value


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """A file and its folders appear; reading gives the text itself."""
    made = run(tmp_path, "fs.write", {"path": "new/a.txt", "content": "zwölf\n"})
    assert value(made) == {"path": "new/a.txt", "bytes": 7, "created": True}
    assert run(tmp_path, "fs.read", {"path": "new/a.txt"}).text == "zwölf\n"
    assert (tmp_path / "work" / "new" / "a.txt").read_text() == "zwölf\n"


@pytest.mark.item("aldo-31", "D1", "D2")
@pytest.mark.parametrize("path", ["../neighbour/secret.txt", "/etc/passwd", "link", "~/x", "a\0b"])
@pytest.mark.parametrize(
    ("tool", "more"),
    [
        ("fs.read", {}),
        ("fs.list", {}),
        ("fs.search", {"pattern": "."}),
        ("fs.write", {"content": "x"}),
        ("fs.edit", {"old": "c", "new": "x"}),
    ],
)
def test_no_file_tool_leaves_the_workspace(
    tmp_path: Path, tool: str, more: dict[str, Any], path: str
) -> None:
    """Each tool refuses each way out and tells nothing of what is there."""
    furnish(tmp_path)
    (tmp_path / "work" / "link").symlink_to("../neighbour/secret.txt")
    outcome = run(tmp_path, tool, {"path": path, **more})
    assert problem(outcome) == ("bad-path" if "\0" in path else "outside-workspace")
    assert CANARY not in outcome.text
    assert (tmp_path / "neighbour" / "secret.txt").read_text() == CANARY


@pytest.mark.item("aldo-31", "D5", "D7")
@pytest.mark.parametrize(
    "path",
    [".git/hooks/pre-commit", ".git", "package.json", ".env.local", "alias/config", "Dockerfile"],
)
def test_protected_paths_need_a_person(tmp_path: Path, path: str) -> None:
    """They are refused, also when they do not exist yet or have another name, unless approved."""
    work = furnish(tmp_path)
    (work / "alias").symlink_to(".git")
    arguments = {"path": path, "content": "x"}
    outcome = run(tmp_path, "fs.write", arguments)
    assert problem(outcome) == "protected-path"
    assert not (work / path).exists()
    if path != "alias/config":
        assert not run(tmp_path, "fs.write", arguments, approved=True).error
        assert (work / path).read_text() == "x"


def test_an_edit_wants_one_place(tmp_path: Path) -> None:
    """None and many are told; `all` means all."""
    work = furnish(tmp_path)
    (work / "a").write_text("one two one\r\n")
    edit = {"path": "a", "old": "one", "new": "1"}
    assert problem(run(tmp_path, "fs.edit", edit)) == "many-matches"
    assert problem(run(tmp_path, "fs.edit", {**edit, "old": "three"})) == "no-match"
    assert value(run(tmp_path, "fs.edit", {**edit, "all": True}))["replaced"] == 2
    assert (work / "a").read_bytes() == b"1 two 1\r\n"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        pytest.param(b"\x00\x01binary", "binary-file", id="nul"),
        pytest.param(b"caf\xe9", "binary-file", id="latin"),
        pytest.param(
            b"x" * (READ_BYTES + 1), "file-too-large", id="large", marks=pytest.mark.item("D14")
        ),
    ],
)
def test_what_is_no_text_is_not_shown(tmp_path: Path, content: bytes, why: str) -> None:
    """Binary and huge files are told with their size."""
    (furnish(tmp_path) / "thing").write_bytes(content)
    outcome = run(tmp_path, "fs.read", {"path": "thing"})
    assert problem(outcome) == why
    assert str(len(content)) in outcome.text


async def pages(box: Toolbox, tool: str, mark: str, arguments: dict[str, Any]) -> list[str]:
    """All that is said by following the notes at the end of each page."""
    seen: list[str] = []
    while True:
        text = (await box.run(tool, arguments)).text
        assert len(text) <= PAGE_BYTES + 200
        body, noted, note = text.rpartition(f"\n[{mark} ")
        seen.append(body if noted else text)
        if not noted:
            return seen
        arguments = {**arguments, "offset": int(note.rpartition(" ")[2].rstrip("]"))}


def test_long_files_come_in_pages(tmp_path: Path) -> None:
    """Every line is reached by following the notes, and no page is longer than a page."""
    lines = [f"line {number} {'x' * 50}\n" for number in range(1, 2_001)]

    async def play(room: Room) -> list[str]:
        (room.work / "long").write_text("".join(lines))
        return await pages(room.box(), "fs.read", "lines", {"path": "long"})

    assert "".join(inside(tmp_path, play)) == "".join(lines)


def test_a_list_reports_what_is_there(tmp_path: Path) -> None:
    """Files with sizes, folders, links as links; deeper only when asked, and never into .git."""
    work = furnish(tmp_path)
    (work / "out").symlink_to("../neighbour")
    (work / ".git").mkdir()
    (work / ".git" / "config").touch()
    flat = value(run(tmp_path, "fs.list", {}))
    assert {e["path"]: e["kind"] for e in flat["entries"]} == {
        ".git": "folder", "README.md": "file", "out": "link", "src": "folder",
    }  # fmt: skip
    deep = value(run(tmp_path, "fs.list", {"recursive": True}))
    paths = {e["path"] for e in deep["entries"]}
    assert "src/main.py" in paths
    assert not any("secret" in p or p.startswith(".git/") for p in paths)


def test_a_long_list_is_cut_and_kept(tmp_path: Path) -> None:
    """No more than the cap, said so, and the whole can be read on by its handle."""

    async def play(room: Room) -> str:
        for number in range(LIST_ENTRIES + 10):
            (room.work / f"f{number}").touch()
        box = room.box()
        shown = await box.run("fs.list", {})
        handle = shown.text.rpartition("result.more: ")[2].rstrip("]")
        return "".join(await pages(box, "result.more", "bytes", {"handle": handle}))

    text = inside(tmp_path, play)
    assert text.count('"path"') == LIST_ENTRIES + 1
    assert text.endswith('"truncated":true}')


@pytest.mark.parametrize(
    "handle", ["result:" + "0" * 64, "../neighbour/secret.txt", "result:../../etc/passwd", ""]
)
def test_a_handle_opens_results_alone(tmp_path: Path, handle: str) -> None:
    """A handle is not a path."""
    assert problem(run(tmp_path, "result.more", {"handle": handle})) == "not-found"


def test_search_finds_lines(tmp_path: Path) -> None:
    """By pattern, by name, in a file or a folder; links are not followed."""
    work = furnish(tmp_path)
    (work / "out").symlink_to("../neighbour")
    (work / "src" / "blob").write_bytes(b"hello\0hello")

    def hits(**arguments: Any) -> list[tuple[str, int]]:
        found = value(run(tmp_path, "fs.search", arguments))["hits"]
        return [(hit["path"], hit["line"]) for hit in found]

    assert hits(pattern="hello") == [("README.md", 2), ("src/main.py", 1)]
    assert hits(pattern="HELLO", ignore_case=True, glob="*.py") == [("src/main.py", 1)]
    assert hits(pattern="hello", path="src/main.py") == [("src/main.py", 1)]
    assert hits(pattern=CANARY) == []


def test_search_is_bounded(tmp_path: Path) -> None:
    """Hits are capped and said to be; a pattern that blows up elsewhere is linear here."""
    work = furnish(tmp_path)
    (work / "many").write_text("a\n" * 1_000)
    (work / "evil").write_text("a" * 50_000 + "b")
    many = value(run(tmp_path, "fs.search", {"pattern": "^a$"}))
    assert (len(many["hits"]), many["truncated"]) == (200, True)
    assert value(run(tmp_path, "fs.search", {"pattern": "(a+)+$", "path": "evil"}))["hits"] == []
    assert problem(run(tmp_path, "fs.search", {"pattern": "(?<=a)b"})) == "bad-pattern"
    assert problem(run(tmp_path, "fs.search", {"pattern": "a", "path": "gone"})) == "not-found"


def test_an_author_may_choose_what_is_protected(tmp_path: Path) -> None:
    """Another list replaces ours."""
    grant = replace(ALL, protected=("src/**",))
    write = {"path": "src/x", "content": ""}
    assert problem(run(tmp_path, "fs.write", write, grant)) == "protected-path"
    assert not run(tmp_path, "fs.write", {"path": "package.json", "content": ""}, grant).error
