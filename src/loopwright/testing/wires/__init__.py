"""A local server that implements the model protocols, for tests of clients: programs and libraries.

It answers the Anthropic Messages, OpenAI Chat Completions, OpenAI Responses and Gemini protocols by
a script of turns: text, tool calls, usage, errors, slow and broken streams. It is as strict as
hosted services about tool names and about each call having its result, and records every request.

`WireServer(script)` is a context manager; `python -m loopwright.testing.wires --script FILE` is the
same as a program. May import: model, errors, h11. Start reading at `script.py`.
"""

from loopwright.testing.wires.script import (
    Chooser,
    ScriptedCall,
    ScriptedFault,
    ScriptedTurn,
    ScriptedUsage,
    TurnFilter,
    WireRequest,
    WireScript,
    in_order,
    read_script,
)
from loopwright.testing.wires.server import WireServer

__all__ = [
    "Chooser",
    "ScriptedCall",
    "ScriptedFault",
    "ScriptedTurn",
    "ScriptedUsage",
    "TurnFilter",
    "WireRequest",
    "WireScript",
    "WireServer",
    "in_order",
    "read_script",
]
