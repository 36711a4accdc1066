"""Steps that use a tool without a model: files are read, written or searched, a command runs.

A tool becomes a generated script that receives its values as variables, so that text of an
agent is never part of a command. Only files in the workspace are accessible. The text of a
command must be written by the author: a computed command is refused.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from loopwright.dialects.zenflow.outline import Path, StepEntry, ZenflowOutline
from loopwright.model.access import family_of
from loopwright.model.actions import RunScript
from loopwright.model.record import JsonValue, Lit, Ref, Template, literal
from loopwright.syntax.document import Diagnostic, Document, did_you_mean, mapping
from loopwright.syntax.step_references import ended_before

TIMEOUT_MS = 600_000

# `$1` is a name as given; the output is a path inside the workspace.
_INSIDE = """
inside() {
  local given=${1%"${1##*[![:space:]]}"} top place
  given=${given#"${given%%[![:space:]]*}"}
  top=$(pwd -P)
  place=$(realpath -m -- "${given:-.}")
  case "$place/" in
    "$top"/*) printf '%s' "$place" ;;
    *) printf '%s is outside of the workspace\\n' "${given:-it}" >&2; exit 1 ;;
  esac
}
"""
_READ = """
file=$(inside "$TOOL_PATH") || exit 1
[ -f "$file" ] || { printf 'there is no file %s\\n' "$TOOL_PATH" >&2; exit 1; }
first=${TOOL_OFFSET:-1} count=${TOOL_LIMIT:-}
case "$first$count" in *[!0-9]*) echo "offset and limit are numbers" >&2; exit 1 ;; esac
tail -n "+$first" -- "$file" | if [ -n "$count" ]; then head -n "$count"; else cat; fi
"""
_WRITE = """
file=$(inside "$TOOL_PATH") || exit 1
mkdir -p -- "$(dirname -- "$file")" || exit 1
printf '%s' "$TOOL_CONTENT" > "$file" || exit 1
printf 'wrote %s\\n' "$TOOL_PATH"
"""
_GLOB = """
folder=$(inside "${TOOL_PATH:-.}") || exit 1
case "/$TOOL_PATTERN/" in
  //*|*/../*) echo "a pattern stays inside of the workspace" >&2; exit 1 ;;
esac
cd -- "$folder" || exit 1
shopt -s globstar nullglob
IFS=
for name in $TOOL_PATTERN; do printf '%s\\n' "$name"; done
"""
_GREP = """
place=$(inside "${TOOL_PATH:-.}") || exit 1
top=$(pwd -P)
grep -rnIE --exclude-dir=.git --include="${TOOL_INCLUDE:-*}" -e "$TOOL_PATTERN" -- "$place" |
  while IFS= read -r line; do printf '%s\\n' "${line#"$top"/}"; done
[ "${PIPESTATUS[0]}" -le 1 ]
"""


class _Tool(NamedTuple):
    """A tool: its script, and its inputs with the variable of each; the first one is needed."""

    script: str
    inputs: dict[str, str]
    needed: tuple[str, ...]


_PATHS = {"path": "TOOL_PATH", "file_path": "TOOL_PATH", "filePath": "TOOL_PATH"}
_TOOLS = {
    "read": _Tool(
        _INSIDE + _READ, {**_PATHS, "offset": "TOOL_OFFSET", "limit": "TOOL_LIMIT"}, ("TOOL_PATH",)
    ),
    "write": _Tool(
        _INSIDE + _WRITE, {**_PATHS, "content": "TOOL_CONTENT"}, ("TOOL_PATH", "TOOL_CONTENT")
    ),
    "glob": _Tool(_INSIDE + _GLOB, {**_PATHS, "pattern": "TOOL_PATTERN"}, ("TOOL_PATTERN",)),
    "grep": _Tool(
        _INSIDE + _GREP,
        {
            **_PATHS,
            "pattern": "TOOL_PATTERN",
            "include": "TOOL_INCLUDE",
            "glob": "TOOL_INCLUDE",
        },
        ("TOOL_PATTERN",),
    ),
}
_COMMAND = ("command", "cmd", "script")
_EXCLUDED = ("agent", "instructions", "loop", "include", "contextFiles", "model")
_REFERENCE = re.compile(
    r"""steps(?:\.(?P<dotted>[A-Za-z][\w-]*)|\[(?P<q>["'])(?P<quoted>[A-Za-z][\w-]*)(?P=q)\])
    \.(?:(?P<content>content)|result(?:\.(?P<field>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*))?)""",
    re.VERBOSE,
)
_ITEM = re.compile(r"(?P<of>item|index|iteration)(?:\.(?P<field>[A-Za-z_]\w*(?:\.\w+)*))?")


# -- rules -----------------------------------------------------------------------------------------


def tool_steps(document: Document, tree: ZenflowOutline) -> Iterator[Diagnostic]:
    """All that is wrong with the steps of a workflow that use a tool."""
    for step in tree.steps:
        if step.has("tool"):
            yield from _tool_step(document, step)
        elif step.has("toolInput"):
            message = "toolInput needs tool, the name of the tool that it is for"
            place = (*step.path, "toolInput")
            yield document.error("tool-input-alone", message, at=place, on_key=True)


def _tool_step(document: Document, step: StepEntry) -> Iterator[Diagnostic]:
    for key in _EXCLUDED:
        if step.has(key):
            message = f"tool and {key} exclude each other"
            yield document.error("tool-has-other", message, at=(*step.path, key), on_key=True)
    name = step.value["tool"]
    if not isinstance(name, str):
        return
    given, place = mapping(step.value.get("toolInput")), (*step.path, "toolInput")
    for key, value in given.items():
        yield from _input(document, step, (*place, key), value)
    family = family_of(name)
    if family is not None and family.name == "bash":
        yield from _command(document, place, given)
    elif family is None or family.name not in _TOOLS:
        message = f"there is no tool {name[:60]!r} for steps here: the step will fail"
        known = ("bash", *_TOOLS)
        hint = did_you_mean(name, known) or f"known: {', '.join(known)}"
        yield document.warning("unknown-tool", message, at=(*step.path, "tool"), hint=hint)
    else:
        yield from _inputs_of(document, step, name, _TOOLS[family.name], given)


def _inputs_of(
    document: Document, step: StepEntry, name: str, tool: _Tool, given: dict[str, object]
) -> Iterator[Diagnostic]:
    """Inputs that a tool does not have, and those that it needs."""
    has = {tool.inputs[key] for key in given if key in tool.inputs}
    for key in given:
        if key not in tool.inputs:
            message = f"{name} has no input {key[:60]!r}: it has no effect"
            yield document.warning("ignored-field", message, at=(*step.path, "toolInput", key))
    for variable in tool.needed:
        if variable not in has:
            names = " or ".join(key for key, value in tool.inputs.items() if value == variable)
            message = f"{name} needs the input {names}"
            yield document.error("missing-tool-input", message, at=(*step.path, "tool"))


def _command(document: Document, place: Path, given: dict[str, object]) -> Iterator[Diagnostic]:
    found = [key for key in _COMMAND if key in given]
    if not found:
        message = "bash needs the input command"
        yield document.error("missing-tool-input", message, at=place)
        return
    value = given[found[0]]
    if isinstance(value, str) and _is_computed(value):
        message = "a command cannot be computed: text of an agent would run in a shell"
        hint = "write the command here, and let it read a file that a step has written"
        yield document.error("computed-command", message, at=(*place, found[0]), hint=hint)


def _input(document: Document, step: StepEntry, place: Path, value: object) -> Iterator[Diagnostic]:
    if not isinstance(value, str) or not _is_computed(value):
        return
    found = _REFERENCE.fullmatch(value[1:].strip())
    if found is None:
        if _ITEM.fullmatch(value[1:].strip()) is None:
            message = f"{value[:60]!r} cannot be passed to a tool"
            hint = 'write $steps["ID"].content, $steps["ID"].result.FIELD or $item; $$ is a dollar'
            yield document.error("tool-input", message, at=place, hint=hint)
        return
    name = found["dotted"] or found["quoted"]
    before = ended_before(step, step.graph.by_id)
    around = step.graph.around
    while around is not None:
        before |= ended_before(around, around.graph.by_id)
        around = around.graph.around
    if name not in before:
        message = f"step {name[:60]!r} has not ended before this one"
        yield document.error("tool-input", message, at=place, hint=f"add dependsOn: [{name}]")


def _is_computed(value: str) -> bool:
    return value.startswith("$") and not value.startswith("$$")


# -- the way to the plan ---------------------------------------------------------------------------


def lower_tool(name: str, given: dict[str, JsonValue], timeout_ms: int | None) -> RunScript:
    """The script that does what the tool would do."""
    wall = timeout_ms or TIMEOUT_MS
    family = family_of(name)
    if family is not None and family.name == "bash":
        command = next((str(given[key]) for key in _COMMAND if key in given), "")
        return RunScript(text=_plain(command), timeout_ms=wall)
    tool = _TOOLS.get(family.name) if family is not None else None
    if tool is None:
        words = f"there is no tool {name[:60]} for steps here"
        return RunScript(
            text='printf "%s\\n" "$TOOL_PROBLEM" >&2; exit 1',
            timeout_ms=wall,
            env={"TOOL_PROBLEM": literal(words)},
        )
    env = {tool.inputs[key]: _value(given[key]) for key in given if key in tool.inputs}
    return RunScript(text=tool.script, timeout_ms=wall, env=env)


def _value(value: JsonValue) -> Template:
    """A value of an input: a reference, or what was written."""
    if not isinstance(value, str):
        return (Lit(text="" if value is None else str(value)),)
    if not _is_computed(value):
        return literal(_plain(value))
    found = _REFERENCE.fullmatch(value[1:].strip())
    if found is not None:
        name = found["dotted"] or found["quoted"]
        if found["content"]:
            return (Ref(of="output", name=name),)
        return (Ref(of="result", name=name, field=found["field"]),)
    item = _ITEM.fullmatch(value[1:].strip())
    assert item is not None, "it was checked"
    of: dict[str, Template] = {
        "item": (Ref(of="item", field=item["field"]),),
        "index": (Ref(of="index"),),
        "iteration": (Ref(of="iteration"),),
    }
    return of[item["of"]]


def _plain(value: str) -> str:
    """A text as it was meant: two dollars at its beginning are one."""
    return value[1:] if value.startswith("$$") else value
