"""Journeys that need real processes use the command line's place for a test."""

import pytest

from tests.cli.conftest import Place, lw
from tests.journeys.workflows import Troupe

__all__ = ["lw"]


@pytest.fixture
def troupe(lw: Place) -> Troupe:
    """A place with an agent whose words stand in a table."""
    return Troupe(lw)
