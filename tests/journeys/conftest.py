"""Journeys that need real processes use the command line's place for a test."""

from tests.cli.conftest import lw

__all__ = ["lw"]
