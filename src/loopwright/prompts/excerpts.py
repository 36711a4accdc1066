"""Excerpts for prompts: long texts cut to a limit, and messages with their senders.

Stored texts are never cut; only what a prompt shows is.
"""

from collections.abc import Iterable

from loopwright.kernel.state import KernelServices, QueuedMessage


def clip(text: str, size: int) -> str:
    """A text that fits, with its head and its tail and a word on what was left out."""
    if len(text) <= size:
        return text
    half = size // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def clip_with(text: str, size: int, handle: str) -> str:
    """The same with a word on where all of it is."""
    if len(text) <= size:
        return text
    half = size // 2
    where = f"; {handle}" if handle else ""
    left_out = f"[… {len(text) - 2 * half} characters left out{where} …]"
    return f"{text[:half]}\n{left_out}\n{text[len(text) - half :]}"


def clip_end(text: str, size: int) -> str:
    """A text of at most so many bytes: its head, and a word on what was left out after it."""
    if len(text) * 4 <= size:
        return text
    data = text.encode(errors="replace")
    if len(data) <= size:
        return text
    head = data[: max(size, 0)].decode(errors="ignore")  # a character is kept whole or left out
    return f"{head}\n[… truncated: {len(data) - len(head.encode())} bytes left out]"


MESSAGE_BYTES = 16 * 1_024


def render_messages(messages: Iterable[QueuedMessage], senses: KernelServices) -> list[str]:
    """A section with messages, each as a turn of whoever wrote it; none when there are none."""
    turns = [
        render_sender(message.sender, senses.read(message.text), told=message.intent == "tell")
        for message in messages
    ]
    return ["## Messages\n\n" + "\n\n".join(turns)] if turns else []


def render_sender(sender: str, text: str, *, told: bool = False) -> str:
    """One message, with who wrote it; `told` marks a person who steers the run."""
    head = f"Message from {sender}" if told else f"[{sender}]"
    # What a person sends is read whole; its size was checked when it was sent.
    return f"{head}: {text if told else clip_end(text, MESSAGE_BYTES)}"
