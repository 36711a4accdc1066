"""From any dialect to the native one, as YAML that reads back to the same plan."""

import json
from pathlib import Path

import yaml

from loopwright.app.dialects import Definition, parse_definition, read_definition
from loopwright.dialects.native.export import NotExpressible, export
from loopwright.errors import Conflict, DefinitionError, LoopwrightError
from loopwright.model.plan import Plan, unplaced
from loopwright.model.record import JsonValue
from loopwright.syntax.diagnostic import Diagnostic

CONVERTED = "(converted)"


class _Dumper(yaml.SafeDumper):
    """Block style; texts of several lines stay readable, and nothing is an alias."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def native_text(definition: Definition) -> str:
    """The definition as native YAML, or as JSON (which is YAML) where YAML would read otherwise.

    What is given back was read again and gave the same plan; anything else is an error that names
    what cannot be said.
    """
    try:
        value: JsonValue = export(definition.plan)
    except NotExpressible as error:
        raise _refused(definition.file, error.message) from error
    written = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100, indent=2
    )
    problem = ""
    for text in (written, json.dumps(value, indent=2, ensure_ascii=False) + "\n"):
        problem = _problem(text, definition.plan)
        if not problem:
            return text
    raise _refused(definition.file, problem)


def _refused(file: str, why: str) -> LoopwrightError:
    return LoopwrightError(
        f"{file} cannot be converted: {why}",
        code="not-expressible",
        hint=f"change it there, or go on with `loopwright run {file}`, which needs no conversion",
    )


def _problem(text: str, plan: Plan) -> str:
    """Why a text does not say what the plan says; nothing if it does."""
    try:
        again = parse_definition(text.encode(), file=CONVERTED, force="native")
    except DefinitionError as error:
        first = next((one for one in error.problems if isinstance(one, Diagnostic)), None)
        return first.message if first else error.message
    return "" if again.plan == unplaced(plan) else "the native definition would mean something else"


def convert_file(
    file: Path, *, dialect: str | None, target: Path | None, force: bool
) -> tuple[Definition, str]:
    """Convert a file, and write the result where that is asked for; nothing is overwritten."""
    definition = read_definition(file, force=dialect)
    text = native_text(definition)
    if target is not None:
        _write(target, text, force=force)
    return definition, text


def _write(target: Path, text: str, *, force: bool) -> None:
    try:
        with target.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise Conflict(f"{target} exists", code="exists", hint="give --force") from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise LoopwrightError(
            f"{target} cannot be written: {reason}", code="cannot-write", hint="name another file"
        ) from error
