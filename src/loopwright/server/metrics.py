"""Figures for Prometheus: what the server does, and how its runs stand."""

from collections import Counter

from loopwright.app.purse import Ledger
from loopwright.app.service import Service
from loopwright.ports import RunRow

MEDIA = "text/plain; version=0.0.4"
_EDGES_S = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0)


class Metrics:
    """Counters of requests; everything else is read when it is asked for."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._within: Counter[float] = Counter()
        self._seconds = 0.0

    def count(self, method: str, family: str, status: int, seconds: float) -> None:
        """One request that was answered."""
        self._requests[method, family, status] += 1
        self._seconds += seconds
        for edge in _EDGES_S:
            self._within[edge] += seconds <= edge

    def text(self, service: Service, *, open_rows: list[RunRow], listeners: int) -> str:
        """Everything, as Prometheus reads it."""
        total = sum(self._requests.values())
        runs = Counter(row.headline.status for row in open_rows)
        assert service.driver is not None
        used = Ledger(service.log).used(since_day=0)
        lines = [
            "# HELP loopwright_requests_total Requests that were answered.",
            "# TYPE loopwright_requests_total counter",
            *(
                f'loopwright_requests_total{{method="{method}",family="{family}",'
                f'status="{status}"}} {count}'
                for (method, family, status), count in sorted(self._requests.items())
            ),
            "# HELP loopwright_request_seconds How long requests took.",
            "# TYPE loopwright_request_seconds histogram",
            *(
                f'loopwright_request_seconds_bucket{{le="{edge:g}"}} {self._within[edge]}'
                for edge in _EDGES_S
            ),
            f'loopwright_request_seconds_bucket{{le="+Inf"}} {total}',
            f"loopwright_request_seconds_sum {self._seconds:.6f}",
            f"loopwright_request_seconds_count {total}",
            "# HELP loopwright_runs Runs that have not ended, by status.",
            "# TYPE loopwright_runs gauge",
            *(
                f'loopwright_runs{{status="{status}"}} {runs[status]}'
                for status in ("running", "waiting", "paused")
            ),
            "# HELP loopwright_gates Questions that wait for a person.",
            "# TYPE loopwright_gates gauge",
            f"loopwright_gates {len(service.gates())}",
            "# HELP loopwright_cost_usd_total Known cost of the calls of all runs, in USD.",
            "# TYPE loopwright_cost_usd_total counter",
            f"loopwright_cost_usd_total {used.usd:.9g}",
            "# HELP loopwright_calls_unknown_cost_total Calls whose cost is unknown.",
            "# TYPE loopwright_calls_unknown_cost_total counter",
            f"loopwright_calls_unknown_cost_total {used.unpriced}",
            "# HELP loopwright_streams Clients that wait for facts.",
            "# TYPE loopwright_streams gauge",
            f"loopwright_streams {listeners}",
            "# HELP loopwright_troubles_total Problems that the driver met.",
            "# TYPE loopwright_troubles_total counter",
            f"loopwright_troubles_total {service.driver.problem_count}",
        ]
        return "\n".join(lines) + "\n"
