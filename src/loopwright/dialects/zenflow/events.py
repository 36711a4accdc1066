"""Events of a run in the format of ZenFlow, in their order.

Events of the log arrive as plain values, as they are stored; `read` returns a text from the blob
store. The fields of an event are next to its type, as in the lines of ZenFlow: `stepId`, `agent`,
`message`, `duration`, `tokens`, `error`, `data`. Every iteration of a loop whose step is itself
repeated has its own id (`check.0`, `deploy[1]`), so that each id ends only once.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from loopwright.model.actions import Action, CallAgent, Repeat, Step, Steps
from loopwright.model.plan import Plan
from loopwright.model.record import JsonValue, LiteralItems

LogEvent: TypeAlias = Mapping[str, Any]
Fields: TypeAlias = dict[str, JsonValue]
Read: TypeAlias = Callable[[JsonValue], str]
EventLines: TypeAlias = Iterator[tuple[str, Fields]]

COORDINATOR = "coordinator"
MESSAGE_TYPES = {"info": 0, "cancel": 1, "context_update": 2, "reply": 3, "tell": 0}
_TOKEN = re.compile(r"[^.\[\]]+|\[\d+\]")
_SECOND, _MINUTE = 1_000, 60_000


class ZenflowEvent(NamedTuple):
    """One event; `payload` are the fields beside its type."""

    type: str
    payload: Fields
    at: int
    path: str = ""


class EventPlace(NamedTuple):
    """A place of a run: a step, an iteration of a loop, or a turn of a model within one of them.
    `id` is the step or iteration that it belongs to.
    """

    id: str
    kind: Literal["step", "iteration", "turn"]
    step: Step
    action: Action
    number: int
    total: int


def place_at(plan: Plan, path: str) -> EventPlace | None:
    """The place of a path; None for the run itself and for steps that are not in the plan."""
    steps, found = plan.steps, None
    at = ""
    for token in _TOKEN.findall(path):
        number = token.strip("[]").isdigit()
        at += token if token.startswith("[") or not at else f".{token}"
        if not number:
            index = next((n for n, one in enumerate(steps) if one.id == token), None)
            if index is None:
                return None
            step = steps[index]
            found = EventPlace(at, "step", step, step.action, index, len(steps))
        elif found is None:
            return None
        elif isinstance(found.action, Repeat):
            found = found._replace(id=at, kind="iteration", action=found.action.body)
        else:
            found = found._replace(kind="turn")
        steps = found.action.steps if isinstance(found.action, Steps) else ()
    return found


def go_duration(ms: int) -> str:
    """A length of time as this dialect writes it: `850ms`, `1.5s`, `1m10.88s`."""
    if ms < _SECOND:
        return f"{ms}ms"
    minutes, rest = divmod(ms, _MINUTE)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{rest / _SECOND:.3f}".rstrip("0").rstrip(".")
    before = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{before}{seconds}s"


def _tokens(usage: LogEvent | None) -> Fields:
    """The usage; empty if unknown."""
    if not usage:
        return {}
    prompt, completion = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
    counted: Fields = {"prompt": prompt, "completion": completion, "total": prompt + completion}
    return {"tokens": counted} if prompt or completion else {}


@dataclass(slots=True)
class _Effect:
    """A call that is under way."""

    step: str
    agent: str
    at: int
    tool: Fields = field(default_factory=dict)


class Rendering:
    """Follows a run event by event."""

    is_flat = True  # the fields of an event are beside its type

    def __init__(self, plan: Plan, read: Read) -> None:
        self._plan = plan
        self._read = read
        self._began: dict[str, int] = {}
        self._effects: dict[str, _Effect] = {}
        self._messages: dict[str, tuple[str, int]] = {}
        self._used: dict[str, int] = {"input_tokens": 0, "output_tokens": 0}
        self._turns: dict[str, int] = {}

    def events(self, event: LogEvent) -> Iterator[ZenflowEvent]:
        """The events of the next one."""
        render = _RENDER.get(event["kind"])
        path = str(event.get("path", ""))
        for name, fields in render(self, event, path) if render is not None else ():
            yield ZenflowEvent(name, fields, event["at"], path)

    # -- the run -----------------------------------------------------------------------------------

    def _started(self, event: LogEvent, _: str) -> EventLines:
        self._began[""] = event["at"]
        data: Fields = {"total": len(self._plan.steps)}
        yield "workflow_start", {"message": self._plan.name, "data": data}

    def _reopened(self, event: LogEvent, _: str) -> EventLines:
        self._began[""] = event["at"]
        data: Fields = {"total": len(self._plan.steps), "resumed": True}
        yield "workflow_start", {"message": self._plan.name, "data": data}

    def _finished(self, event: LogEvent, _: str) -> EventLines:
        error = event.get("error") or {}
        status = str(event["outcome"])
        if event.get("reason") == "partial":
            status = "partial"
        fields: Fields = {
            "message": self._plan.name,
            "duration": go_duration(event["at"] - self._began.get("", event["at"])),
            **_tokens(self._used),
            **({"error": error.get("detail") or error.get("type")} if error else {}),
            "data": {"status": status},
        }
        yield "workflow_end", fields

    # -- steps -------------------------------------------------------------------------------------

    def _begins(self, place: EventPlace, at: int) -> EventLines:
        self._began[place.id] = at
        data: Fields = {"index": place.number, "total": place.total}
        action = place.action
        if place.kind == "step" and isinstance(action, Repeat):
            data["loop_type"] = "repeat" if action.each is None else "forEach"
            if action.each is not None and isinstance(action.each.items, LiteralItems):
                data["items"] = len(action.each.items.values)
        elif place.kind == "step" and isinstance(action, Steps):
            data["include"] = True
        yield "step_start", {"stepId": place.id, **self._agent(action), "data": data}

    def _step_started(self, event: LogEvent, path: str) -> EventLines:
        place = place_at(self._plan, path)
        if place is not None:
            yield from self._begins(place, event["at"])

    def _iteration_started(self, event: LogEvent, path: str) -> EventLines:
        place = place_at(self._plan, path)
        if place is not None and place.kind == "iteration" and isinstance(place.action, CallAgent):
            yield from self._begins(place, event["at"])

    def _iteration_finished(self, event: LogEvent, path: str) -> EventLines:
        place = place_at(self._plan, path)
        if place is not None and place.kind == "iteration" and isinstance(place.action, CallAgent):
            yield from self._ends(place, event)

    def _step_finished(self, event: LogEvent, path: str) -> EventLines:
        place = place_at(self._plan, path)
        if place is None:
            return
        if "." not in path and "[" not in path:
            for name in self._used:
                self._used[name] += (event.get("usage") or {}).get(name, 0)
        yield from self._ends(place, event)

    def _ends(self, place: EventPlace, event: LogEvent) -> EventLines:
        status, error = event.get("status", "completed"), event.get("error") or {}
        began = self._began.pop(place.id, event["at"])
        fields: Fields = {
            "stepId": place.id,
            **self._agent(place.action),
            "duration": go_duration(event["at"] - began),
            **_tokens(event.get("usage")),
        }
        if status == "completed":
            yield "step_end", fields
        elif status == "skipped":
            yield "step_skipped", {"stepId": place.id, "message": event.get("reason", "")}
        else:
            yield "error", {**fields, "error": error.get("detail") or error.get("type") or status}

    def _step_skipped(self, event: LogEvent, path: str) -> EventLines:
        error = event.get("error") or {}
        if event.get("status") == "failed":
            yield "error", {"stepId": path, "error": error.get("detail") or event["reason"]}
            return
        reason = "condition false" if event["reason"] == "condition" else str(event["reason"])
        yield "step_skipped", {"stepId": path, "message": reason}

    def _verdict(self, event: LogEvent, path: str) -> EventLines:
        """A judge that failed does not end its loop."""
        if event.get("check") != "judge" or event.get("verdict") != "error":
            return
        loop = str(event.get("by", "")).removesuffix(".judge") or path
        data: Fields = {"iteration": (event.get("iteration") or 1) - 1, "judge": True}
        yield (
            "error",
            {"stepId": loop, "error": self._read(event.get("evidence", "")), "data": data},
        )

    def _agent(self, action: Action) -> Fields:
        return self._named(action.agent) if isinstance(action, CallAgent) else {}

    def _named(self, agent: str) -> Fields:
        """The name of an agent as its workflow has it; a step that names none has none."""
        name = agent.partition("@")[0]
        unnamed = name == "default" and not self._plan.agents[agent].system
        return {} if unnamed or not name else {"agent": name.rpartition(".")[2]}

    # -- agents and their tools --------------------------------------------------------------------

    def _requested(self, event: LogEvent, path: str) -> EventLines:
        call = event["call"]
        if call["do"] not in ("agent", "model", "tool"):
            return
        place = place_at(self._plan, path)
        is_judge = call.get("role") in ("judge", "goal")
        step = str(call.get("step") or (COORDINATOR if place is None else place.id))
        if not is_judge and place is not None:
            step = place.id
        agent = str(call.get("agent", ""))
        effect = _Effect(step, agent, event["at"])
        self._effects[event["effect"]] = effect
        if call["do"] == "tool":
            effect.tool = {
                "tool_name": call["tool"],
                "tool_call_id": call.get("call") or event["effect"],
                "input": self._read(call.get("arguments", "{}")),
            }
            data: Fields = {"phase": "start", **effect.tool}
            yield "tool_call", {"stepId": step, **self._named(agent), "data": data}
            return
        turn = self._turns[step] = self._turns.get(step, 0) + 1
        data = {"phase": "request", "turn": turn, **self._model(agent)}
        yield "agent_turn", {"stepId": step, **self._named(agent), "data": data}

    def _model(self, agent: str) -> Fields:
        found = self._plan.agents.get(agent)
        return {"model": "" if found is None else found.model or found.spec or ""}

    def _answered(self, event: LogEvent, _: str) -> EventLines:
        effect = self._effects.pop(event["effect"], None)
        if effect is None:
            return
        error = event.get("error") or {}
        failed: Fields = {"error": error.get("detail") or error.get("type")} if error else {}
        about: Fields = {"stepId": effect.step, **self._named(effect.agent)}
        length = go_duration(event["at"] - effect.at)
        if effect.tool:
            output = self._read(event.get("output", ""))
            data: Fields = {"phase": "end", **effect.tool, "output": output, "duration": length}
            yield "tool_call", {**about, "duration": length, **failed, "data": {**data, **failed}}
            return
        data = {"phase": "response", **self._model(effect.agent)}
        yield "agent_turn", {**about, **_tokens(event.get("usage")), **failed, "data": data}

    def _activity(self, event: LogEvent, _: str) -> EventLines:
        """Tools that an agent used itself; tools that the engine runs are reported separately."""
        effect = self._effects.get(event["effect"])
        if effect is None or effect.tool:
            return
        for entry in event.get("entries", ()):
            if not entry.get("tool"):
                continue
            data: Fields = {
                "phase": "end",
                "tool_name": entry["tool"],
                "tool_call_id": f"{event['effect']}/{entry['number']}",
                "input": self._read(entry.get("arguments") or "{}"),
                "output": self._read(entry.get("result", "")),
                "duration": go_duration(entry.get("ms") or 0),
                **({"error": entry.get("text") or "failed"} if entry.get("ok") is False else {}),
            }
            yield "tool_call", {"stepId": effect.step, **self._named(effect.agent), "data": data}

    # -- messages ----------------------------------------------------------------------------------

    def _sent(self, event: LogEvent, _: str) -> EventLines:
        sender, kind = str(event.get("sender", "")), MESSAGE_TYPES[event.get("intent", "info")]
        self._messages[event.get("message", "")] = (sender, kind)
        text = self._read(event["text"])
        data: Fields = {"to": event["to"], "text": text, "msg_type": kind}
        yield "message_sent", {"stepId": sender, "data": data}
        if sender == COORDINATOR:
            yield "coordinator_message", {"stepId": COORDINATOR, "message": text, "data": data}

    def _delivered(self, event: LogEvent, _: str) -> EventLines:
        for message in event.get("messages", ()):
            sender, kind = self._messages.pop(message, ("", 0))
            data: Fields = {"from": sender, "msg_type": kind}
            if event["to"] == COORDINATOR:
                yield "coordinator_inbox_message", {"stepId": COORDINATOR, "data": data}
            else:
                yield "agent_inbox_drain", {"stepId": event["to"], "data": data}

    def _dropped(self, event: LogEvent, _: str) -> EventLines:
        known, kind = self._messages.pop(event["message"], ("", 0))
        sender = str(event.get("sender") or known)
        data: Fields = {
            "reason": event["reason"],
            "from": sender,
            "to": event["to"],
            "msg_type": kind,
            "text": self._read(event.get("text", "")),
        }
        yield (
            "message_dropped",
            {"stepId": sender, "message": event.get("detail", ""), "data": data},
        )

    def _narrated(self, event: LogEvent, _: str) -> EventLines:
        text = self._read(event["text"])
        yield "coordinator_narration", {"stepId": COORDINATOR, "message": text}

    def _finalized(self, event: LogEvent, _: str) -> EventLines:
        text = self._read(event.get("summary", ""))
        yield "coordinator_synthesis", {"stepId": COORDINATOR, "message": text}


_RENDER: Mapping[str, Callable[[Rendering, LogEvent, str], EventLines]] = {
    "run.started": Rendering._started,
    "run.reopened": Rendering._reopened,
    "run.finished": Rendering._finished,
    "step.started": Rendering._step_started,
    "step.finished": Rendering._step_finished,
    "step.skipped": Rendering._step_skipped,
    "iteration.started": Rendering._iteration_started,
    "iteration.finished": Rendering._iteration_finished,
    "check.verdict": Rendering._verdict,
    "effect.requested": Rendering._requested,
    "effect.done": Rendering._answered,
    "effect.failed": Rendering._answered,
    "effect.activity": Rendering._activity,
    "message.sent": Rendering._sent,
    "message.delivered": Rendering._delivered,
    "message.dropped": Rendering._dropped,
    "coordinator.narrated": Rendering._narrated,
    "coordinator.finalized": Rendering._finalized,
}
