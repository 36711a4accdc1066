"""The parts of docs/reference that are written by the code itself.

`python scripts/reference.py` renews them, `--check` says whether they are current. A page is either
generated whole, or has generated parts between two comments, with words by people around them.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click
import msgspec

from loopwright.cli.main import COMMANDS, cli
from loopwright.cli.verb import PROGRAM, common_options
from loopwright.kernel import event_parts
from loopwright.kernel.event_parts import BaseEvent, Failure, PlaceEvent
from loopwright.kernel.events import AnyEvent, Usage
from loopwright.model.record import Blob
from loopwright.operations.dialects import dialect
from loopwright.operations.settings import COUNTS, LISTS, NAMES, PREFIX, SIZES

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
HEADER = "<!-- Generated. Do not edit: run `make docs` (`python scripts/reference.py`). -->"
HELP_WIDTH = 100

_PART = re.compile(r"(<!-- generated: (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

# -- the native language ---------------------------------------------------------------------------

_SECTIONS = {
    "RepeatSpec": "repeat",
    "CycleSpec": "cycle",
    "CheckSpec": "until",
    "ToolSpec": "tool",
    "JudgeSpec": "judge",
    "GoalSpec": "goal",
    "ApprovalSpec": "approval",
    "PersonSpec": "person",
    "MemorySpec": "memory",
    "ForEachSpec": "for_each",
    "StepSpec": "steps",
    "GivenSpec": "given",
    "WhenSpec": "when",
    "LoopGateSpec": "gate",
    "GateStepSpec": "gate of a step",
    "ReworkSpec": "on_reject",
    "RetrySpec": "retry",
    "BudgetSpec": "budget",
    "LoopLimitsSpec": "limits of a loop",
    "AgentSpec": "agents",
    "InputSpec": "inputs",
    "CoordinatorSpec": "coordinator",
    "WorkspaceSpec": "workspace",
}
_DURATION = "(\\d+h)?"
_BODIES = ("Definition", "RepeatSpec", "StepSpec")


def native_fields() -> str:
    """Every key of the native language, one table for each mapping."""
    schema = dialect("native").json_schema()
    specs: dict[str, Any] = {"Definition": schema, **_as_dict(schema["definitions"])}
    specs.pop("JsonValue", None)
    missing = set(specs) - set(_SECTIONS) - {"Definition"}
    if missing:
        raise SystemExit(f"no section for {', '.join(sorted(missing))}: add it to _SECTIONS")
    shared = set.intersection(*({*specs[name]["properties"]} for name in _BODIES))
    body = {key: specs["Definition"]["properties"][key] for key in shared}
    in_order = {k: v for k, v in specs["Definition"]["properties"].items() if k in body}
    parts = [
        _table("the file", "The top level of a definition.", specs["Definition"], without=shared),
        _table(
            "body", "What is executed once: at the top level, in a step or in a loop.", in_order
        ),
    ]
    parts += [
        _table(title, specs[name]["description"], specs[name], without=_shared(name, shared))
        for name, title in _SECTIONS.items()
        if name in specs
    ]
    return "\n".join(parts)


def _shared(name: str, shared: set[str]) -> set[str]:
    return shared if name in _BODIES else set()


def _as_dict(value: object) -> dict[str, Any]:
    assert isinstance(value, dict)
    return value


def _table(title: str, words: str, spec: Mapping[str, Any], *, without: Iterable[str] = ()) -> str:
    properties = spec.get("properties", spec)
    required = spec.get("required", ()) if "properties" in spec else ()
    lines = [f"### {title}", "", words, "", "| key | value | default | meaning |"]
    lines.append("|---|---|---|---|")
    for key, field in properties.items():
        if key in without:
            continue
        default = "required" if key in required else _default(field)
        lines.append(f"| `{key}` | {_kind(field)} | {default} | {field.get('description', '')} |")
    if without:
        lines += ["", "In addition, the keys of a [body](#body)."]
    return "\n".join([*lines, ""])


def _default(field: Mapping[str, Any]) -> str:
    value = field.get("default")
    if value in (None, "", [], {}):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _kind(field: Mapping[str, Any]) -> str:
    """What may stand there, in words."""
    if "$ref" in field:
        return _link(field["$ref"])
    if "allOf" in field:
        return _kind(field["allOf"][0])
    if "enum" in field:
        return ", ".join(f"`{_word(one)}`" for one in field["enum"])
    if "const" in field:
        return f"`{_word(field['const'])}`"
    if "anyOf" in field:
        return _choice(field)
    return _plain(field)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _choice(field: Mapping[str, Any]) -> str:
    if ["pytest", "-q"] in field.get("examples", ()):
        return "command"
    if "2M" in field.get("examples", ()):
        return "tokens"
    return " or ".join(_kind(one) for one in field["anyOf"])


def _plain(field: Mapping[str, Any]) -> str:
    kind = field.get("type")
    if kind == "array":
        return f"list of {_kind(field['items'])}"
    if kind == "object":
        inside = field.get("additionalProperties")
        named = field.get("patternProperties")
        inside = next(iter(named.values())) if named else inside
        if not isinstance(inside, dict) or inside.get("$ref", "").endswith("JsonValue"):
            return "mapping"
        return f"name: {_kind(inside)}"
    if kind == "string":
        return "time" if _DURATION in field.get("pattern", "") else "text"
    if kind in ("integer", "number"):
        return "number" + _bounds(field)
    return {"boolean": "`true`, `false`"}.get(str(kind), "anything")


def _bounds(field: Mapping[str, Any]) -> str:
    low, high = field.get("minimum"), field.get("maximum")
    if low is not None and high is not None:
        return f" {low:g}–{high:g}" if high < 100_000 else f" from {low:g}"
    return " above 0" if "exclusiveMinimum" in field else ""


def _link(ref: str) -> str:
    title = _SECTIONS.get(ref.rpartition("/")[2])
    return "anything" if title is None else f"[{title}](#{title.replace(' ', '-')})"


# -- commands --------------------------------------------------------------------------------------


def commands_page() -> str:
    """Every command with its help; the common options are listed once."""
    parts = [
        f"# Commands\n\n{HEADER}\n",
        f"`{PROGRAM}` and the short form `lw` are the same program. Data goes to stdout, messages",
        "to stderr. The options at the end of this list are accepted by every command, before or",
        "after its name. [exit-codes.md](exit-codes.md) lists the exit codes.\n",
        _help(cli, PROGRAM),
    ]
    context = click.Context(cli, info_name=PROGRAM)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        parts += _command(command, name)
    return "\n".join(parts)


def _command(command: click.Command, name: str) -> Iterator[str]:
    yield f"## {name}\n\n{_help(_own(command), f'{PROGRAM} {name}')}"
    for inner, sub in getattr(command, "commands", {}).items():
        yield from _command(sub, f"{name} {inner}")


def _own(command: click.Command) -> click.Command:
    """The command without the options that all have."""
    everywhere = {option.name for option in common_options()}
    own = copy.copy(command)
    own.params = [param for param in command.params if param.name not in everywhere]
    own.add_help_option = False
    return own


def _help(command: click.Command, name: str) -> str:
    settings: dict[str, Any] = {**command.context_settings, "terminal_width": HELP_WIDTH}
    context = click.Context(command, info_name=name, **settings)
    text = "\n".join(line.rstrip() for line in command.get_help(context).strip().splitlines())
    return f"```text\n{text}\n```\n"


# -- events ----------------------------------------------------------------------------------------

_EVENTS_HEAD = """\
# Events

