"""Sections of prompts: excerpts of long texts, messages, completion criteria, and stages.

Stored texts are never cut; only what a prompt shows is: the head and the tail of a text that is too
long, and the command that shows all of it.

An agent that knows the checks can work towards them, and one that sees every failure can fix all of
them in one iteration. The output of a check is quoted, never taken as an instruction, and the
criteria come after it, so that a prompt never ends with the output of a check.

A criterion about the text of the reply must not be met by a reply that quotes it. If it would be,
the text is written with dots between its letters, unless the author's own request already contains
it.

The prompt of a stage has seven parts, always in this order: the goal, the number of the iteration,
the outputs of the stages before it in this cycle, the results of earlier iterations, the acceptance
criteria, the parameters, and the task of the stage. A part without content is left out.
"""

import re
from collections.abc import Iterable, Iterator
from typing import assert_never

import msgspec

from loopwright.kernel.checks import inspect
from loopwright.kernel.frames import (
    SINGLE,
    CheckNote,
    IterationOwner,
    Owner,
    QueuedMessage,
    RepeatBody,
    StepOwner,
    StepsBody,
)
from loopwright.kernel.iteration import requests_of
from loopwright.kernel.references import fill, request_text
from loopwright.kernel.snapshots import PROTECT
from loopwright.kernel.state import KernelServices, State, cap
from loopwright.model.actions import CallAgent
from loopwright.model.checks import (
    AllOf,
    AnyOf,
    Approval,
    Cap,
    Check,
    CommandCheck,
    Contains,
    Expr,
    Goal,
    Judge,
    Leaf,
    NoCalls,
    OutputSchema,
    PersonCheck,
    Regex,
    ResultField,
    ResultPath,
    ScriptCheck,
    Signal,
    SpendCheck,
    ToolResultCheck,
    leaves,
)
from loopwright.model.ids import child_path
from loopwright.model.policy import PreviousOutput, StageOutputs
from loopwright.model.record import JsonValue, Template

EVIDENCE_CHARS = 4_000
"""Maximum length of the output of one failed check: its end, where failures are summed up."""
ALL_EVIDENCE_CHARS = 12_000
"""Maximum total length of the output of all failed checks."""
WORDS_CHARS = 1_000
"""Maximum length of a judge's instructions, a script or a schema."""

INSTRUCTIONS = ", with these instructions:"
WITHOUT_DOTS = "written without the dots between the characters"
DONE = "## When the work is done"
_STRINGS = re.compile(r"([\"'])((?:(?!\1).){2,})\1")
"""Strings in an expression."""
_SILENT = (NoCalls, Signal, Regex, Contains)
"""Checks of a turn of a chat model that fail in every turn but the last."""


def criteria_sections(state: State, inside: IterationOwner, services: KernelServices) -> list[str]:
    """Which checks failed last time, then when the work is done."""
    return [*failed_checks(state, inside, services), *done_when(state, inside, services)]


def done_when(state: State, inside: IterationOwner, services: KernelServices) -> list[str]:
    """Every check of the loop in words, and the protected files; nothing if only the number of
    iterations ends the loop and no file is protected.
    """
    loop = inside.parent.action
    wording = _Wording(state, inside, services)
    lines = list(_lines(loop.until, wording))
    if loop.gate is not None:
        person = "a person reviews the iteration and approves it"
        lines = ["one of these holds:", *_bullets(lines), f"- {person}"] if lines else [person]
    done = [f"The work is done when {_sentence(lines)}"] if lines else []
    protect = state.plan.workspace.protect
    kept = [f"Do not change: {', '.join(f'`{one}`' for one in protect)}"] if protect else []
    section = "\n\n".join([DONE, *done, *kept])
    if any(wording.is_met_by(leaf, section) for leaf in leaves(loop.until)):
        return kept  # words as common as `done` match it: the prompt does not mention it
    return [section] if done or kept else []


