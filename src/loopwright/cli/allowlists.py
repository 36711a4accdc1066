"""`agent` and `workspace`: agents and folders that editors of a server may use."""

import os
from typing import TYPE_CHECKING, Any

import click

from loopwright.cli.formats import put_rows
from loopwright.cli.terminal import Terminal
from loopwright.cli.verb import Verb, group, terminal_of

if TYPE_CHECKING:
    from loopwright.model.sandbox import ConfinedLevel

LEVELS = ("guard", "workspace", "readonly", "none")
SERVER_LEVEL = "server"
_NAME = click.argument("name", metavar="NAME")
_ENV = click.option(
    "--env",
    "variables",
    metavar="NAME",
    multiple=True,
    help="A variable of the server that the agent may be given. May be given more than once.",
)


@click.command("ls", cls=Verb, remote=True)
@click.pass_context
def agent_ls(ctx: click.Context, /) -> None:
    """Agents that editors may start runs with, and those that are disabled."""
    from loopwright.operations.use_cases import allowlists  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    with terminal.client(drives=True) as client:
        listed = client.call_pages(allowlists.list_agents, lambda page: page.agents)
    found = sorted((one for one in listed if one.name), key=lambda one: one.name or "")
    if terminal.as_json:
        terminal.put_json({"agents": found})
        return
    rows = []
    for one in found:
        state = "listed" if one.listed else "disabled"
        state = "changed" if one.listed and one.problem else state
        level = "off allowed" if one.allow_off else one.sandbox or "-"
        source = one.source if one.by is None else f"{one.source}, by {one.by}"
        rows.append([one.name, state, level, ",".join(one.pass_env) or "-", source, one.spec])
    put_rows(terminal, ("NAME", "STATE", "SANDBOX", "VARIABLES", "SOURCE", "AGENT"), rows, "")


@click.command(
    "add",
    cls=Verb,
    remote=True,
    examples=[
        ("loopwright agent add reviewer 'command:/opt/reviewer --strict'", "approve a program"),
        ("loopwright agent add helper acp:helper --sandbox workspace --env HELPER_KEY", ""),
    ],
)
@_NAME
@click.argument("spec", metavar="AGENT")
@click.option("--sandbox", type=click.Choice(LEVELS), help="Weakest sandbox level of its runs.")
@click.option("--allow-off", is_flag=True, help="Definitions may run it without a sandbox.")
@_ENV
@click.pass_context
def agent_add(
    ctx: click.Context,
    /,
    *,
    name: str,
    spec: str,
    sandbox: "ConfinedLevel | None",
    allow_off: bool,
    variables: tuple[str, ...],
) -> None:
    """Approve an agent: editors of a server may start runs with it, by NAME or by AGENT.

    A program is named by its full path, or is found on PATH. The same program with other arguments
    is a different agent. Its files are recorded with their SHA-256 digests, except for those in
    folders of the system: a program that was changed is not started.
    """
    from loopwright.operations.use_cases import allowlists  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    wanted = allowlists.AddAgent(
        name=name, spec=spec, sandbox=sandbox, allow_off=allow_off, pass_env=variables
    )
    made = terminal.call(allowlists.add_agent, wanted, drives=True)
    terminal.done(f"editors may start runs with {name}: {made.spec}", made)


