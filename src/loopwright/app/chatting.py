"""Chat models on this machine: the gateway and the tools behind one performer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loopwright.app.granting import Server, grant_of
from loopwright.app.schemas import schema_problem
from loopwright.app.toolroom import open_workshop
from loopwright.gateway import Gateway
from loopwright.gateway.turns import Turns
from loopwright.model.plan import Agent, encode_agent
from loopwright.ports import Bus, Clock, Job, Tools
from loopwright.tools import FolderShelf, Workshop

MOST_TOOLBOXES = 256


@dataclass(slots=True)
class Chats:
    """Everything that chat models need; nothing of it is loaded before one is asked."""

    environment: Mapping[str, str]
    clock: Clock
    token: str
    results: Path  # where long results of tools are kept
    servers: Mapping[str, Server] = field(default_factory=dict)
    _gateway: Gateway = field(init=False)
    _workshop: Workshop = field(init=False)
    _boxes: dict[tuple[str, str, bytes], Tools] = field(init=False)

    def __post_init__(self) -> None:
        self._gateway = Gateway(env=self.environment, clock=self.clock)
        self._workshop = open_workshop(self.environment, self.token)
        self._boxes = {}

    def performer(self, bus: Bus) -> Turns:
        return Turns(self._gateway, self._tools_of, bus, schema_problem)

    def _tools_of(self, job: Job) -> Tools:
        """The tools of an agent in a run; they stay the same from turn to turn."""
        agent = job.agent or Agent()
        key = job.run, job.workspace, encode_agent(agent)
        box = self._boxes.get(key)
        if box is None:
            grant = grant_of(agent, self.servers)
            shelf = FolderShelf(self.results / job.run)
            box = self._workshop.toolbox(job.workspace, grant, shelf)
            while len(self._boxes) >= MOST_TOOLBOXES:
                self._boxes.pop(next(iter(self._boxes)))
            self._boxes[key] = box
        return box

    async def close(self) -> None:
        """End servers and connections."""
        await self._workshop.close()
        await self._gateway.close()
