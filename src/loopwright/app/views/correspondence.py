"""Messages and what the coordinator tells, in words."""

from loopwright.app.views.place_words import place_words
from loopwright.app.views.summary import ReadText
from loopwright.kernel.facts import (
    AnyFact,
    CoordinatorFinalized,
    CoordinatorNarrated,
    MessageDelivered,
    MessageDropped,
    MessageSent,
)
from loopwright.kernel.mail import ANY_AGENT, PERSON


def written(fact: AnyFact, read: ReadText) -> tuple[str, str] | None:
    """A title and a text, or nothing for a fact that is no message."""
    match fact:
        case MessageSent(intent="tell"):
            to = "" if fact.to == ANY_AGENT else f" to {fact.to}"
            return f"message from {fact.sender or PERSON}{to}", read(fact.text)
        case MessageDelivered(to="*"):
            to = place_words(fact.path) or "the run"
            return f"message {', '.join(fact.messages)} delivered to {to}", ""
        case MessageSent():
            what = {"cancel": "cancel", "reply": "reply"}.get(fact.intent, "message")
            return f"{what} {fact.sender or 'somebody'} → {fact.to}", read(fact.text)
        case MessageDropped():
            return f"message to {fact.to} dropped ({fact.reason})", fact.detail
        case CoordinatorNarrated():
            return "coordinator", read(fact.text)
        case CoordinatorFinalized():
            return "coordinator sums up", read(fact.summary)
        case _:
            return None
