"""Runs with a chat model for the kill walk: real tools on real files, a model that says the same in
every life, and a person who decides from another process.

Each write adds a line to a file by replacing its last one, so one that is done twice is seen.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from loopwright.engine.activity import LiveBus
from loopwright.engine.services import schema_problem
from loopwright.errors import Conflict
from loopwright.gateway.turns import INTERRUPTED, ModelTurns
from loopwright.kernel.event_parts import ModelCall, ToolCall
from loopwright.kernel.events import (
    AnyEvent,
    EffectDone,
    EffectFailed,
    EffectRequested,
    GateAnswered,
)
from loopwright.model.actions import CallAgent, ModelCycle, Repeat, Step
from loopwright.model.chat import ToolMessage
from loopwright.model.checks import NoCalls
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import ConversationHistory
from loopwright.model.record import literal
from loopwright.operations.agents.tool_grants import grant_of
from loopwright.operations.agents.tools import open_workshop
from loopwright.operations.gates import CallAnswer
from loopwright.operations.runs import Service
from loopwright.ports import Answer, EffectJob
from loopwright.testing.models import ScriptedModel
from loopwright.testing.wires import ScriptedCall, ScriptedTurn, ScriptedUsage, WireScript
from loopwright.tools.results import FolderResultStore
from tests.faults.people import question

NOTES = "notes"  # beside the log: what the children did
LEDGER = "ledger.txt"
MARK = "(end)"
LONG = "a line of a file that is long\n" * 150
SHOWN = "shown"  # beside the log too: which calls the model was told about as interrupted
FILES = {LEDGER: f"{MARK}\n", "task.txt": "add lines\n", "long.txt": LONG}

CODER = Agent(
    spec="model:local/tiny",
    tools=("fs.read", "fs.edit", "fs.write"),
    approvals={"fs.write": "always"},
    options={"context_window": 2_500},
)


# -- what the model says ---------------------------------------------------------------------------


def _read(id: str, path: str) -> ScriptedCall:
    return ScriptedCall("fs.read", {"path": path}, id=id)


def _add(id: str) -> ScriptedCall:
    """A line for the ledger; its tool is one that must not be repeated."""
    return ScriptedCall("fs.edit", {"path": LEDGER, "old": MARK, "new": f"{id}\n{MARK}"}, id=id)


def _write(id: str, path: str) -> ScriptedCall:
    return ScriptedCall("fs.write", {"path": path, "content": f"{id}\n"}, id=id)


USED = ScriptedUsage(input=900, output=100)
TURNS: dict[str, tuple[ScriptedTurn, ...]] = {
    "work": (
        ScriptedTurn(text="look", calls=(_read("r1", "task.txt"), _add("a1")), usage=USED),
        ScriptedTurn(
            text="ask",
            calls=(_write("w2", "approved.txt"), _add("a2"), _write("v2", "no.txt")),
            usage=USED,
        ),
        ScriptedTurn(
            text="read", calls=(_read("r3", "long.txt"), _read("x3", "gone.txt")), usage=USED
        ),
        ScriptedTurn(
            text="go on", calls=(_add("a4"),), usage=ScriptedUsage(input=2_300, output=50)
        ),
        ScriptedTurn(
            calls=(
                ScriptedCall("submit_result", {"lines": 3}, id="s5"),
                ScriptedCall("submit_result", {"lines": 9}, id="t5"),
                _add("a5"),
            ),
            usage=USED,
        ),
    ),
    "tidy": (
        *(
            ScriptedTurn(text=LONG[:900], calls=(_add(f"b{n}"), _add(f"c{n}")), usage=USED)
            for n in range(4)
        ),
        ScriptedTurn(text="done", usage=USED),
    ),
}
SUMMARY = ScriptedTurn(text="lines were added", usage=USED)


def said(job: EffectJob) -> ScriptedTurn:
    """The turn of a job, by its place and pass alone."""
    if isinstance(job.call, ModelCall) and job.call.role == "summary":
        return SUMMARY
    turns = TURNS[job.step]
    return turns[min(job.iteration, len(turns)) - 1]


class Chat:
    """The performer of chat models with real tools, and a script for a model."""

    def __init__(self, home: Path) -> None:
        self._home = home
        workshop = open_workshop({"PATH": os.environ.get("PATH", "")}, "walk")
        shelf = FolderResultStore(home / "results")
        self._box = workshop.toolbox(str(home), grant_of(CODER, {}), shelf)

    async def perform(self, job: EffectJob) -> Answer:
        if isinstance(job.call, ModelCall):
            self._note(job)
        model = ScriptedModel(WireScript(strict=True), choose=lambda _: said(job))
        turns = ModelTurns(model, lambda _: self._box, LiveBus(), schema_problem)
        return await turns.perform(job)

    def _note(self, job: EffectJob) -> None:
        told = [
            result.id
            for message in job.chat.messages
            if isinstance(message, ToolMessage)
            for result in message.results
            if INTERRUPTED[:40] in result.text
        ]
        with (self._home / SHOWN).open("a") as file:
            file.write(" ".join([job.effect, *told]) + "\n")


# -- the person ------------------------------------------------------------------------------------


CHANGED = CallAnswer(arguments='{"path":"approved.txt","content":"as the person wants\\n"}')


async def decide_apart(service: Service, run: str) -> None:
    """Answers what is open, from a process that drives nothing; a second answer is refused."""
    for row in service.log.gates(run):
        asked = question(service, row.gate)
        assert asked is not None
        if "no.txt" in service.read_text(asked.output):
            await service.answer(row.gate, "reject", text="not this one", by="ann")
        else:
            await service.answer(row.gate, "approve", by="ann", call=CHANGED)
        try:
            await service.answer(row.gate, "approve", by="bob")
        except Conflict:
            continue
        raise AssertionError(f"{row.gate} was decided twice")


# -- what must be true afterwards ------------------------------------------------------------------


def judge_files(home: Path, events: Sequence[AnyEvent]) -> Iterator[str]:
    """Each line was added at most once, and exactly once when the tool said so; what was rejected
    is not there, what was approved is as the person wants it; the model knows of every call that
    nobody saw the end of.
    """
    lines = Counter((home / LEDGER).read_text().splitlines())
    calls = {
        event.effect: event.call
        for event in events
        if isinstance(event, EffectRequested) and isinstance(event.call, ToolCall)
    }
    interrupted: dict[str, str] = {}
    for event in events:
        if not isinstance(event, EffectDone | EffectFailed) or event.effect not in calls:
            continue
        call = calls[event.effect]
        if isinstance(event, EffectFailed) and event.error.type == "interrupted":
            if call.tool == "fs.read":
                yield f"{event.effect} was not done again, and could have been"
            interrupted[call.call] = event.effect
        elif call.tool == "fs.edit" and lines[call.call] != 1:
            yield f"{event.effect} was done {lines[call.call]} times"
    yield from (f"{name} was done {n} times" for name, n in lines.items() if n > 1)
    yield from _told(home, events, interrupted)
    yield from _were_begun(home, events, set(interrupted.values()))
    yield from _decided(home, events, set(interrupted))


def _were_begun(home: Path, events: Sequence[AnyEvent], interrupted: set[str]) -> Iterator[str]:
    """Only what was asked for in an earlier life may have been interrupted."""
    asked = {f.effect: n for n, f in enumerate(events, 1) if isinstance(f, EffectRequested)}
    opened = 0
    last: dict[str, int] = {}  # with how many events the life began in which it was begun last
    for line in (home / NOTES).read_text().splitlines():
        what, word, *_ = line.split()
        opened = int(word) if what == "opened" else opened
        if what == "begun":
            last[word] = opened
    for effect in interrupted:
        if last[effect] < asked[effect]:
            yield f"{effect} is called interrupted, and nobody had begun it"


def _told(home: Path, events: Sequence[AnyEvent], interrupted: dict[str, str]) -> Iterator[str]:
    shown = dict[str, list[str]]()
    for line in (home / SHOWN).read_text().splitlines():
        effect, *told = line.split()
        shown[effect] = told
    for name, effect in interrupted.items():
        loop, _, number = effect.partition("/")[0].rpartition(".")
        following = f"{loop}.{int(number) + 1}"
        asked = [f for f in events if isinstance(f, EffectRequested) and f.path == following]
        turns = [f for f in asked if isinstance(f.call, ModelCall) and f.call.role == "turn"]
        model = turns[0].effect if turns else None
        if model is not None and name not in shown[model]:
            yield f"the model is not told about {effect} in {model}"


def _decided(home: Path, events: Sequence[AnyEvent], interrupted: set[str]) -> Iterator[str]:
    answers = Counter(event.gate for event in events if isinstance(event, GateAnswered))
    if any(times > 1 for times in answers.values()):
        yield f"decided more than once: {answers}"
    if any(isinstance(event, GateAnswered) and event.by != "ann" for event in events):
        yield "somebody decided what was decided already"
    if (home / "no.txt").exists():
        yield "what was rejected was done"
    if not answers:
        return
    approved = home / "approved.txt"
    if "w2" not in interrupted and not approved.exists():
        yield "what was approved was not done"
    if approved.exists() and approved.read_text() != "as the person wants\n":
        yield "what was approved was done otherwise"


# -- plans -----------------------------------------------------------------------------------------

WORK = Step(
    id="work",
    action=CallAgent(
        agent="coder",
        prompt=literal("Add lines."),
        schema={"type": "object", "required": ["lines"]},
    ),
)
TIDY = Step(
    id="tidy",
    action=Repeat(
        body=ModelCycle(agent="coder", prompt=literal("Tidy up."), nudge="Go on."),
        max=6,
        until=NoCalls(),
        memory=ConversationHistory(window=900, strategy="periodic-summary", summaries=2),
    ),
)
WORKING = Plan(name="working", steps=(WORK,), agents={"coder": CODER})
TIDYING = Plan(name="tidying", steps=(TIDY,), agents={"coder": CODER})
