"""The prompt of a call: what is asked, and what earlier iterations and steps have produced.

The first iteration sees the request as it was written, byte for byte. Later iterations see it
followed by the memory of their loop (recent entries of the progress log in full, older ones
condensed), then what the checks reported, then the feedback of a person. A loop with `criteria`
also says, from its first iteration on, when the work is done. A step sees the results of the
steps that it needs, and what each step of its loop produced in the iteration before.

The coordinator sees what has happened since its last call, under the names that it has to use
when it writes to a step, and the tools that it has. A step that has ended and receives a
message is shown that message with its own result.
"""

import json
from collections import Counter
from typing import assert_never

import msgspec

from loopwright.kernel.addresses import EndedStep, locate, reachable
from loopwright.kernel.events import NO_USAGE
from loopwright.kernel.frames import (
    AgentSession,
    CheckNote,
    CoordinatorNotice,
    IterationOwner,
    LeafBody,
    Owner,
    RepeatBody,
    Result,
    StepOwner,
    StepsBody,
)
from loopwright.kernel.references import (
    CallPrompt,
    fill,
    iteration_in_scope,
    message_for,
    request_text,
    step_result,
    thread_of,
)
from loopwright.kernel.state import KernelServices, State, cap, chain
from loopwright.model.actions import (
    Action,
    CallAgent,
    Repeat,
)
from loopwright.model.policy import (
    ConversationHistory,
    NoMemory,
    PreviousOutput,
    ProgressLog,
    SameSession,
    StageOutputs,
)
from loopwright.model.record import JsonValue, Ref, Template
from loopwright.prompts.sections import (
    MESSAGE_BYTES,
    clip,
    clip_end,
    criteria_sections,
    render_messages,
    stage_sections,
)

NEED_BYTES = 16 * 1_024
PROMPT_BYTES = 120 * 1_024
SMALL_FIELD_BYTES = 1_024
JUDGES = ("judge", "goal")
"""Checks whose results are shown as the feedback of a judge."""


def needed_results(owner: Owner, services: KernelServices) -> list[str]:
    """Results of everything that a place depends on: what its step needs, and what the loops and
    steps around it need. Only completed results are shown.
    """
    names: dict[str, bool] = {}
    for place in chain(owner):
        if isinstance(place, StepOwner):
            for name in place.step.needs:
                names.setdefault(name, _is_whole(place.parent, name))
    parts = [
        _result(name, found, services, whole=whole)
        for name, whole in names.items()
        if (found := step_result(owner, name)) is not None and found.status == "completed"
    ]
    return ["## Previous Step Results", *parts] if parts else []


def _is_whole(graph: StepsBody, name: str) -> bool:
    """Whether a step exists to pass on its full output."""
    action = graph.index.action.steps[graph.index.at[name]].action
    return isinstance(action, Repeat) and action.output == "all"


def iteration_before(inside: IterationOwner, services: KernelServices) -> list[str]:
    """The result of every step of the previous iteration, and the judge's answer to it."""
    repeat = inside.parent
    assert repeat.progress.last is not None, "an iteration has ended before this one"
    heading = f"## Previous Iteration Output (Iteration {inside.iteration - 1})"
    if repeat.progress.last_steps:
        parts = [
            _result(name, found, services) for name, found in repeat.progress.last_steps.items()
        ]
    else:
        parts = [_texts(repeat.progress.last, services)]
    return [heading, *(part for part in parts if part), *judged(repeat, services)]


def judged(repeat: RepeatBody, services: KernelServices) -> list[str]:
    """The judge's last answer, whether it was yes or no."""
    return [
        f"## Judge Feedback\n\n{services.read(note.evidence)}"
        for note in repeat.progress.last_checks
        if note.check in JUDGES and note.evidence
    ]


def _result(name: str, found: Result, services: KernelServices, *, whole: bool = False) -> str:
    return f"### {name}\n\n{_texts(found, services, whole=whole)}"


def _texts(found: Result, services: KernelServices, *, whole: bool = False) -> str:
    text = services.read(found.output)
    text = text if whole else clip_end(text, NEED_BYTES)
    if found.result is None:
        return text
    return f"{text}\n\nResult:\n\n{_fitting(services.read(found.result))}"


def _fitting(result: str) -> str:
    """A structured result that fits; for a large object, its small fields, as an object."""
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


FULL_ENTRIES = 400
"""The maximum number of entries that are shown in full, even if they are short."""
CONDENSED_ENTRIES = 200
"""How many of the entries before those are searched for common contents."""
CONDENSED_KINDS = 5
"""The maximum number of different reports that are listed."""


