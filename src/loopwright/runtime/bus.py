"""The live bus: what agents say right now, to whoever listens. Nothing here is kept."""

from collections.abc import Callable

from loopwright.ports import Delta


class LiveBus:
    """Hands deltas to listeners in the same thread; a listener that fails is dropped."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[Delta], None]] = []

    def publish(self, delta: Delta) -> None:
        for listener in list(self._listeners):
            try:
                listener(delta)
            except Exception:  # a broken view must never harm a run
                self._take_away(listener)

    def listen(self, listener: Callable[[Delta], None]) -> Callable[[], None]:
        """Add a listener; the answer takes it away."""
        self._listeners.append(listener)

        return lambda: self._take_away(listener)

    def _take_away(self, listener: Callable[[Delta], None]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)
