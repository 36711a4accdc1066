"""The prompt of a stage: the position of its loop, earlier outputs, and the task of the stage.

Seven parts, always in this order: the goal, the number of the iteration, the outputs of the
stages before it in this cycle, the results of earlier iterations, the acceptance criteria, the
parameters, and the task of the stage. A part without content is left out. Stored texts are
never cut: a text that is too long for a prompt is shown with its head, its tail and the command
that shows all of it.
"""

import msgspec

from loopwright.kernel.frames import IterationOwner, Owner, RepeatBody, StepOwner, StepsBody
from loopwright.kernel.references import fill, request_text
from loopwright.kernel.state import KernelServices, State, cap
from loopwright.model.actions import CallAgent
from loopwright.model.checks import Approval, Goal, Leaf, leaves
from loopwright.model.ids import child_path
from loopwright.model.policy import StageOutputs
from loopwright.model.record import JsonValue, Template
from loopwright.prompts.excerpts import clip_with

ALL_CHARS = 96_000
"""Maximum total length of the outputs of earlier stages."""
LINES_SHOWN = 200
"""Maximum number of earlier iterations that are listed, the newest last."""

ARTIFACT = """\
Leave what you made as an artifact, with the tool for artifacts, before you end: whatever you say,
this stage counts only with it."""
VERDICT = """\
End with your verdict, as one JSON object on its own: the key `approved` is true or false, the key
`findings` is a list of objects with `severity` (critical, important or minor), `summary` and
`location`. Approve only what you have checked yourself; a finding that is critical or important
does not go with an approval."""


def stage_sections(
    state: State, owner: Owner, inside: IterationOwner, action: CallAgent, senses: KernelServices
) -> list[str]:
    """Everything that an agent is shown for its turn in a loop of stages."""
    repeat = inside.parent
    memory = repeat.action.memory
    assert isinstance(memory, StageOutputs)
    return [
        f"# Loop: {state.plan.name}",
        _section("Goal", request_text(state, owner, (), senses)),
        _section(f"Iteration {_number(inside)}", _place(state, owner, inside, action)),
        *_stages_before(state, owner, inside, memory, senses),
        *_earlier(state, repeat, memory, senses),
        *_criteria(state, owner, repeat, senses),
        *_parameters(state),
        *_note(owner, repeat),
        _section("Your Task", _task(state, owner, inside, action, senses)),
    ]


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text}" if text else f"## {title}"


def _number(inside: IterationOwner) -> str:
    most = cap(inside.parent)
    return f"{inside.iteration} (no limit)" if most is None else f"{inside.iteration}/{most}"


def _role(state: State, name: str) -> str:
    agent = state.plan.agents.get(name)
    return (agent.role if agent is not None else None) or name


def _place(state: State, owner: Owner, inside: IterationOwner, action: CallAgent) -> str:
    body = inside.body
    role = _role(state, action.agent)
    if not isinstance(body, StepsBody) or not isinstance(owner, StepOwner):
        return f"You are the {role}."
    number = body.index.at[owner.step.id] + 1
    return f"You are the {role}, stage {number} of {len(body.index.action.steps)}."


