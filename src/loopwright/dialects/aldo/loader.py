r"""An agent with everything that belongs to it: its prompt, its schema and its subagents.

Nothing is read here. Files that were not passed in are requested (`requested_files`), and the
caller reads them. Each use of an agent is a separate unit, so a tree of units is the tree of what
will run.

An agent is searched for by its name: next to the first file, in the folders below it, then in the
folders next to it. Paths of its prompt and its schema are relative to its own folder. An agent
without its prompt file runs with its description, and an agent without its schema file runs without
that check; both cause a warning.

In a system prompt `{{name}}` is replaced by a variable or by another file, and `\{{` is two braces.
A place without a value is unchanged. Inserted text is not searched again, except that a template
may contain variables itself.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from loopwright.dialects.aldo.files import (
    AROUND,
    HERE,
    MAX_FILE_BYTES,
    AldoFileRequest,
    Files,
    Kind,
    Path,
    folder_of,
    folders_in,
)
from loopwright.dialects.aldo.rules import structure
from loopwright.dialects.aldo.surface import OUTPUTS, AldoAgent
from loopwright.model.record import JsonValue
from loopwright.syntax.document import Diagnostic, Document, did_you_mean
from loopwright.syntax.notations import path_inside
from loopwright.syntax.readers import read
from loopwright.syntax.validation import ref_loop, validate

_PLACE = re.compile(r"\\\{\{|\{\{\s*(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)\s*\}\}")


class UnfilledPlace(NamedTuple):
    """A place without a value: its name, its line in the text, and similar names."""

    name: str
    line: int
    hint: str


def fill_places(text: str, values: Mapping[str, str]) -> tuple[str, list[UnfilledPlace]]:
    """The text with all places filled, and those that could not be."""
    missing: list[UnfilledPlace] = []

    def one(found: "re.Match[str]") -> str:
        name = found["name"]
        if name is None:
            return "{{"
        if name not in values:
            hint = did_you_mean(name, values) or f"write it under variables, or \\{{{{{name}}}}}"
            missing.append(UnfilledPlace(name, text.count("\n", 0, found.start()) + 1, hint))
        return values.get(name, found[0])

    return _PLACE.sub(one, text), missing


def as_text(value: object) -> str:
    """A variable as text; a truth value in the form of YAML, a list as JSON."""
    if value is None:
        return ""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value).lower() if isinstance(value, bool) else str(value)


ABSENT = "cannot-read"
LEADS_OUT = "outside-workspace"  # a folder that is a link, which was not named explicitly
MAX_DEPTH = 5
MAX_AGENTS = 100


@dataclass(slots=True, eq=False)
class AldoUnit:
    """One use of an agent; `children` are its subagents in their order, then its aggregator."""

    document: Document
    spec: AldoAgent
    system: str = ""
    schema: dict[str, JsonValue] | None = None
    children: list["AldoUnit"] = field(default_factory=list)
    folder: str = ""  # that paths in it count from


class _Found(NamedTuple):
    """An agent's file, and other files of the same name."""

    path: str
    data: bytes
    others: tuple[str, ...]


