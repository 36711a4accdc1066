"""Which word of each dialect is supported, ignored or refused, and which corpus file shows it.

The corpora under `tests/corpus` are the contract; this page is read off them and off the schemas.
A word that no file shows is told as such, so that the page cannot promise more than is tested.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from loopwright.errors import DefinitionError
from loopwright.operations.dialects import NAMES, dialect, read_definition
from loopwright.syntax.document import Diagnostic
from loopwright.syntax.readers import read

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "tests" / "corpus"
HEADER = "<!-- Generated. Do not edit: run `make docs` (`python scripts/reference.py`). -->"
INTRO = """\
# What is supported of each dialect

{header}

This page is derived from the files under `tests/corpus`, which specify each dialect: a test checks
that every valid file results in its plan and every invalid file in its diagnostics. *Supported*
keys work as documented. *Ignored* keys have no effect and cause a warning. *Refused* keys are an
error, because the engine cannot do what they request. A key can be supported in one mapping and
refused in another. Each cell names an example file.
"""
REFUSED = frozenset({"unsupported-here", "not-available"})
IGNORED = frozenset({"ignored-field", "ignored-here"})
_KEY = re.compile(r"([A-Za-z_$][\w$-]*)[\"']?\s*:")
_ROOT = "top"


@dataclass(slots=True)
class Shown:
    """The files that show a word, by what becomes of it."""

    supported: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def support_page() -> str:
    """The whole page."""
    parts = [INTRO.format(header=HEADER)]
    for name in NAMES:
        parts += [f"## {name}", "", *_tables(name), ""]
    return "\n".join(parts)


def _tables(name: str) -> Iterator[str]:
    schema = Schema(dialect(name).json_schema())
    found: dict[tuple[str, str], Shown] = {word: Shown() for word in schema.words()}
    for path in _files(name):
        for used, state in _told(name, path, schema):
            files = getattr(found.setdefault(used, Shown()), state)
            files.append(path.relative_to(CORPUS).as_posix())
    yield "| key | in | supported | ignored | refused |"
    yield "|---|---|---|---|---|"
    for (place, word), shown in found.items():
        yield _row(word, place, shown)


def _row(word: str, place: str, shown: Shown) -> str:
    cells = [
        f"`{files[0]}`" if files else ""
        for files in (shown.supported, shown.ignored, shown.refused)
    ]
    if not any(cells):
        cells[0] = "yes, without an example file"
    return f"| `{word}` | {place} | {' | '.join(cells)} |"


def _files(name: str) -> Iterator[Path]:
    for kind in ("valid", "invalid"):
        for path in sorted((CORPUS / name / kind).iterdir()):
            if path.suffix in (".yaml", ".json") and not path.name.endswith(".plan.json"):
                yield path


def _told(name: str, path: Path, schema: Schema) -> Iterator[tuple[tuple[str, str], str]]:
    """What a file of the corpus says about the words that it uses."""
    data, findings = path.read_bytes(), _findings(name, path)
    document, _ = read(data, file=path.name)
    if document is None:
        return
    marked: set[tuple[str, str]] = set()
    used = list(schema.used(document.value))
    for finding in findings:
        state = "refused" if finding.code in REFUSED else "ignored"
        if finding.code not in REFUSED | IGNORED:
            continue
        here = finding.line, finding.column
        hits = [u for u in used if here in (document.key_at(u.path), document.at(u.path))]
        word = hits[-1].name if hits else ("", _word_at(data, finding))
        marked.add(word)
        yield word, state
    if path.parent.name == "valid":
        yield from ((word, "supported") for word in {u.name: 0 for u in used} if word not in marked)


def _findings(name: str, path: Path) -> list[Diagnostic]:
    try:
        return list(read_definition(path, force=name).warnings)
    except DefinitionError as error:
        return [one for one in error.problems if isinstance(one, Diagnostic)]


def _word_at(data: bytes, finding: Diagnostic) -> str:
    """The key that a finding points at, or the one whose value it points at."""
    line = data.decode(errors="replace").splitlines()[finding.line - 1]
    keys = [match for match in _KEY.finditer(line) if match.start() < finding.column]
    return keys[-1][1] if keys else line[finding.column - 1 :].partition(":")[0].strip()


class Used(NamedTuple):
    """A word as a document uses it: the mapping it belongs to, the word, and where it stands."""

    name: tuple[str, str]
    path: tuple[str | int, ...]


class Schema:
    """A JSON Schema by the words that it knows, each with the mapping that it stands in."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._parts: Mapping[str, Any] = root.get("definitions") or root.get("$defs") or {}

    def words(self) -> list[tuple[str, str]]:
        """Every word of the language, in the order of the schema."""
        listed = [(_ROOT, word) for word in self._root.get("properties", {})]
        for name, part in self._parts.items():
            listed += [(name, word) for word in part.get("properties", {})]
        return listed

    def used(self, value: object) -> Iterator[Used]:
        """Every word that a document uses."""
        yield from self._walk(value, _ROOT, self._root, ())

    def _walk(
        self, value: object, place: str, schema: Mapping[str, Any], path: tuple[str | int, ...]
    ) -> Iterator[Used]:
        for name, part in self._choices(place, schema):
            items = part.get("items")
            if isinstance(value, list) and isinstance(items, Mapping):
                for number, one in enumerate(value):
                    yield from self._walk(one, name, items, (*path, number))
            elif isinstance(value, dict):
                yield from self._mapping(value, name, part, path)

    def _mapping(
        self,
        value: dict[str, Any],
        place: str,
        part: Mapping[str, Any],
        path: tuple[str | int, ...],
    ) -> Iterator[Used]:
        known = part.get("properties", {})
        others = [*part.get("patternProperties", {}).values(), part.get("additionalProperties")]
        for key, inner in value.items():
            if key in known:
                yield Used((place, key), (*path, key))
                yield from self._walk(inner, place, known[key], (*path, key))
                continue
            for other in others:
                if isinstance(other, Mapping):
                    yield from self._walk(inner, place, other, (*path, key))

    def _choices(
        self, place: str, schema: Mapping[str, Any]
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The schemas that a value may fit: itself, what it refers to, each alternative."""
        reference = schema.get("$ref")
        if isinstance(reference, str):
            name = reference.rpartition("/")[2]
            yield from self._choices(name, self._parts.get(name, {}))
            return
        yield place, schema
        for word in ("anyOf", "oneOf", "allOf"):
            for one in schema.get(word, ()):
                if isinstance(one, Mapping):
                    yield from self._choices(place, one)
