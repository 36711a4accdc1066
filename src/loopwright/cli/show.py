"""`show`: the state and the history of one run."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from loopwright.cli.charts import draw, figure_lines
from loopwright.cli.completion import complete_runs
from loopwright.cli.formats import (
    STATUS_TONES,
    as_dict,
    bill,
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
from loopwright.client.addresses import CommandClient
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
from loopwright.views.formats import evidence_below, labelled, money, without_signs
from loopwright.views.metrics import metrics_chart
from loopwright.views.run_responses import GraphNode
from loopwright.views.run_view import RunOutput
from loopwright.views.status_text import place_words

if TYPE_CHECKING:
    from loopwright.model.record import JsonValue

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
            terminal.put_json(as_dict(client.call(snapshot, wanted)))
        else:
            put_run(terminal, as_dict(client.call(snapshot, wanted)))


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


def put_run(terminal: Terminal, detail: "dict[str, JsonValue]") -> None:
    """A run as a page of text."""
    _Sheet(terminal).put(detail)


class _Sheet:
    """A run as a page of text."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._width = terminal_width()
        self._signs = terminal.has_signs(sys.stdout)

    def put(self, detail: "dict[str, JsonValue]") -> None:
        status = str(detail["status"])
        cell = status_cell(status, signs=self._signs)
        if detail["left_behind"]:
            cell += " (left behind)"
        elif detail.get("waits_for"):  # a server of an older version does not tell
            cell += f" ({detail['waits_for']})"
        self._line(f"{cell}  {one_line(str(detail['name']))}", STATUS_TONES[status])
        self._line(self._headline(str(detail["headline"])), "bold")
        self._line("")
        self._fields(detail)
        self._graph(detail["graph"])
        self._passes(detail["passes"], before=int(str(detail.get("passes_before", 0))))
        if not _list(detail["passes"]):
            self._activity(detail.get("activity"))
        self._dependencies(detail.get("changed_dependencies") or [])
        self._decisions(detail)
        self._messages(detail)
        self._waiting(detail)
        self._line("")
        for command in _list(detail["next"]):
            self._line(f"  {self._with_flags(str(command))}", "dim")

    def _headline(self, line: str) -> str:
        return one_line(line if self._signs else without_signs(line))

    def _with_flags(self, command: str) -> str:
        """A command for the server that is being used, if there is one."""
        return f"{command}{self._terminal.server_suffix}"

    def _fields(self, detail: "dict[str, JsonValue]") -> None:
        usage = detail["usage"]
        assert isinstance(usage, dict)
        used = used_tokens(usage)
        driver = detail["driver"]
        fields = {
            "run": str(detail["run"]),
            "goal": str(detail["goal"]),
            "agent": _agents(detail.get("agents")),
            "limits": _limits(detail.get("limits"), detail.get("max")),
            "protected": ", ".join(str(one) for one in _list(detail.get("protect") or [])),
            "variables": ", ".join(str(one) for one in _list(detail.get("env") or [])),
            "sandbox": _sandbox(detail.get("sandbox")),
            "workspace": str(detail["workspace"]),
            "worktree": _worktree(detail.get("worktree")),
            "dialect": str(detail["dialect"]),
            "spent": bill(usage) + (f", {used} tokens" if used else ""),
            "unlimited": _uncovered(detail.get("uncovered")),
            "labels": ", ".join(str(one) for one in _list(detail.get("labels") or [])),
            "changed": _counts(detail.get("changed")).strip(),
            "forked": _origin(detail["forked"]),
            "started": str(detail["started_at"]),
            **_resumed(detail.get("resumed")),
            "ended": str(detail["finished_at"] or ""),
            "driven by": f"process {driver}" if driver and not detail["finished_at"] else "",
        }
        if detail["left_behind"]:
            fields["driven by"] = "no process: it was interrupted; `loopwright resume` continues it"
        for name, value in fields.items():
            if value:
                self._line(f"{name.rstrip(' '):<10} {one_line(value)}")

    def _graph(self, graph: "JsonValue") -> None:
        """The steps as a drawing, unless there is only one thing to draw."""
        nodes = msgspec.convert(graph, list[GraphNode])
        if len(nodes) < 2 and not any(node.steps for node in nodes):
            return
        self._line("")
        for line in draw(nodes, cells=min(self._width, DRAWN_CELLS), signs=self._signs):
            self._line(line.text, line.tone)

    def _passes(self, passes: "JsonValue", *, before: int) -> None:
        rows = [one for one in _list(passes) if isinstance(one, dict)]
        if rows:
            self._line("")
        if before:
            plural = "" if before == 1 else "s"
            words = f"{before:,} earlier iteration{plural}: `loopwright events` has them"
            self._line(words, "dim")
        paths = [str(one["path"]) for one in rows]
        has_tries = any(try_number(path) > 1 for path in paths)
        has_titles = has_tries and len({logical_path(loop_path(path)) for path in paths}) == 1
        many = len({_TRY.sub("", _loop_of(path)) for path in paths}) > 1
        shown = 0
        for one, path in zip(rows, paths, strict=True):
            attempt = try_number(path)
            if has_titles and attempt != shown:
                self._line(_try_title(attempt, newest=max(map(try_number, paths))), "bold")
                shown = attempt
            mark = _mark(one)
            sign = _PASS_SIGNS[mark][0 if self._signs else 1]
            name = place_words(path) if many else str(one["iteration"])
            if has_tries:
                name += f" (try {attempt})" if many else f"~{attempt}"
            columns = ("error", "learning") if one["status"] == "failed" else ("learning", "error")
            text = one_line(str(one[columns[0]] or one[columns[1]] or ""))
            counted = _counts(one.get("changed"))
            self._line(f"{sign} {name}  {_cost(one.get('usage'))}{counted}{text}".rstrip(), mark)
            self._activity(one.get("activity"))
            for check in _list(one["checks"]):
                assert isinstance(check, dict)
                self._check(check)

    def _activity(self, counts: "JsonValue") -> None:
        """What agents did in an iteration; a server of an older version does not tell."""
        from loopwright.views.run_responses import ActivitySummary  # noqa: PLC0415 - help stays quick
        from loopwright.views.transcript import counts_words  # noqa: PLC0415 - help stays quick

        if not isinstance(counts, dict):
            return
        for line in _list(counts.get("stderr", [])):
            self._line(f"     standard error: {one_line(str(line))}", "dim")
        for line in _list(counts.get("warnings", [])):
            self._line(f"     warning: {one_line(str(line))}", "warn")
        words = counts_words(msgspec.convert(counts, ActivitySummary))
        if not words:
            return
        self._line(f"     {words}", "dim")
        if files := _list(counts["files"]):
            more = int(str(counts["files_edited"])) - len(files)
            named = ", ".join(one_line(str(file)) for file in files)
            self._line(f"       edited {named}{f' and {more} more' if more > 0 else ''}", "dim")
        for denied in _list(counts.get("denials", [])):
            self._line(f"       {one_line(str(denied))}", "warn")
        for failed in _list(counts["failed"]):
            self._line(f"       failed {one_line(str(failed))}", "warn")

    def _check(self, check: "dict[str, JsonValue]") -> None:
        verdict = str(check["verdict"])
        tone: Tone = "good" if verdict == "pass" else "warn"
        label, evidence = str(check["check"]), str(check["evidence"])
        by = one_line(str(check.get("by") or ""))
        words = labelled(one_line(label), verdict, one_line(evidence), by)
        self._line(f"     {words}", tone)
        if verdict != "pass":
            for line in last_lines(evidence_below(label, evidence), EVIDENCE_LINES):
                self._line(f"       {one_line(line)}", "dim")

    def _dependencies(self, found: "JsonValue") -> None:
        """Files that a check depends on and that changed during the run."""
        for one in _list(found):
            assert isinstance(one, dict)
            where = f"iteration {one['iteration']}" if one["iteration"] else "the run"
            words = f"{one['path']} changed in {where}; the check depends on it"
            self._line(f"warning: {one_line(words)}", "warn")

    def _decisions(self, detail: "dict[str, JsonValue]") -> None:
        """Who decided what; a server of an older version does not tell."""
        for one in _list(detail.get("decisions", [])):
            assert isinstance(one, dict)
            text = _DECIDED.get(str(one["decision"]), str(one["decision"]))
            who = f" by {one['by']}" if one["by"] else ""
            words = f": {one['text']}" if one["text"] else ""
            place = f" in {where}" if (where := place_words(str(one["path"]))) else ""
            self._line(one_line(f"{text}{who}{place}, {one['at']}{words}"), "dim")

    def _messages(self, detail: "dict[str, JsonValue]") -> None:
        """Messages of people to the agents; a server of an older version does not report them."""
        for one in _list(detail.get("messages", [])):
            assert isinstance(one, dict)
            to = "" if one["to"] == "*" else f" to {one['to']}"
            words = f"message from {one['by']}{to}, {one['at']} ({one['state']}): {one['text']}"
            self._line(one_line(words), "dim")

    def _waiting(self, detail: "dict[str, JsonValue]") -> None:
        for gate in _list(detail["gates"]):
            assert isinstance(gate, dict)
            self._line(f"waits  {gate['id']}  {one_line(str(gate['message']))}", "warn")
            if words := changed_line(gate):
                self._line(f"       {words}")
            call = gate.get("call")
            for line in call_lines(call) if isinstance(call, dict) else ():
                self._whole_line(f"       {line}")
            for line in exposed_lines(gate):
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


