"""Workspaces: snapshots of the folders that agents work in, stored as Git objects.

`snapshots.GitWorkspaces` implements the port `Workspaces`. Every project has its own repository in
the data directory (`repositories`), with one index for each workspace (`scan` finds what changed
since). `git` starts the program with an environment that runs none of the user's code. The user's
repository is never written to, except by `worktrees`, on a person's request.

May import: ports, kernel and below; only `operations` imports it. Start reading at `snapshots.py`.
"""
