"""Random histories of several processes in one thread: who goes on next is decided by dice.

First everything may go wrong; then faults are off, everything that died is started again, and
every run has to come to its end. `python -m tests.faults.simulation [talking] SEED` tells one
story.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial

from loopwright.model.plan import Plan
from loopwright.operations.run_control import ResumeChanges, reopen
from loopwright.views.status_text import capped_loops, spent_budget
from tests.faults.chance import random_plan
from tests.faults.replies import random_answer
from tests.faults.talking import talking_plan
from tests.faults.world import NOBODY, Plans, Process, World

TROUBLED_STEPS = (60, 140)
CALM_TICKS = 600
MOST_MAIL = 50
RESTARTS = 0.2
"""How often a run that is resumed begins with its first step."""


async def simulate(seed: int, plan: Plan | None = None, *, plans: Plans = random_plan) -> World:
    """One history; what is wrong with it stands in `problems`."""
    world = World(seed, plans)
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: world.complain(f"in the background: {context}")
    )
    try:
        await _history(world, plan)
    except Exception as error:  # whatever it is: this seed shows it
        world.complain(f"raised {error!r}")
    world.end()
    await settled()
    return world


async def _history(world: World, plan: Plan | None) -> None:
    dice = world.dice
    world.boot(0)
    for _ in range(dice.choice((1, 1, 2))):
        world.start(world.running()[0][1], plan or world.plans(dice))
    for _ in range(dice.randint(*TROUBLED_STEPS)):
        _trouble(world)
        await settled()
        if world.problems:
            return
    await _calm(world)
    if not world.problems:
        world.judge()


async def settled() -> None:
    """Let the event loop do what it has to."""
    for _ in range(3):
        await asyncio.sleep(0)


# -- first part: anything may happen ---------------------------------------------------------------


def _trouble(world: World) -> None:
    dice = world.dice
    alive = [(n, p) for n, p in world.running() if not p.stalled]
    for _, process in world.running():
        process.stalled = max(process.stalled - 1, 0)
    what = dice.choices(list(_HAPPEN), _WEIGHTS)[0]
    place, process = dice.choice(alive or [(0, NOBODY)])
    if process is NOBODY:
        what = "boot"
    world.note(process, what)
    _HAPPEN[what][1](world, place, process)


def _boot(world: World, place: int, process: Process) -> None:
    empty = [n for n, p in enumerate(world.processes) if p is None]
    if empty:
        world.boot(world.dice.choice(empty))


def _deliver(world: World, place: int, process: Process) -> None:
    process.read_mail(world.dice.choice((1, 1, 2, 4)))


def _answer(world: World, place: int, process: Process) -> None:
    waiting = process.crowd.waiting()
    if waiting:
        job = world.dice.choice(waiting)
        process.crowd.answer(job.run, job.effect, random_answer(world.dice, job))


def _answer_again(world: World, place: int, process: Process) -> None:
    """Several answers to one effect, two of them past the performer, straight to the actor."""
    actors = [actor for actor in process.actors() if actor.state.pending]
    if actors:
        actor = world.dice.choice(actors)
        pending = world.dice.choice(list(actor.state.pending.values()))
        job = process.crowd.open.get((actor.run, pending.effect))
        if job is not None:
            for _ in range(2):
                actor.answer(pending, random_answer(world.dice, job))
            process.crowd.answer(job.run, job.effect, random_answer(world.dice, job))


def _tick(world: World, place: int, process: Process) -> None:
    world.elapse(world.dice.choice((0, 1, 50, 200, 700, 5_000)))
    process.clock.fire()


def _jump(world: World, place: int, process: Process) -> None:
    by = world.dice.choice((-86_400_000, -3_600_000, -500, 3_600_000, 86_400_000))
    world.now += by
    for _, one in world.running():
        one.clock.jump(by)


def _crash(world: World, place: int, process: Process) -> None:
    world.crash(place)
    if world.dice.random() < 0.5:
        world.judge()


def _stall(world: World, place: int, process: Process) -> None:
    process.stalled = world.dice.randint(3, 15)
    if world.dice.random() < 0.3:
        process.believed_alive = False  # from now on it is a ghost: others may take its runs


def _fail_storage(world: World, place: int, process: Process) -> None:
    process.log.fault = world.dice.choice(("before", "after"))


def _decide(world: World, place: int, process: Process) -> None:
    gates = process.log.gates()
    if gates:
        gate = world.dice.choice(gates).gate
        for _, one in world.running()[: world.dice.choice((1, 2))]:
            world.decide(one, gate)


def _start(world: World, place: int, process: Process) -> None:
    world.start(process, world.plans(world.dice))


def _command(world: World, place: int, process: Process) -> None:
    runs = process.log.rows()
    if not runs:
        return
    run = world.dice.choice(runs).run
    wishes = ("pause", "resume", "stop", "look", "reopen", "edit")
    what = world.dice.choices(wishes, (3, 4, 0.8, 2, 3, 1))[0]
    if what == "look":
        process.service.recover()
    elif what == "reopen":
        changes = _resume_options(world, process, run)
        world.ask(process, lambda: reopen(process.service, run, by="somebody", changes=changes))
    elif what == "edit":
        world.edit(process, run)
    else:
        request = getattr(process.service, what)
        world.ask(process, lambda: request(run, by="somebody"))


def _resume_options(world: World, process: Process, run: str) -> ResumeChanges:
    """Continue or restart, with more iterations or a new budget where the run needs them."""
    state = process.service.state(run)
    capped = capped_loops(state) if state.finished is not None else []
    made = max((body.finished for body in capped), default=0)
    dice = world.dice
    return ResumeChanges(
        restart=dice.random() < RESTARTS,
        passes=made + dice.randint(1, 2) if made else None,
        budget="usd=1000,tokens=9M" if spent_budget(state) or dice.random() < 0.1 else None,
    )


_HAPPEN: dict[str, tuple[float, Callable[[World, int, Process], None]]] = {
    "deliver": (40, _deliver),
    "answer": (16, _answer),
    "tick": (10, _tick),
    "decide": (6, _decide),
    "command": (4, _command),
    "boot": (4, _boot),
    "again": (2, _answer_again),
    "crash": (2, _crash),
    "stall": (2, _stall),
    "storage": (2, _fail_storage),
    "jump": (1, _jump),
    "start": (0.5, _start),
}
"""What may happen, how often, and how."""
_WEIGHTS = [weight for weight, _ in _HAPPEN.values()]


# -- second part: no more faults -------------------------------------------------------------------


async def _calm(world: World) -> None:
    """Everything is started again; within bounded ticks every run has ended."""
    for place, process in world.running():
        process.stalled, process.log.fault = 0, None
        if not process.believed_alive:
            world.crash(place)
    for place, process in enumerate(world.processes):
        if process is None:
            world.boot(place)
    for tick in range(CALM_TICKS):
        await settled()
        _calm_tick(world, tick)
        if world.problems or not world.unfinished():
            break
    else:
        world.complain(f"not at an end after {CALM_TICKS} calm ticks: {world.unfinished()}")
    for _ in range(MOST_MAIL):
        for _, process in world.running():
            process.read_mail(MOST_MAIL)
        await settled()
        if not any(process.mail for _, process in world.running()):
            return
    world.complain("never at rest")


def _calm_tick(world: World, tick: int) -> None:
    for _, process in world.running():
        process.read_mail(MOST_MAIL)
        for job in process.crowd.waiting():
            process.crowd.answer(job.run, job.effect, random_answer(world.dice, job))
    due = [p.clock.next_in for _, p in world.running() if p.clock.next_in is not None]
    # Now and then much later: a wall clock that was set back holds timers up for that long.
    world.elapse(min(due, default=0) if tick % 10 else 86_400_000)
    for _, process in world.running():
        process.clock.fire()
    _people_go_on(world)


def _people_go_on(world: World) -> None:
    _, process = world.dice.choice(world.running())
    for gate in process.log.gates()[:1]:
        world.decide(process, gate.gate, calm=True)
    for row in process.log.rows(statuses=("paused",)):
        world.ask(process, partial(process.service.resume, row.run, by="somebody"))


def problems_of(
    seeds: range, plan: Plan | None = None, *, plans: Plans = random_plan
) -> dict[int, list[str]]:
    """The seeds among these whose history went wrong, with what was wrong."""

    async def all_of_them() -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for seed in seeds:
            world = await simulate(seed, plan, plans=plans)
            if world.problems:
                found[seed] = world.problems
        return found

    return asyncio.run(all_of_them())


def main(arguments: list[str]) -> None:
    """Tell the story of each of these seeds, after the word `talking` with chat models."""
    plans = talking_plan if arguments[:1] == ["talking"] else random_plan
    for number in map(int, arguments[plans is talking_plan :]):
        world = asyncio.run(simulate(number, plans=plans))
        sys.stdout.write("\n".join([f"seed {number}", *world.story, *world.problems, ""]))


if __name__ == "__main__":
    main(sys.argv[1:])
