"""How many requests of one caller are served in a time."""

from collections import OrderedDict
from collections.abc import Mapping

from loopwright.errors import LoopwrightError
from loopwright.ports import Clock

MOST_KNOWN = 10_000


class TooManyRequests(LoopwrightError):
    """A caller has to wait; `headers` tell programs for how long."""

    code = "too-many-requests"

    def __init__(
        self, message: str, *, headers: Mapping[str, str], code: str = "too-many-requests"
    ) -> None:
        super().__init__(message, code=code)
        self.headers = dict(headers)


class Rates:
    """A bucket for each name: `most` at once, and as many again in every `window_ms`."""

    def __init__(self, clock: Clock, most: int, window_ms: int = 1_000) -> None:
        self._clock = clock
        self._most = float(most)
        self._window_ms = window_ms
        self._left: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def count(self, name: str) -> None:
        """Count one; TooManyRequests when the bucket is empty."""
        left, now = self._filled(name)
        if left < 1:
            self._left[name] = (left, now)
            wait_s = max(1, round((1 - left) * self._window_ms / self._most / 1_000 + 0.5))
            raise TooManyRequests(
                f"too many requests; wait {wait_s} s",
                headers={"Retry-After": str(wait_s), **self._fields(wait_s)},
            )
        self._left[name] = (left - 1, now)
        self._left.move_to_end(name)
        while len(self._left) > MOST_KNOWN:  # not all at once: no client can use up the whole limit
            self._left.popitem(last=False)

    def has_left(self, name: str) -> bool:
        """Whether one more would be counted."""
        return self._filled(name)[0] >= 1

    def _filled(self, name: str) -> tuple[float, int]:
        """What is left in a bucket now, and when that is."""
        now = self._clock.now_ms()
        left, then = self._left.get(name, (self._most, now))
        return min(self._most, left + max(now - then, 0) * self._most / self._window_ms), now

    def _fields(self, wait_s: int) -> dict[str, str]:
        """What programs read: nothing is left until then, of so many in a time."""
        window_s = max(1, round(self._window_ms / 1_000))
        return {
            "RateLimit": f'"requests";r=0;t={wait_s}',
            "RateLimit-Policy": f'"requests";q={self._most:.0f};w={window_s}',
        }
