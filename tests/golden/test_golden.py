"""Golden logs: today's code makes them byte for byte, and folds what was stored before."""

from __future__ import annotations

import typing
from itertools import chain

import pytest

from loopwright.kernel.decide import settle
from loopwright.kernel.event_parts import AnyCall
from loopwright.kernel.events import AnyEvent, RunStarted
from loopwright.kernel.fold import fold
from loopwright.model.plan import decode_plan, encode_plan
from loopwright.operations.dialects import NAMES as DIALECTS
from tests.golden.catalogue import (
    LOGS,
    PURPOSES,
    RUNS,
    as_json,
    calls_in,
    kinds_in,
    known_purposes,
    lines_of,
    purposes_in,
    read_events,
    read_plan,
    roles_of,
    state_picture,
    summary,
)
from tests.golden.files import compare
from tests.kernel.driving import Texts
from tests.support.laws.run import event_problems

NAMES = sorted({path.stem for path in LOGS.glob("*.jsonl")} | set(RUNS))


@pytest.mark.parametrize("name", sorted(RUNS))
def test_run_made_again_gives_the_stored_log(name: str) -> None:
    """The same answers lead to the same events, with the same times, byte for byte."""
    run = RUNS[name]()
    compare(LOGS / f"{name}.plan.json", encode_plan(run.plan) + b"\n")
    compare(LOGS / f"{name}.jsonl", lines_of(run.events))


@pytest.mark.parametrize("name", NAMES)
def test_stored_log_folds_to_the_stored_state(name: str) -> None:
    """A log folds to the result and to the picture of the state that were recorded with it."""
    events = read_events(name)
    state = fold(read_plan(name), events)
    compare(LOGS / f"{name}.expected.json", as_json(summary(state, events)))
    compare(LOGS / f"{name}.picture.json", as_json(state_picture(state)))
    assert event_problems(read_plan(name), events) == []


@pytest.mark.parametrize("name", NAMES)
def test_stored_log_is_encoded_as_it_was_read(name: str) -> None:
    """Reading and writing a log changes no byte of it."""
    assert lines_of(read_events(name)) == (LOGS / f"{name}.jsonl").read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_old_logs_need_nothing_new(name: str) -> None:
    """Taken up by today's code, a recorded run has nothing left to say by itself."""
    events = read_events(name)
    assert settle(fold(read_plan(name), events), Texts(), events[-1].at) == []


@pytest.mark.parametrize("name", NAMES)
def test_every_part_of_an_old_log_folds(name: str) -> None:
    """A run that was interrupted anywhere can be read and is decided on."""
    plan, events = read_plan(name), read_events(name)
    texts = Texts()
    texts.stored = _Any()
    for length in range(len(events)):
        state = fold(plan, events[:length])
        settle(state, texts, state.now)
        assert state.version >= length


class _Any(dict[str, str]):
    """Every stored text, whatever its name: contents are not kept with these logs."""

    def __missing__(self, name: str) -> str:
        return "x" * 500


@pytest.mark.parametrize("name", NAMES)
def test_old_plans_still_read(name: str) -> None:
    """A recorded plan reads and writes as it was."""
    plan = read_plan(name)
    assert decode_plan(encode_plan(plan)) == plan


# -- nothing is missing ----------------------------------------------------------------------------


def stored_events() -> list[AnyEvent]:
    return list(chain.from_iterable(read_events(name) for name in NAMES))


def test_every_kind_of_event_is_in_a_golden_log() -> None:
    """A new kind of event needs a run that records it."""
    kinds = {str(one.__struct_config__.tag) for one in typing.get_args(AnyEvent)}
    assert kinds - kinds_in(stored_events()) == set()


def test_every_purpose_of_an_effect_is_in_a_golden_log() -> None:
    """A new purpose needs a run that requests such an effect."""
    assert known_purposes() == PURPOSES
    assert purposes_in(stored_events()) == PURPOSES


def test_every_kind_of_call_is_in_a_golden_log() -> None:
    """So do a new kind of call and a new role of one."""
    calls = {
        (str(one.__struct_config__.tag), role)
        for one in typing.get_args(AnyCall)
        for role in roles_of(one)
    }
    assert calls - calls_in(stored_events()) == set()


def test_every_dialect_is_in_a_golden_log() -> None:
    """Each dialect has a run of one of its definitions, from its start to its end."""
    events = stored_events()
    assert {one.dialect for one in events if isinstance(one, RunStarted)} == set(DIALECTS)


def test_every_golden_file_belongs_to_a_log() -> None:
    """No file is left over from a log that was removed or renamed."""
    parts = (".jsonl", ".plan.json", ".expected.json", ".picture.json")
    assert {file.name for file in LOGS.iterdir()} == {f"{n}{part}" for n in NAMES for part in parts}
