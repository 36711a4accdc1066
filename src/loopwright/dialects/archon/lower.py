"""From a workflow to the plan: every default filled in, every variable in its place."""

from types import MappingProxyType

from loopwright.dialects.archon import files as named
from loopwright.dialects.archon.agents import Agents
from loopwright.dialects.archon.files import Files, Wanted
from loopwright.dialects.archon.graph import graphs
from loopwright.dialects.archon.keys import unused
from loopwright.dialects.archon.nodes import Lowering
from loopwright.dialects.archon.outline import Outline, named_files, outline
from loopwright.dialects.archon.recognise import NAME
from loopwright.dialects.archon.references import env_names, references
from loopwright.dialects.archon.rules import structure
from loopwright.dialects.archon.surface import InputSpec, Workflow
from loopwright.model.plan import Input, Plan
from loopwright.syntax import Diagnostic, Document, validate
from loopwright.syntax.diagnostic import MAX_PROBLEMS

_NO_FILES: Files = MappingProxyType({})
_SETTINGS = {"artifacts": "", "base_branch": "", "docs_dir": "docs/"}
_CONTEXT = Input(description="Text of the issue or pull request", required=False, default="")


def wanted(document: Document, files: Files = _NO_FILES) -> list[Wanted]:
    """The files that this workflow asks for and that are not there yet."""
    found = {
        one.path: one
        for node in outline(document.value).nodes
        for path, name in named_files(node)
        for one in named.missing(name, files, document.at(path))
    }
    return list(found.values())


def lower(document: Document, files: Files = _NO_FILES) -> tuple[Plan | None, list[Diagnostic]]:
    """The plan, or all that is wrong; a plan may come with warnings."""
    flow, problems = validate(Workflow, document)
    made = outline(document.value)
    problems += structure(document, made)
    problems += unused(document, made)
    problems += graphs(document, made)
    problems += references(document, made, files)
    problems += _missing(document, made, files)
    if any(one.code == "old-workflow" for one in problems):
        problems = [one for one in problems if one.message != "nodes is required"]
    problems = sorted(set(problems), key=_order)[:MAX_PROBLEMS]
    if flow is None or any(one.severity == "error" for one in problems):
        return None, problems
    return _plan(flow, document, made, files), problems


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


def _plan(flow: Workflow, document: Document, made: Outline, files: Files) -> Plan:
    agents = Agents(flow)
    lowering = Lowering(agents=agents, names=env_names(made), files=files, document=document)
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
        exclusive="workspace" if flow.mutates_checkout else None,
        settings={name: _SETTINGS[name] for name in sorted(lowering.uses.settings)},
        dialect=NAME,
    )


def _input(spec: InputSpec) -> Input:
    required = spec.default is None if spec.required is None else spec.required
    return Input(description=spec.description, required=required, default=spec.default)
