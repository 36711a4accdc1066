"""The contract of `EventLog`, over every store: what holds for one holds for all."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loopwright.errors import Conflict, LoopwrightError, NotFound, StorageError, VersionConflict
from loopwright.kernel.event_parts import AgentCall, CommandCall, Snapshot, ToolCall, Worktree
from loopwright.kernel.events import (
    AnyEvent,
    EffectDone,
    EffectRequested,
    RunFinished,
    RunStarted,
    Usage,
)
from loopwright.model.record import Blob
from loopwright.ports import (
    Append,
    AskedCall,
    GateSubject,
    ListedFigures,
    NumberedEvent,
    RunDetails,
    RunListing,
    RunStatus,
    UsageRow,
    encode_figures,
)
from tests.contracts.event_log_suite import (
    STORES,
    Log,
    World,
    ended,
    event,
    events,
    gate,
    headline,
    owner,
    worlds,
)


@pytest.fixture(params=list(STORES))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    yield from worlds(request.param, tmp_path)


@pytest.fixture
def log(world: World) -> Log:
    return world.open()


def texts(found: list[NumberedEvent]) -> list[str]:
    return [one.event.by for one in found if hasattr(one.event, "by")]


# ---------------------------------------------------------------------- append, read, version


@pytest.mark.item("inv-1")
@pytest.mark.parametrize("sizes", [[1], [3], [1, 1, 1], [2, 5, 1, 3]], ids=str)
def test_events_are_numbered_without_a_gap(world: World, log: Log, sizes: list[int]) -> None:
    """Numbers count from 1 over all appends, each event keeps its place."""
    world.start(log, count=sizes[0])
    at = sizes[0]
    for size in sizes[1:]:
        world.append(log, Append(run="run_a", expected=at, events=events(size, at + 1)))
        at += size
    found = log.read("run_a")
    assert [one.seq for one in found] == list(range(1, at + 1))
    assert texts(found) == [str(number) for number in range(1, at + 1)]
    assert log.version("run_a") == at


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(
            RunStarted(
                at=1,
                run="run_a",
                plan="p",
                name="n",
                message=Blob("hash", 3, "he"),
                inputs={"a": [1, None, {"b": 1.5, "c": True}]},
            ),
            id="inputs and a blob",
        ),
        pytest.param(
            EffectRequested(
                at=2,
                path="main.0",
                iteration=1,
                effect="main.0/agent#1",
                call=AgentCall(agent="a", role="judge"),
            ),
            id="agent call",
        ),
        pytest.param(
            EffectRequested(
                at=3,
                path="x",
                effect="x/check#1",
                call=CommandCall(argv=("make", "test"), timeout_ms=5, env={"A": "b"}),
            ),
            id="command call",
        ),
        pytest.param(
            EffectRequested(
                at=3,
                path="x",
                effect="x/tool#1",
                call=ToolCall(agent="a", tool="t", arguments='{"deep": [[[null]]]}'),
            ),
            id="tool call",
        ),
        pytest.param(
            EffectDone(
                at=4, path="x", effect="x/agent#1", usage=Usage(usd=0.1, input_tokens=2**40)
            ),
            id="usage",
        ),
        pytest.param(RunFinished(at=2**62, outcome="completed", reason=""), id="late"),
    ],
)
def test_an_event_comes_back_as_it_went_in(world: World, log: Log, given: AnyEvent) -> None:
    """Reading gives an equal event of the same type."""
    world.append(log, Append(run="run_a", expected=0, events=(given,), headline=headline()))
    assert log.read("run_a") == [NumberedEvent(1, given)]


@pytest.mark.parametrize(
    ("after", "limit", "expected"),
    [
        (0, None, [1, 2, 3, 4, 5, 6]),
        (0, 1, [1]),
        (0, 4, [1, 2, 3, 4]),
        (1, None, [2, 3, 4, 5, 6]),
        (2, 2, [3, 4]),
        (3, 1, [4]),
        (4, 100, [5, 6]),
        (6, None, []),
        (99, None, []),
        (0, 0, []),
        (2, -1, []),
        (-5, 2, [1, 2]),
    ],
)
def test_read_takes_a_part(
    world: World, log: Log, after: int, limit: int | None, expected: list[int]
) -> None:
    """`after` and `limit` cut at any event, also in the middle of an append."""
    world.start(log, count=1)
    world.append(log, Append(run="run_a", expected=1, events=events(3, 2)))
    world.append(log, Append(run="run_a", expected=4, events=events(2, 5)))
    assert [one.seq for one in log.read("run_a", after, limit)] == expected


def test_a_long_run_is_read_whole_and_in_parts(world: World, log: Log) -> None:
    """10,000 events in 1,000 appends come back in order, and so does any part of them."""
    world.start(log, count=10)
    appends = [
        Append(run="run_a", expected=at, events=events(10, at + 1)) for at in range(10, 10_000, 10)
    ]
    assert set(world.submit(log, appends)) == {None}
    assert texts(log.read("run_a")) == [str(number) for number in range(1, 10_001)]
    assert [one.seq for one in log.read("run_a", 9_994, 3)] == [9_995, 9_996, 9_997]
    assert [one.seq for one in log.read("run_a", 4_999, 2_000)] == list(range(5_000, 7_000))


def test_ten_thousand_events_in_one_append(world: World, log: Log) -> None:
    """An append may be as large as it needs to be."""
    world.start(log, count=10_000)
    assert log.version("run_a") == 10_000
    assert [one.seq for one in log.read("run_a", 9_998)] == [9_999, 10_000]


def test_a_large_event(world: World, log: Log) -> None:
    """A text of several megabytes inside an event comes back whole."""
    text = "0123456789abcdef" * 300_000
    world.append(
        log, Append(run="run_a", expected=0, events=[event(text), event("z")], headline=headline())
    )
    assert texts(log.read("run_a")) == [text, "z"]


def test_runs_do_not_mix(world: World, log: Log) -> None:
    """Interleaved appends to many runs, handed over at once, stay apart."""
    runs = [f"run_{number}" for number in range(30)]
    for run in runs:
        world.start(log, run)
    appends = [
        Append(run=run, expected=at, events=[event(f"{run}:{at + 1}")])
        for at in range(1, 11)
        for run in runs
    ]
    assert set(world.submit(log, appends)) == {None}
    for run in runs:
        assert texts(log.read(run, 1)) == [f"{run}:{number}" for number in range(2, 12)]
        assert log.verify(run) == []


def test_the_same_events_object_may_change_later(world: World, log: Log) -> None:
    """What was submitted counts, not what the caller does with his list afterwards."""
    given: list[AnyEvent] = [event("before")]

    async def submit_then_change() -> None:
        waiting = asyncio.ensure_future(
            log.append(Append(run="run_a", expected=0, events=given, headline=headline()))
        )
        await asyncio.sleep(0)
        given[0] = event("after")
        await waiting

    world.loop.run_until_complete(submit_then_change())
    assert texts(log.read("run_a")) == ["before"]


def test_an_append_without_events_changes_the_row_alone(world: World, log: Log) -> None:
    """A headline may be written without a new event; the version stays."""
    world.start(log, count=2)
    world.append(log, Append(run="run_a", expected=2, events=(), headline=headline("waiting")))
    assert (log.version("run_a"), log.row("run_a").headline.status) == (2, "waiting")
    assert log.verify("run_a") == []


# ------------------------------------------------------------------------------- conflicts


@pytest.mark.parametrize("expected", [0, 1, 3, -1, 2**40])
def test_another_version_is_refused(world: World, log: Log, expected: int) -> None:
    """An append that expects anything but the newest number changes nothing."""
    world.start(log, count=2)
    with pytest.raises(VersionConflict) as refusal:
        world.append(
            log,
            Append(run="run_a", expected=expected, events=events(1), headline=headline("failed")),
        )
    assert refusal.value.code == "version-conflict"
    assert "run_a is at version 2" in str(refusal.value)
    assert (log.version("run_a"), log.row("run_a").headline.status) == (2, "running")


def test_an_append_to_no_run_is_refused(world: World, log: Log) -> None:
    """A run begins at 0; expecting more of one that does not exist is a conflict."""
    with pytest.raises(VersionConflict, match="does not exist"):
        world.append(log, Append(run="run_x", expected=3, events=events(1)))
    assert log.rows() == []


@pytest.mark.parametrize(
    "append",
    [
        pytest.param(Append(run="run_a", expected=0, events=events(1)), id="no headline"),
        pytest.param(Append(run="run_a", expected=0, events=(), headline=headline()), id="no fact"),
    ],
)
def test_a_run_begins_with_an_event_and_a_headline(world: World, log: Log, append: Append) -> None:
    """Without either there is nothing to list or to fold."""
    with pytest.raises(StorageError) as refusal:
        world.append(log, append)
    assert refusal.value.code == "bad-append"
    assert log.rows() == []


def test_only_the_refused_append_of_a_group_fails(world: World, log: Log) -> None:
    """Of appends handed over at once, a refused one takes no other with it."""
    world.start(log, "run_a")
    world.start(log, "run_b", key="k")
    answers = world.submit(
        log,
        [
            Append(run="run_a", expected=1, events=[event("2")]),
            Append(run="run_a", expected=1, events=[event("late")]),
            Append(run="run_c", expected=0, events=events(1), headline=headline(key="k")),
            Append(run="run_a", expected=2, events=[event("fenced")], token="t"),
            Append(run="run_a", expected=2, events=[event("3")]),
            Append(run="run_d", expected=0, events=events(1), headline=headline()),
        ],
    )
    assert [getattr(answer, "code", None) for answer in answers] == [
        None,
        "version-conflict",
        "key-taken",
        "fenced",
        None,
        None,
    ]
    assert texts(log.read("run_a")) == ["1", "2", "3"]
    assert [row.run for row in log.rows()] == ["run_d", "run_b", "run_a"]


def test_of_two_that_expect_the_same_one_wins(world: World, log: Log) -> None:
    """Two processes that append to one version: the second is refused and can go on."""
    other = world.open()
    world.start(log)
    world.append(other, Append(run="run_a", expected=1, events=[event("other")]))
    with pytest.raises(VersionConflict):
        world.append(log, Append(run="run_a", expected=1, events=[event("late")]))
    world.append(log, Append(run="run_a", expected=2, events=[event("again")]))
    assert texts(other.read("run_a")) == ["1", "other", "again"]
    assert log.verify("run_a") == []


def test_answers_come_in_the_order_of_submission(world: World, log: Log) -> None:
    """A chain of appends handed over at once is committed in order."""
    world.start(log)
    appends = [
        Append(run="run_a", expected=at, events=[event(str(at + 1))]) for at in range(1, 101)
    ]
    assert world.submit(log, appends) == [None] * 100
    assert log.version("run_a") == 101


def test_a_cancelled_wait_does_not_take_the_append_back(world: World, log: Log) -> None:
    """Who stops waiting hears nothing; the log stays whole."""
    world.start(log)

    async def cancel() -> None:
        waiting = asyncio.ensure_future(
            log.append(Append(run="run_a", expected=1, events=[event("2")]))
        )
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    world.loop.run_until_complete(cancel())
    world.barrier(log)
    assert log.version("run_a") == 2


# -------------------------------------------------------------------------- unknown names


@pytest.mark.parametrize("name", ["run_x", "", "run_\0", "run_\ud800", "RUN_A", "run_a ", "%", "*"])
@pytest.mark.parametrize("call", ["read", "version", "row", "blob", "verify"])
def test_what_does_not_exist_is_not_found(world: World, log: Log, name: str, call: str) -> None:
    """An unknown name is NotFound, whatever characters it has."""
    world.start(log)
    with pytest.raises(NotFound):
        getattr(log, call)(name)


@pytest.mark.parametrize("prefix", ["run_x", "run_\0", "run_\ud800", "%", "_"])
def test_an_unknown_prefix_finds_nothing(world: World, log: Log, prefix: str) -> None:
    """A prefix is text, not a pattern."""
    world.start(log)
    assert log.rows(prefix=prefix) == []
    assert log.gates("run_\ud800") == []


# -------------------------------------------------------------------------------- content


@pytest.mark.parametrize(
    "text",
    ["", "ä€𝄞", "\u202e\u200b\ufeff", "line\r\nline\ttab", "a\0b", "\x1b[31m", '"\\/', "\uffff"],
    ids=ascii,
)
def test_text_is_kept_to_the_letter(world: World, log: Log, text: str) -> None:
    """Any Unicode text comes back unchanged from events, headlines, gates and blobs."""
    world.append(
        log,
        Append(
            run="run_a",
            expected=0,
            events=[event(text)],
            headline=headline(name=text, workspace=text, reason=text),
            gates_opened=[replace(gate("g"), message=text)],
            blobs={"hash": text.encode()},
        ),
    )
    shown = log.row("run_a").headline
    assert texts(log.read("run_a")) == [text]
    assert (shown.name, shown.workspace, shown.reason) == (text, text, text)
    assert [one.message for one in log.gates()] == [text]
    assert log.blob("hash") == text.encode()


LONE = "\ud800"


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        pytest.param({"events": [event(LONE)]}, "bad-fact", id="surrogate in a fact"),
        pytest.param(
            {
                "events": [
                    RunStarted(
                        at=1,
                        run="",
                        plan="",
                        name="",
                        inputs={(1, 2): 3},  # type: ignore[dict-item]
                    )
                ]
            },
            "bad-fact",
            id="not JSON",
        ),
        pytest.param(
            {"events": [EffectDone(at=1, path="", effect="", usage=Usage(usd=float("nan")))]},
            "bad-fact",
            id="not a number",
        ),
        pytest.param({"events": [object()]}, "bad-fact", id="not a fact"),
        pytest.param({"run": f"run_{LONE}", "expected": 0}, "bad-text", id="surrogate in the run"),
        pytest.param({"run": "run_\0", "expected": 0}, "bad-text", id="NUL in the run"),
        pytest.param({"run": "", "expected": 0}, "bad-text", id="no name"),
        pytest.param({"headline": headline(name=LONE)}, "bad-text", id="surrogate in the name"),
        pytest.param({"headline": headline(reason=LONE)}, "bad-text", id="in the reason"),
        pytest.param({"headline": headline(workspace=LONE)}, "bad-text", id="in the workspace"),
        pytest.param({"headline": headline(key=LONE)}, "bad-text", id="in the key"),
        pytest.param({"headline": headline(key="a\0b")}, "bad-text", id="NUL in the key"),
        pytest.param({"headline": headline(key="")}, "bad-text", id="empty key"),
        pytest.param({"headline": headline(wake_at=2**63)}, "bad-number", id="wake_at too large"),
        pytest.param({"blobs": {LONE: b""}}, "bad-text", id="surrogate in a hash"),
        pytest.param({"gates_opened": [gate(LONE)]}, "bad-text", id="surrogate in a gate"),
        pytest.param({"gates_opened": [gate("g\0")]}, "bad-text", id="NUL in a gate"),
        pytest.param(
            {"gates_opened": [replace(gate("g"), message=LONE)]}, "bad-text", id="in its message"
        ),
        pytest.param({"gates_opened": [gate("g", run="run_b")]}, "bad-append", id="other's gate"),
        pytest.param({"gates_closed": [ended(LONE)]}, "bad-text", id="surrogate in a closed gate"),
    ],
)
def test_what_cannot_be_stored_is_refused_at_the_edge(
    world: World, log: Log, bad: dict[str, Any], code: str
) -> None:
    """The caller is told; neighbours in the same group are committed; nothing else changes."""
    world.start(log)
    world.start(log, "run_b")
    append = Append(**{"run": "run_a", "expected": 1, "events": events(1, 2), **bad})
    fine = Append(run="run_b", expected=1, events=events(1, 2))
    by_append: dict[str, Exception | None] = {}

    async def both() -> None:
        results = await asyncio.gather(log.append(append), log.append(fine), return_exceptions=True)
        by_append.update(zip(("bad", "fine"), results, strict=True))  # type: ignore[arg-type]

    world.loop.run_until_complete(both())
    refusal = by_append["bad"]
    assert isinstance(refusal, StorageError)
    assert refusal.code == code
    assert str(refusal).isprintable()
    assert by_append["fine"] is None
    assert (log.version("run_a"), log.version("run_b")) == (1, 2)
    assert [row.run for row in log.rows()] == ["run_b", "run_a"]
    assert log.gates() == []


# ---------------------------------------------------------------------------------- blobs


@pytest.mark.parametrize("body", [b"", b"text", b"\x00\xff\xfe", b"x" * 5_000_000], ids=len)
def test_a_blob_is_found_by_its_hash(world: World, log: Log, body: bytes) -> None:
    """Any bytes come back."""
    world.append(
        log,
        Append(run="run_a", expected=0, events=events(1), headline=headline(), blobs={"h": body}),
    )
    assert log.blob("h") == body


def test_the_same_blob_may_come_again(world: World, log: Log) -> None:
    """Content is stored once: in one append, in a group, and in later ones, in any run."""
    world.start(log, "run_a")
    world.start(log, "run_b")
    answers = world.submit(
        log,
        [
            Append(run="run_a", expected=1, events=events(1), blobs={"h": b"one", "i": b"two"}),
            Append(run="run_b", expected=1, events=events(1), blobs={"h": b"one"}),
            Append(run="run_b", expected=2, events=events(1), blobs={"i": b"two"}),
        ],
    )
    assert answers == [None] * 3
    assert (log.blob("h"), log.blob("i")) == (b"one", b"two")


def test_a_refused_append_leaves_no_blob(world: World, log: Log) -> None:
    """Blobs are part of the append that brings them."""
    with pytest.raises(VersionConflict):
        world.append(log, Append(run="run_a", expected=1, events=events(1), blobs={"h": b"one"}))
    with pytest.raises(NotFound):
        log.blob("h")


# ------------------------------------------------------------------------------- headlines


def test_a_headline_is_what_the_last_append_said(world: World, log: Log) -> None:
    """Every field of a headline is kept; an append without one leaves it alone."""
    first = headline(
        "waiting",
        name="n",
        reason="r",
        dialect="d",
        workspace="w",
        started_at=1,
        updated_at=2,
        finished_at=3,
        wake_at=4,
        key="k",
    )
    world.append(log, Append(run="run_a", expected=0, events=events(1), headline=first))
    assert log.row("run_a").headline == first
    world.append(log, Append(run="run_a", expected=1, events=events(1)))
    assert (log.row("run_a").headline, log.row("run_a").version) == (first, 2)
    last = headline("completed", name="n2")
    world.append(log, Append(run="run_a", expected=2, events=events(1), headline=last))
    assert (log.row("run_a").headline, log.row("run_a").owner) == (last, None)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        pytest.param({}, ["d4", "c3", "c2", "b1", "a0"], id="all, newest first"),
        pytest.param({"limit": 2}, ["d4", "c3"], id="limit"),
        pytest.param({"limit": 0}, [], id="limit 0"),
        pytest.param({"limit": 99}, ["d4", "c3", "c2", "b1", "a0"], id="limit above"),
        pytest.param({"statuses": ["running"]}, ["d4", "a0"], id="one status"),
        pytest.param({"statuses": ["failed", "running"]}, ["d4", "b1", "a0"], id="two statuses"),
        pytest.param({"statuses": ["paused"]}, [], id="no such status"),
        pytest.param({"prefix": "c"}, ["c3", "c2"], id="prefix"),
        pytest.param({"prefix": "c3"}, ["c3"], id="whole id as prefix"),
        pytest.param({"prefix": "c33"}, [], id="longer than any"),
        pytest.param({"prefix": "c", "limit": 1}, ["c3"], id="prefix and limit"),
        pytest.param({"prefix": "c", "before": "c3"}, ["c2"], id="older than one"),
        pytest.param({"before": "nobody"}, [], id="older than nobody"),
        pytest.param({"before": "\0"}, [], id="older than what is no id"),
        pytest.param({"prefix": "c", "statuses": ["running"]}, [], id="prefix and status"),
    ],
)
def test_rows_are_chosen_and_ordered(
    world: World, log: Log, choice: dict[str, Any], expected: list[str]
) -> None:
    """Newest first whatever the ids and times are; filters may be combined."""
    statuses: list[RunStatus] = ["running", "failed", "completed", "waiting", "running"]
    for number, (run, status) in enumerate(
        zip(["a0", "b1", "c2", "c3", "d4"], statuses, strict=True)
    ):
        world.start(log, run, status=status, started_at=100 - number)
    assert [row.run for row in log.rows(**choice)] == expected


def test_a_row_knows_its_version(world: World, log: Log) -> None:
    """Lists and single rows show the number of the newest event."""
    world.start(log, "run_a", count=3)
    world.append(log, Append(run="run_a", expected=3, events=events(2)))
    world.start(log, "run_b", count=1)
    assert [(row.run, row.version) for row in log.rows()] == [("run_b", 1), ("run_a", 5)]
    assert log.row("run_a").version == 5


@pytest.mark.item("inv-16")
@pytest.mark.parametrize("status", ["running", "paused", "waiting"])
def test_one_open_run_has_a_key(world: World, log: Log, status: RunStatus) -> None:
    """A second open run of the same key is refused by the name of the first."""
    world.start(log, "run_a", key="assistant", status=status)
    with pytest.raises(Conflict) as refusal:
        world.start(log, "run_b", key="assistant")
    assert refusal.value.code == "key-taken"
    assert "run_a" in str(refusal.value)
    world.start(log, "run_b", key="other")
    world.start(log, "run_c")
    world.start(log, "run_d")
    assert [row.run for row in log.rows()] == ["run_d", "run_c", "run_b", "run_a"]


@pytest.mark.item("inv-16")
@pytest.mark.parametrize("status", ["completed", "exhausted", "failed", "cancelled"])
def test_a_finished_run_gives_its_key_back(world: World, log: Log, status: RunStatus) -> None:
    """The key of a run that ended is free, and the ended run cannot take it back."""
    world.start(log, "run_a", key="k")
    closing = Append(run="run_a", expected=1, events=events(1), headline=headline(status, key="k"))
    world.append(log, closing)
    world.start(log, "run_b", key="k")
    with pytest.raises(Conflict, match="run_b"):
        world.append(log, msgspec.structs.replace(closing, expected=2, headline=headline(key="k")))
    world.append(log, msgspec.structs.replace(closing, expected=2))


def test_a_run_keeps_its_own_key(world: World, log: Log) -> None:
    """A run that says its key again does not stand in its own way."""
    world.start(log, "run_a", key="k")
    world.append(
        log,
        Append(run="run_a", expected=1, events=events(1), headline=headline("paused", key="k")),
    )
    assert log.row("run_a").headline.status == "paused"


@pytest.mark.item("inv-16")
def test_of_two_runs_at_once_one_gets_the_key(world: World, log: Log) -> None:
    """Also when both are created in one group."""
    appends = [
        Append(run=run, expected=0, events=events(1), headline=headline(key="k"))
        for run in ("run_a", "run_b")
    ]
    first, second = world.submit(log, appends)
    assert first is None
    assert isinstance(second, Conflict)
    assert [row.run for row in log.rows()] == ["run_a"]


# ----------------------------------------------------------------------------------- gates


def test_gates_open_and_close(world: World, log: Log) -> None:
    """Open gates are listed oldest first, of all runs or of one, until an append closes them."""
    world.start(log, "run_a")
    world.start(log, "run_b")
    late, early, other = gate("g1", opened_at=9), gate("g2", opened_at=2), gate("g3", "run_b", 5)
    world.append(log, Append(run="run_a", expected=1, events=events(1), gates_opened=[late, early]))
    world.append(log, Append(run="run_b", expected=1, events=events(1), gates_opened=[other]))
    assert log.gates() == [early, other, late]
    assert log.gates("run_a") == [early, late]
    assert log.gates("run_b") == [other]
    world.append(log, Append(run="run_a", expected=2, events=events(1), gates_closed=[ended("g2")]))
    assert log.gates() == [other, late]


def test_gates_of_one_moment_keep_their_order(world: World, log: Log) -> None:
    """With equal times the one that was opened first comes first."""
    world.start(log)
    gates = [gate(name) for name in ("zeta", "alpha", "mid")]
    world.append(log, Append(run="run_a", expected=1, events=events(1), gates_opened=gates))
    assert log.gates() == gates


@pytest.mark.parametrize("closed", ["g", "unknown"])
def test_a_gate_is_closed_by_its_own_run_only(world: World, log: Log, closed: str) -> None:
    """Closing another run's gate, or one that is not open, does nothing."""
    world.start(log, "run_a")
    world.start(log, "run_b")
    world.append(log, Append(run="run_a", expected=1, events=events(1), gates_opened=[gate("g")]))
    world.append(
        log, Append(run="run_b", expected=1, events=events(1), gates_closed=[ended(closed)])
    )
    assert log.gates() == [gate("g")]


