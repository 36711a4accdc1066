"""The workshop: what the tools of all agents of one process share."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import TracebackType
from typing import Self

from loopwright.model.sandbox import SandboxLevel
from loopwright.tools.desk import Desk
from loopwright.tools.gate import Gate
from loopwright.tools.native import Bench, RecordWork, Web
from loopwright.tools.processes import Programs
from loopwright.tools.protecting import Protection
from loopwright.tools.servers import Place, Server, ServerSpec
from loopwright.tools.shelf import Shelf
from loopwright.tools.toolbox import Grant, SchemaCheck, Toolbox
from loopwright.tools.tree import Identity, Private, Tree


class Workshop:
    """Makes toolboxes. Those of one workspace share its servers and wait for one another where a
    tool wants to be alone. Belongs to one event loop; `close` ends all servers.
    """

    def __init__(
        self,
        programs: Programs,
        check: SchemaCheck,
        find_private: Callable[[str], Private] = lambda workspace: Private(),
        web: Web | None = None,
        record_work: RecordWork = nullcontext,
    ) -> None:
        self._web = web
        self._find_private = find_private  # for a workspace
        self._record_work = record_work
        self._programs = programs
        self._check = check
        self._gates: dict[str, Gate] = {}
        self._servers: dict[tuple[str, str, ServerSpec, SandboxLevel | None], Server] = {}

    def toolbox(
        self,
        workspace: str,
        grant: Grant,
        shelf: Shelf,
        desk: Desk | None = None,
        identity: Identity | None = None,
    ) -> Toolbox:
        """The tools of an agent; ValueError when the grant itself cannot be used. `identity` is the
        folder that the workspace was when the run started.
        """
        bench = Bench(
            tree=Tree(workspace, private=partial(self._find_private, workspace), identity=identity),
            protection=Protection(grant.protected),
            programs=self._programs,
            shelf=shelf,
            commands=grant.commands,
            desk=desk,
            web=self._web,
            record_work=self._record_work,
        )
        root = bench.tree.root
        gate = self._gates.setdefault(root, Gate())
        level = grant.commands.sandbox
        servers = {one.name: self._server(root, one.name, one.spec, level) for one in grant.servers}
        return Toolbox(grant, bench, gate=gate, servers=servers, check=self._check)

    def _server(
        self, workspace: str, name: str, spec: ServerSpec, level: SandboxLevel | None
    ) -> Server:
        key = (workspace, name, spec, level)
        if key not in self._servers:
            self._servers[key] = Server(name, spec, Place(workspace, self._programs, level))
        return self._servers[key]

    async def close(self) -> None:
        """End every server and wait until they are gone."""
        servers, self._servers = list(self._servers.values()), {}
        await asyncio.gather(*(server.close() for server in servers))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