def progress_log(repeat: RepeatBody, total: int) -> str:
    """One line for each previous iteration, in at most `total` characters; 0 means unlimited.

    The cost depends on the size alone and not on the number of iterations.
    """
    learnings = repeat.memory.learnings
    count = repeat.memory.forgotten + len(learnings)
    heading = f"## Progress Log (previous {count} iteration{'s' if count != 1 else ''})"
    if not total:
        return "\n".join([heading, *_entries(learnings, 1)])
    shown = _fitting_entries(learnings, total - total // 4)
    if shown == count:
        return "\n".join([heading, *_entries(learnings, 1)])
    older = learnings[-shown - CONDENSED_ENTRIES : -shown]
    condensed = _condensed(older, count - shown, total // 4)
    return "\n".join([heading, *condensed, *_entries(learnings[-shown:], count - shown + 1)])


def _entries(learnings: list[str], first: int) -> list[str]:
    return [f"- Iteration {n}: {text}" for n, text in enumerate(learnings, start=first)]


def _fitting_entries(learnings: list[str], room: int) -> int:
    """How many of the most recent entries fit; the last one is always shown."""
    shown = 0
    for text in reversed(learnings[-FULL_ENTRIES:]):
        room -= len(text) + len("- Iteration 1000: \n")
        if room < 0 and shown:
            break
        shown += 1
    return shown


def _condensed(older: list[str], last: int, room: int) -> list[str]:
    """Iterations 1 to `last` in a few lines: the reports of the most recent ones, the newest last,
    each different report once with its number of occurrences.
    """
    whole = f"- Iterations 1–{last}, condensed" if last > 1 else "- Iteration 1, condensed"
    each = max(room // CONDENSED_KINDS - len("  - 200 × \n"), 20)
    kinds = Counter(_cut(text, each) for text in older)
    recent = list(dict.fromkeys(_cut(text, each) for text in reversed(older)))[:CONDENSED_KINDS]
    lines = [f"  - {kinds[text]} × {text}" for text in reversed(recent)]
    if len(older) < last:
        whole += f"; the last {len(older)} of them reported"
    others = len(older) - sum(kinds[text] for text in recent)
    return [f"{whole}:", *([f"  - {others} others"] if others else []), *lines]


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"


EVIDENCE_CHARS = 4_000
OUTPUT_CHARS = 32_000
MARGIN_BYTES = 256  # for the note about omitted text


def compose(state: State, owner: Owner, services: KernelServices) -> CallPrompt:
    """What the agent at this place is shown now."""
    body = owner.body
    assert type(body) is LeafBody
    action = body.action
    assert type(action) is CallAgent
    form = _form(body, action.schema) if action.schema is not None else []
    return _composed(state, owner, action, form, services)


def compose_call(
    state: State, owner: Owner, action: CallAgent, services: KernelServices
) -> CallPrompt:
    """The task of a chat model that is called at this place. Its tools explain how it submits its
    result.
    """
    return _composed(state, owner, action, [], services)


def _composed(
    state: State, owner: Owner, action: CallAgent, form: list[str], services: KernelServices
) -> CallPrompt:
    inside = iteration_in_scope(owner)
    messages = state.mail.delivered.get(owner.inside, ())
    message_sections = render_messages(messages, services) if messages else []
    if inside is not None and type(inside.parent.action.memory) is StageOutputs:
        notes = [*stage_sections(state, owner, inside, action, services), *form]
        notes += [*_criteria(state, inside, services), *message_sections]
        session = _session(state, owner, action)
        return _shown(_joined(notes), action, session)
    request = [request_text(state, owner, action.prompt, services)]
    if not message_sections and _is_plain(action, inside):
        return CallPrompt(text=request[0])
    request += [*_occasion(state, owner, action, services), *form]
    after = _item(inside, action.prompt) if inside else []
    if inside is not None:
        notes = _criteria(state, inside, services)
        after += [*_memory(inside, services), *notes, *_feedback(inside.parent, action)]
    after += message_sections
    text = _joined([*request, *after])
    if action.show_needs:
        before = _as_fits(needed_results(owner, services), beside=text)
        text = clip_end(_joined([*request, *before, *after]), PROMPT_BYTES - MARGIN_BYTES)
    return _shown(text, action, _session(state, owner, action))


def _shown(text: str, action: CallAgent, session: AgentSession | None) -> CallPrompt:
    return CallPrompt(
        text=text,
        schema=action.schema,
        session=session.id if session else None,
        session_used=session.used if session else NO_USAGE,
        files=action.context_files,
    )


def _is_plain(action: CallAgent, inside: IterationOwner | None) -> bool:
    """Whether only the request is shown, which is worth knowing early in a long loop."""
    if inside is None:
        return False
    if action.show_needs or action.schema is not None or action.context_files:
        return False
    repeat = inside.parent
    carries = (
        repeat.progress.last_checks or repeat.progress.feedback or repeat.action.each is not None
    )
    carries = carries or repeat.action.criteria
    forgets = type(repeat.action.memory) is NoMemory and action.session == "fresh"
    return forgets and not carries and iteration_in_scope(repeat.owner) is None


def _occasion(state: State, owner: Owner, action: CallAgent, services: KernelServices) -> list[str]:
    """The message of the run, for a step of a graph that has its own prompt."""
    if not (action.show_needs and action.prompt):
        return []
    message = message_for(state, owner, services)
    if message is None:
        message = services.read(state.started.message) if state.started else ""
    return [f"## Flow Context\n\n{message}"] if message else []


def _joined(sections: list[str]) -> str:
    return "\n\n".join(section for section in sections if section)


def _as_fits(needs: list[str], *, beside: str) -> list[str]:
    """The results of earlier steps, cut if the whole prompt would become too long: the request, the
    item and the memory of the loop take precedence.
    """
    if not needs:
        return []
    room = PROMPT_BYTES - len(beside.encode(errors="replace")) - 2 * MARGIN_BYTES
    return [clip_end(_joined(needs), max(room, 0))]


def _form(body: LeafBody, schema: dict[str, JsonValue]) -> list[str]:
    """The format of a structured answer, and the error of the previous one."""
    shown = msgspec.json.encode(schema).decode()
    notes = [f"## Result\n\nEnd with one JSON object that fits this schema:\n\n{shown}"]
    if body.failure is not None and body.failure.error.type == "bad_result":
        notes.append(f"The answer before did not fit: {body.failure.error.detail}")
    return notes


def _session(state: State, owner: Owner, action: CallAgent) -> AgentSession | None:
    """The session to continue: the one that the same program started at the same place of this
    loop.
    """
    thread = thread_of(state, owner, action)
    return thread[0].parent.memory.sessions.get(thread[1]) if thread is not None else None


def _item(inside: IterationOwner, template: Template) -> list[str]:
    """The item of an iteration over a list, unless the prompt refers to it."""
    if any(isinstance(part, Ref) and part.of == "item" for part in template):
        return []
    place: IterationOwner | None = inside
    # a counted loop inside does not hide it
    while place is not None and place.parent.items.values is None:
        place = iteration_in_scope(place.parent.owner)
    if place is None or place.parent.items.values is None:
        return []
    value = json.dumps(place.parent.items.values[place.number], ensure_ascii=False)
    return [f"## forEach Item (index: {place.number})\n{value}"]


def _criteria(state: State, inside: IterationOwner, services: KernelServices) -> list[str]:
    return criteria_sections(state, inside, services) if inside.parent.action.criteria else []


def _memory(inside: IterationOwner, services: KernelServices) -> list[str]:
    repeat = inside.parent
    if repeat.finished == 0 or repeat.action.each is not None:
        return _number(inside)
    sections: list[str] = []
    match repeat.action.memory:
        case ProgressLog() as log:
            sections.append(progress_log(repeat, log.total))
            sections.append(_retry_note(inside))
        case PreviousOutput(by_step=True):
            sections += iteration_before(inside, services)
            sections += _number(inside)
        case PreviousOutput():
            sections.append(_previous_output(repeat, services))
            sections.append(_retry_note(inside))
        case NoMemory() | SameSession() | ConversationHistory() | StageOutputs():
            pass
        case _:
            assert_never(repeat.action.memory)
    if not repeat.action.criteria:
        notes = [note for note in repeat.progress.last_checks if _is_reported(note)]
        if repeat.action.memory == PreviousOutput(by_step=True):
            notes = [note for note in notes if note.check not in JUDGES]  # shown as judge feedback
        sections += [_check_note(note, services) for note in notes]
    return sections


def _number(inside: IterationOwner) -> list[str]:
    """The number of the iteration, for steps that work together on it."""
    by_step = inside.parent.action.memory == PreviousOutput(by_step=True)
    notes = by_step and (inside.parent.finished or isinstance(inside.body, StepsBody))
    return [f"## Iteration {inside.iteration}"] if notes else []


def _retry_note(inside: IterationOwner) -> str:
    most = cap(inside.parent)
    heading = f"## Iteration {inside.iteration}" + (f" of {most}" if most else "")
    return (
        f"{heading}\n\nEarlier attempts did not finish the task. Look at what they left, "
        "keep what works, and improve on it."
    )


def _previous_output(repeat: RepeatBody, services: KernelServices) -> str:
    text = services.read(repeat.progress.last.output) if repeat.progress.last else ""
    return f"## Output of iteration {repeat.finished}\n\n{clip(text, OUTPUT_CHARS)}"


def _is_reported(note: CheckNote) -> bool:
    return note.verdict != "pass" and note.check != "person" and bool(note.evidence)


def _check_note(note: CheckNote, services: KernelServices) -> str:
    shown_text = {"fail": "not passed", "timed_out": "timed out", "error": "could not run"}
    text = clip(services.read(note.evidence), EVIDENCE_CHARS).strip()
    quoted = "\n".join(f"    {line}" for line in text.splitlines())
    return f"## Check: {note.check} ({shown_text.get(note.verdict, note.verdict)})\n\n{quoted}"


def _feedback(repeat: RepeatBody, action: CallAgent) -> list[str]:
    """A person's feedback, unless the prompt refers to it."""
    placed = any(isinstance(part, Ref) and part.of == "feedback" for part in action.prompt)
    if placed or not repeat.progress.feedback:
        return []
    return [f"## Feedback from a person\n\n{repeat.progress.feedback}"]


OUTPUT_BYTES = 4 * 1_024
MOST_STEPS = 200
TASK = (
    "You coordinate this run. You see what happens in it; you may write to steps, tell people what "
    "happens, and sum up at the end. Do nothing when nothing needs you."
)
TOOLS = """## Tools

- forward_to_agent {"target_step_id", "text", "kind"}: write to a step. kind is info, \
context_update or cancel, which stops the step. Use the ids below exactly as written.
- narrate {"text"}: tell people what happens.
- finalize {"summary"}: your last word; the summary becomes the output of the run.

Without tools of your own, answer with one JSON object: \
{"tools": [{"name": "narrate", "args": {"text": "…"}}]}. Any other answer is narrated."""


def compose_coordinator(state: State, services: KernelServices) -> CallPrompt:
    """The prompt of the coordinator for the call that is due."""
    coordinator = state.plan.coordinator
    assert coordinator is not None
    sections = [
        fill(state, state.root, coordinator.prompt, services) or TASK,
        f"## Run\n\n{state.plan.name}",
        TOOLS,
        _steps(state),
        _events(state, services),
    ]
    return CallPrompt(text="\n\n".join(sections), session=state.mail.coordinator.session)


def _steps(state: State) -> str:
    found = reachable(state)
    listed = "\n".join(f"- {name}" for name in found[:MOST_STEPS])
    ended = _all_ended(state.root.body)
    more = "\n\nAll steps have ended: sum up with finalize." if ended else ""
    return f"## Steps that can be written to\n\n{listed or '(none)'}{more}"


def _all_ended(body: StepsBody) -> bool:
    return len(body.results) == len(body.index.action.steps)


def _events(state: State, services: KernelServices) -> str:
    lines = [_event(notice, services) for notice in state.mail.coordinator.shown]
    return "## Since your last call\n\n" + "\n".join(lines)


def _event(notice: CoordinatorNotice, services: KernelServices) -> str:
    if notice.message is not None:
        text = clip_end(services.read(notice.message.text), MESSAGE_BYTES)
        what = "reply" if notice.message.intent == "reply" else "message"
        return f"- {what} from={notice.message.sender}: {text}"
    step = f" step={notice.step}" if notice.step else ""
    words = f" {notice.words}" if notice.words else ""
    shown_text = clip_end(services.read(notice.text), OUTPUT_BYTES).strip() if notice.text else ""
    return f"- {notice.kind}{step}{words}{f': {shown_text}' if shown_text else ''}"


def compose_reply(state: State, key: str, effect: str, services: KernelServices) -> CallPrompt:
    """The prompt of a step that has ended and has messages: its task, its answer, the messages."""
    where = locate(state, key)
    assert isinstance(where, EndedStep)
    assert where.step is not None
    assert where.result is not None
    sections = [
        request_text(state, state.root, _call(where.step.action).prompt, services),
        f"## Your answer\n\n{clip_end(services.read(where.result.output), MESSAGE_BYTES)}",
        *render_messages(state.mail.delivered.get(effect, ()), services),
        "## Now\n\nYour answer above is recorded. Answer these messages; your reply goes to "
        "their senders.",
    ]
    text = "\n\n".join(section for section in sections if section)
    return CallPrompt(text=text, session=state.mail.sessions.get(key))


def _call(action: Action) -> CallAgent:
    while isinstance(action, Repeat):
        action = action.body
    assert isinstance(action, CallAgent), "only an agent can be written to"
    return action
