"""What the steps before have left: results of needed steps, and of the pass before, by step."""

import msgspec

from loopwright.agents.clipping import clip_end
from loopwright.kernel.frames import Owner, PassOwner, RepeatBody, Result, StepOwner, StepsBody
from loopwright.kernel.state import Senses, chain
from loopwright.kernel.texts import step_result
from loopwright.model.actions import Repeat
from loopwright.model.record import JsonValue

NEED_BYTES = 16 * 1_024
PROMPT_BYTES = 120 * 1_024
SMALL_FIELD_BYTES = 1_024
JUDGES = ("judge", "goal")
"""Checks whose words are shown as the feedback of a judge."""


def needed(owner: Owner, senses: Senses) -> list[str]:
    """Results of everything that a place stands on: what its step needs, and what the loops and
    steps around it need. Only what completed is shown.
    """
    names: dict[str, bool] = {}
    for place in chain(owner):
        if isinstance(place, StepOwner):
            for name in place.step.needs:
                names.setdefault(name, _is_whole(place.parent, name))
    parts = [
        _result(name, found, senses, whole=whole)
        for name, whole in names.items()
        if (found := step_result(owner, name)) is not None and found.status == "completed"
    ]
    return ["## Previous Step Results", *parts] if parts else []


def _is_whole(graph: StepsBody, name: str) -> bool:
    """Whether a step is there to hand on everything that was said in it."""
    action = graph.index.action.steps[graph.index.at[name]].action
    return isinstance(action, Repeat) and action.output == "all"


def pass_before(inside: PassOwner, senses: Senses) -> list[str]:
    """What every step of the pass before came to, and what a judge said about it."""
    repeat = inside.parent
    assert repeat.last is not None, "a pass has ended before this one"
    heading = f"## Previous Iteration Output (Iteration {inside.iteration - 1})"
    if repeat.last_steps:
        parts = [_result(name, found, senses) for name, found in repeat.last_steps.items()]
    else:
        parts = [_texts(repeat.last, senses)]
    return [heading, *(part for part in parts if part), *judged(repeat, senses)]


def judged(repeat: RepeatBody, senses: Senses) -> list[str]:
    """A judge's last words, whether they were a yes or a no."""
    return [
        f"## Judge Feedback\n\n{senses.read(note.evidence)}"
        for note in repeat.last_checks
        if note.check in JUDGES and note.evidence
    ]


def _result(name: str, found: Result, senses: Senses, *, whole: bool = False) -> str:
    return f"### {name}\n\n{_texts(found, senses, whole=whole)}"


def _texts(found: Result, senses: Senses, *, whole: bool = False) -> str:
    text = senses.read(found.output)
    text = text if whole else clip_end(text, NEED_BYTES)
    if found.result is None:
        return text
    return f"{text}\n\nResult:\n\n{_fitting(senses.read(found.result))}"


def _fitting(result: str) -> str:
    """A structured result that fits; of a large object the small fields are kept, as an object."""
    if len(result.encode(errors="replace")) <= NEED_BYTES:
        return result
    value: JsonValue = msgspec.json.decode(result)
    if not isinstance(value, dict):
        return clip_end(result, NEED_BYTES)
    kept: dict[str, JsonValue] = {"_truncated": True}
    room, left_out = NEED_BYTES // 2, []
    for name, field in value.items():
        size = len(msgspec.json.encode({name: field}))
        if size <= min(room, SMALL_FIELD_BYTES):
            kept[name] = field
            room -= size
        else:
            left_out.append(name)
    kept["_left_out"] = clip_end(", ".join(left_out), SMALL_FIELD_BYTES)
    return msgspec.json.encode(kept).decode()