def _bullets(lines: list[str]) -> list[str]:
    return [f"- {lines[0]}", *(f"  {line}" if line else "" for line in lines[1:])]


def _sentence(lines: list[str]) -> str:
    return "\n".join([f"{lines[0]}." if len(lines) == 1 else lines[0], *lines[1:]])


class _Wording:
    """Describes the requirement of a check, from the point of view of the agent that works
    for it.
    """

    def __init__(self, state: State, inside: IterationOwner, services: KernelServices) -> None:
        self._state, self._inside, self._services = state, inside, services
        single = isinstance(inside.body, SINGLE) or isinstance(inside.parent.action.body, CallAgent)
        self.reply = "your reply" if single else "the last reply of the iteration"

    def is_met_by(self, leaf: Leaf, words: str) -> bool:
        """Whether a reply with this text would meet a criterion that the author's request does not
        meet.
        """
        if not isinstance(leaf, Regex | Contains | OutputSchema):
            return False
        requests = requests_of(self._state, self._inside, self._services)
        return self._meets(leaf, words) and not self._meets(leaf, requests)

    def _meets(self, leaf: Leaf, words: str) -> bool:
        finding = inspect(leaf, self._services, output=words, result=None, instructions="")
        return finding is not None and finding.verdict == "pass"

    def text(self, template: Template) -> str:
        """The literal text of a template, shortened."""
        return _short(fill(self._state, self._inside, template, self._services).strip())


def _lines(check: Check, wording: _Wording) -> Iterator[str]:
    """A check as text; further lines belong to the first."""
    if isinstance(check, AllOf | AnyOf):
        parts_of_criteria = [
            lines for part in check.parts if (lines := list(_lines(part, wording)))
        ]
        if parts_of_criteria:
            yield "all of these hold:" if isinstance(check, AllOf) else "one of these holds:"
        for lines in parts_of_criteria:
            yield from _bullets(lines)
        return
    yield from _leaf_words(check, wording).splitlines()


def _leaf_words(leaf: Leaf, wording: _Wording, *, brief: bool = False) -> str:
    """The requirement of a check; `brief`: without instructions, which are part of the criteria."""
    match leaf:
        case CommandCheck() | ScriptCheck():
            return _program_words(leaf)
        case Judge() | Goal() | Approval() | PersonCheck():
            return _opinion_words(leaf, wording, brief=brief)
        case Signal(word=word, anywhere=True):
            return f"{wording.reply} has a line that is `{word}` and nothing else"
        case Signal(word=word):
            return f"the last line of {wording.reply} is `{word}` and nothing else is on that line"
        case Regex() | Contains():
            return _text_words(leaf, wording)
        case OutputSchema() | Expr() | ResultField() | ResultPath() | ToolResultCheck() | NoCalls():
            return _result_words(leaf, wording)
        case Cap() | SpendCheck():
            return ""  # limits, which are not requirements
        case _:
            assert_never(leaf)


def _text_words(leaf: Regex | Contains, wording: _Wording) -> str:
    """What the reply must match or contain, so that quoting it does not meet the criterion."""
    if isinstance(leaf, Regex):
        what, text = "matches the regular expression", leaf.pattern
    else:
        what, text = "contains the text", _short(leaf.text)
    case = ", in upper or lower case" if leaf.ignore_case else ""
    words = f"{wording.reply} {what} `{text}`{case}"
    spelled = f"{wording.reply} {what} `{_spelled(text)}`{case}, {WITHOUT_DOTS}"
    if isinstance(leaf, Regex) and leaf.engine == "javascript":
        return spelled  # a search could take long, and prompts are composed without waiting
    unnamed = f"{wording.reply} {what} of the definition"
    return next((one for one in (words, spelled) if not wording.is_met_by(leaf, one)), unnamed)


def _spelled(text: str) -> str:
    return "\N{MIDDLE DOT}".join(text)


