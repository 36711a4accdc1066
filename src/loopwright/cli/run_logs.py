"""What happened in a run, recorded and as it happens: `events`, `logs` and `watch`.

`events` prints one JSON object per line, `logs` what agents and checks wrote and did, `watch`
the live view of a run that another process drives.
"""

import asyncio
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import click
import msgspec

from loopwright.cli.completion import complete_runs
from loopwright.cli.formats import fine_duration, open_service
from loopwright.cli.run_source import IterationChoice, RunSource, open_run_source
from loopwright.cli.terminal import Terminal, Tone, as_json, cleaned, one_line
from loopwright.cli.verb import Verb, terminal_of
from loopwright.errors import LoopwrightError, StorageError
from loopwright.model.effect_ids import effect_path, effect_words
from loopwright.views.formats import without_signs
from loopwright.views.status_text import place_words

if TYPE_CHECKING:
    from loopwright.cli.attach import AttachedRun, Interrupts
    from loopwright.model.record import JsonValue
    from loopwright.operations.run_tail import LiveReader
    from loopwright.operations.runs import Service
    from loopwright.operations.wiring import Local

OWN = "own"
"""The value of `--dialect` without a name: the dialect of the definition."""


class _EventsVerb(Verb):
    """Takes the word after `--dialect` as its value only if that is a dialect."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from loopwright.operations.dialects import NAMES  # noqa: PLC0415 - help stays quick

        for number, word in enumerate(args):
            if word == "--dialect" and args[number + 1 : number + 2] not in [[n] for n in NAMES]:
                args[number] = f"--dialect={OWN}"
        return super().parse_args(ctx, args)


@click.command(
    cls=_EventsVerb,
    remote=True,
    watches=True,
    examples=[
        ("loopwright events run_01 | jq .kind", ""),
        ("loopwright events run_01 --after 40 --follow", "events after a number, live"),
        ("loopwright events run_01 --dialect", "as the system of its definition names them"),
    ],
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.option(
    "--after",
    type=click.IntRange(0, 1_000_000_000),
    default=0,
    metavar="SEQ",
    help="Skip up to this.",
)
@click.option("--follow", "-f", is_flag=True, help="Follow until the run has ended.")
@click.option(
    "--dialect",
    is_flag=False,
    flag_value=OWN,
    metavar="[NAME]",
    help="The events of the system that the definition was written for, not Loopwright's own. With "
    "NAME: only if that is its dialect.",
)
@click.pass_context
def events(
    ctx: click.Context, /, *, run: str, after: int, follow: bool, dialect: str | None
) -> None:
    """The events of a run as JSON lines (with --json: one object that contains them all)."""
    terminal, in_dialect = terminal_of(ctx), dialect is not None
    if follow and terminal.as_json:
        raise click.UsageError("--json is one object and --follow has no end: leave one out", ctx)
    if terminal.remote is not None:
        from loopwright.cli.remote_commands import remote_events  # noqa: PLC0415 - only when asked for

        run = terminal.remote.run(run)
        if dialect not in (None, OWN):
            _check_dialect(str(terminal.remote.get(f"/api/v1/runs/{run}")["dialect"]), dialect)
        _print_events(
            terminal, run, remote_events(terminal, run, after, follow=follow, in_dialect=in_dialect)
        )
        return
    with open_service(terminal) as service:
        run = service.find(run)
        if dialect not in (None, OWN):
            _check_dialect(service.log.row(run).headline.dialect, dialect)
        if follow or in_dialect:
            _print_events(
                terminal,
                run,
                _dialect_events(service, run, after, follow=follow, in_dialect=in_dialect),
            )
        else:
            _print_events(terminal, run, _log_events(terminal, service, run, after))


def _check_dialect(found: str, wanted: str | None) -> None:
    if found != wanted:
        raise LoopwrightError(
            f"the definition of this run is in the dialect {found}, not {wanted}",
            code="no-events",
            hint=f"leave {wanted} out, or write --dialect {found}",
        )


def _print_events(
    terminal: Terminal, run: str, stored_options: "Iterable[dict[str, JsonValue]]"
) -> None:
    if terminal.as_json:
        terminal.put_json({"run": run, "events": list(stored_options)})
        return
    for one in stored_options:
        terminal.put(as_json(one))


def _log_events(
    terminal: Terminal, service: "Service", run: str, after: int
) -> "Iterator[dict[str, JsonValue]]":
    """Everything that is recorded; manual changes are shown too, and marked."""
    from loopwright.views.event_records import event_on_wire  # noqa: PLC0415 - help stays quick

    try:
        events = service.events(run, after=after)
    except StorageError as error:
        events = service.log.read(run, after=after, as_is=True) if error.code == "damaged" else []
        if not events:
            raise
        terminal.tell(f"warning: {error.message}", tone="warn")
    return (event_on_wire(run, one) for one in events)


def _dialect_events(
    service: "Service", run: str, after: int, *, follow: bool, in_dialect: bool
) -> "Iterator[dict[str, JsonValue]]":
    from loopwright.operations.loops.dialect_events import dialect_events_after  # noqa: PLC0415 - help stays quick
    from loopwright.operations.run_tail import follow as following  # noqa: PLC0415 - help stays quick
    from loopwright.views.event_records import event_on_wire  # noqa: PLC0415 - help stays quick

    # An output line may combine earlier events, so all of them are read.
    first = 0 if in_dialect else after
    events = following(service, run, first) if follow else iter(service.events(run, after=first))
    if in_dialect:
        return dialect_events_after(service, run, events, after)
    return (event_on_wire(run, one) for one in events)


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
    terminal = terminal_of(ctx)
    if follow and terminal.as_json:
        raise click.UsageError("--json is one object and --follow has no end: leave one out", ctx)
    with open_run_source(terminal, run) as seen:
        wanted = _iteration(seen, iteration, follow=follow)
        if tools:
            dropped: dict[str, int] = {}
            done = seen.activity(
                iteration=wanted, follow=follow, full=terminal.as_json, dropped=dropped
            )
            _put_activity(terminal, seen.run, done, dropped)
            return _end(terminal, seen) if follow else 0
        if terminal.as_json:
            found = [one for one in seen.entries(follow=False) if _fits(one, wanted)]
            terminal.put_json({"run": seen.run, "entries": found})
            return 0
        written = _LiveText(terminal, wanted)
        for entry in seen.entries(follow=follow, text=written.take if follow else None):
            if _fits(entry, wanted) and not written.ends_with(entry):
                _print_entry(terminal, entry)
        return _end(terminal, seen) if follow else 0


def _end(terminal: Terminal, seen: RunSource) -> int:
    """The exit code after following. An abandoned run is reported in the same way as by `watch`."""
    from loopwright.cli.terminal import EXIT_CODES, say_final_line  # noqa: PLC0415 - help stays quick

    detail = seen.detail()
    if not detail["left_behind"]:
        return 0
    line = str(detail["headline"])
    signs = terminal.has_signs(sys.stderr)
    say_final_line(terminal, seen.run, line if signs else without_signs(line), "running")
    terminal.say(f"  loopwright resume {seen.run}")
    return EXIT_CODES["paused"]


def _iteration(seen: RunSource, name: str | None, *, follow: bool) -> IterationChoice:
    """The number and the attempt in a name; one that is followed may start later."""
    from loopwright.views.iterations import IterationNames  # noqa: PLC0415 - help stays quick

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
    is_cut = bool(detail.get("passes_before"))  # earlier ones may be requested
    return IterationNames(started).find(seen.run, name, future=follow or is_cut)


def _fits(entry: "dict[str, JsonValue]", iteration: IterationChoice) -> bool:
    """Whether an entry belongs to a requested iteration."""
    number = entry["iteration"]
    return _is_in(str(entry["path"]), number if isinstance(number, int) else None, iteration)


def _is_in(path: str, number: int | None, iteration: IterationChoice) -> bool:
    from loopwright.views.iterations import is_in_iteration  # noqa: PLC0415 - help stays quick

    return is_in_iteration(path, number, iteration)


class _LiveText:
    """Text as agents write it. An entry whose text was printed so is not printed again."""

    def __init__(self, terminal: Terminal, iteration: IterationChoice = (None, None)) -> None:
        self._terminal = terminal
        self._iteration = iteration  # the only one that is shown
        self._effect = ""
        self._text = ""
        self._at_start = True  # of a line

    def take(self, effect: str, kind: str, text: str) -> None:
        if not _is_in(effect_path(effect), None, self._iteration):
            return
        if effect != self._effect:
            self._close()
            self._effect, self._text, self._at_start = effect, "", True
            _put_title(self._terminal, _titled(effect_path(effect), effect_words(effect)))
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
        """Whether an entry has been printed; the next one begins on a new line."""
        if not self._effect:
            return False
        said = str(entry["text"]).strip()
        shown = entry["path"] == effect_path(self._effect) and said == self._text.strip()
        self._close()
        return shown

    def _close(self) -> None:
        if self._effect:
            door_end = "" if self._at_start else "\n"
            sys.stdout.write(f"{door_end}\n")
            sys.stdout.flush()
        self._effect = ""


def _print_entry(terminal: Terminal, entry: "dict[str, JsonValue]") -> None:
    signs = terminal.has_signs(sys.stdout)
    words = str(entry["title"])
    if entry["kind"] == "end" and not signs:
        words = without_signs(words)
    _put_title(terminal, _titled(str(entry["path"]), words))
    text = cleaned(str(entry["text"])).strip("\n")
    if text:
        terminal.put(f"{text}\n")


def _titled(path: str, words: str) -> str:
    place = one_line(place_words(path))
    return f"{place}: {one_line(words)}" if place else one_line(words)


def _put_title(terminal: Terminal, words: str) -> None:
    rule = "──" if terminal.has_signs(sys.stdout) else "--"
    terminal.put(terminal.painted(f"{rule} {words} {rule}", "bold", sys.stdout))


def _put_activity(
    terminal: Terminal, run: str, entries: "Iterator[dict[str, JsonValue]]", dropped: dict[str, int]
) -> None:
    """Print entries; `dropped` is complete when all of them were read."""
    if terminal.as_json:
        listed: list[JsonValue] = [*entries]
        counts: dict[str, JsonValue] = {**dropped}
        terminal.put_json({"run": run, "entries": listed, "dropped": counts})
        return
    day = datetime.now(UTC).date().isoformat()
    for entry in entries:
        if str(entry["at"])[:10] != day:
            day = str(entry["at"])[:10]
            _put_title(terminal, f"{day} (UTC)")
        tone: Tone = "warn" if entry["ok"] is False or entry["kind"] == "denied" else "plain"
        terminal.put(terminal.painted(activity_line(entry), tone, sys.stdout))
    for effect, count in dropped.items():
        were = "was" if count == 1 else "were"
        terminal.put(f"{one_line(effect)}: {count:,} more {were} not stored")


def activity_line(entry: "dict[str, JsonValue]") -> str:
    """One entry on one line: time, iteration, agent, tool, target, result, duration, text."""
    from loopwright.views.transcript import ActivityItem, outcome_words  # noqa: PLC0415 - quick help

    number, ms = entry["iteration"], entry["ms"]
    place = f"#{number} {entry['agent']}" if number is not None else str(entry["agent"])
    what = f"{entry['tool']} {entry['target']}".strip() or str(entry["kind"])
    took = fine_duration(ms) if isinstance(ms, int) else ""
    parts = (what, outcome_words(msgspec.convert(entry, ActivityItem)), took, str(entry["text"]))
    words = "  ".join(one_line(part) for part in parts if part)
    return f"{str(entry['at'])[11:19]}  {one_line(place)}  {words}"


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
    terminal = terminal_of(ctx)
    if jsonl and terminal.as_json:
        raise click.UsageError("--json and --jsonl exclude each other", ctx)
    if terminal.remote is not None:
        from loopwright.cli.served_run import watch_served  # noqa: PLC0415 - only when asked for

        return watch_served(terminal, run, jsonl=jsonl, no_wait=no_wait)
    with open_service(terminal) as service:
        name = service.find(run)
        return asyncio.run(_watch(terminal, service, name, no_wait=no_wait, jsonl=jsonl))


async def _watch(
    terminal: "Terminal", service: "Service", run: str, *, no_wait: bool, jsonl: bool
) -> int:
    from loopwright.cli.attach import (  # noqa: PLC0415 - help stays quick
        AttachedRun,
        Interrupts,
        RunCursor,
    )
    from loopwright.cli.run_output import choose_view  # noqa: PLC0415 - help stays quick
    from loopwright.operations.run_tail import LiveReader  # noqa: PLC0415 - help stays quick

    interrupts = Interrupts(_pause_nothing)
    interrupts.at_once = True  # the first Ctrl-C stops watching
    view = choose_view(terminal, run, jsonl=jsonl, text=True)
    # Only its service and its log are used: nothing is driven here.
    here = cast("Local", _Reading(service))
    seen = 0 if jsonl else service.log.version(run)
    one = AttachedRun(here, RunCursor(run, seen), view, interrupts)
    reader = LiveReader(terminal.settings.home, run)
    with interrupts.listening():
        one.begin()
        try:
            while await _until_rest(service, one, reader, interrupts):
                if no_wait or not terminal.can_ask or not await _ask(terminal, service, one):
                    break
        finally:
            one.view.end()
            reader.close()
    return _finish(terminal, one, interrupts, jsonl=jsonl)


class _Reading:
    """What watching needs of a process that drives."""

    def __init__(self, service: "Service") -> None:
        self.service, self.log = service, service.log


async def _pause_nothing() -> None:
    """Watching has nothing to pause."""


async def _until_rest(
    service: "Service", one: "AttachedRun", reader: "LiveReader", interrupts: "Interrupts"
) -> bool:
    """Show events. True if a gate opens; False if there is no more to show."""
    from loopwright.operations.run_tail import DriverWatch  # noqa: PLC0415 - help stays quick
    from loopwright.ports.headline import status_of  # noqa: PLC0415 - help stays quick

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
        if await interrupts.unless(asyncio.sleep(TICK_S)):
            return False


async def _ask(terminal: "Terminal", service: "Service", one: "AttachedRun") -> bool:
    """Ask the person here; a run that no process drives is continued in the background."""
    from loopwright.operations.background_runs import drive_in_background  # noqa: PLC0415 - help stays quick
    from loopwright.ports import OPEN_STATUSES  # noqa: PLC0415 - help stays quick

    one.view.end()
    if not await one.ask(terminal):
        return False
    row = service.log.row(one.run)
    is_driven = row.owner is not None and service.log.alive(row.owner)
    if row.headline.status in OPEN_STATUSES and not is_driven:
        drive_in_background(terminal.settings, one.run)
    one.view.begin(one.progress)
    return True


def _finish(
    terminal: "Terminal", one: "AttachedRun", interrupts: "Interrupts", *, jsonl: bool
) -> int:
    from loopwright.cli.terminal import (  # noqa: PLC0415 - help stays quick
        EXIT_CODES,
        exit_code,
        put_result,
        say_final_line,
    )
    from loopwright.ports.headline import status_of  # noqa: PLC0415 - help stays quick
    from loopwright.views.status_text import answering  # noqa: PLC0415 - help stays quick
    from loopwright.views.summary import final_line  # noqa: PLC0415 - help stays quick

    if interrupts.code is not None:
        terminal.tell(f"{one.run} keeps running")
        return interrupts.code
    result = one.result()
    state, status = one.progress.state, status_of(one.progress.state)
    signs = terminal.has_signs(sys.stderr)
    line = final_line(state, signs=signs, left_behind=status == "running")
    say_final_line(terminal, one.run, line, status)
    for gate in state.gates.values() if status == "waiting" else ():
        terminal.say(f"  {answering(gate)}")
    if status in ("paused", "running"):
        terminal.say(f"  loopwright resume {one.run}")
    if not jsonl:
        put_result(terminal, result)
    return EXIT_CODES["paused"] if status == "running" else exit_code(result)


VERBS = {
    "events": events,
    "logs": logs,
    "watch": watch,
}
