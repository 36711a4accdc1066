"""The tree of a run, loop by loop and cycle by cycle: what each said, asked for and was told."""

from collections.abc import Callable, Iterable
from typing import Any, cast

from loopwright.kernel.facts import EffectDone, IterationFinished, IterationStarted, StepFinished
from loopwright.model.ids import parent_path
from loopwright.model.record import JsonValue, Text
from loopwright.ports import Numbered

Read = Callable[[Text | None], str]
_LISTS = {"tool_call": "toolCalls", "tool_result": "results", "history.compressed": "compressions"}


def cycle_tree(events: Iterable[dict[str, JsonValue]]) -> list[dict[str, JsonValue]]:
    """The loops of a run by their places, each with its cycles and what ended it."""
    loops: dict[str, dict[str, Any]] = {}
    for event in events:
        path, kind = str(event["path"]), str(event["type"])
        payload = cast("dict[str, Any]", event["payload"])
        if kind == "run.terminated_by":
            loop = loops.setdefault(path, {"path": path, "cycles": []})
            loop["terminatedBy"] = payload
            continue
        loop = loops.setdefault(parent_path(path), {"path": parent_path(path), "cycles": []})
        if kind == "cycle.start":
            loop["cycles"].append({"cycle": payload["cycle"], "text": ""})
        if loop["cycles"]:
            _note(loop["cycles"][-1], kind, payload)
    return [loop for loop in loops.values() if loop["cycles"]]


def pass_tree(facts: Iterable[Numbered], read: Read) -> list[dict[str, JsonValue]]:
    """The same for a run that calls no model by itself: every loop with its passes, and what its
    agent said last in each.
    """
    loops: dict[str, dict[str, Any]] = {}
    passes: dict[str, dict[str, Any]] = {}
    for fact in (one.fact for one in facts):
        match fact:
            case IterationStarted(path=path, resumed=True) if path in passes:
                passes[path].pop("finishReason", None)
            case IterationStarted(path=path):
                place = parent_path(path)
                loop = loops.setdefault(place, {"path": place, "cycles": []})
                passes[path] = {"cycle": fact.iteration, "text": "", "path": path}
                loop["cycles"].append(passes[path])
            case EffectDone(path=path) if _is_agents(fact):
                for place in (path, parent_path(path)):
                    if place in passes:
                        passes[place]["text"] = read(fact.output)
            case IterationFinished(path=path) if path in passes:
                passes[path]["finishReason"] = fact.status
            case StepFinished(path=path) if path in loops:
                loops[path]["terminatedBy"] = {"reason": fact.reason, "status": fact.status}
            case _:
                pass
    return list(loops.values())


def _is_agents(fact: EffectDone) -> bool:
    return fact.effect.rpartition("/")[2].partition("#")[0] == "agent"


def _note(cycle: dict[str, Any], kind: str, payload: dict[str, Any]) -> None:
    if kind in _LISTS:
        cycle.setdefault(_LISTS[kind], []).append(payload)
    elif kind == "message":
        texts = [part["text"] for part in payload["content"] if part["type"] == "text"]
        cycle["text"] = "".join(texts)
    elif kind == "model.response":
        cycle["finishReason"] = payload["finishReason"]
        cycle["usage"] = payload.get("usage")
