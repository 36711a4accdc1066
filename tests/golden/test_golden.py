"""Old logs still fold: what any release has written, this one reads."""

from __future__ import annotations

import pytest

from loopwright.kernel.decide import settle
from loopwright.kernel.fold import fold
from loopwright.model.plan import decode_plan, encode_plan
from tests.golden.recording import FOLDER, RECORDINGS, read_expected, read_facts, read_plan, summary
from tests.kernel.driving import Texts, without_time
from tests.kernel.invariants import broken_laws

NAMES = sorted(path.stem for path in FOLDER.glob("*.jsonl"))


def test_there_are_golden_logs() -> None:
    """The folder is where this test looks, and each recording has its log."""
    assert set(RECORDINGS) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_old_logs_still_fold(name: str) -> None:
    """A log folds to the state that was recorded with it."""
    facts = read_facts(name)
    state = fold(read_plan(name), facts)
    assert summary(state, facts) == read_expected(name)
    assert broken_laws(facts, ended=state.finished is not None) == []


@pytest.mark.parametrize("name", NAMES)
def test_old_logs_need_nothing_new(name: str) -> None:
    """Taken up by today's code, a recorded run has nothing left to say by itself."""
    facts = read_facts(name)
    assert settle(fold(read_plan(name), facts), Texts(), facts[-1].at) == []


@pytest.mark.parametrize("name", NAMES)
def test_every_part_of_an_old_log_folds(name: str) -> None:
    """A run that was interrupted anywhere can be read and is decided on."""
    plan, facts = read_plan(name), read_facts(name)
    texts = Texts()
    texts.stored = _Any()
    for length in range(len(facts)):
        state = fold(plan, facts[:length])
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


@pytest.mark.parametrize("name", sorted(RECORDINGS))
def test_today_decides_the_same(name: str) -> None:
    """The same answers lead to the same facts. A change of decisions on purpose: record anew."""
    assert without_time(RECORDINGS[name]().facts) == without_time(read_facts(name))
