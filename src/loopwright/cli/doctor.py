"""`doctor`: whether everything is in order, and what to do where it is not."""

import sys

import click

from loopwright.cli.door import Tone
from loopwright.cli.texts import one_line
from loopwright.cli.verb import Verb, door_of

_SIGNS = {"ok": ("✓", "+"), "none": ("·", "."), "warn": ("!", "!"), "fail": ("✗", "x")}
_TONES: dict[str, Tone] = {"ok": "good", "none": "dim", "warn": "warn", "fail": "bad"}


@click.command(
    cls=Verb,
    examples=[
        ("loopwright doctor", ""),
        ("loopwright doctor --deep", "also checks every recorded run for damage"),
    ],
)
@click.option("--deep", is_flag=True, help="Check every recorded run: numbers, hashes, contents.")
@click.pass_context
def doctor(ctx: click.Context, /, *, deep: bool) -> int:
    """See whether everything is in order. Exit code 1 when something is not. With --quiet only
    problems are shown.
    """
    from loopwright.app.doctor import PROBLEMS, examine  # noqa: PLC0415 - help stays quick
    from loopwright.app.settings import load_settings  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    findings = examine(load_settings(data_dir=door.wanted.data_dir), deep=deep)
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


VERBS = {"doctor": doctor}
