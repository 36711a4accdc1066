"""`show`: the state and the history of one run."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loopwright.cli.charts import draw, figure_lines
from loopwright.cli.completion import complete_runs
from loopwright.cli.formats import (
    STATUS_TONES,
    call_lines,
    changed_line,
    exposed_lines,
    status_cell,
    terminal_width,
    tokens,
    used_tokens,
)
from loopwright.cli.terminal import Terminal, Tone, cleaned, cut, last_lines, one_line, width
from loopwright.cli.verb import Verb, terminal_of
from loopwright.client.client import CommandClient
from loopwright.model.ids import logical_path, loop_path, try_number
from loopwright.operations.use_cases.operation import RunReference
from loopwright.operations.use_cases.run_queries import snapshot
from loopwright.operations.use_cases.run_views import (
    ReadOutput,
    read_certificate,
    read_metrics,
    read_output,
)
from loopwright.views.certificate import RunCertificate, certificate_lines
from loopwright.views.formats import evidence_below, labelled, money, place_words, without_signs
from loopwright.views.metrics import metrics_chart
from loopwright.views.run_responses import (
    ActivitySummary,
    ChangeCounts,
    ChangedTree,
    CheckView,
    ForkOrigin,
    GraphNode,
    IterationItem,
    ResumedItem,
    RunLimits,
    RunSnapshot,
    SandboxLevels,
    WorktreeView,
)
from loopwright.views.run_view import RunOutput

if TYPE_CHECKING:
    pass

EVIDENCE_LINES = 3
NARROWEST = 40
_PASS_SIGNS: "dict[Tone, tuple[str, str]]" = {
    "good": ("✓", "+"),
    "bad": ("✗", "x"),
    "plain": ("·", "-"),
}
_DECIDED = {"approve": "approved", "reject": "rejected", "continue": "continued"}
_TRY = re.compile(r"~\d+")
DRAWN_CELLS = 100  # wider is harder to read, also without a terminal


@click.command(
    cls=Verb,
    remote=True,
    examples=[("loopwright show run_01", "the beginning of an id is enough")],
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.option(
    "--metrics",
    is_flag=True,
    help="Time, calls, tokens and cost of each iteration, step and agent.",
)
@click.option(
    "--svg",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw findings and cost of every iteration into a file ('-' for stdout).",
)
@click.option(
    "--output",
    metavar="PATH",
    help="Print only the output of one step or iteration, by its path (main.0.plan).",
)
@click.option(
    "--certificate",
    is_flag=True,
    help="Which checks decided, on which files, and whether protected files are unchanged.",
)
@click.pass_context
def show(
    ctx: click.Context,
    /,
    *,
    run: str,
    metrics: bool,
    svg: Path | None,
    output: str | None,
    certificate: bool,
) -> None:
    """Show one run: its status, its iterations, what it cost, and what to do next.

    After `resume --restart`, the iterations of each try are listed under a heading, with the names
    that other commands take: 2~1 is iteration 2 of the first try.
    """
    terminal = terminal_of(ctx)
    with terminal.client() as client:
        wanted = RunReference(run=client.find_run(run))
        if certificate:
            _put_certificate(terminal, client.call(read_certificate, wanted))
        elif output is not None:
            found = client.call(read_output, ReadOutput(run=wanted.run, path=output))
            _put_output(terminal, found)
        elif metrics or svg is not None:
            _put_figures(terminal, client, wanted, svg)
        elif terminal.as_json:
            terminal.put_json(client.call(snapshot, wanted))
        else:
            put_run(terminal, client.call(snapshot, wanted))


def _put_certificate(terminal: Terminal, made: RunCertificate) -> None:
    if terminal.as_json:
        terminal.put_json(made)
        return
    for line in certificate_lines(made):
        terminal.put(one_line(line))


def _put_output(terminal: Terminal, found: RunOutput) -> None:
    if terminal.as_json:
        terminal.put_json(found)
    else:
        terminal.put(cleaned(found.output))


def _put_figures(
    terminal: Terminal, client: CommandClient, wanted: RunReference, svg: Path | None
) -> None:
    figures = client.call(read_metrics, wanted)
    if svg is not None:
        title = client.call(snapshot, wanted).name
        drawn = metrics_chart(figures, title=title)
        if str(svg) == "-":
            terminal.put(drawn.rstrip())
            return
        svg.write_text(drawn, encoding="utf-8")
        terminal.tell(f"drew {svg}")
    elif not terminal.as_json:
        signs = terminal.has_signs(sys.stdout)
        for line, tone in figure_lines(figures, cells=terminal_width(), signs=signs):
            terminal.put(terminal.painted(line, tone, sys.stdout))
    if terminal.as_json:
        terminal.put_json(figures)


def put_run(terminal: Terminal, detail: RunSnapshot) -> None:
    """A run as a page of text."""
    _Sheet(terminal).put(detail)


class _Sheet:
    """A run as a page of text."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._width = terminal_width()
        self._signs = terminal.has_signs(sys.stdout)

    def put(self, detail: RunSnapshot) -> None:
        cell = status_cell(detail.status, signs=self._signs)
        if detail.left_behind:
            cell += " (left behind)"
        elif detail.waits_for:
            cell += f" ({detail.waits_for})"
        self._line(f"{cell}  {one_line(detail.name)}", STATUS_TONES[detail.status])
        self._line(self._headline(detail.headline), "bold")
        self._line("")
        self._fields(detail)
        self._graph(detail.graph)
        self._passes(detail.passes, before=detail.iterations_before)
        if not detail.passes:
            self._activity(detail.activity)
        for one in detail.changed_dependencies:
            where = f"iteration {one.iteration}" if one.iteration else "the run"
            words = f"{one.path} changed in {where}; the check depends on it"
            self._line(f"warning: {one_line(words)}", "warn")
        self._decisions(detail)
        self._messages(detail)
        self._waiting(detail)
        self._line("")
        for command in detail.next:
            self._line(f"  {self._with_flags(command)}", "dim")

    def _headline(self, line: str) -> str:
        return one_line(line if self._signs else without_signs(line))

    def _with_flags(self, command: str) -> str:
        """A command for the server that is being used, if there is one."""
        return f"{command}{self._terminal.server_suffix}"

    def _fields(self, detail: RunSnapshot) -> None:
        used = used_tokens(detail.usage)
        driver = detail.driver
        fields = {
            "run": detail.run,
            "goal": detail.goal,
            "agent": _agents(detail.agents),
            "limits": _limits(detail.limits, detail.max),
            "protected": ", ".join(detail.protect),
            "variables": ", ".join(detail.env),
            "sandbox": _sandbox(detail.sandbox),
            "workspace": detail.workspace,
            "worktree": _worktree(detail.worktree),
            "dialect": detail.dialect,
            "spent": detail.usage.cost + (f", {used} tokens" if used else ""),
            "unlimited": _uncovered(detail.uncovered),
            "labels": ", ".join(detail.labels),
            "changed": _counts(detail.changed).strip(),
            "forked": _origin(detail.forked),
            "started": detail.started_at,
            **_resumed(detail.resumed),
            "ended": detail.finished_at or "",
            "driven by": f"process {driver}" if driver and not detail.finished_at else "",
        }
        if detail.left_behind:
            fields["driven by"] = "no process: it was interrupted; `loopwright resume` continues it"
        for name, value in fields.items():
            if value:
                self._line(f"{name.rstrip(' '):<10} {one_line(value)}")

    def _graph(self, nodes: list[GraphNode]) -> None:
        """The steps as a drawing, unless there is only one thing to draw."""
        if len(nodes) < 2 and not any(node.steps for node in nodes):
            return
        self._line("")
        for line in draw(nodes, cells=min(self._width, DRAWN_CELLS), signs=self._signs):
            self._line(line.text, line.tone)

    def _passes(self, rows: list[IterationItem], *, before: int) -> None:
        if rows:
            self._line("")
        if before:
            plural = "" if before == 1 else "s"
            words = f"{before:,} earlier iteration{plural}: `loopwright events` has them"
            self._line(words, "dim")
        paths = [one.path for one in rows]
        has_tries = any(try_number(path) > 1 for path in paths)
        has_titles = has_tries and len({logical_path(loop_path(path)) for path in paths}) == 1
        many = len({_TRY.sub("", _loop_of(path)) for path in paths}) > 1
        shown = 0
        for one in rows:
            attempt = try_number(one.path)
            if has_titles and attempt != shown:
                self._line(_try_title(attempt, newest=max(map(try_number, paths))), "bold")
                shown = attempt
            mark = _mark(one)
            sign = _PASS_SIGNS[mark][0 if self._signs else 1]
            name = place_words(one.path) if many else str(one.iteration)
            if has_tries:
                name += f" (try {attempt})" if many else f"~{attempt}"
            is_failed = one.status == "failed"
            text = one_line((is_failed and one.error) or one.learning or one.error or "")
            cost = f"{one.usage.cost}  " if one.usage.usd else ""
            self._line(f"{sign} {name}  {cost}{_counts(one.changed)}{text}".rstrip(), mark)
            self._activity(one.activity)
            for check in one.checks:
                self._check(check)

    def _activity(self, counts: ActivitySummary) -> None:
        """What agents did in an iteration."""
        from loopwright.views.transcript import counts_words  # noqa: PLC0415 - help stays quick

        for line in counts.stderr:
            self._line(f"     standard error: {one_line(line)}", "dim")
        for line in counts.warnings or ():
            self._line(f"     warning: {one_line(line)}", "warn")
        words = counts_words(counts)
        if not words:
            return
        self._line(f"     {words}", "dim")
        if counts.files:
            more = counts.files_edited - len(counts.files)
            named = ", ".join(map(one_line, counts.files))
            self._line(f"       edited {named}{f' and {more} more' if more > 0 else ''}", "dim")
        for denied in counts.denials:
            self._line(f"       {one_line(denied)}", "warn")
        for failed in counts.failed:
            self._line(f"       failed {one_line(failed)}", "warn")

    def _check(self, check: CheckView) -> None:
        tone: Tone = "good" if check.verdict == "pass" else "warn"
        by, evidence = one_line(check.by), one_line(check.evidence)
        self._line(f"     {labelled(one_line(check.check), check.verdict, evidence, by)}", tone)
        if check.verdict != "pass":
            for line in last_lines(evidence_below(check.check, check.evidence), EVIDENCE_LINES):
                self._line(f"       {one_line(line)}", "dim")

    def _decisions(self, detail: RunSnapshot) -> None:
        """Who decided what."""
        for one in detail.decisions:
            text = _DECIDED.get(one.decision, one.decision)
            who = f" by {one.by}" if one.by else ""
            words = f": {one.text}" if one.text else ""
            place = f" in {where}" if (where := place_words(one.path)) else ""
            self._line(one_line(f"{text}{who}{place}, {one.at}{words}"), "dim")

    def _messages(self, detail: RunSnapshot) -> None:
        """Messages of people to the agents."""
        for one in detail.messages:
            to = "" if one.to == "*" else f" to {one.to}"
            words = f"message from {one.by}{to}, {one.at} ({one.state}): {one.text}"
            self._line(one_line(words), "dim")

    def _waiting(self, detail: RunSnapshot) -> None:
        for gate in detail.gates:
            self._line(f"waits  {gate.id}  {one_line(gate.message)}", "warn")
            if words := changed_line(gate):
                self._line(f"       {words}")
            for line in call_lines(gate.call) if gate.call is not None else ():
                self._whole_line(f"       {line}")
            for line in exposed_lines(gate.id, gate.marks, gate.shown):
                self._whole_line(f"       {line}")

    def _whole_line(self, text: str) -> None:
        """A text that needs a decision: wrapped if it is long, never cut."""
        room = max(self._width, NARROWEST)
        while width(text) > room:
            head = cut(text, room + 1)[:-1]
            self._terminal.put(head)
            text = f"         {text[len(head) :]}"
        self._terminal.put(text)

    def _line(self, text: str, tone: Tone = "plain") -> None:
        self._terminal.put(self._terminal.painted(cut(text, self._width), tone, sys.stdout))


