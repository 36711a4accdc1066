"""Decisions at gates: which answers are allowed, checked before anything is recorded."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loopwright.errors import Conflict, LoopwrightError, NotAllowed, NotFound
from loopwright.kernel.events import GateOpened, RunStarted, TurnTaken
from loopwright.model.actions import Decision
from loopwright.model.record import JsonValue
from loopwright.operations.accounts.access import same_somebody
from loopwright.operations.run_lists import list_old_runs
from loopwright.ports import OPEN_STATUSES, ClosedGate, EventLog, NumberedEvent, OpenGate
from loopwright.views.event_records import timestamp

MAX_ARGUMENTS_BYTES = 1_000_000
_EXAMPLE = """--arguments '{"path": "notes.txt"}', or --arguments @FILE"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAnswer:
    """What an approval of a tool call may say besides: other arguments, as the JSON text of an
    object, and that the tool is not asked about again in this run.
    """

    arguments: str | None = None
    remember: bool = False

    def __bool__(self) -> bool:
        return self.arguments is not None or self.remember


AS_ASKED = CallAnswer()


def check_answer(
    opened: GateOpened, decision: Decision, *, text: str, digest: str | None, call: CallAnswer
) -> None:
    """Refuse what a gate does not take; the gate stays open then."""
    if decision not in opened.answers:
        raise Conflict(
            f"{opened.gate} takes {', '.join(opened.answers)}, not {decision}",
            code="bad-decision",
            hint=f"`loopwright {opened.answers[0]} {opened.gate}`",
        )
    if digest is not None and digest != opened.digest:
        raise Conflict(f"{opened.gate} has changed since it was shown", code="changed-since-shown")
    if call and opened.call is None:
        raise LoopwrightError(
            f"{opened.gate} is not about a tool call of a model: it has no arguments, and nothing "
            "to remember",
            code="no-tool-call",
            hint="leave out --arguments and --remember",
        )
    if call and decision != "approve":
        raise LoopwrightError(
            f"other arguments and remembering belong to an approval, not to {decision}",
            code="bad-decision",
        )
    if opened.call is not None and decision == "reject" and not text.strip():
        raise LoopwrightError(
            f"{opened.gate} is about a tool call: rejecting it requires a reason, which the model "
            "receives",
            code="reason-needed",
            hint=f'loopwright reject {opened.gate} "what is wrong with it"',
        )


def check_other_person(log: EventLog, run: str, by: str) -> None:
    """Four eyes: the person who started a run, or the run that started it, approves nothing in it,
    by whichever of their tokens.
    """
    while run:
        try:
            event = log.read(run, 0, 1)[0].event
        except (NotFound, IndexError):  # a run around this one, forgotten by now
            return
        assert isinstance(event, RunStarted), "every run begins so"
        if same_somebody(event.by, by):
            raise NotAllowed(
                f"{by or 'the caller'} started {run}, and another person has to approve it",
                code="self-approval",
                hint="ask another person, or `continue` with what should be different; the setting "
                "is four_eyes",
            )
        run = event.parent or ""


def read_arguments(given: str) -> str:
    """Arguments of a tool from the command line: JSON, or `@FILE` with JSON in it. An object it
    must be; whether it fits the tool is checked when the tool is run.
    """
    text = _file_text(given[1:]) if given.startswith("@") else given
    if len(text.encode(errors="replace")) > MAX_ARGUMENTS_BYTES:
        raise unfit(f"they have more than {MAX_ARGUMENTS_BYTES:,} bytes")
    try:
        value: JsonValue = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise unfit(f"they are not JSON: {error}") from error
    if not isinstance(value, dict):
        raise unfit("they must be a JSON object, with the arguments by their names")
    return msgspec.json.encode(value).decode()


def _file_text(name: str) -> str:
    path = Path(name)
    try:
        if path.stat().st_size > MAX_ARGUMENTS_BYTES:
            raise unfit(f"{name} has more than {MAX_ARGUMENTS_BYTES:,} bytes")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise unfit(f"{name} is not UTF-8") from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise unfit(f"{name} cannot be read: {why}") from error


def unfit(why: str) -> LoopwrightError:
    """Arguments that cannot be taken, with how they are written."""
    return LoopwrightError(
        f"--arguments: {why}", code="bad-arguments", hint=f"write {_EXAMPLE}, or leave it out"
    )


def gate_named(log: EventLog, reference: str) -> OpenGate:
    """An open gate by its id, or the beginning of one."""
    list_old_runs(log)
    found = log.find_gates(reference, 2)
    gates = [gate for gate in found if isinstance(gate, OpenGate)]
    if len(gates) == 1:
        return gates[0]
    if gates:
        raise Conflict(f"{reference!r} fits more than one gate", code="ambiguous")
    raise not_open(log, reference)


def only_gate(log: EventLog, run: str) -> OpenGate:
    """The gate of a run that waits at one alone."""
    found = log.gates(run)
    if len(found) == 1:
        return found[0]
    if found:
        raise which_gate(run, found)
    status = log.row(run).headline.status
    how = "does not wait for anybody" if status in OPEN_STATUSES else "has ended"
    raise Conflict(f"{run} {how}: {status}", code="no-longer-waiting")


def which_gate(run: str, gates: Sequence[OpenGate]) -> Conflict:
    """A run that waits at several gates: each is answered alone, so one must be named."""
    listed = "; ".join(f"{gate.gate} ({gate.path}: {gate.message})" for gate in gates)
    return Conflict(
        f"{run} waits at {len(gates)} gates: {listed}",
        code="ambiguous",
        hint=f"name one of them: loopwright approve {gates[0].gate}",
    )


def not_open(log: EventLog, reference: str) -> LoopwrightError:
    """Why a gate is not open: answered, closed, or unknown."""
    for gate in log.find_gates(reference, 1):
        if isinstance(gate, ClosedGate) and gate.decision:
            by, at = gate.by or "somebody", timestamp(gate.at)
            return Conflict(
                f"{gate.gate} was already answered: {gate.decision} by {by} at {at}",
                code="already-resolved",
            )
        return Conflict(f"{gate.gate} no longer waits", code="no-longer-waiting")
    return NotFound(f"no gate {reference!r}", hint="`loopwright inbox` lists them")


def check_arguments(events: Iterable[NumberedEvent], opened: GateOpened, arguments: str) -> None:
    """Refuse arguments that do not fit a built-in tool; the gate stays open then. Those of a
    server's tool are checked when it is run.
    """
    from loopwright.engine.services import schema_problem  # noqa: PLC0415 - few answers need it
    from loopwright.tools.toolbox import NATIVE  # noqa: PLC0415 - the same

    tool = next(
        (
            one.event.calls[opened.call - 1].tool
            for one in events
            if isinstance(one.event, TurnTaken)
            and one.event.path == opened.path
            and opened.call is not None
        ),
        "",
    )
    if tool not in NATIVE:
        return
    value: JsonValue = msgspec.json.decode(arguments)
    problem = schema_problem(NATIVE[tool].spec.schema, value)
    if problem is not None:
        raise unfit(f"they do not fit {tool}: {problem}")
