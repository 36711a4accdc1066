"""MCP servers: real ones, over both wires, alive, dying and dead."""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loopwright.model.chat import CallPart
from loopwright.tools.builtin import ToolLimit
from loopwright.tools.mcp.server_records import HttpServer, ServerSpec
from loopwright.tools.results import ToolCallResult
from loopwright.tools.toolbox import Grant, ServerGrant, Toolbox
from tests.agents.leaping import HOUR_S, leap_when
from tests.tools.boxes import (
    CANARY,
    MCP_TOOLS,
    SERVER,
    Room,
    bench_server,
    inside,
    problem,
    stdio,
    value,
)
from tests.tools.test_shell import is_alive

STDIO = Grant(servers=(bench_server("noisy"),))


@contextmanager
def served(folder: Path, program: Path) -> Iterator[int]:
    """A server behind an address, and its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, str(program), "http", str(port)]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL) as process:
        try:
            while True:
                with socket.socket() as probe:
                    probe.settimeout(1)
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert process.poll() is None
                time.sleep(0.05)
            yield port
        finally:
            process.kill()


@pytest.fixture(scope="module")
def http_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with served(tmp_path_factory.mktemp("http-server"), Path(SERVER)) as port:
        yield port


def http(port: int, **more: Any) -> Grant:
    spec = HttpServer(url=f"http://127.0.0.1:{port}/mcp", **more)
    return Grant(servers=(ServerGrant(name="bench", spec=spec, allow=MCP_TOOLS),))


@pytest.fixture(params=["stdio", "http"])
def grant(request: pytest.FixtureRequest) -> Grant:
    if request.param == "stdio":
        return STDIO
    return http(request.getfixturevalue("http_port"))


@pytest.mark.item("aldo-28", "aldo-29", "aldo-30", "W5")
def test_both_wires_keep_the_contract(tmp_path: Path, grant: Grant) -> None:
    """Listing, names, allow list, structured answers, errors as data, and cancellation."""

    async def play(room: Room) -> None:
        box = room.box(grant)
        offer = await box.specs()
        assert offer.problems == ()
        names = [spec.name for spec in offer.tools]
        assert names == ["result.more", *(f"bench.{tool}" for tool in MCP_TOOLS)] or sorted(
            names
        ) == sorted(["result.more", *(f"bench.{tool}" for tool in MCP_TOOLS)])
        [add] = [spec for spec in offer.tools if spec.name == "bench.add"]
        assert (add.description, add.schema["required"]) == ("Add two numbers.", ["a", "b"])
        await names_are_resolved(box)
        await answers_are_data(box)

    inside(tmp_path, play)


async def names_are_resolved(box: Toolbox) -> None:
    for name in ("bench.add", "add"):
        wanted = await box.resolve(CallPart(id="1", tool=name, args='{"a":1,"b":2}'))
        assert (wanted.tool, wanted.problem, wanted.paths) == ("bench.add", "", None)
    wrong = await box.resolve(CallPart(id="1", tool="add", args='{"a":"x","b":2}'))
    assert wrong.problem == "the arguments do not fit: a: 'x' is not of type 'integer'"
    for name in ("hidden", "bench.hidden", "BENCH.add", "bench.add ", "bench.", "other.add"):
        wanted = await box.resolve(CallPart(id="1", tool=name))
        assert "there is no tool" in wanted.problem


async def answers_are_data(box: Toolbox) -> None:
    said = {
        "add": await box.run("bench.add", {"a": 1, "b": 2}),
        "picture": await box.run("bench.picture", {}),
        "fail": await box.run("bench.fail", {"message": "the lathe is hot"}),
        "mute": await box.run("bench.mute_failure", {}),
        "object": await box.run("bench.error_object", {}),
        "hidden": await box.run("bench.hidden", {}),
        "schema": await box.run("bench.add", {"a": 1}),
    }
    assert value(said["add"]) == {"sum": 3}
    assert said["picture"].text == "see:\n[an image, image/png, 3 bytes]"
    assert "the lathe is hot" in value(said["fail"])["error"]
    assert value(said["mute"])["error"] == "the tool failed and did not say why"
    assert value(said["object"])["error"] == "no luck"
    assert problem(said["hidden"]) == "unknown-tool"
    assert problem(said["schema"]) == "bad-arguments"
    assert [name for name, one in said.items() if not one.error] == ["add", "picture"]


def test_a_dead_server_is_started_again(tmp_path: Path) -> None:
    """The call that met its death is told why and not repeated; the next one finds a new server."""

    async def play(room: Room) -> None:
        box = room.box(STDIO)
        first = value(await box.run("bench.pid", {}))["result"]
        lost = await box.run("bench.die", {"code": 4})
        assert problem(lost) == "server-ended"
        assert "not known whether" in lost.text
        assert "exit code 4" in lost.text
        assert "the bench has collapsed" in lost.text
        second = value(await box.run("bench.pid", {}))["result"]
        assert first != second
        assert not is_alive(first)

    inside(tmp_path, play)


def test_servers_are_shared_and_ended(tmp_path: Path) -> None:
    """Two toolboxes of a workspace use one process, and closing the workshop ends it."""

    async def play(room: Room) -> int:
        said = [await room.box(STDIO).run("bench.pid", {}) for _ in range(2)]
        pids = [value(one)["result"] for one in said if not one.error]
        assert len(pids) == 2, said
        assert pids[0] == pids[1]
        assert is_alive(pids[0])
        return int(pids[0])

    assert not is_alive(inside(tmp_path, play))


def test_a_server_that_cannot_start_is_reported(tmp_path: Path) -> None:
    """Its last words are in the offer and in the result; other tools go on."""
    grant = Grant(native=("fs.read",), servers=(bench_server("broken"),))

    async def play(room: Room) -> None:
        box = room.box(grant)
        offer = await box.specs()
        assert [spec.name for spec in offer.tools] == ["fs.read", "result.more"]
        [said] = offer.problems
        assert "exit code 3" in said
        assert "cannot find my settings" in said
        assert problem(await box.run("bench.echo", {"text": "x"})) == "server-unreachable"
        assert not (await box.run("fs.read", {"path": "README.md"})).error

    inside(tmp_path, play)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        pytest.param(("no-such-program-1",), "not on PATH", id="missing-program"),
        pytest.param(("true",), "exit code 0", id="ends-at-once"),
    ],
)
def test_a_program_that_is_no_server_is_reported(
    tmp_path: Path, argv: tuple[str, ...], says: str
) -> None:
    """With what is known about it."""
    spec = replace(stdio(), argv=argv)
    grant = Grant(servers=(ServerGrant(name="bench", spec=spec, allow=("*",)),))

    async def play(room: Room) -> tuple[str, ...]:
        return (await room.box(grant).specs()).problems

    [said] = inside(tmp_path, play)
    assert says in said


def test_nobody_behind_an_address_is_reported(tmp_path: Path) -> None:
    """A refused connection is a problem of the offer, not an exception."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])

    async def play(room: Room) -> tuple[str, ...]:
        return (await room.box(http(port)).specs()).problems

    [said] = inside(tmp_path, play)
    assert "the server bench cannot be used" in said