def test_two_runs_cannot_open_the_same_gate(world: World, log: Log) -> None:
    """The id of an open gate is unique; the run that has it may say it again."""
    world.start(log, "run_a")
    world.start(log, "run_b")
    world.append(log, Append(run="run_a", expected=1, events=events(1), gates_opened=[gate("g")]))
    with pytest.raises(Conflict) as refusal:
        world.append(
            log,
            Append(run="run_b", expected=1, events=events(1), gates_opened=[gate("g", "run_b")]),
        )
    assert refusal.value.code == "gate-taken"
    again = replace(gate("g"), message="once more?")
    world.append(log, Append(run="run_a", expected=2, events=events(1), gates_opened=[again]))
    assert log.gates() == [again]


def test_a_gate_opened_and_closed_at_once_is_closed(world: World, log: Log) -> None:
    """Within an append opening comes before closing."""
    world.start(log)
    world.append(
        log,
        Append(
            run="run_a",
            expected=1,
            events=events(1),
            gates_opened=[gate("g")],
            gates_closed=[ended("g")],
        ),
    )
    assert log.gates() == []


@pytest.mark.item("inv-6")
def test_a_refused_append_changes_no_gate(world: World, log: Log) -> None:
    """Gates are part of the append that changes them."""
    world.start(log)
    world.append(log, Append(run="run_a", expected=1, events=events(1), gates_opened=[gate("g")]))
    with pytest.raises(VersionConflict):
        world.append(
            log,
            Append(
                run="run_a",
                expected=1,
                events=events(1),
                gates_opened=[gate("h")],
                gates_closed=[ended("g")],
            ),
        )
    assert log.gates() == [gate("g")]


