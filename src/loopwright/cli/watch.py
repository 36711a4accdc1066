"""`watch`: the live view of a run that another process drives."""

import asyncio
import sys
from typing import TYPE_CHECKING, cast

import click

from loopwright.cli.completing import complete_runs
from loopwright.cli.looking import looking
from loopwright.cli.verb import Verb, door_of

if TYPE_CHECKING:
    from loopwright.app.live_text import LiveReader
    from loopwright.app.service import Service
    from loopwright.app.wiring import Local
    from loopwright.cli.door import Door
    from loopwright.cli.driving import Attendance
    from loopwright.cli.leaving import Leaving

TICK_S = 0.1


@click.command(
    cls=Verb,
    remote=True,
    watches=True,
    examples=[
        ("loopwright watch run_01", "Ctrl-C stops watching; the run keeps running"),
        ("loopwright watch last --jsonl", "all its events, then each one as it occurs"),
        ("loopwright watch run_01 --server https://team.example", "a run on a remote server"),
    ],
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.option("--no-wait", is_flag=True, help="Exit with code 5 at a gate instead of asking here.")
@click.option("--jsonl", is_flag=True, help="Print events, one JSON per line, as they occur.")
@click.pass_context
def watch(ctx: click.Context, /, *, run: str, no_wait: bool, jsonl: bool) -> int:
    """Show a run live until it ends or needs a person, including text as agents write it.

    The run may be driven by any process: another terminal, the background, the local server, or a
    remote server. Watching never changes a run. The exit code is that of `loopwright run`.
    """
    door = door_of(ctx)
    if jsonl and door.as_json:
        raise click.UsageError("--json and --jsonl exclude each other", ctx)
    if door.remote is not None:
        from loopwright.cli.afar import watch_remote  # noqa: PLC0415 - only when asked for

        return watch_remote(door, run, jsonl=jsonl, no_wait=no_wait)
    with looking(door) as service:
        name = service.find(run)
        return asyncio.run(_watch(door, service, name, no_wait=no_wait, jsonl=jsonl))


async def _watch(door: "Door", service: "Service", run: str, *, no_wait: bool, jsonl: bool) -> int:
    from loopwright.app.live_text import LiveReader  # noqa: PLC0415 - help stays quick
    from loopwright.cli.driving import Attendance, Taken  # noqa: PLC0415 - help stays quick
    from loopwright.cli.leaving import Leaving  # noqa: PLC0415 - help stays quick
    from loopwright.cli.showing import choose_view  # noqa: PLC0415 - help stays quick

    leaving = Leaving(_pause_nothing)
    leaving.at_once = True  # the first Ctrl-C stops watching
    view = choose_view(door, run, jsonl=jsonl, text=True)
    # Only its service and its log are used: nothing is driven here.
    here = cast("Local", _Reading(service))
    seen = 0 if jsonl else service.log.version(run)
    one = Attendance(here, Taken(run, seen), view, leaving)
    reader = LiveReader(door.settings.home, run)
    with leaving.listening():
        one.begin()
        try:
            while await _until_rest(service, one, reader, leaving):
                if no_wait or not door.can_ask or not await _ask(door, service, one):
                    break
        finally:
            one.view.end()
            reader.close()
    return _finish(door, one, leaving, jsonl=jsonl)


class _Reading:
    """What watching needs of a process that drives."""

    def __init__(self, service: "Service") -> None:
        self.service, self.log = service, service.log


async def _pause_nothing() -> None:
    """Watching has nothing to pause."""


async def _until_rest(
    service: "Service", one: "Attendance", reader: "LiveReader", leaving: "Leaving"
) -> bool:
    """Show what happens. True when a person is asked; False when there is no more to show."""
    from loopwright.app.following import DriverWatch  # noqa: PLC0415 - help stays quick
    from loopwright.runtime.headline import status_of  # noqa: PLC0415 - help stays quick

    driver = DriverWatch(service, one.run)
    while True:
        row = service.log.row(one.run)
        token = row.owner.token if row.owner is not None else ""
        one.pull(reader.read(token))
        one.view.tick()
        status = status_of(one.progress.state)
        if status == "waiting":
            return True
        if status != "running" and not one.progress.state.pending:
            return False
        if driver.is_gone():
            return False
        if await leaving.unless(asyncio.sleep(TICK_S)):
            return False


async def _ask(door: "Door", service: "Service", one: "Attendance") -> bool:
    """Ask the person here; a run that no process drives is continued in the background."""
    from loopwright.app.detaching import drive_in_background  # noqa: PLC0415 - help stays quick
    from loopwright.ports import OPEN_STATUSES  # noqa: PLC0415 - help stays quick

    one.view.end()
    if not await one.ask(door):
        return False
    row = service.log.row(one.run)
    is_driven = row.owner is not None and service.log.alive(row.owner)
    if row.headline.status in OPEN_STATUSES and not is_driven:
        drive_in_background(door.settings, one.run)
    one.view.begin(one.progress)
    return True


def _finish(door: "Door", one: "Attendance", leaving: "Leaving", *, jsonl: bool) -> int:
    from loopwright.app.views.final_line import final_line  # noqa: PLC0415 - help stays quick
    from loopwright.app.views.words import answering  # noqa: PLC0415 - help stays quick
    from loopwright.cli.outcomes import (  # noqa: PLC0415 - help stays quick
        EXIT,
        exit_code,
        put_result,
        say_final_line,
    )
    from loopwright.runtime.headline import status_of  # noqa: PLC0415 - help stays quick

    if leaving.code is not None:
        door.tell(f"{one.run} keeps running")
        return leaving.code
    result = one.result()
    state, status = one.progress.state, status_of(one.progress.state)
    signs = door.has_signs(sys.stderr)
    line = final_line(state, signs=signs, left_behind=status == "running")
    say_final_line(door, one.run, line, status)
    for gate in state.gates.values() if status == "waiting" else ():
        door.say(f"  {answering(gate)}")
    if status in ("paused", "running"):
        door.say(f"  loopwright resume {one.run}")
    if not jsonl:
        put_result(door, result)
    return EXIT["paused"] if status == "running" else exit_code(result)


VERBS = {"watch": watch}