def _sandbox(levels: SandboxLevels) -> str:
    """The sandbox level of a run, and of commands and agents that have another one."""
    if not levels.run:
        return ""  # an older run
    named = [f"{name}: {one}" for name, one in levels.agents.items() if one != levels.run]
    if levels.commands and levels.commands != levels.run:
        named.insert(0, f"commands: {levels.commands}")
    return ", ".join([levels.run, *named])


def _agents(agents: dict[str, str]) -> str:
    """The backend of each agent; the name of the only one is not needed."""
    if len(agents) == 1:
        return next(iter(agents.values()))
    return ", ".join(f"{name}={spec}" for name, spec in agents.items())


def _limits(limits: RunLimits, most: int | None) -> str:
    """What the run may use in all."""
    from loopwright.views.status_text import duration_text  # noqa: PLC0415 - help stays quick

    parts = [f"{most} iteration{'' if most == 1 else 's'}"] if most else []
    if limits.usd is not None:
        parts.append(money(limits.usd))
    if limits.tokens is not None:
        parts.append(f"{tokens(limits.tokens)} tokens")
    if limits.time_ms is not None:
        parts.append(duration_text(limits.time_ms))
    if limits.idle_ms is not None:
        parts.append(f"{duration_text(limits.idle_ms)} idle")
    return ", ".join(parts)


