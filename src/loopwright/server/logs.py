"""The server's own log: one JSON object for each line on stderr, with secrets taken out."""

import json
import logging
import re
import sys
from typing import TextIO

from loopwright.app.moments import timestamp
from loopwright.kernel.masking import MASK, mask_text

NAME = "loopwright.server"
LOWER = "uvicorn.error"  # what speaks HTTP below us: requests that are none
LOWEST = "asyncio"
WRONG = logging.WARNING
SELDOM_S = 10.0
_OWN = re.compile(r"lwt_[0-9a-f]+_[\w-]+")
_FIELDS = ("request", "method", "path", "status", "ms", "who")


class JsonLines(logging.Formatter):
    """A record as one line; whatever looks like a secret is masked here, at the last moment."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, object] = {
            "at": timestamp(int(record.created * 1_000)),
            "level": record.levelname.lower(),
            "message": redacted(record.getMessage()),
        }
        for name in _FIELDS:
            value = record.__dict__.get(name)
            if value is not None:
                told[name] = redacted(value) if isinstance(value, str) else value
        if record.exc_info:
            told["trace"] = redacted(self.formatException(record.exc_info))
        return json.dumps(told)


class Seldom(logging.Filter):
    """What is below us says the same thing thousands of times in a second; once in a while will
    do.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said: tuple[str, float] = ("", 0.0)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == NAME:
            return True
        last, at = self._said
        if last == record.getMessage() and 0 <= record.created - at < SELDOM_S:
            return False
        self._said = (record.getMessage(), record.created)
        return True


def redacted(text: str) -> str:
    return mask_text(_OWN.sub(MASK, text))


def log_to(stream: TextIO | None = None, *, requests: bool) -> None:
    """Send the log of the server to a stream: what is wrong, and with `requests` every request."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    handler.addFilter(Seldom())
    own = logging.INFO if requests else WRONG
    for name, level in ((NAME, own), (LOWER, WRONG), (LOWEST, WRONG)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level)
