"""The live bus: everyone hears, nobody is harmed."""

from loopwright.engine.activity import LiveBus
from loopwright.ports import Delta

DELTA = Delta(run="r", effect="e", kind="text", text="hello")


def test_every_listener_hears() -> None:
    """A delta reaches all who listen, in order; without listeners it is gone."""
    bus, heard = LiveBus(), list[tuple[int, Delta]]()
    bus.publish(DELTA)
    for number in (1, 2):
        bus.listen(lambda delta, number=number: heard.append((number, delta)))
    bus.publish(DELTA)
    assert heard == [(1, DELTA), (2, DELTA)]


def test_a_listener_may_leave_twice() -> None:
    """After leaving nothing is heard, and leaving again does nothing."""
    bus, heard = LiveBus(), list[Delta]()
    stop = bus.listen(heard.append)
    stop()
    stop()
    bus.publish(DELTA)
    assert heard == []


def test_a_broken_listener_is_dropped() -> None:
    """A view that raises harms neither the publisher nor the others, and is not called again."""
    bus, heard, calls = LiveBus(), list[Delta](), list[int]()

    def broken(delta: Delta) -> None:
        calls.append(1)
        raise RuntimeError("no terminal")

    bus.listen(broken)
    bus.listen(heard.append)
    bus.publish(DELTA)
    bus.publish(DELTA)
    assert (len(calls), heard) == (1, [DELTA, DELTA])


def test_a_listener_may_leave_and_break_at_once() -> None:
    """A view that leaves while it is told, and raises too, harms nobody."""
    bus, heard = LiveBus(), list[Delta]()
    stops = []

    def leaves(delta: Delta) -> None:
        stops[0]()
        raise RuntimeError("gone")

    stops.append(bus.listen(leaves))
    bus.listen(heard.append)
    bus.publish(DELTA)
    assert heard == [DELTA]