@dataclass(slots=True)
class AldoLoader:
    """Puts units together from the files that are there, and notes those that are not."""

    files: Files
    file: str
    requests: dict[str, AldoFileRequest] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)
    _count: int = 0

    def load(self, document: Document, folder: str = "") -> AldoUnit | None:
        """The unit of a document, as far as it can be made; `folder` is that of its file."""
        spec, problems = validate(AldoAgent, document)
        self.problems += [*problems, *structure(document)]
        self._count += 1
        if spec is None:
            return None
        unit = AldoUnit(document, spec, folder=folder)
        self._open.append(spec.identity.name)
        self._prompt(unit)
        self._schema(unit)
        self._children(unit)
        self._open.pop()
        return unit

    # -- texts -------------------------------------------------------------------------------------

    def _prompt(self, unit: AldoUnit) -> None:
        prompt = unit.spec.prompt
        values = {name: as_text(value) for name, value in prompt.variables.items()}
        parts = {
            name: self._filled(unit, ("prompt", "templates", name), path, values)
            for name, path in prompt.templates.items()
        }
        at: Path = ("prompt", "system_file")
        unit.system = self._filled(unit, at, prompt.system_file, values | parts)
        if not unit.system:
            identity = unit.spec.identity
            unit.system = f"You are {identity.name}. {identity.description.strip()}"

    def _filled(self, unit: AldoUnit, at: Path, path: str, values: Mapping[str, str]) -> str:
        text, missing = fill_places(self._text(unit, at, path) or "", values)
        for one in missing:
            message = f"{path}:{one.line}: {{{{{one.name}}}}} has no value and stays as it is"
            self._warn(unit, "unknown-reference", message, at, one.hint)
        return text

    def _schema(self, unit: AldoUnit) -> None:
        at: Path = ("model_policy", "decoding", "json_schema_ref")
        written = unit.spec.model_policy.decoding.json_schema_ref
        path = written
        if written is not None and written.startswith(OUTPUTS):
            at, path = self._output_schema(unit, written.removeprefix(OUTPUTS))
        if path is None:
            return
        data = self._file(unit, at, f"{unit.folder}{path}", "schema")
        if data is None:
            return
        shown = self._shown(path)
        document, problems = read(data, file=shown, limit=MAX_FILE_BYTES, merge_keys=True)
        self.problems += problems
        if document is not None:
            self._read_schema(unit, at, path, document.value)

    def _output_schema(self, unit: AldoUnit, name: str) -> tuple[Path, str | None]:
        """The file of an answer's schema; one that is written out is taken at once."""
        at: Path = ("outputs", name, "json_schema")
        output = unit.spec.outputs.get(name)
        if output is None:
            message = f"there is no output {name}"
            hint = did_you_mean(name, unit.spec.outputs)
            place = ("model_policy", "decoding", "json_schema_ref")
            self._note(unit, "unknown-reference", message, place, hint)
            return at, None
        schema = output.json_schema if output.json_schema is not None else output.json_schema_ref
        if isinstance(schema, dict) and set(schema) == {"$ref"} and isinstance(schema["$ref"], str):
            schema = schema["$ref"]
        if isinstance(schema, dict):
            self._read_schema(unit, at, f"outputs.{name}", schema)
            return at, None
        path = path_inside("", schema) if isinstance(schema, str) else None
        if path is None and schema is not None:
            self._note(
                unit, "bad-schema", f"outputs.{name} names no file and is not a JSON Schema", at
            )
        return at, path

    def _read_schema(self, unit: AldoUnit, at: Path, what: str, schema: JsonValue) -> None:
        if not isinstance(schema, dict):
            self._note(unit, "bad-schema", f"{what} is not a JSON Schema: it must be a mapping", at)
            return
        unit.schema = schema
        circle = ref_loop(schema)
        if circle is not None:
            self._note(unit, "ref-loop", f"{what}: $ref {circle} leads back to itself", at)

    def _text(self, unit: AldoUnit, at: Path, path: str) -> str | None:
        data = self._file(unit, at, f"{unit.folder}{path}", "text")
        if data is None:
            return None
        try:
            text = data.decode("utf-8-sig").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            self._note(unit, "encoding", f"{path} is not UTF-8 at byte offset {error.start}", at)
            return None
        if "\x00" in text or not text.strip():
            problem = "holds a NUL" if text.strip() else "is empty"
            self._note(unit, "bad-value", f"{path} {problem}", at)
            return None
        return text

    def _file(self, unit: AldoUnit, at: Path, path: str, kind: Kind) -> bytes | None:
        data = self.files.get(path)
        if isinstance(data, bytes):
            if len(data) <= MAX_FILE_BYTES:
                return data
            message = (
                f"{_written(path)} has {len(data):,} bytes; at most {MAX_FILE_BYTES:,} are read"
            )
            self._note(unit, "too-large", message, at)
        elif data is not None and data.code != ABSENT:
            self._note(unit, data.code, f"{_written(path)}: {data.message}", at)
        else:
            if data is None:
                self.requests.setdefault(path, AldoFileRequest(path, unit.document.at(at), kind))
            instead = "the description of the agent is its prompt"
            if kind == "schema":
                instead = "the answer is not checked against it"
            elif "templates" in at:
                instead = "its place in the prompt stays empty"
            message = f"{_written(path)} is missing: {instead}"
            self._warn(unit, "missing-file", message, at)
        return None

    # -- agents ------------------------------------------------------------------------------------

    def _children(self, unit: AldoUnit) -> None:
        composite = unit.spec.composite
        if composite is None:
            return
        if len(self._open) > MAX_DEPTH:
            message = f"agents are nested more than {MAX_DEPTH} deep: {' → '.join(self._open)}"
            self._note(unit, "too-nested", message, ("composite",))
            return
        named: list[tuple[Path, str]] = [
            (("composite", "subagents", number, "agent"), one.agent)
            for number, one in enumerate(composite.subagents)
        ]
        if composite.aggregator is not None:
            named.append((("composite", "aggregator"), composite.aggregator))
        for at, name in named:
            child = self._child(unit, at, name)
            unit.children += [child] if child is not None else []

    def _child(self, unit: AldoUnit, at: Path, name: str) -> AldoUnit | None:
        if name in self._open:
            trail = " → ".join([*self._open[self._open.index(name) :], name])
            self._note(unit, "cycle", f"agents that are made of one another: {trail}", at)
            return None
        if self._count >= MAX_AGENTS:
            self._note(unit, "too-many-agents", f"more than {MAX_AGENTS} agents in all", at)
            return None
        found = self._find(unit, at, name)
        if found is None:
            return None
        for other in found.others:
            message = f"{_written(found.path)} is used; {_written(other)} has the same name"
            self._warn(unit, "unknown-agent", message, at)
        shown = self._shown(found.path)
        document, problems = read(found.data, file=shown, limit=MAX_FILE_BYTES, merge_keys=True)
        self.problems += problems
        child = self.load(document, folder_of(found.path)) if document is not None else None
        if child is not None and child.spec.identity.name != name:
            own = child.spec.identity.name
            message = f"{_written(found.path)} describes {own}, not {name}"
            hint = did_you_mean(name, [own]) or "a file has the name of its agent"
            self._note(unit, "unknown-agent", message, at, hint)
        return child

    def _find(self, unit: AldoUnit, at: Path, name: str) -> _Found | None:
        """The file of an agent. Folders are looked into only when it is not beside the first."""
        found = self._named(unit, at, name, [""])
        if found is None and self._are_known(name, [""]):
            below = self._folders(unit, at, HERE, "")
            beside = self._folders(unit, at, AROUND, f"{AROUND}/")
            found = self._named(unit, at, name, [*below, *beside])
        if found is None:
            where = "beside it, in a folder below it or in one beside it"
            message = f"there is no agent {name}: no file {name}.yaml {where}"
            self._note(unit, "missing-file", message, at)
        return found

    def _named(self, unit: AldoUnit, at: Path, name: str, folders: list[str]) -> _Found | None:
        there: list[tuple[str, bytes]] = []
        for folder in folders:
            for path in (f"{folder}{name}.yaml", f"{folder}{name}.yml"):
                data = self.files.get(path)
                if isinstance(data, bytes):
                    there.append((path, data))
                elif data is None:
                    self.requests.setdefault(
                        path, AldoFileRequest(path, unit.document.at(at), "agent")
                    )
                elif data.code != ABSENT and (not folder or data.code != LEADS_OUT):
                    self._note(unit, data.code, f"{_written(path)}: {data.message}", at)
        if not there:
            return None
        (path, first), *others = there
        same = tuple(other for other, data in others if data != first)
        return _Found(path, first, same)

    def _are_known(self, name: str, folders: list[str]) -> bool:
        """Whether it is known that there is no such file in these folders."""
        paths = [f"{folder}{name}{end}" for folder in folders for end in (".yaml", ".yml")]
        return all(path in self.files for path in paths)

    def _folders(self, unit: AldoUnit, at: Path, listed: str, begins: str) -> list[str]:
        names = self.files.get(listed)
        if names is None:
            self.requests.setdefault(listed, AldoFileRequest(listed, unit.document.at(at), "names"))
        if not isinstance(names, bytes):
            return []
        return [f"{begins}{one}/" for one in folders_in(names.decode(errors="replace"))]

    def _shown(self, path: str) -> str:
        folder = self.file.rpartition("/")[0]
        return f"{folder}/{_written(path)}" if folder else _written(path)

    def _note(
        self, unit: AldoUnit, code: str, message: str, at: Path, hint: str | None = None
    ) -> None:
        self.problems.append(unit.document.error(code, message, at=at, hint=hint))

    def _warn(
        self, unit: AldoUnit, code: str, message: str, at: Path, hint: str | None = None
    ) -> None:
        self.problems.append(unit.document.warning(code, message, at=at, hint=hint))


def _written(path: str) -> str:
    """A path as people write it."""
    return f"..{path[len(AROUND) :]}" if path.startswith(f"{AROUND}/") else path
