"""Questions that an effect asks while it is under way, and the people who answer them.

A question is a gate like any other: it is in the log before anybody is asked, and its id follows
from what is asked. So a run that is taken up again finds the answer that was given meanwhile.
"""

import asyncio
from dataclasses import dataclass, field

from loopwright.kernel.facts import GateOpened
from loopwright.kernel.gates import tool_gate
from loopwright.kernel.state import Pending, State
from loopwright.ports import Question


@dataclass(slots=True)
class Asking:
    """The questions of one run that wait for an answer."""

    waiting: dict[str, tuple[str, "asyncio.Future[bool]"]] = field(default_factory=dict)

    def known(self, state: State, name: str, effect: str) -> bool | None:
        """The decision about a question, or None while there is none."""
        pending = state.pending.get(effect)
        if pending is None:
            return False
        gate = (pending.gates or {}).get(name)
        if gate is None or gate.open:
            return None
        return gate.decision == "approve"

    def wait(self, name: str, effect: str) -> "asyncio.Future[bool]":
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.waiting[name] = (effect, future)
        return future

    def tell(self, state: State) -> None:
        """Hand on every decision that has come."""
        for name, (effect, future) in list(self.waiting.items()):
            decided = self.known(state, name, effect)
            if future.done() or decided is not None:
                del self.waiting[name]
            if not future.done() and decided is not None:
                future.set_result(decided)


def question_fact(run: str, pending: Pending, question: Question, at: int) -> GateOpened:
    """The fact that asks."""
    name, digest = tool_gate(run, pending.effect, question.message, question.about, question.number)
    return GateOpened(
        at=at,
        path=pending.owner.inside,
        iteration=pending.owner.iteration,
        gate=name,
        digest=digest,
        message=question.message,
        answers=("approve", "reject"),
        about="tool",
        output=question.about or None,
        effect=pending.effect,
    )
