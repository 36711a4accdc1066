"""Metrics of a run: time and cost of iterations, steps and roles, review findings, an SVG chart.

Everything is computed from the events, so it is the same for a running run, a finished run, and
a run that another process drives. What an inner loop spends also counts for every loop around
it.

A review finding keeps its identity across iterations: by its id, or by its place and normalised
text. So a reviewer that repeats a finding does not add one. The SVG needs no other files.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from statistics import median
from typing import Literal, TypeAlias

import msgspec

from loopwright.kernel.event_parts import (
    CALLED,
    AgentCall,
    AnyCall,
    CommandCall,
    ModelCall,
    ToolCall,
)
from loopwright.kernel.events import (
    AnyEvent,
    CheckVerdict,
    EffectDone,
    EffectFailed,
    EffectRequested,
    IterationFinished,
    IterationStarted,
)
from loopwright.model.ids import iteration_number, last_id, logical_path, parent_path
from loopwright.model.record import JsonValue, Text
from loopwright.views.formats import known_usd
from loopwright.views.summary import ReadText

Trend: TypeAlias = Literal["", "converging", "plateau", "oscillating", "diverging"]

_SAYS = ("message", "title", "description", "text", "summary", "finding", "issue")
_WHERE = ("location", "file", "path")
_FEWEST = 2  # rounds that say nothing about a direction yet


class RoundOfFindings(msgspec.Struct, frozen=True, kw_only=True):
    """What one round found, against the rounds before it."""

    open: int
    new: int
    gone: int
    back: int  # was gone in the round before, and is there again
    by_severity: dict[str, int] = {}


def finding_key(finding: JsonValue) -> str:
    """What makes two findings of different rounds the same."""
    if not isinstance(finding, dict):
        return _plain(str(finding))
    if named := finding.get("id"):
        return f"id {named}"
    value = next((finding[name] for name in _SAYS if finding.get(name)), "")
    where = next((finding[name] for name in _WHERE if finding.get(name)), "")
    return f"{_plain(str(where))} {_plain(str(value))}".strip()


def compared(rounds: Iterable[Sequence[JsonValue] | None]) -> list[RoundOfFindings | None]:
    """Every round against those before it. None stays None: nothing was reviewed in that one."""
    ever: set[str] = set()
    before: set[str] = set()
    counted: list[RoundOfFindings | None] = []
    for findings in rounds:
        if findings is None:
            counted.append(None)
            continue
        now = {finding_key(one) for one in findings}
        counted.append(
            RoundOfFindings(
                open=len(now),
                new=len(now - ever),
                gone=len(before - now),
                back=len((now & ever) - before),
                by_severity=_severities(findings),
            )
        )
        ever |= now
        before = now
    return counted


def trend(rounds: Iterable[RoundOfFindings | None]) -> Trend:
    """The trend of the newest iterations. Findings that return are the mark of a loop that undoes
    its previous changes.
    """
    last = [one for one in rounds if one is not None][-3:]
    if len(last) < _FEWEST:
        return ""
    if last[-1].back and last[-1].open:
        return "oscillating"
    counts = [one.open for one in last]
    if counts[-1] < counts[-2]:
        return "converging"
    if counts[-1] > counts[-2]:
        return "diverging"
    return "plateau" if counts[-1] else "converging"


def _severities(findings: Sequence[JsonValue]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in findings:
        severity = one.get("severity") if isinstance(one, dict) else None
        if isinstance(severity, str) and severity:
            found[severity] = found.get(severity, 0) + 1
    return found


def _plain(text: str) -> str:
    """A text without the parts that differ when the same statement is repeated."""
    return re.sub(r"[\W\d_]+", " ", text.casefold()).strip() or text.strip()


COMMANDS = "checks and commands"
_WHOLE_RUN = "run"
"""The name of what belongs to no step."""
_COUNTED = (*CALLED, CommandCall, ToolCall)


class MetricsUsage(msgspec.Struct, kw_only=True):
    """The duration and cost of calls. `calls` are calls of agents, as `spend` counts them. `usd` is
    null when nothing of the cost is known.
    """

    calls: int = 0
    commands: int = 0
    tools: int = 0
    failed: int = 0
    ms: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float | None = 0.0
    unpriced_calls: int = 0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def add(self, call: AnyCall, answer: EffectDone | EffectFailed, ms: int) -> None:
        self.calls += isinstance(call, CALLED)
        self.commands += isinstance(call, CommandCall)
        self.tools += isinstance(call, ToolCall)
        self.failed += isinstance(answer, EffectFailed)
        self.ms += ms
        if (usage := answer.usage) is not None:
            self.input_tokens += usage.input_tokens
            self.output_tokens += usage.output_tokens
            self.unpriced_calls += usage.unpriced
            self.usd = (self.usd or 0.0) + usage.usd

    def hide_unknown_cost(self) -> None:
        self.usd = known_usd(self.usd or 0.0, self.unpriced_calls)


class IterationVerdict(msgspec.Struct):
    """A check of an iteration and its verdict."""

    check: str
    verdict: str


class IterationMetrics(msgspec.Struct):
    """One iteration of a loop."""

    path: str
    loop: str
    number: int
    began_at: int
    ms: int = 0
    status: str = "running"
    done: bool = False
    verdicts: list[IterationVerdict] = []
    spent: MetricsUsage = msgspec.field(default_factory=MetricsUsage)
    findings: list[JsonValue] | None = None
    compared: RoundOfFindings | None = None


class _TimedUsage(MetricsUsage, kw_only=True):
    median_ms: int = 0
    longest_ms: int = 0


class MetricsPart(_TimedUsage):
    """A step or an agent: all its calls in all iterations."""

    name: str  # the first in JSON


class RunFigures(msgspec.Struct):
    """Time, calls, tokens and cost of each iteration, step and agent of a run."""

    run: str
    rounds: list[IterationMetrics]
    stages: list[MetricsPart]
    roles: list[MetricsPart]
    total: MetricsUsage
    trends: dict[str, Trend]  # by loop


class Counting:
    """The metrics of one run, event by event."""

    def __init__(self, read: ReadText) -> None:
        self._read = read
        self._rounds: dict[str, IterationMetrics] = {}
        self._verdicts: dict[tuple[str, int, str], IterationVerdict] = {}
        self._requests: dict[str, EffectRequested] = {}
        # with the duration of each call
        self._stages: dict[str, tuple[MetricsPart, list[int]]] = {}
        self._roles: dict[str, tuple[MetricsPart, list[int]]] = {}
        self._total = MetricsUsage()

    def take(self, event: AnyEvent) -> None:
        match event:
            case IterationStarted(path=path, resumed=True) if path in self._rounds:
                pass  # it continues, and its time counts on
            case IterationStarted(path=path):
                loop = parent_path(path)
                number = iteration_number(path) + 1
                self._rounds[path] = IterationMetrics(path, loop, number, began_at=event.at)
            case IterationFinished(path=path) if path in self._rounds:
                seen = self._rounds[path]
                seen.ms, seen.status, seen.done = event.ms, event.status, event.done
                self._found(seen, event.result)
            case CheckVerdict(path=path) if path in self._rounds:
                self._judged(self._rounds[path], event)
            case EffectRequested():
                self._requests[event.effect] = event
            case EffectDone() | EffectFailed():
                self._answered(event)
            case _:
                pass

    def figures(self, run: str) -> RunFigures:
        """The figures of the run with this id, up to now."""
        rounds = list(self._rounds.values())
        loops = dict.fromkeys(one.loop for one in rounds)
        trends: dict[str, Trend] = {}
        for loop in loops:
            own = [one for one in rounds if one.loop == loop]
            for one, found in zip(own, compared(one.findings for one in own), strict=True):
                one.compared = found
            if leads := trend(one.compared for one in own):
                trends[loop] = leads
        for used in (self._total, *(one.spent for one in rounds)):
            used.hide_unknown_cost()
        stages, roles = (
            [_timed(*one) for one in parts.values()] for parts in (self._stages, self._roles)
        )
        return RunFigures(run, rounds, stages, roles, self._total, trends)

    def _judged(self, around: IterationMetrics, event: CheckVerdict) -> None:
        """The newest verdict of each check is shown."""
        key = (around.path, event.index, event.check)
        if key not in self._verdicts:
            self._verdicts[key] = IterationVerdict(event.check, event.verdict)
            around.verdicts.append(self._verdicts[key])
        self._verdicts[key].verdict = event.verdict

    def _answered(self, event: EffectDone | EffectFailed) -> None:
        request = self._requests.pop(event.effect, None)
        if request is None or not isinstance(request.call, _COUNTED):
            return  # also a snapshot, which neither an agent nor a program makes
        ms = max(0, event.at - request.at)
        self._total.add(request.call, event, ms)
        for part, times in (self._stage(request), self._role(request.call)):
            part.add(request.call, event, ms)
            times.append(ms)
        place = event.path
        while place:
            if (around := self._rounds.get(place)) is not None:
                around.spent.add(request.call, event, ms)
                if isinstance(event, EffectDone):
                    self._found(around, event.result)
            place = parent_path(place)

    def _found(self, around: IterationMetrics, result: Text | None) -> None:
        """The newest list of findings of a round is the one that counts."""
        if result is None:
            return
        value = msgspec.json.decode(self._read(result))
        findings = value.get("findings") if isinstance(value, dict) else None
        if isinstance(findings, list):
            around.findings = findings

    def _stage(self, request: EffectRequested) -> tuple[MetricsPart, list[int]]:
        name = logical_path(request.path) or last_id(request.path) or _WHOLE_RUN
        if isinstance(request.call, AgentCall) and request.call.role != "worker":
            name = f"{name} ({request.call.role})"
        return self._stages.setdefault(name, (MetricsPart(name), []))

    def _role(self, call: AnyCall) -> tuple[MetricsPart, list[int]]:
        name = call.agent if isinstance(call, AgentCall | ModelCall | ToolCall) else COMMANDS
        return self._roles.setdefault(name, (MetricsPart(name), []))


def _timed(part: MetricsPart, times: list[int]) -> MetricsPart:
    part.hide_unknown_cost()
    part.median_ms, part.longest_ms = int(median(times)), max(times)
    return part


WIDTH = 720
PANEL = 190
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 34, 28
MOST_LABELS = 24  # under more bars than that the numbers would run into each other

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #444 }
  .title { font-weight: 600; font-size: 13px; fill: #222 }
  .axis { stroke: #bbb; stroke-width: 1 }
  .open { fill: #8aa4c8 } .new { fill: #c8553d }
  .bar { fill: #7fae8f } .line { fill: none; stroke: #2f6b4f; stroke-width: 2 }
  .dot { fill: #2f6b4f } .done { fill: #2f6b4f; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    text { fill: #ccc } .title { fill: #eee } .axis { stroke: #555 }
  }
"""


