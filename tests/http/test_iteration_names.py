"""Iterations of a run that was restarted, at every interface: `2` and `2~1`. With real Git."""

import asyncio
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from loopwright.errors import LoopwrightError
from loopwright.model.ids import loop_path, parse_iteration, try_number
from loopwright.operations.mcp.loop_tools import LoopTools
from loopwright.operations.use_cases.role_loops import RoleLoops
from loopwright.views.iterations import IterationNames
from tests.cli.conftest import Place, lw
from tests.http.served import SECONDS, Served, served

__all__ = ["lw"]
VALID = "there are 1~1 to 3~1, 1~2 to 2~2; a plain number is of the newest try"

# Adds a line with the effect to a file, and reports that as an edit.
AGENT = """#!/bin/sh
cat > /dev/null
echo "$LOOPWRIGHT_EFFECT" >> work.txt
echo '{"type": "tool", "name": "Edit", "args": {"file_path": "'"$LOOPWRIGHT_EFFECT"'"}, "ok": true}'
echo '{"type": "result", "text": "did '"$LOOPWRIGHT_EFFECT"'"}'
"""

# By name: the effect of its agent.
NAMES = {
    "2": "main~2.1/agent#1",
    "2~2": "main~2.1/agent#1",
    "1": "main~2.0/agent#1",
    "2~1": "main.1/agent#1",
    "3~1": "main.2/agent#1",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that takes snapshots; its folder is a Git repository."""
    folder = tmp_path_factory.mktemp("names")
    (folder / "agent.sh").write_text(AGENT)
    (folder / "agent.sh").chmod(0o755)
    (folder / "repository").mkdir()
    subprocess.run(["git", "init", "-q", "."], check=True, cwd=folder / "repository")
    with served(folder, more={"snapshots": "on"}) as one:
        yield one


@pytest.fixture(scope="module")
def run(server: Served) -> str:
    """A run with three iterations in the first try and two in the second one."""
    agent = f"jsonl:{server.folder / 'agent.sh'}"
    text = server.definition(agent, until={"command": ["test", "-f", "done"]})
    made = server.start(text, workspace=str(server.folder / "repository"))
    server.until(made, "exhausted")
    resumed = server("POST", f"/api/v1/runs/{made}/resume", {"restart": True, "max": 2})
    assert resumed.status == 200, resumed.body
    server.until(made, "exhausted")
    return made


class Interfaces:
    """What each interface shows of one iteration: the effects that it names. An error is what it
    says.
    """

    def __init__(self, lw: Place, server: Served, run: str) -> None:
        self._lw, self._server, self._run = lw, server, run
        self._new = lw.folder / "new"

    def _command(self, *args: str) -> str:
        home = str(self._server.folder / "home")
        told = self._lw(*args, "--data-dir", home)
        return told.out if told.code == 0 else told.err + told.out

    def _remote(self, *args: str) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOOPWRIGHT_TOKEN", self._server.token)
            told = self._lw(*args, "--server", f"http://127.0.0.1:{self._server.port}")
        return told.out if told.code == 0 else told.err + told.out

    def _get(self, view: str, **query: str) -> str:
        place = f"/api/v1/runs/{self._run}/{view}?{urlencode(query)}"
        return self._server("GET", place).body.decode()

    def _tool(self, name: str, **given: str) -> str:
        context = self._server.context
        loops = RoleLoops(
            here=context.here, settings=context.settings, cwd=self._server.folder, by="mcp"
        )
        work = LoopTools(loops=loops).answer(name, {"id": self._run, **given})
        return asyncio.run_coroutine_threadsafe(work, self._server.loop).result(SECONDS).text

    def diff(self, name: str) -> str:
        return _added(self._command("diff", self._run, name))

    def remote_diff(self, name: str) -> str:
        return _added(self._remote("diff", self._run, name))

    def diff_over_http(self, name: str) -> str:
        return _added(self._get("diff", **{"from": name}))

    def diff_over_mcp(self, name: str) -> str:
        return _added(self._tool("loop_diff", **{"from": name}))

    def logs(self, name: str) -> str:
        return _said(self._command("logs", self._run, "--iteration", name))

    def remote_logs(self, name: str) -> str:
        return _said(self._remote("logs", self._run, "--iteration", name))

    def tools(self, name: str) -> str:
        return self._command("logs", self._run, "--tools", "--iteration", name)

    def remote_tools(self, name: str) -> str:
        return self._remote("logs", self._run, "--tools", "--iteration", name)

    def tools_over_http(self, name: str) -> str:
        return self._get("activity", iteration=name)

    def tools_over_mcp(self, name: str) -> str:
        return self._tool("loop_activity", iteration=name)

    def restore(self, name: str) -> str:
        """The last line of the file as the iteration left it."""
        told = self._command("restore", self._run, name, "--to", str(self._new))
        return _last_line(self._new) or told

    def fork(self, name: str) -> str:
        """The last line that the fork began with; its agent adds none."""
        new = ("--restore", "--workspace", str(self._new), "--agent", "command:true")
        told = self._command("fork", self._run, "--at", name, "--max", "4", *new)
        return _last_line(self._new) or told


def _added(text: str) -> str:
    """The added lines of a diff, also of one in JSON."""
    lines = text.replace("\\n", "\n").splitlines()
    return "\n".join(line for line in lines if line.startswith("+main") or "there are" in line)


def _said(text: str) -> str:
    """What the agent said in logs."""
    lines = text.splitlines()
    return "\n".join(line for line in lines if "did " in line or "there are" in line)


def _last_line(folder: Path) -> str:
    file = folder / "work.txt"
    return file.read_text().splitlines()[-1] if file.exists() else ""


INTERFACES: dict[str, Callable[[Interfaces, str], str]] = {
    "diff": Interfaces.diff,
    "diff --server": Interfaces.remote_diff,
    "diff over http": Interfaces.diff_over_http,
    "diff over mcp": Interfaces.diff_over_mcp,
    "logs": Interfaces.logs,
    "logs --server": Interfaces.remote_logs,
    "logs --tools": Interfaces.tools,
    "logs --tools --server": Interfaces.remote_tools,
    "activity over http": Interfaces.tools_over_http,
    "activity over mcp": Interfaces.tools_over_mcp,
    "restore": Interfaces.restore,
    "fork": Interfaces.fork,
}


@pytest.mark.item("rec-4", "rec-9", "rec-12", "rec-13", "rec-14")
@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("name", NAMES)
def test_an_iteration_of_each_try_can_be_named(
    lw: Place, server: Served, run: str, interface: str, name: str
) -> None:
    """A plain number is of the newest try; `2~1` is iteration 2 of the first one."""
    shown = INTERFACES[interface](Interfaces(lw, server, run), name)
    effect = NAMES[name]
    assert effect in shown
    others = {*NAMES.values()} - {effect}
    assert [other for other in others if other in shown] == []


@pytest.mark.item("rec-12")
@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("name", ["3", "4~1", "1~3"])
def test_a_wrong_name_lists_the_valid_ones(
    lw: Place, server: Served, run: str, interface: str, name: str
) -> None:
    """Also 3, which only the first try has."""
    shown = INTERFACES[interface](Interfaces(lw, server, run), name)
    assert VALID in shown
    assert "main~2.1/agent" not in shown


@pytest.mark.item("rec-12")
@pytest.mark.parametrize(
    ("names", "lines"),
    [(("0~2", "2~2"), [4, 5]), (("1~1", "1~2"), [2, 3, 4]), (("0", "2"), [1, 2, 3, 4, 5])],
    ids=["within a try", "between tries", "from the start"],
)
def test_diff_compares_iterations_of_tries(
    lw: Place, server: Served, run: str, names: tuple[str, str], lines: list[int]
) -> None:
    """`0~2` is the workspace before the first iteration of try 2."""
    home = str(server.folder / "home")
    told = lw("diff", run, *names, "--data-dir", home)
    every = ["main.0", "main.1", "main.2", "main~2.0", "main~2.1"]
    added = [line for line in told.out.splitlines() if line.startswith("+main")]
    assert added == [f"+{every[number - 1]}/agent#1" for number in lines]


@pytest.mark.item("rec-15")
@pytest.mark.parametrize(
    ("most", "name", "number"), [(2, "3~1", 3), (3, "1~2", 1), (4, "2~2", 2)], ids=str
)
def test_bisect_searches_all_tries(
    lw: Place, server: Served, run: str, most: int, name: str, number: int
) -> None:
    """In the order of time; the iteration has a name that `diff` takes."""
    check = ("--", "sh", "-c", f'test "$(cat work.txt | wc -l)" -le {most}')
    base = ("bisect", run, "--data-dir", str(server.folder / "home"))
    told = lw(*base, *check)
    assert f"iteration {name} broke" in told.out
    assert f"loopwright diff {run} {name}" in told.out
    found = lw(*base, "--json", *check).json
    assert (found["broken_by"], found["iteration"]) == (number, name)
    assert next(iter(found["tested"])) == "0"
    assert found["tested"]["2~2"] is False


@pytest.mark.item("rec-4", "rec-12")
@pytest.mark.parametrize("where", ["here", "at a server"])
def test_show_lists_the_iterations_of_each_try(
    lw: Place, server: Served, run: str, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Under a heading for each try, with the names that other commands take."""
    if where == "here":
        told = lw("show", run, "--data-dir", str(server.folder / "home"))
    else:
        monkeypatch.setenv("LOOPWRIGHT_TOKEN", server.token)
        told = lw("show", run, "--server", f"http://127.0.0.1:{server.port}")
    lines = [line.split("  ")[0].strip("·- ") for line in told.out.splitlines()]
    shown = [line for line in lines if re.match(r"try|\d+~", line)]
    assert shown == [
        "try 1: 1~1 is its first iteration, e.g. `loopwright diff RUN 1~1`",
        *(f"{number}~1" for number in (1, 2, 3)),
        "try 2 (newest): 1~2 or just 1 is its first iteration",
        *(f"{number}~2" for number in (1, 2)),
    ]


# -- names alone -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "loop", "attempt"),
    [
        ("main", "main", 1),
        ("main.0", "main", 1),
        ("main~2.0.review", "main~2", 2),
        ("group~3.dev.1", "group~3.dev", 3),
        ("group.dev~2.1", "group.dev~2", 2),
        ("main.0.review~2", "main", 1),
        ("each~2[3]", "each~2", 2),
        ("main.-1", "main", 1),
    ],
)
def test_the_try_of_a_place(path: str, loop: str, attempt: int) -> None:
    """That of the outermost loop; a step that is retried inside of an iteration has none."""
    assert (loop_path(path), try_number(path)) == (loop, attempt)


@pytest.mark.parametrize("text", ["", "x", "2~", "~1", "2~x", "-1", "2~1~1", "1" * 10])
def test_what_is_no_name_is_refused(text: str) -> None:
    """With the names that there are."""
    assert parse_iteration(text) is None
    with pytest.raises(LoopwrightError) as told:
        IterationNames([("main.0", 1), ("main.1", 2)]).find("run_1", text)
    assert (told.value.code, told.value.hint) == ("bad-iteration", "there are 1 to 2")


def test_a_try_that_continues_another_one_keeps_its_numbers() -> None:
    """Plain numbers before the first iteration of the newest try are of the try before."""
    names = IterationNames([("main.0", 1), ("main.1", 2), ("main.2", 3), ("main~2.2", 3)])
    assert [names.find("run_1", str(number)) for number in (1, 2, 3)] == [(1, 1), (2, 1), (3, 2)]


def test_an_iteration_that_is_followed_may_begin_later() -> None:
    """It is one of the newest try."""
    names = IterationNames([("main.0", 1), ("main.1", 2), ("main~2.0", 1)])
    assert names.find("run_1", "2", future=True) == (2, 2)
    assert names.hint() == "there are 1~1 to 2~1, 1~2; a plain number is of the newest try"
