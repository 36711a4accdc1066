"""Excerpts for prompts: long texts cut to a limit, and messages with their senders.

Stored texts are never cut; only what a prompt shows is.
"""

from collections.abc import Iterable

from loopwright.kernel.frames import QueuedMessage
from loopwright.kernel.state import KernelServices


def clip(text: str, size: int) -> str:
    """A text that fits: its head, its tail and a note about the omitted part."""
    if len(text) <= size:
        return text
    half = size // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def clip_with(text: str, size: int, handle: str) -> str:
    """The same with a note that says where the whole text is."""
    if len(text) <= size:
        return text
    half = size // 2
    where = f"; {handle}" if handle else ""
    left_out = f"[… {len(text) - 2 * half} characters left out{where} …]"
    return f"{text[:half]}\n{left_out}\n{text[len(text) - half :]}"


def clip_end(text: str, size: int) -> str:
    """A text of at most this many bytes: its head, and a note about the omitted part."""
    if len(text) * 4 <= size:
        return text
    data = text.encode(errors="replace")
    if len(data) <= size:
        return text
    head = data[: max(size, 0)].decode(errors="ignore")  # a character is kept or omitted as a whole
    return f"{head}\n[… truncated: {len(data) - len(head.encode())} bytes left out]"


MESSAGE_BYTES = 16 * 1_024


def render_messages(messages: Iterable[QueuedMessage], senses: KernelServices) -> list[str]:
    """A section with messages, each with its sender; empty if there are none."""
    turns = [
        render_sender(message.sender, senses.read(message.text), told=message.intent == "tell")
        for message in messages
    ]
    return ["## Messages\n\n" + "\n\n".join(turns)] if turns else []


def render_sender(sender: str, text: str, *, told: bool = False) -> str:
    """One message with its sender; `told` marks a person who steers the run."""
    head = f"Message from {sender}" if told else f"[{sender}]"
    # A message of a person is shown in full; its size was checked when it was sent.
    return f"{head}: {text if told else clip_end(text, MESSAGE_BYTES)}"
