"""Commands that die: started by the kill test of snapshots, it makes children that kill themselves.

    snapshot_child.py

reads one order for each line of its input, forks, and lets the child run one `loopwright` command
with real Git and a real agent. The child dies at the n-th point that it meets: before and after
each commit of the log, each call of Git, and each file that is put in its place.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from loopwright.cli.main import main as run_command
from loopwright.stores.sqlite.write_connection import WriteConnection
from loopwright.workspaces.git import Git, GitResult
from loopwright.workspaces.snapshots import GitWorkspaces
from tests.faults.child import Death

LONGEST_S = 60
_LOADED = GitWorkspaces  # so that no child has to load it


def add_points(death: Death) -> None:
    """Let the process die around everything that it makes durable."""
    run, replace, opened = Git.run, os.replace, WriteConnection.__init__

    async def run_git(git: Git, *arguments: Any, **more: Any) -> GitResult:
        death("git.before")
        done = await run(git, *arguments, **more)
        death("git.after")
        return done

    def replace_file(*arguments: Any, **more: Any) -> None:
        death("replace.before")
        replace(*arguments, **more)
        death("replace.after")

    def open_ledger(ledger: WriteConnection, *arguments: Any, **more: Any) -> None:
        opened(ledger, *arguments, **more)
        ledger.killpoint = death

    Git.run = run_git  # type: ignore[method-assign]
    os.replace = replace_file
    WriteConnection.__init__ = open_ledger  # type: ignore[method-assign]


def obey(order: dict[str, Any]) -> None:
    """The whole life of a child."""
    signal.alarm(LONGEST_S)
    os.chdir(order["folder"])
    os.environ.update(order["env"])
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDWR)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    add_points(Death(order["kill"]))
    run_command(order["args"])


def live(order: dict[str, Any]) -> int:
    """How a child ended that was made for an order."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            obey(order)
        except SystemExit as left:
            code = int(str(left.code or 0))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    answers = os.dup(1)
    for line in sys.stdin:
        os.write(answers, f"{live(json.loads(line))}\n".encode())


if __name__ == "__main__":
    main()
