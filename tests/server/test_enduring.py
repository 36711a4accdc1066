"""Work that goes on whatever goes wrong in one round of it."""

import pytest

from loopwright.errors import StorageError
from loopwright.server.enduring import QUIET_SECONDS, Enduring


def test_a_defect_is_logged_and_not_by_every_round(caplog: pytest.LogCaptureFixture) -> None:
    """Once, and again after a while; a disk that fails is told elsewhere."""
    work = Enduring("the work")
    for _ in range(3):
        with work.round():
            raise KeyError("a defect")
    with work.round():
        raise StorageError("no disk", code="io")
    assert caplog.text.count("the work failed; it goes on") == 1
    assert "a defect" in caplog.text
    assert "no disk" not in caplog.text
    work._quiet_until -= QUIET_SECONDS
    with work.round():
        raise KeyError("a defect")
    assert caplog.text.count("the work failed; it goes on") == 2


def test_an_end_is_an_end() -> None:
    """What is no failure of a round, as being cancelled, goes through."""
    with pytest.raises(KeyboardInterrupt), Enduring("the work").round():
        raise KeyboardInterrupt
