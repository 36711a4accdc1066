"""All golden logs: how each is made, what it contains, and what the logs must contain together."""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from loopwright.kernel.events import AnyEvent, EffectRequested, StepFinished, StepSkipped
from loopwright.kernel.state import State
from loopwright.model import ids
from loopwright.model.ids import CheckPurpose, ToolPurpose, effect_id
from loopwright.model.plan import Plan, decode_plan
from loopwright.model.record import Blob, Text
from loopwright.views.summary import summary as run_summary
from tests.golden.files import FOLDER
from tests.golden.kernel_runs import KERNEL_RUNS
from tests.golden.recording import RECORDINGS
from tests.golden.stored_runs import STORED_RUNS
from tests.kernel.driving import kind
from tests.support.laws.state_picture import picture

LOGS = FOLDER / "logs"


class Run(Protocol):
    """A run that was made: its plan and its events."""

    @property
    def plan(self) -> Plan: ...

    @property
    def events(self) -> list[AnyEvent]: ...


RUNS: dict[str, Callable[[], Run]] = {**RECORDINGS, **KERNEL_RUNS, **STORED_RUNS}

PURPOSES = {
    *("agent", "command", "script", "wait", "backoff", "rework", "artifact"),
    *("deadline", "loop-deadline", "delay", "check", "park", "snapshot"),
    *("model", "tool", "summary"),
    *("coordinator", "coordinator-backoff", "reply", "hold"),
}
"""What an effect is for: the part of its id between `/` and `#`, without a number at its end."""


def read_events(name: str) -> list[AnyEvent]:
    decoder = msgspec.json.Decoder(AnyEvent)
    lines = (LOGS / f"{name}.jsonl").read_bytes().splitlines()
    return [decoder.decode(line) for line in lines]


def read_plan(name: str) -> Plan:
    return decode_plan((LOGS / f"{name}.plan.json").read_bytes())


def read_expected(name: str) -> object:
    return json.loads((LOGS / f"{name}.expected.json").read_text(encoding="utf-8"))


def lines_of(events: Iterable[AnyEvent]) -> bytes:
    """Events as they are on disk, one on each line."""
    encoder = msgspec.json.Encoder()
    return b"".join(encoder.encode(event) + b"\n" for event in events)


def as_json(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


# -- what a log comes to ---------------------------------------------------------------------------


def summary(state: State, events: Sequence[AnyEvent]) -> dict[str, object]:
    """The result of a run, as later releases must still see it."""
    end = state.finished
    ended = [event for event in events if isinstance(event, StepFinished | StepSkipped)]
    return {
        "version": state.version,
        "outcome": end.outcome if end else None,
        "reason": end.reason if end else None,
        "output": msgspec.to_builtins(end.output) if end else None,
        "error": msgspec.to_builtins(end.error) if end else None,
        "steps": {event.path: event.status for event in ended},
        "kinds": dict(sorted(Counter(kind(event) for event in events).items())),
        "pending": sorted(state.pending),
        "gates": sorted(gate.path for gate in state.gates.values()),
        "paused": state.control.paused,
        "ignored": state.ignored,
        "usage": msgspec.to_builtins(state.usage),
    }


def state_picture(state: State) -> dict[str, object]:
    """What `run --json` shows of a state, and everything in it that later events depend on.

    The first part is a public shape. The second has the names of the kernel's own records, so that
    a change of those records, which changes no log, renews it.
    """
    return {
        "shown": msgspec.to_builtins(run_summary(state, _text)),
        "state": _plain(picture(state)),
    }


def _text(text: Text | None) -> str:
    """A text, or the beginning of a stored one: contents are not kept with these logs."""
    return text.head if isinstance(text, Blob) else text or ""


def _plain(value: object) -> object:
    """A value as JSON; what is empty or as it begins is left out, to keep the files small."""
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return {"type": type(value).__name__, **_filled(fields)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"type": type(value).__name__, **_filled(fields)}
    if isinstance(value, dict):
        return _filled({str(key): one for key, one in value.items()})
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    assert value is None or isinstance(value, str | int | float), f"no JSON for {type(value)}"
    return value


def _filled(fields: dict[str, object]) -> dict[str, object]:
    plain = {name: _plain(value) for name, value in fields.items()}
    return {n: v for n, v in plain.items() if v is not None and v not in ("", [], {}, 0, False)}


# -- what the logs must contain --------------------------------------------------------------------


def purpose_of(effect: str) -> str:
    return re.sub(r"\d+$", "", effect.rpartition("/")[2].partition("#")[0])


def kinds_in(events: Iterable[AnyEvent]) -> set[str]:
    return {kind(event) for event in events}


def purposes_in(events: Iterable[AnyEvent]) -> set[str]:
    return {purpose_of(event.effect) for event in events if isinstance(event, EffectRequested)}


def calls_in(events: Iterable[AnyEvent]) -> set[tuple[str, str]]:
    """Kinds of calls with their roles."""
    return {
        (str(type(event.call).__struct_config__.tag), getattr(event.call, "role", ""))
        for event in events
        if isinstance(event, EffectRequested)
    }


def roles_of(call: type) -> Iterator[str]:
    hint = typing.get_type_hints(call).get("role")
    yield from typing.get_args(hint) if hint is not None else ("",)


def known_purposes() -> set[str]:
    """The purposes that an effect can have, each as its word in an id."""
    known = [*ids.PURPOSES.values(), CheckPurpose(0), ToolPurpose(1)]
    assert set(map(type, known)) == set(typing.get_args(ids.EffectPurpose))
    return {purpose_of(effect_id("dev", one, 1)) for one in known}
