"""Every way in which an agent could act as a person is refused and written to the audit log.

The attempts are made by a program that has a supervisor above it, as every agent, check and tool
has: without variables, with those of the person who started the run, and in a process namespace.
"""

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwright.agents.processes.process import ProgramStart, run_program
from loopwright.agents.processes.supervise import HAS_TABLE
from loopwright.agents.sandbox.bubblewrap import works
from loopwright.cli.inside_run import OWN_RUNS, START, WITHOUT_DATA
from loopwright.cli.main import COMMANDS
from loopwright.operations.data_directory import HTTP_SOCKET, SOCKET, DriveRequest, as_line
from tests.http.served import Served, served
from tests.safety import inside_attempts
from tests.safety.identities import BASE, IDENTITIES, folder_of, missing, run_as

pytestmark = pytest.mark.skipif(not HAS_TABLE, reason="there is no process table to read")

ACTOR = "agent:coder of {run}"
SPACES = ("off", "namespace", "guard")
"""Without a sandbox; in a process namespace that sees all files; in one without the data."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with a run that waits for a person."""
    with served(tmp_path_factory.mktemp("people"), held=True) as one:
        yield one


@pytest.fixture(scope="module")
def waiting(server: Served) -> tuple[str, str]:
    """A run of somebody else, and its gate."""
    return server.gated()


@pytest.fixture(scope="module")
def own(server: Served) -> str:
    """The run of the agent."""
    run = server.start(server.definition(server.script("x"), until={"contains": "x"}))
    server.until(run, "completed")
    return run


def attempt(server: Served, own: str, space: str, kind: str, what: Any, **env: str) -> Any:
    """What becomes of attempts that a program of the run makes."""
    if space != "off" and works() is not None:
        pytest.skip(f"bubblewrap cannot work here: {works()}")
    words = [sys.executable, "-m", inside_attempts.__name__, kind]
    cleared = ["env", "-i", f"HOME={server.folder / 'nobody'}", *words]
    argv: tuple[str, ...] = ("sh", "-c", shlex.join(cleared))
    if env:
        argv = tuple(words)
    if space != "off":
        hidden = ["--tmpfs", str(server.folder / "home")] if space == "guard" else []
        seen = ["--bind", "/", "/", *hidden, "--dev", "/dev", "--proc", "/proc"]
        argv = ("bwrap", *seen, "--unshare-pid", "--", *argv)
    given = {
        "PATH": os.environ["PATH"],
        "LOOPWRIGHT_RUN": own,
        "LOOPWRIGHT_AGENT": "coder",
        **env,
    }
    root = str(Path(__file__).parents[2])
    program = ProgramStart(
        argv=argv, cwd=root, env=given, stdin=json.dumps(what).encode(), wall_s=300
    )
    end = asyncio.run(run_program(program))
    assert end.code == 0, end.stderr_tail
    return json.loads(end.stdout)


def count_refusals(server: Served, own: str, via: str) -> int:
    """How many attempts of the agent are in the audit log."""
    rows = server.call(lambda: server.context.records.audited(limit=10_000))
    who = ACTOR.format(run=own)
    return sum(row.who == who and row.action == "denied" and row.via == via for row in rows)


# -- commands --------------------------------------------------------------------------------------

FOR_PEOPLE: tuple[str, ...] = (
    "demo",
    "inbox",
    "approve {gate}",
    "reject {gate} no",
    "continue {gate} more",
    "tell {run} hello",
    "retry {run}",
    "skip {run}",
    "edit {run} --goal other",
    "fork {run} --at 1",
    "restore {run} 1",
    "apply {run}",
    "discard {run} --yes",
    "bisect {run}",
    "spend",
    "artifact ls {run}",
    "notifications ls",
    "todo ls {run}",
    "project ls",
    "sprint ls",
    "eval cases.yaml",
    "chat",
    "repl",
    "stored ls",
    "promote work.yaml",
    "serve --port 0",
    "login http://127.0.0.1:{port}",
    "logout http://127.0.0.1:{port}",
    "user add mallory --role admin",
    "user ls",
    "token create mine --role admin",
    "token ls",
    "agent ls",
    "workspace ls",
    "workspace add /",
    "hook ls",
    "webhook ls",
    "backup copy.db",
    "doctor",
    "prune",
    "config",
    "config show",
    "config path",
    "config trust work.yaml",
)
OF_OTHERS: tuple[str, ...] = (
    "show {run}",
    "events {run}",
    "logs {run}",
    "watch {run}",
    "diff {run}",
    "pause {run}",
    "resume {run}",
    "stop {run}",
    "mcp --allow-answers",
    "run work.yaml --server http://127.0.0.1:{port}",
)


