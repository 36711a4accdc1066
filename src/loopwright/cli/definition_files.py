"""Commands on definition files: `init`, `schema`, `convert`, `validate` and `import`.

Problems are reported with file, line and column.
"""

import json
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loopwright.cli.completion import complete_dialects
from loopwright.cli.terminal import Terminal, Tone, cleaned
from loopwright.cli.verb import Verb, terminal_of

if TYPE_CHECKING:
    from loopwright.model.record import JsonValue
    from loopwright.operations.definition_checks import CheckedFile, ImportReport, Validated
    from loopwright.syntax.document import Diagnostic


@click.command(
    cls=Verb,
    examples=[
        ("loopwright init", "loop.yaml, here"),
        ("loopwright init loops", "in a folder of its own"),
        ("loopwright init loops/haiku.yaml", "under a name of its own"),
    ],
)
@click.argument("place", metavar="[DIR|FILE]", default=".", type=click.Path())
@click.option("--force", is_flag=True, help="Overwrite files of the same name.")
@click.pass_context
def init(ctx: click.Context, /, *, place: str, force: bool) -> None:
    """Write a commented definition that runs without a key, and the files that it needs.

    A name that ends in .yaml or .yml is the file to write, any other is a folder.
    """
    from loopwright.operations.library import names_for, write_files  # noqa: PLC0415 - quick help

    terminal = terminal_of(ctx)
    files = write_files(names_for(place), force=force)
    written = [os.path.normpath(file) for file in files]
    command = f"loopwright run {shlex.quote(written[0])}"
    if terminal.as_json:
        terminal.put_json({"files": written, "next": command})
        return
    for file in written:
        terminal.say(f"written: {file}")
    terminal.say("now run:")
    terminal.put(command)


@click.command(
    cls=Verb,
    examples=[("loopwright schema > loop.schema.json", "for editors: see `loopwright init`")],
)
@click.argument("dialect", metavar="[DIALECT]", default="native", shell_complete=complete_dialects)
@click.pass_context
def schema(ctx: click.Context, /, *, dialect: str) -> None:
    """The JSON Schema of a dialect. Default: the native one."""
    from loopwright.operations.dialects import dialect as find  # noqa: PLC0415 - help stays quick

    found: dict[str, JsonValue] = find(dialect).json_schema()
    terminal = terminal_of(ctx)
    if terminal.as_json:
        terminal.put_json(found)
    else:
        terminal.put(json.dumps(found, indent=2))


