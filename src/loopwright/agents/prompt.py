"""The prompt of a call: what is asked, and what the passes before have left behind.

The first pass sees the request as it was written, byte for byte. Later passes see it followed by
the memory of their loop, then what the checks said, then what a person said. A loop with `criteria`
also says, from its first iteration on, when the work is done.
"""

import json

import msgspec

from loopwright.agents.before import JUDGES, PROMPT_BYTES, needed, pass_before
from loopwright.agents.clipping import clip, clip_end
from loopwright.agents.criteria import criteria_sections
from loopwright.agents.letters import read_out
from loopwright.agents.progress import progress_log
from loopwright.agents.stages import stage_sections
from loopwright.kernel.facts import NO_USAGE, Usage
from loopwright.kernel.frames import (
    CheckNote,
    LeafBody,
    Owner,
    PassOwner,
    RepeatBody,
    Session,
    StepsBody,
)
from loopwright.kernel.limits import cap
from loopwright.kernel.scopes import pass_in_scope
from loopwright.kernel.state import Senses, State
from loopwright.kernel.texts import request_text, told_message
from loopwright.kernel.threads import thread_of
from loopwright.model.actions import CallAgent
from loopwright.model.memory import (
    NoMemory,
    PreviousOutput,
    ProgressLog,
    StageOutputs,
)
from loopwright.model.record import JsonValue
from loopwright.model.template import Ref, Template

EVIDENCE_CHARS = 4_000
OUTPUT_CHARS = 32_000
MARGIN_BYTES = 256  # for what is said about a cut


