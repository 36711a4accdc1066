"""Sessions of chat models: the conversation goes on from pass to pass."""

import pytest

from tests.cli.aldo import asks, model, says
from tests.cli.conftest import Place


@pytest.mark.parametrize("memory", ["session", "previous-output"])
def test_a_conversation_continues_in_the_next_iteration(
    lw: Place, monkeypatch: pytest.MonkeyPatch, memory: str
) -> None:
    """With `memory: session` the model sees what it said and did before; else a new one begins."""
    lw.write("notes.txt", "the secret word is heron")
    lw.loop(
        "model:local/fake",
        memory=memory,
        until={"contains": "DONE"},
    )
    turns = [asks("fs.read", path="notes.txt"), says("I have read it."), says("DONE")]
    with model(monkeypatch, *turns) as wires:
        told = lw("run", "loop.yaml")
    assert told.code == 0, told
    assert "warning" not in told.err
    sent = [str(one["content"]) for one in wires.requests[2].body["messages"]]
    knows = any("heron" in text for text in sent)
    assert knows is (memory == "session")
    assert sum("I have read it." in text for text in sent) == 1
    assert "Do it." in sent[-1]
