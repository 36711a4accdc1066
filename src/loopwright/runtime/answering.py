"""Answers of effects as facts, and how effects are ended."""

import asyncio
import errno
from collections.abc import Awaitable

import msgspec

from loopwright.errors import StorageError
from loopwright.kernel.facts import EffectDone, EffectFailed, Failure, Usage
from loopwright.kernel.retry import SHORTAGE
from loopwright.kernel.state import Pending
from loopwright.ports import Answer, Done, Failed, Job, Performer
from loopwright.runtime.senses import Texts

MOST_AMOUNT = 10**15  # of tokens or USD


def answer_fact(
    pending: Pending, answer: Answer, texts: Texts, at: int
) -> EffectDone | EffectFailed:
    """What a performer said, as it stands in the log."""
    # The place is that of the request, also when it goes by another name since.
    owner = pending.owner
    path, iteration = pending.effect.rpartition("/")[0] if owner.path else "", owner.iteration
    if type(answer) is Done:
        return EffectDone(
            at=at,
            path=path,
            iteration=iteration,
            effect=pending.effect,
            output=texts.keep(answer.output),
            result=None if answer.result is None else texts.keep(answer.result),
            usage=answer.usage,
            session=answer.session,
            code=answer.code,
            mark=answer.mark,
            note=answer.note,
            tools=answer.tools,
            snapshot=answer.snapshot,
        )
    return EffectFailed(
        at=at,
        path=path,
        iteration=iteration,
        effect=pending.effect,
        error=answer.error,
        output=texts.keep(answer.output),
        usage=answer.usage,
        session=answer.session,
        code=answer.code,
        mark=answer.mark,
        tools=answer.tools,
    )


def refused_answer(fact: EffectDone | EffectFailed, error: StorageError) -> EffectFailed:
    """An answer that can never be stored."""
    return EffectFailed(
        at=fact.at,
        path=fact.path,
        iteration=fact.iteration,
        effect=fact.effect,
        error=Failure(type="internal", detail=f"the answer cannot be kept ({error.code})"),
        usage=None if fact.usage is None else _storable_usage(fact.usage),
    )


def _storable_usage(usage: Usage) -> Usage:
    """The usage of an answer that is refused; amounts that cannot be stored are unknown."""
    storable = all(0 <= amount <= MOST_AMOUNT for amount in msgspec.structs.astuple(usage))
    return usage if storable else Usage(unpriced=1)


_SHORTAGES = {
    errno.EMFILE: "file descriptors",
    errno.ENFILE: "file descriptors",
    errno.EAGAIN: "processes",
    errno.ENOMEM: "memory",
}


def defect(error: Exception) -> Answer:
    """A defect of ours, as the answer of the effect that met it. A shortage of the machine is not
    one: the effect is repeated when it is over.
    """
    missing = _SHORTAGES.get(error.errno or 0) if isinstance(error, OSError) else None
    if missing is not None:
        return Failed(error=Failure(type=SHORTAGE, detail=f"waiting for {missing}: {error}"))
    return Failed(error=Failure(type="internal", detail=f"{type(error).__name__}: {error}"))


def begun(performer: Performer, job: Job | Answer) -> Answer | Awaitable[Answer]:
    """Begin a job; what has its answer already is not begun."""
    if type(job) is not Job:
        return job
    try:
        return performer.perform(job)
    except Exception as error:  # a defect of ours must end the effect, not the driver
        return defect(error)


def cancel(task: "asyncio.Future[None]") -> None:
    """End an effect that is waited for."""
    task.cancel()


def nothing_to_end() -> None:
    """The end of an effect that has already answered."""