def test_gates_are_found_by_the_beginning_of_their_ids(world: World, log: Log) -> None:
    """Open gates come first; a closed gate stays with its decision, also one that was closed by the
    append that opened it.
    """
    world.start(log)
    gates = [gate("ga"), gate("gb"), gate("h")]
    world.append(log, Append(run="run_a", expected=1, events=events(1), gates_opened=gates))
    both = Append(
        run="run_a",
        expected=2,
        events=events(1),
        gates_opened=[gate("gc")],
        gates_closed=[ended("ga"), ended("gc", decision="")],
    )
    world.append(log, both)
    assert log.find_gates("g", 9) == [gate("gb"), ended("ga"), ended("gc", decision="")]
    assert log.find_gates("g", 1) == [gate("gb")]
    assert log.find_gates("ga", 9) == [ended("ga")]
    assert log.find_gates("other", 9) == []
    assert log.find_gates(LONE, 9) == []
    assert log.row("run_a").gates == 2


def test_a_gate_that_opens_again_is_open(world: World, log: Log) -> None:
    """The question of an effect has the same id after a restart."""
    world.start(log)
    world.append(log, Append(run="run_a", expected=1, events=events(1), gates_opened=[gate("g")]))
    world.append(log, Append(run="run_a", expected=2, events=events(1), gates_closed=[ended("g")]))
    world.append(log, Append(run="run_a", expected=3, events=events(1), gates_opened=[gate("g")]))
    assert log.find_gates("g", 9) == [gate("g")]
    assert log.gates() == [gate("g")]


