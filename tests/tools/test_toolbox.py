"""The toolbox: from a name that a model uses to the one tool that it means, or to none."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from loopwright.tools.builtin import ToolLimit
from loopwright.tools.mcp.server_records import HttpServer
from loopwright.tools.results import ToolCallResult
from loopwright.tools.toolbox import NATIVE, Grant, Offer, ServerGrant, Workshop, grant_problem
from tests.tools.boxes import (
    ALL,
    WORKSPACE,
    Room,
    bench_server,
    furnish,
    inside,
    problem,
    resolved,
    run,
    stdio,
)

READ = '{"path":"README.md"}'


@pytest.mark.item("aldo-41")
@pytest.mark.parametrize("name", ["fs.read", "read"])
def test_short_and_long_names_are_one_tool(tmp_path: Path, name: str) -> None:
    """Whichever form the model uses, the record has the tool's own name."""
    wanted = resolved(tmp_path, name, READ)
    assert (wanted.tool, wanted.problem, wanted.paths) == ("fs.read", "", ("README.md",))


@pytest.mark.item("aldo-30", "aldo-41", "I-3")
@pytest.mark.parametrize(
    "name",
    [
        "FS.READ", "Fs.read", "fs.Read", " fs.read", "fs.read ", "fs.read\n", "fs .read",
        "fs..read", ".read", "fs.", "fs", "", ".", "*", "fs_read", "fs/read", "fs-read",
        "server.fs.read",
        "fs.read.fs", "fs.read\0", "fs\u200b.read", "fs.r\u0435ad", "ｆｓ.read", "fs․read", "ead",
        "s.read", "functions.fs.read", "x" * 10_000, "result.write", "fs.delete",
    ],
    ids=lambda name: ascii(name)[:24],
)  # fmt: skip
def test_no_other_spelling_is_a_tool(tmp_path: Path, name: str) -> None:
    """Case, spaces, look-alikes and other joints name nothing; the model is told what there is."""
    wanted = resolved(tmp_path, name, READ)
    assert "there is no tool" in wanted.problem
    assert wanted.arguments == {"path": "README.md"}  # for the log; the call is not run
    assert len(wanted.problem) < 1_000
    outcome = run(tmp_path, name, {"path": "README.md"})
    assert problem(outcome) == "unknown-tool"
    assert "Read me" not in outcome.text


@pytest.mark.item("aldo-30")
@pytest.mark.parametrize("tool", sorted(set(NATIVE) - {"fs.read"}))
def test_what_is_not_granted_is_not_there(tmp_path: Path, tool: str) -> None:
    """A tool outside the grant is neither offered nor resolved nor run, even by its own name."""
    grant = Grant(native=("fs.read",))
    wanted = resolved(tmp_path, tool, '{"path":"x","content":"x","argv":["ls"]}', grant)
    assert "there is no tool" in wanted.problem
    assert problem(run(tmp_path, tool, {"path": "x", "content": "x"}, grant)) == "unknown-tool"
    assert not (tmp_path / "work" / "x").exists()


def test_run_wants_the_own_name(tmp_path: Path) -> None:
    """What was approved under one name cannot be run under another."""
    assert problem(run(tmp_path, "read", {"path": "README.md"})) == "unknown-tool"


def test_an_empty_grant_has_nothing(tmp_path: Path) -> None:
    """Not even the tool for long results."""

    async def play(room: Room) -> Offer:
        return await room.box(Grant()).specs()

    assert inside(tmp_path, play) == Offer(tools=())


@pytest.mark.item("I-3", "I-4", "W15", "aldo-79")
@pytest.mark.parametrize(
    ("args", "says"),
    [
        pytest.param("{", "not JSON", id="cut-off"),
        pytest.param("not json", "not JSON", id="text"),
        pytest.param('["README.md"]', "must be a JSON object", id="list"),
        pytest.param("null", "must be a JSON object", id="null"),
        pytest.param("", "'path' is a required property", id="empty"),
        pytest.param("{}", "'path' is a required property", id="missing"),
        pytest.param('{"path":1}', "path: 1 is not of type 'string'", id="type"),
        pytest.param('{"path":"a","mode":"x"}', "'mode'", id="unknown-field"),
        pytest.param('{"path":"a","offset":0}', "offset", id="minimum"),
        pytest.param('{"path":"a","offset":true}', "offset", id="boolean-is-no-number"),
        pytest.param('{"path":"' + "x" * 2**21 + '"}', "more than", id="two-megabytes"),
        pytest.param('{"path":' + "[" * 5_000, "not JSON", id="deep"),
        pytest.param('{"path":"\\ud800"}', "not JSON", id="surrogate"),
    ],
)
def test_arguments_that_do_not_fit_are_reported_to_the_model(
    tmp_path: Path, args: str, says: str
) -> None:
    """The problem is in the record, with its place, and so are the arguments as far as they can be
    kept: as JSON, else the beginning of what the model wrote.
    """
    wanted = resolved(tmp_path, "fs.read", args)
    assert says in wanted.problem
    try:
        written = json.loads(args or "{}") if len(args) < 2**20 else args[:10_000]
    except (ValueError, RecursionError):
        written = args
    if "ud800" in args:
        written = args  # JSON that cannot be stored
    assert (wanted.tool, wanted.arguments) == ("fs.read", written)
    assert len(wanted.problem) < 2_000


