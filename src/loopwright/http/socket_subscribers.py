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
from functools import partial
from typing import TypeVar

import msgspec

from loopwright.errors import LoopwrightError
from loopwright.http.context import Context
from loopwright.http.socket_transport import Packed, SocketServer
from loopwright.model.record import JsonValue
from loopwright.operations.accounts.access import Principal
from loopwright.operations.loops.dialect_events import LoopStory, is_loop
from loopwright.operations.run_tail import RunTail
from loopwright.operations.use_cases.run_views import FollowedRun
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
    tails: set[str] = field(default_factory=set)  # the runs that it follows


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


@dataclass(frozen=True, slots=True)
class Packet:
    """Events in the form in which they are sent, and the number of the last."""

    last: int
    data: Packed


@dataclass(slots=True)
class Follower:
    """A client that follows a run, and the number of the last event that it was sent."""

    client: ConnectedClient
    after: int
    catching_up: asyncio.Task[None] | None = None

    def stop(self) -> None:
        if self.catching_up is not None:
            self.catching_up.cancel()


class RunBroadcast:
    """Sends one run to all clients that follow it. Events are read and written down once. A client
    that takes less reads the log from its own position, and does not delay the others.
    """

    def __init__(self, context: Context, line: SocketServer, run: str, after: int) -> None:
        self.followers: dict[str, Follower] = {}
        self._context, self._line, self._run = context, line, run
        self._tail = RunTail(context.feed, run, self._read, after)
        self.task = asyncio.ensure_future(self._work())

    def add(self, client: ConnectedClient, after: int) -> None:
        self.remove(client)
        self.followers[client.sid] = follower = Follower(client, after)
        follower.catching_up = asyncio.ensure_future(self._catch_up(follower))

    def remove(self, client: ConnectedClient) -> None:
        if found := self.followers.pop(client.sid, None):
            found.stop()

    def _read(self, run: str, after: int) -> list[NumberedEvent]:
        return self._context.here.log.read(run, after=after, limit=AT_ONCE)

    def _packed(self, events: list[NumberedEvent]) -> list[Packet]:
        return [
            Packet(last, self._line.packed(EVENTS, data))
            for last, data in _packets(self._run, events)
        ]

    async def _work(self) -> None:
        loop, limits = asyncio.get_running_loop(), self._context.serving.limits
        try:
            async for events in self._tail.batches(lambda: limits.heartbeat_seconds):
                if events:
                    began = loop.time()
                    await self._send_all(events[0].seq - 1, self._packed(events))
                    # What comes alone goes at once; what comes close after it goes together.
                    await asyncio.sleep(max(0.0, began + GROUP_S - loop.time()))
        except LoopwrightError as error:
            for one in list(self.followers.values()):
                await self._give_up(one, error)

    async def _send_all(self, before: int, packets: list[Packet]) -> None:
        """Send packets to all who were sent everything before them."""
        for one in list(self.followers.values()):
            if one.catching_up is not None or self.followers.get(one.client.sid) is not one:
                continue
            if one.after == before:
                await self._send(one, packets)
            if one.after < packets[-1].last:
                one.catching_up = asyncio.ensure_future(self._catch_up(one))

    async def _send(self, one: Follower, packets: list[Packet]) -> None:
        """Send packets as long as the client takes them."""
        line, sid = self._line, one.client.sid
        await catch_up(line, one.client)
        for packet in packets:
            if line.backlog(sid) >= MOST_WAITING:
                return
            await line.send_packed(sid, packet.data)
            one.after = packet.last

    async def _catch_up(self, one: Follower) -> None:
        """Send what a client has not been sent, as it takes it, up to what the others were sent."""
        try:
            while one.after < self._tail.seen:
                await catch_up(self._line, one.client)
                if self._line.backlog(one.client.sid) >= MOST_WAITING:
                    await asyncio.sleep(FULL_S)
                elif self._tail.seen - one.after > FAR_BEHIND:
                    one.after = await self._resync(one.client)
                else:
                    await self._send(one, self._packed(self._read(self._run, one.after)))
        except LoopwrightError as error:
            await self._give_up(one, error)
        one.catching_up = None

    async def _resync(self, client: ConnectedClient) -> int:
        shown = msgspec.to_builtins(await self._context.gallery.snapshot(self._run))
        data = {"run": self._run, "seq": shown["seq"], "reason": "behind", "snapshot": shown}
        await self._line.send(client.sid, RESYNC, data)
        return int(shown["seq"])

    async def _give_up(self, one: Follower, error: LoopwrightError) -> None:
        """Tell a client that a run cannot be followed."""
        await self._line.send(one.client.sid, RESYNC, {"run": self._run, "reason": error.code})
        self.followers.pop(one.client.sid, None)
        one.client.tails.discard(self._run)


class Tails:
    """The subscriptions of all clients."""

    def __init__(self, context: Context, line: SocketServer) -> None:
        self._context, self._line = context, line
        self._broadcasts: dict[str, RunBroadcast] = {}

    async def subscribe(
        self, client: ConnectedClient, followed: FollowedRun, after: int | None
    ) -> dict[str, JsonValue]:
        """Begin to send a run; without a number, or with one that is not from here or too old,
        from a snapshot on.
        """
        run = followed.run
        answer, since = await self._begin(followed, after)
        found = self._broadcasts.get(run)
        if found is None:
            found = RunBroadcast(self._context, self._line, run, since)
            self._broadcasts[run] = found
            found.task.add_done_callback(partial(self._forget, run, found))
        found.add(client, since)
        client.tails.add(run)
        return answer

    async def _begin(
        self, followed: FollowedRun, after: int | None
    ) -> tuple[dict[str, JsonValue], int]:
        """The answer to a subscription, and the number from which the tail continues."""
        run, version = followed.run, followed.seq
        if after is not None and version - FAR_BEHIND <= after <= version:
            return {"run": run, "seq": version, "after": after}, after
        shown = msgspec.to_builtins(await self._context.gallery.snapshot(run))
        answer: dict[str, JsonValue] = {"run": run, "seq": shown["seq"], "snapshot": shown}
        return answer if after is None else {**answer, RESYNC: True}, int(shown["seq"])

    def unsubscribe(self, client: ConnectedClient, run: str) -> bool:
        was = run in client.tails
        client.tails.discard(run)
        found = self._broadcasts.get(run)
        if found is not None:
            found.remove(client)
            if not found.followers:
                found.task.cancel()
                self._forget(run, found)
        return was

    def _forget(self, run: str, ended: RunBroadcast, _task: object = None) -> None:
        if self._broadcasts.get(run) is ended:
            del self._broadcasts[run]

    def let_go(self, client: ConnectedClient) -> None:
        for run in list(client.tails):
            self.unsubscribe(client, run)


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

    async def work(self) -> None:
        """Tell what has changed, for as long as the server lives."""
        async for runs in self._context.feed.changes(0.0):
            for run in runs:
                if run not in self._others and self._clients.all():
                    with contextlib.suppress(LoopwrightError):  # damaged, gone, or the disk is full
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