@pytest.mark.item("I-4")
@pytest.mark.parametrize("wire", ["stdio", "http"])
def test_an_answer_with_half_a_character(tmp_path: Path, wire: str) -> None:
    """It is told at once as an error of the call, and the server goes on."""
    odd = Path(__file__).with_name("odd_server.py")

    def played(spec: ServerSpec) -> None:
        async def play(room: Room) -> None:
            grant = Grant(servers=(ServerGrant(name="odd", spec=spec, allow=("*",)),))
            for _ in range(2):
                said = await asyncio.wait_for(room.box(grant).run("odd.half", {}), 60)
                assert said.error
                assert "cannot be read" in said.text

        inside(tmp_path, play)

    if wire == "stdio":
        played(replace(stdio(), argv=(sys.executable, str(odd))))
    else:
        with served(tmp_path, odd) as port:
            played(HttpServer(url=f"http://127.0.0.1:{port}/mcp"))


@pytest.mark.item("I-10")
def test_secrets_reach_a_server_by_name_and_come_back_blotted(tmp_path: Path) -> None:
    """The granted variable arrives, no other does, and its value is in no result."""
    spec = stdio(pass_env=("BENCH_TOKEN",))
    grant = Grant(servers=(ServerGrant(name="bench", spec=spec, allow=("*",)),))

    async def play(room: Room) -> list[ToolCallResult]:
        box = room.box(grant)
        return [await box.run("bench.secret", {}), await box.run("bench.variables", {})]

    secret, variables = inside(tmp_path, play, BENCH_TOKEN='tok"en-of-the-bench')
    assert value(secret) == {"result": "[BENCH_TOKEN]"}
    assert CANARY not in variables.text
    assert "of-the-bench" not in variables.text
    assert "MY_API_KEY" not in variables.text


