"""A small agent that speaks the Agent Client Protocol: writes a file if it may.

Words of the prompt steer it: `twice` asks twice, `hang` says nothing, `die` ends in the middle,
`refuse` answers with an error, `spend` reports a cost and works on, `stay` does not leave when its
input ends.
"""

import json
import pathlib
import sys
import time


def send(**message: object) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)  # noqa: T201


def answers(number: object, **result: object) -> None:
    send(id=number, result=result)


def tell(what: str, **more: object) -> None:
    params = {"sessionId": "s-1", "update": {"sessionUpdate": what, **more}}
    send(method="session/update", params=params)


def may_write(number: int) -> bool:
    options = [
        {"optionId": "yes", "kind": "allow_once", "name": "Yes"},
        {"optionId": "no", "kind": "reject_once", "name": "No"},
    ]
    call = {"toolCallId": "c", "title": "Write a.txt", "kind": "edit", "rawInput": {"n": "hi"}}
    params = {"sessionId": "s-1", "toolCall": call, "options": options}
    send(id=number, method="session/request_permission", params=params)
    answer = json.loads(sys.stdin.readline())
    return bool(answer["result"]["outcome"].get("optionId") == "yes")


def prompt(number: object, text: str) -> None:
    if "hang" in text:
        time.sleep(60)
    if "die" in text:
        sys.exit("boom")
    if "spend" in text:
        tell("usage_update", cost={"amount": 1.5, "currency": "USD"})
        time.sleep(60)
    if "refuse" in text:
        send(id=number, error={"code": -32603, "message": "Internal", "data": {"details": "429"}})
        return
    tell("tool_call", title="Write a.txt", kind="edit")
    for round_ in range(2 if "twice" in text else 1):
        if may_write(100 + round_):
            with pathlib.Path("a.txt").open("a") as file:
                file.write("hi\n")
    written = pathlib.Path("a.txt").exists()
    tell("agent_message_chunk", content={"type": "text", "text": f"written: {written}"})
    tell("usage_update", cost={"amount": 0.5, "currency": "USD"})
    answers(number, stopReason="end_turn", usage={"inputTokens": 10, "outputTokens": 2})


def main() -> None:
    stay = False
    for line in sys.stdin:
        message = json.loads(line)
        match message.get("method"):
            case "initialize":
                answers(message["id"], protocolVersion=1, agentCapabilities={"loadSession": True})
            case "session/new":
                answers(message["id"], sessionId="s-1")
            case "session/load":
                tell("agent_message_chunk", content={"type": "text", "text": "of old"})
                answers(message["id"])
            case "session/prompt":
                text = message["params"]["prompt"][0]["text"]
                stay = "stay" in text
                prompt(message["id"], text)
    if stay:
        time.sleep(60)


main()
