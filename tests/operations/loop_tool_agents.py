"""Agents that use the loop tools which they are given: a coding CLI and an agent of the Agent
Client Protocol.

Both connect to the MCP server that they are told of and make the calls of a list. `$CHILD` in a
call stands for the run that the newest `loop_start` has started, `$CHILD0` for the first one. An
agent without `loop_list` and `loop_start` is a stage of a child run and approves.
"""

import json
import sys
from pathlib import Path

COMMON = """\
#!{python} -IS
import json, subprocess, sys

CALLS = json.loads({calls!r})
number = 0

def use_tools(argv):
    line = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

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
    ready = {{"jsonrpc": "2.0", "method": "notifications/initialized"}}
    line.stdin.write(json.dumps(ready) + "\\n")
    listed = [tool["name"] for tool in ask("tools/list")["result"]["tools"]]
    if not {{"loop_start", "loop_list"}} & set(listed):
        return "APPROVED by a stage with " + " ".join(listed)
    child, children, came = "", [], []
    for tool, arguments in CALLS:
        words = json.dumps(arguments)
        for place, one in enumerate(children):
            words = words.replace(f"$CHILD{{place}}", one)
        arguments = json.loads(words.replace("$CHILD", child))
        result = ask("tools/call", name=tool, arguments=arguments)["result"]
        text = result["content"][0]["text"]
        came.append([tool, not result.get("isError", False), text])
        if tool == "loop_start" and not result.get("isError", False):
            child = json.loads(text)["loop_id"]
            children.append(child)
    line.stdin.close()
    return json.dumps({{"listed": listed, "came": came, "server": argv}})

"""

CLAUDE = """\
sys.stdin.readline()  # the task; input stays open for further messages
if "--mcp-config" in sys.argv:
    config = json.load(open(sys.argv[sys.argv.index("--mcp-config") + 1]))
    [(name, spec)] = config["mcpServers"].items()
    said = use_tools([spec["command"], *spec["args"]])
else:
    said = "no server"
print(json.dumps({{"type": "result", "subtype": "success", "is_error": False, "num_turns": 1,
    "session_id": "s", "result": said,
    "usage": {{"input_tokens": 10, "output_tokens": 10}}, "total_cost_usd": {usd}}}))
"""

ACP = """\
servers = []
for text in sys.stdin:
    asked = json.loads(text)
    result = {{}}
    if asked.get("method") == "initialize":
        result = {{"protocolVersion": 1, "agentCapabilities": {{}}}}
    elif asked.get("method") == "session/new":
        servers = asked["params"]["mcpServers"]
        result = {{"sessionId": "s"}}
    elif asked.get("method") == "session/prompt":
        said = "no server"
        if servers:
            said = use_tools([servers[0]["command"], *servers[0]["args"]])
        print(json.dumps({{"jsonrpc": "2.0", "method": "session/update", "params": {{
            "sessionId": "s", "update": {{"sessionUpdate": "agent_message_chunk",
            "content": {{"type": "text", "text": said}}}}}}}}), flush=True)
        result = {{"stopReason": "end_turn"}}
    print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], "result": result}}), flush=True)
"""

Calls = list[tuple[str, dict[str, object]]]


def install(folder: Path, calls: Calls, *, usd: float = 0.0) -> None:
    """Both programs, `claude` and `acp-agent`, in a folder for PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in (("claude", CLAUDE), ("acp-agent", ACP)):
        file = folder / name
        text = (COMMON + body).format(python=sys.executable, calls=json.dumps(calls), usd=usd)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755)
