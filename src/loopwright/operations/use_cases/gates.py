"""Gates: list what waits for a person, and answer it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from loopwright.errors import InputError, NotFound
from loopwright.kernel.frames import GateState
from loopwright.model.actions import Decision
from loopwright.model.record import JsonValue
from loopwright.operations.api_types import Request
from loopwright.operations.gates import AS_ASKED, CallAnswer
from loopwright.operations.use_cases.lists import list_open
from loopwright.operations.use_cases.operation import (
    App,
    Caller,
    HttpRoute,
    Operation,
    RunReference,
    operation,
)
from loopwright.operations.use_cases.run_queries import run_summary
from loopwright.ports.headline import asked_call
from loopwright.views.run_responses import GateCall, RunSummary, gate_call

BASE = "/api/v1/gates"
MAX_TEXT = 100_000  # characters of what a person writes with an answer
_GATE = re.compile(r"gate_[0-9a-f]{20}")


class AnswerGate(Request):
    """The text and arguments of a decision; `digest` is that of the question that was shown."""

    free = ("arguments",)

    gate: str
    text: str = ""
    digest: str | None = None
    arguments: dict[str, JsonValue] | None = None
    remember: bool = False


async def _answer(app: App, caller: Caller, request: AnswerGate, decision: Decision) -> RunSummary:
    """Answer a gate, once; the run as it is then."""
    if _GATE.fullmatch(request.gate) is None:
        raise NotFound(f"no gate {request.gate[:80]!r}", hint="`loopwright inbox` lists them")
    if len(request.text) > MAX_TEXT:
        raise InputError(f"a text has at most {MAX_TEXT:,} characters", code="too-large")
    if decision == "continue" and not request.text.strip():
        raise InputError("say in `text` what should be different", code="text-needed")
    arguments = None
    if request.arguments is not None:
        arguments = msgspec.json.encode(request.arguments).decode()
    run = await app.service.answer(
        request.gate,
        decision,
        text=request.text,
        by=caller.name,
        digest=request.digest,
        call=CallAnswer(arguments=arguments, remember=request.remember),
    )
    return await run_summary(app, run, RunSummary)


def _answering(decision: Decision, summary: str) -> Operation[AnswerGate, RunSummary]:
    @operation(
        f"gates.{decision}",
        "command",
        "editor",
        summary,
        http=HttpRoute("POST", f"{BASE}/{{gate}}/{decision}", schema="AnswerBody"),
        audit=("gate.answered",),
        draining="serve",
    )
    async def answer(app: App, caller: Caller, request: AnswerGate) -> RunSummary:
        return await _answer(app, caller, request, decision)

    return answer


approve = _answering("approve", "Accept what a gate asks about")
reject = _answering("reject", "Refuse what a gate asks about")
continue_ = _answering("continue", "Ask for another iteration, with feedback")

ANSWERS: Mapping[Decision, Operation[AnswerGate, RunSummary]] = {
    "approve": approve,
    "reject": reject,
    "continue": continue_,
}


class WaitingGate(msgspec.Struct):
    """An open gate of a run, with the tool call that it is about. A gate about something else has a
    call without a tool, which has the id of the gate.
    """

    gate: str
    call: GateCall
    message: str
    answers: list[str]


@operation(
    "gates.waiting",
    "query",
    "viewer",
    "What a run waits for: tool calls that need an approval, and every other gate",
)
async def list_waiting(app: App, _caller: Caller, request: RunReference) -> list[WaitingGate]:
    """The open gates of a run."""
    state = await app.state(request.run)
    return [_waiting(app, name, gate) for name, gate in state.gates.items()]


def _waiting(app: App, name: str, gate: GateState) -> WaitingGate:
    about = asked_call(gate)
    if about is None:
        call = GateCall(id=gate.gate, tool="", arguments={}, held="", reason=gate.message)
    else:
        call = gate_call(about, app.service.read_text)
    return WaitingGate(gate=name, call=call, message=gate.message, answers=list(gate.answers))


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedAnswer:
    """A decision as an interface has read it."""

    decision: Decision
    text: str = ""
    digest: str | None = None
    call: CallAnswer = AS_ASKED


async def answer_named(app: App, caller: Caller, reference: str, reply: NamedAnswer) -> RunSummary:
    """Answer the gate that a person named: its id, the beginning of one, or a run that waits at
    this gate only.
    """
    arguments = reply.call.arguments
    request = AnswerGate(
        gate=app.service.find_gate(reference).gate,
        text=reply.text,
        digest=reply.digest,
        arguments=None if arguments is None else msgspec.json.decode(arguments),
        remember=reply.call.remember,
    )
    return await ANSWERS[reply.decision](app, caller, request)


OPERATIONS = (list_open, list_waiting, approve, reject, continue_)
