"""What runs have cost, and how much of the limits of all runs is used."""

from loopwright.app.spend import By, since_ms, spend
from loopwright.model.record import JsonValue
from loopwright.server.routes import Answer, Asked, Family, Query, Route
from loopwright.server.shapes import Spend

PATH = "/api/v1/spend"


class SpendQuery(Query):
    """Since when (`7d`, `2026-11-01`), and how it is grouped."""

    since: str | None = None
    by: By = "agent"


async def spent(asked: Asked) -> Answer:
    context, query = asked.context, asked.query(SpendQuery)
    now = context.clock.now_ms()
    since = None if query.since is None else since_ms(query.since, now)
    told: dict[str, JsonValue] = spend(
        context.here.log, by=query.by, since=since, purse=context.settings.budget, now_ms=now
    )
    return told


FAMILY = Family(
    name="spend",
    prefix=PATH,
    routes=(
        Route(
            method="GET",
            path=PATH,
            handle=spent,
            need="viewer",
            say="What runs have cost, by agent, definition, label or day",
            query=SpendQuery,
            answer=Spend,
        ),
    ),
)
