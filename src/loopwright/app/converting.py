"""From any dialect to the native one, as YAML that reads back to the same plan."""

import json
from pathlib import Path

import yaml

from loopwright.app.dialects import Definition, parse_definition, read_definition
from loopwright.dialects.native import export
from loopwright.errors import Conflict, LoopwrightError
from loopwright.model.plan import Plan
from loopwright.model.record import JsonValue


class _Dumper(yaml.SafeDumper):
    """Block style; texts of several lines stay readable."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def native_text(definition: Definition) -> str:
    """The definition as native YAML, or as JSON (which is YAML) where YAML would read otherwise."""
    value = _exported(definition.plan)
    written = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100, indent=2
    )
    for text in (written, json.dumps(value, indent=2, ensure_ascii=False) + "\n"):
        if _reads_back(text, value):
            return text
    raise LoopwrightError(
        f"{definition.file} says something that a native definition cannot say",
        code="not-expressible",
        hint="this is a defect: the native language is meant to have words for everything",
    )


def _exported(plan: Plan) -> JsonValue:
    return export(plan)


def _reads_back(text: str, value: JsonValue) -> bool:
    try:
        again = parse_definition(text.encode(), file="(converted)", force="native")
    except LoopwrightError:
        return False
    return _exported(again.plan) == value


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
