"""What the steps before have left: results of needed steps, and of the pass before, by step."""

from loopwright.agents.clipping import clip
from loopwright.kernel.frames import Owner, PassOwner, RepeatBody, Result, StepOwner
from loopwright.kernel.state import Senses, chain
from loopwright.kernel.texts import step_result

NEED_CHARS = 16_384
PROMPT_CHARS = 120 * 1_024


def needed(owner: Owner, senses: Senses) -> list[str]:
    """Results of everything that a place stands on: what its step needs, and what the loops and
    steps around it need. Only what completed is shown.
    """
    names: dict[str, None] = {}
    for place in chain(owner):
        if isinstance(place, StepOwner):
            names.update(dict.fromkeys(place.step.needs))
    parts = [
        _result(name, found, senses)
        for name in names
        if (found := step_result(owner, name)) is not None and found.status == "completed"
    ]
    return ["## Previous Step Results", *parts] if parts else []


def pass_before(inside: PassOwner, senses: Senses) -> list[str]:
    """What every step of the pass before came to, and what a judge said about it."""
    repeat = inside.parent
    if repeat.last is None:
        return []
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
        if note.check in ("judge", "goal") and note.evidence
    ]


def _result(name: str, found: Result, senses: Senses) -> str:
    return f"### {name}\n\n{_texts(found, senses)}"


def _texts(found: Result, senses: Senses) -> str:
    text = clip(senses.read(found.output), NEED_CHARS)
    if found.result is None:
        return text
    return f"{text}\n\nResult:\n\n{clip(senses.read(found.result), NEED_CHARS)}"
