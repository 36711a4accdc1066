"""`logs`: what agents, checks and people said in a run, and what agents did."""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from loopwright.app.views.place_words import place_words
from loopwright.app.views.signs import without_signs
from loopwright.cli.cells import fine_duration
from loopwright.cli.completing import complete_runs
from loopwright.cli.door import Door, Tone
from loopwright.cli.sources import IterationChoice, Source, source
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
        ("loopwright logs run_01 --iteration 2", "the second iteration only"),
        ("loopwright logs run_01 --iteration 2~1", "of the first try, after a restart"),
        ("loopwright logs run_01 --tools", "each tool call, command and edit"),
    ],
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.option(
    "--follow",
    "-f",
    is_flag=True,
    help="Follow until the run has ended, with text as agents write it.",
)
@click.option("--tools", is_flag=True, help="What agents did: tool calls, commands, edited files.")
@click.option(
    "--iteration",
    metavar="N",
    help="Only this iteration; after `resume --restart` 2 is iteration 2 of the newest try and "
    "2~1 that of the first one.",
)
@click.pass_context
def logs(
    ctx: click.Context, /, *, run: str, follow: bool, tools: bool, iteration: str | None
) -> int:
    """What agents, checks and people said, iteration by iteration.

    `--follow` ends with the run, or with exit code 5 when no process drives it any more.
    """
    door = door_of(ctx)
    if follow and door.as_json:
        raise click.UsageError("--json is one object and --follow has no end: leave one out", ctx)
    with source(door, run) as seen:
        wanted = _iteration(seen, iteration, follow=follow)
        if tools:
            dropped: dict[str, int] = {}
            done = seen.activity(
                iteration=wanted, follow=follow, full=door.as_json, dropped=dropped
            )
            _put_activity(door, seen.run, done, dropped)
            return _end(door, seen) if follow else 0
        if door.as_json:
            found = [one for one in seen.entries(follow=False) if _fits(one, wanted)]
            door.put_json({"run": seen.run, "entries": found})
            return 0
        written = _Written(door, wanted)
        for entry in seen.entries(follow=follow, text=written.take if follow else None):
            if _fits(entry, wanted) and not written.ends_with(entry):
                _put(door, entry)
        return _end(door, seen) if follow else 0


def _end(door: Door, seen: Source) -> int:
    """The exit code after following. A run that was left behind is reported as `watch` does."""
    from loopwright.cli.outcomes import EXIT, say_final_line  # noqa: PLC0415 - help stays quick

    detail = seen.detail()
    if not detail["left_behind"]:
        return 0
    line = str(detail["headline"])
    signs = door.has_signs(sys.stderr)
    say_final_line(door, seen.run, line if signs else without_signs(line), "running")
    door.say(f"  loopwright resume {seen.run}")
    return EXIT["paused"]


def _iteration(seen: Source, name: str | None, *, follow: bool) -> IterationChoice:
    """The number and the try that a name stands for; one that is followed may begin later."""
    from loopwright.app.views.iteration_names import (  # noqa: PLC0415 - help stays quick
        IterationNames,
    )

    if name is None:
        return None, None
    detail = seen.detail()
    rows = detail["passes"]
    assert isinstance(rows, list)
    started = [
        (str(one["path"]), int(str(one["iteration"])) if one["iteration"] else None)
        for one in rows
        if isinstance(one, dict)
    ]
    is_cut = bool(detail.get("passes_before"))  # those before may be wanted
    return IterationNames(started).find(seen.run, name, future=follow or is_cut)


def _fits(entry: "dict[str, JsonValue]", iteration: IterationChoice) -> bool:
    """Whether an entry belongs to an iteration that was asked for."""
    number = entry["iteration"]
    return _is_in(str(entry["path"]), number if isinstance(number, int) else None, iteration)


def _is_in(path: str, number: int | None, iteration: IterationChoice) -> bool:
    from loopwright.app.views.iteration_names import (  # noqa: PLC0415 - help stays quick
        is_in_iteration,
    )

    return is_in_iteration(path, number, iteration)


class _Written:
    """Text as agents write it. An entry whose text was printed so is not printed again."""

    def __init__(self, door: Door, iteration: IterationChoice = (None, None)) -> None:
        self._door = door
        self._iteration = iteration  # the only one that is shown
        self._effect = ""
        self._text = ""
        self._at_start = True  # of a line

    def take(self, effect: str, kind: str, text: str) -> None:
        if not _is_in(effect.partition("/")[0], None, self._iteration):
            return
        if effect != self._effect:
            self._close()
            self._effect, self._text, self._at_start = effect, "", True
            place, _, what = effect.partition("/")
            _put_title(self._door, _titled(place, what.partition("#")[0]))
        if kind != "text":
            line = "" if self._at_start else "\n"
            sys.stdout.write(f"{line}[{one_line(text)}]\n")
            self._at_start = True
        else:
            self._text += text
            sys.stdout.write(cleaned(text))
            self._at_start = text.endswith("\n")
        sys.stdout.flush()

    def ends_with(self, entry: "dict[str, JsonValue]") -> bool:
        """Whether an entry has been printed; what comes next begins on a new line."""
        if not self._effect:
            return False
        said = str(entry["text"]).strip()
        shown = entry["path"] == self._effect.partition("/")[0] and said == self._text.strip()
        self._close()
        return shown

    def _close(self) -> None:
        if self._effect:
            door_end = "" if self._at_start else "\n"
            sys.stdout.write(f"{door_end}\n")
            sys.stdout.flush()
        self._effect = ""


def _put(door: Door, entry: "dict[str, JsonValue]") -> None:
    signs = door.has_signs(sys.stdout)
    words = str(entry["title"])
    if entry["kind"] == "end" and not signs:
        words = without_signs(words)
    _put_title(door, _titled(str(entry["path"]), words))
    text = cleaned(str(entry["text"])).strip("\n")
    if text:
        door.put(f"{text}\n")


def _titled(path: str, words: str) -> str:
    place = one_line(place_words(path))
    return f"{place}: {one_line(words)}" if place else one_line(words)


def _put_title(door: Door, words: str) -> None:
    rule = "──" if door.has_signs(sys.stdout) else "--"
    door.put(door.painted(f"{rule} {words} {rule}", "bold", sys.stdout))


def _put_activity(
    door: Door, run: str, entries: "Iterator[dict[str, JsonValue]]", dropped: dict[str, int]
) -> None:
    """Print entries; `dropped` is complete when all of them were read."""
    if door.as_json:
        listed: list[JsonValue] = [*entries]
        counts: dict[str, JsonValue] = {**dropped}
        door.put_json({"run": run, "entries": listed, "dropped": counts})
        return
    day = datetime.now(UTC).date().isoformat()
    for entry in entries:
        if str(entry["at"])[:10] != day:
            day = str(entry["at"])[:10]
            _put_title(door, f"{day} (UTC)")
        tone: Tone = "warn" if entry["ok"] is False or entry["kind"] == "denied" else "plain"
        door.put(door.painted(activity_line(entry), tone, sys.stdout))
    for effect, count in dropped.items():
        were = "was" if count == 1 else "were"
        door.put(f"{one_line(effect)}: {count:,} more {were} not stored")


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
