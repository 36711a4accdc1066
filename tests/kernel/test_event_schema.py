"""Events on disk: every kind round-trips, and no name changes by accident."""

from __future__ import annotations

import json
import typing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.kernel import event_parts, events
from loopwright.kernel.event_parts import AnyCall
from loopwright.kernel.events import AnyEvent, RunPaused, decode_events, encode_events
from loopwright.model.plan import Agent
from loopwright.model.policy import Limits
from loopwright.model.record import Blob
from tests.model.plans import IDS, JSON, TEXTS

SCHEMA = Path(__file__).parents[1] / "golden" / "event_schema.json"
KINDS: tuple[type[AnyEvent], ...] = typing.get_args(AnyEvent)
CALLS: tuple[type[AnyCall], ...] = typing.get_args(AnyCall)

TEXT = TEXTS | st.builds(Blob, blob=IDS, size=st.integers(0, 10**9), head=TEXTS)
MONEY = st.floats(0, 1_000)
COUNT = st.integers(0, 2**53)
OUTSIDE = st.lists(st.tuples(TEXTS, TEXTS), max_size=2).map(tuple)
USAGE = st.builds(events.Usage, input_tokens=COUNT, output_tokens=COUNT, usd=MONEY)
DIFF = st.builds(events.DiffStat, files=COUNT, insertions=COUNT, deletions=COUNT)
SNAPSHOT = st.builds(
    events.Snapshot,
    tree=IDS,
    changed=DIFF,
    total=DIFF,
    paths=st.lists(TEXTS, max_size=2).map(tuple),
    omitted=st.lists(TEXTS, max_size=2).map(tuple),
    omitted_count=COUNT,
    outside=OUTSIDE,
)
ACTIVITY = st.builds(
    events.ActivityNote,
    number=COUNT,
    at=COUNT,
    kind=IDS,
    tool=IDS,
    target=TEXTS,
    ok=st.none() | st.booleans(),
    code=st.none() | COUNT,
    ms=st.none() | COUNT,
    text=TEXTS,
    arguments=TEXT,
    result=TEXT,
)
FAILURE = st.builds(
    events.Failure, type=IDS, detail=TEXTS, retry_after_ms=st.none() | st.integers(0, 10**9)
)
BY_NAME: dict[str, st.SearchStrategy[object]] = {
    "at": COUNT,
    "inputs": st.dictionaries(TEXTS, JSON, max_size=2),
    "iteration": st.none() | st.integers(0, 1_000),
    "of": st.none() | COUNT,
    "metadata": st.none() | st.dictionaries(TEXTS, JSON, max_size=2),
    "stage": st.sampled_from([None, "retry", "skip"]),
    "usage": st.none() | USAGE,
    "mark": st.none() | COUNT,
    "code": st.none() | st.integers(-255, 255),
    "call": st.one_of([st.deferred(lambda kind=kind: any_of(kind)) for kind in CALLS]),
    "trimmed": st.lists(COUNT, max_size=2).map(tuple),
    "calls": st.lists(
        st.builds(
            event_parts.CallNote, id=IDS, tool=IDS, arguments=TEXT, held=TEXTS, problem=TEXTS
        ),
        max_size=2,
    ).map(tuple),
    "argv": st.lists(TEXTS, max_size=3).map(tuple),
    "env": st.dictionaries(IDS, TEXTS, max_size=2),
    "dropped_by_kind": st.dictionaries(IDS, st.integers(0, 10**6), max_size=2),
    "answers": st.just(("approve", "continue")),
    "usd": MONEY,
    "limits": st.none() | st.builds(Limits, usd=st.none() | MONEY, wall_ms=st.none() | COUNT),
    "messages": st.lists(TEXTS, max_size=2).map(tuple),
    "known": st.lists(TEXTS, max_size=2).map(tuple),
    "labels": st.lists(TEXTS, max_size=2).map(tuple),
    "uncovered": st.none() | st.lists(TEXTS, max_size=2).map(tuple),
    "snapshot": st.none() | SNAPSHOT,
    "worktree": st.none()
    | st.builds(
        events.Worktree, repository=TEXTS, folder=TEXTS, branch=IDS, base=IDS, uncommitted=COUNT
    ),
    "changed": st.none() | st.builds(events.DiffStat, files=COUNT, insertions=COUNT),
    "protect": st.lists(TEXTS, max_size=2).map(tuple),
    "watch": st.lists(TEXTS, max_size=2).map(tuple),
    "outside": OUTSIDE,
    "entries": st.lists(ACTIVITY, max_size=2).map(tuple),
    "tools": st.lists(st.builds(events.ToolUse, name=IDS, input=TEXTS), max_size=2).map(tuple),
}


def any_of(kind: type) -> st.SearchStrategy[object]:
    """Values of a record, each field by its name, else by its type."""
    hints = typing.get_type_hints(kind)
    given_fields = {
        name: BY_NAME[name] if name in BY_NAME and not _is_text(kind, name) else _of(hint)
        for name, hint in hints.items()
        if name in kind.__struct_fields__
    }
    return st.builds(kind, **given_fields)


