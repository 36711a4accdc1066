"""What happened in a run, recorded and as it happens: `events`, `logs` and `watch`.

`events` prints one JSON object per line, `logs` what agents and checks wrote and did, `watch`
the live view of a run that another process drives.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

import click

from loopwright.cli.completion import complete_runs
from loopwright.cli.formats import fine_duration
from loopwright.cli.terminal import (
    EXIT_CODES,
    Terminal,
    Tone,
    as_json,
    cleaned,
    one_line,
    say_final_line,
)
from loopwright.cli.verb import Verb, terminal_of
from loopwright.client.client import CommandClient
from loopwright.client.transport import Followed, FollowOptions
from loopwright.errors import LoopwrightError
from loopwright.model.ids import effect_path, effect_words, iteration_name
from loopwright.operations.loops.dialect_events import View
from loopwright.operations.use_cases.lists import ListRuns, list_runs
from loopwright.operations.use_cases.operation import RunReference
from loopwright.operations.use_cases.run_queries import snapshot
from loopwright.operations.use_cases.run_views import ReadActivity, read_activity
from loopwright.ports import Delta
from loopwright.views.formats import place_words, without_signs
from loopwright.views.iterations import IterationNames, is_in_iteration
from loopwright.views.transcript import (
    ActivityFilter,
    ActivityItem,
    dropped_in,
    items_of_event,
    outcome_words,
)

if TYPE_CHECKING:
    from loopwright.client.client import Client
    from loopwright.client.transport import RunFeed
    from loopwright.model.record import JsonValue

IterationChoice: TypeAlias = tuple[int | None, int | None]
"""The number of an iteration and its attempt; None means all of them."""

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
    help="Print only events with a greater number.",
)
@click.option("--follow", "-f", is_flag=True, help="Follow until the run ends or needs a person.")
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
) -> int:
    """Print the events of a run as JSON lines (with --json: one object that contains them all).

    `--follow` ends with the run, or with exit code 5 when only a person can advance it: it is
    paused, or it waits or was interrupted and no process drives it.
    """
    terminal = terminal_of(ctx)
    if follow and terminal.as_json:
        raise click.UsageError("--json is one object and --follow has no end: leave one out", ctx)
    with terminal.client() as client:
        run = client.find_run(run)
        if dialect not in (None, OWN):
            [found] = client.call(list_runs, ListRuns(match=run)).runs
            _check_dialect(found.dialect, dialect)
        view: View = "events" if dialect is None else "dialect"
        retry = not terminal.options.no_retry
        options = FollowOptions(after=after, view=view, until_end=follow, retry=retry)
        _print_events(terminal, run, events_only(client.follow(run, options)))
        return _end_following(terminal, client, run) if follow else 0


def _check_dialect(found: str, wanted: str | None) -> None:
    if found != wanted:
        raise LoopwrightError(
            f"the definition of this run is in the dialect {found}, not {wanted}",
            code="no-events",
            hint="leave --dialect out"
            if found == "native"  # has no events of its own
            else f"leave {wanted} out, or write --dialect {found}",
        )


def _print_events(
    terminal: Terminal, run: str, stored_options: "Iterable[dict[str, JsonValue]]"
) -> None:
    if terminal.as_json:
        terminal.put_json({"run": run, "events": list(stored_options)})
        return
    for one in stored_options:
        terminal.put(as_json(one))


@click.command(
    cls=Verb,
    remote=True,
    watches=True,
    examples=[
        ("loopwright logs run_01", "all texts of the run"),
        ("loopwright logs run_01 -f", "and new texts, until the run has ended"),
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
    help="Follow until the run ends or needs a person, with text as agents write it.",
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
    """Show the messages of agents, checks and people, iteration by iteration.

    `--follow` ends with the run, or with exit code 5 when only a person can advance it: it is
    paused, or it waits or was interrupted and no process drives it.
    """
    terminal = terminal_of(ctx)
    if follow and terminal.as_json:
        raise click.UsageError("--json is one object and --follow has no end: leave one out", ctx)
    with terminal.client() as client:
        seen = _RunLogs(terminal, client, run)
        wanted = seen.iteration(iteration, follow=follow)
        if tools:
            seen.put_activity(wanted, follow=follow)
        elif terminal.as_json:
            found = [one for one in seen.entries() if _fits(one, wanted)]
            terminal.put_json({"run": seen.run, "entries": found})
        else:
            seen.put_entries(wanted, follow=follow)
        return _end_following(terminal, client, seen.run) if follow else 0


class _RunLogs:
    """What was written in a run, and what its agents did."""

    def __init__(self, terminal: Terminal, client: CommandClient, reference: str) -> None:
        self.run = client.find_run(reference)
        self._terminal = terminal
        self._client = client

    def iteration(self, name: str | None, *, follow: bool) -> IterationChoice:
        """The number and the attempt in a name; one that is followed may start later."""
        if name is None:
            return None, None
        found = self._client.call(snapshot, RunReference(run=self.run))
        started = [(one.path, one.iteration or None) for one in found.passes]
        is_cut = bool(found.iterations_before)  # earlier ones may be requested
        return IterationNames(started).find(self.run, name, future=follow or is_cut)

    def entries(self) -> "Iterator[dict[str, JsonValue]]":
        """The transcript up to now."""
        options = FollowOptions(view="transcript", until_end=False)
        return events_only(self._client.follow(self.run, options))

    def put_entries(self, wanted: IterationChoice, *, follow: bool) -> None:
        """Print the transcript, with `follow` until the run ends and with text as it is written."""
        written = _LiveText(self._terminal, wanted)
        options = FollowOptions(
            view="transcript",
            until_end=follow,
            text=follow,
            tail=follow,
            retry=not self._terminal.options.no_retry,
        )
        for entry in self._client.follow(self.run, options):
            if isinstance(entry, Delta):
                written.take(entry.effect, entry.kind, entry.text)
            elif _fits(entry, wanted) and not written.ends_with(entry):
                _print_entry(self._terminal, entry)

    def put_activity(self, wanted: IterationChoice, *, follow: bool) -> None:
        """Print what agents did, with `follow` until the run ends."""
        dropped: dict[str, int] = {}
        found = self._new_activity(wanted, dropped) if follow else self._activity(wanted, dropped)
        _put_activity(self._terminal, self.run, found, dropped)

    def _activity(self, wanted: IterationChoice, dropped: dict[str, int]) -> Iterator[ActivityItem]:
        """The activity up to now, page by page. `dropped` receives the number of entries of each
        call that were not stored.
        """
        after: int | None = 0
        while after is not None:
            request = ReadActivity(
                run=self.run,
                after=after,
                iteration=iteration_name(*wanted),
                full=self._terminal.as_json,  # arguments and results are not cut
            )
            page = self._client.call(read_activity, request)
            yield from page.entries
            _add_counts(dropped, page.dropped_by_call)
            after = page.next

    def _new_activity(
        self, wanted: IterationChoice, dropped: dict[str, int]
    ) -> Iterator[ActivityItem]:
        """The same until the run ends."""
        chosen = ActivityFilter(iteration=wanted[0], attempt=wanted[1])
        options = FollowOptions(retry=not self._terminal.options.no_retry)
        for event in events_only(self._client.follow(self.run, options)):
            if event["kind"] == "effect.activity":
                yield from items_of_event(event, None, chosen)
                _add_counts(dropped, dropped_in(event, chosen))


def _end_following(terminal: Terminal, client: CommandClient, run: str) -> int:
    """The exit code after following. A run that needs a person is reported as by `watch`."""
    found = client.call(snapshot, RunReference(run=run))
    if not found.left_behind and found.status not in ("paused", "waiting"):
        return 0
    line = found.headline
    signs = terminal.has_signs(sys.stderr)
    say_final_line(terminal, run, line if signs else without_signs(line), found.status)
    for command in found.next if found.status == "waiting" else [f"loopwright resume {run}"]:
        terminal.say(f"  {command}{terminal.server_suffix}")
    return EXIT_CODES["paused"]


def events_only(found: Iterable[Followed]) -> "Iterator[dict[str, JsonValue]]":
    """Events without the text of agents."""
    return (one for one in found if not isinstance(one, Delta))


def _add_counts(counts: dict[str, int], more: Mapping[str, int]) -> None:
    for effect, number in more.items():
        counts[effect] = counts.get(effect, 0) + number


def _fits(entry: "dict[str, JsonValue]", iteration: IterationChoice) -> bool:
    """Whether an entry belongs to a requested iteration."""
    number = entry["iteration"]
    return is_in_iteration(
        str(entry["path"]), number if isinstance(number, int) else None, iteration
    )


class _LiveText:
    """Text as agents write it. An entry whose text was printed so is not printed again."""

    def __init__(self, terminal: Terminal, iteration: IterationChoice = (None, None)) -> None:
        self._terminal = terminal
        self._iteration = iteration  # the only one that is shown
        self._effect = ""
        self._text = ""
        self._at_start = True  # of a line

    def take(self, effect: str, kind: str, text: str) -> None:
        if not is_in_iteration(effect_path(effect), None, self._iteration):
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
    terminal: Terminal, run: str, entries: Iterator[ActivityItem], dropped: dict[str, int]
) -> None:
    """Print entries; `dropped` is complete when all of them were read."""
    if terminal.as_json:
        terminal.put_json({"run": run, "entries": [*entries], "dropped": dropped})
        return
    day = datetime.now(UTC).date().isoformat()
    for entry in entries:
        if entry.at[:10] != day:
            day = entry.at[:10]
            _put_title(terminal, f"{day} (UTC)")
        tone: Tone = "warn" if entry.ok is False or entry.kind == "denied" else "plain"
        terminal.put(terminal.painted(activity_line(entry), tone, sys.stdout))
    for effect, count in dropped.items():
        were = "was" if count == 1 else "were"
        terminal.put(f"{one_line(effect)}: {count:,} more {were} not stored")


def activity_line(entry: ActivityItem) -> str:
    """One entry on one line: time, iteration, agent, tool, target, result, duration, text."""
    place = f"#{entry.iteration} {entry.agent}" if entry.iteration is not None else entry.agent
    what = f"{entry.tool} {entry.target}".strip() or entry.kind
    took = "" if entry.ms is None else fine_duration(entry.ms)
    parts = (what, outcome_words(entry), took, entry.text)
    words = "  ".join(one_line(part) for part in parts if part)
    return f"{entry.at[11:19]}  {one_line(place)}  {words}"


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
    from loopwright.cli.attach import feed_options, follow_runs  # noqa: PLC0415 - help stays quick
    from loopwright.cli.run_output import AttachOptions  # noqa: PLC0415 - help stays quick

    async def begin(client: "Client") -> "list[RunFeed]":
        after = 0 if jsonl else None
        name = await client.find_run(run)
        return [await client.open_feed(name, after, feed_options(terminal, watches=True))]

    return follow_runs(terminal, begin, AttachOptions(no_wait=no_wait, jsonl=jsonl, watches=True))


VERBS = {
    "events": events,
    "logs": logs,
    "watch": watch,
}
