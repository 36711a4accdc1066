"""Asking a person at a gate, on a terminal."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from loopwright.app.deciding import AS_ASKED, CallAnswer, read_arguments
from loopwright.app.views.exposing import exposure
from loopwright.app.views.place_words import place_words
from loopwright.app.views.workspace_history import change_words
from loopwright.cli.calls import arguments_lines, exposed_lines
from loopwright.cli.door import Door
from loopwright.cli.texts import last_lines, one_line
from loopwright.errors import LoopwrightError
from loopwright.kernel.facts import GateOpened
from loopwright.model.actions import Decision
from loopwright.model.record import JsonValue

OUTPUT_LINES = 15
_KEYS: dict[str, Decision] = {"a": "approve", "r": "reject", "c": "continue"}
_REMEMBER, _EDIT = ("m", "remember"), ("e", "edit")
_NEEDED = {"continue": "what should be different? ", "reject": "why not? The model reads this: "}
_REASON = "reason (Enter for none): "
_MEANINGS: dict[str, dict[Decision, str]] = {
    "tool": {
        "approve": "let the agent make this call",
        "reject": "deny this call; TEXT says why, and the agent reads it",
        "continue": "deny this call; TEXT tells the agent what to do instead",
    },
    "pass": {
        "approve": "accept the result of this iteration",
        "reject": "reject the result, which ends the loop; TEXT is recorded as the reason",
        "continue": "run another iteration; TEXT tells the agent what to change",
    },
    "cap": {
        "approve": "accept the last result: the loop is completed",
        "reject": "end the loop as failed; TEXT is recorded as the reason",
        "continue": "allow one more iteration; TEXT tells the agent what to change",
    },
    "blocked": {
        "approve": "go to the next step with what this one has left",
        "reject": "end the step as failed; TEXT is recorded as the reason",
        "continue": "run the step again; TEXT answers what its agent asked for",
    },
    "step": {
        "approve": "let the run proceed; TEXT is recorded with the answer",
        "reject": "do not let the run proceed; TEXT is recorded as the reason",
        "continue": "let the run proceed with TEXT as the answer",
    },
}
_DIFF = ("d", "diff")
ReadLine = Callable[[], Awaitable[str | None]]
ShowDiff = Callable[[], Awaitable[None]]


class Reply(NamedTuple):
    """What the person said."""

    decision: Decision
    text: str
    call: CallAnswer = AS_ASKED


async def ask(
    door: Door,
    gate: GateOpened,
    output: str,
    read_line: ReadLine | None = None,
    show_diff: ShowDiff | None = None,
) -> Reply | None:
    """Show what is to be decided and wait for an answer; None when the person leaves. With
    `show_diff`, a person can look at what changed first.
    """
    read_line = read_line or terminal_line
    _show(door, gate, output)
    show_diff = show_diff if gate.snapshot is not None else None
    while True:
        _prompt(_choices(gate, has_diff=show_diff is not None))
        typed = await read_line()
        word, _, rest = (typed or "").strip().partition(" ")
        if typed is None or word.lower() in ("l", "leave", "q"):
            return None
        if await _explain(door, gate, word.lower(), show_diff):
            continue
        if gate.call is not None and word.lower() in (*_REMEMBER, *_EDIT):
            call = await _about_call(door, word.lower(), rest, read_line)
            if call is not None:
                return Reply("approve", "" if word.lower() in _EDIT else rest.strip(), call)
            continue
        decision = _decision(word.lower(), gate)
        if decision is None:
            _explain_unknown(door, gate, word)
            continue
        text = await _text_of(decision, gate, rest.strip(), read_line)
        return None if text is None else Reply(decision, text)


def _explain_unknown(door: Door, gate: GateOpened, word: str) -> None:
    """Say that a word is not an answer, and which answers there are."""
    if not word:
        return
    door.tell(f"  {one_line(word)!r} is not an answer here; the answers are:", tone="warn")
    for line in explain_choices(gate):
        door.tell(f"  {line}")


async def _text_of(
    decision: Decision, gate: GateOpened, text: str, read_line: ReadLine
) -> str | None:
    """What is said with a decision; None when the person leaves. The reason of a rejection is asked
    for, and may be left empty where no model reads it.
    """
    needed = _needs_text(decision, gate)
    while not text and (needed or decision == "reject"):
        _prompt(_NEEDED[decision] if needed else _REASON)
        more = await read_line()
        if more is None:
            return None
        text = more.strip()
        if not needed:
            break
    return text


async def _explain(door: Door, gate: GateOpened, word: str, show_diff: ShowDiff | None) -> bool:
    """Show help or the diff, whichever a word asks for; False when it asks for neither."""
    if show_diff is not None and word in _DIFF:
        await show_diff()
        return True
    if word not in ("?", "h", "help"):
        return False
    for line in explain_choices(gate):
        door.tell(f"  {line}")
    return True


def _choices(gate: GateOpened, *, has_diff: bool = False) -> str:
    choices = ["[d]iff"] if has_diff else []
    choices += [f"[{decision[0]}]{decision[1:]}" for decision in gate.answers]
    if gate.call is not None:
        choices += ["approve and re[m]ember", "[e]dit the arguments"]
    return f"{', '.join([*choices, '[?] help'])} or [l]eave it: "


def explain_choices(gate: GateOpened) -> list[str]:
    """What each answer does at this gate."""
    meanings = _MEANINGS["tool" if gate.call is not None else gate.about]
    lines = [(f"{answer[0]}, {answer} TEXT", meanings[answer]) for answer in gate.answers]
    if gate.call is not None:
        lines += [
            ("m, remember", "approve this call and do not ask again about this tool in this run"),
            ("e, edit JSON", "approve the call with other arguments: a JSON object or @FILE"),
        ]
    if gate.snapshot is not None:
        lines.append(("d, diff", "show what was changed, then ask again"))
    lines += [
        ("l, leave", "decide later: the run waits, and `loopwright inbox` lists the gate"),
        ("?", "show this explanation"),
    ]
    width = max(len(key) for key, _ in lines)
    return [f"{key:<{width}}  {meaning}" for key, meaning in lines]


def _needs_text(decision: Decision, gate: GateOpened) -> bool:
    return decision == "continue" or (decision == "reject" and gate.call is not None)


async def _about_call(door: Door, word: str, rest: str, read_line: ReadLine) -> CallAnswer | None:
    """What is said with an approval of a tool call; None when that cannot be understood."""
    if word in _REMEMBER:
        return CallAnswer(remember=True)
    given = rest.strip()
    if not given:
        _prompt("arguments, as a JSON object or @FILE: ")
        given = (await read_line() or "").strip()
    try:
        return CallAnswer(arguments=read_arguments(given))
    except LoopwrightError as error:
        door.tell(str(error), tone="warn")
        return None


def _decision(word: str, gate: GateOpened) -> Decision | None:
    found = _KEYS.get(word) or next((d for d in gate.answers if d == word), None)
    return found if found in gate.answers else None


def _show(door: Door, gate: GateOpened, output: str) -> None:
    door.tell("")
    door.tell(one_line(gate.message), tone="bold")
    call: dict[str, JsonValue] | None = None
    if gate.call is not None:
        call = {"tool": "", "arguments": json.loads(output)}
        for line in arguments_lines(call["arguments"]):
            door.tell(f"  {line}")
    else:
        _show_output(door, output)
    if gate.snapshot is not None:
        door.tell(f"  {change_words(gate.snapshot)}", tone="bold")
    for line in exposed_lines({"id": gate.gate, **exposure(gate.message, call)}):
        door.tell(f"  {line}", tone="warn")
    place = f" · {words}" if (words := place_words(gate.path)) else ""
    door.tell(f"  {gate.gate}{place}", tone="dim")


def _show_output(door: Door, output: str) -> None:
    lines = last_lines(output, OUTPUT_LINES)
    total = len([line for line in output.splitlines() if line.strip()])
    if total > len(lines):
        door.tell(f"  … {total - len(lines)} lines before", tone="dim")
    for line in lines:
        door.tell(f"  {line}")


def _prompt(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


async def terminal_line() -> str | None:
    """A line typed by the person; None at the end of the input. What is printed after Ctrl-C or
    Ctrl-D begins on a new line.
    """
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
    line: str | None = None
    try:
        line = await done
        return line
    finally:
        loop.remove_reader(descriptor)
        if line is None:
            _prompt("\n")
