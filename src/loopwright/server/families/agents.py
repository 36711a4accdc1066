"""What can stand behind the agents of a definition here: coding CLIs, plugins, and kinds that say
more with them. Nothing is started to find out, and no path of this machine is told.
"""

import asyncio
import shutil

import msgspec

from loopwright.agents.clis.table import CLIS
from loopwright.app.plugins import PREFIX, plugins
from loopwright.server.paging import PageQuery, paged
from loopwright.server.routes import Answer, Asked, Family, Route

BASE = "/api/v1/agents"
KINDS = {
    "acp:CMD ARG…": "Any agent that speaks the Agent Client Protocol on stdio",
    "command:CMD ARG…": "A program: the prompt on stdin, the answer on stdout",
    "jsonl:CMD ARG…": "The same, with JSON lines on stdout",
    "model:PROVIDER/NAME": "A chat model with tools",
    "script:FILE": "Answers from a file",
}


class AgentItem(msgspec.Struct):
    """One of them; `spec` is what `agent` and `agents` of a start take."""

    spec: str
    kind: str  # cli, plugin, or pattern: what is in capitals is to be filled in
    title: str
    available: bool
    default: bool  # what stands behind agents for which nobody says otherwise
    hint: str | None


class AgentList(msgspec.Struct):
    """All of them."""

    agents: list[AgentItem]
    next: str | None


async def listed(asked: Asked) -> Answer:
    default = asked.context.settings.agent
    found = await asyncio.to_thread(_all, default)  # a plugin may take its time to load
    page = paged(asked, "agents", found, lambda one: f"{one.kind} {one.spec}")
    return AgentList(agents=page.entries, next=page.next)


def _all(default: str | None) -> list[AgentItem]:
    found = [
        AgentItem(
            spec=name,
            kind="cli",
            title=cli.title,
            available=(there := shutil.which(name) is not None),
            default=default == name,
            hint=None if there else cli.install,
        )
        for name, cli in CLIS.items()
    ]
    found += [
        AgentItem(
            spec=f"{PREFIX}{one.name}",
            kind="plugin",
            title=f"{one.name} of {one.origin}",
            available=not one.problem,
            default=default == f"{PREFIX}{one.name}",
            hint="`loopwright doctor` says why it is off" if one.problem else None,
        )
        for one in plugins()
    ]
    found += [
        AgentItem(spec=spec, kind="pattern", title=say, available=True, default=False, hint=None)
        for spec, say in KINDS.items()
    ]
    return found


FAMILY = Family(
    name="agents",
    prefix=BASE,
    routes=(
        Route(
            method="GET",
            path=BASE,
            handle=listed,
            need="viewer",
            say="What can stand behind the agents of a definition here",
            query=PageQuery,
            answer=AgentList,
        ),
    ),
)
