"""When somebody leaves: loops that their starter does not want to go on alone are ended after a
while, unless they come back in time; and they are told so when they return.

What is due when is written down, so a server that ends meanwhile knows it at its next start.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from loopwright.app.assistants import Parting
from loopwright.app.dialects import THEIR_VARIABLES
from loopwright.app.keeping import Beside
from loopwright.app.service import Service, row_ended
from loopwright.app.settings import PREFIX
from loopwright.errors import LoopwrightError, NotFound
from loopwright.ports import AuditRow, Card, Cards

LEASH = "leash"
TOLD = "torn-down"
ENDED_BY = "loopwright"
REASON = "torn_down"
GRACE_MS = 60_000
MOST_GRACE_MS = 7 * 86_400_000
SWITCH = "TEARDOWN_ON_DISCONNECT"
GRACE = "TEARDOWN_GRACE_MS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Departures:
    """What the operator allows: whether runs of people who have left are ended at all, and how long
    they have to come back.
    """

    enabled: bool = True
    grace_ms: int = GRACE_MS


def departures(env: Mapping[str, str]) -> Departures:
    """From the environment; a variable of ours beats one of the other system."""
    switch, grace = _variable(env, SWITCH), _variable(env, GRACE)
    return Departures(
        enabled=switch != "0",
        grace_ms=_grace(grace),
    )


def _variable(env: Mapping[str, str], name: str) -> str | None:
    return env.get(f"{PREFIX}{name}") or env.get(f"{THEIR_VARIABLES}{name}") or None


def _grace(text: str | None) -> int:
    if text is None or not text.strip().isdecimal() or not text.isascii():
        return GRACE_MS
    return min(int(text.strip()[:12]), MOST_GRACE_MS)


class Leash(msgspec.Struct, frozen=True, kw_only=True):
    """A run and its starter; `agent_id` is empty where it is the loop of no assistant."""

    run: str
    agent_id: str
    name: str
    parting: Parting | None = None


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A loop that was ended while its starter was away."""

    run: str
    agent_id: str
    name: str
    at: int


class Leaving:
    """Who has left, and what that means for their loops."""

    def __init__(self, service: Service, cards: Cards, rules: Departures) -> None:
        self._service = service
        self._cards = cards
        self.rules = rules

    def beside(
        self, owner: str, *, name: str, parting: Parting | None = None, agent_id: str = ""
    ) -> Beside:
        """Remember whose run this is that is about to be started, with its first fact. Only the
        loops of assistants are remembered where nothing could end them.
        """

        def cards(run: str) -> list[Card]:
            leash = Leash(run=run, agent_id=agent_id, name=name, parting=parting)
            return [_card(leash, owner)] if agent_id or self._ends(leash) else []

        return cards

    def held(self, owner: str) -> list[str]:
        """The loops of their assistants, as far as they are known to be under way."""
        cards = self._cards.cards(LEASH, owner=owner)
        leashes = [msgspec.json.decode(card.body, type=Leash) for card in cards]
        return [one.run for one in leashes if one.agent_id and not self._has_ended(one.run)]

    def left(self, owner: str, *, at_least_ms: int = 0) -> bool:
        """Their last socket is gone: from now on the time runs. Whether anything is due."""
        wait = max(self.rules.grace_ms, at_least_ms)
        return self._set_due(owner, self._service.clock.now_ms() + wait)

    def came_back(self, owner: str) -> list[Ended]:
        """They are here again: nothing is due, and what was ended meanwhile is told once."""
        self._set_due(owner, None)
        cards = self._cards.cards(TOLD, owner=owner)
        if cards:
            self._cards.change(drops=[(TOLD, card.key) for card in cards])
        return [msgspec.json.decode(card.body, type=Ended) for card in cards]

    async def tear_down(self, present: Callable[[str], bool]) -> list[str]:
        """End what is due and whose starter is away. One that cannot be ended keeps no other from
        it, and is tried again next time.
        """
        torn: list[str] = []
        for card in self._cards.cards(LEASH, due_by=self._service.clock.now_ms()):
            leash = msgspec.json.decode(card.body, type=Leash)
            if present(card.owner):
                continue
            try:
                if await self._end(leash, card.owner):
                    torn.append(leash.run)
            except LoopwrightError:
                continue
        return torn

    async def _end(self, leash: Leash, owner: str) -> bool:
        try:
            ended = await self._service.stop(leash.run, by=ENDED_BY, reason=REASON)
        except NotFound:  # forgotten meanwhile
            ended = False
        now = self._service.clock.now_ms()
        puts: list[tuple[Card, int | None]] = []
        audit: list[AuditRow] = []
        if ended:
            told = Ended(run=leash.run, agent_id=leash.agent_id, name=leash.name, at=now)
            body = msgspec.json.encode(told)
            puts = [(Card(kind=TOLD, key=leash.run, body=body, owner=owner), None)]
            what = "run.torn-down"
            audit = [AuditRow(at=now, who=ENDED_BY, action=what, subject=leash.run, detail=owner)]
        self._cards.change(puts, drops=[(LEASH, leash.run)], audit=audit)
        return ended

    def _set_due(self, owner: str, due: int | None) -> bool:
        """Start or stop the time of everything they have under way; what has ended is let go."""
        puts: list[tuple[Card, int | None]] = []
        drops: list[tuple[str, str]] = []
        for card in self._cards.cards(LEASH, owner=owner):
            leash = msgspec.json.decode(card.body, type=Leash)
            if self._has_ended(leash.run):
                drops.append((LEASH, card.key))
            elif (due is None and card.due is not None) or (due is not None and self._ends(leash)):
                puts.append((_card(leash, owner, due), None))
        if puts or drops:
            self._cards.change(puts, drops)
        return bool(puts) and due is not None

    def _ends(self, leash: Leash) -> bool:
        """Whether a run ends when its starter stays away. Switched off, none does."""
        return self.rules.enabled and leash.parting == "teardown"

    def _has_ended(self, run: str) -> bool:
        try:
            return row_ended(self._service.log.row(run))
        except NotFound:
            return True


def _card(leash: Leash, owner: str, due: int | None = None) -> Card:
    return Card(kind=LEASH, key=leash.run, body=msgspec.json.encode(leash), owner=owner, due=due)
