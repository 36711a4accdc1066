"""The fake servers as a program: python -m loopwright.testing.wires --script FILE [--port 0].

Prints its URL as the first line, then serves until it is stopped. With `--log FILE` every request
is appended to the file as a line of JSON when its answer has ended.
"""

import argparse
import signal
import sys
import threading
from pathlib import Path

import msgspec

from loopwright.errors import DefinitionError
from loopwright.testing.wires.script import ScriptedTurn, WireRequest, WireScript, read_script
from loopwright.testing.wires.server import WireServer

ECHO = WireScript(otherwise=ScriptedTurn(text="Hello from the fake model."))


def main() -> int:
    """Serve until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(prog="loopwright.testing.wires", description=__doc__)
    parser.add_argument(
        "--script", type=Path, help="YAML or JSON; without it every turn answers with a greeting"
    )
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--log", type=Path, help="append each request as a line of JSON")
    chosen = parser.parse_args()
    try:
        script = read_script(chosen.script) if chosen.script else ECHO
    except (DefinitionError, OSError) as wrong:
        sys.stderr.write(f"{wrong}\n")
        return 2
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    with WireServer(script, port=chosen.port) as wires:
        sys.stdout.write(f"{wires.url}\n")
        sys.stdout.flush()
        written = 0
        while not over.wait(0.1):
            written += log_new(wires.requests[written:], chosen.log)
    # Only now: a client may have its answer, and stop us, before the answer counts as ended.
    log_new(wires.requests[written:], chosen.log)
    return 0


def log_new(requests: list[WireRequest], path: Path | None) -> int:
    """Append requests whose answers have ended; returns their number, up to the first that
    has not.
    """
    done = 0
    for request in requests:
        if not request.ended.is_set():
            break
        done += 1
        if path is not None:
            with path.open("ab") as file:
                file.write(line_of(request))
    return done


def line_of(request: WireRequest) -> bytes:
    """A request as a line; keys are left out."""
    shown = {
        "number": request.number,
        "method": request.method,
        "path": request.path,
        "wire": request.wire,
        "status": request.status,
        "end": request.end,
        "body": request.body,
    }
    return msgspec.json.encode(shown) + b"\n"


if __name__ == "__main__":
    raise SystemExit(main())
