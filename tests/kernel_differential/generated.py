"""Histories by chance, made with one kernel alone: quick, and with all that can happen to a run.

Answers, late and double answers, timers, decisions, pauses, stops, edits, messages, tools that
agents use, questions, activity, crashes, reopening and forks: what happens next is decided by dice.
What is asked of a run is what the rest of the source would ask of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec

from loopwright.engine.effects import answer_event, question_event
from loopwright.engine.services import stored_text
from loopwright.kernel.bodies.conversation import SUBMIT
from loopwright.kernel.event_parts import ActivityNote, AnyCall, DiffStat, Failure, Snapshot
from loopwright.kernel.events import (
    AgentChanged,
    AnyEvent,
    CancelRequested,
    EffectActivity,
    GateAnswered,
    MessageSent,
    RunEdited,
    RunForked,
    RunPaused,
    RunReopened,
    RunResumed,
    RunStarted,
    Usage,
)
from loopwright.kernel.state import ANY_AGENT, COORDINATOR, PERSON
from loopwright.model.policy import Limits
from loopwright.model.record import Text
from loopwright.ports import Answer, EffectFailure, EffectSuccess, Question
from tests.faults.replies import random_answer, schema_problem
from tests.faults.talking import edited, edited_arguments
from tests.kernel_differential.harness import History, Kernel, Move, Player
from tests.kernel_differential.plans import varied_plan

START = 1_700_000_000_000
TROUBLED_MOVES = (15, 60)
CALM_MOVES = 120
LATER_MOVES = (5, 25)
STEPS_OF_TIME = (0, 0, 0, 0, 1, 1, 50, 200, 700, 5_000)

WORDS = (
    "ok",
    "DONE",
    "STATUS: BLOCKED\nno key",
    "APPROVED",
    "APPROVED",
    "NEEDS CHANGES: the name is wrong",
    "<promise>DONE</promise>",
    "<done>DONE</done> so it is",
    '{"done": true}',
)
FAILURES = ("overloaded", "overloaded", "rate_limited", "agent", "exit", "bad_result", "crashed")
FORWARD = (
    '{"tools": [{"name": "forward_to_agent", "args": {"target_step_id": "%s", "text": "x"%s}}]}'
)
COORDINATOR_WORDS = (
    "ok",
    "DONE",
    "So far so good.",
    "",
    '{"tools": [{"name": "narrate", "args": {"text": "It goes on."}}]}',
    '{"tools": [{"name": "finalize", "args": {"summary": "That was all."}}]}',
    FORWARD % ("talk", ""),
    FORWARD % ("stages.code", ""),
    FORWARD % ("s20", ', "kind": "cancel"'),
    FORWARD % ("s20", ""),
    FORWARD % ("s21", ', "kind": "context_update"'),
    FORWARD % ("nobody", ""),
)
TOOL_USES: tuple[tuple[str, object], ...] = (
    ("send_message", {"text": "I need help."}),
    ("send_message", {"text": ""}),
    ("read_inbox", {}),
    ("read_inbox", {}),
    ("forward_to_agent", {"target_step_id": "s20", "text": "look", "kind": "context_update"}),
    ("forward_to_agent", {"target_step_id": "s10", "kind": "cancel"}),
    ("narrate", {"text": "It goes on."}),
    ("finalize", {"summary": "Enough."}),
    ("no_such_tool", None),
)


def generated(seed: int, kernel: Kernel) -> History:
    """The history of a seed, as this kernel makes it."""
    return _Making(seed, kernel).make()


class _Making:
    def __init__(self, seed: int, kernel: Kernel) -> None:
        self.dice = Random(seed)
        self.kernel = kernel
        self.history = History(
            name=f"generated {seed}",
            plan=varied_plan(self.dice),
            check_schema=schema_problem,
            exact=True,
            cuts=(self.dice.random(), self.dice.random()),
        )
        self.player = Player(kernel, self.history)
        self.now = START
        self.failing = self.dice.choice((0.02, 0.1, 0.3, 0.6))  # so many of the calls of agents
        self.answers: list[bytes] = []  # that were given
        self.asked = 0
        self.forks = 0

    @property
    def state(self) -> Any:
        return self.player.state

    # -- the whole history -------------------------------------------------------------------------

    def make(self) -> History:
        self._start()
        self._trouble(self.dice.randint(*TROUBLED_MOVES))
        self._calm()
        for _ in range(self.dice.choice((0, 1, 2, 3))):
            if self.dice.random() < 0.2:
                self._fork()
            elif self.state.finished is not None:
                self._reopen()
            self._trouble(self.dice.randint(*LATER_MOVES))
            self._calm()
        if self.state.finished is None and self.dice.random() < 0.5:
            self._stop()
            self._calm()
        return self.history

    def _trouble(self, moves: int) -> None:
        kinds = list(_HAPPEN)
        weights = [weight for weight, _ in _HAPPEN.values()]
        for kind in self.dice.choices(kinds, weights, k=moves):
            self._elapse()
            if self.state.finished is not None and kind != "again":
                return
            _HAPPEN[kind][1](self)

    def _calm(self) -> None:
        """Whatever is asked is answered, until the run ends or has gone on for long."""
        for _ in range(CALM_MOVES):
            self._elapse()
            if self.state.finished is not None:
                return
            if self.state.control.paused:
                self._event(RunResumed(at=self.now, by="ann"))
            elif self._calls() and self.dice.random() < 0.8:
                self._answer()
            elif self.state.gates and self.dice.random() < 0.8:
                self._decide()
            elif self.state.queues.timers:
                self._timer()
            elif not self._calls() and not self.state.gates:
                return

    def _elapse(self) -> None:
        self.now += self.dice.choice(STEPS_OF_TIME)

    # -- moves -------------------------------------------------------------------------------------

    def _move(self, move: Move) -> None:
        said = self.player.move(move)
        if said and said[0].startswith(b"raised "):
            raise AssertionError(f"{self.history.name}: kernel {said[0].decode()} at {move}")
        self.history.moves.append(replace(move, recorded=said))

    def _event(self, *log_events: AnyEvent) -> None:
        events = tuple(msgspec.json.encode(event) for event in log_events)
        self._move(Move(at=self.now, events=events))

    def _keep(self, text: str) -> Text:
        kept, content = stored_text(text)
        self.history.contents.update(content)
        return kept

    keep = _keep  # as `answer_event` calls it

    def _start(self) -> None:
        self._event(
            RunStarted(
                at=self.now,
                run="run_a",
                plan="p",
                name="chance",
                message=self.dice.choice(("", "Do the work.")),
                inputs={"n": 3},
                workspace="/ws",
                labels=self.dice.choice(((), ("nightly",))),
            )
        )

    def _calls(self) -> list[Any]:
        return [one for one in self.state.pending.values() if not hasattr(one.call, "until")]

    def _agents(self) -> list[Any]:
        return [one for one in self._calls() if hasattr(one.call, "agent")]

    # -- answers -----------------------------------------------------------------------------------

    def _answer(self) -> None:
        calls = self._calls()
        if calls:
            pending = self.dice.choice(calls)
            self._answered(pending, self._said(pending))

    def _answered(self, pending: Any, answer: Answer) -> None:
        event = answer_event(pending, answer, self, self.now)  # type: ignore[arg-type]
        self._event(event)
        self.answers.append(self.history.moves[-1].events[0])

    def _said(self, pending: Any) -> Answer:
        """An answer of the simulation, or one to a call that it does not know."""
        dice, call = self.dice, _call(pending)
        match str(type(call).__struct_config__.tag):
            case "snapshot":
                return self._snapshot()
            case "lookup" | "match":
                code = dice.choice((0, 0, 1, None))
                return EffectSuccess(output="found" if code == 0 else "", code=code)
            case "agent" if dice.random() < self.failing:
                return EffectFailure(error=Failure(type=dice.choice(FAILURES), detail="half of it"))
            case "agent" if call.role in ("coordinator", "reply"):
                return EffectSuccess(output=dice.choice(COORDINATOR_WORDS), session="lead")
            case "agent" if dice.random() < 0.6:
                usage = dice.choice((None, Usage(dice.randrange(20), 5, 0.01)))
                return EffectSuccess(output=dice.choice(WORDS), usage=usage)
            case _:
                job = SimpleNamespace(
                    call=call,
                    effect=pending.effect,
                    chat=SimpleNamespace(
                        offers=(SimpleNamespace(name=SUBMIT),) if dice.random() < 0.4 else (),
                        forced=dice.random() < 0.2,
                        task="make it work",
                    ),
                    again=dice.random() < 0.1,
                )
                return self._counted(random_answer(dice, job))  # type: ignore[arg-type]

    def _counted(self, answer: Answer) -> Answer:
        """An answer with any number of tokens, where it has a number of them."""
        if answer.usage is not None and self.dice.random() < 0.7:
            used = Usage(self.dice.randrange(1_000), 5, answer.usage.usd)
            return msgspec.structs.replace(answer, usage=used)
        return answer

    def _snapshot(self) -> Answer:
        dice = self.dice
        if dice.random() < 0.1:
            return EffectFailure(error=Failure(type=dice.choice(("wall_timeout", "internal"))))
        files = dice.choice((0, 0, 1, 3))
        stat = DiffStat(files=files, insertions=10 * files, deletions=files)
        spoilt = ("tests/test_a.py",) if dice.random() < 0.15 else ()
        return EffectSuccess(
            snapshot=Snapshot(
                tree=f"tree{dice.randrange(6)}",
                changed=stat,
                total=stat,
                paths=("a.py",) * files,
                protected=spoilt,
                protected_count=len(spoilt),
                watched=dice.choice(((), (), ("tests/check.sh",))),
            )
        )

    def _answer_again(self) -> None:
        """An answer that was given before: it must change nothing."""
        if self.answers:
            self._move(Move(at=self.now, events=(self.dice.choice(self.answers),)))

    def _answer_several(self) -> None:
        """Several answers in one append."""
        calls = self._calls()
        chosen = self.dice.sample(calls, min(len(calls), 3))
        if chosen:
            told = [answer_event(one, self._said(one), self, self.now) for one in chosen]  # type: ignore[arg-type]
            self._event(*told)

    def _timer(self) -> None:
        timers = sorted((until, effect) for effect, until in self.state.queues.timers.items())
        if timers:
            until, effect = timers[0] if self.dice.random() < 0.95 else self.dice.choice(timers)
            self.now = max(self.now, until)
            self._answered(self.state.pending[effect], EffectSuccess())

    def _end_between_steps(self) -> None:
        """All answers, and a deadline or a stop, in one append: it ends what has not begun yet."""
        calls, dice = self._calls(), self.dice
        told = [answer_event(one, self._said(one), self, self.now) for one in calls]  # type: ignore[arg-type]
        due = [one for one in self.state.queues.timers if "deadline#" in one]
        if due and dice.random() < 0.8:
            timer = self.state.pending[dice.choice(due)]
            self.now = max(self.now, timer.call.until)
            told.append(answer_event(timer, EffectSuccess(), self, self.now))  # type: ignore[arg-type]
            self._event(*told)
        elif told:
            self._event(*told, CancelRequested(at=self.now, by="ann"))

    # -- people ------------------------------------------------------------------------------------

    def _decide(self) -> None:
        if not self.state.gates:
            return
        gate = self.dice.choice(list(self.state.gates.values()))
        decision = self.dice.choice(gate.answers)
        arguments = edited_arguments(self.dice) if gate.call is not None else None
        self._event(
            GateAnswered(
                at=self.now,
                path=gate.path,
                iteration=gate.owner.iteration,
                gate=gate.gate,
                decision=decision,
                text=self.dice.choice(("", "a", "a and look again")),
                by="ann",
                arguments=None if arguments is None else self._keep(arguments),
                remember=gate.call is not None and self.dice.random() < 0.2,
            )
        )

    def _pause(self) -> None:
        pause = RunResumed if self.state.control.paused else RunPaused
        self._event(pause(at=self.now, by="ann"))

    def _wait_while_paused(self) -> None:
        """A pause that lasts until all calls have ended, and sometimes until a deadline or a stop:
        then steps that are ready have not begun.
        """
        if not self.state.control.paused:
            self._event(RunPaused(at=self.now, by="ann"))
        while calls := self._calls():
            self._answered(calls[0], self._said(calls[0]))
        end = self.dice.choice((None, self._end_between_steps, self._stop))
        if end is not None and self.state.finished is None:
            end()

    def _stop(self) -> None:
        self._event(CancelRequested(at=self.now, by="ann"))

    def _edit(self) -> None:
        dice = self.dice
        self._event(
            RunEdited(
                at=self.now,
                message=dice.choice((None, "Do it well.")),
                passes=dice.choice(
                    (None, 3, 1, 2, 4)
                ),  # 0, no limit, may be decided about for ever
                metadata=dice.choice((None, {"ticket": "A-1"}, {"ticket": None})),
                labels=dice.choice((None, (), ("urgent",))),
                by="ann",
            )
        )

    def _change_agent(self) -> None:
        name = self.dice.choice(list(self.state.plan.agents))
        becomes = edited(self.dice, self.state.plan.agents[name])
        self._event(AgentChanged(at=self.now, agent=name, becomes=becomes, by="ann"))

    def _message(self) -> None:
        """From a person: to the coordinator, to any agent, or to a step that can be reached."""
        steps: Sequence[str] = self.kernel.function("reachable")(self.state)
        first = COORDINATOR if self.state.plan.coordinator is not None else ANY_AGENT
        to = self.dice.choice((first, *steps))
        tells = to == first or self.dice.random() < 0.5
        intent = "tell" if tells else self.dice.choice(("info", "cancel", "context_update"))
        self._event(
            MessageSent(
                at=self.now,
                path="",
                to=to,
                text=self._keep(self.dice.choice(("Count from one.", "long " * 300))),
                sender=self.dice.choice((PERSON, "ann")),
                message=f"m{self.state.mail.sent + 1}",
                intent=intent,
            )
        )

    # -- agents under way --------------------------------------------------------------------------

    def _use(self) -> None:
        agents = self._agents()
        if agents and self.state.control.cancel is None:
            pending = self.dice.choice(agents)
            if getattr(pending.call, "role", "") in ("turn", "summary"):
                return  # a model has no talk, its tools have
            tool, arguments = self.dice.choice(TOOL_USES)
            detail = (pending.effect, tool, arguments)
            self._move(Move(kind="use", at=self.now, detail=detail))

    def _question(self) -> None:
        agents = self._agents()
        if agents:
            self.asked += 1
            number = self.dice.randint(1, self.asked)
            asks = Question(message="May I?", about="rm -r build", number=number)
            event = question_event(self.state.run, self.dice.choice(agents), asks, self.now)
            if event.gate not in self.state.gates:
                self._event(event)

    def _activity(self) -> None:
        agents = self._agents()
        if agents:
            pending = self.dice.choice(agents)
            note = ActivityNote(number=1, at=self.now, kind="command", tool="Bash", target="ls")
            usage = Usage(self.dice.randrange(30), 5, self.dice.choice((0.0, 0.01, 0.06)))
            self._event(
                EffectActivity(
                    at=self.now,
                    path=pending.owner.inside,
                    iteration=pending.owner.iteration,
                    effect=pending.effect,
                    agent=pending.call.agent,
                    entries=(note,),
                    usage=self.dice.choice((None, usage)),
                )
            )

    # -- crashes, reopening, forks -----------------------------------------------------------------

    def _crash(self) -> None:
        self._move(Move(kind="reload", at=self.now))
        self._move(Move(kind="vanish", at=self.now))

    def _reopen(self) -> None:
        dice, outcome = self.dice, self.state.finished.outcome
        if outcome == "completed":
            return
        stage = None
        if outcome != "cancelled" and self.kernel.function("stopped_half_way")(self.state):
            stage = dice.choice((None, "retry", "skip"))
        mode = dice.choice(("continue", "continue", "continue", "restart"))
        if stage is not None or (outcome != "cancelled" and dice.random() < 0.1):
            mode = ""
        time_ms = dice.choice((None, None, 600_000))
        limits = Limits(usd=1_000.0, tokens=9_000_000, wall_ms=time_ms)
        self._event(
            RunReopened(
                at=self.now,
                by="ann",
                mode=mode,
                stage=stage,
                note=dice.choice(("", "Use fewer words.")) if stage else "",
                limits=limits if time_ms or dice.random() < 0.6 else None,
                time_ms=time_ms,
                passes=dice.choice((None, None, 4, 6)),
                accept_changes=bool(self.state.plan.workspace.protect) and dice.random() < 0.5,
                sandbox=dice.choice((None, None, "workspace")),
                uncovered=dice.choice((None, None, ("worker",))),
                allow_unknown_cost=dice.random() < 0.2,
            )
        )

    def _fork(self) -> None:
        events = [self.kernel.decode(event) for event in self.player.log]
        found = self.kernel.function("places")(events)
        completed = [place for place, how in found.items() if how == "completed"]
        if not completed:
            return
        self.forks += 1
        place = self.dice.choice(completed)
        forked = RunForked(
            at=self.now,
            parent=self.state.run,
            place=place,
            text=self.dice.choice(("", "Be brief.")),
            by="ann",
            passes=self.dice.choice((None, 5)),
        )
        self._move(
            Move(
                kind="fork",
                at=self.now,
                events=(msgspec.json.encode(forked),),
                detail=(place, f"run_fork{self.forks}"),
            )
        )


def _call(pending: Any) -> Any:
    """The call of an effect as a record of the product, whichever kernel has requested it."""
    return msgspec.json.decode(msgspec.json.encode(pending.call), type=AnyCall)


_HAPPEN: dict[str, tuple[float, Callable[[_Making], None]]] = {
    "answer": (40, _Making._answer),
    "timer": (8, _Making._timer),
    "decide": (10, _Making._decide),
    "several": (5, _Making._answer_several),
    "end between steps": (1, _Making._end_between_steps),
    "again": (3, _Making._answer_again),
    "use": (4, _Making._use),
    "message": (3, _Making._message),
    "question": (2, _Making._question),
    "activity": (3, _Making._activity),
    "pause": (3, _Making._pause),
    "wait while paused": (1, _Making._wait_while_paused),
    "edit": (1.5, _Making._edit),
    "change agent": (1, _Making._change_agent),
    "crash": (3, _Making._crash),
    "stop": (0.5, _Making._stop),
    "fork": (0.3, _Making._fork),
}
"""What may happen, how often, and how."""
