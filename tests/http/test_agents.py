"""What can stand behind the agents of a definition at this server."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from loopwright.agents.clis.catalogue import CLIS
from loopwright.http.operation_routes import app_of
from loopwright.operations.agents.programs import Plugin
from loopwright.operations.use_cases import allowlists
from tests.http.served import served


def test_what_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Coding CLIs with whether they are installed, plugins with whether they work, and the kinds
    that say more; no path of this machine, and nothing of why a plugin fails.
    """
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "claude").write_text("#!/bin/sh\nexit 9\n")
    (bin_folder / "claude").chmod(0o755)
    monkeypatch.setenv("PATH", str(bin_folder))
    found = [
        Plugin(name="good", origin="a-dist", spec="command:x"),
        Plugin(name="bad", origin="b-dist", problem=f"no such file {tmp_path}"),
    ]
    monkeypatch.setattr(allowlists, "plugins", lambda: found)
    with served(tmp_path / "home") as own:
        app = own.context.part(app_of)
        named = replace(app.settings, agent="claude")
        object.__setattr__(app, "settings", named)  # of a server that was started with it
        reply = own("GET", "/api/v1/agents")
        assert reply.status == 200
        told = {one["spec"]: one for one in reply.json["agents"]}
        assert {name for name, one in told.items() if one["kind"] == "cli"} == set(CLIS)
        assert (told["claude"]["available"], told["claude"]["hint"]) == (True, None)
        assert told["codex"]["available"] is False
        assert "npm" in told["codex"]["hint"]
        assert (told["plugin:good"]["available"], told["plugin:bad"]["available"]) == (True, False)
        assert {one["spec"] for one in told.values() if one["default"]} == {"claude"}
        assert told["model:PROVIDER/NAME"]["kind"] == "pattern"
        assert os.fsencode(tmp_path) not in reply.body
