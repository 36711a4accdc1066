"""Threads: an agent that goes on from pass to pass with what it has said and heard before.

A coding agent keeps its session itself, and the loop keeps the name of it. A chat model keeps
nothing, so the loop keeps the conversation: the next one at the same place begins with all that was
said in the one before, and is given its task after that.
"""

from loopwright.kernel.frames import Body, Owner, PassOwner, RepeatBody, StepOwner
from loopwright.kernel.scopes import pass_in_scope
from loopwright.kernel.state import State, make_body, session_key
from loopwright.model.actions import Action, CallAgent
from loopwright.model.memory import SameSession


def thread_of(state: State, owner: Owner, call: CallAgent) -> tuple[PassOwner, str] | None:
    """The pass in which an agent goes on with what it did in the pass before, and the name of the
    thread; None where it begins anew. Another program behind the agent cannot know what was said,
    so it is part of the name.
    """
    inside = pass_in_scope(owner)
    if inside is None:
        return None
    if call.session != "thread" and not isinstance(inside.parent.action.memory, SameSession):
        return None
    agent = state.plan.agents.get(call.agent)
    spec = (agent.spec or "") if agent is not None else ""
    return inside, session_key(owner, inside, spec)


def begin(state: State, owner: Owner, action: Action, step: StepOwner) -> Body:
    """The frame for an action that begins now, with the conversation that it goes on with."""
    body = make_body(state, owner, action, step)
    if type(body) is RepeatBody and body.call is not None:
        thread = thread_of(state, owner, body.call)
        if thread is not None:
            loop, name = thread[0].parent, thread[1]
            body.thread = loop, name
            body.history = list(loop.talks.get(name, ()))
            body.carried = len(body.history)
    return body


def keep_talk(repeat: RepeatBody) -> None:
    """Keep a conversation as far as it has come, for the next pass."""
    if repeat.thread is not None:
        loop, name = repeat.thread
        loop.talks[name] = repeat.history


def is_first_turn(repeat: RepeatBody) -> bool:
    """Whether the model has said nothing yet since it was given this task."""
    return not any(entry.kind == "model" for entry in repeat.history[repeat.carried :])