def test_edited_arguments_are_looked_at_again(tmp_path: Path) -> None:
    """`run` trusts nobody's arguments, not even a person's."""
    assert problem(run(tmp_path, "fs.write", {"path": "x"})) == "bad-arguments"
    assert problem(run(tmp_path, "fs.write", None)) == "bad-arguments"
    assert problem(run(tmp_path, "fs.read", {"path": "../x"}, approved=True)) == "outside-workspace"


@pytest.mark.item("aldo-40")
@pytest.mark.parametrize(
    ("tool", "args", "paths", "protected"),
    [
        ("fs.write", '{"path":"src/new.py","content":""}', ("src/new.py",), False),
        ("fs.write", '{"path":"alias/config","content":""}', (".git/config",), True),
        (
            "fs.edit",
            '{"path":"./src/../package.json","old":"a","new":"b"}',
            ("package.json",),
            True,
        ),
        ("fs.read", '{"path":".env"}', (".env",), True),
        ("fs.list", "{}", (".",), False),
        ("shell.exec", '{"argv":["ls"]}', None, False),
        ("result.more", '{"handle":"result:x"}', (), False),
    ],
)
def test_a_call_reports_what_it_would_touch(
    tmp_path: Path, tool: str, args: str, paths: tuple[str, ...] | None, protected: bool
) -> None:
    """Real paths, links followed; None where nobody can say."""
    (furnish(tmp_path) / "alias").symlink_to(".git")
    wanted = resolved(tmp_path, tool, args)
    assert (wanted.problem, wanted.paths, wanted.protected) == ("", paths, protected)


def test_a_path_outside_is_a_problem_before_anybody_is_asked(tmp_path: Path) -> None:
    """No person has to turn down what would be refused anyway."""
    wanted = resolved(tmp_path, "fs.write", '{"path":"../x","content":""}')
    assert "leads out of the workspace" in wanted.problem
    assert wanted.paths is None


def test_what_may_be_done_again(tmp_path: Path) -> None:
    """Reading may be repeated after a crash; what changes something, or is unknown, may not."""

    async def play(room: Room) -> dict[str, bool]:
        box = room.box(replace(ALL, servers=(bench_server(),)))
        return {name: box.repeatable(name) for name in [*WORKSPACE, "bench.echo", "nothing"]}

    assert inside(tmp_path, play) == {
        "fs.read": True, "fs.list": True, "fs.search": True, "fs.write": False, "fs.edit": False,
        "fs.mkdir": False,
        "shell.exec": False, "bench.echo": False, "nothing": False,
    }  # fmt: skip


@pytest.mark.item("aldo-28")
def test_a_tool_that_throws_is_data(tmp_path: Path) -> None:
    """Whatever a tool raises, the loop gets an error with its message."""

    def broken(schema: object, value: object) -> str | None:
        raise ZeroDivisionError("no such luck")

    async def play(room: Room) -> ToolCallResult:
        workshop = Workshop(room.workshop._programs, broken)
        return await Room(room.folder, workshop).box().run("fs.read", {"path": "README.md"})

    outcome = inside(tmp_path, play)
    assert outcome.error
    assert outcome.text == '{"error":"ZeroDivisionError: no such luck","type":"tool-error"}'


@pytest.mark.item("W15")
def test_a_time_limit_is_data(tmp_path: Path) -> None:
    """A call that takes too long is told so."""
    grant = replace(ALL, limits={"fs.search": ToolLimit(seconds=0)})
    assert problem(run(tmp_path, "fs.search", {"pattern": "x"}, grant)) == "timeout"


@pytest.mark.parametrize(
    ("grant", "says"),
    [
        (Grant(native=("fs.raed",)), "use fs.read"),
        (Grant(servers=(ServerGrant(name="fs", spec=stdio(), allow=("*",)),)), "choose another"),
        (Grant(servers=(ServerGrant(name="a.b", spec=stdio(), allow=("*",)),)), "letters, digits"),
        (Grant(servers=(bench_server(), bench_server())), "granted twice"),
        (Grant(servers=(ServerGrant(name="w", spec=HttpServer(url="x"), allow=()),)), None),
    ],
)
def test_a_grant_that_cannot_be_meant_is_refused(
    tmp_path: Path, grant: Grant, says: str | None
) -> None:
    """With the way out. No server can take the name of a built-in tool."""
    found = grant_problem(grant)
    assert (found is None) if says is None else (found is not None and says in found)


def test_the_id_of_a_call_is_kept(tmp_path: Path) -> None:
    """Whatever is wrong with a call, its result can be given to it."""
    assert resolved(tmp_path, "nothing").id == resolved(tmp_path, "fs.read", READ).id == "c1"
