"""Git in a sandbox, for commands that follow the settings of a repository.

Settings and attributes name programs (filters, merge drivers) that Git starts. An agent may have
written them, so they are started where an agent is: at `guard`, without the data directory.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from loopwright.app.sandbox_rules import policy_of
from loopwright.app.settings import Settings
from loopwright.programs.process import Program, open_filter
from loopwright.programs.sandbox import Confinement, Sandbox
from loopwright.workspaces.git import Confine, GitStart


def confine_git(settings: Settings) -> Confine:
    """What puts Git into a sandbox that shows the worktrees of runs and nothing else of the data
    directory. Where bubblewrap does not work, Git is started as it is.
    """
    sandbox = Sandbox(replace(policy_of(settings), guard_is_optional=True))
    folder_of_worktrees = settings.worktrees

    @contextmanager
    def confine(start: GitStart, folder: Path) -> Iterator[GitStart]:
        folder_of_worktrees.mkdir(parents=True, exist_ok=True, mode=0o700)
        program = Program(
            argv=tuple(os.fsdecode(word) for word in start.argv),
            cwd=str(folder_of_worktrees),
            env=start.env,
        )
        confinement = Confinement(level="guard", start=str(folder))
        with sandbox.confined(program, confinement) as confined:
            if not confined.in_sandbox:
                yield start
                return
            with open_filter(confined.call_filter) as fds:
                words = [word for one in fds for word in ("--seccomp", str(one))]
                argv = [confined.argv[0], *words, *confined.argv[1:]]
                yield GitStart(argv, confined.env, (*start.fds, *fds))

    return confine
