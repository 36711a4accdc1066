"""The tools of the trackers: versions, bounds, refusals, and doing a thing once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from loopwright.model.trackers import LOOP_OUTPUT, Item
from loopwright.operations.agents.tool_grants import SkillFile, find_skills
from loopwright.operations.agents.tools import open_workshop
from loopwright.tools.results import FolderResultStore, ToolCallResult
from loopwright.tools.toolbox import NATIVE, Grant, Toolbox
from loopwright.tools.tracker_scope import TrackerScope
from tests.support.memory_trackers import MemoryTrackers
from tests.tools.boxes import environment, furnish, problem, value

ENGINE = Item(
    scope="s",
    kind="artifact",
    id="e" * 32,
    values={"type": LOOP_OUTPUT, "title": "Loop output: plan (iter 1, stage 0)", "content": "P"},
)


class Table:
    """A box of all tools at a desk."""

    def __init__(self, folder: Path, *, role: str = "coder", tracker_scope: bool = True) -> None:
        if not (folder / "work").exists():
            furnish(folder)
        self.folder = folder
        self.trackers = MemoryTrackers()
        self.role = role
        self.has_desk = tracker_scope
        self._keys = 0

    def do(self, tool: str, key: str = "", **arguments: Any) -> ToolCallResult:
        self._keys += 1
        chosen = key or f"k{self._keys}"
        tracker_scope = TrackerScope(
            trackers=self.trackers,
            scope="s",
            memory="memory:work",
            run="run_1",
            role=self.role,
            now_ms=lambda: 7,
            made=lambda kind: [ENGINE] if kind == "artifact" else [],
            skills=lambda: {"knit": SkillFile("knit", "How to knit", "Two left.")},
        )

        async def work() -> ToolCallResult:
            async with open_workshop(environment(), "token-of-a-test") as shop:
                box: Toolbox = shop.toolbox(
                    str(self.folder / "work"),
                    Grant(native=tuple(NATIVE)),
                    FolderResultStore(self.folder / "shelf"),
                    tracker_scope if self.has_desk else None,
                )
                return await box.run(tool, arguments, key=chosen)

        return asyncio.run(work())


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def test_artifacts_have_versions(table: Table) -> None:
    """An update is a new version; every one stays readable, by the beginning of its id too."""
    made = value(table.do("artifact.create", type="plan", title="T", content="one"))["ids"][0]
    assert len(made) == 32
    told = value(table.do("artifact.update", id=made, content="two"))
    assert told == {"id": made, "version": 2}
    read = value(table.do("artifact.read", id=made[:8]))
    assert (read["content"], read["version"], read["type"], read["updated_by"]) == (
        *("two", 2, "plan", "coder"),
    )
    assert value(table.do("artifact.read", id=made, version=1))["content"] == "one"
    assert problem(table.do("artifact.read", id=made, version=9)) == "not-found"
    listed = value(table.do("artifact.list", type="plan"))["artifacts"]
    assert [one["size"] for one in listed] == [3]
    assert "content" not in listed[0]


def test_what_the_engine_made_is_read_and_never_changed(table: Table) -> None:
    """A loop_output is listed with the others; nobody makes, changes or deletes one."""
    assert value(table.do("artifact.read", id=ENGINE.id))["content"] == "P"
    assert problem(table.do("artifact.update", id=ENGINE.id, content="x")) == "not-yours"
    assert problem(table.do("artifact.delete", id=ENGINE.id)) == "not-yours"
    made = table.do("artifact.create", type=LOOP_OUTPUT, title="T", content="x")
    assert problem(made) == "bad-arguments"


def test_a_call_that_is_made_again_changes_nothing(table: Table) -> None:
    """After a crash the same call has the same key: one todo, and the same answer."""
    first = table.do("todo.add", key="run_1/main/tool0#1", todos=[{"title": "once"}])
    again = table.do("todo.add", key="run_1/main/tool0#1", todos=[{"title": "once"}])
    assert first == again
    assert len(table.trackers.all("s", "todo")) == 1
    assert all(NATIVE[name].repeatable for name in NATIVE if name.startswith("todo."))


def test_todos(table: Table) -> None:
    """Added in one go, below one another, moved, ended, taken away."""
    parent, child = value(table.do("todo.add", todos=[{"title": "a"}, {"title": "b"}]))["ids"]
    below = table.do("todo.add", todos=[{"title": "c", "priority": "high", "parent": parent}])
    assert not below.error
    assert problem(table.do("todo.add", todos=[{"title": "d", "parent": "zz"}])) == "not-found"
    table.do("todo.update", id=child, status="in_progress")
    table.do("todo.complete", id=child)
    [done] = value(table.do("todo.list", status="completed"))["todos"]
    assert (done["title"], done["completed_by"], done["version"]) == ("b", "coder", 3)
    assert problem(table.do("todo.update", id=child, status="completed")) == "bad-arguments"
    table.do("todo.delete", id=parent)
    assert len(value(table.do("todo.list"))["todos"]) == 2
    many = [{"title": str(n)} for n in range(26)]
    assert problem(table.do("todo.add", todos=many)) == "bad-arguments"
    assert problem(table.do("todo.complete", id="")) == "not-found"


def test_without_a_desk_it_says_so(tmp_path: Path) -> None:
    """A tool that has nowhere to keep things refuses."""
    assert problem(Table(tmp_path, tracker_scope=False).do("todo.list")) == "no-trackers"


def test_skills(table: Table, tmp_path: Path) -> None:
    """Folders or files, with or without front matter; the project's come first."""
    assert table.do("skill.read", name="knit").text == "Two left."
    assert value(table.do("skill.list"))["skills"][0]["name"] == "knit"
    assert problem(table.do("skill.read", name="sew")) == "not-found"
    home, project = tmp_path / "h", tmp_path / "p"
    (home / "skills" / "sew").mkdir(parents=True)
    (home / "skills" / "empty").mkdir()
    (home / "skills" / "sew" / "SKILL.md").write_text("---\ndescription: Sewing\n---\nStitch.\n")
    (home / "skills" / "plain.md").write_text("Just words.")
    (home / "skills" / "other.txt").write_text("no")
    (project / ".loopwright" / "skills").mkdir(parents=True)
    (project / ".loopwright" / "skills" / "sew.md").write_text("---\nx: 1\n---\nOurs.")
    assert find_skills(home, None) == {
        "plain": SkillFile("plain", "", "Just words."),
        "sew": SkillFile("sew", "Sewing", "Stitch."),
    }
    assert find_skills(home, project)["sew"] == SkillFile("sew", "", "Ours.")


@pytest.mark.item("coqui-88")
def test_memories_belong_to_the_workspace(table: Table) -> None:
    """They are found by their words, kept once, and forgotten by id; no session sees them as its
    own.
    """
    first = value(table.do("memory.save", key="k", text="The cache is in Redis"))["ids"]
    assert value(table.do("memory.save", key="k", text="The cache is in Redis"))["ids"] == first
    table.do("memory.save", text="Tests need Postgres")
    found = value(table.do("memory.search", query="redis CACHE"))["memories"]
    assert [one["text"] for one in found] == ["The cache is in Redis"]
    assert len(value(table.do("memory.search"))["memories"]) == 2
    assert [one.scope for one in table.trackers.all("memory:work", "memory")] == ["memory:work"] * 2
    table.do("memory.delete", id=first[0])
    assert len(value(table.do("memory.search"))["memories"]) == 1
    assert problem(table.do("memory.save", text="x" * 5_000)) == "bad-arguments"
