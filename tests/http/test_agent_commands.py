"""`agent`: the list of agents, the same words here and at a server, and over HTTP."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Place, Told, lw
from tests.http.served import Served, served

__all__ = ["lw"]
BASE = "/api/v1/agents"
Do = Callable[..., Told]
World = tuple[Do, Served]


@pytest.fixture(params=["local", "remote"])
def world(
    request: pytest.FixtureRequest, lw: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """The command line and a server: of the same data directory, or of another one."""
    remote = request.param == "remote"
    home = "elsewhere" if remote else str(lw.folder.parent / "home")
    with served(tmp_path, home=home) as server:
        monkeypatch.setenv("LOOPWRIGHT_TOKEN", server.token)
        where = ("--server", f"http://127.0.0.1:{server.port}") if remote else ()
        yield (lambda *words: lw(*words, *where)), server


def entry(server: Served, name: str) -> dict[str, object]:
    found = server("GET", BASE).json["agents"]
    return next(dict(one) for one in found if one["name"] == name)


@pytest.mark.item("bnd-e4")
def test_an_agent_from_first_to_last(world: World) -> None:
    """Added, listed, changed, removed; the audit log has it all."""
    do, server = world
    added = do(
        "agent", "add", "reviewer", "command:/usr/local/bin/r --strict", "--sandbox", "workspace"
    )
    assert (added.code, added.out) == (0, "")
    assert "editors may start runs with reviewer: command:/usr/local/bin/r --strict" in added.err
    found = entry(server, "reviewer")
    assert (found["spec"], found["listed"], found["sandbox"]) == (
        "command:/usr/local/bin/r --strict",
        True,
        "workspace",
    )
    assert found["source"] == "admin"
    assert found["by"]
    listed = do("agent", "ls")
    assert "reviewer" in listed.out
    assert "command:/usr/local/bin/r --strict" in listed.out
    names = [one["name"] for one in do("agent", "ls", "--json").json["agents"]]
    assert {"claude", "models", "scripts", "reviewer"} <= set(names)
    changed = do("agent", "change", "reviewer", "--sandbox", "server", "--env", "KEY", "--disable")
    assert (changed.code, "disabled" in changed.err) == (0, True)
    found = entry(server, "reviewer")
    assert (found["listed"], found["sandbox"], found["pass_env"]) == (False, None, ["KEY"])
    do("agent", "change", "reviewer", "--no-env", "--allow-off", "--enable")
    found = entry(server, "reviewer")
    assert (found["listed"], found["allow_off"], found["pass_env"]) == (True, True, [])
    assert do("agent", "rm", "reviewer").code == 0
    assert "reviewer" not in [one["name"] for one in server("GET", BASE).json["agents"]]
    rows = server("GET", "/api/v1/audit?subject=reviewer").json["rows"]
    assert [row["action"] for row in rows] == [
        "agent.removed",
        "agent.changed",
        "agent.changed",
        "agent.added",
    ]


REFUSED = {
    "relative": (("add", "x", "command:./x"), 2, "is a path in the workspace"),
    "unknown": (("change", "nobody", "--disable"), 2, "no agent 'nobody' on the list"),
    "built-in": (("rm", "claude"), 8, "cannot be removed"),
    "taken": (("add", "claude", "command:/opt/x"), 8, "there is an agent 'claude' already"),
    "nothing": (("change", "claude"), 2, "name at least one option to change"),
    "both": (("change", "claude", "--env", "A", "--no-env"), 2, "exclude each other"),
    "off": (
        ("add", "x", "command:/opt/x", "--sandbox", "off"),
        2,
        'sandbox must be "guard", "none", "readonly" or "workspace", not "off"',
    ),
}


@pytest.mark.item("bnd-e4")
@pytest.mark.parametrize("case", REFUSED)
def test_a_change_that_is_refused(world: World, case: str) -> None:
    """What cannot be is refused with the reason, and the list stays as it is."""
    do, server = world
    words, code, said = REFUSED[case]
    before = server("GET", BASE).json
    told = do("agent", *words)
    assert told.code == code, told.err
    assert said in " ".join(told.err.split())
    assert server("GET", BASE).json == before


@pytest.mark.item("bnd-e4")
def test_others_see_names_not_programs(tmp_path: Path) -> None:
    """An editor sees the name of a listed program, which a start takes, and not its path."""
    with served(tmp_path) as server:
        added = server("POST", BASE, {"name": "mine", "spec": "command:/usr/private --key abc"})
        assert (added.status, added.json["spec"]) == (201, "command:/usr/private --key abc")
        for role in ("viewer", "editor"):
            reply = server("GET", BASE, token=server.made(role))
            assert b"/usr/private" not in reply.body
            found = [one for one in reply.json["agents"] if one["name"] == "mine"]
            assert [(one["spec"], one["listed"]) for one in found] == [("mine", True)]


BAD_BODIES = {
    "level": {"name": "x", "spec": "command:x", "sandbox": "off"},
    "unknown field": {"name": "x", "spec": "command:x", "by": "root"},
    "no spec": {"name": "x"},
    "name": {"name": "X", "spec": "command:x"},
    "program of the workspace": {"name": "x", "spec": "command:./x"},
    "too many variables": {"name": "x", "spec": "command:x", "pass_env": ["A"] * 51},
}


@pytest.mark.item("bnd-e4")
@pytest.mark.parametrize("case", BAD_BODIES)
def test_a_body_that_is_refused(shared: Served, case: str) -> None:
    """A request that does not fit changes nothing."""
    before = shared("GET", BASE).json
    assert shared("POST", BASE, BAD_BODIES[case]).status == 422
    assert shared("GET", BASE).json == before


@pytest.mark.item("bnd-w2")
def test_a_folder_from_first_to_last(world: World, tmp_path: Path) -> None:
    """Approved, listed and removed, here and at a server."""
    do, server = world
    folder = tmp_path / "projects"
    folder.mkdir()
    added = do("workspace", "add", str(folder))
    assert (added.code, f"editors may choose workspaces in {folder}" in added.err) == (0, True)
    assert str(folder) in do("workspace", "ls").out
    listed = do("workspace", "ls", "--json").json["workspaces"]
    assert str(folder) in [one["path"] for one in listed]
    seen = server("GET", "/api/v1/workspaces").json["workspaces"]
    assert str(folder) in [one["path"] for one in seen]
    assert do("workspace", "add", str(folder)).code == 8
    assert do("workspace", "rm", str(folder)).code == 0
    assert do("workspace", "rm", str(folder)).code == 2
    assert do("workspace", "add", str(tmp_path / "missing")).code == 2


@pytest.mark.item("bnd-w3")
def test_a_changed_program_is_approved_again(world: World, tmp_path: Path) -> None:
    """The list says that it has changed, and one option approves it."""
    do, server = world
    file = tmp_path / "helper.sh"
    file.write_text("#!/bin/sh\necho one\n")
    file.chmod(0o755)
    assert do("agent", "add", "helper", f"command:{file}").code == 0
    file.write_text("#!/bin/sh\necho two\n")
    assert "has changed since it was approved" in str(entry(server, "helper")["problem"])
    assert "changed" in next(one for one in do("agent", "ls").out.splitlines() if "helper" in one)
    assert do("agent", "change", "helper", "--approve").code == 0
    assert entry(server, "helper")["problem"] is None
    assert do("agent", "change", "claude", "--approve").code != 0