@click.command(
    cls=Verb,
    examples=[
        ("loopwright convert assistant.json", "on stdout"),
        ("loopwright convert workflow.yaml --to native -o flow.yaml", "into a file"),
    ],
)
@click.argument("file", metavar="FILE", type=click.Path())
@click.option("--output", "-o", metavar="FILE", type=click.Path(), help="Write it there.")
@click.option(
    "--to",
    type=click.Choice(["native"]),
    default="native",
    show_default=True,
    expose_value=False,  # there is one
    help="The language to write.",
)
@click.option("--force", is_flag=True, help="Overwrite that file.")
@click.option(
    "--dialect",
    metavar="NAME",
    shell_complete=complete_dialects,
    help="Skip dialect detection.",
)
@click.pass_context
def convert(
    ctx: click.Context, /, *, file: str, output: str | None, force: bool, dialect: str | None
) -> None:
    """Write a definition of any dialect as a native one that means the same.

    The result is read back and compared with the plan. What native definitions cannot express is
    an error that names it.
    """
    from loopwright.operations.definition_checks import convert_file  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    target = Path(output) if output else None
    definition, text = convert_file(Path(file), dialect=dialect, target=target, force=force)
    for warning in definition.warnings:
        terminal.say(warning.render(), tone="warn")
    if terminal.as_json:
        terminal.put_json(
            {"file": file, "dialect": definition.dialect, "output": output, "definition": text}
        )
    elif target is None:
        terminal.put(text)
    else:
        terminal.say(f"{target} written; `loopwright run {target}` runs it")


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
    "--dialect",
    metavar="NAME",
    shell_complete=complete_dialects,
    help="Skip dialect detection.",
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
    """Check definitions, or all of a folder. Exit code 2 if one is invalid."""
    from loopwright.operations.definition_checks import check_files  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    found = check_files(
        [Path(file) for file in files], dialect, strict=strict, home=terminal.settings.home
    )
    checked = found.files
    problems = [problem for one in checked for problem in one.problems]
    bad = any(problem.severity == "error" for problem in problems)
    if terminal.as_json:
        terminal.put_json(_report(bad, problems, found))
    else:
        for problem in problems:
            _print_problem(terminal, problem, form)
        if not bad:
            count = f"{len(checked)} definitions" if len(checked) > 1 else checked[0].file
            terminal.say(f"{count}: valid", tone="good")
        if found.skipped:
            terminal.say(f"skipped, not definitions: {_named(found.skipped)}", tone="dim")
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
    """The first files, and the number of the others."""
    more = len(files) - _MOST_NAMED
    return ", ".join(files[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _print_problem(terminal: Terminal, problem: "Diagnostic", form: str) -> None:
    if form == "github":
        terminal.put(_annotation(problem))
    else:
        terminal.tell(problem.render(), tone="bad" if problem.severity == "error" else "warn")


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


_REDRAW_S = 0.1
_LINE_EACH = 250
_MOST_CODES = 6
_WORDS = {"runs": "runs", "warnings": "runs with warnings", "refused": "refused"}
_NEEDS_MAX = "runs with --max N"
_SIGNS = {"runs": ("✓", "+"), "warnings": ("!", "!"), "refused": ("✗", "x")}
_TONES: dict[str, Tone] = {"runs": "good", "warnings": "warn", "refused": "bad"}
_SKIPPED = {
    "file-too-large": "too large for a definition",
    "folder-of-tools": "folders of installed packages or build results",
    "hidden": "hidden",
    "link": "links",
    "not-a-definition": "YAML or JSON without a definition",
    "other-ending": "neither YAML nor JSON",
    "part": "used by definitions",
    "unreadable": "YAML or JSON that cannot be read",
}
_WIDE = max(len(words) for words in _WORDS.values()) + 2


@click.command(
    cls=Verb,
    name="import",
    examples=[
        ("loopwright import .", "the definitions of this folder and of those in it"),
        ("loopwright import ~/project --refused", "only those that cannot run, and why"),
        ("loopwright import . --json", "the report for a program"),
    ],
)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--dialect",
    metavar="NAME",
    shell_complete=complete_dialects,
    help="Read every YAML and JSON file as this dialect.",
)
@click.option("--refused", is_flag=True, help="List only the definitions that are refused.")
@click.option("--skipped", is_flag=True, help="List the files that are not definitions, too.")
@click.pass_context
def import_folder(
    ctx: click.Context, /, *, folder: Path, dialect: str | None, refused: bool, skipped: bool
) -> int:
    """Check the files of another system, in any dialect, before you use them here.

    Every definition in DIR and in its folders is checked as a run would check it, together with
    the files that it uses. Nothing is run, copied or changed. Exit code 2 when a definition is
    refused.
    """
    from loopwright.operations.definition_checks import check_folder  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    progress = _Progress(terminal)
    report = check_folder(folder, force=dialect, home=terminal.settings.home, progress=progress)
    progress.clear()
    if terminal.as_json:
        terminal.put_json(report.as_dict())
    else:
        _print_files(terminal, report, only_refused=refused)
        if skipped:
            _print_skipped(terminal, report)
        _print_totals(terminal, report, listed=skipped)
    return 2 if report.totals["refused"] else 0


class _Progress:
    """The progress of a check: one line that is redrawn on a terminal, else a line now and then."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._is_off = terminal.quiet or terminal.as_json
        self._is_drawn = sys.stderr.isatty()
        self._next = time.monotonic() + _REDRAW_S
        self._width = 0

    def __call__(self, done: int, of: int) -> None:
        if self._is_off:
            return
        if not self._is_drawn:
            if done % _LINE_EACH == 0 and done < of:
                self._terminal.say(f"checked {done} of {of} files", tone="dim")
        elif time.monotonic() >= self._next:
            text = f"checked {done} of {of} files"
            self._width = len(text)
            sys.stderr.write(f"\r{text}")
            sys.stderr.flush()
            self._next = time.monotonic() + _REDRAW_S

    def clear(self) -> None:
        if self._width:
            sys.stderr.write(f"\r{' ' * self._width}\r")
            sys.stderr.flush()


def _print_files(terminal: Terminal, report: "ImportReport", *, only_refused: bool) -> None:
    shown = [one for one in report.files if one.result == "refused" or not only_refused]
    if not shown:
        return
    wide = max(len("DIALECT"), *(len(one.dialect or "") for one in shown))
    terminal.put(f"{'RESULT':{_WIDE}}  {'DIALECT':{wide}}  FILE")
    for one in shown:
        _print_file(terminal, one, wide)


def _print_file(terminal: Terminal, one: "CheckedFile", wide: int) -> None:
    sign = _SIGNS[one.result][0 if terminal.has_signs(sys.stdout) else 1]
    has_to_name_max = one.needs_max and one.result != "refused"
    result = f"{sign} {_NEEDS_MAX if has_to_name_max else _WORDS[one.result]}"
    painted = terminal.painted(f"{result:{_WIDE}}", _TONES[one.result], sys.stdout)
    terminal.put(f"{painted}  {one.dialect or '':{wide}}  {cleaned(one.file)}")
    for problem in one.problems:
        terminal.put(f"    {cleaned(problem.render())}")


def _print_skipped(terminal: Terminal, report: "ImportReport") -> None:
    if report.skipped:
        terminal.put("")
        terminal.put("Not checked by themselves:")
    for one in report.skipped:
        terminal.put(f"  {cleaned(one.file)}: {cleaned(one.reason)}")


def _total(report: "ImportReport", result: str) -> str:
    count = report.totals[result]
    off = sum(one.needs_max and one.result == result == "warnings" for one in report.files)
    return f"{count} {_verb(result, count)}" + (f" ({off} only with --max N)" if off else "")


def _verb(result: str, count: int) -> str:
    return _WORDS[result] if count == 1 else _WORDS[result].replace("runs", "run", 1)


def _print_totals(terminal: Terminal, report: "ImportReport", *, listed: bool) -> None:
    totals = report.totals
    count = totals["definitions"]
    if not count:
        terminal.put(f"No definitions in {cleaned(report.folder)}.")
    else:
        terminal.put("")
        terminal.put(
            f"{count} definition{'' if count == 1 else 's'}: "
            + ", ".join(_total(report, result) for result in _WORDS)
        )
        for name, counts in report.dialects.items():
            parts = [f"{n} {_verb(result, n)}" for result, n in counts.items() if n]
            terminal.put(f"  {name}: {', '.join(parts)}")
    if report.codes:
        most = list(report.codes.items())[:_MOST_CODES]
        terminal.put(f"Most frequent messages: {', '.join(f'{c} in {n}' for c, n in most)}")
    if report.skipped and not listed:
        reasons = Counter(one.code for one in report.skipped)
        parts = [f"{number} {_SKIPPED[code]}" for code, number in sorted(reasons.items())]
        terminal.put(f"Not checked by themselves: {'; '.join(parts)} (--skipped lists them)")
    if any(one.needs_agent for one in report.files):
        terminal.put("Choose an agent for steps without one: `loopwright run FILE --agent SPEC`.")
    if any(one.needs_max and one.result != "refused" for one in report.files):
        terminal.put("Start an assistant whose looping is off: `loopwright run FILE --max N`.")


VERBS = {
    "init": init,
    "schema": schema,
    "convert": convert,
    "validate": validate,
    "import": import_folder,
}
