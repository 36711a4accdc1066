"""Servers for tests: one for a whole module where tests do not disturb each other, or one's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from loopwright.http.context import Rates
from tests.http.served import Served, served


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that the tests of a module share."""
    with served(tmp_path_factory.mktemp("served")) as one:
        yield one


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Served]:
    """A server of one's own."""
    with served(tmp_path) as one:
        yield one


class _Noon:
    """A clock that stands still."""

    def now_ms(self) -> int:
        return 43_200_000


@pytest.fixture
def full_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The buckets of rates are not filled again: how quick this machine is changes nothing."""
    made = Rates.__init__

    def still(self: Rates, _clock: object, *rest: int) -> None:
        made(self, _Noon(), *rest)  # type: ignore[arg-type]  # nothing else is asked of a clock

    monkeypatch.setattr(Rates, "__init__", still)
