"""The figures to reach, and how each is computed from the samples.

A ratio is taken within each round, between processes that ran seconds apart, and the median of
these is judged: a slow minute of the disk then hits both sides.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from harness.contest import PEERS, Sample

Samples = dict[str, dict[str, list[Sample]]]
Metric = Callable[[Sample], float]
Series = dict[int, float]  # round -> value
MEGABYTE = 1_000_000


def _number(sample: Sample, name: str) -> float:
    return float(sample[name])


def us_per_step(sample: Sample) -> float:
    return _number(sample, "seconds") / _number(sample, "steps") * 1e6


def steps_per_second(sample: Sample) -> float:
    return _number(sample, "steps") / _number(sample, "seconds")


def bytes_per_step(sample: Sample) -> float:
    return (_number(sample, "bytes") - _number(sample, "bytes_before")) / _number(sample, "steps")


def fsyncs_per_step(sample: Sample) -> float:
    return _number(sample, "fsyncs") / _number(sample, "steps")


def field_of(name: str, scale: float = 1.0) -> Metric:
    """A metric that is a field of the sample."""
    return lambda sample: _number(sample, name) * scale


def series(samples: Samples, workload: str, contender: str, metric: Metric) -> Series:
    """The metric by round; rounds whose sample lacks the field are left out."""
    values: Series = {}
    for sample in samples.get(workload, {}).get(contender, []):
        try:
            values[sample["round"]] = metric(sample)
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            continue
    return values


def median(values: Series) -> float | None:
    return statistics.median(values.values()) if values else None


def median_ratio(above: Series, below: Series) -> float | None:
    """The median of the ratios within the rounds both sides took part in."""
    common = above.keys() & below.keys()
    return median({number: above[number] / below[number] for number in common})


def _ours(workload: str, metric: Metric) -> Callable[[Samples], float | None]:
    return lambda samples: median(series(samples, workload, "ours", metric))


def _server(workload: str, metric: Metric) -> Callable[[Samples], float | None]:
    return lambda samples: median(series(samples, workload, "server", metric))


def _against_bare(samples: Samples) -> float | None:
    mine = series(samples, "sequential", "ours", us_per_step)
    return median_ratio(mine, series(samples, "sequential", "bare", us_per_step))


def _cheaper_than(peer: str) -> Callable[[Samples], float | None]:
    def ratio(samples: Samples) -> float | None:
        mine = series(samples, "sequential", "ours", us_per_step)
        return median_ratio(series(samples, "sequential", peer, us_per_step), mine)

    return ratio


def _above_best_peer(samples: Samples) -> float | None:
    """Judged only when all peers took part, otherwise the best of them may be missing."""
    rates = [series(samples, "concurrent", peer, steps_per_second) for peer in PEERS]
    common = set.intersection(*(set(rate) for rate in rates))
    best = {number: max(rate[number] for rate in rates) for number in common}
    return median_ratio(series(samples, "concurrent", "ours", steps_per_second), best)


def _per_step(above: str, below: str) -> Callable[[Samples], float | None]:
    """How much dearer a step of one workload of ours is than one of another."""

    def ratio(samples: Samples) -> float | None:
        small = series(samples, below, "ours", us_per_step)
        return median_ratio(series(samples, above, "ours", us_per_step), small)

    return ratio


def _growth(workload: str) -> Callable[[Samples], float | None]:
    return _per_step(f"{workload}-10000", f"{workload}-1000")


@dataclass(frozen=True)
class Target:
    """A figure, its bound and where it comes from."""

    figure: str
    workload: str
    sense: Literal["≤", "<", "≥"]
    bound: float
    unit: str
    measure: Callable[[Samples], float | None]

    def judge(self, samples: Samples) -> tuple[float | None, str]:
        value = self.measure(samples)
        if value is None:
            return None, "not measured"
        reached = {
            "≤": value <= self.bound,
            "<": value < self.bound,
            "≥": value >= self.bound,
        }[self.sense]
        return value, "ok" if reached else "MISSED"


# Start and end of a run are commits of their own, hence a little above one.
TARGETS = (
    Target("commits per pass", "sequential", "≤", 1.02, "", _ours("sequential", fsyncs_per_step)),
    Target("one durable pass / bare commit", "sequential", "≤", 1.5, "×", _against_bare),
    Target(
        "LangGraph sync / one durable pass",
        "sequential",
        "≥",
        2,
        "×",
        _cheaper_than("langgraph-sync"),
    ),
    Target(
        "LangGraph async / one durable pass",
        "sequential",
        "≥",
        4,
        "×",
        _cheaper_than("langgraph-async"),
    ),
    Target("DBOS / one durable pass", "sequential", "≥", 4, "×", _cheaper_than("dbos-sqlite")),
    Target("200 loops at once / best peer", "concurrent", "≥", 20, "×", _above_best_peer),
    Target("storage per pass", "sequential", "≤", 1_000, "B", _ours("sequential", bytes_per_step)),
    Target(
        "1,000 killed runs all resumed",
        "recovery",
        "≤",
        1.0,
        "s",
        _ours("recovery", field_of("seconds")),
    ),
    Target(
        "10,000 runs at a gate: more memory",
        "waiting",
        "≤",
        30,
        "MB",
        _ours("waiting", field_of("rss_growth", 1 / MEGABYTE)),
    ),
    Target(
        "10,000 runs at a gate: idle CPU",
        "waiting",
        "<",
        1,
        "%",
        _ours("waiting", field_of("idle_cpu", 100)),
    ),
    Target("forEach: per item, 10,000 / 1,000", "foreach-10000", "≤", 1.3, "×", _growth("foreach")),
    Target("loop: per pass, 10,000 / 1,000", "passes-10000", "≤", 1.3, "×", _growth("passes")),
    Target(
        "1,000 steps in ten layers / 1,000 passes",
        "dag",
        "≤",
        1.5,
        "×",
        _per_step("dag", "passes-1000"),
    ),
    Target(
        "forEach of three steps: per item, 1,000 / 100",
        "inner-1000",
        "≤",
        1.3,
        "×",
        _per_step("inner-1000", "inner-100"),
    ),
    Target("a file of 100 steps read", "load", "≤", 50, "ms", _ours("load", field_of("each", 1e3))),
    Target("conditions on 16 KB", "cel", "≥", 20_000, "/s", _ours("cel", steps_per_second)),
    Target(
        "a cycle with two tools / one durable pass",
        "cycles",
        "≤",
        3,
        "×",
        _per_step("cycles", "passes-1000"),
    ),
    Target(
        "two tools of 200 ms",
        "tools",
        "≤",
        260,
        "ms",
        _ours("tools", lambda s: us_per_step(s) / 1e3),
    ),
    Target(
        "a request after 300 turns: CPU",
        "requests",
        "≤",
        20,
        "ms",
        _ours("requests", field_of("cost_ms")),
    ),
    Target(
        "100 streaming runs: event loop away",
        "streams",
        "≤",
        50,
        "ms",
        _ours("streams", field_of("worst_ms")),
    ),
    Target(
        "50,000 files: snapshot after one line / git status",
        "snapshots",
        "≤",
        2,
        "×",
        _ours("snapshots", lambda s: s["changed_seconds"] / s["status_seconds"]),
    ),
    Target(
        "50,000 files: first snapshot",
        "snapshots",
        "≤",
        5,
        "s",
        _ours("snapshots", field_of("first_seconds")),
    ),
    Target(
        "snapshot of a small project",
        "snapshots",
        "≤",
        30,
        "ms",
        _ours("snapshots", field_of("small_seconds", 1e3)),
    ),
    Target(
        "1,000 entries of activity in a call: commits",
        "activity",
        "≤",
        10,
        "",
        _ours("activity", field_of("commits")),
    ),
    Target(
        "1,000 entries of activity: share of the call",
        "activity",
        "≤",
        5,
        "%",
        _ours("activity", field_of("overhead", 100)),
    ),
    Target(
        "loopwright --help: CPU",
        "help",
        "≤",
        250,
        "ms",
        _ours("help", field_of("cpu_seconds", 1e3)),
    ),
    Target(
        "loopwright ls, 20 runs with 600 iterations each: CPU",
        "lists",
        "≤",
        250,
        "ms",
        _ours("lists", field_of("ls_seconds", 1e3)),
    ),
    Target(
        "loopwright inbox with nothing waiting: CPU",
        "lists",
        "≤",
        200,
        "ms",
        _ours("lists", field_of("inbox_seconds", 1e3)),
    ),
    Target("import: files opened", "help", "≤", 0, "", _ours("help", field_of("import_opens"))),
    Target("import: bytes printed", "help", "≤", 0, "", _ours("help", field_of("import_prints"))),
    Target(
        "server, 200 facts/s to 100 sockets: p99",
        "live",
        "≤",
        50,
        "ms",
        _server("live", field_of("p99_ms")),
    ),
    Target(
        "server, the same, ten runs for each socket: p99",
        "live-ten",
        "≤",
        50,
        "ms",
        _server("live-ten", field_of("p99_ms")),
    ),
    Target(
        "server, GET runs/{id} on one core",
        "lookups",
        "≥",
        1_000,
        "/s",
        _server("lookups", steps_per_second),
    ),
    Target(
        "server, first page of 10,000 runs",
        "crowd",
        "≤",
        50,
        "ms",
        _server("crowd", field_of("first_ms")),
    ),
    Target(
        "server, 10,000 runs wait: memory",
        "crowd",
        "<",
        150,
        "MB",
        _server("crowd", field_of("idle_rss", 1 / MEGABYTE)),
    ),
    Target(
        "server, snapshot of 1,000,000 facts",
        "long",
        "≤",
        300,
        "ms",
        _server("long", lambda s: max(s["first_ms"], s["snapshot_ms"], s["live_ms"])),
    ),
)
