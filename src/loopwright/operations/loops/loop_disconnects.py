"""Loops of assistants for HTTP and sockets, and their end after the person who started them left.

If a loop must not continue alone, it is ended some time after its starter disconnected, unless
they return in time; they are notified on return. Deadlines are stored, so they survive a
restart.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loopwright.errors import LoopwrightError, NotFound
from loopwright.operations.dialects import THEIR_VARIABLES
from loopwright.operations.loops.assistants import Assistants
from loopwright.operations.loops.dialect_events import LoopStory, agent_of, is_loop
from loopwright.operations.run_groups import TORN_DOWN, Beside, OnDisconnect
from loopwright.operations.run_request import RunStart
from loopwright.operations.runs import Service, row_ended
from loopwright.operations.settings import PREFIX, Settings
from loopwright.ports import AuditRow, RecordStore, StoredRecord

LEASH = "leash"
TOLD = "torn-down"
ENDED_BY = "loopwright"
GRACE_MS = 60_000
MOST_GRACE_MS = 7 * 86_400_000
SWITCH = "TEARDOWN_ON_DISCONNECT"
GRACE = "TEARDOWN_GRACE_MS"


@dataclass(frozen=True, slots=True, kw_only=True)
class DisconnectSettings:
    """What the operator allows: whether runs of people who have left are ended at all, and how long
    they have to come back.
    """

    enabled: bool = True
    grace_ms: int = GRACE_MS


def departures(env: Mapping[str, str]) -> DisconnectSettings:
    """From the environment; our own variable overrides that of the other system."""
    switch, grace = _variable(env, SWITCH), _variable(env, GRACE)
    return DisconnectSettings(
        enabled=switch != "0",
        grace_ms=_grace(grace),
    )


def _variable(env: Mapping[str, str], name: str) -> str | None:
    return env.get(f"{PREFIX}{name}") or env.get(f"{THEIR_VARIABLES}{name}") or None


def _grace(text: str | None) -> int:
    if text is None or not text.strip().isdecimal() or not text.isascii():
        return GRACE_MS
    return min(int(text.strip()[:12]), MOST_GRACE_MS)


class DisconnectRule(msgspec.Struct, frozen=True, kw_only=True):
    """A run and its starter; `agent_id` is empty where it is the loop of no assistant."""

    run: str
    agent_id: str
    name: str
    parting: OnDisconnect | None = None


class DisconnectedLoop(msgspec.Struct, frozen=True, kw_only=True):
    """A loop that was ended while its starter was away."""

    run: str
    agent_id: str
    name: str
    at: int


class DisconnectTimers:
    """Who has left, and what that means for their loops."""

    def __init__(self, service: Service, records: RecordStore, rules: DisconnectSettings) -> None:
        self._service = service
        self._records = records
        self.rules = rules

    def beside(
        self, owner: str, *, name: str, parting: OnDisconnect | None = None, agent_id: str = ""
    ) -> Beside:
        """Remember whose run this is that is about to be started, with its first event. Only the
        loops of assistants are remembered where nothing could end them.
        """

        def records(run: str) -> list[StoredRecord]:
            leash = DisconnectRule(run=run, agent_id=agent_id, name=name, parting=parting)
            return [_record(leash, owner)] if agent_id or self._ends(leash) else []

        return records

    def held(self, owner: str) -> list[str]:
        """The loops of their assistants, as far as they are known to be under way."""
        records = self._records.records(LEASH, owner=owner)
        leashes = [msgspec.json.decode(record.body, type=DisconnectRule) for record in records]
        return [one.run for one in leashes if one.agent_id and not self._has_ended(one.run)]

    def left(self, owner: str, *, at_least_ms: int = 0) -> bool:
        """Their last socket is gone: from now on the time runs. Whether anything is due."""
        wait = max(self.rules.grace_ms, at_least_ms)
        return self._set_due(owner, self._service.clock.now_ms() + wait)

    def came_back(self, owner: str) -> list[DisconnectedLoop]:
        """The client is back: nothing is due, and loops that were ended meanwhile are reported
        once.
        """
        self._set_due(owner, None)
        records = self._records.records(TOLD, owner=owner)
        if records:
            self._records.change(drops=[(TOLD, record.key) for record in records])
        return [msgspec.json.decode(record.body, type=DisconnectedLoop) for record in records]

    async def tear_down(self, present: Callable[[str], bool]) -> list[str]:
        """End what is due and whose starter is away. One that cannot be ended keeps no other from
        it, and is tried again next time.
        """
        torn: list[str] = []
        for record in self._records.records(LEASH, due_by=self._service.clock.now_ms()):
            leash = msgspec.json.decode(record.body, type=DisconnectRule)
            if present(record.owner):
                continue
            try:
                if await self._end(leash, record.owner):
                    torn.append(leash.run)
            except LoopwrightError:
                continue
        return torn

    async def _end(self, leash: DisconnectRule, owner: str) -> bool:
        try:
            ended = await self._service.stop(leash.run, by=ENDED_BY, reason=TORN_DOWN)
        except NotFound:  # forgotten meanwhile
            ended = False
        now = self._service.clock.now_ms()
        puts: list[tuple[StoredRecord, int | None]] = []
        audit: list[AuditRow] = []
        if ended:
            told = DisconnectedLoop(run=leash.run, agent_id=leash.agent_id, name=leash.name, at=now)
            body = msgspec.json.encode(told)
            puts = [(StoredRecord(kind=TOLD, key=leash.run, body=body, owner=owner), None)]
            what = "run.torn-down"
            audit = [AuditRow(at=now, who=ENDED_BY, action=what, subject=leash.run, detail=owner)]
        self._records.change(puts, drops=[(LEASH, leash.run)], audit=audit)
        return ended

    def _set_due(self, owner: str, due: int | None) -> bool:
        """Start or stop the time of everything they have under way; what has ended is let go."""
        puts: list[tuple[StoredRecord, int | None]] = []
        drops: list[tuple[str, str]] = []
        for record in self._records.records(LEASH, owner=owner):
            leash = msgspec.json.decode(record.body, type=DisconnectRule)
            if self._has_ended(leash.run):
                drops.append((LEASH, record.key))
            elif (due is None and record.due is not None) or (
                due is not None and self._ends(leash)
            ):
                puts.append((_record(leash, owner, due), None))
        if puts or drops:
            self._records.change(puts, drops)
        return bool(puts) and due is not None

    def _ends(self, leash: DisconnectRule) -> bool:
        """Whether a run ends when its starter stays away. Switched off, none does."""
        return self.rules.enabled and leash.parting == "teardown"

    def _has_ended(self, run: str) -> bool:
        try:
            return row_ended(self._service.log.row(run))
        except NotFound:
            return True


def _record(leash: DisconnectRule, owner: str, due: int | None = None) -> StoredRecord:
    return StoredRecord(
        kind=LEASH, key=leash.run, body=msgspec.json.encode(leash), owner=owner, due=due
    )


MOST_KEPT = 256


class Looping:
    """Assistants, their loops, and what becomes of them when people leave."""

    def __init__(
        self, service: Service, records: RecordStore, settings: Settings, workspace: Path
    ) -> None:
        self._service = service
        self.assistants = Assistants(service, records, settings, workspace)
        self.disconnect_timers = DisconnectTimers(service, records, departures(os.environ))
        self._kept: OrderedDict[str, LoopStory] = OrderedDict()

    async def start(
        self,
        agent_id: str,
        message: str,
        *,
        by: str,
        parting: OnDisconnect | None = None,
        otherwise: OnDisconnect | None = None,
        allow_unknown_cost: bool = False,
    ) -> str:
        """Start a loop, and remember whose it is. `otherwise` says what happens when its starter
        leaves, if neither the request nor the assistant does.
        """
        assistant = self.assistants.get(agent_id)
        beside = self.disconnect_timers.beside(
            by,
            name=str(assistant.document.get("name", "")),
            parting=parting or assistant.parting or otherwise,
            agent_id=agent_id,
        )
        return await self.assistants.start(
            agent_id, message, by=by, beside=beside, allow_unknown_cost=allow_unknown_cost
        )

    def beside(
        self,
        by: str,
        start: RunStart | None = None,
        *,
        parting: OnDisconnect | None,
        name: str = "",
    ) -> Beside:
        """What is stored with a run that a person starts through another interface."""
        agent_id = ""
        if start is not None and is_loop(start.plan.dialect, start.key):
            agent_id = agent_of(start.key)
        called = start.plan.name if start is not None else name
        return self.disconnect_timers.beside(by, name=called, parting=parting, agent_id=agent_id)

    def known(self, agent_id: str) -> None:
        """NotFound unless there is such an assistant, or a loop that says it is of one."""
        if self.assistants.newest(agent_id) is None:
            self.assistants.get(agent_id)

    async def story(self, agent_id: str) -> LoopStory | None:
        """The loop of an assistant or the last one it had; None if it never had one."""
        row = self.assistants.newest(agent_id)
        return None if row is None else self.story_of(row.run)

    def story_of(self, run: str) -> LoopStory:
        """The story of a loop, up to now."""
        story = self._kept.pop(run, None) or LoopStory(self._service, run)
        story.carry_on()
        self._kept[run] = story
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return story
