"""A picture of a state: plain values that are equal exactly when two folds gave the same state.

Two states cannot be compared directly, because their frames point at each other. What only
helps deciding (the agenda, queue positions, the time of the last look) is not in the picture.
"""

import dataclasses
from operator import attrgetter

import msgspec

from loopwright.kernel.frames import (
    Body,
    CheckNote,
    CycleBody,
    GateState,
    InterruptedIteration,
    ItemResult,
    IterationOwner,
    KeptLoop,
    LeafBody,
    Mail,
    Owner,
    RepeatBody,
    StepsBody,
)
from loopwright.kernel.state import State

_FIELDS = {
    **{name: f"queues.{name}" for name in ("timers", "stale")},
    **{name: f"agents.{name}" for name in ("served", "marks")},
    "begun": "reopenings.begun",
    "remembered": "agents.remembered",
    **{name: name for name in ("started", "finished")},
    **{name: f"control.{name}" for name in ("cancel", "paused")},
    **{"reopened": "reopenings.count", "raised": "reopenings.raised"},
    "opening": "reopenings.last",
    **{name: f"control.{name}" for name in ("passes", "metadata", "labels")},
    **{"version": "version", "calls": "agents.calls", "usage": "usage", "judged": "latest.notes"},
    **{name: f"times.{name}" for name in ("worked_ms", "working_since", "forked_at")},
    **{"snapshot": "snapshots.newest", "mail": "mail"},
    "snapshots": "snapshots",
    **{
        f"has_{name}": f"plan_index.has_{name}"
        for name in ("budget", "caps", "checks", "given", "idle", "wall")
    },
}
"""What is drawn as it is: its name in the picture, and where a state has it."""
_LINKS = {
    "owner",
    "parent",
    "body",
    "active",
    "unfinished",
    "queued",
    "index",
    "action",
    "gate",
    "answered_gate",
    "thread",
}
_FOUND_WHEN_ASKED = {"retry", "limits", "step", "cap_gate"}
_LEFT_OUT = {"values", "missing", "thread"}
_RECORDS: dict[str, dict[str, str]] = {
    **{name: {} for name in ("progress", "memory", "talk", "carry", "shortening")},
    "items": {"results": "item_results"},
    "checks": {
        name: f"check_{name}"
        for name in ("pending", "answer", "tries", "parks", "earlier", "numbers")
    },
}
"""Parts of loops, turns and iterations, with other names of some of their fields in the picture."""
_ORDER: dict[type, tuple[str, ...]] = {
    RepeatBody: (
        *("spent", "started", "finished", "last", "last_done", "last_checks", "last_steps"),
        *("learnings", "forgotten", "outputs", "feedback", "sessions", "identical", "unmet"),
        *("broken", "extra", "deadline", "deadline_hit", "delay", "delayed", "item_results"),
        *("spoiled", "checked_first", "call", "history", "carried", "talks", "turns"),
        *("summaries", "counted", "counted_entries", "spoilt", "keeps", "note", "again"),
    ),
    CycleBody: (
        *("attempt", "parks", "pending", "backoff", "answer", "failure", "summary"),
        *("shortened", "overflowed", "turn", "asked", "approved", "answers", "gates", "submitted"),
        *("earlier", "withdrawn", "runs", "summaries"),
    ),
    IterationOwner: ("path", "iteration", "number", "started_at", "inside", "spent"),
}
"""In what order fields are drawn."""


def picture(state: State) -> dict[str, object]:
    """Everything that later events can depend on."""
    drawn: dict[str, object] = {name: attrgetter(path)(state) for name, path in _FIELDS.items()}
    drawn["mail"] = _mail(state.mail)
    drawn["snapshots"] = msgspec.structs.replace(state.snapshots, newest=None)
    latest = state.latest
    drawn["newest"] = latest.iteration.path if latest.iteration else None
    drawn["judged_in"] = latest.notes_of.path if latest.notes_of else None
    drawn["judged"] = _value(latest.notes)
    drawn["gates"] = {name: (gate.digest, gate.path) for name, gate in state.gates.items()}
    drawn["pending"] = {
        effect: (pending.call, pending.purpose.word, pending.owner.path, pending.attempt)
        for effect, pending in state.pending.items()
    }
    drawn["kept"] = {path: _kept(kept) for path, kept in state.reopenings.kept.items()}
    drawn["places"] = {path: _place(owner) for path, owner in state.owners.items()}
    return drawn


def _kept(kept: KeptLoop) -> dict[str, object]:
    drawn = {name: _value(getattr(kept, name)) for name in kept.__struct_fields__}
    return drawn | {"values": _value(_by_name(kept.values))}


def _by_name(values: dict[str, object]) -> dict[str, object]:
    """Values of a loop without the part of the loop that each is in."""
    return {name.rpartition(".")[2]: value for name, value in values.items()}


def _mail(mail: Mail) -> dict[str, object]:
    parts = (mail, mail.replies, mail.coordinator)
    drawn = {name: getattr(part, name) for part in parts for name in _names(part)}
    drawn["replies"] = drawn.pop("answers")
    del drawn["coordinator"]
    return {"type": "Mail", **drawn}


def _place(owner: Owner) -> dict[str, object]:
    drawn = _plain(owner)
    body: Body = owner.body
    drawn["body"] = _plain(body)
    match body:
        case StepsBody() | RepeatBody():
            drawn["active"] = sorted(map(str, body.active))
            drawn["unfinished"] = sorted(map(str, body.unfinished))
        case LeafBody():
            drawn["asked"] = body.gate is not None
    return drawn


def _plain(thing: Owner | Body) -> dict[str, object]:
    order = _ORDER.get(type(thing), ())
    drawn: dict[str, object] = dict.fromkeys(order)
    for name in _names(thing):
        value = getattr(thing, name)
        if name in _RECORDS:
            shown = _RECORDS[name]
            names = [one for one in _names(value) if one not in _LEFT_OUT]
            drawn |= {shown.get(one, one): _value(getattr(value, one)) for one in names}
        elif name not in _LINKS | _FOUND_WHEN_ASKED:
            drawn[name] = _value(value)
    return drawn


def _names(thing: object) -> tuple[str, ...]:
    if isinstance(thing, msgspec.Struct):
        return thing.__struct_fields__
    return tuple(field.name for field in dataclasses.fields(thing))


def _value(value: object) -> object:
    """Notes, results of items and gates are frames too, and compare by identity."""
    if isinstance(value, InterruptedIteration):
        drawn = {name: _value(getattr(value, name)) for name in value.__struct_fields__}
        return drawn | {"values": _value(_by_name(value.values))}
    if isinstance(value, dict):
        return {name: _value(one) for name, one in value.items()}
    if isinstance(value, GateState):
        return value.gate, value.digest, value.decision
    if isinstance(value, list):
        return [_value(one) for one in value]
    if isinstance(value, ItemResult | CheckNote):
        return msgspec.structs.asdict(value)
    return list(value) if hasattr(value, "popleft") and hasattr(value, "__iter__") else value
