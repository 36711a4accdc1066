"""From any dialect to the native one, as YAML that reads back to the same plan."""

import json

import yaml

from loopwright.app.dialects import Definition, parse_definition
from loopwright.dialects.native import export
from loopwright.errors import LoopwrightError
from loopwright.model.plan import Plan
from loopwright.model.record import JsonValue


class _Dumper(yaml.SafeDumper):
    """Block style; texts of several lines stay readable."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def native_text(definition: Definition) -> str:
    """The definition as native YAML; as JSON, which is YAML too, where that would read otherwise."""
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
