"""The Socket.IO client of web pages, from npm, against a server of ours."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.http.served import Served, served
from tests.http.test_assistants import made, status
from tests.real_clis.conftest import CLIS

SCRIPT = Path(__file__).with_name("socket.mjs")
MANUAL = {"type": "manual", "value": ""}


def driven(own: Served, agent: str, token: str) -> tuple[int, Any]:
    """What the client was sent while it drove the loop of an assistant."""
    node, modules = shutil.which("node"), Path(CLIS).parent
    if not CLIS or node is None or not (modules / "socket.io-client").is_dir():
        pytest.skip("socket.io-client is not installed; `make test-agents` installs it from npm")
    argv = [node, str(SCRIPT), str(modules), f"http://127.0.0.1:{own.port}", token, agent]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.real_cli
@pytest.mark.item("rondoflow-42", "rondoflow-43", "rondoflow-44")
def test_a_loop_from_a_web_page(tmp_path: Path) -> None:
    """Start, review, approval and the end, by way of polling and then a websocket."""
    with served(tmp_path) as own:
        agent = made(own, loopCriteria=MANUAL)
        code, told = driven(own, agent, own.token)
        assert code == 0
        seen = [(name, data) for name, data in told["seen"] if name != "run:events"]
        answer = next(data for name, data in seen if name == "answer")
        assert (answer["ok"], answer["status"]) == (True, "started")
        ring = {"agentId": agent, "iteration": 1, "maxIterations": 10}
        assert [data for name, data in seen if name == "agent:loop_iteration"] == [ring]
        statuses = [data["status"] for name, data in seen if name == "agent:status"]
        assert statuses == ["running", "idle"]
        notes = [data for name, data in seen if name == "notification"]
        assert [note["level"] for note in notes] == ["info", "action_required", "info"]
        assert notes[-1]["finalOutput"] == "some work"
        packets = [data for name, data in told["seen"] if name == "run:events"]
        events = [one for data in packets for one in data["events"]]
        assert [one["seq"] for one in events] == list(range(1, len(events) + 1))
        assert status(own, agent)["state"]["status"] == "completed"


@pytest.mark.real_cli
def test_a_web_page_without_a_token(tmp_path: Path) -> None:
    """It is told why it is not let in."""
    with served(tmp_path) as own:
        code, told = driven(own, "agent_x", "")
        assert (code, told["refused"]) == (1, "Authentication required")
        assert told["data"] == {"code": "not-signed-in"}