def test_a_gate_keeps_what_it_is_about(world: World, log: Log) -> None:
    """The tool call and the snapshot of a gate are part of its row."""
    world.start(log)
    call = AskedCall(id="c", tool="rm", arguments=Blob(blob="h", size=3), held="it deletes")
    about = replace(gate("g"), subject=GateSubject(call=call, snapshot=Snapshot(tree="t")))
    world.append(log, Append(run="run_a", expected=1, events=events(1), gates_opened=[about]))
    assert log.gates() == [about]


# ------------------------------------------------------------------------------ what lists show

FIGURES = ListedFigures(3, 9, True, 10, 20, 0.5, 1, "rate limited", ("tree", 1, 2, 3))
DETAILS = RunDetails(
    worktree=Worktree(repository="/r", folder="/f", branch="b", base="c"), titles={"a": "sh"}
)


def test_a_row_has_the_figures_of_its_newest_events(world: World, log: Log) -> None:
    """Figures stay until an append has others; the details are those of the first append."""
    first = Append(
        run="run_a",
        expected=0,
        events=events(1),
        headline=headline(),
        figures=encode_figures(FIGURES),
        details=DETAILS,
    )
    world.append(log, first)
    assert (log.row("run_a").figures, log.row("run_a").details) == (FIGURES, DETAILS)
    world.append(log, Append(run="run_a", expected=1, events=events(1)))
    world.append(log, Append(run="run_a", expected=2, events=[], headline=headline("waiting")))
    again = world.open()
    world.append(again, Append(run="run_a", expected=2, events=events(1)))
    assert again.row("run_a").figures == FIGURES
    more = msgspec.structs.replace(FIGURES, iterations=4)
    world.append(
        again, Append(run="run_a", expected=3, events=events(1), figures=encode_figures(more))
    )
    [row] = log.rows()
    assert (row.figures, row.details, row.version) == (more, DETAILS, 4)


