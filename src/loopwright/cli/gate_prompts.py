"""Prompts for decisions at gates, of local runs and of runs on a remote server."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from loopwright.cli.formats import arguments_lines, exposed_lines
from loopwright.cli.terminal import Terminal, last_lines, one_line
from loopwright.errors import Conflict, LoopwrightError, NotAllowed, NotFound
from loopwright.kernel.events import GateOpened
from loopwright.model.actions import Decision
from loopwright.model.record import Blob, JsonValue
from loopwright.operations.gates import AS_ASKED, CallAnswer, read_arguments
from loopwright.views.formats import exposure, place_words
from loopwright.views.iterations import change_words, iteration_of

if TYPE_CHECKING:
    from loopwright.client.client import Client

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


class GateReply(NamedTuple):
    """The decision of the person."""

    decision: Decision
    text: str
    call: CallAnswer = AS_ASKED


async def ask(
    terminal: Terminal,
    gate: GateOpened,
    output: str,
    read_line: ReadLine | None = None,
    show_diff: ShowDiff | None = None,
) -> GateReply | None:
    """Show the question and wait for an answer; None when the person leaves. With
    `show_diff`, a person can look at what changed first.
    """
    read_line = read_line or terminal_line
    _show(terminal, gate, output)
    show_diff = show_diff if gate.snapshot is not None else None
    while True:
        _prompt(_choices(gate, has_diff=show_diff is not None))
        typed = await read_line()
        word, _, rest = (typed or "").strip().partition(" ")
        if typed is None or word.lower() in ("l", "leave", "q"):
            return None
        if await _explain(terminal, gate, word.lower(), show_diff):
            continue
        if gate.call is not None and word.lower() in (*_REMEMBER, *_EDIT):
            call = await _about_call(terminal, word.lower(), rest, read_line)
            if call is not None:
                return GateReply("approve", "" if word.lower() in _EDIT else rest.strip(), call)
            continue
        decision = _decision(word.lower(), gate)
        if decision is None:
            _explain_unknown(terminal, gate, word)
            continue
        text = await _text_of(decision, gate, rest.strip(), read_line)
        return None if text is None else GateReply(decision, text)


def _explain_unknown(terminal: Terminal, gate: GateOpened, word: str) -> None:
    """Say that a word is not an answer, and which answers there are."""
    if not word:
        return
    terminal.tell(f"  {one_line(word)!r} is not an answer here; the answers are:", tone="warn")
    for line in explain_choices(gate):
        terminal.tell(f"  {line}")


async def _text_of(
    decision: Decision, gate: GateOpened, text: str, read_line: ReadLine
) -> str | None:
    """The text of a decision; None if the person cancels. A rejection asks for a reason, which may
    be empty if no model reads it.
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


async def _explain(
    terminal: Terminal, gate: GateOpened, word: str, show_diff: ShowDiff | None
) -> bool:
    """Show help or the diff, whichever a word asks for; False when it asks for neither."""
    if show_diff is not None and word in _DIFF:
        await show_diff()
        return True
    if word not in ("?", "h", "help"):
        return False
    for line in explain_choices(gate):
        terminal.tell(f"  {line}")
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


async def _about_call(
    terminal: Terminal, word: str, rest: str, read_line: ReadLine
) -> CallAnswer | None:
    """The text with an approval of a tool call; None if it is invalid."""
    if word in _REMEMBER:
        return CallAnswer(remember=True)
    given = rest.strip()
    if not given:
        _prompt("arguments, as a JSON object or @FILE: ")
        given = (await read_line() or "").strip()
    try:
        return CallAnswer(arguments=read_arguments(given))
    except LoopwrightError as error:
        terminal.tell(str(error), tone="warn")
        return None


def _decision(word: str, gate: GateOpened) -> Decision | None:
    found = _KEYS.get(word) or next((d for d in gate.answers if d == word), None)
    return found if found in gate.answers else None


def _show(terminal: Terminal, gate: GateOpened, output: str) -> None:
    terminal.tell("")
    terminal.tell(one_line(gate.message), tone="bold")
    call: tuple[str, JsonValue] | None = None
    if gate.call is not None:
        call = "", json.loads(output)
        for line in arguments_lines(call[1]):
            terminal.tell(f"  {line}")
    else:
        _show_output(terminal, output)
    if gate.snapshot is not None:
        terminal.tell(f"  {change_words(gate.snapshot)}", tone="bold")
    for line in exposed_lines(gate.gate, *exposure(gate.message, call)):
        terminal.tell(f"  {line}", tone="warn")
    place = f" · {words}" if (words := place_words(gate.path)) else ""
    terminal.tell(f"  {gate.gate}{place}", tone="dim")


