"""`workspace`: the folders that editors of a server may choose workspaces in."""

import os
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from loopwright.cli.door import Door
from loopwright.cli.looking import put_rows
from loopwright.cli.verb import Verb, door_of, group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loopwright.app.workspace_roots import WorkspaceRoots

BASE = "/api/v1/workspaces"
NOTE = "and the folder that a server is started in, unless the setting `workspaces` is given"
Item = dict[str, Any]


@contextmanager
def _open_roots(door: Door) -> "Iterator[WorkspaceRoots]":
    from loopwright.app.access import Access  # noqa: PLC0415 - help stays quick
    from loopwright.app.opening import open_log  # noqa: PLC0415 - help stays quick
    from loopwright.app.workspace_roots import WorkspaceRoots  # noqa: PLC0415 - help stays quick
    from loopwright.runtime.clock import SystemClock  # noqa: PLC0415 - help stays quick

    settings = door.settings
    with closing(open_log(settings)) as log:
        access = Access(log, SystemClock())
        yield WorkspaceRoots(access, settings.home, named=settings.workspaces)


def _user() -> str:
    from loopwright.app.service import current_user  # noqa: PLC0415 - help stays quick

    return current_user()


@click.command("ls", cls=Verb, remote=True)
@click.pass_context
def workspace_ls(ctx: click.Context, /) -> None:
    """Folders that editors may choose workspaces in."""
    door = door_of(ctx)
    if door.remote is not None:
        found: list[Item] = door.remote.get(BASE)["workspaces"]
    else:
        with _open_roots(door) as roots:
            found = [
                {"path": one.path, "source": one.source, "by": one.by or None}
                for one in roots.all()
            ]
    if door.as_json:
        door.put_json({"workspaces": found})
        return
    rows = [[one["path"], one["source"], one["by"] or "-"] for one in found]
    put_rows(door, ("FOLDER", "SOURCE", "BY"), rows, "no folder was approved")
    if door.remote is None:
        door.tell(NOTE)


@click.command(
    "add",
    cls=Verb,
    remote=True,
    examples=[("loopwright workspace add /srv/projects", "and every folder in it")],
)
@click.argument("folder", metavar="DIR")
@click.pass_context
def workspace_add(ctx: click.Context, /, *, folder: str) -> None:
    """Approve a folder: editors of a server may choose it, and folders in it, as workspaces.

    Links are resolved now: a link that takes the place of the folder later approves nothing else.
    """
    door = door_of(ctx)
    if door.remote is not None:
        path = str(door.remote.post(BASE, {"path": folder})["path"])
    else:
        with _open_roots(door) as roots:
            path = roots.add(os.path.abspath(os.path.expanduser(folder)), by=_user()).path
    door.done(f"editors may choose workspaces in {path}", {"path": path})


@click.command("rm", cls=Verb, remote=True)
@click.argument("folder", metavar="DIR")
@click.pass_context
def workspace_rm(ctx: click.Context, /, *, folder: str) -> None:
    """Take a folder off the list; runs that work in it continue."""
    door = door_of(ctx)
    if door.remote is not None:
        door.remote.delete(f"{BASE}?path={quote(folder, safe='')}")
        path = folder
    else:
        with _open_roots(door) as roots:
            path = roots.remove(os.path.abspath(os.path.expanduser(folder)), by=_user())
    door.done(f"{path} is off the list", {"path": path, "removed": True})


VERBS = {
    "workspace": group(
        "workspace",
        "Folders that editors of a server may choose workspaces in. Admins of the server and the "
        "owner of the data directory change the list.",
        [workspace_ls, workspace_add, workspace_rm],
    )
}
