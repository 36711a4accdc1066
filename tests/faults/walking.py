"""The kill walk: let a child die at every point that it meets, start it again, judge the log."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

from loopwright.kernel.events import AnyEvent, EffectDone, EffectFailed, RunFinished, encode_events
from loopwright.model.plan import content_hash
from loopwright.stores.sqlite.log import open_sqlite_log
from tests.faults.chatting import NOTES
from tests.faults.child import LOG
from tests.faults.scenarios import SCENARIOS
from tests.support.laws.log import check_invariants

ROOT = Path(__file__).resolve().parents[2]
KILLED = -9
_TIMES = re.compile(r'"(at|until)":\d+|,"ms":\d+')
_GATES = re.compile(r"gate_[0-9a-f]+")


class Children:
    """The program that makes children, and what they leave."""

    def __init__(self, scenario: str, mutant: str = "") -> None:
        self.scenario = scenario
        self.mutant = mutant
        self._program = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.child"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def live(self, home: Path, kill: int = 0) -> int:
        """One life of a child in this folder; answers how it ended, -9 when it was killed. A child
        that hangs is an error of its own, which no test takes for a bug that was found.
        """
        order = {"scenario": self.scenario, "home": str(home), "kill": kill, "mutant": self.mutant}
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(json.dumps(order) + "\n")
        self._program.stdin.flush()
        ended = int(self._program.stdout.readline())
        assert ended != -signal.SIGALRM, f"a child with {order} did not end"
        return ended

    def close(self) -> None:
        self._program.communicate()


def events_of(home: Path) -> list[AnyEvent]:
    log = open_sqlite_log(home / LOG, alive=lambda owner: False)
    try:
        return [numbered.event for row in log.rows() for numbered in log.read(row.run)]
    finally:
        log.close()


def plain(events: Iterable[AnyEvent], home: Path) -> list[str]:
    """Events without what differs between any two runs: times, ids, folders."""
    events = list(events)
    texts = [encode_events([event]).decode() for event in events]
    run, gates = getattr(events[0], "run", ""), dict[str, str]()

    def gate(found: re.Match[str]) -> str:
        return gates.setdefault(found[0], f"gate {len(gates)}")

    return [
        _GATES.sub(gate, _TIMES.sub("", text).replace(run, "RUN").replace(str(home), "HOME"))
        for text in texts
    ]


def judge(home: Path, scenario: str) -> list[str]:
    """What is wrong with a log whose run has ended, with what the children noted, and with the
    files that they worked on.
    """
    log = open_sqlite_log(home / LOG, alive=lambda owner: False)
    try:
        rows = log.rows()
        if len(rows) != 1:
            return [f"there are {len(rows)} runs"]
        problems = [*check_invariants(log), *log.check()]
        events = [numbered.event for numbered in log.read(rows[0].run)]
    finally:
        log.close()
    if not events or not isinstance(events[-1], RunFinished):
        problems.append("the run has not ended")
    files = SCENARIOS[scenario].judge(home, events)
    return [*problems, *_notes((home / NOTES).read_text().splitlines(), events), *files]


def _notes(lines: list[str], events: list[AnyEvent]) -> Iterator[str]:
    """Nothing that was told is lost, nothing that has an answer is done again."""
    answered = {
        event.effect: seq
        for seq, event in enumerate(events, start=1)
        if isinstance(event, EffectDone | EffectFailed)
    }
    durable, begun = 0, set[str]()
    for line in lines:
        what, word, *rest = line.split()
        if what == "opened":
            durable, begun = max(durable, int(word)), set()
        elif what == "told":
            durable = max(durable, int(word))
            if content_hash(encode_events(events[: int(word)])) != rest[0]:
                yield f"the first {word} facts are not those that were told as durable"
        elif what == "unasked":
            yield f"{word} was begun before its request was durable"
        else:
            if answered.get(word, len(events) + 1) <= durable:
                yield f"{word} was begun although its answer was durable"
            if word in begun:
                yield f"{word} was begun twice in one life"
            begun.add(word)


def _unrepeated(events: list[str]) -> list[str]:
    """Events without those that tell that a call is made again."""
    return [event for event in events if '"effect.repeated"' not in event]


def compare(kind: str, reference: Path, home: Path) -> list[str]:
    """How a log differs from the one of an undisturbed run, apart from calls made again."""
    here = _unrepeated(plain(events_of(home), home))
    there = plain(events_of(reference), reference)
    match kind:
        case "facts" if here != there:
            return [f"the facts differ: {here} instead of {there}"]
        case "any order" if Counter(here) != Counter(there):
            return [f"other facts: {(Counter(here) - Counter(there)).elements()}"]
        case "end" if here[-1:] != there[-1:]:
            return [f"it ends with {here[-1:]} instead of {there[-1:]}"]
        case _:
            return []


def walk(children: Children, folder: Path, kind: str, points: Iterable[int]) -> Iterator[list[str]]:
    """First a life without death, then die at each of these points in turn, until one lies behind
    the end. One list for each: what was wrong afterwards.
    """
    reference = folder / "undisturbed"
    reference.mkdir()
    yield _last_life(children, reference)
    for point in points:
        home = folder / str(point)
        home.mkdir()
        ended = children.live(home, kill=point)
        if ended == 0:
            return
        if ended != KILLED:
            yield [f"point {point}: the child ended with {ended}"]
            continue
        yield (_remains(home) or _last_life(children, home) or compare(kind, reference, home))
        shutil.rmtree(home)


def _remains(home: Path) -> list[str]:
    """What is wrong with what a death left behind."""
    if not (home / LOG).exists():
        return []
    log = open_sqlite_log(home / LOG, alive=lambda owner: False)
    try:
        return check_invariants(log)
    finally:
        log.close()


def _last_life(children: Children, home: Path) -> list[str]:
    ended = children.live(home)
    return judge(home, children.scenario) if ended == 0 else [f"the last child ended with {ended}"]


def stumble(children: Children, home: Path, dice: Random, most: int) -> int:
    """Die again and again at points by chance, then live to the end; answers how many died."""
    died = 0
    while died < most and children.live(home, kill=dice.randint(1, 60)) == KILLED:
        died += 1
    return died
