"""A coding CLI that tries everything: looks like one to whoever starts it, and tells what worked.

It plays by no rules of its own, so whatever it cannot do is kept from it by the sandbox alone. What
came of each attempt is the text of its answer, as JSON.
"""

import sys
from pathlib import Path

TRY = """\
#!{python} -IS
import json, os, pathlib, subprocess, sys
sys.stdin.read()
came = {{}}

def attempt(name, work):
    try:
        came[name] = bool(work())
    except BaseException as error:
        came[name] = False

def runs(*argv):
    return subprocess.run(argv, capture_output=True, text=True, timeout=20).returncode == 0

def shell(line):
    return subprocess.run(["/bin/sh", "-c", line], capture_output=True).returncode == 0

home = pathlib.Path(os.environ["HOME"])
attempt("read", lambda: pathlib.Path("notes.txt").read_text() == "hello\\n")
attempt("list", lambda: "notes.txt" in os.listdir("."))
attempt("grep", lambda: runs("grep", "hello", "notes.txt"))
attempt("cat", lambda: runs("cat", "notes.txt"))
attempt("write", lambda: pathlib.Path("written.txt").write_text("x"))
attempt("overwrite", lambda: pathlib.Path("notes.txt").write_text("x"))
attempt("delete", lambda: os.unlink("old.txt") is None)
attempt("chmod", lambda: os.chmod("notes.txt", 0o777) is None)
attempt("neighbour", lambda: pathlib.Path({neighbour!r}).read_text())
attempt("scratch", lambda: pathlib.Path({outside!r}).write_text("x"))
attempt("shell writes", lambda: shell("echo x > by-shell.txt"))
attempt("touch", lambda: runs("touch", "touched.txt"))
attempt("python", lambda: runs("python3", "-c", "pass"))
attempt("by its place", lambda: runs("/usr/bin/id"))
attempt("own settings", lambda: (home / ".claude" / "kept.txt").write_text("x"))
print(json.dumps({{"type": "result", "subtype": "success", "is_error": False, "num_turns": 1,
    "session_id": "s", "result": json.dumps(came),
    "usage": {{"input_tokens": 1, "output_tokens": 1}}, "total_cost_usd": 0.0}}))
"""


OUTSIDE = Path.home() / ".loopwright-trial"


def install(folder: Path, name: str, neighbour: Path) -> Path:
    """The program under a name, in a folder for PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    text = TRY.format(python=sys.executable, neighbour=str(neighbour), outside=str(OUTSIDE))
    file.write_text(text, encoding="utf-8")
    file.chmod(0o755)
    return file
