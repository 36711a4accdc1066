"""Runs that no command has started: events of a scripted driver, written into the data
directory.
"""

from __future__ import annotations

import asyncio
from contextlib import closing

from loopwright.kernel.events import AnyEvent, RunStarted
from loopwright.kernel.fold import fold
from loopwright.model.plan import Plan, content_hash, encode_plan
from loopwright.operations.data_directory import open_log
from loopwright.operations.settings import load_settings
from loopwright.ports import Append, encode_figures
from loopwright.ports.headline import figures_of, gate_changes, headline_of
from loopwright.views.formats import details_of
from tests.kernel.driving import START, Texts

INLINE = 1_000_000


def texts() -> Texts:
    """Texts that all stand in the events themselves."""
    return Texts(inline=INLINE)


def first_event(plan: Plan, run: str, workspace: str = "/") -> RunStarted:
    """How a run begins that can be planted."""
    name = content_hash(encode_plan(plan))
    return RunStarted(
        at=START, run=run, plan=name, name=plan.name, message="Do it.", workspace=workspace
    )


def append_of(plan: Plan, events: list[AnyEvent]) -> Append:
    """A whole run as one append."""
    state = fold(plan, events)
    plan_text = encode_plan(plan)
    return Append(
        run=state.run,
        expected=0,
        events=events,
        blobs={content_hash(plan_text): plan_text},
        headline=headline_of(state),
        figures=encode_figures(figures_of(state)),
        details=details_of(plan, state.started) if state.started else None,
        gates_opened=gate_changes(state, events)[0],
    )


def plant(plan: Plan, events: list[AnyEvent]) -> str:
    """Write a run into the data directory that the environment names; its id."""
    append = append_of(plan, events)
    with closing(open_log(load_settings().settings)) as log:
        asyncio.run(log.append(append))
    return append.run
