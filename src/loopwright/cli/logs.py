"""`logs`: what agents, checks and people said in a run, and what agents did."""

import sys
from typing import TYPE_CHECKING

import click

from loopwright.app.views.signs import without_signs
from loopwright.cli.cells import fine_duration
from loopwright.cli.completing import complete_runs
from loopwright.cli.door import Door, Tone
from loopwright.cli.sources import source
from loopwright.cli.texts import cleaned, one_line
from loopwright.cli.verb import Verb, door_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loopwright.model.record import JsonValue


@click.command(
    cls=Verb,
    remote=True,
    watches=True,
    examples=[
        ("loopwright logs run_01", "everything that was said"),
        ("loopwright logs run_01 -f", "and what will be, until the run has ended"),
        ("loopwright logs run_01 --tools --iteration 2", "each tool call, command and edit"),
    ],
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.option("--follow", "-f", is_flag=True, help="Go on until the run has ended.")
@click.option("--tools", is_flag=True, help="What agents did: tool calls, commands, edited files.")
@click.option(
    "--iteration",
    type=click.IntRange(1),
    metavar="N",
    help="Only this iteration (with --tools).",
)
@click.pass_context
def logs(
    ctx: click.Context, /, *, run: str, follow: bool, tools: bool, iteration: int | None
) -> None:
    """What agents, checks and people said, iteration by iteration."""
    door = door_of(ctx)
    if follow and door.as_json:
        raise click.UsageError("--json is one object and --follow has no end: leave one out", ctx)
    if iteration is not None and not tools:
        raise click.UsageError("--iteration needs --tools", ctx)
    with source(door, run) as seen:
        if tools:
            done = seen.activity(iteration=iteration, follow=follow, full=door.as_json)
            _put_activity(door, seen.run, done)
            return
        entries = seen.entries(follow=follow)
        if door.as_json:
            door.put_json({"run": seen.run, "entries": list(entries)})
            return
        for entry in entries:
            _put(door, entry)


def _put(door: Door, entry: "dict[str, JsonValue]") -> None:
    signs = door.has_signs(sys.stdout)
    rule = "──" if signs else "--"
    place = f"{one_line(str(entry['path']))} " if entry["path"] else ""
    words = str(entry["title"])
    if entry["kind"] == "end" and not signs:
        words = without_signs(words)
    title = f"{rule} {place}{one_line(words)} {rule}"
    door.put(door.painted(title, "bold", sys.stdout))
    text = cleaned(str(entry["text"])).strip("\n")
    if text:
        door.put(f"{text}\n")


def _put_activity(door: Door, run: str, entries: "Iterator[dict[str, JsonValue]]") -> None:
    if door.as_json:
        door.put_json({"run": run, "entries": list(entries)})
        return
    for entry in entries:
        tone: Tone = "warn" if entry["ok"] is False or entry["kind"] == "denied" else "plain"
        door.put(door.painted(activity_line(entry), tone, sys.stdout))


def activity_line(entry: "dict[str, JsonValue]") -> str:
    """One entry on one line: time, iteration, agent, tool, target, result, duration, text."""
    from loopwright.app.views.activity import outcome_words  # noqa: PLC0415 - help stays quick

    number, ms = entry["iteration"], entry["ms"]
    place = f"#{number} {entry['agent']}" if number is not None else str(entry["agent"])
    what = f"{entry['tool']} {entry['target']}".strip() or str(entry["kind"])
    took = fine_duration(ms) if isinstance(ms, int) else ""
    parts = (what, outcome_words(entry), took, str(entry["text"]))
    words = "  ".join(one_line(part) for part in parts if part)
    return f"{str(entry['at'])[11:19]}  {one_line(place)}  {words}"


VERBS = {"logs": logs}
