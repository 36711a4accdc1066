"""What a judge is shown: the goal, what the pass came to, and the form of the answer.

A judge says `done` as a value, not in prose. What it said before stands in its prompt, so that it
can see whether its objections were met.
"""

import msgspec

from loopwright.agents.clipping import clip
from loopwright.agents.prompt import Shown
from loopwright.kernel.frames import LeafBody, PassOwner, StepsBody
from loopwright.kernel.state import Senses, State
from loopwright.kernel.texts import fill, request_text
from loopwright.model.checks import Goal, Judge
from loopwright.model.record import JsonValue, Text

VERDICT: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"done": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["done"],
}
OUTPUT_CHARS = 32_000
_WORDS = (
    "If you cannot, let the first line be ACHIEVED or NOT_ACHIEVED and nothing else, and say why "
    "below it.",
)


def compose_judge(state: State, owner: PassOwner, leaf: Judge | Goal, senses: Senses) -> Shown:
    """What the judge of a pass is shown now."""
    schema = (leaf.schema if isinstance(leaf, Judge) else None) or VERDICT
    sections = [
        fill(state, owner, leaf.prompt, senses)
        or "Judge whether the task below is done. Look at the work, not at what is claimed.",
        f"## Task\n\n{request_text(state, owner, (), senses)}",
        f"## Iteration {owner.iteration}",
        *_work(owner, senses),
        *_before(owner, senses),
        _form(schema, forced=owner.check_tries > 1),
        *(_WORDS if isinstance(leaf, Goal) else ()),
    ]
    return Shown(text="\n\n".join(sections), schema=schema, session=None)


def _work(owner: PassOwner, senses: Senses) -> list[str]:
    body = owner.body
    if isinstance(body, StepsBody):
        order = [step.id for step in body.index.action.steps if step.id in body.results]
        said: list[tuple[str, Text | None, Text | None]] = [
            (name, body.results[name].output, body.results[name].result) for name in order
        ]
    elif isinstance(body, LeafBody) and body.answer is not None:
        said = [("Output", body.answer.output, body.answer.result)]
    else:
        said = []
    parts: list[str] = []
    for name, output, result in said:
        parts.append(f"### {name}\n\n{clip(senses.read(output), OUTPUT_CHARS)}")
        if result is not None:
            parts.append(f"#### Result of {name}\n\n{clip(senses.read(result), OUTPUT_CHARS)}")
    return parts


def _before(owner: PassOwner, senses: Senses) -> list[str]:
    words = [note for note in owner.parent.last_checks if note.check in ("judge", "goal")]
    return [
        f"## Judge Feedback (Iteration {owner.iteration - 1})\n\n{senses.read(note.evidence)}"
        for note in words
        if note.evidence
    ]


def _form(schema: dict[str, JsonValue], *, forced: bool) -> str:
    shown = msgspec.json.encode(schema).decode()
    first = "The answer before did not have this form. " if forced else ""
    return (
        f"## Answer\n\n{first}Answer with one JSON object that fits this schema: `done` is true "
        f"only when nothing is left to do.\n\n{shown}"
    )
