"""Asking a person at a gate, on a terminal."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from loopwright.cli.door import Door
from loopwright.cli.texts import last_lines, one_line
from loopwright.kernel.facts import GateOpened
from loopwright.model.actions import Decision

OUTPUT_LINES = 15
_KEYS: dict[str, Decision] = {"a": "approve", "r": "reject", "c": "continue"}
ReadLine = Callable[[], Awaitable[str | None]]


class Reply(NamedTuple):
    """What the person said."""

    decision: Decision
    text: str


async def ask(
    door: Door, gate: GateOpened, output: str, read_line: ReadLine | None = None
) -> Reply | None:
    """Show what is to be decided and wait for an answer; None when the person leaves."""
    read_line = read_line or terminal_line
    _show(door, gate, output)
    choices = ", ".join(f"[{decision[0]}]{decision[1:]}" for decision in gate.answers)
    while True:
        _prompt(f"{choices} or [l]eave it: ")
        typed = await read_line()
        word, _, rest = (typed or "").strip().partition(" ")
        if typed is None or word.lower() in ("l", "leave", "q"):
            return None
        decision = _decision(word.lower(), gate)
        if decision is None:
            continue
        text = rest.strip()
        while decision == "continue" and not text:
            _prompt("what should be different? ")
            more = await read_line()
            if more is None:
                return None
            text = more.strip()
        return Reply(decision, text)


def _decision(word: str, gate: GateOpened) -> Decision | None:
    found = _KEYS.get(word) or next((d for d in gate.answers if d == word), None)
    return found if found in gate.answers else None


def _show(door: Door, gate: GateOpened, output: str) -> None:
    door.tell("")
    door.tell(f"A person is asked: {one_line(gate.message)}", tone="bold")
    lines = last_lines(output, OUTPUT_LINES)
    total = len([line for line in output.splitlines() if line.strip()])
    if total > len(lines):
        door.tell(f"  … {total - len(lines)} lines before", tone="dim")
    for line in lines:
        door.tell(f"  {line}")
    door.tell(f"  {gate.gate} · {gate.path} · digest {gate.digest[:16]}", tone="dim")


def _prompt(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


async def terminal_line() -> str | None:
    """A line typed by the person; None at the end of the input."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[str | None] = loop.create_future()
    descriptor = sys.stdin.fileno()

    def readable() -> None:
        try:
            data = os.read(descriptor, 4096)
        except OSError:
            data = b""
        if not done.done():
            done.set_result(data.decode(errors="replace") if data else None)

    loop.add_reader(descriptor, readable)
    try:
        return await done
    finally:
        loop.remove_reader(descriptor)
