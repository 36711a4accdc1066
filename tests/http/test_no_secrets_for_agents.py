"""No token, key or path of a server reaches an agent, a check command or an editor."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http.served import Served, served

RUNS, AGENTS = "/api/v1/runs", "/api/v1/agents"
CANARIES = {
    "LOOPWRIGHT_TOKEN": "canary-token",
    "LOOPWRIGHT_TOKEN_FILE": "/canary-token-file",
    "LOOPWRIGHT_SERVER": "http://canary-server",
    "LOOPWRIGHT_MODEL_API_KEY": "canary-model-key",
    "ANTHROPIC_API_KEY": "canary-anthropic",
    "OPENAI_API_KEY": "canary-openai",
    "AWS_SECRET_ACCESS_KEY": "canary-aws",
    "GITHUB_TOKEN": "canary-github",
    "DATABASE_URL": "canary-database",
    "SSH_AUTH_SOCK": "/canary-agent",
    "SMTP_PASSWORD": "canary-password",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with secrets in its environment, and an agent that prints its own."""
    folder = tmp_path_factory.mktemp("canaries")
    shows = folder / "shows.sh"
    shows.write_text("#!/bin/sh\ncat > /dev/null\nenv\n")
    shows.chmod(0o755)
    (folder / "work").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CANARIES.items():
            patch.setenv(name, value)
        with served(folder / "work", home="../home") as one:
            entry = {"name": "shows", "spec": f"command:{shows}"}
            assert one("POST", AGENTS, entry).status == 201
            yield one


def check_clean(server: Served, text: str) -> None:
    """Nothing of the server's own is in a text."""
    assert "canary" not in text
    for token in (server.token, "lwt_"):
        assert token not in text


PROGRAMS = {
    "agent": {"name": "w", "goal": "g", "agents": {"a": {}}, "agent": "a", "repeat": {"max": 1}},
    "check command": {
        "name": "w",
        "goal": "g",
        "agents": {"a": {}},
        "agent": "a",
        "repeat": {"max": 1, "until": {"command": ["env"]}},
    },
    "command": {"name": "w", "steps": [{"id": "s", "run": ["env"]}]},
    "script": {"name": "w", "steps": [{"id": "s", "script": "env"}]},
}


@pytest.mark.item("bnd-e5")
@pytest.mark.parametrize("role", ["editor", "admin"])
@pytest.mark.parametrize("kind", PROGRAMS)
def test_programs_get_no_secret_of_the_server(server: Served, kind: str, role: str) -> None:
    """The environment of every kind of program has neither tokens nor keys of the server."""
    text = PROGRAMS[kind]
    body = {"definition": json.dumps(text), **({"agent": "shows"} if "agents" in text else {})}
    reply = server("POST", RUNS, body, token=server.made(role))
    assert reply.status == 201, reply.body
    run = reply.json["run"]
    server.until(run, "completed", "failed", "exhausted")
    events = server("GET", f"{RUNS}/{run}/events", headers={"Accept": "application/json"})
    logs = server("GET", f"{RUNS}/{run}/logs", headers={"Accept": "application/json"})
    assert "PATH=" in logs.body.decode() + events.body.decode()
    check_clean(server, events.body.decode())
    check_clean(server, logs.body.decode())


ASKED = {
    "unknown role": {
        "definition": '{"name":"w","goal":"g","agents":{"a":{"role":"x"}},"agent":"a"}'
    },
    "missing file": {"definition": '{"name":"w","goal":"g","agent":"script:none.yaml"}'},
    "missing stored": {"stored": "none"},
    "bad workspace": {
        "definition": '{"name":"w","goal":"g","agent":"claude"}',
        "workspace": "{home}",
    },
    "unlisted": {"definition": '{"name":"w","goal":"g","agent":"command:{home}/x"}'},
    "bad role": {"definition": '{"name":"w","goal":"g","agents":{"a":{"role":"odd"}},"agent":"a"}'},
}


@pytest.mark.item("bnd-e5")
@pytest.mark.parametrize("case", ASKED)
def test_refusals_do_not_name_the_data_directory(server: Served, case: str) -> None:
    """An editor who is refused does not read where the data of the server is."""
    home = server.context.settings.home
    roles = home / "roles"
    roles.mkdir(exist_ok=True)
    (roles / "odd.md").write_text("---\naccess: [\n---\n")
    body = {name: value.replace("{home}", str(home)) for name, value in ASKED[case].items()}
    reply = server("POST", RUNS, {**body}, token=server.made("editor"))
    assert reply.status >= 400
    text = reply.body.decode()
    check_clean(server, text)
    for path in {str(home), str(home.resolve())}:
        assert path not in text


@pytest.mark.item("bnd-e5")
def test_lists_do_not_name_the_data_directory(server: Served) -> None:
    """Nor does what an editor can list."""
    editor = server.made("editor")
    home = server.context.settings.home
    for path in (
        AGENTS,
        RUNS,
        "/api/v1/loops/definitions",
        "/api/v1/definitions",
        "/api/v1/health",
    ):
        reply = server("GET", path, token=editor)
        assert reply.status == 200, path
        text = reply.body.decode()
        check_clean(server, text)
        assert str(home.resolve()) not in text, path


def test_the_data_directory_of_the_server_is_elsewhere(server: Served) -> None:
    """The canaries mean something: the data directory is not the workspace."""
    workspace = Path(server.context.serving.workspace).resolve()
    assert not server.context.settings.home.resolve().is_relative_to(workspace)
