"""Draw the bars from a results file; runs in the venv of the peers, which has matplotlib.

Called as ``plot.py RESULTS.json TARGET.svg``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "bench"  # the same input draws the same file
mpl.rcParams["font.family"] = "DejaVu Sans"

from matplotlib import pyplot  # noqa: E402 - after the backend is chosen

PANELS = (
    ("sequential", "µs/pass", "One durable pass: µs, log scale\nless is better"),
    ("concurrent", "passes/s", "200 loops at once: passes/s, log scale\nmore is better"),
)
NAMES = {
    "ours": "Loopwright",
    "bare": "bare SQLite commit",
    "bare-group": "bare, group commit",
    "langgraph-sync": "LangGraph sync",
    "langgraph-async": "LangGraph async",
    "dbos-sqlite": "DBOS",
}
OURS, REFERENCE, PEER = "#1f6feb", "#9aa4b2", "#d0883c"
INK = "#24292f"


def colour(name: str) -> str:
    """Ours, the physical reference, or a peer."""
    if name == "ours":
        return OURS
    return REFERENCE if name.startswith("bare") else PEER


def draw_panel(axes, values: dict[str, float], title: str) -> None:
    """Horizontal bars on a log scale, each labelled with its value."""
    shown = [name for name in NAMES if name in values]
    bars = axes.barh(
        [NAMES[name] for name in shown],
        [values[name] for name in shown],
        color=[colour(name) for name in shown],
        height=0.68,
    )
    axes.bar_label(bars, [f"{values[name]:,.0f}" for name in shown], padding=4, color=INK)
    axes.set_xscale("log")
    low, high = min(values.values()), max(values.values())
    axes.set_xlim(low / 3, high * 4)
    axes.invert_yaxis()
    axes.set_title(title, loc="left", color=INK, fontsize=11)
    axes.tick_params(axis="y", length=0, colors=INK)
    axes.tick_params(axis="x", which="both", colors="#6e7781", labelsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#d0d7de")


def main(source: Path, target: Path) -> None:
    medians = json.loads(source.read_text(encoding="utf-8"))["medians"]
    panels = [
        ({name: row[column] for name, row in medians[workload].items()}, title)
        for workload, column, title in PANELS
        if medians.get(workload)
    ]
    if not panels:
        return
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5.6 * len(panels), 3.4), squeeze=False)
    for place, (values, title) in zip(axes[0], panels, strict=True):
        draw_panel(place, values, title)
    figure.tight_layout(w_pad=2.5)
    # A date or a creator would change the file without a change of the figures.
    figure.savefig(target, metadata={"Date": None, "Creator": None}, facecolor="white")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