def _sandbox(sandbox: "JsonValue") -> str:
    """The sandbox level of a run, and of commands and agents that have another one."""
    if not isinstance(sandbox, dict) or not sandbox.get("run"):
        return ""  # an older run, or an older server
    agents = sandbox.get("agents")
    others = agents.items() if isinstance(agents, dict) else ()
    named = [f"{name}: {level}" for name, level in others if level != sandbox["run"]]
    if sandbox.get("commands") not in (None, sandbox["run"]):
        named.insert(0, f"commands: {sandbox['commands']}")
    return ", ".join([str(sandbox["run"]), *named])


def _agents(agents: "JsonValue") -> str:
    """The backend of each agent; the name of the only one is not needed."""
    if not isinstance(agents, dict):
        return ""
    if len(agents) == 1:
        return str(next(iter(agents.values())))
    return ", ".join(f"{name}={spec}" for name, spec in agents.items())


def _limits(limits: "JsonValue", most: "JsonValue") -> str:
    """What the run may use in all."""
    from loopwright.views.status_text import duration_text  # noqa: PLC0415 - help stays quick

    found = limits if isinstance(limits, dict) else {}
    parts = [f"{most} iteration{'' if most == 1 else 's'}"] if most else []
    if found.get("usd") is not None:
        parts.append(money(float(str(found["usd"]))))
    if found.get("tokens") is not None:
        parts.append(f"{tokens(int(str(found['tokens'])))} tokens")
    for key, words in (("time_ms", ""), ("idle_ms", " idle")):
        if found.get(key) is not None:
            parts.append(f"{duration_text(int(str(found[key])))}{words}")
    return ", ".join(parts)


