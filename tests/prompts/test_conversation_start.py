"""The first messages of a conversation."""

import json

import pytest

from loopwright.model.chat import (
    AssistantMessage,
    CallPart,
    SystemMessage,
    TextPart,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from loopwright.prompts.conversation import ConversationSeed, seed_conversation


@pytest.mark.item("aldo-18")
@pytest.mark.parametrize(
    "message",
    ["Do it.", "{not json", "[1]", '{"task": "x"}', '{"messages": "none"}', "[" * 100_000],
    ids=["text", "no JSON", "a list", "an object", "no list", "too deep"],
)
def test_anything_else_is_the_task(message: str) -> None:
    """It is one message of the user, as it was written, below the agent's own prompt."""
    assert seed_conversation(message, "Be brief.") == ConversationSeed(
        "Be brief.", (UserMessage(text=message),)
    )


@pytest.mark.item("aldo-18")
def test_a_chat_continues() -> None:
    """Its messages are taken over in their order, with calls and results; the unknown is left."""
    chat = {
        "systemPrompt": "Be kind.",
        "messages": [
            {"role": "system", "content": "rules"},
            {"role": "user", "content": "hello"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "a "},
                    {"type": "text", "text": "look"},
                    {"type": "image", "url": "x"},
                    {"type": "tool_call", "callId": "c1", "tool": "fs.read", "args": {"p": 1}},
                ],
            },
            {
                "role": "tool",
                "content": [
                    {"type": "tool_result", "callId": "c1", "result": {"a": 1}, "isError": True},
                    {"type": "tool_result", "callId": "c2", "tool": "t", "result": "text"},
                    {"type": "text", "text": "stray"},
                ],
            },
            {"role": "assistant", "content": 7},
            {"role": "robot", "content": "beep"},
            "noise",
        ],
    }
    assert seed_conversation(json.dumps(chat), "Be brief.") == ConversationSeed(
        "Be kind.",
        (
            SystemMessage(text="rules"),
            UserMessage(text="hello"),
            AssistantMessage(
                parts=(TextPart(text="a look"), CallPart(id="c1", tool="fs.read", args='{"p":1}'))
            ),
            ToolMessage(
                results=(
                    ToolResult(id="c1", tool="", text='{"a":1}', error=True),
                    ToolResult(id="c2", tool="t", text="text"),
                )
            ),
            AssistantMessage(),
        ),
    )


def test_a_chat_without_a_prompt_keeps_the_agents_own() -> None:
    """Only a prompt of its own takes the place of the agent's."""
    assert seed_conversation('{"messages": []}', "Be brief.") == ConversationSeed("Be brief.", ())
