"""Servers for tests: one for a whole module where tests do not disturb each other, or one's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.served import Served, served


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
