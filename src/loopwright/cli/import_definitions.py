"""`import`: which definitions of a folder run here, and what is in the way of the others."""

import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loopwright.cli.completing import complete_dialects
from loopwright.cli.door import Door, Tone
from loopwright.cli.texts import cleaned
from loopwright.cli.verb import Verb, door_of

if TYPE_CHECKING:
    from loopwright.app.import_check import CheckedFile, ImportReport

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
    help="Take every YAML and JSON file for this dialect.",
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
    from loopwright.app.import_check import check_folder  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    progress = _Progress(door)
    report = check_folder(folder, force=dialect, home=door.settings.home, progress=progress)
    progress.clear()
    if door.as_json:
        door.put_json(report.as_dict())
    else:
        _print_files(door, report, only_refused=refused)
        if skipped:
            _print_skipped(door, report)
        _print_totals(door, report, listed=skipped)
    return 2 if report.totals["refused"] else 0


class _Progress:
    """How far a check is: one line that is redrawn on a terminal, else a line now and then."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._is_off = door.quiet or door.as_json
        self._is_drawn = sys.stderr.isatty()
        self._next = time.monotonic() + _REDRAW_S
        self._width = 0

    def __call__(self, done: int, of: int) -> None:
        if self._is_off:
            return
        if not self._is_drawn:
            if done % _LINE_EACH == 0 and done < of:
                self._door.say(f"checked {done} of {of} files", tone="dim")
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


def _print_files(door: Door, report: "ImportReport", *, only_refused: bool) -> None:
    shown = [one for one in report.files if one.result == "refused" or not only_refused]
    if not shown:
        return
    wide = max(len("DIALECT"), *(len(one.dialect or "") for one in shown))
    door.put(f"{'RESULT':{_WIDE}}  {'DIALECT':{wide}}  FILE")
    for one in shown:
        _print_file(door, one, wide)


def _print_file(door: Door, one: "CheckedFile", wide: int) -> None:
    sign = _SIGNS[one.result][0 if door.has_signs(sys.stdout) else 1]
    has_to_name_max = one.needs_max and one.result != "refused"
    result = f"{sign} {_NEEDS_MAX if has_to_name_max else _WORDS[one.result]}"
    painted = door.painted(f"{result:{_WIDE}}", _TONES[one.result], sys.stdout)
    door.put(f"{painted}  {one.dialect or '':{wide}}  {cleaned(one.file)}")
    for problem in one.problems:
        door.put(f"    {cleaned(problem.render())}")


def _print_skipped(door: Door, report: "ImportReport") -> None:
    if report.skipped:
        door.put("")
        door.put("Not checked by themselves:")
    for one in report.skipped:
        door.put(f"  {cleaned(one.file)}: {cleaned(one.reason)}")


def _total(report: "ImportReport", result: str) -> str:
    count = report.totals[result]
    off = sum(one.needs_max and one.result == result == "warnings" for one in report.files)
    return f"{count} {_verb(result, count)}" + (f" ({off} only with --max N)" if off else "")


def _verb(result: str, count: int) -> str:
    return _WORDS[result] if count == 1 else _WORDS[result].replace("runs", "run", 1)


def _print_totals(door: Door, report: "ImportReport", *, listed: bool) -> None:
    totals = report.totals
    count = totals["definitions"]
    if not count:
        door.put(f"No definitions in {cleaned(report.folder)}.")
    else:
        door.put("")
        door.put(
            f"{count} definition{'' if count == 1 else 's'}: "
            + ", ".join(_total(report, result) for result in _WORDS)
        )
        for name, counts in report.dialects.items():
            parts = [f"{n} {_verb(result, n)}" for result, n in counts.items() if n]
            door.put(f"  {name}: {', '.join(parts)}")
    if report.codes:
        most = list(report.codes.items())[:_MOST_CODES]
        door.put(f"Most frequent messages: {', '.join(f'{c} in {n}' for c, n in most)}")
    if report.skipped and not listed:
        reasons = Counter(one.code for one in report.skipped)
        parts = [f"{number} {_SKIPPED[code]}" for code, number in sorted(reasons.items())]
        door.put(f"Not checked by themselves: {'; '.join(parts)} (--skipped lists them)")
    if any(one.needs_agent for one in report.files):
        door.put("Choose an agent for steps without one: `loopwright run FILE --agent SPEC`.")
    if any(one.needs_max and one.result != "refused" for one in report.files):
        door.put("Start an assistant whose looping is off: `loopwright run FILE --max N`.")


VERBS = {"import": import_folder}