def test_every_command_is_in_the_table() -> None:
    """A new command is for people until it is listed as one for programs of runs. The documentation
    has the number of commands and requests.
    """
    listed = {line.split()[0] for line in FOR_PEOPLE}
    programs = {*WITHOUT_DATA, *START, *OWN_RUNS}
    assert listed == {*COMMANDS} - programs
    assert programs <= {*COMMANDS}
    assert {line.split()[0] for line in OF_OTHERS} == {*OWN_RUNS, "run"} - {"ls"}
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    commands, requests = len(FOR_PEOPLE) + len(OF_OTHERS), 2 * len(REQUESTS)
    assert f"runs {commands} commands, sends {requests} requests (half of them" in page


@pytest.mark.item("bnd-p3", "bnd-p7")
@pytest.mark.parametrize("space", SPACES)
def test_commands_for_people_are_refused(
    server: Served, waiting: tuple[str, str], own: str, space: str
) -> None:
    """Each with exit code 6 and `inside-run`; where the data is visible, with an audit entry."""
    run, gate = waiting
    home = str(server.folder / "home")
    lines = [
        [*line.format(run=run, gate=gate, port=server.port).split(), "--data-dir", home]
        for line in (*FOR_PEOPLE, *OF_OTHERS)
    ]
    if space == "guard":  # it does not know where the data directory is, and sees nothing there
        lines = [line[:-2] for line in lines if "--server" not in line]
    before = count_refusals(server, own, "cli") + count_refusals(server, own, "mcp")
    ended = attempt(server, own, space, "commands", lines)
    wrong = [
        (line, told)
        for line, told in zip(lines, ended, strict=True)
        if told[0] != 6 or not (":inside-run" in told[1] or (line[0] == "mcp" and told[2]))
    ]
    assert not wrong, "\n".join(map(str, wrong))
    after = count_refusals(server, own, "cli") + count_refusals(server, own, "mcp")
    assert after - before == (0 if space == "guard" else len(lines))
    gates = server("GET", f"/api/v1/runs/{run}").json["gates"]
    assert [one["id"] for one in gates] == [gate]


@pytest.mark.item("bnd-p3")
def test_an_agent_looks_at_its_own_runs(server: Served, waiting: tuple[str, str], own: str) -> None:
    """`ls` lists them alone, `show` has its own run, and commands without data work."""
    home = str(server.folder / "home")
    lines = [["ls", "--data-dir", home], ["show", own, "--data-dir", home], ["roles"], ["version"]]
    ended = attempt(server, own, "off", "commands", lines)
    assert [told[0] for told in ended] == [0, 0, 0, 0]
    assert [one["run"] for one in json.loads(ended[0][1])["runs"]] == [own]


@pytest.mark.item("bnd-p3")
def test_a_private_data_directory_is_named_and_free(server: Served, own: str) -> None:
    """Without a name nothing is created where the data is hidden. In one of its own a program does
    everything, and is told that the budget of its run does not apply.
    """
    private = str(server.folder / "private")
    lines = [
        ["run", "work.yaml"],
        ["user", "add", "ann", "--role", "viewer", "--data-dir", private],
        ["user", "ls", "--data-dir", private],
    ]
    hidden, added, listed = attempt(server, own, "guard", "commands", lines)
    assert (hidden[0], ":inside-run" in hidden[1], "--data-dir" in hidden[1]) == (6, True, True)
    assert (added[0], listed[0]) == (0, 0), (added, listed)
    assert f"is not the data directory of {own}" in added[2]


# -- a server on the same machine ------------------------------------------------------------------

