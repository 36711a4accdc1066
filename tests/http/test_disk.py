"""A server whose disk takes no writes is not ready, and says so without trying at every request."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from loopwright.http import status
from loopwright.http.status import PROBE, Disk, tried
from tests.http.served import SECONDS, Served


@pytest.fixture
def forgetful(shared: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server that tries whenever it is asked."""
    monkeypatch.setattr(status, "KEPT_MS", 0)
    monkeypatch.setattr(status, "SECONDS", SECONDS)  # it may be slow, and is well all the same
    shared.call(lambda: setattr(shared.context.part(Disk), "_until", 0))
    yield shared
    monkeypatch.undo()
    shared.call(lambda: setattr(shared.context.part(Disk), "_until", 0))


def test_a_full_disk(forgetful: Served) -> None:
    """503 with the reason, also for whoever is about to start a loop; it lives all the same, and
    is ready again when there is room.
    """
    assert forgetful("GET", "/readyz", token="").status == 200
    place = forgetful.context.settings.home / PROBE
    place.symlink_to("/dev/full")
    try:
        told = forgetful("GET", "/readyz", token="")
        assert (told.status, told.headers["retry-after"]) == (503, "5")
        assert told.json["status"] == "not ready"
        assert told.json["parts"] == {"database": "ok", "server": "ok", "disk": "full"}
        assert forgetful("GET", "/api/v1/health", token="").json["status"] == "ill"
        assert forgetful("GET", "/healthz", token="").status == 200
    finally:
        place.unlink()
    assert forgetful("GET", "/readyz", token="").status == 200
    assert forgetful("GET", "/api/v1/health", token="").json["status"] == "ok"


def test_it_is_not_tried_by_every_request(shared: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found counts for some seconds."""
    calls: list[Path] = []

    def counted(home: Path) -> str:
        calls.append(home)
        return "ok"

    monkeypatch.setattr(status, "tried", counted)
    monkeypatch.setattr(status, "KEPT_MS", 600_000)  # however slow this machine is
    shared.call(lambda: setattr(shared.context.part(Disk), "_until", 0))
    for _ in range(5):
        assert shared("GET", "/readyz", token="").status == 200
    assert len(calls) == 1
    shared.call(lambda: setattr(shared.context.part(Disk), "_until", 0))


def test_a_disk_that_hangs(forgetful: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told as slow in a bounded time, and nothing more is begun until the first is back."""
    begun, go, calls = threading.Event(), threading.Event(), list[Path]()

    def hanging(home: Path) -> str:
        calls.append(home)
        begun.set()
        go.wait(SECONDS)
        return "ok"

    monkeypatch.setattr(status, "tried", hanging)
    monkeypatch.setattr(status, "SECONDS", 0.02)
    try:
        for _ in range(3):
            told = forgetful("GET", "/readyz", token="")
            assert (told.status, told.json["parts"]["disk"]) == (503, "slow")
        assert begun.wait(SECONDS)
        assert len(calls) == 1
    finally:
        go.set()
    monkeypatch.setattr(status, "SECONDS", SECONDS)
    assert forgetful("GET", "/readyz", token="").status == 200


@pytest.mark.parametrize(
    ("number", "word"), [(errno.EROFS, "read-only"), (errno.EIO, "unusable"), (errno.EDQUOT, None)]
)
def test_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, word: str | None
) -> None:
    """The reason is a word, whatever the disk says."""

    def refused(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    names = {name: getattr(os, name) for name in ("O_WRONLY", "O_CREAT", "O_TRUNC", "O_CLOEXEC")}
    monkeypatch.setattr(status, "os", SimpleNamespace(open=refused, **names))
    assert tried(tmp_path) == (word or "unusable")


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """Where it can be written, the folder is as it was."""
    assert tried(tmp_path) == "ok"
    assert list(tmp_path.iterdir()) == []
    assert tried(tmp_path / "gone") == "unusable"
