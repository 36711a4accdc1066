"""The tree of a run that calls a model cycle by cycle: what each said, asked for and was told."""

from collections.abc import Iterable
from typing import Any, cast

from loopwright.model.ids import parent_path
from loopwright.model.record import JsonValue

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


def _note(cycle: dict[str, Any], kind: str, payload: dict[str, Any]) -> None:
    if kind in _LISTS:
        cycle.setdefault(_LISTS[kind], []).append(payload)
    elif kind == "message":
        texts = [part["text"] for part in payload["content"] if part["type"] == "text"]
        cycle["text"] = "".join(texts)
    elif kind == "model.response":
        cycle["finishReason"] = payload["finishReason"]
        cycle["usage"] = payload.get("usage")
