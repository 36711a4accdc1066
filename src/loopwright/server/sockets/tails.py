"""Tails: the facts of a run from a number on, to whoever subscribed, as fast as they take them.

Nothing is kept for a client but its number; the facts are read from the log when the line is free.
One that is too far behind gets the whole picture anew.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from loopwright.app.views.wire import fact_on_wire
from loopwright.errors import LoopwrightError
from loopwright.model.record import JsonValue
from loopwright.ports import Numbered
from loopwright.server.context import Context
from loopwright.server.sockets.clients import MOST_WAITING, RESYNC, Client, catch_up
from loopwright.server.sockets.line import Line, Packed

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
    """What is answered to a subscription, and from which number the tail goes on."""

    answer: dict[str, JsonValue]
    after: int


@dataclass(frozen=True, slots=True)
class Packet:
    """Some facts as they are sent, and the number of the last."""

    last: int
    data: Packed


class Tails:
    """The subscriptions of all clients."""

    def __init__(self, context: Context, line: Line) -> None:
        self._context, self._line = context, line
        self._newest: OrderedDict[tuple[str, int, int], list[Packet]] = OrderedDict()

    async def subscribe(self, client: Client, run: str, after: int | None) -> dict[str, JsonValue]:
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
        return {**await self._context.gallery.snapshot(run)}

    def unsubscribe(self, client: Client, run: str) -> bool:
        task = client.tails.pop(run, None)
        if isinstance(task, asyncio.Task):
            task.cancel()
        return task is not None

    def let_go(self, client: Client) -> None:
        for run in list(client.tails):
            self.unsubscribe(client, run)

    async def _follow(self, client: Client, run: str, after: int) -> None:
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

    async def _resync(self, client: Client, run: str) -> int:
        shown = await self.snapshot(run)
        seq = shown["seq"]
        assert isinstance(seq, int)
        data: dict[str, JsonValue] = {"run": run, "seq": seq, "reason": "behind", "snapshot": shown}
        await self._line.send(client.sid, RESYNC, data)
        return seq

    async def _send(self, client: Client, packets: list[Packet], after: int) -> int:
        """Send packets as long as the client takes them; the number of the last fact sent."""
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
            facts = self._context.here.log.read(run, after=after, limit=AT_ONCE)
            self._newest[wanted] = [
                Packet(last, self._line.packed(EVENTS, data)) for last, data in _packets(run, facts)
            ]
            while len(self._newest) > MOST_KEPT:
                self._newest.popitem(last=False)
        return self._newest[wanted]


def _packets(run: str, facts: list[Numbered]) -> Iterator[tuple[int, msgspec.Raw]]:
    """Facts in packets of a bounded size, each with the number of its last."""
    events: list[msgspec.Raw] = []
    size = last = 0
    for one in facts:
        event = msgspec.json.encode(fact_on_wire(run, one))
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