def _stages_before(
    state: State, owner: Owner, inside: IterationOwner, memory: StageOutputs, senses: KernelServices
) -> list[str]:
    body = inside.body
    if not isinstance(body, StepsBody) or not body.results:
        return []
    room = min(memory.chars, ALL_CHARS // len(body.results))
    parts = ["## Previous Stages This Cycle"]
    for number, step in enumerate(body.index.action.steps, start=1):
        found = body.results.get(step.id)
        if found is None:
            continue
        who = _role(state, step.action.agent) if isinstance(step.action, CallAgent) else step.id
        text = senses.read(found.output) or "(no output)"
        handle = _handle(state, child_path(inside.inside, step.id))
        parts.append(f"### Stage {number}: {who}\n\n{clip_with(text, room, handle)}")
    return parts


def _handle(state: State, path: str) -> str:
    return f"`loopwright show {state.run} --output {path}` shows all of it"


def _earlier(
    state: State, repeat: RepeatBody, memory: StageOutputs, senses: KernelServices
) -> list[str]:
    """One line for each earlier iteration, and the unchanged text of the last review."""
    if not repeat.memory.learnings:
        return []
    shown = repeat.memory.learnings[-LINES_SHOWN:]
    first = repeat.memory.forgotten + len(repeat.memory.learnings) - len(shown)
    lines = [f"- Iteration {n}: {text}" for n, text in enumerate(shown, start=first + 1)]
    head = [f"- ({first} more before these)"] if first else []
    parts = ["\n".join(["## Previous Iteration Outcomes", "", *head, *lines])]
    return [*parts, *_last_words(state, repeat, memory, senses)]


def _last_words(
    state: State, repeat: RepeatBody, memory: StageOutputs, senses: KernelServices
) -> list[str]:
    """The full text of the reviewer or the evaluator of the previous iteration."""
    reviewed = next((one for one in leaves(repeat.action.until) if isinstance(one, Approval)), None)
    found = repeat.progress.last
    if reviewed is not None and reviewed.stage is not None:
        found = repeat.progress.last_steps.get(reviewed.stage, found)
    if reviewed is not None and found is not None:
        path = f"{repeat.owner.inside}.{repeat.finished - 1}"
        text = clip_with(senses.read(found.output), memory.chars, _handle(state, path))
        return [f"### Review of iteration {repeat.finished}\n\n{text}"] if text else []
    texts = [note for note in repeat.progress.last_checks if note.check == "goal" and note.evidence]
    return [
        f"### Answer of the evaluator after iteration {repeat.finished}\n\n"
        + clip_with(senses.read(note.evidence), memory.chars, "")
        for note in texts
    ]


def _criteria(state: State, owner: Owner, repeat: RepeatBody, senses: KernelServices) -> list[str]:
    texts = [fill(state, owner, _wanted(leaf), senses) for leaf in leaves(repeat.action.until)]
    said = "\n\n".join(text for text in texts if text)
    return [_section("Acceptance Criteria", said)] if said else []


def _wanted(leaf: Leaf) -> Template:
    if isinstance(leaf, Approval):
        return leaf.criteria
    return leaf.prompt if isinstance(leaf, Goal) else ()


def _parameters(state: State) -> list[str]:
    given = state.started.inputs if state.started else {}
    if not given:
        return []
    lines = [f"- {name}: {_shown(value)}" for name, value in given.items()]
    return [_section("Parameters", "\n".join(lines))]


def _shown(value: JsonValue) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _note(owner: Owner, repeat: RepeatBody) -> list[str]:
    """A person's message to this stage, else to the iteration: shown once, at its start."""
    told = owner.note if isinstance(owner, StepOwner) else ""
    begins = not (isinstance(owner, StepOwner) and owner.parent.results)
    note = told or (repeat.progress.feedback if begins else "")
    return [_section("Note from a Person", note)] if note else []


def _task(
    state: State, owner: Owner, inside: IterationOwner, action: CallAgent, senses: KernelServices
) -> str:
    prompt = fill(state, owner, action.prompt, senses)
    if isinstance(owner, StepOwner) and owner.step.needs_artifact:
        prompt = f"{prompt}\n\n{ARTIFACT}" if prompt else ARTIFACT
    if not _reviews(owner, inside):
        return prompt
    return f"{prompt}\n\n{VERDICT}" if prompt else VERDICT


def _reviews(owner: Owner, inside: IterationOwner) -> bool:
    """Whether the loop waits for the approval of this stage."""
    body = inside.body
    for leaf in leaves(inside.parent.action.until):
        if not isinstance(leaf, Approval):
            continue
        if not isinstance(body, StepsBody) or not isinstance(owner, StepOwner):
            return True
        return owner.step.id == (leaf.stage or body.index.action.steps[-1].id)
    return False
