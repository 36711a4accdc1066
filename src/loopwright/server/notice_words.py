"""What a fact has to say to the person whose run it is: level, title, actions.

Loops of assistants and loops of roles are told in the words of their own systems, other runs by
what waits for a person and by their ends.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from loopwright.app.dialects import OF_LOOPS
from loopwright.app.leaving import REASON as TORN_DOWN
from loopwright.app.loops import LoopStory, is_loop
from loopwright.app.moments import timestamp
from loopwright.app.service import Service
from loopwright.app.views.certificate import run_certificate
from loopwright.app.views.final_line import final_line_at
from loopwright.app.views.stage_moves import ENDS, StageMoves
from loopwright.app.views.workspace_history import change_words
from loopwright.kernel.facts import GateOpened, RunFinished, RunStarted
from loopwright.model.record import JsonValue
from loopwright.ports import EventLog, Numbered
from loopwright.server import words
from loopwright.server.notices import Level, Notice, notice_id

AT_ONCE = 2_000
MOST_KEPT = 256
TEXT_CHARS = 2_000
TITLE_CHARS = 200
_LEVELS: dict[str, Level] = {"failed": "error"}
_ENDS = {
    "completed": "is completed",
    "exhausted": "met its limit",
    "failed": "has failed",
    "cancelled": "was ended",
}

Words = tuple[str, Level, str, dict[str, JsonValue]]
"""Kind, level, title and what else there is to say."""


class Speaker(Protocol):
    """Says what a fact of one run means."""

    def __call__(self, numbered: Numbered) -> Iterator[Words]: ...


class Teller:
    """Follows runs, and says what is new. Kept for those that moved last."""

    def __init__(self, service: Service, present_since: Callable[[str], int | None]) -> None:
        self._service = service
        self._present_since = present_since
        self._kept: OrderedDict[str, _Following] = OrderedDict()

    def __call__(self, run: str, after: int) -> list[Notice]:
        following = self._kept.pop(run, None) or _Following(self._service, run)
        found = [one for one in following.carry_on() if one.seq > after]
        self._kept[run] = following
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        since = self._present_since(following.to)
        if not following.by_herald or since is None:
            return found
        # Who is here has heard it already.
        return [msgspec.structs.replace(one, told=one.at >= since) for one in found]

    def end_of(self, run: str) -> Notice | None:
        """The notice about the end of a run; None while it has not ended."""
        found = list(_Following(self._service, run).carry_on())
        return found[-1] if found and "certificate" in found[-1].data else None


class _Following:
    """One run up to the fact with the number `seen`."""

    def __init__(self, service: Service, run: str) -> None:
        self._log, self.run, self.seen = service.log, run, 0
        self._service = service
        head = service.log.row(run).headline
        first = service.log.read(run, limit=1)[0].fact
        assert isinstance(first, RunStarted)
        self.to, self._session = first.by, head.session
        self.by_herald = is_loop(head.dialect, head.key)
        self._say: Speaker
        if self.by_herald:
            self._say = _Assistant(LoopStory(service, run))
        elif head.dialect == OF_LOOPS:
            self._say = _Roles(head.name, StageMoves(service.plan(first)))
        else:
            self._say = _Plain(head.name, service.log, run)

    def carry_on(self) -> Iterator[Notice]:
        while facts := self._log.read(self.run, after=self.seen, limit=AT_ONCE):
            for numbered in facts:
                self.seen = numbered.seq
                for part, said in enumerate(self._say(numbered)):
                    yield self._notice(numbered, part, said)

    def _notice(self, numbered: Numbered, part: int, said: Words) -> Notice:
        (kind, level, title, more), at = said, numbered.fact.at
        name = notice_id(self.run, at, numbered.seq, part)
        if isinstance(numbered.fact, RunFinished):
            more = {**more, "certificate": certificate_of(self._service, self.run)}
        actions, base = more.get("actions"), dict[str, JsonValue](id=name, notification=name)
        base |= {"kind": kind, "level": level, "title": title[:TITLE_CHARS], "run": self.run}
        base |= {"seq": numbered.seq, "at": timestamp(at), "actions": []}
        return Notice(
            id=name,
            kind=kind,
            level=level,
            title=title[:TITLE_CHARS],
            run=self.run,
            seq=numbered.seq,
            at=at,
            to=self.to,
            session=self._session,
            actions=[str(one) for one in actions] if isinstance(actions, list) else [],
            data=base | more,
        )


def certificate_of(service: Service, run: str) -> dict[str, JsonValue]:
    """What decided a run, without what programs printed."""
    made = run_certificate(service, run).as_dict()
    checks = made["checks"]
    assert isinstance(checks, list)
    short = [{**one, "evidence": ""} for one in checks if isinstance(one, dict)]
    return {**made, "checks": [*short]}


class _Assistant:
    """The loop of an assistant: exactly what is sent over sockets while it happens."""

    def __init__(self, story: LoopStory) -> None:
        self._story = story

    def __call__(self, numbered: Numbered) -> Iterator[Words]:
        for one in self._story.take(numbered):
            data = words.notification(self._story, one)
            if data is not None:
                level = msgspec.convert(data["level"], Level)
                yield str(data["kind"]), level, str(data["title"]), _cut(data)


class _Roles:
    """A loop of roles: its stages, what blocks it, its end."""

    def __init__(self, name: str, moves: StageMoves) -> None:
        self._name, self._moves = name, moves

    def __call__(self, numbered: Numbered) -> Iterator[Words]:
        fact, move = numbered.fact, self._moves.take(numbered)
        if move is not None and move.status in ENDS and not move.kept:
            about: dict[str, JsonValue] = {
                "iteration": move.iteration,
                "stage_index": move.index,
                "role": move.role,
            }
            where = f"Stage {move.index + 1} ({move.role}) of iteration {move.iteration}"
            if move.status == "failed":
                yield "loop.stage_failed", "error", f"{where} has failed: {move.why}", about
            else:
                yield "loop.stage_completed", "info", f"{where} is completed", about
        elif isinstance(fact, GateOpened):
            yield _asked("loop.blocked", f"{self._name} is blocked: {fact.message}", fact)
        elif isinstance(fact, RunFinished) and fact.reason == TORN_DOWN:
            kind, _, _, about = _ended("loop.torn_down", self._name, fact)
            yield kind, "critical", words.torn_down_title(self._name), about
        elif isinstance(fact, RunFinished):
            kind = "completed" if fact.outcome == "exhausted" else fact.outcome
            yield _ended(f"loop.{kind}", f"The loop {self._name}", fact)


class _Plain:
    """Any other run: what waits for a person, and its end."""

    def __init__(self, name: str, log: EventLog, run: str) -> None:
        self._name, self._log, self._run = name, log, run

    def __call__(self, numbered: Numbered) -> Iterator[Words]:
        fact = numbered.fact
        if isinstance(fact, GateOpened):
            yield _asked("gate.opened", f"{self._name} waits for you: {fact.message}", fact)
        elif isinstance(fact, RunFinished) and fact.reason == TORN_DOWN:
            kind, _, _, about = _ended("run.torn_down", self._name, fact)
            yield kind, "critical", words.torn_down_title(self._name), about
        elif isinstance(fact, RunFinished):
            kind, level, _, about = _ended(f"run.{fact.outcome}", self._name, fact)
            line = final_line_at(self._log, self._run, numbered.seq, details=True)
            yield kind, level, f"{self._name}: {line}", {**about, "summary": line}


def _asked(kind: str, title: str, fact: GateOpened) -> Words:
    answers: list[JsonValue] = list(fact.answers)
    about: dict[str, JsonValue] = {"actions": answers, "gate": fact.gate}
    if fact.snapshot is not None:
        about["changed"] = change_words(fact.snapshot)
    return kind, "action_required", title, about


def _ended(kind: str, who: str, fact: RunFinished) -> Words:
    level = _LEVELS.get(fact.outcome, "info")
    why = fact.error.detail if fact.error and fact.error.detail else fact.reason
    about: dict[str, JsonValue] = {"outcome": fact.outcome, "reason": fact.reason}
    return kind, level, f"{who} {_ENDS[fact.outcome]} ({why})", about


def _cut(data: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """What is kept of a notification: long texts are in the run."""
    kept = dict(data)
    for key, one in data.items():
        if isinstance(one, str) and len(one) > TEXT_CHARS:
            kept |= {key: one[:TEXT_CHARS], "truncated": True}
    return kept
