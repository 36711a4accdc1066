"""An agent that is a chat model: one call of it is a conversation, and the log has every turn."""

from loopwright.model.actions import CallAgent, Cycle, Repeat
from loopwright.model.checks import NoCalls
from loopwright.model.memory import History
from loopwright.model.plan import Agent
from loopwright.model.policy import Limits

MOST_TURNS = 50
WINDOW = 128_000
"""Tokens that any model of today can take, for one whose window nobody knows."""


def conversation(agent: Agent, call: CallAgent) -> Repeat:
    """The loop that a call of a chat model is: turns until the model asks for nothing more."""
    window = agent.options.get("context_window")
    return Repeat(
        body=Cycle(agent=call.agent, prompt=call.prompt, schema=call.schema),
        max=agent.max_turns or MOST_TURNS,
        until=NoCalls(),
        memory=History(window=window if isinstance(window, int) and window > 0 else WINDOW),
        at_cap="fail",
        limits=Limits(usd=agent.max_usd),
    )