def _is_text(kind: type, name: str) -> bool:
    if kind is events.StepKept:
        return name == "of"
    return kind in (event_parts.ToolCall, events.GateOpened) and name == "call"


def _of(hint: object) -> st.SearchStrategy[object]:
    options = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return st.sampled_from(options)
    if any(typing.get_origin(one) is typing.Literal for one in options):
        return st.one_of(st.none(), *(_of(one) for one in options if one is not type(None)))
    if Blob in options:
        return TEXT | st.none() if type(None) in options else TEXT
    if events.Failure in (hint, *options):
        return FAILURE | st.none() if options else FAILURE
    if hint is Agent:
        return st.builds(Agent, spec=TEXTS, system=TEXTS, env=st.dictionaries(IDS, TEXTS))
    if int in (hint, *options):
        return COUNT | st.none() if options else COUNT
    if hint is bool:
        return st.booleans()
    return TEXTS | st.none() if type(None) in options else TEXTS


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__struct_config__.tag)
@settings(max_examples=25)
@given(data=st.data())
def test_every_kind_round_trips(kind: type[AnyEvent], data: st.DataObject) -> None:
    """An event that was written is read as it was."""
    event = data.draw(any_of(kind))
    assert decode_events(encode_events([event, event])) == [event, event]


def described() -> dict[str, dict[str, list[str]]]:
    """Kinds and their fields as they stand on disk."""
    return {
        "events": {str(k.__struct_config__.tag): list(k.__struct_encode_fields__) for k in KINDS},
        "calls": {str(k.__struct_config__.tag): list(k.__struct_encode_fields__) for k in CALLS},
        "parts": {
            kind.__name__: list(kind.__struct_encode_fields__)
            for kind in (
                events.Usage,
                events.ToolUse,
                events.DiffStat,
                events.Snapshot,
                events.ActivityNote,
                events.Failure,
                event_parts.CallNote,
                Blob,
                Agent,
                Limits,
            )
        },
    }


def test_names_on_disk_are_frozen() -> None:
    """Kinds and fields are as recorded; a change here is a change of everyone's logs.

    A new kind or a new optional field: edit tests/golden/event_schema.json by hand. A renamed or
    removed one: old logs must still fold, so it needs a translation first.
    """
    assert described() == json.loads(SCHEMA.read_text(encoding="utf-8"))


def test_new_fields_have_defaults() -> None:
    """Only what an event cannot be without must be there, so that old logs still read."""
    required = {
        str(kind.__struct_config__.tag): [
            field.encode_name for field in msgspec.structs.fields(kind) if field.required
        ]
        for kind in KINDS
    }
    assert required == {
        "run.started": ["at", "run", "plan", "name"],
        "run.paused": ["at"],
        "run.resumed": ["at"],
        "cancel.requested": ["at"],
        "run.finished": ["at", "outcome", "reason"],
        "run.reopened": ["at"],
        "run.forked": ["at", "parent", "place"],
        "run.edited": ["at"],
        "agent.changed": ["at", "agent", "becomes"],
        "step.started": ["at", "path"],
        "step.retried": ["at", "path", "attempt"],
        "step.finished": ["at", "path", "status"],
        "step.skipped": ["at", "path", "reason"],
        "step.kept": ["at", "path"],
        "iteration.started": ["at", "path"],
        "iteration.finished": ["at", "path"],
        "check.verdict": ["at", "path", "index", "check", "verdict"],
        "effect.requested": ["at", "path", "effect", "call"],
        "effect.done": ["at", "path", "effect"],
        "effect.failed": ["at", "path", "effect", "error"],
        "effect.activity": ["at", "path", "effect"],
        "effect.repeated": ["at", "path", "effect"],
        "turn.taken": ["at", "path", "effect"],
        "gate.opened": ["at", "path", "gate", "digest", "message", "answers"],
        "gate.answered": ["at", "path", "gate", "decision"],
        "gate.closed": ["at", "path", "gate", "reason"],
        "message.sent": ["at", "path", "to", "text"],
        "message.delivered": ["at", "path", "to"],
        "message.dropped": ["at", "path", "message", "to", "reason"],
        "coordinator.narrated": ["at", "path", "text"],
        "coordinator.finalized": ["at", "path"],
        "history.compressed": ["at", "path", "dropped", "kept", "strategy"],
        "budget.reserved": ["at", "path", "effect"],
        "budget.settled": ["at", "path", "effect"],
    }


def test_defaults_take_no_room() -> None:
    """What is as by default is not written: an iteration must stay small."""
    assert encode_events([RunPaused(at=1)]) == b'[{"kind":"run.paused","at":1}]'


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b'[{"kind":"run.exploded","at":1}]', id="unknown kind"),
        pytest.param(b'[{"kind":"run.paused"}]', id="no time"),
        pytest.param(b'[{"kind":"run.paused","at":"1"}]', id="time as text"),
        pytest.param(b"[", id="half a batch"),
    ],
)
def test_what_is_not_an_event_is_refused(data: bytes) -> None:
    """A damaged row is an error, not a guess."""
    with pytest.raises(msgspec.DecodeError):
        decode_events(data)
