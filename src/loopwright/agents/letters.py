"""Messages as an agent reads them: who wrote, and what."""

from collections.abc import Iterable

from loopwright.agents.clipping import clip_end
from loopwright.kernel.mail import Message
from loopwright.kernel.state import Senses

MESSAGE_BYTES = 16 * 1_024


def read_out(messages: Iterable[Message], senses: Senses) -> list[str]:
    """A section with messages, each as a turn of whoever wrote it; none when there are none."""
    turns = [
        said_by(message.sender, senses.read(message.text), told=message.intent == "tell")
        for message in messages
    ]
    return ["## Messages\n\n" + "\n\n".join(turns)] if turns else []


def said_by(sender: str, text: str, *, told: bool = False) -> str:
    """One message, with who wrote it; `told` marks a person who steers the run."""
    head = f"Message from {sender}" if told else f"[{sender}]"
    # What a person sends is read whole; its size was checked when it was sent.
    return f"{head}: {text if told else clip_end(text, MESSAGE_BYTES)}"
