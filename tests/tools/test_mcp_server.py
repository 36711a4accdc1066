"""The server of our own tools, as a program that closes its input at once calls it."""

import json
import subprocess
import sys
from pathlib import Path

INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}
CALLS = 12


def test_mcp_server_answers_every_call_when_its_input_is_closed_at_once(tmp_path: Path) -> None:
    messages: list[dict[str, object]] = [
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": INITIALIZE},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
    ]
    for number in range(1, CALLS + 1):
        name = "loop_list" if number % 2 else "loop_definitions"
        params = {"name": name, "arguments": {}}
        messages.append({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
    served = subprocess.run(
        [sys.executable, "-m", "loopwright", "mcp", "--data-dir", str(tmp_path)],
        input="".join(f"{json.dumps(one)}\n" for one in messages),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    answered = sorted(json.loads(line)["id"] for line in served.stdout.splitlines())
    assert answered == list(range(CALLS + 1))
