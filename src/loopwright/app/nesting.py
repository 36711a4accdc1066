"""Runs that an agent of another run starts: how deep that may go, and what they may use.

A program that an agent runs knows its run by its environment. A run that is started there is a
child of it: one level deeper, and it has no more to spend than its parent has left.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from loopwright.errors import LoopwrightError, NotFound
from loopwright.kernel.facts import RunStarted, Usage
from loopwright.model.policy import Limits

if TYPE_CHECKING:
    from loopwright.app.service import Service, Start

MOST_DEPTH = 5
PARENT, DEPTH = "LOOPWRIGHT_RUN", "LOOPWRIGHT_DEPTH"


def nested(service: "Service", start: "Start", env: Mapping[str, str]) -> "Start":
    """The start of a child, held to what its parent has left; any other as it is."""
    above = env.get(PARENT)
    if not above:
        return start
    parent = _first(service, above)
    told = env.get(DEPTH, "")
    known = int(told) if told.isdecimal() and len(told) < 4 else 0
    depth = 1 + max(known, parent.depth if parent is not None else 0)
    if depth > MOST_DEPTH:
        raise LoopwrightError(
            f"this would be run {depth} inside of another: {MOST_DEPTH} levels are the most",
            code="run-depth",
            hint="a loop that starts itself has no end; start it from outside",
        )
    if parent is None:  # of another data directory: what it has left is not known here
        return replace(start, parent=above, depth=depth)
    limits = _within(start.plan.limits, service.state(above).plan.limits, _used(service, parent))
    plan = msgspec.structs.replace(start.plan, limits=limits)
    return replace(start, plan=plan, parent=above, depth=depth)


def _first(service: "Service", run: str) -> RunStarted | None:
    try:
        first = service.log.read(run, limit=1)[0].fact
    except NotFound:
        return None
    return first if isinstance(first, RunStarted) else None


def _used(service: "Service", parent: RunStarted) -> Usage:
    """What a run has used, with what its children have."""
    used = service.state(parent.run).usage
    for child in _children(service, parent):
        more = service.state(child).usage
        used = Usage(
            input_tokens=used.input_tokens + more.input_tokens,
            output_tokens=used.output_tokens + more.output_tokens,
            usd=round(used.usd + more.usd, 9),
        )
    return used


def _children(service: "Service", parent: RunStarted) -> Iterator[str]:
    for row in service.log.rows():
        if row.headline.started_at < parent.at or row.run == parent.run:
            continue
        first = _first(service, row.run)
        if first is not None and first.parent == parent.run and first.depth > parent.depth:
            yield row.run


def _within(own: Limits, around: Limits, used: Usage) -> Limits:
    """The smaller of what a child may use and what its parent has left."""
    usd, tokens = own.usd, own.tokens
    if around.usd is not None:
        left = max(0.0, round(around.usd - used.usd, 9))
        usd = left if usd is None else min(usd, left)
    if around.tokens is not None:
        rest = max(0, around.tokens - used.input_tokens - used.output_tokens)
        tokens = rest if tokens is None else min(tokens, rest)
    return msgspec.structs.replace(own, usd=usd, tokens=tokens)
