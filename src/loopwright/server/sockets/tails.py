"""Tails: the facts of a run from a number on, to whoever subscribed, as fast as they take them.

Nothing is kept for a client but its number; the facts are read from the log when the line is free.
One that is too far behind gets the whole picture anew.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from loopwright.app.views.listing import detail
from loopwright.app.views.wire import fact_on_wire
from loopwright.errors import LoopwrightError
from loopwright.model.record import JsonValue
from loopwright.ports import Numbered
from loopwright.server.context import Context
from loopwright.server.sockets.clients import MOST_WAITING, RESYNC, Client, catch_up
from loopwright.server.sockets.line import Line

EVENTS = "run:events"
AT_ONCE = 200
PACKET_BYTES = 60_000
FAR_BEHIND = 5_000
GROUP_S = 0.02
FULL_S = 0.05
MOST_TAILS = 50


@dataclass(frozen=True, slots=True)
class Begun:
    """What is answered to a subscription, and from which number the tail goes on."""

    answer: dict[str, JsonValue]
    after: int


class Tails:
    """The subscriptions of all clients."""

    def __init__(self, context: Context, line: Line) -> None:
        self._context, self._line = context, line

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
        picture = await self._context.gallery.picture(run)
        return {"seq": picture.seen, **detail(self._context.service, picture)}

    def unsubscribe(self, client: Client, run: str) -> bool:
        task = client.tails.pop(run, None)
        if isinstance(task, asyncio.Task):
            task.cancel()
        return task is not None

    def let_go(self, client: Client) -> None:
        for run in list(client.tails):
            self.unsubscribe(client, run)

    async def _follow(self, client: Client, run: str, after: int) -> None:
        context, log = self._context, self._context.here.log
        while not context.closing.is_set():
            await catch_up(self._line, client)
            if self._line.backlog(client.sid) >= MOST_WAITING:
                await asyncio.sleep(FULL_S)
                continue
            try:
                if log.version(run) - after > FAR_BEHIND:
                    after = await self._resync(client, run)
                facts = log.read(run, after=after, limit=AT_ONCE)
                after = await self._send(client, run, facts) if facts else after
            except LoopwrightError as error:
                await self._line.send(client.sid, RESYNC, {"run": run, "reason": error.code})
                client.tails.pop(run, None)
                return
            await context.feed.moved(run, after, context.serving.limits.heartbeat_seconds)
            await asyncio.sleep(GROUP_S)  # what comes close together goes together

    async def _resync(self, client: Client, run: str) -> int:
        shown = await self.snapshot(run)
        seq = shown["seq"]
        assert isinstance(seq, int)
        data: dict[str, JsonValue] = {"run": run, "seq": seq, "reason": "behind", "snapshot": shown}
        await self._line.send(client.sid, RESYNC, data)
        return seq

    async def _send(self, client: Client, run: str, facts: list[Numbered]) -> int:
        """Send facts in packets of a bounded size; the number of the last that was sent."""
        seq = facts[0].seq - 1
        for packet in _packets([fact_on_wire(run, one) for one in facts]):
            if self._line.backlog(client.sid) >= MOST_WAITING:
                break
            last = packet[-1]["seq"]
            assert isinstance(last, int)
            seq = last
            data: dict[str, JsonValue] = {"run": run, "seq": seq, "events": list(packet)}
            await self._line.send(client.sid, EVENTS, data)
        return seq


def _packets(events: list[dict[str, JsonValue]]) -> Iterator[list[dict[str, JsonValue]]]:
    packet: list[dict[str, JsonValue]] = []
    size = 0
    for event in events:
        length = len(msgspec.json.encode(event))
        if packet and size + length > PACKET_BYTES:
            yield packet
            packet, size = [], 0
        packet.append(event)
        size += length
    if packet:
        yield packet
