"""`definitions`: what can be run by its name."""

import sys
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from loopwright.cli.cells import table
from loopwright.cli.door import Door
from loopwright.cli.looking import terminal_width
from loopwright.cli.texts import cleaned, one_line
from loopwright.cli.verb import CONTEXT, Verb, common_options, door_of

if TYPE_CHECKING:
    from loopwright.app.library import Library, Listed
    from loopwright.model.record import JsonValue

WRONG = 2


def _known(door: Door) -> "Library":
    from pathlib import Path  # noqa: PLC0415 - help stays quick

    from loopwright.app.library import Library  # noqa: PLC0415 - help stays quick

    return Library(door.settings.home, Path.cwd())


def _complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    names = _known(door_of(ctx)).names()
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.command(
    "show", cls=Verb, examples=[("loopwright definitions show harness", "its stages, in words")]
)
@click.argument("name", metavar="NAME", shell_complete=_complete)
@click.option("--source", is_flag=True, help="The file as it is written, to copy and change.")
@click.pass_context
def show(ctx: click.Context, /, *, name: str, source: bool) -> int:
    """One definition: its stages, what ends it, its parameters."""
    door = door_of(ctx)
    found = _known(door).get(name)
    if door.as_json:
        door.put_json(found.as_dict())
    elif source:
        door.put(cleaned(found.data.decode(errors="replace")).rstrip("\n"))
    else:
        _put_one(door, found)
    return 0 if found.is_valid else WRONG


@click.command("validate", cls=Verb)
@click.argument("name", metavar="[NAME]", required=False, shell_complete=_complete)
@click.pass_context
def validate(ctx: click.Context, /, *, name: str | None) -> int:
    """Find what is wrong with one definition, or with all. Exit code 2 when something is."""
    door = door_of(ctx)
    known = _known(door)
    found = known.all() if name is None else [known.get(name)]
    if door.as_json:
        door.put_json({"definitions": [one.as_dict() for one in found]})
    for problem in [problem for one in found for problem in one.problems]:
        door.tell(problem.render(), tone="bad" if problem.severity == "error" else "warn")
    wrong = [one for one in found if not one.is_valid]
    if not wrong:
        door.say(f"{len(found)} definitions: valid" if len(found) > 1 else "valid", tone="good")
    return WRONG if wrong else 0


@click.command(
    "diff",
    cls=Verb,
    examples=[("loopwright definitions diff harness", "what you have changed in it")],
)
@click.argument("name", metavar="NAME", shell_complete=_complete)
@click.pass_context
def diff(ctx: click.Context, /, *, name: str) -> None:
    """How a definition differs from the built-in one of its name."""
    door = door_of(ctx)
    text = _known(door).difference(name)
    if door.as_json:
        door.put_json({"name": name, "diff": text})
    elif text:
        door.put(cleaned(text).rstrip("\n"))
    else:
        door.say(f"{name} is as it is built in")


@click.group(
    context_settings=CONTEXT,
    invoke_without_command=True,
    params=common_options(),
    commands={"show": show, "validate": validate, "diff": diff},
)
@click.pass_context
def definitions(ctx: click.Context, /) -> None:
    """What `loopwright run NAME` knows: the project's definitions in .loopwright/loops/, your own
    in the folder loops/ of the data folder, and those that are built in. The nearest of a name
    wins. Files that cannot be used are listed too, with what is wrong.
    """
    if ctx.invoked_subcommand is not None:
        return
    door = door_of(ctx)
    found = _known(door).all()
    if door.as_json:
        listed: list[JsonValue] = [one.as_dict() for one in found]
        door.put_json({"definitions": listed, "count": len(listed)})
        return
    _put_table(door, found)
    for one in found:
        for problem in one.problems if not one.is_valid else ():
            door.tell(problem.render(), tone="bad")


def _put_table(door: Door, found: "list[Listed]") -> None:
    rows = [["NAME", "FROM", "ROLES", "ENDS", "PARAMETERS"]]
    rows += [
        [one.name, one.source, one.chain, one.termination, _parameters(one)]
        if one.is_valid
        else [one.name, one.source, "cannot be used: see below", "", ""]
        for one in found
    ]
    lines = table(rows, terminal_width())
    door.put(door.painted(lines[0], "dim", sys.stdout))
    for line, one in zip(lines[1:], found, strict=True):
        door.put(door.painted(line, "plain" if one.is_valid else "bad", sys.stdout))


def _parameters(one: "Listed") -> str:
    """Their names; one that may be left out has a question mark."""
    return ", ".join(
        f"{each['name']}{'' if each['required'] else '?'}" for each in _listed(one, "parameters")
    )


def _listed(one: "Listed", key: str) -> "list[dict[str, JsonValue]]":
    found = one.about.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _put_one(door: Door, one: "Listed") -> None:
    door.put(door.painted(f"{one.name}  {one.chain}", "bold", sys.stdout))
    door.put(one_line(str(one.about.get("description", ""))))
    door.put(f"from       {one.file}" + (f" (hides: {', '.join(one.hides)})" if one.hides else ""))
    door.put(f"version    {one.version}")
    for number, stage in enumerate(_listed(one, "roles"), start=1):
        door.put(f"stage {number}    {stage['name']} ({stage['role']})")
        door.put(f"           {one_line(str(stage['prompt']))}")
    door.put(f"ends       {one.termination}  {_ending(one)}".rstrip())
    for each in _listed(one, "parameters"):
        usual = "required" if each["required"] else f"default {one_line(str(each['default']))}"
        door.put(f"parameter  {each['name']}: {one_line(str(each['description']))} ({usual})")
    for problem in one.problems:
        door.tell(problem.render(), tone="bad" if problem.severity == "error" else "warn")


def _ending(one: "Listed") -> str:
    found = one.about.get("termination")
    value = found.get("value") if isinstance(found, dict) else None
    if isinstance(value, dict):
        return ", ".join(f"{key}: {one_line(str(each))}" for key, each in value.items())
    return "" if value is None else one_line(str(value))


VERBS = {"definitions": definitions}