def _show_output(terminal: Terminal, output: str) -> None:
    lines = last_lines(output, OUTPUT_LINES)
    total = len([line for line in output.splitlines() if line.strip()])
    if total > len(lines):
        terminal.tell(f"  … {total - len(lines)} lines before", tone="dim")
    for line in lines:
        terminal.tell(f"  {line}")


def _prompt(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


async def terminal_line() -> str | None:
    """A line typed by the person; None at the end of the input. After Ctrl-C or Ctrl-D, output
    begins on a new line.
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


POLL_S = 1.0


async def ask_at_gate(terminal: Terminal, client: "Client", run: str, gate: GateOpened) -> bool:
    """Show an open gate and send the answer; False if the person decides later."""
    from loopwright.operations.use_cases.gates import ANSWERS, AnswerGate  # noqa: PLC0415 - only at a gate

    reply = await _prompt_for_gate(terminal, client, run, gate, await _output(client, run, gate))
    if reply is None:
        return False
    if isinstance(reply, str):
        terminal.tell(reply)
        return True
    call = reply.call
    request = AnswerGate(
        gate=gate.gate,
        text=reply.text,
        digest=gate.digest,
        arguments=None if call.arguments is None else json.loads(call.arguments),
        remember=call.remember,
    )
    try:
        await client.call(ANSWERS[reply.decision], request)
    except Conflict as conflict:
        terminal.tell(str(conflict), tone="warn")
    except NotAllowed as refusal:  # the gate stays open for another person
        terminal.tell(str(refusal), tone="warn")
        return False
    return True


async def _prompt_for_gate(
    terminal: Terminal, client: "Client", run: str, gate: GateOpened, output: str
) -> GateReply | str | None:
    """The answer of the person here; a text says that the gate was answered in another place."""

    async def show_diff() -> None:
        await _show_diff(terminal, client, run, gate)

    question = asyncio.ensure_future(ask(terminal, gate, output, show_diff=show_diff))
    elsewhere = asyncio.ensure_future(_answered_elsewhere(client, gate.gate))
    try:
        await asyncio.wait({question, elsewhere}, return_when=asyncio.FIRST_COMPLETED)
        return question.result() if question.done() else "answered in another place"
    finally:
        question.cancel()
        elsewhere.cancel()
        await asyncio.gather(question, elsewhere, return_exceptions=True)


async def _answered_elsewhere(client: "Client", gate: str) -> None:
    while True:
        await asyncio.sleep(POLL_S)
        try:
            gates = await client.open_gates()
        except LoopwrightError:  # the server may come back before the person has answered
            continue
        if all(one.id != gate for one in gates):
            return


async def _output(client: "Client", run: str, gate: GateOpened) -> str:
    """The text that is decided about; for a tool call, its arguments."""
    if not isinstance(gate.output, Blob):
        return gate.output or ""
    if gate.call is not None:
        item = next((one for one in await client.open_gates() if one.id == gate.gate), None)
        call = item.call if item is not None else None
        return json.dumps(call.arguments if call is not None else None)
    from loopwright.operations.use_cases.run_views import ReadOutput, read_output  # noqa: PLC0415 - only then

    try:
        return (await client.call(read_output, ReadOutput(run=run, path=gate.path))).output
    except NotFound:
        return gate.output.head


async def _show_diff(terminal: Terminal, client: "Client", run: str, gate: GateOpened) -> None:
    """What was changed in the iteration that the gate asks about, else in the whole run."""
    from loopwright.operations.use_cases.run_views import DiffRun, read_diff  # noqa: PLC0415 - only then

    number = iteration_of(gate.path, gate.iteration)
    try:
        start, color = None if number is None else str(number), terminal.has_color(sys.stdout)
        request = DiffRun(run=run, start=start, color=color)
        text = (await client.call(read_diff, request)).diff or ""
    except LoopwrightError as error:
        terminal.tell(str(error), tone="warn")
        return
    if text.strip():
        from loopwright.cli.workspace_changes import show_paged  # noqa: PLC0415 - only then

        show_paged(terminal, text)
    else:
        terminal.tell("no files changed")
