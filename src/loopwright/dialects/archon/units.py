"""Workflows that a workflow runs, and those that these run: each place where one is named is a unit
of its own, with the file that it leads to.

One file may stand in several units, since what it may read depends on where it is run from.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from loopwright.dialects.archon import files as named
from loopwright.dialects.archon.files import Files, FoundText
from loopwright.dialects.archon.outline import (
    CALLS,
    NodeAt,
    Outline,
    Path,
    given_inputs,
    item_name,
    named_files,
    outline,
)
from loopwright.dialects.archon.surface import Workflow
from loopwright.syntax.diagnostic import Diagnostic
from loopwright.syntax.document import Document
from loopwright.syntax.reading import read
from loopwright.syntax.validation import validate

MAX_DEPTH = 5
MAX_UNITS = 100
_FOLDER = f"{named.PROJECT_FOLDER}/workflows/"


@dataclass(slots=True, eq=False)
class Unit:
    """A workflow where it is run."""

    document: Document
    made: Outline
    trail: tuple[str, ...]  # the names of the workflows on the way to it, and its own
    flow: Workflow | None = None
    below: dict[Path, "Unit"] = field(default_factory=dict)  # by the node that runs it

    def calls(self) -> Iterator[NodeAt]:
        """Every node that runs a workflow whose file has been read."""
        return (node for node in self.made.nodes if node.path in self.below)

    def all_below(self) -> Iterator["Unit"]:
        """Every unit that it leads to."""
        for unit in self.below.values():
            yield unit
            yield from unit.all_below()


class _Reading(NamedTuple):
    """What is left of reading a file: the document, what it says, what is wrong with it."""

    document: Document | None
    flow: Workflow | None
    problems: list[Diagnostic]


@dataclass(slots=True)
class Units:
    """Follows the names of workflows, as far as their files are there."""

    files: Files
    problems: list[Diagnostic] = field(default_factory=list)
    all: list[Unit] = field(default_factory=list)
    _read: dict[str, _Reading] = field(default_factory=dict)

    def root(self, document: Document) -> Unit:
        """The unit of the workflow itself, with all that it leads to."""
        flow, problems = validate(Workflow, document)
        self.problems += problems
        unit = Unit(document, outline(document.value), (_own_name(document.file),), flow)
        self._follow(unit)
        return unit

    def _follow(self, unit: Unit) -> None:
        self.all.append(unit)
        for node in unit.made.nodes:
            key = next((one for one in CALLS if one in node.value), "")
            name = node.value.get(key)
            found = self._found(node, unit.made)
            if found is None or not isinstance(name, str):
                continue
            trail = (*unit.trail, _stem(name))
            refused = self._refused(unit, node, key, trail)
            if refused is not None:
                self.problems.append(refused)
                continue
            reading = self._reading(found)
            if reading.document is not None:
                folder = f"{found.path.rpartition('/')[0]}/"
                value = reading.document.value
                made = outline(value, item_name(node), folder, given_inputs(node))
                below = Unit(reading.document, made, trail, reading.flow)
                unit.below[node.path] = below
                self._follow(below)

    def _found(self, node: NodeAt, made: Outline) -> FoundText | None:
        names = [name for _, name in named_files(node, made) if name.what == "workflow"]
        found = [named.find(name, self.files) for name in names]
        return next((one for one in found if isinstance(one, FoundText)), None)

    def _refused(
        self, unit: Unit, node: NodeAt, key: str, trail: tuple[str, ...]
    ) -> Diagnostic | None:
        """Why a workflow is not followed."""
        at = (*node.path, key)
        if trail[-1] in unit.trail:
            circle = trail[trail.index(trail[-1]) :]
            message = f"workflows run one another: {' → '.join(circle)}"
            hint = "let one of them do its work itself, in a loop_group"
            return unit.document.error("workflow-cycle", message, at=at, hint=hint)
        if len(trail) - 1 > MAX_DEPTH:
            message = f"workflows run one another more than {MAX_DEPTH} deep: {' → '.join(trail)}"
            return unit.document.error("too-nested", message, at=at)
        if len(self.all) > MAX_UNITS:
            message = f"more than {MAX_UNITS} workflows are run"
            hint = "run one of them for each item of a list: fan_out"
            return unit.document.error("too-many-workflows", message, at=at, hint=hint)
        return None

    def _reading(self, found: FoundText) -> _Reading:
        """The document of a file; what is wrong with it is told once."""
        if found.path not in self._read:
            shown = named.shown_path(found.path)
            document, problems = read(found.text.encode(), file=shown)
            flow = None
            if document is not None:
                flow, wrong = validate(Workflow, document)
                problems = [*problems, *wrong]
            self.problems += problems
            self._read[found.path] = _Reading(document, flow, problems)
        return self._read[found.path]


def _stem(name: str) -> str:
    return name.removesuffix(".yaml").removesuffix(".yml")


def _own_name(file: str) -> str:
    """The name by which others run this workflow, if they can; else one that no workflow has."""
    folder, slash, name = file.replace("\\", "/").rpartition("/")
    return _stem(name) if f"{folder}{slash}".endswith(_FOLDER) else f"./{name}"