def test_the_listing_of_a_run_is_replaced(world: World, log: Log) -> None:
    """Everything that lists show of a run is stored, unless the run has changed since."""
    world.start(log)
    listing = RunListing(
        version=1,
        headline=replace(headline(), labels=("l",), surface="chat"),
        figures=FIGURES,
        details=DETAILS,
        usage=[UsageRow(run="run_a", agent="a", day=1, calls=2, usage=Usage(1, 2, 0.5))],
        open_gates=[gate("g")],
        closed_gates=[ended("h")],
    )
    log.replace_listing("run_a", replace(listing, version=2))
    assert log.row("run_a").figures is None
    log.replace_listing("run_a", listing)
    log.replace_listing("run_a", listing)
    row = log.row("run_a")
    assert (row.figures, row.details, row.gates) == (FIGURES, DETAILS, 1)
    assert (row.headline.labels, row.headline.surface) == (("l",), "chat")
    assert log.usage() == listing.usage
    assert [log.find_gates(one, 9) for one in "gh"] == [[gate("g")], [ended("h")]]
    assert log.unlisted() == []
    with pytest.raises(NotFound):
        log.replace_listing("run_b", listing)


def test_the_end_of_a_run_is_checked_without_its_beginning(world: World, log: Log) -> None:
    """A whole run passes; one that does not exist is named."""
    world.start(log)
    world.append(log, Append(run="run_a", expected=1, events=events(2)))
    log.check_end("run_a")
    with pytest.raises(NotFound):
        log.check_end("run_b")


