"""An agent for journeys that speaks JSON lines: what it does in a call stands in a table.

    actor.py FOLDER

FOLDER/table.json has, for each step, a list of entries, one for each call (the last one again and
again). An entry is a text or a mapping: `say` (pieces, each a line of its own), `plain` (bytes that
are no line), `session`, `usd`, `result`, `data`, `error`, `pause` seconds before each piece,
`linger` seconds after the end, `exit`, `stderr`, `write` (a file and its content). Every call
leaves a line in FOLDER/calls.jsonl.
"""

import fcntl
import json
import os
import sys
import time
from pathlib import Path


def main() -> int:
    folder = Path(sys.argv[1])
    path = os.environ["LOOPWRIGHT_PATH"]
    step = next(part for part in reversed(path.split(".")) if not part.isdigit())
    call = {
        "step": step,
        "path": path,
        "prompt": sys.stdin.read(),
        "session": os.environ["LOOPWRIGHT_SESSION"],
        "iteration": int(os.environ["LOOPWRIGHT_ITERATION"]),
    }
    with (folder / "calls.jsonl").open("a+") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        log.seek(0)
        number = sum(json.loads(line)["step"] == step for line in log)
        log.write(json.dumps(call) + "\n")
    table = json.loads((folder / "table.json").read_text())
    entries = table.get(step, ["ok"])
    what = entries[min(number, len(entries) - 1)]
    return behave({"say": [what]} if isinstance(what, str) else what)


def behave(what: dict[str, object]) -> int:
    for name, text in dict(what.get("write", {})).items():  # type: ignore[call-overload]
        Path(name).write_text(text)
    if "session" in what:
        line({"type": "session", "id": what["session"]})
    for piece in list(what.get("say", [])):  # type: ignore[call-overload]
        time.sleep(float(str(what.get("pause", 0))))
        line({"type": "text", "text": piece})
    if "usd" in what:
        line({"type": "usage", "input_tokens": 10, "output_tokens": 1, "usd": what["usd"]})
    if "result" in what or "error" in what or "data" in what:
        text = what.get("result", what.get("error"))
        said = {} if text is None else {"text": text}
        data = {"data": what["data"]} if "data" in what else {}
        line({"type": "result", **said, **data, "is_error": "error" in what})
    sys.stderr.write(str(what.get("stderr", "")))
    sys.stderr.flush()
    time.sleep(float(str(what.get("linger", 0))))
    return int(str(what.get("exit", 0)))


def line(value: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
