"""Messages to a real program while it works: when it reads them, and that it reads them once."""

import asyncio
import json
import threading

import pytest

from loopwright.model.record import JsonValue
from loopwright.ports import EffectSuccess, InboxMessage, ToolReply
from loopwright.testing.wires import ScriptedCall, ScriptedTurn, WireRequest
from tests.real_clis.conftest import Labs, NoMessages, needs

pytestmark = [pytest.mark.real_cli, pytest.mark.timeout(600)]


class OneMessage(NoMessages):
    """The inbox of a call with one message, which comes when it is time."""

    def __init__(self) -> None:
        super().__init__()
        self.due = threading.Event()
        self.read = 0

    async def use(self, tool: str, arguments: JsonValue) -> ToolReply:
        await asyncio.to_thread(self.due.wait, 60)
        if self.read:
            return await super().use(tool, arguments)
        self.read += 1
        return ToolReply(
            text="1", messages=(InboxMessage(sender="ann", text="STEER", kind="tell"),)
        )


@pytest.mark.item("rec-35")
@pytest.mark.parametrize("when", ["tool", "text"])
def test_claude_reads_a_message_while_it_works(labs: Labs, when: str) -> None:
    """During a tool call, the next request of the same turn has it; while it writes its last
    answer, another turn begins with it, and the usage of both is counted.
    """
    needs("claude")
    inbox = OneMessage()
    asked: list[str] = []

    def choose(request: WireRequest) -> ScriptedTurn:
        if not request.tools:
            return ScriptedTurn(text="a title")
        asked.append(json.dumps(request.body["messages"]))
        inbox.due.set()
        if len(asked) > 1:
            return ScriptedTurn(text="after the message")
        if when == "text":
            return ScriptedTurn(text="a b c d e f", header_ms=1_500)
        given: dict[str, JsonValue] = {"command": "sleep 2", "description": "x"}
        return ScriptedTurn(calls=(ScriptedCall(name="Bash", args=given),))

    lab = labs(choose=choose)
    answer, _ = lab.ask("claude", talk=inbox, permission="all")
    assert isinstance(answer, EffectSuccess), answer
    assert answer.output == "after the message"
    assert ["Message from ann: STEER" in one for one in asked] == [False, True]
    assert inbox.read == 1
    assert answer.usage is not None
    assert answer.usage.output_tokens > 0
    assert answer.usage.usd > 0
