"""An MCP server by hand that answers with half a character: over stdio, or over HTTP when the
arguments are `http PORT`.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

HALF = '{"content":[{"type":"text","text":"half \\ud83d of it"}]}'


def answer(said: dict[str, Any]) -> str | None:
    """The answer to a request, as text; None for a notice."""
    if "id" not in said:
        return None
    info = {"name": "odd", "version": "1"}
    results = {
        "initialize": {
            "protocolVersion": said.get("params", {}).get("protocolVersion"),
            "capabilities": {"tools": {}},
            "serverInfo": info,
        },
        "tools/list": {"tools": [{"name": "half", "inputSchema": {"type": "object"}}]},
    }
    result = json.dumps(results[said["method"]]) if said["method"] in results else HALF
    return f'{{"jsonrpc":"2.0","id":{json.dumps(said["id"])},"result":{result}}}'


class Handler(BaseHTTPRequestHandler):
    """One request, one answer."""

    def do_POST(self) -> None:
        said = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = answer(said)
        self.send_response(202 if text is None else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len((text or "").encode())))
        self.end_headers()
        self.wfile.write((text or "").encode())

    def do_GET(self) -> None:
        self.send_error(405)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is told."""


if __name__ == "__main__":
    if "http" in sys.argv:
        HTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler).serve_forever()
    for line in sys.stdin:
        text = answer(json.loads(line))
        if text is not None:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
