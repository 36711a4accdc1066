"""What the places around a call say about it: how long it may be silent, and what is hidden."""

from loopwright.kernel.frames import Owner, RepeatBody
from loopwright.kernel.scopes import hidden_word
from loopwright.kernel.state import State, chain, enclosing_pass, limits_of
from loopwright.model.checks import Command, leaves
from loopwright.model.plan import Agent


def hidden_from(owner: Owner) -> str | None:
    """The signal that is for the loop around a call, and not for those who look on."""
    inside = enclosing_pass(owner)
    return hidden_word(inside) if inside is not None else None


def check_commands(state: State, owner: Owner) -> tuple[tuple[str, ...], ...]:
    """The commands that decide when the loops around a call are done, the innermost loop first."""
    if not state.has_checks:
        return ()
    loops = (place.action for place in chain(owner) if isinstance(place, RepeatBody))
    found = (leaf for loop in loops for leaf in leaves(loop.until) if isinstance(leaf, Command))
    return tuple(dict.fromkeys(leaf.argv for leaf in found))


def idle_limit(state: State, owner: Owner, agent: Agent | None) -> int | None:
    """The tightest limit on silence among the agent's own and those of the places around."""
    own = agent.idle_ms if agent else None
    if not state.has_idle:
        return own
    around = (limits_of(state, place).idle_ms for place in chain(owner))
    return min((ms for ms in (own, *around) if ms is not None), default=None)