def test_a_secret_that_is_not_set_is_named(tmp_path: Path, http_port: int) -> None:
    """The variable is named before anything is started or asked."""
    spec = stdio(pass_env=("NOT_SET_1",))
    for grant in (
        Grant(servers=(ServerGrant(name="bench", spec=spec, allow=("*",)),)),
        http(http_port, bearer_env="NOT_SET_1"),
    ):

        async def play(room: Room, grant: Grant = grant) -> tuple[str, ...]:
            return (await room.box(grant).specs()).problems

        [said] = inside(tmp_path / str(id(grant)), play)
        assert "the variable NOT_SET_1 is not set" in said


def test_a_long_answer_is_kept_and_shown_by_its_head(tmp_path: Path) -> None:
    """The model gets the head and a handle; the rest is read on."""

    async def play(room: Room) -> None:
        box = room.box(STDIO)
        shown = await box.run("bench.long", {"size": 100_000})
        assert len(shown.text) < 9_000
        handle = shown.text.rpartition("result.more: ")[2].rstrip("]")
        rest = await box.run("result.more", {"handle": handle, "offset": 99_990})
        assert rest.text == "x" * 21 + '"}'

    inside(tmp_path, play)


def test_a_time_limit_gives_up_and_reports_the_server(tmp_path: Path) -> None:
    """The server hears of it, and serves on."""
    grant = replace(STDIO, limits={"bench.wait": ToolLimit(seconds=HOUR_S)})

    async def play(room: Room) -> None:
        box = room.box(grant)
        await box.specs()
        waits = asyncio.create_task(box.run("bench.wait", {"seconds": 60}))
        await leap_when((room.work / "waits").exists)
        assert problem(await waits) == "timeout"
        assert value(await box.run("bench.echo", {"text": "still here"}))["result"] == "still here"
        for _ in range(500):
            if (room.work / "given-up").exists():
                break
            await asyncio.wait([asyncio.ensure_future(box.run("bench.echo", {"text": "x"}))])
        assert (room.work / "given-up").exists()

    inside(tmp_path, play)


def test_calls_of_one_server_overlap(tmp_path: Path) -> None:
    """A slow call does not hold up a quick one."""

    async def play(room: Room) -> None:
        box = room.box(STDIO)
        await box.specs()
        slow = asyncio.create_task(box.run("bench.wait", {"seconds": 60}))
        await leap_when((room.work / "waits").exists, seconds=0)
        assert value(await box.run("bench.echo", {"text": "x"}))["result"] == "x"
        assert not slow.done()
        slow.cancel()
        await asyncio.wait([slow])

    inside(tmp_path, play)


def test_the_library_is_loaded_by_the_first_server_only() -> None:
    """Importing the room, and using built-in tools, does not wait for it."""
    code = (
        "import sys, loopwright.operations.agents.tools; "
        "print('mcp' in sys.modules or 'anyio' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"
