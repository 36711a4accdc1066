"""Checkpoints: where a conversation can be taken up again, as a new run."""

from loopwright.app.loops import is_pass
from loopwright.app.service import Service
from loopwright.errors import Conflict, NotFound
from loopwright.kernel.forking import places


def place_before(service: Service, run: str, checkpoint: str | None) -> str:
    """The finished place that a checkpoint stands behind; without one, the newest. A checkpoint is
    named by the cycle that begins with it.
    """
    found = places([numbered.fact for numbered in service.facts(run)])
    good = [place for place, how in found.items() if how == "completed" and is_pass(place)]
    if checkpoint is None:
        if not good:
            raise Conflict(f"{run} has no finished cycle yet", code="not-finished")
        return good[-1]
    around, _, number = checkpoint.rpartition(".")
    if not around or not number.isdecimal():
        raise NotFound(f"{run} has no checkpoint {checkpoint[:80]!a}", code="unknown-place")
    if int(number[:9]) == 0:
        raise Conflict(
            "nothing stands before the first cycle", code="not-finished", hint="start a new run"
        )
    return f"{around}.{int(number[:9]) - 1}"