def _resumed(found: list[ResumedItem]) -> dict[str, str]:
    """When a run was resumed and where it continued, one field for each time."""
    fields: dict[str, str] = {}
    for number, one in enumerate(found):
        by = f" by {one.by}" if one.by else ""
        where = "from the start" if one.restarted else one.point and f"at {one.point}"
        name = "restarted" if one.restarted else "resumed"
        fields[name + " " * number] = f"{one.at}{by}{f', {where}' if where else ''}"
    return fields


def _uncovered(agents: list[str]) -> str:
    """The agents that limits in USD do not cover."""
    names = ", ".join(agents)
    return f"{names}: not covered by limits in USD (unknown cost)" if names else ""


def _worktree(found: WorktreeView | None) -> str:
    """The branch of a worktree, and what can be done with it."""
    if found is None:
        return ""
    here = f"branch {found.branch} of {found.repository}"
    if not found.exists:
        return f"{here} ({'applied, then ' if found.applied else ''}discarded)"
    what = "applied; `discard` removes it" if found.applied else "`apply` merges it back"
    return f"{here} ({what})"


def _origin(forked: ForkOrigin | None) -> str:
    return "" if forked is None else f"from {forked.run} after {place_words(forked.at)}"


def _mark(one: IterationItem) -> Tone:
    """The mark of an iteration: it ended its loop, an item is done, or it failed."""
    if one.status == "failed":
        return "bad"
    item_done = one.status == "completed" and one.path.endswith("]")
    return "good" if one.done or item_done else "plain"


def _counts(changed: ChangeCounts | ChangedTree | None) -> str:
    """`3 files (+12 −4) `, if the iteration has a snapshot."""
    if changed is None:
        return ""
    if not changed.files:
        return "no files  "
    plural = "" if changed.files == 1 else "s"
    lines = f"(+{changed.insertions} −{changed.deletions})"
    return f"{changed.files} file{plural} {lines}  "


def _try_title(attempt: int, *, newest: int) -> str:
    """The heading over the iterations of one try, with how other commands name them."""
    if attempt == newest:
        return f"try {attempt} (newest): 1~{attempt} or just 1 is its first iteration"
    return (
        f"try {attempt}: 1~{attempt} is its first iteration, e.g. `loopwright diff RUN 1~{attempt}`"
    )


def _loop_of(path: str) -> str:
    return path.rpartition("[" if path.endswith("]") else ".")[0]


VERBS = {"show": show}
