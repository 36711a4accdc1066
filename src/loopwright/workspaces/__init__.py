"""Workspaces: snapshots of the folders that agents work in, kept as Git objects.

`snapshots.GitWorkspaces` implements the port `Workspaces`. Every project has a repository of its
own in the data directory (`store`), with one index for each workspace (`scan` finds what changed
since). `git` starts the program with an environment that runs none of the user's code. The
user's repository is never written to, except by `worktrees`, which people ask for.

May import: ports, kernel and below; is named by app alone. Start reading at `snapshots.py`.
"""
