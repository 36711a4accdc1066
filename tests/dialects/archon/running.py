"""Runs the scripts of a plan for real, with hostile values, in a folder of their own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from loopwright.agents.calls import as_variables
from loopwright.model.actions import Repeat, RunScript, Step, Steps
from loopwright.model.checks import ScriptCheck, leaves
from loopwright.model.plan import Plan

MARKER = "pwned"
HELPER = "evil"

# Seven ways to make a shell do something, each of which would leave the marker behind.
PAYLOADS = {
    "substitution": f"$(touch {MARKER})",
    "backquotes": f"`touch {MARKER}`",
    "separator": f"; touch {MARKER} #",
    "newline": f"x\ntouch {MARKER}\n",
    "quotes": f"'\"; touch {MARKER}; \"'",
    "here-document": f"x\nEOF\ntouch {MARKER}\nEOF\n",
    "option": f"--eval=touch {MARKER}",
}
# More of them, for places with rules of their own.
SPECIAL_PAYLOADS = {
    "subscript": f"a[$(touch {MARKER})]",
    "program": f"./{HELPER}",
    "printf-name": f"-va[$(touch {MARKER})]",
    "code-flag": f"-c./{HELPER}",
    "bracket": f") ; touch {MARKER} ; (",
    "plain": "* ~ {a,b} \\ $HOME !x | & < > \t é",
}


def scripts_of(step: Step) -> list[RunScript | ScriptCheck]:
    """What a step runs in a shell, itself or as a check."""
    action = step.action
    if isinstance(action, RunScript):
        return [action]
    if isinstance(action, Repeat) and action.each is None:
        return [one for one in leaves(action.until) if isinstance(one, ScriptCheck)]
    inside = action.body if isinstance(action, Repeat) else action
    steps = inside.steps if isinstance(inside, Steps) else ()
    return [one for inner in steps for one in scripts_of(inner)]


def last_script(plan: Plan) -> RunScript | ScriptCheck:
    """The script of the last step that has one."""
    return [one for step in plan.steps for one in scripts_of(step)][-1]


def run(script: RunScript | ScriptCheck, value: str, folder: Path) -> tuple[str, bool]:
    """What it says when every variable has this value, and whether anything was run."""
    helper = folder / HELPER
    helper.write_text(f"#!/bin/sh\ntouch {MARKER}\n", encoding="utf-8")
    helper.chmod(0o755)
    said = run_with(script, dict.fromkeys(script.env, value), folder)
    return said, (folder / MARKER).exists()


def run_with(script: RunScript | ScriptCheck, values: Mapping[str, str], folder: Path) -> str:
    """What it says when its variables have these values."""
    programs = {"uv": (sys.executable, "-c"), "bun": ("node", "-e")}
    command = programs.get(script.interpreter, (script.interpreter, "-c"))
    with as_variables(values, script.text) as given:
        done = subprocess.run(
            [*command, script.text],
            cwd=folder,
            env={**given.variables, "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
            check=False,
        )
    return done.stdout.decode(errors="replace")