def metrics_chart(metrics: RunFigures, *, title: str, loop: str | None = None) -> str:
    """The metrics of one loop; without a name, of the loop with the most iterations."""
    rounds = rounds_of(metrics, loop)
    reviewed = any(one.compared is not None for one in rounds)
    panels = [*((_findings(rounds),) if reviewed else ()), _spend(rounds)]
    height = 24 + PANEL * len(panels)
    body = []
    for number, panel in enumerate(panels):
        body += [f'<g transform="translate(0 {24 + number * PANEL})">', *panel, "</g>"]
    leads = metrics.trends.get(rounds[0].loop, "") if rounds else ""
    heading = f"{title}: {leads}" if leads else title
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-label="{escape(heading, quote=True)}">'
    )
    name = f'<text class="title" x="{LEFT}" y="18">{escape(heading)}</text>'
    return "\n".join([head, f"<style>{STYLE}</style>", name, *body, "</svg>", ""])


def rounds_of(metrics: RunFigures, loop: str | None = None) -> list[IterationMetrics]:
    """The rounds of one loop; without a name, of the one with the most of them."""
    loops: dict[str, list[IterationMetrics]] = {}
    for one in metrics.rounds:
        loops.setdefault(one.loop, []).append(one)
    if loop is not None:
        return loops.get(loop, [])
    return max(loops.values(), key=len, default=[])


