"""Conversations that continue in the next iteration, followed by events alone, for the laws."""

import re

from loopwright.kernel.events import (
    AgentChanged,
    AnyEvent,
    IterationStarted,
    StepRetried,
    StepStarted,
)
from loopwright.model.actions import CallAgent, Steps
from loopwright.model.ids import iteration_number, parent_path
from loopwright.model.plan import Plan
from loopwright.model.policy import SameSession
from tests.support.laws.plan_lookup import action_at, loop_at

_PASS = re.compile(r"(?:\.-?\d+|\[\d+\])$")
_OWN_TRY = re.compile(r"~\d+$")

Thread = tuple[str, str, str]
"""The loop that keeps a conversation, the place inside of its iterations, and what is behind it."""


class Threads:
    """What each conversation begins with: the entries of the one before at its place."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._agents = dict(plan.agents)
        self._kept: dict[Thread, list[str]] = {}
        self._threads: dict[str, Thread] = {}  # by the place of a conversation
        self._loops: dict[str, str] = {}  # by step: where its iterations stood last

    def take(self, event: AnyEvent) -> dict[str, list[str]]:
        """What a conversation that begins now begins with, by its place; nothing if it is in no
        thread.
        """
        match event:
            case AgentChanged():
                self._agents[event.agent] = event.becomes
            case StepStarted(path=path):
                return self._begins(path, path)
            case StepRetried(path=path):
                return self._begins(path, f"{path}~{event.attempt}")
            case IterationStarted(path=path):
                self._passes(path)
                return self._begins(path, path)
            case _:
                pass
        return {}

    def keep(self, place: str, entries: list[str]) -> None:
        """A turn has entered the conversation at this place."""
        if place in self._threads:
            self._kept[self._threads[place]] = entries

    def _begins(self, place: str, inside: str) -> dict[str, list[str]]:
        call = action_at(self._plan, place).action
        if not isinstance(call, CallAgent):
            return {}
        agent = self._agents.get(call.agent)
        around = self._enclosing_iteration(place)
        if agent is None or not agent.is_chat or around is None:
            return {}
        loop = parent_path(around)
        memory = loop_at(self._plan, loop).memory
        if call.session != "thread" and not isinstance(memory, SameSession):
            return {}
        thread = loop, place.removeprefix(around), agent.spec or ""
        self._threads[inside] = thread
        return {inside: list(self._kept.get(thread, ()))}

    def _enclosing_iteration(self, place: str) -> str | None:
        """The innermost pass around a place of the same workflow."""
        while not _PASS.search(place):
            place = parent_path(place)
            inside = action_at(self._plan, place).action if place else None
            if inside is None or (isinstance(inside, Steps) and inside.given is not None):
                return None
        return place

    def _passes(self, path: str) -> None:
        """A loop that goes on after its run was reopened knows what it knew."""
        loop = parent_path(path)
        step = _OWN_TRY.sub("", loop)
        before = self._loops.get(step, loop)
        self._loops[step] = loop
        if before != loop and iteration_number(path) > 0:
            for (one, place, spec), entries in list(self._kept.items()):
                if one == before:
                    self._kept[loop, place, spec] = entries
