"""Work that goes on for as long as the server lives, whatever goes wrong in one round of it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from loopwright.errors import StorageError
from loopwright.server.logs import NAME

_LOG = logging.getLogger(NAME)


@contextmanager
def enduring(what: str) -> Iterator[None]:
    """One round of such work. A disk that fails may come back, and has its own ways to be seen;
    anything else is a defect: it is logged, and the next round is made all the same.
    """
    try:
        yield
    except StorageError:
        return
    except Exception:
        _LOG.exception("%s failed; it goes on", what)
