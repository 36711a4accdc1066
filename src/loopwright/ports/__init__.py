"""Ports: what the core needs from the world, as protocols. Adapters implement them; `app` chooses.

Two matter most. `EventLog` keeps facts: gapless numbers, expected-version appends, blobs, a tail.
`Performer` answers effects. `ModelClient` is for performers of model calls, `Cards` keeps small
records beside the runs. One contract suite runs over every implementation of each.

May import: kernel, model, errors. Start reading at `runs.py`; import from here alone.
"""

from loopwright.ports.cards import PICTURE, AuditRow, Card, Cards
from loopwright.ports.runs import (
    NO_BLOBS,
    NO_VALUES,
    OPEN_STATUSES,
    Answer,
    Append,
    Ask,
    Bus,
    Clock,
    Delta,
    Done,
    EventLog,
    Failed,
    Headline,
    Job,
    Letter,
    Liveness,
    ModelCatalogue,
    ModelClient,
    Numbered,
    Offered,
    OpenGate,
    Owner,
    Performer,
    Question,
    RunRow,
    RunStatus,
    Talk,
    Told,
    ToolEnd,
    Tools,
)

__all__ = [
    "NO_BLOBS",
    "NO_VALUES",
    "OPEN_STATUSES",
    "PICTURE",
    "Answer",
    "Append",
    "Ask",
    "AuditRow",
    "Bus",
    "Card",
    "Cards",
    "Clock",
    "Delta",
    "Done",
    "EventLog",
    "Failed",
    "Headline",
    "Job",
    "Letter",
    "Liveness",
    "ModelCatalogue",
    "ModelClient",
    "Numbered",
    "Offered",
    "OpenGate",
    "Owner",
    "Performer",
    "Question",
    "RunRow",
    "RunStatus",
    "Talk",
    "Told",
    "ToolEnd",
    "Tools",
]
