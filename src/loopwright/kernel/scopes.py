"""What lies around a place: the pass it is in, the graphs that it sees, what it was told.

A graph with `given` is a workflow of its own. Whatever stands inside sees its steps and what it was
given, and neither the steps nor the loops around it; only the item of a list that it is made for
reaches inside. What it was given is looked up from outside, where it was written.
"""

from collections.abc import Iterator

from loopwright.kernel.frames import Body, Owner, PassOwner, StepsBody
from loopwright.model.actions import Given
from loopwright.model.checks import AllOf, AnyOf, Signal, leaves
from loopwright.model.template import Ref, Template

_COMBINED = (AnyOf, AllOf)


def pass_in_scope(owner: Owner) -> PassOwner | None:
    """The innermost pass around a place that belongs to the same workflow."""
    place = owner
    while type(place) is not PassOwner:
        if place.parent is None or _given(place.parent) is not None:
            return None
        place = place.parent.owner
    return place


def graphs(owner: Owner, *, outside: bool = False) -> Iterator[StepsBody]:
    """The graphs that a place sees, from the inside out; `outside`: without its own."""
    place, body = owner, None if outside else owner.body
    while True:
        if isinstance(body, StepsBody):
            yield body
            if _given(body) is not None:
                return
        if place.parent is None:
            return
        body = place.parent
        place = body.owner


def told(owner: Owner, ref: Ref, *, outside: bool = False) -> tuple[Owner, Template] | None:
    """What the workflow around a place was given for its message or for an input, and the place
    from around which that is seen; None where it is the run's own.
    """
    for graph in graphs(owner, outside=outside):
        given = _given(graph)
        if given is None:
            continue
        if ref.of == "input" and ref.name in given.inputs:
            return graph.owner, given.inputs[ref.name]
        if ref.of == "message" and given.message:
            return graph.owner, given.message
        return told(graph.owner, ref, outside=True)
    return None


def _given(body: Body) -> Given | None:
    """What a graph was given that is a workflow of its own."""
    return body.index.action.given if type(body) is StepsBody else None


def hidden_word(owner: Owner) -> str | None:
    """The signal by which a pass tells its loop, and nobody else, that all is done."""
    if type(owner) is not PassOwner:
        return None
    until = owner.parent.action.until
    if type(until) is Signal:  # the usual case, without a walk
        return until.word if until.anywhere else None
    if type(until) not in _COMBINED:
        return None
    found = (leaf for leaf in leaves(until) if isinstance(leaf, Signal) and leaf.anywhere)
    return next((leaf.word for leaf in found), None)
