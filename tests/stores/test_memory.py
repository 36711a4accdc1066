"""What the log in memory can do beyond the contract: simulate the order of things, and crashes."""

from collections import deque
from collections.abc import Callable

from loopwright.ports import Append
from tests.contracts.event_log_suite import events, headline, owner
from tests.support.memory_log import MemoryLog, MemoryStore


def start(run: str = "run_a") -> Append:
    return Append(run=run, expected=0, events=events(1), headline=headline())


def test_without_an_event_loop() -> None:
    """With a `deliver` that calls at once, an append is committed and told before it returns."""
    log = MemoryLog(alive=lambda _: True, deliver=lambda call: call())
    told: list[Exception | None] = []
    log.submit(start(), told.append)
    log.submit(start(), told.append)
    assert [getattr(answer, "code", None) for answer in told] == [None, "version-conflict"]
    assert log.version("run_a") == 1


def test_a_crash_may_come_before_the_commit_or_after_it() -> None:
    """An append is delivered twice: first it is committed, then it is told."""
    store = MemoryStore()
    later: deque[Callable[[], None]] = deque()
    told: list[Exception | None] = []
    log = MemoryLog(alive=lambda _: True, store=store, deliver=later.append)
    log.submit(start("run_a"), told.append)
    log.submit(start("run_b"), told.append)
    assert store.runs == {}
    later.popleft()()
    assert list(store.runs) == ["run_a"]
    assert told == []
    later.clear()  # the crash: run_a was committed and never told, run_b was not committed
    after = MemoryLog(alive=lambda _: True, store=store, deliver=lambda call: call())
    assert [row.run for row in after.rows()] == ["run_a"]
    after.submit(start("run_a"), told.append)
    assert [getattr(answer, "code", None) for answer in told] == ["version-conflict"]


def test_two_logs_over_one_store_are_two_processes() -> None:
    """They see each other's writes, as changes of somebody else."""
    store = MemoryStore()
    first, second = (
        MemoryLog(alive=lambda _: True, store=store, deliver=lambda call: call()) for _ in range(2)
    )
    first.submit(start(), lambda _: None)
    assert (first.changed(), second.changed(), second.changed()) == (False, True, False)
    assert second.claim(["run_a"], owner("me")) == {"run_a": None}
    assert first.row("run_a").owner == owner("me")
