"""A performer that answers by a script, at once or when it is told to."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from loopwright.kernel.calls import AgentCall
from loopwright.kernel.facts import Failure
from loopwright.ports import Answer, Done, Failed, Job

Script: TypeAlias = Callable[[Job], Answer | None]
"""The answer to a job; None holds the job back until `ScriptedPerformer.answer` is called."""
Said: TypeAlias = Answer | str | int | None
"""A short way to write an answer: a text, or the code a program ended with."""


def answer_of(said: Said) -> Answer | None:
    """An answer from its short form."""
    if isinstance(said, str):
        return Done(output=said, code=0)
    return Done(code=said) if isinstance(said, int) else said


def failed(kind: str, detail: str = "it did not work") -> Failed:
    """An answer that says that it did not work."""
    return Failed(error=Failure(type=kind, detail=detail))


def always(said: Said = "ok") -> Script:
    """The same answer to everything."""
    answer = answer_of(said)
    return lambda job: answer


def never() -> Script:
    """Every job is held back."""
    return lambda job: None


def by_effect(table: Mapping[str, Said], default: Said = "ok") -> Script:
    """Named effects get their own answer, all others the default."""
    return lambda job: answer_of(table.get(job.effect, default))


def by_pass(agents: Sequence[Said], commands: Sequence[Said] = (0,)) -> Script:
    """The n-th pass gets the n-th answer, the last one again and again."""

    def script(job: Job) -> Answer | None:
        row = agents if isinstance(job.call, AgentCall) else commands
        return answer_of(row[min(job.iteration, len(row)) - 1])

    return script


class ScriptedPerformer:
    """The port `Performer` without a world. `jobs` is everything it was asked, in order."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or always()
        self.jobs: list[Job] = []
        self.held: dict[tuple[str, str], asyncio.Future[Answer]] = {}

    def perform(self, job: Job) -> Answer | Awaitable[Answer]:
        self.jobs.append(job)
        answer = self.script(job)
        return answer if answer is not None else self.hold(job)

    def hold(self, job: Job) -> Awaitable[Answer]:
        """Keep a job waiting; it leaves `held` when it is answered or no longer wanted."""
        key = job.run, job.effect
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.held[key] = future
        future.add_done_callback(lambda done: self._over(key, done))
        return future

    def answer(self, run: str, effect: str, said: Said) -> bool:
        """Answer a job that is held; False when it no longer waits."""
        future = self.held.get((run, effect))
        answer = answer_of(said)
        if future is None or future.done() or answer is None:
            return False
        future.set_result(answer)
        return True

    def _over(self, key: tuple[str, str], done: asyncio.Future[Answer]) -> None:
        if self.held.get(key) is done:
            del self.held[key]
