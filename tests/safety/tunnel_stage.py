"""A server beside a tunnel that cannot be listed, with programs of a run that hide connections.

Started as `python -m tests.safety.tunnel_stage` under the identity to be tested, with an order as
JSON on standard input; prints what became of the attempts, and of requests of people meanwhile.
"""

import asyncio
import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loopwright.agents.processes.process import ProgramEnd, ProgramStart, run_program
from tests.http.served import Served, served
from tests.safety import hiding_attempts, tunnel

ACTORS = ("agent:coder of ", "program of ")


@contextmanager
def open_tunnel(port: int, unread: Path) -> Iterator[int]:
    """The port of a tunnel to a port."""
    argv = [sys.executable, str(Path(tunnel.__file__)), str(port), str(unread)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def ask(port: int, token: str) -> int:
    """The status of a request of a person."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/api/v1/runs", headers={"Authorization": f"Bearer {token}"})
    reply = connection.getresponse()
    reply.read()
    connection.close()
    return reply.status


def ask_with_curl(port: int, token: str) -> int:
    """The same with another client."""
    words = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}"]
    header = f"Authorization: Bearer {token}"
    done = subprocess.run(
        [*words, "-H", header, f"http://127.0.0.1:{port}/api/v1/runs"],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    return int(done.stdout)


def run_agent(own: str, order: dict[str, Any]) -> ProgramEnd:
    """The program of the run, without a sandbox."""
    program = ProgramStart(
        argv=(sys.executable, str(Path(hiding_attempts.__file__))),
        cwd="/",
        env={"PATH": os.environ["PATH"], "LOOPWRIGHT_RUN": own, "LOOPWRIGHT_AGENT": "coder"},
        stdin=json.dumps(order).encode(),
        wall_s=280,
    )
    return asyncio.run(run_program(program))


def play(server: Served, order: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Make the attempts, and requests of people until they are over."""
    run, gate = server.gated()
    own = server.start(server.definition(server.script("x"), until={"contains": "x"}))
    server.until(own, "completed")
    request = (
        f"POST /api/v1/gates/{gate}/approve HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        f"Authorization: Bearer {server.token}\r\nContent-Type: application/json\r\n"
        "Content-Length: 2\r\nConnection: close\r\n\r\n{}"
    )
    order |= {"port": server.port, "request": request, "outside": str(folder / "unread")}
    ended: list[ProgramEnd] = []
    people: dict[str, list[int]] = {"direct": [], "tunnel": [], "curl": []}
    with open_tunnel(server.port, folder / "unread") as port:
        agent = threading.Thread(target=lambda: ended.append(run_agent(own, order)))
        agent.start()
        while agent.is_alive():
            people["direct"].append(ask(server.port, server.token))
            people["tunnel"].append(ask(port, server.token))
            if order["curl"]:
                people["curl"].append(ask_with_curl(port, server.token))
        agent.join()
    [end] = ended
    rows = server.call(lambda: server.context.records.audited(limit=10_000))
    refused = [one for one in rows if one.action == "denied" and one.via == "http"]
    gates = server("GET", f"/api/v1/runs/{run}").json["gates"]
    return {
        "attempts": json.loads(end.stdout) if end.code == 0 else end.stderr_tail.decode()[-2000:],
        "refused": sum(one.who.startswith(ACTORS) and "approve" in one.subject for one in refused),
        "waiting": [one["id"] for one in gates] == [gate],
        "people": people,
    }


def main() -> None:
    order = json.load(sys.stdin)
    folder = Path(order["folder"], "server")
    folder.mkdir()
    with served(folder, held=True) as server:
        sys.stdout.write(json.dumps(play(server, order, folder)))


if __name__ == "__main__":
    main()
