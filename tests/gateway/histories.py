"""Histories and tools that the tests of this folder send."""

from loopwright.model.chat import (
    AnyMessage,
    AssistantMessage,
    CallPart,
    ChatTool,
    TextPart,
    ToolMessage,
    ToolResult,
    UserMessage,
)

TOOLS = (
    ChatTool(
        name="fs.read",
        description="Read a file of the workspace.",
        schema={
            "type": "object",
            "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
            "required": ["path"],
            "additionalProperties": False,
        },
    ),
    ChatTool(name="shell.exec", description="Run a program.", schema={"type": "object"}),
)


def tool_turns(count: int) -> tuple[AnyMessage, ...]:
    """A task and so many turns with two calls and their results."""
    history: list[AnyMessage] = [UserMessage(text="Make the tests pass.")]
    for turn in range(count):
        one, two = f"call_{turn}_a", f"call_{turn}_b"
        history.append(
            AssistantMessage(
                parts=(
                    TextPart(text=f"Turn {turn}: I look at two files."),
                    CallPart(id=one, tool="fs.read", args=f'{{"path":"src/module_{turn}.py"}}'),
                    CallPart(id=two, tool="shell.exec", args='{"argv":["pytest","-q"]}'),
                )
            )
        )
        history.append(
            ToolMessage(
                results=(
                    ToolResult(id=one, tool="fs.read", text=f"line {turn}\n" * 20),
                    ToolResult(id=two, tool="shell.exec", text="1 failed", error=turn % 3 == 0),
                )
            )
        )
    return tuple(history)
