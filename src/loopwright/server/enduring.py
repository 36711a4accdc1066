"""Work that goes on for as long as the server lives, whatever goes wrong in one round of it."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from loopwright.errors import StorageError
from loopwright.server.logs import NAME

_LOG = logging.getLogger(NAME)
QUIET_SECONDS = 60.0


class Enduring:
    """Rounds of such work. A disk that fails may come back, and has its own ways to be seen;
    anything else is a defect: it is logged, not by every round, and the next one is made.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._quiet_until = 0.0

    @contextmanager
    def round(self) -> Iterator[None]:
        try:
            yield
        except StorageError:
            return
        except Exception:
            if time.monotonic() >= self._quiet_until:
                self._quiet_until = time.monotonic() + QUIET_SECONDS
                _LOG.exception("%s failed; it goes on", self._what)
