"""What every contender shares: arguments, the meter, the size of a database, the recovery play.

A contender is called as ``python X.py WORKLOAD --n N [--passes P] --dir DIR`` and prints exactly
one line of JSON on stdout. See ``bench/README.md`` for the fields.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

RESULT = "result of twenty b."
"""What a no-op pass returns; the same twenty bytes for everyone."""

PASSES_BEFORE_KILL = 2
"""In ``recovery`` every loop has this many durable passes and hangs in the next one."""

RECOVERY_LIMIT_SECONDS = 150

RSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""What ``ru_maxrss`` counts in."""


def arguments(workloads: Sequence[str], *, variants: Sequence[str] = ()) -> argparse.Namespace:
    """The command line of a contender."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=[*workloads, "recovery-victim", "recovery-survivor"])
    parser.add_argument("--n", type=int, required=True, help="passes, loops, runs or items")
    parser.add_argument("--passes", type=int, default=20, help="passes per loop (concurrent)")
    parser.add_argument("--dir", type=Path, required=True, help="an empty directory on a real disk")
    if variants:
        parser.add_argument("--variant", choices=variants, default=variants[0])
    return parser.parse_args()


class Meter:
    """Wall time and CPU time (own and of ended children) of a ``with`` block."""

    def __enter__(self) -> Meter:
        self._cpu = _cpu_seconds()
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._start
        self.cpu_seconds = _cpu_seconds() - self._cpu


def emit(workload: str, *, steps: int, meter: Meter, **fields: object) -> None:
    """Print the one line of the protocol."""
    line = {
        "workload": workload,
        "steps": steps,
        "seconds": meter.seconds,
        "cpu_seconds": meter.cpu_seconds,
        "max_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT,
        **fields,
    }
    print(json.dumps(line), flush=True)


def stored_bytes(database: Path) -> int:
    """The size of a SQLite database with its log folded back into it."""
    with sqlite3.connect(database, timeout=30) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    names = [database, database.with_name(database.name + "-wal")]
    return sum(name.stat().st_size for name in names if name.exists())


def count_rows(database: Path, query: str) -> int:
    """The number a query answers; used to prove that the iterations are really in the database."""
    connection = sqlite3.connect(database, timeout=30)
    try:
        return int(connection.execute(query).fetchone()[0])
    finally:
        connection.close()


def recovery(script: str, options: argparse.Namespace, *extra: str) -> None:
    """Start loops in a child, kill it with SIGKILL, start another one, time it, report.

    The victim prints ``ready`` when every loop hangs in the iteration after ``PASSES_BEFORE_KILL``
    durable ones. The survivor prints ``resumed`` when every loop has made that pass durable.
    The clock runs from just before the survivor's process is started to that line.
    """
    common = ["--n", str(options.n), "--dir", str(options.dir), *extra]
    victim = _child(script, "recovery-victim", common)
    _await_line(victim, "ready")
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    with Meter() as meter:
        survivor = _child(script, "recovery-survivor", common)
        _await_line(survivor, "resumed")
    # wait4 tells what this one child used; getrusage would mix it with the victim. Popen.kill is
    # not used because it may already collect the child.
    os.kill(survivor.pid, signal.SIGKILL)
    _, _, usage = os.wait4(survivor.pid, 0)
    survivor.returncode = 0
    emit(
        "recovery",
        steps=options.n,
        meter=meter,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        max_rss=usage.ru_maxrss * RSS_UNIT,
    )


def say(word: str) -> None:
    """The signal of a victim or a survivor to the parent."""
    print(word, flush=True)


def _child(script: str, role: str, common: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, script, role, *common]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _await_line(child: subprocess.Popen[str], word: str) -> None:
    assert child.stdout is not None
    signal.signal(signal.SIGALRM, lambda *_: child.kill())
    signal.alarm(RECOVERY_LIMIT_SECONDS)
    for line in child.stdout:
        if line.strip() == word:
            signal.alarm(0)
            return
    signal.alarm(0)
    child.kill()
    raise SystemExit(f"the child ended or was stopped before it said {word!r}")


def _cpu_seconds() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