HOOK = {"webhook-id": "m1", "webhook-timestamp": "1", "webhook-signature": "v1,x"}
REQUESTS: dict[str, tuple[str, str, Any]] = {
    "approve": ("POST", "/api/v1/gates/{gate}/approve", {}),
    "reject": ("POST", "/api/v1/gates/{gate}/reject", {"text": "no"}),
    "continue": ("POST", "/api/v1/gates/{gate}/continue", {"text": "more"}),
    "stop": ("POST", "/api/v1/runs/{run}/stop", {}),
    "pause": ("POST", "/api/v1/runs/{run}/pause", {}),
    "resume": ("POST", "/api/v1/runs/{run}/resume", {}),
    "start": ("POST", "/api/v1/runs", {"definition": "{}"}),
    "message": ("POST", "/api/v1/runs/{run}/messages", {"text": "x"}),
    "make-token": ("POST", "/api/v1/tokens", {"label": "mine", "role": "admin"}),
    "make-user": ("POST", "/api/v1/users", {"name": "mallory", "role": "admin"}),
    "sign-in": ("POST", "/api/v1/session", {"name": "root", "password": "x" * 12}),
    "first-admin": ("POST", "/api/v1/setup", {"code": "x", "name": "m", "password": "x" * 12}),
    "gate-link": ("POST", "/api/v1/links", {"code": "x", "decision": "approve", "text": ""}),
    "incoming-webhook": ("POST", "/api/v1/hooks/build", {}),
    "make-hook": ("POST", "/api/v1/hooks", {"name": "x", "definition": "x"}),
    "store-definition": ("PUT", "/api/v1/definitions/x", {"text": "{}"}),
    "read-runs": ("GET", "/api/v1/runs", None),
    "read-run": ("GET", "/api/v1/runs/{run}", None),
    "read-events": ("GET", "/api/v1/runs/{run}/events", None),
    "read-tokens": ("GET", "/api/v1/tokens", None),
    "read-audit": ("GET", "/api/v1/audit", None),
    "socket.io": ("GET", "/socket.io/?EIO=4&transport=polling", None),
    "socket.io-send": ("POST", "/socket.io/?EIO=4&transport=polling&sid=x", {}),
}
OPEN = ("/healthz", "/readyz", "/api/version")


def requests_of(server: Served, waiting: tuple[str, str], headers: dict[str, str]) -> list[Any]:
    run, gate = waiting
    filled = {"run": run, "gate": gate}
    return [
        (server.port, method, path.format(**filled), body, {**HOOK, **headers})
        for method, path, body in REQUESTS.values()
    ]


@pytest.mark.item("bnd-p4", "bnd-p7")
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("token", ["none", "stolen"])
def test_requests_from_inside_a_run_are_refused(
    server: Served, waiting: tuple[str, str], own: str, space: str, token: str
) -> None:
    """With an admin's token as without one, each with an audit entry; what is open stays open."""
    headers = {"Authorization": f"Bearer {server.token}"} if token == "stolen" else {}
    asked = requests_of(server, waiting, headers)
    opened = [(server.port, "GET", path, None, headers) for path in OPEN]
    before = count_refusals(server, own, "http")
    ended = attempt(server, own, space, "requests", [*asked, *opened], LOOPWRIGHT_TOKEN="x")
    refused, free = ended[: len(asked)], ended[len(asked) :]
    answers = dict(zip(REQUESTS, refused, strict=True))
    wrong = [(n, a) for n, a in answers.items() if a[0] != 403 or "inside-run" not in a[1]]
    assert not wrong, "\n".join(map(str, wrong))
    assert [status for status, _ in free] == [200] * len(OPEN)
    assert count_refusals(server, own, "http") - before == len(asked)
    rows = server.call(lambda: server.context.records.audited(limit=len(asked)))
    assert all((row.detail == "inside-run, as first-start") == bool(headers) for row in rows)


def test_the_same_requests_of_a_person_reach_the_server(
    server: Served, waiting: tuple[str, str]
) -> None:
    """So what refuses the others is who asks."""
    headers = {"Authorization": f"Bearer {server.token}"}
    asked = [one for one in requests_of(server, waiting, headers) if one[1] == "GET"]
    asked += [one for one in requests_of(server, waiting, headers) if "gates" not in one[2]]
    asked = [one for one in asked if not one[2].endswith("/events")]  # a stream does not end
    ended = inside_attempts.send_requests([list(one) for one in asked])
    assert not [told for told in ended if ":inside-run" in str(told[1])]
    assert [told[0] for told in ended][:4] == [200] * 4


@pytest.mark.item("bnd-p2", "bnd-p7")
@pytest.mark.parametrize("space", SPACES)
def test_the_socket_of_the_data_directory_is_refused(
    server: Served, waiting: tuple[str, str], own: str, space: str
) -> None:
    """Where it is visible the server names the reason and records it."""
    path = str(server.folder / "home" / SOCKET)
    before = count_refusals(server, own, "socket")
    line = as_line(DriveRequest(waiting[0])).decode().strip()
    [told] = attempt(server, own, space, "sockets", [[path, line]])
    if space == "guard":
        assert told == "FileNotFoundError"
        return
    assert json.loads(told)["code"] == "inside-run"
    assert count_refusals(server, own, "socket") - before == 1