def _program_words(leaf: CommandCheck | ScriptCheck) -> str:
    if isinstance(leaf, CommandCheck):
        codes = " or ".join(str(code) for code in leaf.done_codes)
        return f"`{_command_line(leaf)}` exits with {codes}"
    text = _short(leaf.text.strip())
    if "\n" not in text:
        return f"the {leaf.interpreter} script `{text}` exits with 0"
    return f"this {leaf.interpreter} script exits with 0:\n\n{_quoted(text)}"


def _opinion_words(
    leaf: Judge | Goal | Approval | PersonCheck, wording: _Wording, *, brief: bool
) -> str:
    match leaf:
        case Judge(agent=agent, prompt=words):
            what, how = f"another agent (`{agent}`) judges that the work is done", INSTRUCTIONS
        case Goal(agent=agent, prompt=words):
            what, how = f"another agent (`{agent}`) judges that the goal is reached", INSTRUCTIONS
        case Approval(stage=stage, criteria=words):
            what, how = f"the review{f' in `{stage}`' if stage else ''} approves", ", which means:"
        case PersonCheck(message=words):
            what, how = "a person approves the iteration", ", who is asked:"
        case _:
            assert_never(leaf)
    requests = "" if brief else wording.text(words)
    return f"{what}{how}\n\n{_quoted(requests)}" if requests else what


def _result_words(
    leaf: OutputSchema | Expr | ResultField | ResultPath | ToolResultCheck | NoCalls,
    wording: _Wording,
) -> str:
    match leaf:
        case OutputSchema(schema=schema):
            words = f"the JSON object in {wording.reply} fits"
            shown = f"{words} this schema: {_short(msgspec.json.encode(schema).decode())}"
            return f"{words} the schema" if wording.is_met_by(leaf, shown) else shown
        case Expr(text=text):
            return _expression_words(text)
        case ResultField(field=field):
            return f"the field `{field}` of the result is true"
        case ResultPath(path=path):
            place = ".".join(str(part) for part in path) or "the answer"
            return f"`{place}` of the answer is not missing, false, 0, null or empty"
        case ToolResultCheck(tool=tool):
            requests = [f"with exit code {leaf.exit_code}"] if leaf.exit_code is not None else []
            requests += [f"with a text that contains `{leaf.contains}`"] if leaf.contains else []
            return " ".join([f"the tool `{tool}` answers", " and ".join(requests)]).strip()
        case NoCalls():
            return "you reply without calling a tool"
        case _:
            assert_never(leaf)


def _expression_words(text: str) -> str:
    """An expression; the strings that it looks for in a reply are spelled out."""
    if "content" not in text and "output" not in text:
        return f"the expression `{text}` is true"
    spelled = _STRINGS.sub(lambda found: f"{found[1]}{_spelled(found[2])}{found[1]}", text)
    note = f" (with its strings {WITHOUT_DOTS})" if spelled != text else ""
    return f"the expression `{spelled}` is true{note}"


# -- the checks of the iteration before ------------------------------------------------------------


