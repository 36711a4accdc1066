"""The families of routes, each a module with a `FAMILY`. A new one is named here alone."""

from loopwright.server.families import (
    access,
    approvals,
    artifacts,
    assistant,
    assistants,
    definitions,
    events,
    gates,
    health,
    hooks,
    links,
    loop_definitions,
    loop_events,
    loop_steering,
    loops,
    notifications,
    run_views,
    runs,
    sessions,
    setup,
    sockets,
    webhooks,
)
from loopwright.server.routes import Family

FAMILIES: tuple[Family, ...] = (
    health.FAMILY,
    setup.FAMILY,
    access.FAMILY,
    definitions.FAMILY,
    runs.FAMILY,
    events.FAMILY,
    run_views.FAMILY,
    artifacts.FAMILY,
    gates.FAMILY,
    notifications.FAMILY,
    loop_definitions.FAMILY,
    loops.FAMILY,
    loop_events.FAMILY,
    loop_steering.FAMILY,
    sessions.FAMILY,
    assistants.FAMILY,
    approvals.FAMILY,
    assistant.FAMILY,
    sockets.FAMILY,
    webhooks.FAMILY,
    hooks.FAMILY,
    links.FAMILY,
)

__all__ = ["FAMILIES"]