@click.command(
    "change",
    cls=Verb,
    remote=True,
    examples=[
        ("loopwright agent change claude --disable", "editors may not use it any more"),
        ("loopwright agent change codex --sandbox workspace", "it never runs at a weaker level"),
        ("loopwright agent change reviewer --approve", "after an update of the program"),
    ],
)
@_NAME
@click.option(
    "--sandbox",
    type=click.Choice((*LEVELS, SERVER_LEVEL)),
    help="The weakest sandbox level at which it runs; `server`: that of the server.",
)
@click.option("--allow-off/--no-allow-off", default=None, help="Whether it may run at `off`.")
@click.option("--enable/--disable", "enabled", default=None, help="Whether editors may use it.")
@click.option(
    "--approve", is_flag=True, default=None, help="Approve the files of its program as they are."
)
@click.option("--no-env", is_flag=True, help="It may be given no variables of the server.")
@_ENV
@click.pass_context
def agent_change(
    ctx: click.Context,
    /,
    *,
    name: str,
    variables: tuple[str, ...],
    no_env: bool,
    **given: "str | bool | None",
) -> None:
    """Change an agent of the list, also a built-in one. --env replaces the variables it had."""
    if variables and no_env:
        raise click.UsageError("--env and --no-env exclude each other", ctx)
    from loopwright.operations.use_cases import allowlists  # noqa: PLC0415 - help stays quick

    fields: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if fields.get("sandbox") == SERVER_LEVEL:
        fields["sandbox"] = None
    if variables or no_env:
        fields["pass_env"] = variables
    if not fields:
        raise click.UsageError("name at least one option to change", ctx)
    terminal = terminal_of(ctx)
    made = terminal.call(
        allowlists.change_agent, allowlists.ChangeAgent(agent=name, **fields), drives=True
    )
    state = "on the list" if made.listed else "disabled"
    terminal.done(f"{name} is {state}", made)


@click.command("rm", cls=Verb, remote=True)
@_NAME
@click.pass_context
def agent_rm(ctx: click.Context, /, *, name: str) -> None:
    """Remove an agent from the list; runs that use it continue."""
    from loopwright.operations.use_cases import allowlists  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    terminal.call(allowlists.remove_agent, allowlists.AgentReference(agent=name), drives=True)
    terminal.done(f"{name} is off the list", {"name": name, "removed": True})


NOTE = "and the folder that a server is started in, unless the setting `workspaces` is given"


def _path_of(terminal: Terminal, folder: str) -> str:
    """A folder of this machine by its whole path; one of a server as it was given."""
    if terminal.options.server is not None:
        return folder
    return os.path.abspath(os.path.expanduser(folder))


@click.command("ls", cls=Verb, remote=True)
@click.pass_context
def workspace_ls(ctx: click.Context, /) -> None:
    """Folders that editors may choose workspaces in."""
    from loopwright.operations.use_cases import allowlists  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    with terminal.client(drives=True) as client:
        found = client.call_pages(allowlists.list_workspaces, lambda page: page.workspaces)
    if terminal.as_json:
        terminal.put_json({"workspaces": found})
        return
    rows = [[one.path, one.source, one.by or "-"] for one in found]
    put_rows(terminal, ("FOLDER", "SOURCE", "BY"), rows, "no folder was approved")
    if terminal.options.server is None and not any(one.source == "server" for one in found):
        terminal.tell(NOTE)


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
    from loopwright.operations.use_cases import allowlists  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    wanted = allowlists.AddWorkspace(path=_path_of(terminal, folder))
    path = terminal.call(allowlists.add_workspace, wanted, drives=True).path
    terminal.done(f"editors may choose workspaces in {path}", {"path": path})


@click.command("rm", cls=Verb, remote=True)
@click.argument("folder", metavar="DIR")
@click.pass_context
def workspace_rm(ctx: click.Context, /, *, folder: str) -> None:
    """Remove a folder from the list; runs that work in it continue."""
    from loopwright.operations.use_cases import allowlists  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    path = _path_of(terminal, folder)
    terminal.call(
        allowlists.remove_workspace, allowlists.WorkspaceReference(path=path), drives=True
    )
    terminal.done(f"{path} is off the list", {"path": path, "removed": True})


VERBS = {
    "agent": group(
        "agent",
        "Agents that editors of a server may start runs with. Admins of the server and the owner "
        "of the data directory change the list.",
        [agent_ls, agent_add, agent_change, agent_rm],
    ),
    "workspace": group(
        "workspace",
        "Folders that editors of a server may choose workspaces in. Admins of the server and the "
        "owner of the data directory change the list.",
        [workspace_ls, workspace_add, workspace_rm],
    ),
}
