"""What a shell can complete: runs, gates, statuses, dialects. Failing here completes nothing."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from loopwright.app.service import Service

_MOST = 50


def _looked_up(
    ctx: click.Context, find: "Callable[[Service], list[tuple[str, str]]]"
) -> list[tuple[str, str]]:
    from loopwright.app.opening import open_reader  # noqa: PLC0415 - help stays quick
    from loopwright.cli.verb import door_of  # noqa: PLC0415 - the two name each other

    settings = door_of(ctx).settings
    if not settings.database.exists():
        return []
    service = open_reader(settings)
    try:
        return find(service)
    finally:
        service.log.close()


def _fitting(found: list[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    return [
        CompletionItem(word, help=help_) for word, help_ in found if word.startswith(incomplete)
    ]


def complete_runs(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Runs, newest first."""

    def find(service: "Service") -> list[tuple[str, str]]:
        rows = service.rows(limit=_MOST)
        return [(row.run, f"{row.headline.status} {row.headline.name}") for row in rows]

    try:
        return _fitting(_looked_up(ctx, find), incomplete)
    except Exception:
        return []


def complete_gates(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Open gates, and the runs that wait at them."""

    def find(service: "Service") -> list[tuple[str, str]]:
        gates = service.gates()[:_MOST]
        return [(g.gate, g.message) for g in gates] + [(g.run, g.message) for g in gates]

    try:
        return _fitting(_looked_up(ctx, find), incomplete)
    except Exception:
        return []


def complete_dialects(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from loopwright.app.dialects import NAMES  # noqa: PLC0415 - help stays quick

    return _fitting([(name, "") for name in NAMES], incomplete)
