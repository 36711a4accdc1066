"""What a run says: the table on the terminal, the JSON and the Markdown."""

from __future__ import annotations

import json
import pstats
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import targets
from harness.targets import TARGETS, Metric, Samples, Target

PROFILE_LINES = 12


@dataclass(frozen=True)
class Column:
    """A figure of the comparison tables."""

    title: str
    metric: Metric
    digits: int = 0


PER_STEP = (
    Column("CPU µs/pass", lambda s: s["cpu_seconds"] / s["steps"] * 1e6),
    Column("commits/pass", targets.fsyncs_per_step, 2),
    Column("bytes/pass", targets.bytes_per_step),
    Column("RSS MB", targets.field_of("max_rss", 1 / targets.MEGABYTE)),
)
COMPARISONS: dict[str, tuple[str, tuple[Column, ...]]] = {
    "sequential": (
        "One loop of no-op passes, each durable before the next",
        (Column("µs/pass", targets.us_per_step), *PER_STEP),
    ),
    "concurrent": (
        "200 loops at once",
        (Column("passes/s", targets.steps_per_second), *PER_STEP),
    ),
    "recovery": (
        "1,000 loops killed in a pass: from process start to that pass durable in all of them",
        (
            Column("seconds", targets.field_of("seconds"), 2),
            Column("CPU s", targets.field_of("cpu_seconds"), 2),
            Column("RSS MB", targets.field_of("max_rss", 1 / targets.MEGABYTE)),
        ),
    ),
}


def number(value: float | None, digits: int = 0) -> str:
    """A figure for people; a dash where there is none."""
    return "–" if value is None else f"{value:,.{digits}f}"


def figure(value: float | None, unit: str) -> str:
    """A measured value or a bound with its unit."""
    if value is None:
        return "–"
    text = f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.2f}"
    return f"{text} {unit}" if unit and unit not in "×%" else f"{text}{unit and ' ' + unit}"


def comparison(samples: Samples, workload: str) -> list[list[str]]:
    """The rows of a workload's table, the head first; medians, then the spread of the first."""
    _, columns = COMPARISONS[workload]
    first = columns[0]
    rows = [["", first.title, "min–max", "÷ bare", *(column.title for column in columns[1:])]]
    bare = targets.series(samples, workload, "bare", first.metric)
    for contender in samples.get(workload, {}):
        values = targets.series(samples, workload, contender, first.metric)
        if not values:
            continue
        spread = f"{number(min(values.values()), first.digits)}–" + number(
            max(values.values()), first.digits
        )
        ratio = number(targets.median_ratio(values, bare), 2)
        others = [
            number(
                targets.median(targets.series(samples, workload, contender, column.metric)),
                column.digits,
            )
            for column in columns[1:]
        ]
        middle = number(targets.median(values), first.digits)
        rows.append([contender, middle, spread, ratio, *others])
    return rows


def verdicts(samples: Samples) -> list[list[str]]:
    """The table of figures, the head first."""
    rows = [["figure", "to reach", "measured", ""]]
    for target in TARGETS:
        value, verdict = target.judge(samples)
        bound = f"{target.sense} {figure(target.bound, target.unit)}"
        rows.append([target.figure, bound, figure(value, target.unit), verdict])
    return rows


def missed(samples: Samples) -> list[Target]:
    """The targets that were measured and not reached."""
    return [target for target in TARGETS if target.judge(samples)[1] == "MISSED"]


def hot_spots(profile: Path) -> list[str]:
    """Where the time of a profiled run went: own seconds, calls, function; no directories."""
    stats = pstats.Stats(str(profile))
    entries = stats.stats.items()  # type: ignore[attr-defined]
    costly = sorted(entries, key=lambda entry: entry[1][2], reverse=True)[:PROFILE_LINES]
    lines = []
    for (path, line, function), (_, calls, own, _, _) in costly:
        where = "" if path == "~" else f" ({'/'.join(Path(path).parts[-2:])}:{line})"
        lines.append(f"{own:7.3f} s {calls:>8} × {function}{where}")
    return lines


def as_text(rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns for the terminal."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def as_markdown(rows: Sequence[Sequence[str]]) -> str:
    """The same as a Markdown table."""
    head, *body = rows
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *body))


def document(results: dict[str, object], samples: Samples) -> str:
    """The JSON file: the results indented, then every sample on a line of its own."""
    head = json.dumps(results, indent=1, ensure_ascii=False).removesuffix("\n}")
    lines = [
        json.dumps({"contender": contender, "key": workload, **sample}, ensure_ascii=False)
        for workload, by_contender in samples.items()
        for contender, found in by_contender.items()
        for sample in found
    ]
    return head + ',\n "samples": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"


def ratios(samples: Samples) -> dict[str, dict[str, dict[str, float]]]:
    """The first figure of every comparison against the bare commit and against ours."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for workload, (_, columns) in COMPARISONS.items():
        metric = columns[0].metric
        for contender in samples.get(workload, {}):
            values = targets.series(samples, workload, contender, metric)
            for reference in ("bare", "ours"):
                against = targets.series(samples, workload, reference, metric)
                ratio = targets.median_ratio(values, against)
                if ratio is not None:
                    place = found.setdefault(workload, {}).setdefault(contender, {})
                    place[f"to_{reference}"] = round(ratio, 3)
    return found


def summary(samples: Samples) -> dict[str, dict[str, dict[str, float]]]:
    """Medians of every comparison, for the JSON file."""
    medians: dict[str, dict[str, dict[str, float]]] = {}
    for workload, (_, columns) in COMPARISONS.items():
        for contender in samples.get(workload, {}):
            for column in columns:
                values = targets.series(samples, workload, contender, column.metric)
                if values:
                    place = medians.setdefault(workload, {}).setdefault(contender, {})
                    place[column.title] = round(targets.median(values) or 0.0, 4)
    return medians


def markdown(results: dict, samples: Samples, plot: str | None) -> str:
    """The whole report."""
    machine = results["machine"]
    parts = ["# Benchmark results\n"]
    if results["quick"]:
        parts.append("**A quick run: smaller workloads and few rounds. Not to be quoted.**\n")
    parts.append(
        f"{machine['system']} {machine['architecture']}, {machine['cores']} cores, Python"
        f" {machine['python']}, SQLite {machine['sqlite']}. One page appended and synced, probed"
        f" before each measurement: {machine['fsync_median_us']} µs"
        f" ({machine['fsync_min_us']}–{machine['fsync_max_us']}). Rounds: {results['rounds']}, the"
        " order of the contenders reversed from one to the next; figures are medians, ratios are"
        " medians of the ratios within a round. Everyone: WAL, `synchronous=FULL`.\n"
    )
    versions = results["versions"]
    if versions:
        listed = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
        parts.append(f"Peers: {listed}.\n")
    parts += ["## Figures\n", as_markdown(verdicts(samples)) + "\n"]
    parts += list(_missed_part(results))
    if plot:
        parts.append(f"![Time per pass and passes per second]({plot})\n")
    for workload, (title, _) in COMPARISONS.items():
        if samples.get(workload):
            rows = comparison(samples, workload)
            parts += [f"## {workload}\n", title + ".\n", as_markdown(rows) + "\n"]
    return "\n".join(parts)


def _missed_part(results: dict) -> Iterable[str]:
    for failure in results["failures"]:
        yield f"**Failed:** {failure}\n"
    for name, lines in results["profiles"].items():
        yield f"### Missed: where the time of `{name}` goes\n"
        yield "Own time and calls of the costliest functions (under the profiler, main thread):\n"
        yield "```text\n" + "\n".join(lines) + "\n```\n"