{header}

A run is a sequence of events, numbered 1, 2, 3 … without a gap. `loopwright events RUN` prints
them, one JSON object on each line: `run`, `seq`, `at` (RFC 3339, UTC), `kind`, and the fields of
its kind. `path` is the position in the run, empty for the run itself; an event that belongs to an
iteration has its number in `iteration`, from 1. Empty fields are left out, and a structured
`result` is JSON, not text.

A *text* is a string; a long one is stored once by its content and appears as
`{{"blob": HASH, "size": BYTES, "head": "how it begins"}}`.
"""


def events_page() -> str:
    """Every kind of event with its fields."""
    parts = [_EVENTS_HEAD.format(header=HEADER)]
    kinds = get_args(AnyEvent)
    for kind in kinds:
        parts.append(_event(kind))
    parts.append("# Parts of events\n")
    for part in (Failure, Usage, Blob):
        parts.append(f"## {part.__name__.lower()}\n\n{_first_line(part)}\n\n{_fields(part, ())}")
    parts.append("## call\n\nThe request in `effect.requested`, by its field `do`.\n")
    parts += [
        f"`{_tag(call)}`: {_first_line(call)}\n\n{_fields(call, ())}"
        for call in get_args(event_parts.AnyCall)
    ]
    return "\n".join(parts)


# Kinds that have their name and their fields, and that no part of this version writes yet.
_NOT_YET = " Reserved: this version does not write it."
RESERVED = ("budget.reserved", "budget.settled")


def _event(kind: type[msgspec.Struct]) -> str:
    base = PlaceEvent if issubclass(kind, PlaceEvent) else BaseEvent
    known = {field.name for field in msgspec.structs.fields(base)}
    words = _docstring(kind) + (_NOT_YET if _tag(kind) in RESERVED else "")
    return f"## {_tag(kind)}\n\n{words}\n\n{_fields(kind, known)}"


def _tag(kind: type[msgspec.Struct]) -> str:
    return str(kind.__struct_config__.tag)


def _docstring(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split())


def _first_line(kind: type) -> str:
    return _docstring(kind)


def _fields(kind: type[msgspec.Struct], known: Iterable[str]) -> str:
    hints = get_type_hints(kind)
    rows = [
        f"| `{field.encode_name}` | {_type(hints[field.name])} | {_field_default(field)} |"
        for field in msgspec.structs.fields(kind)
        if field.name not in known
    ]
    if not rows:
        return "No further fields.\n"
    return "\n".join(["| field | value | default |", "|---|---|---|", *rows, ""])


def _field_default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return ""
    if field.default_factory is not msgspec.NODEFAULT:
        return f"`{field.default_factory()}`"
    if field.default is None:
        return "none"
    return '`""`' if field.default == "" else f"`{field.default}`"


_TYPE_NAMES: dict[object, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    Blob: "blob",
    type(None): "",
    Failure: "[failure](#failure)",
    Usage: "[usage](#usage)",
}


def _type(hint: object) -> str:
    if hint in _TYPE_NAMES:
        return _TYPE_NAMES[hint]
    origin = get_origin(hint)
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in get_args(hint))
    if origin in (Union, UnionType):
        return _union(get_args(hint))
    if origin is tuple:
        return f"list of {_type(get_args(hint)[0])}"
    return "mapping" if origin is dict else "JSON"


def _union(parts: tuple[object, ...]) -> str:
    if all(part in get_args(event_parts.AnyCall) for part in parts):
        return "[call](#call)"
    if str in parts and any(get_origin(part) is Literal for part in parts):
        return "text"
    names = dict.fromkeys(_type(part) for part in parts if part is not type(None))
    names.pop("blob", None)
    return " or ".join(names)


# -- settings --------------------------------------------------------------------------------------


def settings_table() -> str:
    """Every setting with its variable and the words it may be."""
    rows = ["| setting | variable | may be |", "|---|---|---|"]
    for name, words in NAMES.items():
        kind = "a size" if name in SIZES else "a whole number" if name in COUNTS else "any text"
        if name in LISTS:
            kind = {"workspaces": "a list of folders"}.get(name, "a list of names")
        shown = ", ".join(f"`{word}`" for word in words) or kind
        rows.append(f"| `{name}` | `{PREFIX}{name.upper()}` | {shown} |")
    return "\n".join([*rows, ""])


# -- what is supported -----------------------------------------------------------------------------


def support_page() -> str:
    """Which word of each dialect is supported; made by a script beside this one."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    return str(import_module("scripts.support").support_page())


