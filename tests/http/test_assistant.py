"""The assistant of pages: an answer as a stream of frames."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loopwright.testing.wires import ScriptedFault, ScriptedTurn, WireScript, WireServer
from tests.cli.aldo import MODEL, asks, says
from tests.http.served import Served, served

STREAM = "/v1/assistant/stream"
LONG = "x" * 10_000


@contextmanager
def assisting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *turns: ScriptedTurn
) -> Iterator[Served]:
    """A server whose assistant says these things."""
    monkeypatch.setenv("LOOPWRIGHT_ASSISTANT", "1")
    monkeypatch.setenv("LOOPWRIGHT_ASSISTANT_MODEL", MODEL)
    with WireServer(WireScript(turns=turns)) as wires:
        monkeypatch.setenv("LOOPWRIGHT_MODEL_BASE_URL", f"{wires.url}/v1")
        with served(tmp_path) as one:
            yield one


def frames(body: bytes | str) -> list[tuple[str, dict[str, Any]]]:
    text = body.decode() if isinstance(body, bytes) else body
    found = []
    for block in text.strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines())
        found.append((lines["event"], json.loads(lines["data"])))
    return found


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.item("aldo-68")
def test_frames_of_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words as they are said, tools with capped results, and at the end what it took and cost."""
    turns = (asks("fs.read", "looking", path="long.txt"), says("It is long."))
    with assisting(tmp_path, monkeypatch, *turns) as own:
        (own.folder / "long.txt").write_text(LONG)
        said = [user("Hi"), {"role": "assistant", "content": "Hello."}, user("What is in it?")]
        reply = own("POST", STREAM, {"messages": said, "threadId": "t-1"})
        assert reply.status == 200, reply.body
        told = frames(reply.body)
        text = "".join(value["text"] for kind, value in told if kind == "delta")
        assert text == "lookingIt is long."
        (tool,) = [value for kind, value in told if kind == "tool"]
        assert (tool["name"], tool["args"]) == ("fs.read", {"path": "long.txt"})
        assert tool["callId"]
        assert len(tool["result"]) == 4_096
        assert tool["isError"] is False
        kind, done = told[-1]
        assert kind == "done"
        assert (done["threadId"], done["usd"]) == ("t-1", 0.0)
        assert done["tokensIn"] > 0
        assert done["tokensOut"] > 0
        assert done["latencyMs"] >= 0
        assert own("GET", f"/api/v1/runs/{done['runId']}").json["status"] == "completed"


@pytest.mark.item("aldo-68")
def test_what_goes_wrong_is_a_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that fails is marked, and a service that refuses ends the stream with an error."""
    refused = ScriptedTurn(fault=ScriptedFault(status=401))
    with assisting(tmp_path, monkeypatch, asks("fs.read", path="none.txt"), refused) as own:
        told = frames(own("POST", STREAM, {"messages": [user("Read it.")]}).body)
    (tool,) = [value for kind, value in told if kind == "tool"]
    assert tool["isError"] is True
    kind, error = told[-1]
    assert kind == "error"
    assert error["message"]
    assert error["runId"].startswith("run_")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param({"messages": []}, "bad-value", id="nothing said"),
        pytest.param({"messages": [user("x")] * 51}, "bad-value", id="too many"),
        pytest.param(
            {"messages": [{"role": "assistant", "content": "x"}]}, "bad-value", id="not a user"
        ),
        pytest.param({"messages": [{"role": "system", "content": "x"}]}, "bad-value", id="a role"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any], code: str
) -> None:
    """A conversation that is none is refused before anything is started."""
    with assisting(tmp_path, monkeypatch) as own:
        reply = own("POST", STREAM, body)
        assert reply.status == 400, reply.body
        assert reply.json["error"]["code"]
        assert own("GET", "/api/v1/runs").json["runs"] == []


def test_it_is_off_unless_the_owner_wants_it(tmp_path: Path) -> None:
    """Without being asked for, there is no assistant."""
    with served(tmp_path) as own:
        reply = own("POST", STREAM, {"messages": [user("Hi")]})
    assert (reply.status, reply.json["error"]["code"]) == (404, "assistant-off")