# -------------------------------------------------------------------------------- ownership


def test_a_free_run_is_taken(world: World, log: Log) -> None:
    """A claim answers None for what is ours now, and the row shows the owner."""
    world.start(log)
    me = owner("me")
    assert log.claim(["run_a"], me) == {"run_a": None}
    assert log.row("run_a").owner == me
    assert log.rows()[0].owner == me


def test_a_living_owner_keeps_its_runs(world: World, log: Log) -> None:
    """A second driver is refused by the name of the first, run by run."""
    world.start(log, "run_a")
    world.start(log, "run_b")
    other = world.open()
    first, second = owner("first"), owner("second", pid=11)
    log.claim(["run_a"], first)
    assert other.claim(["run_a", "run_b"], second) == {"run_a": first, "run_b": None}
    assert (log.row("run_a").owner, log.row("run_b").owner) == (first, second)


def test_nobody_keeps_what_has_ended(world: World, log: Log) -> None:
    """Whoever reopens a run may claim it, although the one who ended it lives; then it is kept."""
    world.start(log)
    first, second = owner("one"), owner("two", pid=11)
    log.claim(["run_a"], first)
    end = Append(run="run_a", expected=1, events=events(1), headline=headline("failed"))
    world.append(log, end)
    assert log.claim(["run_a"], second) == {"run_a": None}
    assert log.row("run_a").owner == second


def test_claiming_again_is_fine(world: World, log: Log) -> None:
    """What is ours is ours, also the second time and if it is named twice."""
    world.start(log)
    me = owner("me")
    for _ in range(2):
        assert log.claim(["run_a", "run_a"], me) == {"run_a": None}


@pytest.mark.item("inv-7")
def test_a_dead_owner_is_replaced(world: World, log: Log) -> None:
    """The runs of a process that is gone are taken over, and its fence no longer opens."""
    world.start(log)
    gone, new = owner("gone"), owner("new")
    log.claim(["run_a"], gone)
    world.dead.add("gone")
    assert world.open().claim(["run_a"], new) == {"run_a": None}
    with pytest.raises(Conflict) as refusal:
        world.append(log, Append(run="run_a", expected=1, events=events(1), token="gone"))
    assert refusal.value.code == "fenced"
    world.append(log, Append(run="run_a", expected=1, events=events(1), token="new"))


def test_the_same_process_with_another_token_is_another_owner(world: World, log: Log) -> None:
    """Two drivers inside one process do not share runs."""
    world.start(log)
    log.claim(["run_a"], owner("one"))
    assert log.claim(["run_a"], owner("two")) == {"run_a": owner("one")}


def test_a_run_is_transferred_with_its_token(world: World, log: Log) -> None:
    """A process that was given the token of a living owner takes its runs; from then on it is the
    owner.
    """
    world.start(log)
    first, heir, other = owner("shared"), owner("shared", pid=11), owner("other", pid=12)
    log.claim(["run_a"], first)
    assert world.open().claim(["run_a"], heir) == {"run_a": None}
    assert log.row("run_a").owner == heir
    assert log.claim(["run_a"], other) == {"run_a": heir}


def test_release_gives_back_what_is_ours(world: World, log: Log) -> None:
    """Released runs are free; others, and unknown ones, are left alone."""
    world.start(log, "run_a")
    world.start(log, "run_b")
    me, other = owner("me"), owner("other")
    log.claim(["run_a"], me)
    log.claim(["run_b"], other)
    log.release(["run_a", "run_b", "run_x", "run_\ud800"], me)
    assert (log.row("run_a").owner, log.row("run_b").owner) == (None, other)
    assert log.claim(["run_a"], other) == {"run_a": None}


@pytest.mark.parametrize("name", ["run_x", "", "run_\ud800"])
def test_claiming_what_does_not_exist_takes_nothing(world: World, log: Log, name: str) -> None:
    """One unknown run and the whole claim is refused."""
    world.start(log)
    with pytest.raises(NotFound):
        log.claim(["run_a", name], owner("me"))
    assert log.row("run_a").owner is None
    assert log.claim([], owner("me")) == {}


def test_many_runs_are_claimed_at_once(world: World, log: Log) -> None:
    """A thousand runs of a dead owner are taken over; whether it lives is asked once."""
    runs = [f"run_{number}" for number in range(1_000)]
    world.submit(
        log, [Append(run=run, expected=0, events=events(1), headline=headline()) for run in runs]
    )
    log.claim(runs, owner("gone"))
    world.dead.add("gone")
    asked: list[str] = []

    class Counted(set[str]):
        def __contains__(self, token: object) -> bool:
            asked.append(str(token))
            return super().__contains__(token)

    world.dead = Counted(world.dead)
    assert set(log.claim(runs, owner("new")).values()) == {None}
    assert asked == ["gone"]
    assert {row.owner for row in log.rows()} == {owner("new")}