class Shown(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything that an agent is given for one call."""

    text: str
    schema: dict[str, JsonValue] | None
    session: str | None
    session_used: Usage = NO_USAGE  # by the session, before this call
    files: tuple[str, ...] = ()


NOTHING = Shown(text="", schema=None, session=None)


def compose(state: State, owner: Owner, senses: Senses) -> Shown:
    """What the agent at this place is shown now."""
    body = owner.body
    assert type(body) is LeafBody
    action = body.action
    assert type(action) is CallAgent
    form = _form(body, action.schema) if action.schema is not None else []
    return _composed(state, owner, action, form, senses)


def compose_call(state: State, owner: Owner, action: CallAgent, senses: Senses) -> Shown:
    """What a chat model is told to do when it is called at this place. How it hands in a result
    it knows from its tools.
    """
    return _composed(state, owner, action, [], senses)


def _composed(
    state: State, owner: Owner, action: CallAgent, form: list[str], senses: Senses
) -> Shown:
    inside = pass_in_scope(owner)
    messages = state.mail.heard.get(owner.inside, ())
    heard = read_out(messages, senses) if messages else []
    if inside is not None and type(inside.parent.action.memory) is StageOutputs:
        told = [*stage_sections(state, owner, inside, action, senses), *form]
        told += [*_criteria(state, inside, senses), *heard]
        session = _session(state, owner, action)
        return _shown(_joined(told), action, session)
    asked = [request_text(state, owner, action.prompt, senses)]
    if not heard and _is_plain(action, inside):
        return Shown(text=asked[0], schema=None, session=None)
    asked += [*_occasion(state, owner, action, senses), *form]
    after = _item(inside, action.prompt) if inside else []
    if inside is not None:
        told = _criteria(state, inside, senses)
        after += [*_memory(inside, senses), *told, *_feedback(inside.parent, action)]
    after += heard
    text = _joined([*asked, *after])
    if action.show_needs:
        before = _as_fits(needed(owner, senses), beside=text)
        text = clip_end(_joined([*asked, *before, *after]), PROMPT_BYTES - MARGIN_BYTES)
    return _shown(text, action, _session(state, owner, action))


def _shown(text: str, action: CallAgent, session: Session | None) -> Shown:
    return Shown(
        text=text,
        schema=action.schema,
        session=session.id if session else None,
        session_used=session.used if session else NO_USAGE,
        files=action.context_files,
    )


def _is_plain(action: CallAgent, inside: PassOwner | None) -> bool:
    """Whether nothing is shown but what is asked, which is worth knowing early in a long loop."""
    if inside is None:
        return False
    if action.show_needs or action.schema is not None or action.context_files:
        return False
    repeat = inside.parent
    carries = repeat.last_checks or repeat.feedback or repeat.action.each is not None
    carries = carries or repeat.action.criteria
    forgets = type(repeat.action.memory) is NoMemory and action.session == "fresh"
    return forgets and not carries and pass_in_scope(repeat.owner) is None


def _occasion(state: State, owner: Owner, action: CallAgent, senses: Senses) -> list[str]:
    """What the run was started with, for a step of a graph that has a prompt of its own."""
    if not (action.show_needs and action.prompt):
        return []
    message = told_message(state, owner, senses)
    if message is None:
        message = senses.read(state.started.message) if state.started else ""
    return [f"## Flow Context\n\n{message}"] if message else []


def _joined(sections: list[str]) -> str:
    return "\n\n".join(section for section in sections if section)


def _as_fits(needs: list[str], *, beside: str) -> list[str]:
    """The results of steps before, cut where the whole prompt would become too long: what is
    asked, the item and the memory of the loop come first.
    """
    if not needs:
        return []
    room = PROMPT_BYTES - len(beside.encode(errors="replace")) - 2 * MARGIN_BYTES
    return [clip_end(_joined(needs), max(room, 0))]


def _form(body: LeafBody, schema: dict[str, JsonValue]) -> list[str]:
    """The form of a structured answer, and what was wrong with the one before."""
    shown = msgspec.json.encode(schema).decode()
    told = [f"## Result\n\nEnd with one JSON object that fits this schema:\n\n{shown}"]
    if body.failure is not None and body.failure.error.type == "bad_result":
        told.append(f"The answer before did not fit: {body.failure.error.detail}")
    return told


def _session(state: State, owner: Owner, action: CallAgent) -> Session | None:
    """The session to go on with: the one that the same program has begun at the same place of this
    loop.
    """
    thread = thread_of(state, owner, action)
    return thread[0].parent.sessions.get(thread[1]) if thread is not None else None


def _item(inside: PassOwner, template: Template) -> list[str]:
    """The item of a pass over a list, unless the prompt places it itself."""
    if any(isinstance(part, Ref) and part.of == "item" for part in template):
        return []
    place: PassOwner | None = inside
    while place is not None and place.parent.items is None:  # a counted loop does not hide it
        place = pass_in_scope(place.parent.owner)
    if place is None or place.parent.items is None:
        return []
    value = json.dumps(place.parent.items[place.number], ensure_ascii=False)
    return [f"## forEach Item (index: {place.number})\n{value}"]


def _criteria(state: State, inside: PassOwner, senses: Senses) -> list[str]:
    return criteria_sections(state, inside, senses) if inside.parent.action.criteria else []


def _memory(inside: PassOwner, senses: Senses) -> list[str]:
    repeat = inside.parent
    if repeat.finished == 0 or repeat.action.each is not None:
        return _number(inside)
    sections: list[str] = []
    match repeat.action.memory:
        case ProgressLog() as log:
            sections.append(progress_log(repeat, log.total))
            sections.append(_retry_note(inside))
        case PreviousOutput(by_step=True):
            sections += pass_before(inside, senses)
            sections += _number(inside)
        case PreviousOutput():
            sections.append(_previous_output(repeat, senses))
            sections.append(_retry_note(inside))
        case _:
            pass
    if not repeat.action.criteria:
        told = [note for note in repeat.last_checks if _is_told(note)]
        if repeat.action.memory == PreviousOutput(by_step=True):
            told = [note for note in told if note.check not in JUDGES]  # shown as judge feedback
        sections += [_check_note(note, senses) for note in told]
    return sections


def _number(inside: PassOwner) -> list[str]:
    """Which pass this is, for steps that work together on it."""
    by_step = inside.parent.action.memory == PreviousOutput(by_step=True)
    told = by_step and (inside.parent.finished or isinstance(inside.body, StepsBody))
    return [f"## Iteration {inside.iteration}"] if told else []


def _retry_note(inside: PassOwner) -> str:
    most = cap(inside.parent)
    heading = f"## Iteration {inside.iteration}" + (f" of {most}" if most else "")
    return (
        f"{heading}\n\nEarlier attempts did not finish the task. Look at what they left, "
        "keep what works, and improve on it."
    )


def _previous_output(repeat: RepeatBody, senses: Senses) -> str:
    text = senses.read(repeat.last.output) if repeat.last else ""
    return f"## Output of iteration {repeat.finished}\n\n{clip(text, OUTPUT_CHARS)}"


def _is_told(note: CheckNote) -> bool:
    return note.verdict != "pass" and note.check != "person" and bool(note.evidence)


def _check_note(note: CheckNote, senses: Senses) -> str:
    said = {"fail": "not passed", "timed_out": "timed out", "error": "could not run"}
    text = clip(senses.read(note.evidence), EVIDENCE_CHARS).strip()
    quoted = "\n".join(f"    {line}" for line in text.splitlines())
    return f"## Check: {note.check} ({said.get(note.verdict, note.verdict)})\n\n{quoted}"


def _feedback(repeat: RepeatBody, action: CallAgent) -> list[str]:
    """What a person said, unless the prompt places it itself."""
    placed = any(isinstance(part, Ref) and part.of == "feedback" for part in action.prompt)
    if placed or not repeat.feedback:
        return []
    return [f"## Feedback from a person\n\n{repeat.feedback}"]
