"""Events of a run in the format of ALDO, in their order, with their calls, messages and usage.

Events of the log arrive as plain values, as they are stored; `read` returns a text from the blob
store. Only what later events need is kept, so that following a live run and reading a finished run
give the same events. `cycle.start` is emitted when the model is really called: the shortening of
the conversation before that call belongs to the previous cycle.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec

from loopwright.dialects.aldo.results import (
    TENANT,
    LoopEnding,
    LoopSpending,
    Outcome,
    Payload,
    ending_of,
    loops_of,
    result_of,
)
from loopwright.model.actions import ModelCycle
from loopwright.model.ids import ToolPurpose, TurnPurpose, last_id, parent_path, read_effect_id
from loopwright.model.plan import Plan
from loopwright.model.record import JsonValue

LogEvent: TypeAlias = Mapping[str, Any]

SUBMIT = "submit_result"
"""The tool by which a model hands in a structured result; the engine itself answers it."""

ACCEPTED = "The result was taken."
MIXED = ("aldo:composite", "multi")
"""Provider and model of usage that several models share."""
ALREADY_SUBMITTED: JsonValue = {"error": "a result was already handed in; the first one counts"}


@dataclass(slots=True)
class TurnToolCall:
    """A tool call of the turn that is under way."""

    id: str
    tool: str
    args: JsonValue
    is_error: bool | None = None  # None while it has no result


def value_of(text: str) -> JsonValue:
    """A text as the value that it is the JSON of, else as itself."""
    try:
        value: JsonValue = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    return value


def parts_of(text: str, calls: list[TurnToolCall]) -> list[JsonValue]:
    """The content of a model's message: its text, then its tool calls."""
    parts: list[JsonValue] = [{"type": "text", "text": text}] if text else []
    parts += [
        {"type": "tool_call", "callId": call.id, "tool": call.tool, "args": call.args}
        for call in calls
    ]
    return parts


def counts_of(usage: LogEvent) -> dict[str, JsonValue]:
    """The usage of a call, in the terms of this dialect."""
    return {
        "tokensIn": usage.get("input_tokens", 0),
        "tokensOut": usage.get("output_tokens", 0),
        "usd": usage.get("usd", 0.0),
    }


def split_model(model: str) -> tuple[str, str]:
    """Provider and name of a model; older events have the name alone."""
    provider, slash, name = model.partition("/")
    return (provider, name) if slash else ("", model)


def usage_of(usage: LogEvent, model: str, at: int) -> dict[str, JsonValue]:
    """The same with the model, which is `PROVIDER/NAME`."""
    provider, name = split_model(model)
    return {"provider": provider, "model": name, **counts_of(usage), "at": at}


@dataclass(slots=True)
class UsageTotal:
    """The usage of a loop or a run, and the models it called."""

    tokens_in: int = 0
    tokens_out: int = 0
    usd: float = 0.0
    models: set[str] = field(default_factory=set)

    def add(self, usage: LogEvent | None, model: str) -> None:
        """Count one call of a model, which is `PROVIDER/NAME`."""
        if model:
            self.models.add(model)
        if usage:
            self.tokens_in += usage.get("input_tokens", 0)
            self.tokens_out += usage.get("output_tokens", 0)
            self.usd = round(self.usd + usage.get("usd", 0.0), 6)

    def payload(self) -> dict[str, JsonValue]:
        """The same in the terms of this dialect; several models are joined into one name."""
        provider, name = MIXED
        if len(self.models) < 2:
            provider, name = split_model(next(iter(self.models), ""))
        return {
            "provider": provider,
            "model": name,
            "tokensIn": self.tokens_in,
            "tokensOut": self.tokens_out,
            "usd": self.usd,
        }


Read: TypeAlias = Callable[[JsonValue], str]

_FINISH = {"stop": "stop", "tool_calls": "tool_use", "length": "length"}


class AldoEvent(NamedTuple):
    """One event; `path` names the place in the run, `at` is milliseconds since the epoch."""

    type: str
    payload: Payload
    at: int
    path: str = ""


@dataclass(slots=True)
class _Loop:
    """What is known of a loop of cycles."""

    started: int = 0  # the cycle whose start was emitted
    entries: int = 0
    used: UsageTotal = field(default_factory=UsageTotal)
    model: str = ""  # the one that answered last
    finish: str = "stop"
    calls: list[TurnToolCall] = field(default_factory=list)
    answer: LogEvent | None = None
    passed: tuple[int, str] | None = None
    ending: LoopEnding | None = None