def failed_checks(
    state: State, inside: IterationOwner, services: KernelServices, *, of_turn: bool = False
) -> list[str]:
    """Every check that did not pass last time, with the end of its output. A person's text is shown
    as feedback instead. `of_turn`: without checks that fail in every turn but the last.
    """
    repeat = inside.parent
    notes = [
        note for note in repeat.progress.last_checks if _is_shown(note, repeat, of_turn=of_turn)
    ]
    if not notes:
        return []
    when = f"after iteration {repeat.finished}" if repeat.finished else "before iteration 1"
    room = min(EVIDENCE_CHARS, ALL_EVIDENCE_CHARS // len(notes))
    wording = _Wording(state, inside, services)
    parts = [_failure(note, _leaf_of(note, repeat), wording, services, room) for note in notes]
    return ["\n".join([f"## Checks that failed {when}", "", *parts]).rstrip()]


def _is_shown(note: CheckNote, repeat: RepeatBody, *, of_turn: bool) -> bool:
    leaf = _leaf_of(note, repeat)
    if note.verdict == "pass" or isinstance(leaf, PersonCheck | SpendCheck):
        return False
    if of_turn and isinstance(leaf, _SILENT):
        return False
    judged = note.check in ("judge", "goal")
    return not (judged and repeat.action.memory == PreviousOutput(by_step=True))


def _leaf_of(note: CheckNote, repeat: RepeatBody) -> Leaf | None:
    """The check that a note is about; None if the definition does not contain it."""
    known = leaves(repeat.action.until)
    found = known[note.index] if 0 <= note.index < len(known) else None
    return found if found is not None and found.__struct_config__.tag == note.check else None


def _failure(
    note: CheckNote, leaf: Leaf | None, wording: _Wording, services: KernelServices, room: int
) -> str:
    text = _tail(services.read(note.evidence).strip(), room)
    finding = _what_happened(note, leaf, wording)
    if text:
        return f"- {finding}:\n\n{_quoted(text)}\n"
    silent = isinstance(leaf, CommandCheck | ScriptCheck) and note.verdict == "fail"
    return f"- {finding} and printed nothing" if silent else f"- {finding}"


def _what_happened(note: CheckNote, leaf: Leaf | None, wording: _Wording) -> str:
    if note.check == PROTECT:
        return "protected files must be as they were at the start; undo your changes to them"
    if leaf is None:
        return f"`{note.check}` failed"
    broken = {"timed_out": "took too long", "error": "could not be checked"}.get(note.verdict)
    if isinstance(leaf, CommandCheck | ScriptCheck):
        one = f"`{_command_line(leaf)}`" if isinstance(leaf, CommandCheck) else "the script"
        ended = f"exited with {note.code}" if note.code is not None else "failed"
        return f"{one} {broken or ended}"
    return f"{broken or 'not met'}: {_leaf_words(leaf, wording, brief=True).splitlines()[0]}"


# -- texts -----------------------------------------------------------------------------------------


def _command_line(leaf: CommandCheck) -> str:
    words = (word if word and " " not in word else f"'{word}'" for word in leaf.argv)
    return _short(" ".join(words).replace("\n", " "))


def _short(text: str) -> str:
    return text if len(text) <= WORDS_CHARS else f"{text[:WORDS_CHARS]} […]"


def _tail(text: str, room: int) -> str:
    """The end of a text, with the number of characters omitted before it."""
    if len(text) <= room:
        return text
    return f"[… {len(text) - room} characters before this …]\n{text[-room:]}"


def _quoted(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


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
    state: State, owner: Owner, inside: IterationOwner, action: CallAgent, services: KernelServices
) -> list[str]:
    """Everything that an agent is shown for its turn in a loop of stages."""
    repeat = inside.parent
    memory = repeat.action.memory
    assert isinstance(memory, StageOutputs)
    return [
        f"# Loop: {state.plan.name}",
        _section("Goal", request_text(state, owner, (), services)),
        _section(f"Iteration {_number(inside)}", _place(state, owner, inside, action)),
        *_stages_before(state, owner, inside, memory, services),
        *_earlier(state, repeat, memory, services),
        *_criteria(state, owner, repeat, services),
        *_parameters(state),
        *_note(owner, repeat),
        _section("Your Task", _task(state, owner, inside, action, services)),
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
    state: State,
    owner: Owner,
    inside: IterationOwner,
    memory: StageOutputs,
    services: KernelServices,
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
        text = services.read(found.output) or "(no output)"
        handle = _handle(state, child_path(inside.inside, step.id))
        parts.append(f"### Stage {number}: {who}\n\n{clip_with(text, room, handle)}")
    return parts


def _handle(state: State, path: str) -> str:
    return f"`loopwright show {state.run} --output {path}` shows all of it"


def _earlier(
    state: State, repeat: RepeatBody, memory: StageOutputs, services: KernelServices
) -> list[str]:
    """One line for each earlier iteration, and the unchanged text of the last review."""
    if not repeat.memory.learnings:
        return []
    shown = repeat.memory.learnings[-LINES_SHOWN:]
    first = repeat.memory.forgotten + len(repeat.memory.learnings) - len(shown)
    lines = [f"- Iteration {n}: {text}" for n, text in enumerate(shown, start=first + 1)]
    head = [f"- ({first} more before these)"] if first else []
    parts = ["\n".join(["## Previous Iteration Outcomes", "", *head, *lines])]
    return [*parts, *_last_words(state, repeat, memory, services)]


def _last_words(
    state: State, repeat: RepeatBody, memory: StageOutputs, services: KernelServices
) -> list[str]:
    """The full text of the reviewer or the evaluator of the previous iteration."""
    reviewed = next((one for one in leaves(repeat.action.until) if isinstance(one, Approval)), None)
    found = repeat.progress.last
    if reviewed is not None and reviewed.stage is not None:
        found = repeat.progress.last_steps.get(reviewed.stage, found)
    if reviewed is not None and found is not None:
        path = f"{repeat.owner.inside}.{repeat.finished - 1}"
        text = clip_with(services.read(found.output), memory.chars, _handle(state, path))
        return [f"### Review of iteration {repeat.finished}\n\n{text}"] if text else []
    texts = [note for note in repeat.progress.last_checks if note.check == "goal" and note.evidence]
    return [
        f"### Answer of the evaluator after iteration {repeat.finished}\n\n"
        + clip_with(services.read(note.evidence), memory.chars, "")
        for note in texts
    ]


def _criteria(
    state: State, owner: Owner, repeat: RepeatBody, services: KernelServices
) -> list[str]:
    texts = [fill(state, owner, _wanted(leaf), services) for leaf in leaves(repeat.action.until)]
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
    state: State, owner: Owner, inside: IterationOwner, action: CallAgent, services: KernelServices
) -> str:
    prompt = fill(state, owner, action.prompt, services)
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


def clip(text: str, size: int) -> str:
    """A text that fits: its head, its tail and a note about the omitted part."""
    if len(text) <= size:
        return text
    half = size // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def clip_with(text: str, size: int, handle: str) -> str:
    """The same with a note that says where the whole text is."""
    if len(text) <= size:
        return text
    half = size // 2
    where = f"; {handle}" if handle else ""
    left_out = f"[… {len(text) - 2 * half} characters left out{where} …]"
    return f"{text[:half]}\n{left_out}\n{text[len(text) - half :]}"


def clip_end(text: str, size: int) -> str:
    """A text of at most this many bytes: its head, and a note about the omitted part."""
    if len(text) * 4 <= size:
        return text
    data = text.encode(errors="replace")
    if len(data) <= size:
        return text
    head = data[: max(size, 0)].decode(errors="ignore")  # a character is kept or omitted as a whole
    return f"{head}\n[… truncated: {len(data) - len(head.encode())} bytes left out]"


MESSAGE_BYTES = 16 * 1_024


def render_messages(messages: Iterable[QueuedMessage], services: KernelServices) -> list[str]:
    """A section with messages, each with its sender; empty if there are none."""
    turns = [
        render_sender(message.sender, services.read(message.text), told=message.intent == "tell")
        for message in messages
    ]
    return ["## Messages\n\n" + "\n\n".join(turns)] if turns else []


def render_sender(sender: str, text: str, *, told: bool = False) -> str:
    """One message with its sender; `told` marks a person who steers the run."""
    head = f"Message from {sender}" if told else f"[{sender}]"
    # A message of a person is shown in full; its size was checked when it was sent.
    return f"{head}: {text if told else clip_end(text, MESSAGE_BYTES)}"
