"""A real browser that uses a server, directly and through a tunnel, while an agent hides requests.

Started as `python -m tests.safety.browser_stage` under the identity to be tested, with an order as
JSON on standard input; prints the statuses of the requests of the browser, and how its WebSocket
ended.
"""

import asyncio
import json
import sys
import threading
from pathlib import Path
from typing import Any

from tests.http.served import Served, served
from tests.real_clis.browser import browser, browsing
from tests.safety.tunnel_stage import open_tunnel, run_agent

FETCH = (
    "fetch('/api/v1/runs', {{headers: {{Authorization: 'Bearer {token}'}}}})"
    ".then((reply) => reply.status)"
)
CONNECT = """
new Promise((done) => {{
  const socket = new WebSocket("ws://{host}/socket.io/?EIO=4&transport=websocket");
  socket.onmessage = (event) => done(event.data.slice(0, 1));
  socket.onerror = () => done("refused");
}})
"""


async def use(address: str, host: str, token: str) -> dict[str, Any]:
    """What the browser gets: ordinary requests, and the first packet of a WebSocket."""
    async with browsing(address) as page:
        await page.go(f"http://{host}/healthz")
        statuses = [await page.run(FETCH.format(token=token)) for _ in range(5)]
        for _ in range(5):
            packet = await page.run(CONNECT.format(host=host))
            if packet == "0":
                break
        return {"statuses": statuses, "socket": packet}


def play(server: Served, order: dict[str, Any], folder: Path) -> dict[str, Any]:
    _, gate = server.gated()
    own = server.start(server.definition(server.script("x"), until={"contains": "x"}))
    server.until(own, "completed")
    request = f"POST /api/v1/gates/{gate}/approve HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    attempts = {"port": server.port, "request": request, "outside": str(folder / "unread")}
    attempts["ways"] = {"passed_around": order["attempts"]}
    with open_tunnel(server.port, folder / "unread") as _, browser(folder) as address:
        agent = threading.Thread(target=run_agent, args=(own, attempts))
        agent.start()
        hosts = {"direct": f"127.0.0.1:{server.port}", "tunnel": f"[::1]:{server.port}"}
        found = {name: asyncio.run(use(address, one, server.token)) for name, one in hosts.items()}
        found["meanwhile"] = agent.is_alive()
        agent.join()
    return found


def main() -> None:
    order = json.load(sys.stdin)
    folder = Path(order["folder"], "server")
    folder.mkdir()
    with served(folder, held=True) as server:
        sys.stdout.write(json.dumps(play(server, order, folder)))


if __name__ == "__main__":
    main()
