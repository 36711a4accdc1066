"""Background tasks that survive errors, and the server's log.

The log has one JSON object per line on stderr, with secrets removed.
"""

import json
import logging
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from loopwright.errors import StorageError
from loopwright.kernel.event_parts import MASK, mask_text
from loopwright.views.event_records import timestamp

NAME = "loopwright.server"
LOWER = "uvicorn.error"  # the HTTP library: invalid requests
LOWEST = "asyncio"
WRONG = logging.WARNING
SELDOM_S = 10.0
_OWN = re.compile(r"lwt_[0-9a-f]+_[\w-]+")
_FIELDS = ("request", "method", "path", "status", "ms", "who")


class JsonLogFormatter(logging.Formatter):
    """A record as one line; text that looks like a secret is masked here, at the last moment."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "at": timestamp(int(record.created * 1_000)),
            "level": record.levelname.lower(),
            "message": redacted(record.getMessage()),
        }
        for name in _FIELDS:
            value = record.__dict__.get(name)
            if value is not None:
                entry[name] = redacted(value) if isinstance(value, str) else value
        if record.exc_info:
            entry["trace"] = redacted(self.formatException(record.exc_info))
        return json.dumps(entry)


class Seldom(logging.Filter):
    """The library repeats the same message thousands of times per second; it is logged once in a
    while.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last_message: tuple[str, float] = ("", 0.0)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == NAME:
            return True
        last, at = self._last_message
        if last == record.getMessage() and 0 <= record.created - at < SELDOM_S:
            return False
        self._last_message = (record.getMessage(), record.created)
        return True


def redacted(text: str) -> str:
    return mask_text(_OWN.sub(MASK, text))


def log_to(stream: TextIO | None = None, *, requests: bool) -> None:
    """Send the log of the server to a stream: problems, and with `requests` every request."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLogFormatter())
    handler.addFilter(Seldom())
    own = logging.INFO if requests else WRONG
    for name, level in ((NAME, own), (LOWER, WRONG), (LOWEST, WRONG)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level)


_LOG = logging.getLogger(NAME)
QUIET_SECONDS = 60.0


class BackgroundTask:
    """Rounds of background work. A disk that fails may recover, and is reported separately; any
    other error is a defect: it is logged, not in every round, and the next round follows.
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
                _LOG.exception("%s failed; it is started again", self._what)
