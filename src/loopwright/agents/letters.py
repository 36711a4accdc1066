"""Messages as an agent reads them: who wrote, and what."""

from collections.abc import Iterable

from loopwright.agents.clipping import clip_end
from loopwright.kernel.mail import Message
from loopwright.kernel.state import Senses

MESSAGE_BYTES = 16 * 1_024


def read_out(messages: Iterable[Message], senses: Senses) -> list[str]:
    """A section with messages, each as a turn of whoever wrote it; none when there are none."""
    turns = [
        f"[{message.sender}]: {clip_end(senses.read(message.text), MESSAGE_BYTES)}"
        for message in messages
    ]
    return ["## Messages\n\n" + "\n\n".join(turns)] if turns else []