def _findings(rounds: Sequence[IterationMetrics]) -> Iterator[str]:
    counts = [one.compared.open if one.compared else 0 for one in rounds]
    scale = max([1, *counts])
    yield from _frame("findings (red: new in this round)", str(scale))
    for number, one in enumerate(rounds):
        x, width = _slot(number, len(rounds))
        if one.compared is not None:
            yield _bar("open", x, width, one.compared.open / scale)
            yield _bar("new", x, width, one.compared.new / scale)
        yield from _label(number, one, len(rounds))


def _spend(rounds: Sequence[IterationMetrics]) -> Iterator[str]:
    """Money if any was spent, else tokens: bars for the iterations, a line for the total."""
    in_money = any(one.spent.usd for one in rounds)
    each = [(one.spent.usd or 0.0) if in_money else float(one.spent.tokens) for one in rounds]
    total = sum(each)
    scale = total or 1.0
    most = f"${total:.2f}" if in_money else f"{total:,.0f}"
    yield from _frame("USD (line: all so far)" if in_money else "tokens (line: all so far)", most)
    so_far, points = 0.0, []
    for number, one in enumerate(rounds):
        x, width = _slot(number, len(rounds))
        yield _bar("bar", x, width, each[number] / scale)
        so_far += each[number]
        points.append((x + width / 2, _y(so_far / scale)))
        yield from _label(number, one, len(rounds))
    if points:
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polyline class="line" points="{joined}"/>'
        yield from (f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points)


def _frame(name: str, most: str) -> Iterator[str]:
    base = _y(0)
    yield f'<text x="{LEFT}" y="{TOP - 14}">{escape(name)}</text>'
    yield f'<text x="{LEFT - 6}" y="{TOP + 8}" text-anchor="end">{escape(most)}</text>'
    yield f'<text x="{LEFT - 6}" y="{base}" text-anchor="end">0</text>'
    yield f'<line class="axis" x1="{LEFT}" y1="{base}" x2="{WIDTH - RIGHT}" y2="{base}"/>'


def _label(number: int, one: IterationMetrics, count: int) -> Iterator[str]:
    if count > MOST_LABELS and number % (count // MOST_LABELS + 1):
        return
    x, width = _slot(number, count)
    kind = ' class="done"' if one.done else ""
    at = f'x="{x + width / 2:.1f}" y="{_y(0) + 16:.1f}"'
    yield f'<text{kind} {at} text-anchor="middle">{one.number}</text>'


def _bar(kind: str, x: float, width: float, share: float) -> str:
    top = _y(share)
    height = max(0.0, _y(0) - top)
    at = f'x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{kind}" {at}/>'


def _slot(number: int, count: int) -> tuple[float, float]:
    each = (WIDTH - LEFT - RIGHT) / max(1, count)
    return LEFT + number * each + each * 0.15, each * 0.7


def _y(share: float) -> float:
    return PANEL - BOTTOM - share * (PANEL - TOP - BOTTOM)
