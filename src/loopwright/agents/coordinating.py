"""What the coordinator is shown, and what a step is shown that has ended and is written to.

The coordinator sees what has happened since its last call, under the names that it has to use when
it writes to a step, and the tools that it has.
"""

from loopwright.agents.clipping import clip_end
from loopwright.agents.letters import MESSAGE_BYTES, read_out
from loopwright.agents.prompt import Shown
from loopwright.kernel.addresses import Over, locate, reachable
from loopwright.kernel.frames import StepsBody
from loopwright.kernel.mail import Notice
from loopwright.kernel.state import Senses, State
from loopwright.kernel.texts import fill, request_text
from loopwright.model.actions import Action, CallAgent, Repeat

OUTPUT_BYTES = 4 * 1_024
MOST_STEPS = 200
TASK = (
    "You coordinate this run. You see what happens in it; you may write to steps, tell people what "
    "happens, and sum up at the end. Do nothing when nothing needs you."
)
TOOLS = """## Tools

- forward_to_agent {"target_step_id", "text", "kind"}: write to a step. kind is info, \
context_update or cancel, which stops the step. Use the ids below, as they stand there.
- narrate {"text"}: tell people what happens.
- finalize {"summary"}: your last word; the summary becomes the output of the run.

Without tools of your own, answer with one JSON object: \
{"tools": [{"name": "narrate", "args": {"text": "…"}}]}. Any other answer is narrated."""


def compose_coordinator(state: State, senses: Senses) -> Shown:
    """What the coordinator is shown in the call that is due."""
    coordinator = state.plan.coordinator
    assert coordinator is not None
    sections = [
        fill(state, state.root, coordinator.prompt, senses) or TASK,
        f"## Run\n\n{state.plan.name}",
        TOOLS,
        _steps(state),
        _events(state, senses),
    ]
    return Shown(text="\n\n".join(sections), schema=None, session=state.mail.session)


def _steps(state: State) -> str:
    found = reachable(state)
    listed = "\n".join(f"- {name}" for name in found[:MOST_STEPS])
    ended = _all_ended(state.root.body)
    more = "\n\nAll steps have ended: sum up with finalize." if ended else ""
    return f"## Steps that can be written to\n\n{listed or '(none)'}{more}"


def _all_ended(body: StepsBody) -> bool:
    return len(body.results) == len(body.index.action.steps)


def _events(state: State, senses: Senses) -> str:
    lines = [_event(notice, senses) for notice in state.mail.shown]
    return "## Since your last call\n\n" + "\n".join(lines)


def _event(notice: Notice, senses: Senses) -> str:
    if notice.message is not None:
        text = clip_end(senses.read(notice.message.text), MESSAGE_BYTES)
        what = "reply" if notice.message.intent == "reply" else "message"
        return f"- {what} from={notice.message.sender}: {text}"
    step = f" step={notice.step}" if notice.step else ""
    words = f" {notice.words}" if notice.words else ""
    said = clip_end(senses.read(notice.text), OUTPUT_BYTES).strip() if notice.text else ""
    return f"- {notice.kind}{step}{words}{f': {said}' if said else ''}"


def compose_reply(state: State, key: str, effect: str, senses: Senses) -> Shown:
    """What a step is shown that has ended and has mail: its task, its answer, the messages."""
    where = locate(state, key)
    assert isinstance(where, Over)
    assert where.step is not None
    assert where.result is not None
    sections = [
        request_text(state, state.root, _call(where.step.action).prompt, senses),
        f"## Your answer\n\n{clip_end(senses.read(where.result.output), MESSAGE_BYTES)}",
        *read_out(state.mail.heard.get(effect, ()), senses),
        "## Now\n\nYour answer above stands. Answer these messages; your words go to who wrote.",
    ]
    text = "\n\n".join(section for section in sections if section)
    return Shown(text=text, schema=None, session=state.mail.sessions.get(key))


def _call(action: Action) -> CallAgent:
    while isinstance(action, Repeat):
        action = action.body
    assert isinstance(action, CallAgent), "only an agent can be written to"
    return action