@pytest.mark.item("inv-7")
@pytest.mark.parametrize(
    ("held_by", "token", "accepted"),
    [
        pytest.param("me", "me", True, id="the owner"),
        pytest.param("me", None, True, id="a caller who does not drive"),
        pytest.param("me", "other", False, id="another driver"),
        pytest.param(None, "me", False, id="a driver of a free run"),
        pytest.param(None, None, True, id="a caller, free run"),
    ],
)
def test_the_fence(
    world: World, log: Log, held_by: str | None, token: str | None, accepted: bool
) -> None:
    """An append with a token passes only while the run has that owner."""
    world.start(log)
    if held_by:
        log.claim(["run_a"], owner(held_by))
    append = Append(run="run_a", expected=1, events=events(1), token=token)
    if accepted:
        world.append(log, append)
    else:
        with pytest.raises(Conflict, match="driven by another"):
            world.append(log, append)
    assert log.version("run_a") == (2 if accepted else 1)


@pytest.mark.item("inv-7")
def test_a_released_run_is_fenced(world: World, log: Log) -> None:
    """Who gave a run back, here or in another process, does not write to it any more."""
    world.start(log)
    other = world.open()
    for releaser in (log, other):
        log.claim(["run_a"], owner("me"))
        releaser.release(["run_a"], owner("me"))
        with pytest.raises(Conflict) as refusal:
            world.append(log, Append(run="run_a", expected=1, events=events(1), token="me"))
        assert refusal.value.code == "fenced"


def test_the_fence_is_reported_before_the_version(world: World, log: Log) -> None:
    """A driver that lost its run must not mistake that for a chance to try again."""
    world.start(log, count=3)
    with pytest.raises(Conflict) as refusal:
        world.append(log, Append(run="run_a", expected=1, events=events(1), token="me"))
    assert refusal.value.code == "fenced"


def test_a_claim_comes_after_what_was_submitted_before(world: World, log: Log) -> None:
    """A run that was submitted but not yet told can be claimed."""
    told: list[Exception | None] = []

    async def submit_and_claim() -> None:
        append = Append(run="run_a", expected=0, events=events(1), headline=headline())
        log.submit(append, told.append)
        assert log.claim(["run_a"], owner("me")) == {"run_a": None}

    world.loop.run_until_complete(submit_and_claim())
    world.append(log, Append(run="run_a", expected=1, events=events(1), token="me"))
    assert told == [None]


# ------------------------------------------------------------------- other processes, watching


def later(world: World, log: Log) -> bool:
    """What `changed` says when everything handed to the log is done."""
    world.barrier(log)
    return log.changed()


def test_another_process_sees_what_is_committed(world: World, log: Log) -> None:
    """Reads are never behind what was told as durable."""
    other = world.open()
    world.start(log)
    assert other.version("run_a") == 1
    for at in range(1, 20):
        world.append(log, Append(run="run_a", expected=at, events=events(1, at + 1)))
        assert other.version("run_a") == at + 1
        assert texts(other.read("run_a", at)) == [str(at + 1)]


def test_changed_reports_of_others_writes(world: World, log: Log) -> None:
    """Once after another process wrote, then no more."""
    other = world.open()
    assert not log.changed()
    world.start(other)
    assert log.changed()
    assert not log.changed()
    other.claim(["run_a"], owner("me"))
    assert log.changed()
    assert not log.changed()


def test_own_writes_are_no_change(world: World, log: Log) -> None:
    """A process that is alone is never told of a change."""
    for number in range(5):
        world.start(log, f"run_{number}")
        assert not log.changed()
        world.barrier(log)
        assert not log.changed()


def test_changed_reports_of_others_while_this_writes_too(world: World, log: Log) -> None:
    """Writes of others are not lost among one's own, whichever comes first."""
    other = world.open()
    world.start(log, "run_a")
    world.start(other, "run_b")
    assert log.changed() or later(world, log)
    world.start(other, "run_c")
    world.start(log, "run_d")
    assert log.changed() or later(world, log)
    world.barrier(log)
    assert not log.changed()


def test_a_watcher_receives_run_and_version(world: World, log: Log) -> None:
    """After each append, in order, in the loop's thread; refused ones and others' are not told."""
    seen: list[tuple[str, int]] = []
    stop = log.subscribe(lambda run, version: seen.append((run, version)))
    world.start(log, "run_a", count=2)
    world.submit(
        log,
        [
            Append(run="run_a", expected=2, events=events(1)),
            Append(run="run_a", expected=2, events=events(1)),
            Append(run="run_b", expected=0, events=events(3), headline=headline()),
            Append(run="run_a", expected=3, events=(), headline=headline("paused")),
        ],
    )
    assert seen == [("run_a", 2), ("run_a", 3), ("run_b", 3)]
    stop()
    stop()
    world.append(log, Append(run="run_a", expected=3, events=events(1)))
    assert len(seen) == 3


def test_a_watcher_reads_what_it_is_reported_of(world: World, log: Log) -> None:
    """When the watcher is called the events can be read; two watchers are both told."""
    seen: list[list[str]] = []
    for _ in range(2):
        log.subscribe(lambda run, version: seen.append(texts(log.read(run, version - 1))))
    world.start(log, count=2)
    assert seen == [["2"], ["2"]]