@pytest.mark.item("bnd-p2", "bnd-p7")
@pytest.mark.parametrize("space", SPACES)
def test_the_http_socket_of_the_data_directory_is_refused(
    server: Served, waiting: tuple[str, str], own: str, space: str
) -> None:
    """A person needs no token there, and a program of a run gets nothing."""
    path = str(server.folder / "home" / HTTP_SOCKET)
    before = count_refusals(server, own, "http")
    request = f"GET /api/v1/runs/{waiting[0]} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    [told] = attempt(server, own, space, "sockets", [[path, request]])
    if space == "guard":
        assert told == "FileNotFoundError"
        return
    assert str(told).startswith("HTTP/1.1 403")
    assert count_refusals(server, own, "http") - before == 1


@pytest.mark.item("bnd-p7")
@pytest.mark.parametrize(("space", "seen"), [("guard", False), ("off", True)], ids=SPACES[::-2])
def test_files_with_secrets_are_hidden_where_the_data_is(
    server: Served, own: str, space: str, *, seen: bool
) -> None:
    """The database has hashes and events. At `off` a program of the same user can open it, which
    the documentation says.
    """
    files = [str(server.folder / "home" / "loopwright.db")]
    assert attempt(server, own, space, "files", files) == [seen]


# -- at the levels of a sandbox, as root and as an ordinary user -----------------------------------

LEVELS = ("guard", "workspace", "readonly", "none")
NAMED = ("approve", "reject", "continue", "tell", "user", "token", "show", "stop")
"""Commands that are also tried with the name of the data directory."""
SECRETS = ("<home>/loopwright.db", "<home>/token", "<home>/settings.toml")
SECRETS = (*SECRETS, "<records>/data-directories.json", "/proc/1/root<home>/loopwright.db")


@pytest.mark.item("bnd-p3", "bnd-p4", "bnd-p7")
@pytest.mark.parametrize("identity", IDENTITIES)
def test_nothing_of_the_table_succeeds_at_any_level(identity: str) -> None:
    """Commands, requests with and without a stolen token, the socket and files with secrets: the
    whole table in one program for each level, in the sandbox that agents have.
    """
    problem = missing(identity) or works()
    if problem is not None:
        pytest.skip(
            f"no ordinary user can run tests here, or bubblewrap cannot work here: {problem}"
        )
    stolen = {"Authorization": "Bearer <token>"}
    asked = [
        [0, method, path.format(run="<run>", gate="<gate>"), body, {**HOOK, **headers}]
        for headers in ({}, stolen)
        for method, path, body in REQUESTS.values()
    ]
    commands = [
        [*line.format(run="<run>", gate="<gate>", port="<port>").split(), *where]
        for line in (*FOR_PEOPLE, *OF_OTHERS)
        for where in ([], ["--data-dir", "<home>"])
        if "--server" not in line and (not where or line.split()[0] in NAMED)
    ]
    attempts = {
        "requests": [*asked, *[[0, "GET", path, None, stolen] for path in OPEN]],
        "sockets": [[f"<home>/{SOCKET}", as_line(DriveRequest("<run>")).decode().strip()]],
        "files": [*SECRETS],
        "commands": commands,
    }
    with folder_of(identity) as folder:
        order = {"folder": str(folder), "levels": LEVELS, "attempts": attempts}
        env = {**BASE, "HOME": str(folder), "LOOPWRIGHT_SNAPSHOTS": "off"}
        done = run_as(
            identity, ["-m", "tests.safety.people_stage"], env=env, text=json.dumps(order)
        )
    assert done.returncode == 0, done.stderr[-3000:]
    for level, found in json.loads(done.stdout).items():
        said = found["said"]
        assert isinstance(said, dict), (level, said)
        refused, free = said["requests"][: len(asked)], said["requests"][len(asked) :]
        wrong = [(a, b) for a, b in zip(asked, refused, strict=True) if b[0] != 403]
        assert not wrong, (level, wrong)
        assert all("inside-run" in body for _, body in refused), level
        assert [status for status, _ in free] == [200] * len(OPEN), level
        assert found["audited"] == len(asked), level
        assert found["gates"], level
        assert all(one.endswith("Error") for one in said["sockets"]), (level, said["sockets"])
        assert said["files"] == [False] * len(SECRETS), level
        if said["commands"] in ("ImportError", "ModuleNotFoundError"):
            assert level in ("readonly", "none")  # where Loopwright itself is not visible
            continue
        allowed = [
            (line, one)
            for line, one in zip(commands, said["commands"], strict=True)
            if one[0] != 6 and "--data-dir" not in line
        ]
        assert not allowed, (level, allowed)
        assert all(one[0] != 0 for one in said["commands"]), level
