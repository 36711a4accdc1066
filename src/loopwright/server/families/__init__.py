"""The families of routes, each a module with a `FAMILY`. A new one is named here alone."""

from loopwright.server.families import events, gates, health, runs
from loopwright.server.routes import Family

FAMILIES: tuple[Family, ...] = (health.FAMILY, runs.FAMILY, events.FAMILY, gates.FAMILY)

__all__ = ["FAMILIES"]
