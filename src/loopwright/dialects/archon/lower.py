"""From a workflow to the plan: every default filled in, every variable in its place."""

from collections.abc import Iterator
from types import MappingProxyType

from loopwright.dialects.archon import files as named
from loopwright.dialects.archon.agents import Agents
from loopwright.dialects.archon.calls import calls
from loopwright.dialects.archon.files import Files, Wanted
from loopwright.dialects.archon.graph import graphs
from loopwright.dialects.archon.keys import unused
from loopwright.dialects.archon.nodes import Lowering
from loopwright.dialects.archon.outline import Outline, named_files
from loopwright.dialects.archon.recognise import NAME
from loopwright.dialects.archon.references import env_names, references
from loopwright.dialects.archon.rules import structure
from loopwright.dialects.archon.surface import InputSpec, Workflow
from loopwright.dialects.archon.units import Unit, Units
from loopwright.model.plan import Input, Plan
from loopwright.model.policy import NO_WORKSPACE_POLICY as SHARED
from loopwright.model.policy import WorkspacePolicy
from loopwright.syntax import Diagnostic, Document
from loopwright.syntax.diagnostic import MAX_PROBLEMS

_NO_FILES: Files = MappingProxyType({})
WORKTREE = WorkspacePolicy(worktree=True)
_SETTINGS = {"artifacts": "", "base_branch": "", "docs_dir": "docs/"}
_CONTEXT = Input(description="Text of the issue or pull request", required=False, default="")


def wanted(document: Document, files: Files = _NO_FILES) -> list[Wanted]:
    """The files that this workflow asks for and that are not there yet."""
    units = Units(files)
    units.root(document)
    found = {
        one.path: one
        for unit in units.all
        for node in unit.made.nodes
        for path, name in named_files(node)
        for one in named.missing(name, files, unit.document.at(path))
    }
    return list(found.values())


def lower(document: Document, files: Files = _NO_FILES) -> tuple[Plan | None, list[Diagnostic]]:
    """The plan, or all that is wrong; a plan may come with warnings."""
    units = Units(files)
    root = units.root(document)
    problems = units.problems + [one for unit in units.all for one in _problems(unit, files)]
    if any(one.code == "old-workflow" for one in problems):
        problems = [one for one in problems if one.message != "nodes is required"]
    problems = sorted(set(problems), key=_order)[:MAX_PROBLEMS]
    if root.flow is None or any(one.severity == "error" for one in problems):
        return None, problems
    return _plan(root.flow, root, files), problems


def _problems(unit: Unit, files: Files) -> Iterator[Diagnostic]:
    """All that is wrong between the parts of one workflow."""
    document, made = unit.document, unit.made
    yield from structure(document, made)
    yield from unused(document, made)
    yield from graphs(document, made)
    yield from references(document, made, files)
    yield from calls(unit)
    yield from _missing(document, made, files)


def _order(one: Diagnostic) -> tuple[str, int, int, str, str]:
    return one.file, one.line, one.column, one.code, one.message


def _missing(document: Document, made: Outline, files: Files) -> list[Diagnostic]:
    problems = []
    for node in made.nodes:
        for path, name in named_files(node):
            found = named.find(name, files)
            if isinstance(found, named.NotFound):
                one = document.error(found.code, found.message, at=path, hint=found.hint)
                problems.append(one)
    return problems


def _plan(flow: Workflow, root: Unit, files: Files) -> Plan:
    agents = Agents(flow)
    lowering = Lowering(agents=agents, names=env_names(root.made), files=files, unit=root)
    steps = lowering.steps(flow.nodes, ("nodes",))
    inputs = {name: _input(one) for name, one in flow.inputs.items()}
    if "context" in lowering.uses.inputs:
        inputs.setdefault("context", _CONTEXT)
    return Plan(
        name=flow.name,
        description=flow.description,
        steps=steps,
        agents=agents.made,
        inputs=inputs,
        on_failure="skip",
        outcome="some_completed",
        output="sink",
        missing="fail",
        exclusive="workspace" if any(map(_mutates, (root, *root.all_below()))) else None,
        settings={name: _SETTINGS[name] for name in sorted(lowering.uses.settings)},
        workspace=WORKTREE if any(map(_isolates, (root, *root.all_below()))) else SHARED,
        dialect=NAME,
    )


def _isolates(unit: Unit) -> bool:
    worktree = unit.flow.worktree if unit.flow is not None else None
    return worktree is not None and worktree.enabled


def _mutates(unit: Unit) -> bool:
    return unit.flow is not None and unit.flow.mutates_checkout


def _input(spec: InputSpec) -> Input:
    required = spec.default is None if spec.required is None else spec.required
    return Input(description=spec.description, required=required, default=spec.default)
