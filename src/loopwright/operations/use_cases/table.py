"""The table of operations: every use case that is declared, by its name.

A use case is added to the module of its noun and listed there in `OPERATIONS`. HTTP routes and
their description are derived from this table; the other interfaces call the same operations.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from loopwright.operations.use_cases import (
    accounts,
    allowlists,
    artifacts,
    assistants,
    definitions,
    gates,
    local_runs,
    loops,
    notifications,
    run_changes,
    run_queries,
    run_views,
    runs,
    trackers,
    webhooks,
)
from loopwright.operations.use_cases.operation import Operation


def _by_name(modules: Sequence[Sequence[Operation[Any, Any]]]) -> dict[str, Operation[Any, Any]]:
    found: dict[str, Operation[Any, Any]] = {}
    for one in (one for module in modules for one in module):
        assert one.name not in found, f"{one.name} is declared twice"
        found[one.name] = one
    return found


TABLE: Mapping[str, Operation[Any, Any]] = _by_name(
    (
        run_queries.OPERATIONS,
        runs.OPERATIONS,
        local_runs.OPERATIONS,
        run_changes.OPERATIONS,
        run_views.OPERATIONS,
        gates.OPERATIONS,
        accounts.OPERATIONS,
        allowlists.OPERATIONS,
        notifications.OPERATIONS,
        definitions.OPERATIONS,
        artifacts.OPERATIONS,
        trackers.OPERATIONS,
        webhooks.OPERATIONS,
        assistants.OPERATIONS,
        loops.OPERATIONS,
    )
)
