"""What `spend` shows: exactly what the events of the runs say."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.errors import LoopwrightError
from loopwright.kernel.event_parts import AgentCall, Failure
from loopwright.kernel.events import (
    AnyEvent,
    EffectDone,
    EffectFailed,
    EffectRequested,
    RunStarted,
    Usage,
)
from loopwright.model.plan import Plan, content_hash, encode_plan
from loopwright.operations.api_types import LimitUsed
from loopwright.operations.run_lists import (
    BYS,
    By,
    RunFilter,
    filtered_runs,
    since_ms,
    spend,
    total_of,
)
from loopwright.operations.settings_files import SharedBudget
from loopwright.ports import Append, EventLog, Headline
from loopwright.ports.headline import DAY_MS, usage_rows
from loopwright.stores.sqlite.log import open_sqlite_log

NOW = 20_000 * DAY_MS + 5
USAGE = st.builds(
    Usage,
    input_tokens=st.integers(0, 10_000),
    output_tokens=st.integers(0, 10_000),
    usd=st.integers(0, 10_000).map(lambda cents: cents / 100),
    unpriced=st.integers(0, 1),
)
CALL = st.tuples(st.sampled_from(["writer", "judge"]), st.integers(0, 3), st.booleans(), USAGE)
RUN = st.tuples(st.lists(CALL, max_size=6), st.lists(st.sampled_from(["a", "b"]), unique=True))
PLAN = encode_plan(Plan(name="work", steps=()))


def events_of(run: str, calls: list[tuple[str, int, bool, Usage]]) -> list[AnyEvent]:
    """The events of a run with these calls."""
    events: list[AnyEvent] = [
        RunStarted(at=NOW, run=run, plan=content_hash(PLAN), name=f"work {run[-1]}")
    ]
    for number, (agent, day, fails, usage) in enumerate(calls):
        at, effect = NOW - day * DAY_MS, f"main/agent#{number}"
        events.append(
            EffectRequested(at=at, path="main", effect=effect, call=AgentCall(agent=agent))
        )
        if fails:
            error = Failure("agent", "no")
            events.append(EffectFailed(at=at, path="main", effect=effect, error=error, usage=usage))
        else:
            events.append(EffectDone(at=at, path="main", effect=effect, usage=usage))
    return events


async def record(
    log: EventLog, run: str, events: list[AnyEvent], labels: list[str], *, metered: bool = True
) -> None:
    """A run in a log, as a driver writes it."""
    head = Headline(name=f"work {run[-1]}", status="running", started_at=NOW, labels=tuple(labels))
    rows = usage_rows(run, events) if metered else []
    blobs = {content_hash(PLAN): PLAN}
    append = Append(run=run, expected=0, events=events, headline=head, usage=rows, blobs=blobs)
    await log.append(append)


def opened(folder: Path) -> EventLog:
    return open_sqlite_log(folder / "log.db", alive=lambda owner: False, durability="normal")


@pytest.mark.item("rec-27")
@settings(max_examples=15, deadline=None)
@given(runs=st.lists(RUN, min_size=1, max_size=4), since=st.integers(0, 4))
def test_spend_equals_the_sum_of_the_events(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[list[object], list[str]]], since: int
) -> None:
    """Every grouping adds up to the usage in the events, unknown calls included."""
    log = opened(tmp_path_factory.mktemp("spend"))
    try:
        expected = Usage()
        for number, (calls, labels) in enumerate(runs):
            events = events_of(f"run_{number}", calls)  # type: ignore[arg-type]
            asyncio.run(record(log, f"run_{number}", events, labels))
            for event in events:
                counts = event.at // DAY_MS >= NOW // DAY_MS - since
                if counts and isinstance(event, EffectDone | EffectFailed):
                    expected = expected + (event.usage or Usage())
        for by in BYS:
            told = spend(log, by=by, since=NOW - since * DAY_MS, budget=SharedBudget(), now_ms=NOW)
            total = told.total
            assert (total.usd or 0.0) == pytest.approx(expected.usd)
            assert total.unpriced_calls == expected.unpriced
            assert total.input_tokens == expected.input_tokens
            if by != "label":
                lines = told.lines
                assert sum((one.usd or 0.0) for one in lines) == pytest.approx(expected.usd)
    finally:
        log.close()


@pytest.mark.item("rec-27")
@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("agent", ["writer", "judge"]),
        ("definition", ["work 0", "work 1"]),
        ("label", ["nightly", "(no label)"]),
        ("day", ["2024-10-03", "2024-10-04"]),
    ],
)
def test_spend_is_grouped(tmp_path: Path, by: By, names: list[str]) -> None:
    """By agent, definition, label or day."""
    log = opened(tmp_path)
    try:
        first = events_of("run_0", [("writer", 1, False, Usage(10, 5, 3.0))])
        second = events_of("run_1", [("judge", 0, True, Usage(usd=1.0))])
        asyncio.run(record(log, "run_0", first, ["nightly"]))
        asyncio.run(record(log, "run_1", second, []))
        told = spend(log, by=by, budget=SharedBudget(usd_per_day=5.0), now_ms=NOW)
        assert [one.name for one in told.lines] == names
        assert told.limits == [LimitUsed("usd_per_day", of=5.0, used=1.0, unpriced_calls=0)]
    finally:
        log.close()


@pytest.mark.item("rec-28")
@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (RunFilter(), ["run_1", "run_0"]),
        (RunFilter(name="WORK 1"), ["run_1"]),
        (RunFilter(name="*0"), ["run_0"]),
        (RunFilter(labels=("nightly",)), ["run_0"]),
        (RunFilter(since=NOW + 1), []),
        (RunFilter(statuses=("completed",)), []),
        (RunFilter(chats=True), []),
    ],
    ids=["all", "name", "pattern", "label", "since", "status", "chats"],
)
def test_runs_are_filtered(tmp_path: Path, wanted: RunFilter, found: list[str]) -> None:
    """By time, name, label, status and kind; the total is of those that fit."""
    log = opened(tmp_path)
    try:
        events = events_of("run_0", [("writer", 0, False, Usage(10, 5, 3.0))])
        asyncio.run(record(log, "run_0", events, ["nightly"]))
        asyncio.run(record(log, "run_1", events_of("run_1", []), []))
        rows = filtered_runs(log, wanted)
        assert [row.run for row in rows] == found
        assert total_of(log, rows).usage.usd == (3.0 if "run_0" in found else 0.0)
    finally:
        log.close()


def test_since_is_a_duration_or_a_date() -> None:
    """Both as people write them; anything else is refused with an example."""
    assert since_ms("2d", NOW) == NOW - 2 * DAY_MS
    assert since_ms("1970-01-03", NOW) == 2 * DAY_MS
    assert since_ms("today", NOW) == NOW // DAY_MS * DAY_MS
    assert since_ms("yesterday", NOW) == (NOW // DAY_MS - 1) * DAY_MS
    with pytest.raises(LoopwrightError) as refused:
        since_ms("soon", NOW)
    assert refused.value.code == "bad-since"