def test_a_failing_callback_keeps_nobody_from_being_notified(world: World, log: Log) -> None:
    """Everyone else in the group hears, and the loop is told of the failure."""
    failures: list[dict[str, Any]] = []
    world.loop.set_exception_handler(lambda _loop, context: failures.append(context))
    told: list[str] = []

    def fail(_error: Exception | None) -> None:
        raise ValueError("callback")

    second = asyncio.Event()

    def note(text: str) -> None:
        told.append(text)
        second.set()

    async def submit() -> None:
        log.submit(Append(run="run_a", expected=0, events=events(1), headline=headline()), fail)
        log.submit(
            Append(run="run_b", expected=0, events=events(1), headline=headline()),
            lambda error: note(repr(error)),
        )
        await second.wait()

    log.subscribe(lambda run, _version: told.append(run))
    world.loop.run_until_complete(submit())
    world.loop.run_until_complete(asyncio.sleep(0))
    assert told == ["run_a", "None", "run_b"]
    assert [type(one["exception"]) for one in failures] == [ExceptionGroup]


# ------------------------------------------------------------------------------ verify, close


@pytest.mark.item("inv-21")
def test_verify_finds_missing_content(world: World, log: Log) -> None:
    """Blobs that events name must be stored, have the stated size, and the plan must be there."""
    started = RunStarted(at=1, run="run_a", plan="plan", name="n", message=Blob("msg", 4))
    world.append(
        log,
        Append(
            run="run_a",
            expected=0,
            events=[started],
            headline=headline(),
            blobs={"plan": b"{}", "msg": b"four"},
        ),
    )
    assert log.verify("run_a") == []
    done = EffectDone(at=2, path="x", effect="x/agent#1", output=Blob("gone", 9))
    short = EffectDone(at=2, path="x", effect="x/agent#2", result=Blob("msg", 5))
    world.append(log, Append(run="run_a", expected=1, events=[done, short]))
    missing, wrong = log.verify("run_a")
    assert "gone" in missing
    assert "msg has 4 bytes, the event says 5" in wrong
    assert any("plan is not what its name says" in one for one in log.verify("run_a", digest=str))


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda log: log.read("run_a"), id="read"),
        pytest.param(lambda log: log.version("run_a"), id="version"),
        pytest.param(lambda log: log.row("run_a"), id="row"),
        pytest.param(lambda log: log.rows(), id="rows"),
        pytest.param(lambda log: log.gates(), id="gates"),
        pytest.param(lambda log: log.blob("h"), id="blob"),
        pytest.param(lambda log: log.claim(["run_a"], owner("me")), id="claim"),
        pytest.param(lambda log: log.release(["run_a"], owner("me")), id="release"),
        pytest.param(lambda log: log.changed(), id="changed"),
        pytest.param(lambda log: log.verify("run_a"), id="verify"),
    ],
)
def test_a_closed_log_answers_nothing(world: World, log: Log, call: Any) -> None:
    """Every call fails with a clear error; closing again is fine."""
    world.start(log)
    log.close()
    log.close()
    with pytest.raises(StorageError) as refusal:
        call(log)
    assert refusal.value.code == "closed"
    with pytest.raises(StorageError, match="closed"):
        world.append(log, Append(run="run_a", expected=1, events=events(1)))


def test_closing_writes_what_waits(world: World, log: Log) -> None:
    """Everything submitted before is committed, and told if the loop goes on."""
    world.start(log)
    told: list[Exception | None] = []

    async def submit_and_close() -> None:
        for at in range(1, 51):
            log.submit(Append(run="run_a", expected=at, events=events(1)), told.append)
        log.close()

    world.loop.run_until_complete(submit_and_close())
    world.loop.run_until_complete(asyncio.sleep(0))
    assert told == [None] * 50
    assert world.open().version("run_a") == 51


def test_data_outlives_the_log(world: World, log: Log) -> None:
    """What was there at closing is there at opening."""
    world.append(
        log,
        Append(
            run="run_a",
            expected=0,
            events=events(3),
            headline=headline("waiting", key="k"),
            blobs={"h": b"body"},
            gates_opened=[gate("g")],
        ),
    )
    log.claim(["run_a"], owner("me"))
    before = (log.read("run_a"), log.row("run_a"), log.gates(), log.blob("h"))
    log.close()
    again = world.open()
    assert (again.read("run_a"), again.row("run_a"), again.gates(), again.blob("h")) == before
    world.append(again, Append(run="run_a", expected=3, events=events(1), token="me"))
    assert again.verify("run_a") == []


def test_an_error_is_of_the_family(world: World, log: Log) -> None:
    """Whatever a store refuses is a LoopwrightError with a code."""
    world.start(log)
    answers = world.submit(
        log,
        [
            Append(run="run_a", expected=9, events=events(1)),
            Append(run="run_a", expected=1, events=events(1), token="x"),
        ],
    )
    for answer in answers:
        assert isinstance(answer, LoopwrightError)
        assert answer.code != LoopwrightError.code


def test_nudges_name_what_was_written_since(world: World, log: Log) -> None:
    """Each run that was written to since a cursor is named once; the cursor 0 means from now on."""
    world.start(log, "run_a")
    nothing, cursor = log.nudges(0)
    assert nothing == []
    other = world.open()
    world.start(other, "run_b")
    world.append(other, Append(run="run_a", expected=1, events=events(2)))
    world.append(other, Append(run="run_b", expected=1, events=events(1)))
    named, cursor = log.nudges(cursor)
    assert sorted(named) == ["run_a", "run_b"]
    assert log.nudges(cursor) == ([], cursor)


def test_a_cursor_taken_from_an_empty_log_misses_nothing(world: World, log: Log) -> None:
    """The first append ever comes after a cursor that was taken before it."""
    _, cursor = log.nudges(0)
    world.start(log, "run_a")
    assert log.nudges(cursor)[0] == ["run_a"]


def test_a_run_may_be_created_with_its_owner(world: World, log: Log) -> None:
    """The owner named with the first append drives the run from the start, and nobody else."""
    mine, other = owner("mine"), owner("other", pid=11)
    world.append(
        log, Append(run="run_a", expected=0, events=events(1), headline=headline(), owner=mine)
    )
    assert log.row("run_a").owner == mine
    assert log.claim(["run_a"], other) == {"run_a": mine}
    world.append(log, Append(run="run_a", expected=1, events=events(1), token="mine"))
    with pytest.raises(Conflict, match="run_a"):
        world.append(log, Append(run="run_a", expected=2, events=events(1), token="other"))
