"""A process that searches texts with the JavaScript engine, one after the other.

Started by `pattern_search` as a script; it imports no other module of the package. Each request is
a line of JSON and each answer is one. The search blocks the interpreter, so the kernel enforces the
limits: a timer whose signal ends the process, and a memory limit.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import sys

MEMORY_BYTES = 1 << 30


def search(request: dict[str, object]) -> dict[str, object]:
    from regress import Regex, RegressError  # noqa: PLC0415 - after the limits are set

    text = str(request["text"])
    try:
        pattern = Regex(str(request["pattern"]), "i" if request["ignore_case"] else "")
    except RegressError as error:
        return {"problem": str(error)}
    found = pattern.find(text)
    if found is None:
        return {"found": None}
    place = found.range()
    return {"found": text.encode()[place.start : place.stop].decode(errors="replace")}


def serve() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which ends this one
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for line in sys.stdin.buffer:
        request = json.loads(line)
        # Also when the driver is gone meanwhile, no search outlives its limit.
        signal.setitimer(signal.ITIMER_REAL, float(request["seconds"]))
        answer = search(request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve()
