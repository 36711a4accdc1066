"""The real clock: timers by the event loop, measured against the wall clock."""

import asyncio
import time

import pytest

from loopwright.engine import services as clock_module
from loopwright.engine.services import SystemClock
from tests.engine.world import run


def test_now_is_the_wall_clock() -> None:
    """Times are whole milliseconds since the epoch."""
    before = int(time.time() * 1_000)
    assert before - 1 <= SystemClock().now_ms() <= before + 5_000


@pytest.mark.parametrize("due", [-10_000, 0, 30], ids=["past", "now", "soon"])
def test_a_timer_fires_once_and_never_early(due: int) -> None:
    """What is due runs at or after its time, also when that time has long passed."""

    async def body() -> None:
        clock, fired = SystemClock(), asyncio.Event()
        times: list[int] = []

        def action() -> None:
            times.append(clock.now_ms())
            fired.set()

        when = clock.now_ms() + due
        clock.call_at(when, action)
        assert times == []
        await fired.wait()
        await asyncio.sleep(0)
        assert len(times) == 1
        assert times[0] >= when

    run(body())


def test_a_cancelled_timer_does_not_fire() -> None:
    """A timer can be taken back, before and after its first look."""

    async def body() -> None:
        clock, fired = SystemClock(), list[str]()
        early = clock.call_at(clock.now_ms() + 20, lambda: fired.append("early"))
        early()
        late = clock.call_at(clock.now_ms() + 20, lambda: fired.append("late"))
        await asyncio.sleep(0)
        late()
        last = asyncio.Event()
        clock.call_at(clock.now_ms() + 40, last.set)
        await last.wait()
        assert fired == []

    run(body())


class SetClock(SystemClock):
    """A wall clock that somebody sets."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def now_ms(self) -> int:
        return self.now


def test_a_clock_set_forward_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer far away fires soon after the wall clock has jumped past it."""
    monkeypatch.setattr(clock_module, "LONGEST_NAP_S", 0.01)

    async def body() -> None:
        clock, fired = SetClock(), asyncio.Event()
        clock.call_at(clock.now + 3_600_000, fired.set)
        await asyncio.sleep(0)
        clock.now += 3_600_000
        await fired.wait()

    run(body())


def test_a_clock_set_back_fires_nothing_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the wall clock goes back, a timer waits until its own time comes again."""
    monkeypatch.setattr(clock_module, "LONGEST_NAP_S", 0.005)

    async def body() -> None:
        clock, fired = SetClock(), asyncio.Event()
        clock.call_at(clock.now + 5, fired.set)
        clock.now -= 3_600_000
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(fired.wait(), 0.05)
        clock.now += 3_600_005
        await fired.wait()

    run(body())


class Hands:
    """A wall clock and a steady one, moved by the test."""

    def __init__(self) -> None:
        self.wall, self.steady = 1_000_000_000, 5_000

    def pass_by(self, ms: int) -> None:
        self.wall += ms
        self.steady += ms

    def clock(self) -> SystemClock:
        return SystemClock(lambda: self.wall, lambda: self.steady)


YEAR_MS = 365 * 86_400_000


@pytest.mark.item("J9")
@pytest.mark.parametrize("jump", [YEAR_MS, -YEAR_MS, 120_000, -120_000])
def test_a_jump_of_the_wall_clock_is_no_time_that_passed(jump: int) -> None:
    """Durations stay right over a jump, which can be asked about; set back, the jump is over."""
    hands = Hands()
    clock = hands.clock()
    began = clock.now_ms()
    hands.pass_by(3_000)
    hands.wall += jump
    hands.pass_by(2_000)
    assert clock.now_ms() - began == 5_000
    assert clock.jump_ms() == jump
    hands.wall -= jump
    assert clock.jump_ms() == 0
    assert clock.now_ms() == hands.wall


def test_a_small_correction_is_followed() -> None:
    """A clock that is corrected by seconds is right afterwards."""
    hands = Hands()
    clock = hands.clock()
    for step in (3_000, -2_000, 59_000):
        hands.wall += step
        assert clock.now_ms() == hands.wall
        assert clock.jump_ms() == 0


@pytest.mark.item("J9")
def test_a_timer_does_not_jump_with_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of an hour is not over because the wall clock was set to the next year."""
    monkeypatch.setattr(clock_module, "LONGEST_NAP_S", 0.005)

    async def body() -> None:
        hands = Hands()
        clock, fired = hands.clock(), asyncio.Event()
        clock.call_at(clock.now_ms() + 3_600_000, fired.set)
        hands.wall += YEAR_MS
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(fired.wait(), 0.03)
        hands.pass_by(3_600_000)
        await fired.wait()

    run(body())
