"""`validate`: what is wrong with definitions, each with file, line and column."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loopwright.cli.completing import complete_dialects
from loopwright.cli.door import Door
from loopwright.cli.verb import Verb, door_of

if TYPE_CHECKING:
    from loopwright.app.validating import Validated
    from loopwright.syntax.diagnostic import Diagnostic

_MOST_NAMED = 5


@click.command(
    cls=Verb,
    examples=[
        ("loopwright validate loops/*.yaml", ""),
        ("loopwright validate loops --strict", "a whole folder; warnings are errors"),
        ("loopwright validate --format github loops/*.yaml", "annotations for GitHub Actions"),
    ],
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path())
@click.option(
    "--dialect", metavar="NAME", shell_complete=complete_dialects, help="Do not guess the dialect."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "github"]),
    default="text",
    help="How problems are written.",
)
@click.option("--strict", is_flag=True, help="Warnings are errors.")
@click.pass_context
def validate(
    ctx: click.Context,
    /,
    *,
    files: tuple[str, ...],
    dialect: str | None,
    form: str,
    strict: bool,
) -> int:
    """Find what is wrong with definitions, or all of a folder. Exit code 2 when something is."""
    from loopwright.app.validating import check_files  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    found = check_files([Path(file) for file in files], dialect, strict=strict)
    checked = found.files
    problems = [problem for one in checked for problem in one.problems]
    bad = any(problem.severity == "error" for problem in problems)
    if door.as_json:
        door.put_json(_report(bad, problems, found))
    else:
        for problem in problems:
            _tell(door, problem, form)
        if not bad:
            count = f"{len(checked)} definitions" if len(checked) > 1 else checked[0].file
            door.say(f"{count}: valid", tone="good")
        if found.skipped:
            door.say(f"skipped, not definitions: {_named(found.skipped)}", tone="dim")
    return 2 if bad else 0


def _report(
    bad: bool,  # noqa: FBT001 - the first thing that the report says
    problems: "list[Diagnostic]",
    found: "Validated",
) -> dict[str, object]:
    checked: dict[str, object] = {"files": [one.as_dict() for one in found.files]}
    if found.skipped:
        checked["skipped"] = [*found.skipped]
    if not bad:
        return {"valid": True, **checked}
    errors = [problem.as_dict() for problem in problems if problem.severity == "error"]
    return {
        "type": "urn:loopwright:problem:bad-definition",
        "title": "The definition is not valid",
        "status": 422,
        "detail": f"{len(errors)} problem{'' if len(errors) == 1 else 's'} found",
        "errors": errors,
        "valid": False,
        **checked,
    }


def _named(files: Sequence[str]) -> str:
    """The first files, and how many more there are."""
    more = len(files) - _MOST_NAMED
    return ", ".join(files[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _tell(door: Door, problem: "Diagnostic", form: str) -> None:
    if form == "github":
        door.put(_annotation(problem))
    else:
        door.tell(problem.render(), tone="bad" if problem.severity == "error" else "warn")


def _annotation(problem: "Diagnostic") -> str:
    """A problem as a workflow command."""
    hint = f" ({problem.hint})" if problem.hint else ""
    place = f"file={_property(problem.file)},line={problem.line},col={problem.column}"
    message = _escaped(f"{problem.message}{hint}")
    return f"::{problem.severity} {place},title={_property(problem.code)}::{message}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


VERBS = {"validate": validate}