def _resumed(found: "JsonValue") -> dict[str, str]:
    """When a run was resumed and where it continued, one field for each time."""
    fields: dict[str, str] = {}
    for number, one in enumerate(_list(found or [])):
        assert isinstance(one, dict)
        by = f" by {one['by']}" if one["by"] else ""
        where = "from the start" if one["restarted"] else one["point"] and f"at {one['point']}"
        name = "restarted" if one["restarted"] else "resumed"
        fields[name + " " * number] = f"{one['at']}{by}{f', {where}' if where else ''}"
    return fields


def _cost(usage: "JsonValue") -> str:
    """The cost of an iteration, if it called an agent that reports it."""
    if not isinstance(usage, dict):
        return ""
    return f"{bill(usage)}  " if usage["usd"] else ""


def _uncovered(agents: "JsonValue") -> str:
    """The agents that limits in USD do not cover."""
    names = ", ".join(str(one) for one in _list(agents or []))
    return f"{names}: not covered by limits in USD (unknown cost)" if names else ""


def _worktree(found: "JsonValue") -> str:
    """The branch of a worktree, and what can be done with it."""
    if not isinstance(found, dict):
        return ""
    here = f"branch {found['branch']} of {found['repository']}"
    if not found["exists"]:
        return f"{here} ({'applied, then ' if found['applied'] else ''}discarded)"
    what = "applied; `discard` removes it" if found["applied"] else "`apply` merges it back"
    return f"{here} ({what})"


def _origin(forked: "JsonValue") -> str:
    if not isinstance(forked, dict):
        return ""
    return f"from {forked['run']} after {place_words(str(forked['at']))}"


def _mark(one: "dict[str, JsonValue]") -> Tone:
    """The mark of an iteration: it ended its loop, an item is done, or it failed."""
    if one["status"] == "failed":
        return "bad"
    item_done = one["status"] == "completed" and str(one["path"]).endswith("]")
    return "good" if one["done"] or item_done else "plain"


def _counts(changed: "JsonValue") -> str:
    """`3 files (+12 −4) `, if the iteration has a snapshot."""
    if not isinstance(changed, dict):
        return ""
    if not changed["files"]:
        return "no files  "
    plural = "" if changed["files"] == 1 else "s"
    lines = f"(+{changed['insertions']} −{changed['deletions']})"
    return f"{changed['files']} file{plural} {lines}  "


def _try_title(attempt: int, *, newest: int) -> str:
    """The heading over the iterations of one try, with how other commands name them."""
    if attempt == newest:
        return f"try {attempt} (newest): 1~{attempt} or just 1 is its first iteration"
    return (
        f"try {attempt}: 1~{attempt} is its first iteration, e.g. `loopwright diff RUN 1~{attempt}`"
    )


def _loop_of(path: str) -> str:
    return path.rpartition("[" if path.endswith("]") else ".")[0]


def _list(value: "JsonValue") -> "list[JsonValue]":
    assert isinstance(value, list)
    return value


VERBS = {"show": show}