def events_of(events: Iterable[LogEvent], plan: Plan, read: Read) -> list[AldoEvent]:
    """All events for events of the log, beginning with the first one."""
    rendering = Rendering(plan, read)
    return [event for logged in events for event in rendering.events(logged)]


class Rendering:
    """Follows a run event by event."""

    is_flat = False  # the payload of an event is a field of its own

    def __init__(self, plan: Plan, read: Read) -> None:
        self._plan = plan
        self._read = read
        self._known = loops_of(plan)
        self._loops: dict[str, _Loop] = {}
        self._gates: dict[str, tuple[str, TurnToolCall]] = {}
        self._run = ""
        self._rounds = 0
        self._used = UsageTotal()

    def events(self, event: LogEvent) -> Iterator[AldoEvent]:
        """The events for the next event of the log."""
        render = _RENDER.get(event["kind"])
        path = str(event.get("path", ""))
        for name, payload in render(self, event, path) if render is not None else ():
            yield AldoEvent(name, payload, event["at"], path)

    def _loop(self, path: str) -> tuple[str, _Loop] | None:
        """The step and the loop of cycles of an iteration."""
        around = parent_path(path)
        step = last_id(around)
        if step not in self._known.cycles:
            return None
        return step, self._loops.setdefault(around, _Loop())

    # -- the run -----------------------------------------------------------------------------------

    def _started(self, event: LogEvent, _: str) -> "_Events":
        self._run = event["run"]
        version = self._plan.settings.get("agent_version", "")
        yield "run.started", {"ref": {"name": event["name"], "version": version}, "id": self._run}

    def _finished(self, event: LogEvent, _: str) -> "_Events":
        outcome, reason = cast("Outcome", event["outcome"]), str(event["reason"])
        if outcome == "cancelled":
            yield "run.cancelled", {"reason": reason}
        elif outcome == "failed":
            error = event.get("error") or {}
            message = error.get("detail") or error.get("type") or reason
            yield "error", {"message": message}
        else:
            ended: Payload = {"ok": reason != TENANT, "usage": self._used.payload()}
            yield "run.completed", self._completed(event, reason) | ended

    def _completed(self, event: LogEvent, reason: str) -> Payload:
        (first,) = (step.id for step in self._plan.steps)
        output = self._read(event.get("output", ""))
        if first in self._known.rounds:
            terminated = reason not in ("max_iterations", "budget", "deadline")
            why = "terminate" if terminated else "maxRounds"
            value: JsonValue = {
                "rounds": self._rounds,
                "output": output,
                "terminated": terminated,
                "terminateReason": why if reason != "budget" else "budget",
            }
            return {"output": value, "finishReason": "stop"}
        loop = self._loops.get(first)
        if loop is None:
            value = value_of(output) if self._lists_outputs() else output
            return {"output": value, "finishReason": "stop"}
        ended = loop.ending
        payload: Payload = {"finishReason": loop.finish, "output": output}
        if ended is not None and ended.reason == "maxCycles":
            payload["finishReason"] = "stop"
        if ended is not None and ended.reason in ("budget-exhausted", "tenant-budget-exhausted"):
            payload["finishReason"] = "budget"
        payload |= {} if ended is None else {"terminatedBy": ended.reason}
        denied = reason == TENANT  # the cycle that was announced has not been
        payload |= {"output": ""} if denied else {}
        return payload | {"cycles": loop.started - denied}

    def _lists_outputs(self) -> bool:
        action = self._plan.steps[0].action
        return getattr(action, "output", "last") == "list"

    # -- several agents ----------------------------------------------------------------------------

    def _step_started(self, event: LogEvent, path: str) -> "_Events":
        if parent_path(path):
            yield "composite.child_started", {"alias": last_id(path)}

    def _step_finished(self, event: LogEvent, path: str) -> "_Events":
        step, status = last_id(path), event["status"]
        loop = self._loops.get(path)
        known = self._known.cycles.get(step)
        if loop is not None and known is not None and status in ("completed", "exhausted"):
            loop.ending = ending_of(
                known,
                reason=str(event.get("reason", "")),
                cycles=loop.started,
                passed=loop.passed,
                spending=LoopSpending(loop.used.usd, self._known.limits.get(step)),
                error=str((event.get("error") or {}).get("detail", "")),
            )
            if loop.ending is not None:
                reason, detail = loop.ending
                denied = event.get("reason") == TENANT
                yield (
                    "run.terminated_by",
                    {
                        "reason": reason,
                        "detail": detail,
                        "ok": not denied,
                        "output": "" if denied else self._read(event.get("output", "")),
                        "usage": loop.used.payload(),
                    },
                )
        if not parent_path(path):
            return
        if status in ("completed", "exhausted"):
            output = self._read(event.get("output", ""))
            yield "composite.child_completed", {"alias": step, "output": output}
        elif status == "failed":
            error = (event.get("error") or {}).get("detail", "")
            yield "composite.child_failed", {"alias": step, "error": error}

    # -- a cycle -----------------------------------------------------------------------------------

    def _requested(self, event: LogEvent, path: str) -> "_Events":
        """The model is called: the cycle starts, unless this is a retry."""
        found, call = self._loop(path), event["call"]
        if found is None or call["do"] != "model" or call.get("role", "turn") != "turn":
            return
        step, loop = found
        cycle = int(event["iteration"])
        if loop.started >= cycle:
            return
        loop.started, loop.passed, loop.answer = cycle, None, None
        yield "checkpoint", {"id": path}
        most = self._known.cycles[step].max
        head = self._head(step)
        messages = loop.entries + head
        yield "cycle.start", {"cycle": cycle, "maxCycles": most, "messages": messages}

    def _head(self, step: str) -> int:
        """The number of messages before the conversation: the system prompt and the task."""
        body = self._known.cycles[step].body
        agent = self._plan.agents.get(body.agent) if isinstance(body, ModelCycle) else None
        return 1 + bool(agent and agent.system)

    def _answered(self, event: LogEvent, path: str) -> "_Events":
        found, effect = self._loop(path), str(event["effect"])
        if found is None:
            return
        loop = found[1]
        purpose = read_effect_id(effect).purpose
        if isinstance(purpose, ToolPurpose):
            yield from self._tool_answered(event, loop, purpose.call)
            return
        usage = event.get("usage")
        if isinstance(purpose, TurnPurpose) and event["kind"] == "effect.done":
            # the engine's decision about it is emitted next, with the model's name
            loop.answer = event
        elif usage:
            self._count(loop, usage, loop.model)
            yield "usage", usage_of(usage, loop.model, event["at"])

    def _count(self, loop: _Loop, usage: LogEvent | None, model: str) -> None:
        loop.used.add(usage, model)
        self._used.add(usage, model)

    def _turn(self, event: LogEvent, path: str) -> "_Events":
        found = self._loop(path)
        if found is None:
            return
        loop = found[1]
        answer: LogEvent = loop.answer or {}
        text = self._read(answer.get("output", ""))
        loop.finish = _FINISH.get(event.get("finish", "stop"), "error")
        notes = [note for note in event.get("calls", ()) if note["id"]]
        loop.calls = [
            TurnToolCall(
                note["id"], note["tool"], value_of(self._read(note.get("arguments", "{}")))
            )
            for note in notes
        ]
        loop.entries += 1
        usage = answer.get("usage")
        loop.model = event.get("model", "") or loop.model
        self._count(loop, usage, loop.model)
        if usage:
            yield "usage", usage_of(usage, loop.model, answer["at"])
        response: Payload = {
            "cycle": event["iteration"],
            "textLength": len(text),
            "toolCalls": [{"tool": call.tool, "callId": call.id} for call in loop.calls],
            "finishReason": loop.finish,
        }
        yield "model.response", response | ({"usage": counts_of(usage)} if usage else {})
        parts = parts_of(text, loop.calls)
        if parts:
            yield "message", {"role": "assistant", "content": parts}
        for call in loop.calls:
            yield "tool_call", {"callId": call.id, "tool": call.tool, "args": call.args}
        yield from self._answered_at_once(loop, notes, int(event["iteration"]))

    def _answered_at_once(self, loop: _Loop, notes: Iterable[LogEvent], cycle: int) -> "_Events":
        """Calls that are not run: invalid ones, and the one that submits a result."""
        handed_in = False
        for call, note in zip(loop.calls, notes, strict=True):
            if note.get("problem"):
                yield from self._result(loop, call, {"error": note["problem"]}, cycle, error=True)
            elif call.tool == SUBMIT:
                payload = ALREADY_SUBMITTED if handed_in else ACCEPTED
                yield from self._result(loop, call, payload, cycle, error=handed_in)
                handed_in = True

    def _tool_answered(self, event: LogEvent, loop: _Loop, number: int) -> "_Events":
        text, error = self._read(event.get("output", "")), event["kind"] == "effect.failed"
        value = value_of(text)
        if error and not text:
            failure = event["error"]
            value = {"error": failure.get("detail") or failure["type"]}
        call = loop.calls[number - 1]
        yield from self._result(loop, call, value, int(event["iteration"]), error=error)

    def _result(
        self, loop: _Loop, call: TurnToolCall, value: JsonValue, cycle: int, *, error: bool
    ) -> "_Events":
        """A result, and the summary of all when it is the last of its turn."""
        call.is_error = error
        payload: Payload = {"callId": call.id, "tool": call.tool, "result": value, "isError": error}
        yield "tool_result", payload
        if any(one.is_error is None for one in loop.calls):
            return
        loop.entries += 1
        results: list[JsonValue] = [
            {"callId": one.id, "tool": one.tool, "isError": one.is_error} for one in loop.calls
        ]
        yield "tool.results", {"cycle": cycle, "results": results}

    # -- people ------------------------------------------------------------------------------------

    def _question_events(self, event: LogEvent, path: str) -> "_Events":
        found, number = self._loop(path), event.get("call")
        if found is None or number is None:
            return
        call = found[1].calls[number - 1]
        self._gates[event["gate"]] = path, call
        own = call.args.get("reason") if isinstance(call.args, dict) else None
        yield (
            "tool.pending_approval",
            {
                "runId": self._run,
                "callId": call.id,
                "tool": call.tool,
                "args": call.args,
                "reason": own if isinstance(own, str) else None,
            },
        )

    def _decided(self, event: LogEvent, _: str) -> "_Events":
        path, call = self._gates.pop(event["gate"], ("", None))
        found = self._loop(path)
        if found is None or call is None:
            return
        approved, reason = event["decision"] == "approve", event.get("text", "")
        resolved: Payload = {
            "runId": self._run,
            "callId": call.id,
            "kind": "approved" if approved else "rejected",
            "approver": event.get("by", ""),
            "at": event["at"],
        }
        yield "tool.approval_resolved", resolved | ({"reason": reason} if reason else {})
        if not approved:
            payload: JsonValue = {
                "rejected": True,
                "reason": reason,
                "approver": event.get("by", ""),
            }
            yield from self._result(found[1], call, payload, int(event["iteration"]), error=True)

    # -- between cycles ----------------------------------------------------------------------------

    def _compressed(self, event: LogEvent, path: str) -> "_Events":
        found = self._loop(path)
        if found is None:
            return
        step, loop = found
        head, before, summary = self._head(step), loop.entries, event.get("summary")
        loop.entries = before - int(event["dropped"]) + (summary is not None)
        payload: Payload = {
            "cycle": loop.started,
            "strategy": event["strategy"],
            "droppedMessages": event["dropped"],
            "keptMessages": int(event["kept"]) + head,
            "messagesBefore": before + head,
            "messagesAfter": loop.entries + head,
        }
        if summary is not None:
            payload["summarisedTo"] = self._read(summary)
        yield "history.compressed", payload

    def _verdict(self, event: LogEvent, path: str) -> "_Events":
        found = self._loop(path)
        if found is not None and event["verdict"] == "pass":
            found[1].passed = int(event["index"]), self._read(event.get("evidence", ""))
        yield from ()

    def _iteration_finished(self, event: LogEvent, path: str) -> "_Events":
        around = last_id(parent_path(path))
        if around in self._known.rounds:
            self._rounds += around == self._plan.steps[0].id
            done = bool(event.get("done", False))
            yield "composite.iteration", {"round": event["iteration"], "terminated": done}
        found = self._loop(path)
        if found is None:
            return
        step, loop = found
        body = self._known.cycles[step].body
        nudged = isinstance(body, ModelCycle) and body.nudge is not None
        loop.entries += nudged and not loop.calls and not event.get("done", False)


_Events: TypeAlias = Iterator[tuple[str, Payload]]

_RENDER: dict[str, Callable[[Rendering, LogEvent, str], _Events]] = {
    "run.started": Rendering._started,
    "run.finished": Rendering._finished,
    "step.started": Rendering._step_started,
    "step.finished": Rendering._step_finished,
    "iteration.finished": Rendering._iteration_finished,
    "check.verdict": Rendering._verdict,
    "effect.requested": Rendering._requested,
    "effect.done": Rendering._answered,
    "effect.failed": Rendering._answered,
    "turn.taken": Rendering._turn,
    "gate.opened": Rendering._question_events,
    "gate.answered": Rendering._decided,
    "history.compressed": Rendering._compressed,
}


__all__ = ["AldoEvent", "Rendering", "events_of", "result_of"]
