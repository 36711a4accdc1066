"""Replays a run where nothing but its log can be read: no file, process, net, clock or dice.

    sealed_replay.py HOME RUN

The log is read first, as a whole. Then everything else is taken away, which is tried out, and the
run is decided anew from its start and from what came from outside. Says how many events came out
the same, or fails.
"""

import os
import random
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from loopwright.engine.services import TextServices, schema_problem
from loopwright.kernel.decide import settle
from loopwright.kernel.events import (
    AnyEvent,
    CancelRequested,
    EffectDone,
    EffectFailed,
    GateAnswered,
    RunPaused,
    RunResumed,
    RunStarted,
)
from loopwright.kernel.fold import apply, fold
from loopwright.model.plan import decode_plan
from loopwright.operations.data_directory import open_reader
from loopwright.operations.settings import Settings

# What code does that only computes; every other audited deed is refused.
HARMLESS = ("object.", "code.", "compile", "exec", "import", "sys._getframe", "builtins.id")
CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "sleep")


class Sealed(Exception):
    """Something reached out."""


def main(home: str, run: str) -> int:
    events, contents = read_log(Path(home), run)
    # Code, not data: what is loaded on first use must be there before the door is shut.
    for module in ("jsonschema", "loopwright.syntax.cel"):
        import_module(module)
    start = events[0]
    assert isinstance(start, RunStarted)
    plan = decode_plan(contents[start.plan])
    seal()
    try_the_seal()
    state = fold(plan, events[:1])
    texts = TextServices(contents.__getitem__, schema_problem)
    known = 1
    while True:
        now = events[known].at if known < len(events) else state.now
        for event in settle(state, texts, now):
            if known == len(events) or event != events[known]:
                sys.stdout.write(f"fact {known + 1} comes out as {event}\n")
                return 1
            known += 1
        if known == len(events):
            break
        apply(state, events[known])
        known += 1
        while known < len(events) and is_from_outside(events[known]):
            apply(state, events[known])  # it came while the one before was looked at
            known += 1
    sys.stdout.write(f"the same {known} facts\n")
    return 0


def is_from_outside(event: AnyEvent) -> bool:
    """An answer, a decision, a stop; what the engine itself withdraws is none."""
    if isinstance(event, EffectFailed):
        return event.error.type != "cancelled"
    return isinstance(event, EffectDone | GateAnswered | CancelRequested | RunPaused | RunResumed)


def read_log(home: Path, run: str) -> tuple[list[AnyEvent], dict[str, bytes]]:
    """The events of a run, and all content that they name."""
    log = open_reader(Settings(home=home)).log
    events = [numbered.event for numbered in log.read(run)]
    names = {name for event in events for name in named(msgspec.to_builtins(event))}
    assert isinstance(events[0], RunStarted)
    contents = {name: log.blob(name) for name in {*names, events[0].plan}}
    log.close()
    return events, contents


def named(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("blob"), str):
            yield value["blob"]
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from named(one)


def seal() -> None:
    """From here on there is no world."""

    def refuse(event: str, _args: tuple[object, ...]) -> None:
        if not event.startswith(HARMLESS):
            raise Sealed(event)

    def nothing(*_: object) -> Any:
        raise Sealed("clock or dice")

    for name in CLOCKS:
        setattr(time, name, nothing)
    for module, names in (
        (random, ("random", "randrange")),
        (uuid, ("uuid4",)),
        (os, ("urandom",)),
    ):
        for name in names:
            setattr(module, name, nothing)
    sys.addaudithook(refuse)


def try_the_seal() -> None:
    """A seal that lets things through would prove nothing."""
    deeds: list[Callable[[], object]] = [
        lambda: Path(__file__).read_bytes(),
        lambda: os.listdir("/"),
        lambda: socket.socket().connect(("127.0.0.1", 9)),
        lambda: subprocess.run(["true"], check=False),
        lambda: time.time(),
        lambda: time.sleep(0),
        lambda: random.random(),
        lambda: os.urandom(1),
        lambda: uuid.uuid4(),
    ]
    for number, deed in enumerate(deeds):
        try:
            deed()
        except Sealed:
            continue
        raise SystemExit(f"deed {number} was let through")


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
