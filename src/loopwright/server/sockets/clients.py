"""Who is connected, and what they are sent: never more than they take.

A few packets may wait for a client. What comes beyond that is not sent; when the client has caught
up it is told to `resync`, and reads what it shows anew. So nobody who is slow costs memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from loopwright.app.access import Who
from loopwright.model.record import JsonValue
from loopwright.server.sockets.line import Line

MOST_WAITING = 16  # packets, each of them bounded too
MOST_SOCKETS = 20  # of one person
RESYNC = "resync"


@dataclass(slots=True, kw_only=True)
class Client:
    """One connection: a tab, a program."""

    sid: str
    who: Who
    since: int  # milliseconds, epoch
    behind: bool = False
    refused: int = 0
    tails: dict[str, object] = field(default_factory=dict)


class Clients:
    """Connections by their ids, and by the people behind them."""

    def __init__(self) -> None:
        self._by_sid: dict[str, Client] = {}
        self._by_name: dict[str, dict[str, Client]] = {}

    def add(self, client: Client) -> None:
        self._by_sid[client.sid] = client
        self._by_name.setdefault(client.who.name, {})[client.sid] = client

    def remove(self, sid: str) -> Client | None:
        client = self._by_sid.pop(sid, None)
        if client is not None:
            held = self._by_name[client.who.name]
            del held[sid]
            if not held:
                del self._by_name[client.who.name]
        return client

    def get(self, sid: str) -> Client | None:
        return self._by_sid.get(sid)

    def all(self) -> list[Client]:
        return list(self._by_sid.values())

    def of(self, name: str) -> list[Client]:
        """All connections of somebody."""
        return list(self._by_name.get(name, {}).values())

    def behind(self, root: str) -> int:
        """How many connections the same person or program has, by all of their tokens."""
        return sum(one.who.root == root for one in self._by_sid.values())

    def present(self, name: str) -> bool:
        return name in self._by_name

    def since(self, name: str) -> int | None:
        """When the oldest connection of somebody began."""
        return min((one.since for one in self.of(name)), default=None)


async def tell(line: Line, client: Client, event: str, data: Mapping[str, JsonValue]) -> bool:
    """Send something to a client, unless too much waits for it already."""
    if line.backlog(client.sid) >= MOST_WAITING:
        client.behind = True
        return False
    await catch_up(line, client)
    await line.send(client.sid, event, data)
    return True


async def catch_up(line: Line, client: Client) -> None:
    """Tell a client that was too slow, once it has taken what waited, that it missed something."""
    if client.behind and line.backlog(client.sid) < MOST_WAITING // 2:
        client.behind = False
        await line.send(client.sid, RESYNC, {"reason": "slow"})