# -- pages -----------------------------------------------------------------------------------------


def openapi_page() -> str:
    """The description of the API, for programs and for whoever reviews a change of it."""
    from loopwright.http.route_table import (  # noqa: PLC0415 - help stays quick
        FAMILIES,
        describe,
    )

    return json.dumps(describe(FAMILIES), indent=1, ensure_ascii=False)


WHOLE: dict[str, Callable[[], str]] = {
    "openapi.json": openapi_page,
    "cli.md": commands_page,
    "events.md": events_page,
    "support.md": support_page,
}
PARTS: dict[str, Callable[[], str]] = {"fields": native_fields, "settings": settings_table}


def pages() -> Iterator[tuple[Path, str]]:
    """Each page with generated text, and how it should read now."""
    for name, make in WHOLE.items():
        yield FOLDER / name, make().rstrip() + "\n"
    for path in sorted(FOLDER.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if path.name not in WHOLE and _PART.search(text):
            yield path, _PART.sub(lambda found: _renewed(found), text)


def _renewed(found: re.Match[str]) -> str:
    made = PARTS[found["name"]]().strip()
    return f"{found[1]}\n{made}\n\n{found[3]}"


def stale() -> list[Path]:
    """Pages that do not read as they should."""
    return [
        path
        for path, text in pages()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a page is stale")
    if parser.parse_args().check:
        old = stale()
        for path in old:
            print(f"{path.relative_to(ROOT)} is stale: run `make docs`", file=sys.stderr)
        return 1 if old else 0
    for path, text in pages():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
