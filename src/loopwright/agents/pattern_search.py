"""Search texts with the JavaScript engine, in processes that can be killed.

The engine backtracks: some patterns need longer than anyone can wait, and a thread cannot be
stopped while it searches. The processes run `pattern_worker.py`, which must be in the same
folder. They are started when first needed, used again, and replaced after a kill.
"""

import asyncio
import atexit
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import msgspec

WORKER = Path(__file__).with_name("pattern_worker.py")
MOST_WORKERS = 4
START_SECONDS = 10.0
END_SECONDS = 1.0


class PatternSearchResult(msgspec.Struct, frozen=True):
    """The end of a search: the match, or why there is no answer."""

    found: str | None = None
    problem: str = ""
    timed_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternSearch:
    """What to search for, where, and how long."""

    pattern: str
    text: str
    ignore_case: bool = False
    seconds: float = 5.0


class PatternSearches:
    """The processes that search. Threads wait for them, at most one for each process."""

    def __init__(self, most: int = MOST_WORKERS) -> None:
        self._slots = threading.BoundedSemaphore(most)
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []

    def search(self, wanted: PatternSearch) -> PatternSearchResult:
        """The answer, at the latest when the time of the search is over."""
        with self._slots:
            worker = self._idle_worker()
            try:
                answer = _ask(worker, wanted)
            except BaseException:
                _end(worker)
                raise
            if answer is None:
                code = _end(worker, wait=END_SECONDS)
                return _without_answer(wanted, code)
            with self._lock:
                self._idle.append(worker)
            return answer

    async def search_later(self, wanted: PatternSearch) -> PatternSearchResult:
        return await asyncio.to_thread(self.search, wanted)

    def close(self) -> None:
        """End the processes that wait for work."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            _end(worker)

    def _idle_worker(self) -> "subprocess.Popen[bytes]":
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.poll() is None:
                    return worker
                _end(worker)
        return subprocess.Popen(
            [sys.executable, "-I", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
        )


def _ask(worker: "subprocess.Popen[bytes]", wanted: PatternSearch) -> PatternSearchResult | None:
    """The answer of a process, or None where it has ended or must be ended."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    # Half of a surrogate pair is in no output that was stored, but a caller may have one.
    text = wanted.text.encode(errors="replace").decode()
    request = {
        "pattern": wanted.pattern.encode(errors="replace").decode(),
        "text": text,
        "ignore_case": wanted.ignore_case,
        "seconds": wanted.seconds,
    }
    # The process ends itself when the time is over. This is for one that does not even start.
    killer = threading.Timer(wanted.seconds + START_SECONDS, worker.kill)
    killer.daemon = True
    killer.start()
    try:
        worker.stdin.write(msgspec.json.encode(request) + b"\n")
        worker.stdin.flush()
        line = worker.stdout.readline()
    except OSError:
        return None
    finally:
        killer.cancel()
    return msgspec.json.decode(line, type=PatternSearchResult) if line.endswith(b"\n") else None


def _without_answer(wanted: PatternSearch, code: int) -> PatternSearchResult:
    if code == -14:  # SIGALRM: its own timer
        problem = (
            f"the pattern needs more than {wanted.seconds:g} s for this output of "
            f"{len(wanted.text):,} characters, so it does not count as a match"
        )
        return PatternSearchResult(problem=problem, timed_out=True)
    return PatternSearchResult(problem=f"the search ended without an answer (exit status {code})")


def _end(worker: "subprocess.Popen[bytes]", *, wait: float = 0) -> int:
    """End a process, which has `wait` seconds to end by itself; returns its exit status."""
    try:
        worker.wait(wait)
    except subprocess.TimeoutExpired:
        worker.kill()
    for pipe in (worker.stdin, worker.stdout):
        try:
            if pipe is not None:
                pipe.close()
        except OSError:  # what was not yet written has no reader any more
            pass
    return worker.wait()


SEARCHES = PatternSearches()
atexit.register(SEARCHES.close)
