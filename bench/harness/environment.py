"""The venv of the peers and the few things the results say about the machine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".bench-venv"
LOCK = ROOT / "requirements" / "bench.txt"
PEER_PACKAGES = ("langgraph", "langgraph-checkpoint-sqlite", "aiosqlite", "dbos", "matplotlib")


def note(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def venv_python() -> Path:
    """The interpreter of the peers' venv."""
    return VENV / "bin" / "python"


def ensure_venv() -> Path:
    """Create the peers' venv from the lock, or leave it as it is when it fits the lock."""
    stamp_file = VENV / "lock.sha256"
    stamp = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()
    if stamp_file.exists() and stamp_file.read_text() == stamp:
        return venv_python()
    note(f"bench: creating {VENV.name} from {LOCK.parent.name}/{LOCK.name} (once)")
    venv.EnvBuilder(clear=True, with_pip=True).create(VENV)
    (VENV / ".gitignore").write_text("*\n")
    command = [str(venv_python()), "-m", "pip", "install", "--quiet", "--require-hashes"]
    command += ["--disable-pip-version-check", "--prefer-binary", "--requirement", str(LOCK)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    os.sync()  # otherwise the first contenders wait for what pip wrote
    stamp_file.write_text(stamp)
    return venv_python()


def peer_versions() -> dict[str, str]:
    """The versions in the peers' venv; empty when there is none."""
    if not venv_python().exists():
        return {}
    code = (
        "import importlib.metadata as m, json, sys;"
        "print(json.dumps({name: m.version(name) for name in sys.argv[1:]}))"
    )
    command = [str(venv_python()), "-c", code, *PEER_PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def machine(fsyncs_us: list[float]) -> dict[str, object]:
    """What a reader needs to judge the figures; no names, no paths, no kernel."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "fsync_median_us": round(statistics.median(fsyncs_us), 1) if fsyncs_us else None,
        "fsync_min_us": min(fsyncs_us, default=None),
        "fsync_max_us": max(fsyncs_us, default=None),
    }


def fsync_median(directory: Path, times: int) -> float:
    """The median of appending one page to a file and forcing it to disk, in seconds."""
    path = directory / "fsync-probe"
    page = b"\0" * 4096
    durations = []
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        for _ in range(times):
            start = time.perf_counter()
            os.write(descriptor, page)
            os.fsync(descriptor)
            durations.append(time.perf_counter() - start)
    finally:
        os.close(descriptor)
        path.unlink()
    return statistics.median(durations)
