"""An agent with all that belongs to it: its prompt, its schema, and the agents it is made of.

Nothing is read here. What is not among the files that were handed in is asked for, and whoever
holds the disk comes back with it. Each use of an agent is a unit of its own, so a tree of units is
the tree of what will run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from loopwright.dialects.aldo.files import MAX_FILE_BYTES, Files, Path, Wanted
from loopwright.dialects.aldo.prompts import as_text, filled
from loopwright.dialects.aldo.rules import structure
from loopwright.dialects.aldo.surface import AgentSpec
from loopwright.model.record import JsonValue
from loopwright.syntax import Diagnostic, Document, did_you_mean, read, validate
from loopwright.syntax.fields import ref_loop

MAX_DEPTH = 5
MAX_AGENTS = 100


@dataclass(slots=True, eq=False)
class Unit:
    """One use of an agent; `children` are its subagents in their order, then its aggregator."""

    document: Document
    spec: AgentSpec
    system: str = ""
    schema: dict[str, JsonValue] | None = None
    children: list["Unit"] = field(default_factory=list)


@dataclass(slots=True)
class Loader:
    """Puts units together from the files that are there, and notes those that are not."""

    files: Files
    file: str
    wanted: dict[str, Wanted] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)
    _count: int = 0

    def load(self, document: Document) -> Unit | None:
        """The unit of a document, as far as it can be made."""
        spec, problems = validate(AgentSpec, document)
        self.problems += [*problems, *structure(document)]
        self._count += 1
        if spec is None:
            return None
        unit = Unit(document, spec)
        self._open.append(spec.identity.name)
        self._prompt(unit)
        self._schema(unit)
        self._children(unit)
        self._open.pop()
        return unit

    # -- texts -------------------------------------------------------------------------------------

    def _prompt(self, unit: Unit) -> None:
        prompt = unit.spec.prompt
        values = {name: as_text(value) for name, value in prompt.variables.items()}
        parts = {
            name: self._filled(unit, ("prompt", "templates", name), path, values)
            for name, path in prompt.templates.items()
        }
        unit.system = self._filled(
            unit, ("prompt", "system_file"), prompt.system_file, values | parts
        )

    def _filled(self, unit: Unit, at: Path, path: str, values: Mapping[str, str]) -> str:
        text, missing = filled(self._text(unit, at, path) or "", values)
        for one in missing:
            message = f"{path}:{one.line}: nothing is known of {{{{{one.name}}}}}"
            self._note(unit, "unknown-reference", message, at, one.hint)
        return text

    def _schema(self, unit: Unit) -> None:
        path = unit.spec.model_policy.decoding.json_schema_ref
        if path is None:
            return
        at = ("model_policy", "decoding", "json_schema_ref")
        data = self._file(unit, at, path, "schema")
        if data is None:
            return
        document, problems = read(data, file=self._shown(path), limit=MAX_FILE_BYTES)
        self.problems += problems
        if document is None:
            return
        if isinstance(document.value, dict):
            unit.schema = document.value
            circle = ref_loop(document.value)
            if circle is not None:
                self._note(unit, "ref-loop", f"{path}: $ref {circle} leads back to itself", at)
        else:
            self._note(unit, "bad-schema", f"{path} is no JSON Schema: it must be a mapping", at)

    def _text(self, unit: Unit, at: Path, path: str) -> str | None:
        data = self._file(unit, at, path, "text")
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

    def _file(
        self, unit: Unit, at: Path, path: str, kind: Literal["text", "schema", "agent"]
    ) -> bytes | None:
        data = self.files.get(path)
        if isinstance(data, bytes):
            if len(data) <= MAX_FILE_BYTES:
                return data
            message = f"{path} has {len(data):,} bytes; at most {MAX_FILE_BYTES:,} are read"
            self._note(unit, "too-large", message, at)
        elif data is not None:
            self._note(unit, data.code, f"{path}: {data.message}", at)
        else:
            self.wanted.setdefault(path, Wanted(path, unit.document.at(at), kind))
            self._note(unit, "missing-file", f"there is no file {path}", at)
        return None

    # -- agents ------------------------------------------------------------------------------------

    def _children(self, unit: Unit) -> None:
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

    def _child(self, unit: Unit, at: Path, name: str) -> Unit | None:
        if name in self._open:
            trail = " → ".join([*self._open[self._open.index(name) :], name])
            self._note(unit, "cycle", f"agents that are made of one another: {trail}", at)
            return None
        if self._count >= MAX_AGENTS:
            self._note(unit, "too-many-agents", f"more than {MAX_AGENTS} agents in all", at)
            return None
        path = f"{name}.yaml"
        data = self._file(unit, at, path, "agent")
        if data is None:
            return None
        document, problems = read(data, file=self._shown(path), limit=MAX_FILE_BYTES)
        self.problems += problems
        child = self.load(document) if document is not None else None
        if child is not None and child.spec.identity.name != name:
            own = child.spec.identity.name
            message = f"{path} describes {own}, not {name}"
            hint = did_you_mean(name, [own]) or "a file has the name of its agent"
            self._note(unit, "unknown-agent", message, at, hint)
        return child

    def _shown(self, path: str) -> str:
        folder = self.file.rpartition("/")[0]
        return f"{folder}/{path}" if folder else path

    def _note(self, unit: Unit, code: str, message: str, at: Path, hint: str | None = None) -> None:
        self.problems.append(unit.document.error(code, message, at=at, hint=hint))
