"""`doctor`: whether everything is in order, and what to do where it is not."""

import sys
from pathlib import Path

import click

from loopwright.cli.door import Door, Tone
from loopwright.cli.texts import one_line
from loopwright.cli.verb import Verb, door_of

_SIGNS = {"ok": ("✓", "+"), "none": ("·", "."), "warn": ("!", "!"), "fail": ("✗", "x")}
_TONES: dict[str, Tone] = {"ok": "good", "none": "dim", "warn": "warn", "fail": "bad"}


@click.command(
    cls=Verb,
    examples=[
        ("loopwright doctor", ""),
        ("loopwright doctor --deep", "also checks every recorded run for damage"),
        ("loopwright doctor --export-heads heads-monday", "keep this file on another machine"),
        ("loopwright doctor --deep --heads heads-monday", "nothing was removed since Monday"),
    ],
)
@click.option(
    "--deep",
    is_flag=True,
    help="Check every recorded run: events, hashes, contents, rows, gates, usage; the audit log.",
)
@click.option(
    "--heads",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Compare the runs with this exported list of hashes instead of the data directory's own.",
)
@click.option(
    "--export-heads",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the newest hash of every run to a new file, and check nothing.",
)
@click.option(
    "--rebuild-heads",
    is_flag=True,
    help="Record the database as it is now, and check nothing; after you restored a backup.",
)
@click.pass_context
def doctor(
    ctx: click.Context,
    /,
    *,
    deep: bool,
    heads: Path | None,
    export_heads: Path | None,
    rebuild_heads: bool,
) -> int:
    """See whether everything is in order. Exit code 1 when something is not. With --quiet only
    problems are shown.
    """
    if export_heads is not None or rebuild_heads:
        if deep or heads or (export_heads and rebuild_heads):
            raise click.UsageError("--export-heads and --rebuild-heads take no other option", ctx)
        return _write_heads(door_of(ctx), export_heads)
    from loopwright.app.doctor import PROBLEMS, examine  # noqa: PLC0415 - help stays quick
    from loopwright.app.settings import load_settings  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    findings = examine(load_settings(data_dir=door.wanted.data_dir), deep=deep, heads=heads)
    failed = any(finding.state == "fail" for finding in findings)
    if door.as_json:
        door.put_json({"ok": not failed, "checks": [one.as_dict() for one in findings]})
        return 1 if failed else 0
    signs = door.has_signs(sys.stdout)
    wide = max(len(one.name) for one in findings)
    for one in findings:
        if door.quiet and one.state not in PROBLEMS:
            continue
        sign = _SIGNS[one.state][0 if signs else 1]
        line = f"{sign} {one.state:<4}  {one.name:<{wide}}  {one_line(one.why)}"
        door.put(door.painted(line, _TONES[one.state], sys.stdout))
        if one.fix:
            door.put(f"{'':{wide + 10}}fix: {one_line(one.fix)}")
    return 1 if failed else 0


def _write_heads(door: Door, export_to: Path | None) -> int:
    from loopwright.app.recorded_heads import (  # noqa: PLC0415 - help stays quick
        export_heads,
        rebuild_heads,
    )

    if export_to is not None:
        count, file = export_heads(door.settings, export_to), export_to
    else:
        count, file = rebuild_heads(door.settings)
    if door.as_json:
        door.put_json({"file": str(file), "runs": count})
    else:
        door.say(f"{file}: the newest hashes of {count} runs")
    return 0


VERBS = {"doctor": doctor}
