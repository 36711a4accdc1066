"""What may stand behind an agent: the words and prefixes of agent specs."""

from typing import NamedTuple

from loopwright.model.plan import CHAT
from loopwright.syntax.commands import split_command

PROGRAMS = ("claude", "codex", "gemini", "opencode")
PREFIXES = ("acp", "command", "jsonl", "model", "plugin", "script")

# Plain programs: nobody could hold them to a list of tools, a number of turns or a price.
_UNGOVERNED = ("command", "jsonl", "plugin", "script")
GOVERNING_KEYS = (
    *("tools", "deny_tools", "loops", "permission", "max_turns", "max_usd", "temperature"),
)


class SpecFault(NamedTuple):
    """Why something cannot stand behind an agent."""

    code: str
    message: str
    hint: str | None = None


def is_spec(text: str) -> bool:
    """Whether a text has the form of a spec, as opposed to the name of an agent."""
    return text in PROGRAMS or (text.partition(":")[0] in PREFIXES and ":" in text)


def spec_fault(text: str) -> SpecFault | None:
    """What is wrong with a text that has the form of a spec."""
    prefix, colon, rest = text.partition(":")
    if not colon:
        return None
    if not rest.strip():
        return SpecFault("bad-agent", f"{prefix}: needs something behind the colon")
    if prefix in ("acp", "command", "jsonl", "plugin"):
        words = split_command(rest)
        if not isinstance(words, list):
            return SpecFault(words.code, words.message, words.hint)
    if prefix == "model" and "/" not in rest:
        return SpecFault("bad-agent", "a model is written model:PROVIDER/NAME")
    return None


def governs(spec: str) -> bool:
    """Whether what stands behind an agent can be held to rules about tools and turns."""
    return spec.partition(":")[0] not in _UNGOVERNED


def is_chat(spec: str) -> bool:
    """Whether it is a chat model, whose turns and tools the engine has in its own hands."""
    return spec.startswith(CHAT)


def name_for(spec: str) -> str:
    """A name for an agent that is given by its spec alone."""
    return spec.partition(":")[0]
