"""An agent for tests: writes down how it was called, then behaves as it was told.

    probe.py FOLDER [BEHAVIOUR.json]

Each call leaves FOLDER/call-N.json with prompt, environment, folder, arguments and pids. The
behaviour is a list, one entry for each iteration (the last one is repeated): `say`, `stderr`,
`exit`, `sleep` seconds, `hang` with a child of its own, `wait_for` a file, `remove` a folder.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    prompt = sys.stdin.read()
    call = {
        "prompt": prompt,
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "argv": sys.argv,
        # Of its supervisor, which lives as long as any process of the agent: its own number means
        # nothing outside of a sandbox.
        "pid": int(os.environ["LOOPWRIGHT_SUPERVISOR"].split(":")[0]),
        "parents": ancestors(),
    }
    number = len(list(folder.glob("call-*.json"))) + 1
    told: list[dict[str, object]] = [{}]
    if len(sys.argv) > 2:
        told = json.loads(Path(sys.argv[2]).read_text())
    what = told[min(int(os.environ.get("LOOPWRIGHT_ITERATION", "1")), len(told)) - 1]
    if what.get("hang"):
        subprocess.Popen(["sleep", "300"])
        call["child"] = call["pid"]
    done = folder / f"call-{number}.json"
    part = done.with_suffix(".part")
    part.write_text(json.dumps(call))
    part.rename(done)
    return behave(what)


def behave(what: dict[str, object]) -> int:
    if "remove" in what:
        shutil.rmtree(str(what["remove"]))
    if "wait_for" in what:
        while not Path(str(what["wait_for"])).exists():
            time.sleep(0.01)
    time.sleep(float(str(what.get("sleep", 0))))
    sys.stdout.write(str(what.get("say", "ok")))
    sys.stdout.flush()
    sys.stderr.write(str(what.get("stderr", "")))
    if what.get("hang"):
        time.sleep(300)
    return int(str(what.get("exit", 0)))


def ancestors() -> list[tuple[int, str]]:
    """Pid and name of this process's parents, the nearest first."""
    found, pid = [], os.getppid()
    while pid > 1:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            break
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        found.append((pid, fields["Name"]))
        pid = int(fields["PPid"])
    return found


if __name__ == "__main__":
    raise SystemExit(main())
