"""Lowering of a workflow to a plan: every default is filled in, every variable is resolved."""

from collections.abc import Iterator
from types import MappingProxyType

from loopwright.dialects.archon import files as named
from loopwright.dialects.archon.calls import (
    ArchonAgents,
    ArchonLoader,
    ArchonUnit,
    calls,
    configured,
    requested_config,
    servers,
)
from loopwright.dialects.archon.files import ArchonFileRequest, Files
from loopwright.dialects.archon.guards import EVIDENCE, parallel_of, with_evidence
from loopwright.dialects.archon.lower_nodes import ArchonLowering
from loopwright.dialects.archon.outline import ArchonOutline, named_files
from loopwright.dialects.archon.references import env_names, graphs, references, undeclared_inputs
from loopwright.dialects.archon.rules import structure, unused
from loopwright.dialects.archon.surface import NAME, ArchonWorkflow, InputSpec
from loopwright.model.plan import Input, Plan
from loopwright.model.policy import NO_LIMITS, Limits, WorkspacePolicy
from loopwright.model.policy import NO_WORKSPACE_POLICY as SHARED
from loopwright.syntax.document import MAX_PROBLEMS, Diagnostic, Document

_NO_FILES: Files = MappingProxyType({})
WORKTREE = WorkspacePolicy(worktree=True)
_SETTINGS = {"artifacts": "", "base_branch": "", "docs_dir": "docs/", "state": ".archon/state"}
_CONFIG_KEYS = {"base_branch": ("worktree", "baseBranch"), "docs_dir": ("docs", "path")}
_CONTEXT = Input(description="Text of the issue or pull request", required=False, default="")


def requested_files(document: Document, files: Files = _NO_FILES) -> list[ArchonFileRequest]:
    """The files that this workflow asks for and that are not there yet."""
    units = ArchonLoader(files)
    units.root(document)
    found = {
        one.path: one
        for unit in units.all
        for node in unit.made.nodes
        for path, name in named_files(node, unit.made)
        for one in named.missing(name, files, unit.document.at(path))
    }
    config = [
        one for unit in units.all for one in requested_config(unit.document, unit.made, files)
    ]
    return list({**found, **{one.path: one for one in config}}.values())


def lower(document: Document, files: Files = _NO_FILES) -> tuple[Plan | None, list[Diagnostic]]:
    """The plan, or all that is wrong; a plan may come with warnings."""
    units = ArchonLoader(files)
    root = units.root(document)
    problems = units.problems + [one for unit in units.all for one in _problems(unit, files)]
    if any(one.code == "old-workflow" for one in problems):
        problems = [one for one in problems if one.message != "nodes is required"]
    errors = [one for one in problems if one.severity == "error"]
    # Of too many problems, errors are shown before warnings.
    first = sorted(set(problems), key=lambda one: (one.severity != "error", *_order(one)))
    problems = sorted(first[:MAX_PROBLEMS], key=_order)
    if root.flow is None or errors:
        return None, problems
    return _plan(root.flow, root, files), problems


def _problems(unit: ArchonUnit, files: Files) -> Iterator[Diagnostic]:
    """All that is wrong between the parts of one workflow."""
    document, made = unit.document, unit.made
    yield from structure(document, made)
    yield from unused(document, made)
    yield from graphs(document, made)
    yield from references(document, made, files)
    yield from calls(unit)
    yield from _missing(document, made, files)
    yield from servers(document, made, files)
    yield from configured(document, made, files)


def _order(one: Diagnostic) -> tuple[str, int, int, str, str]:
    return one.file, one.line, one.column, one.code, one.message


def _missing(document: Document, made: ArchonOutline, files: Files) -> list[Diagnostic]:
    problems = []
    for node in made.nodes:
        for path, name in named_files(node, made):
            found = named.find(name, files)
            if not isinstance(found, named.MissingFile):
                continue
            # The node fails when it is reached. The nodes of an include are part of the workflow.
            is_left = found.is_absent and path[-1] != "include"
            report = document.warning if is_left else document.error
            what = "each of its items" if "fan_out" in node.value else "the node"
            message = f"{found.message}: {what} will fail" if is_left else found.message
            problems.append(report(found.code, message, at=path, hint=found.hint))
    return problems


def _plan(flow: ArchonWorkflow, root: ArchonUnit, files: Files) -> Plan:
    agents = ArchonAgents(flow, files)
    lowering = ArchonLowering(agents=agents, names=env_names(root.made), files=files, unit=root)
    steps, returns = with_evidence(flow, lowering.steps(flow.nodes, ("nodes",)))
    if EVIDENCE in {step.id for step in steps}:
        lowering.uses.settings.add("artifacts")
    inputs = {name: _input(one) for name, one in flow.inputs.items()}
    inputs |= {name: Input() for name in undeclared_inputs(root.made)}
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
        returns=returns,
        parallel=parallel_of(flow.nodes),
        limits=_limits(flow),
        missing="fail",
        exclusive="workspace" if any(map(_mutates, (root, *root.all_below()))) else None,
        settings={name: _setting(name, files) for name in sorted(lowering.uses.settings)},
        workspace=WORKTREE if any(map(_isolates, (root, *root.all_below()))) else SHARED,
        dialect=NAME,
    )


def _limits(flow: ArchonWorkflow) -> Limits:
    """What a run of a workflow may use."""
    usd = flow.budget.max_spend_usd if flow.budget is not None else None
    return NO_LIMITS if usd is None else Limits(usd=usd)


def _setting(name: str, files: Files) -> str:
    """The default value of a variable of the project."""
    configured = ""
    if name in _CONFIG_KEYS:
        configured = named.config_text(files, *_CONFIG_KEYS[name])
    return configured or _SETTINGS[name]


def _isolates(unit: ArchonUnit) -> bool:
    worktree = unit.flow.worktree if unit.flow is not None else None
    return worktree is not None and worktree.enabled


def _mutates(unit: ArchonUnit) -> bool:
    return unit.flow is not None and unit.flow.mutates_checkout


def _input(spec: InputSpec) -> Input:
    required = spec.default is None if spec.required is None else spec.required
    return Input(description=spec.description, required=required, default=spec.default)
