"""A coding CLI that uses every tool of the server that it is given, and tells which of them worked.

It speaks the protocol by hand, one JSON message on a line, as a real one does behind its back.
"""

import json
import sys
from pathlib import Path

ASK = """\
#!{python} -IS
import json, subprocess, sys
sys.stdin.readline()  # the task; input stays open for further messages
config = json.load(open(sys.argv[sys.argv.index("--mcp-config") + 1]))
[(name, spec)] = config["mcpServers"].items()
line = subprocess.Popen([spec["command"], *spec["args"]], stdin=subprocess.PIPE,
    stdout=subprocess.PIPE, text=True)
number = 0

def ask(method, **params):
    global number
    number += 1
    line.stdin.write(json.dumps({{"jsonrpc": "2.0", "id": number, "method": method,
        "params": params}}) + "\\n")
    line.stdin.flush()
    while True:
        answer = json.loads(line.stdout.readline())
        if answer.get("id") == number:
            return answer

ask("initialize", protocolVersion="2025-06-18", capabilities={{}},
    clientInfo={{"name": "t", "version": "1"}})
line.stdin.write(json.dumps({{"jsonrpc": "2.0", "method": "notifications/initialized"}}) + "\\n")
listed = [tool["name"] for tool in ask("tools/list")["result"]["tools"]]
came = {{"listed": listed}}
for tool, arguments in json.loads({calls!r}):
    answer = ask("tools/call", name=tool, arguments=arguments)
    result = answer.get("result") or {{"isError": True, "content": [{{"text": str(answer)}}]}}
    came[tool] = [not result.get("isError", False), result["content"][0]["text"]]
line.stdin.close()
print(json.dumps({{"type": "result", "subtype": "success", "is_error": False, "num_turns": 1,
    "session_id": "s", "result": json.dumps(came),
    "usage": {{"input_tokens": 1, "output_tokens": 1}}, "total_cost_usd": 0.0}}))
"""


def install(folder: Path, calls: list[tuple[str, dict[str, object]]]) -> None:
    """The program under the name of a real one, in a folder for PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "claude"
    file.write_text(ASK.format(python=sys.executable, calls=json.dumps(calls)), encoding="utf-8")
    file.chmod(0o755)
