"""The benchmark: the same workloads for us, for the peers and for SQLite itself, side by side.

    python bench/run.py            # everything, about ten minutes at most
    python bench/run.py --quick    # small sizes, to see that it works

Every measurement is a process of its own in a fresh directory. Results go to ``bench/results/``:
``latest.*`` for a complete run, ``quick.*`` for a quick or a partial one. A missed figure is
reported and is not an error; a contender that crashes is (exit code 1).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import environment, report
from harness.contest import (
    CONTENDERS,
    FULL,
    QUICK,
    SERVER,
    Contender,
    ContenderFailedError,
    Contest,
    Workload,
)
from harness.environment import note

RESULTS = Path(__file__).resolve().parent / "results"
NOT_A_DISK_US = 15


def options() -> argparse.Namespace:
    """The command line."""
    names = ", ".join(contender.name for contender in CONTENDERS)
    keys = ", ".join(workload.key for workload in FULL)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, two rounds")
    parser.add_argument("--repeat", type=int, help="rounds (default 5, quick 2)")
    parser.add_argument("--only", help=f"some contenders, with commas: {names}")
    parser.add_argument("--workloads", help=f"some workloads, with commas: {keys}")
    parser.add_argument("--budget", type=float, help="seconds after which no round is started")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has loopwright")
    parser.add_argument("--dir", type=Path, help="where the databases go (a real disk)")
    parser.add_argument("--no-plot", action="store_true", help="do not draw")
    chosen = parser.parse_args()
    chosen.repeat = chosen.repeat or (2 if chosen.quick else 5)
    chosen.budget = chosen.budget or (45 if chosen.quick else 560)
    return chosen


def choose(wanted: str | None, known: list[str]) -> list[str]:
    """The names of a comma list, or all; an unknown name ends the program."""
    if wanted is None:
        return known
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"bench: unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    return names


def entered(chosen: argparse.Namespace) -> list[Contender]:
    """The contenders asked for whose script is there."""
    names = choose(chosen.only, [contender.name for contender in CONTENDERS])
    present = []
    for contender in CONTENDERS:
        if contender.name in names and contender.path.exists():
            present.append(contender)
        elif contender.name in names:
            note(f"bench: {contender.name} left out, contenders/{contender.script} is not there")
    return present


def _is_ours(contender: Contender, workload: Workload | None) -> bool:
    mine = workload is not None and contender.name in workload.contenders
    return mine and contender.name in ("ours", *SERVER)


def profiles(event: Contest) -> dict[str, list[str]]:
    """Run what missed a figure once more under the profiler and say where the time goes."""
    found: dict[str, list[str]] = {}
    for target in report.missed(event.samples):
        workload = next((w for w in event.workloads if w.key == target.workload), None)
        ours = next((c for c in event.contenders if _is_ours(c, workload)), None)
        if ours is None or workload is None or workload.key in found:
            continue
        note(f"bench: profiling {workload.key}, which missed: {target.figure}")
        path = event.directory / "profile"
        try:
            sample = event.run_once(workload, ours, profile=path)
        except ContenderFailedError as failure:
            found[workload.key] = [f"no profile: {failure}"]
            continue
        found[workload.key] = sample.get("profile") or report.hot_spots(path)
    return found


def draw(source: Path) -> str | None:
    """The plot beside the JSON file; None when it could not be drawn."""
    target = source.with_suffix(".svg")
    script = Path(__file__).resolve().parent / "plot.py"
    command = [str(environment.venv_python()), str(script), str(source), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        note("bench: no plot: " + (done.stderr.strip().splitlines() or ["unknown"])[-1])
    return target.name if done.returncode == 0 and target.exists() else None


def publish(event: Contest, chosen: argparse.Namespace) -> None:
    """Write the files and print the tables."""
    partial = chosen.quick or chosen.only is not None or chosen.workloads is not None
    source = RESULTS / ("quick.json" if partial else "latest.json")
    results = {
        "quick": chosen.quick,
        "rounds": event.rounds_done,
        "machine": environment.machine(event.probes()),
        "versions": environment.peer_versions(),
        "medians": report.summary(event.samples),
        "ratios": report.ratios(event.samples),
        "figures": [
            {
                "figure": target.figure,
                "bound": f"{target.sense} {target.bound} {target.unit}".strip(),
                "measured": value,
                "verdict": verdict,
            }
            for target in report.TARGETS
            for value, verdict in [target.judge(event.samples)]
        ],
        "profiles": profiles(event),
        "failures": event.failures,
    }
    RESULTS.mkdir(exist_ok=True)
    source.write_text(report.document(results, event.samples), encoding="utf-8")
    plot = None if chosen.no_plot else draw(source)
    text = report.markdown(results, event.samples, plot)
    source.with_suffix(".md").write_text(text, encoding="utf-8")
    show(event)
    note(f"bench: written to {RESULTS.parent.name}/{RESULTS.name}/{source.stem}.*")


def show(event: Contest) -> None:
    """The tables on the terminal."""
    for workload, (title, _) in report.COMPARISONS.items():
        if event.samples.get(workload):
            print(f"\n{workload}: {title}")
            print(report.as_text(report.comparison(event.samples, workload)))
    print("\n" + report.as_text(report.verdicts(event.samples)))
    lost = report.missed(event.samples)
    if lost:
        print("\nMISSED: " + "; ".join(target.figure for target in lost))
    for failure in event.failures:
        print(f"FAILED: {failure}")


def main() -> int:
    chosen = options()
    keys = choose(chosen.workloads, [workload.key for workload in FULL])
    contenders = entered(chosen)
    needs_venv = not chosen.no_plot or any(c.home == "peers" for c in contenders)
    peers_python = str(environment.ensure_venv()) if needs_venv else ""
    # The system's temporary directory is often kept in memory, where fsync costs nothing.
    parent = chosen.dir or (environment.VENV if needs_venv else RESULTS)
    Path(parent).mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="data-", dir=parent))
    try:
        if environment.fsync_median(directory, times=50) * 1e6 < NOT_A_DISK_US:
            note("bench: fsync is suspiciously cheap here; is this a disk? (--dir)")
        event = Contest(
            contenders=contenders,
            workloads=[w for w in (QUICK if chosen.quick else FULL) if w.key in keys],
            pythons={"project": chosen.python, "peers": peers_python},
            directory=directory,
        )
        event.run(chosen.repeat, chosen.budget)
        publish(event, chosen)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 1 if event.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
