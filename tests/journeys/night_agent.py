"""A coding agent for the overnight journey, over JSON lines.

    night_agent.py FOLDER

It appends one line to `notes.txt` in each iteration, reports what it did as tool lines, and writes
every prompt and every reported action to FOLDER, so that a test can compare. Three calls behave
differently, once each: iteration 2 hangs until it is killed, iteration 3 exits with code 1, and
iteration 4 reports its usage and hangs until its budget ends it.
"""

import json
import os
import sys
import time
from pathlib import Path

USD = 0.10


def main() -> int:
    folder, iteration = Path(sys.argv[1]), int(os.environ["LOOPWRIGHT_ITERATION"])
    calls = folder / "calls.jsonl"
    made = calls.read_text().splitlines() if calls.exists() else []
    before = sum(json.loads(line)["iteration"] == iteration for line in made)
    with calls.open("a") as file:
        file.write(json.dumps({"iteration": iteration, "prompt": sys.stdin.read()}) + "\n")
    report_tool(folder, "Read", {"file_path": "notes.txt"}, "read")
    if iteration == 2 and before == 0:
        (folder / "hangs").write_text("2")
        time.sleep(300)
    say({"type": "usage", "input_tokens": 1000, "output_tokens": 10, "usd": USD})
    if iteration == 3 and before == 0:
        sys.stderr.write("the model is not available\n")
        return 1
    if iteration == 4 and before == 0:
        time.sleep(300)
    with Path("notes.txt").open("a") as file:
        file.write(f"line {iteration}\n")
    report_tool(folder, "Edit", {"file_path": "notes.txt"}, "edited")
    report_tool(folder, "Bash", {"command": "wc -l notes.txt"}, f"{iteration + 1} notes.txt")
    say({"type": "result", "text": f"Added line {iteration}.\nLEARNED: lesson {iteration}"})
    return 0


def report_tool(folder: Path, name: str, args: dict[str, str], result: str) -> None:
    say({"type": "tool", "name": name, "args": args, "result": result})
    with (folder / "tools.jsonl").open("a") as file:
        file.write(json.dumps([int(os.environ["LOOPWRIGHT_ITERATION"]), name]) + "\n")


def say(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
