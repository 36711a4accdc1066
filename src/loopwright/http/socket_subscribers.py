"""Connected clients, and what they are sent: events of subscribed runs and of their own loops.

The server keeps few packets per client. What exceeds them is dropped, and when the client has
caught up it gets `resync` and reloads. For a subscription only the event number is kept; events
are read from the log when the client can take them. A client too far behind gets a new
snapshot.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from loopwright.errors import LoopwrightError
from loopwright.http.context import Context
from loopwright.http.socket_transport import Packed, SocketServer
from loopwright.model.record import JsonValue
from loopwright.operations.accounts.access import Principal
from loopwright.operations.loops.dialect_events import LoopStory, is_loop
from loopwright.ports import NumberedEvent
from loopwright.views.event_records import event_on_wire
from loopwright.workers import notifications
from loopwright.workers.notifications import certificate_of

MOST_WAITING = 16  # packets, each of them bounded too
MOST_SOCKETS = 20  # of one person
RESYNC = "resync"


@dataclass(slots=True, kw_only=True)
class ConnectedClient:
    """One connection: a tab, a program."""

    sid: str
    who: Principal
    since: int  # milliseconds, epoch
    behind: bool = False
    refused: int = 0
    tails: dict[str, object] = field(default_factory=dict)


class ConnectedClients:
    """Connections by their ids, and by the people behind them."""

    def __init__(self) -> None:
        self._by_sid: dict[str, ConnectedClient] = {}
        self._by_name: dict[str, dict[str, ConnectedClient]] = {}

    def add(self, client: ConnectedClient) -> None:
        self._by_sid[client.sid] = client
        self._by_name.setdefault(client.who.name, {})[client.sid] = client

    def remove(self, sid: str) -> ConnectedClient | None:
        client = self._by_sid.pop(sid, None)
        if client is not None:
            held = self._by_name[client.who.name]
            del held[sid]
            if not held:
                del self._by_name[client.who.name]
        return client

    def get(self, sid: str) -> ConnectedClient | None:
        return self._by_sid.get(sid)

    def all(self) -> list[ConnectedClient]:
        return list(self._by_sid.values())

    def of(self, name: str) -> list[ConnectedClient]:
        """All connections of a person."""
        return list(self._by_name.get(name, {}).values())

    def behind(self, root: str) -> int:
        """How many connections the same person or program has, by all of their tokens."""
        return sum(one.who.root == root for one in self._by_sid.values())

    def present(self, name: str) -> bool:
        return name in self._by_name

    def since(self, name: str) -> int | None:
        """When the oldest connection of a person began."""
        return min((one.since for one in self.of(name)), default=None)


async def tell(
    line: SocketServer, client: ConnectedClient, event: str, data: Mapping[str, JsonValue]
) -> bool:
    """Send something to a client, unless too much waits for it already."""
    if line.backlog(client.sid) >= MOST_WAITING:
        client.behind = True
        return False
    await catch_up(line, client)
    await line.send(client.sid, event, data)
    return True


async def catch_up(line: SocketServer, client: ConnectedClient) -> None:
    """Tell a client that was too slow, once it has taken what waited, that it missed something."""
    if client.behind and line.backlog(client.sid) < MOST_WAITING // 2:
        client.behind = False
        await line.send(client.sid, RESYNC, {"reason": "slow"})


EVENTS = "run:events"
AT_ONCE = 200
PACKET_BYTES = 60_000
FAR_BEHIND = 5_000
GROUP_S = 0.02
FULL_S = 0.05
MOST_TAILS = 50
MOST_KEPT = 64  # answers for other followers of the same run


@dataclass(frozen=True, slots=True)
class Begun:
    """The answer to a subscription, and the number from which the tail continues."""

    answer: dict[str, JsonValue]
    after: int


@dataclass(frozen=True, slots=True)
class Packet:
    """Events in the form in which they are sent, and the number of the last."""

    last: int
    data: Packed


class Tails:
    """The subscriptions of all clients."""

    def __init__(self, context: Context, line: SocketServer) -> None:
        self._context, self._line = context, line
        self._newest: OrderedDict[tuple[str, int, int], list[Packet]] = OrderedDict()

    async def subscribe(
        self, client: ConnectedClient, run: str, after: int | None
    ) -> dict[str, JsonValue]:
        """Begin to send a run; without a number, or with one that is not from here or too old,
        from a snapshot on.
        """
        begun = await self._begin(run, after)
        self.unsubscribe(client, run)
        client.tails[run] = asyncio.ensure_future(self._follow(client, run, begun.after))
        return begun.answer

    async def _begin(self, run: str, after: int | None) -> Begun:
        version = self._context.here.log.version(run)
        if after is not None and version - FAR_BEHIND <= after <= version:
            return Begun({"run": run, "seq": version, "after": after}, after)
        shown = await self.snapshot(run)
        seq = shown["seq"]
        assert isinstance(seq, int)
        answer: dict[str, JsonValue] = {"run": run, "seq": seq, "snapshot": shown}
        return Begun(answer if after is None else {**answer, RESYNC: True}, seq)

    async def snapshot(self, run: str) -> dict[str, JsonValue]:
        shown: dict[str, JsonValue] = msgspec.to_builtins(await self._context.gallery.snapshot(run))
        return shown

    def unsubscribe(self, client: ConnectedClient, run: str) -> bool:
        task = client.tails.pop(run, None)
        if isinstance(task, asyncio.Task):
            task.cancel()
        return task is not None

    def let_go(self, client: ConnectedClient) -> None:
        for run in list(client.tails):
            self.unsubscribe(client, run)

    async def _follow(self, client: ConnectedClient, run: str, after: int) -> None:
        context, feed, loop = self._context, self._context.feed, asyncio.get_running_loop()
        while not context.closing.is_set():
            await catch_up(self._line, client)
            if self._line.backlog(client.sid) >= MOST_WAITING:
                await asyncio.sleep(FULL_S)
                continue
            began = loop.time()
            try:
                version = feed.version(run)
                if version - after > FAR_BEHIND:
                    after = await self._resync(client, run)
                elif version > after:
                    after = await self._send(client, self._packets(run, after, version), after)
            except LoopwrightError as error:
                await self._line.send(client.sid, RESYNC, {"run": run, "reason": error.code})
                client.tails.pop(run, None)
                return
            await feed.moved(run, after, context.serving.limits.heartbeat_seconds)
            # What comes alone goes at once; what comes close after it goes together.
            await asyncio.sleep(max(0.0, began + GROUP_S - loop.time()))

    async def _resync(self, client: ConnectedClient, run: str) -> int:
        shown = await self.snapshot(run)
        seq = shown["seq"]
        assert isinstance(seq, int)
        data: dict[str, JsonValue] = {"run": run, "seq": seq, "reason": "behind", "snapshot": shown}
        await self._line.send(client.sid, RESYNC, data)
        return seq

    async def _send(self, client: ConnectedClient, packets: list[Packet], after: int) -> int:
        """Send packets as long as the client takes them; the number of the last event sent."""
        for packet in packets:
            if self._line.backlog(client.sid) >= MOST_WAITING:
                break
            await self._line.send_packed(client.sid, packet.data)
            after = packet.last
        return after

    def _packets(self, run: str, after: int, version: int) -> list[Packet]:
        """What comes after a number. All who follow a run mostly want the same, and soon after each
        other: it is read and written down once.
        """
        wanted = (run, after, version)
        if wanted not in self._newest:
            events = self._context.here.log.read(run, after=after, limit=AT_ONCE)
            self._newest[wanted] = [
                Packet(last, self._line.packed(EVENTS, data))
                for last, data in _packets(run, events)
            ]
            while len(self._newest) > MOST_KEPT:
                self._newest.popitem(last=False)
        return self._newest[wanted]


def _packets(run: str, log_events: list[NumberedEvent]) -> Iterator[tuple[int, msgspec.Raw]]:
    """Events in packets of a bounded size, each with the number of its last event."""
    events: list[msgspec.Raw] = []
    size = last = 0
    for one in log_events:
        event = msgspec.json.encode(event_on_wire(run, one))
        if events and size + len(event) > PACKET_BYTES:
            yield _packet(run, last, events)
            events, size = [], 0
        events.append(msgspec.Raw(event))
        size, last = size + len(event), one.seq
    if events:
        yield _packet(run, last, events)


def _packet(run: str, last: int, events: list[msgspec.Raw]) -> tuple[int, msgspec.Raw]:
    data = msgspec.json.encode({"run": run, "seq": last, "events": events})
    return last, msgspec.Raw(data)


MOST_KNOWN = 10_000
_V = TypeVar("_V")


class Herald:
    """Follows the loops of people who are connected."""

    def __init__(self, context: Context, clients: ConnectedClients, line: SocketServer) -> None:
        self._context, self._clients, self._line = context, clients, line
        self._stories: dict[str, LoopStory] = {}
        self._others: OrderedDict[str, None] = OrderedDict()  # runs that are not loops
        # the number of the last event that was sent
        self._ended: OrderedDict[str, int] = OrderedDict()
        self._moved: dict[str, None] = {}
        self._woken = asyncio.Event()

    def moved(self, run: str) -> None:
        """Something was written to a run."""
        if run not in self._others and self._clients.all():
            self._moved[run] = None
            self._woken.set()

    async def work(self) -> None:
        """Tell what has moved, for as long as the server lives."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            while self._moved:
                run = next(iter(self._moved))
                del self._moved[run]
                with contextlib.suppress(LoopwrightError):  # it is damaged, gone, or the disk full
                    await self._notify(run)

    def forget(self, owner: str) -> None:
        """The last connection of a person to their loops was closed."""
        self._stories = {run: one for run, one in self._stories.items() if one.owner != owner}

    async def greet(self, client: ConnectedClient, runs: list[str]) -> None:
        """Send a newly connected person the status of their loops."""
        for run in runs:
            with contextlib.suppress(LoopwrightError):
                story = self._stories.get(run) or LoopStory(self._context.service, run)
                if run not in self._stories:
                    story.carry_on()
                    self._stories[run] = story
                if story.active:
                    for event, data in notifications.now(story):
                        await tell(self._line, client, event, data)

    async def _notify(self, run: str) -> None:
        story = self._stories.get(run) or self._new(run)
        if story is None:
            return
        since = self._clients.since(story.owner)
        if since is None:
            self._stories.pop(run, None)
            return
        for one in story.carry_on():
            if one.at >= since and one.seq > self._ended.get(run, 0):
                for event, data in notifications.told(story, one):
                    if event == notifications.NOTIFICATION and one.name in ("completed", "failed"):
                        data["certificate"] = certificate_of(self._context.service, run)
                    for client in self._clients.of(story.owner):
                        await tell(self._line, client, event, data)
        if not story.active:
            self._stories.pop(run, None)
            _keep(self._ended, run, story.seen)

    def _new(self, run: str) -> LoopStory | None:
        head = self._context.here.log.row(run).headline
        if not is_loop(head.dialect, head.key):
            _keep(self._others, run, None)
            return None
        story = LoopStory(self._context.service, run)
        if self._clients.present(story.owner):
            self._stories[run] = story
        return story


def _keep(known: OrderedDict[str, _V], run: str, value: _V) -> None:
    known[run] = value
    if len(known) > MOST_KNOWN:
        known.popitem(last=False)
